"""Ten SIGKILLs at random points of a run of 200 samples on the real engine: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from test_real_engine import POLICY, Runner, without_timing

from resetcli.evaluation.runs import read_samples, sample_file

KILLS = 10


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    runner.process.stdin.close()
    runner.process.wait(timeout=60)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("packed", [False, True])
def test_killed_ten_times(runner, tiny_checkpoint, data_dir, tmp_path, packed) -> None:
    call = {
        "model": str(tiny_checkpoint), "data": str(data_dir), "tasks": "aime,own", "policy": POLICY, "repeats": 10,
        "limit": 10, "max_new_tokens": 30, "seed": 4, "max_failed": 1.0,
    }  # fmt: skip
    runner.start(**call, output=str(tmp_path / "whole"), batch_size=8)
    assert runner.status() == 0
    assert len(list(read_samples(tmp_path / "whole"))) == 200
    seed = time.time_ns()
    draw = random.Random(seed)
    points = sorted(draw.sample(range(0, 190), KILLS))
    left = []
    for have in points:
        pid = runner.start(**call, output=str(tmp_path / "cut"), batch_size=draw.randint(1, 8), packed=packed)
        deadline = time.monotonic() + 100
        while not (path := sample_file(tmp_path / "cut")) or lines(path) < have:
            if have == 0 and draw.random() < 0.01:
                break  # before the first sample, wherever that may be
            assert time.monotonic() < deadline
            time.sleep(0.003)
        time.sleep(draw.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(runner.status()) == signal.SIGKILL, f"the run was over before the kill (seed {seed})"
        left.append(lines(path) if (path := sample_file(tmp_path / "cut")) else 0)
        assert not (tmp_path / "cut/results.json").exists()
    runner.start(**call, output=str(tmp_path / "cut"), batch_size=5)
    assert runner.status() == 0
    found = [sorted(map(str, read_samples(tmp_path / name))) for name in ("whole", "cut")]
    assert found[0] == found[1], f"killed with {left} samples on the disk (seed {seed})"
    assert without_timing(tmp_path / "whole") == without_timing(tmp_path / "cut")
    print(f"killed with {left} samples on the disk")


def lines(path) -> int:
    """Whole samples in the file that another process writes."""
    from resetcli.evaluation.lines import whole_lines

    return sum(1 for _ in whole_lines(path))
