"""A disk that fills up: one line that names the file and the cause, exit code 1, whole files and lines only, and
the same command goes on once there is room.

Two ways to a full disk: a limit on the size of any file (``RLIMIT_FSIZE``, "File too large"), which every user can
have, and a small tmpfs ("No space left on device"), which needs root.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_process import Ran, command, environment

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

EVAL = ("--tasks", "own", "--max-new-tokens", 4, "--tau0", 1, "-o", "run")


def limited(size: int, cwd: Path, *args: object) -> Ran:
    """The command, unable to make any file larger than ``size`` bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        command(*args), capture_output=True, env=environment(), cwd=cwd, preexec_fn=limit, timeout=280
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def failed(ran: Ran, file: str, cause: str = "File too large") -> None:
    assert ran.code == 1, ran.err
    assert re.match(rf"error: cannot write (the trace )?\S*{re.escape(file)}: {cause}", ran.error), ran.error
    assert ran.out == "" and "Traceback" not in ran.err


def whole_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.read_text().endswith("\n") else []


def test_eval(reset, tiny_checkpoint, tmp_path) -> None:
    """No room for run.json; then for that, but not for all samples; then for all but the results."""
    args = ("eval", tiny_checkpoint, *EVAL)
    run = tmp_path / "run"
    failed(limited(300, tmp_path, *args), "run/run.json")
    assert not run.exists()

    failed(limited(4000, tmp_path, *args), "run/samples.jsonl")
    assert sorted(path.name for path in run.iterdir()) == ["run.json", "run.lock", "samples.jsonl", "traces"]
    kept = (run / "samples.jsonl").read_bytes()
    assert 0 < len(whole_lines(run / "samples.jsonl")) < 24

    done = reset(*args, "--json")
    assert done.code == 0 and "goes on" in done.err, done.err
    samples = (run / "samples.jsonl").read_bytes()
    assert samples.startswith(kept) and len(whole_lines(run / "samples.jsonl")) == 24
    results = json.loads((run / "results.json").read_text())

    (run / "results.json").unlink()
    failed(limited(1000, tmp_path, *args), "run/results.json")
    published = ["report.html", "results_lm-eval.json"]
    left = sorted(path.name for path in run.iterdir())
    assert left == sorted([*published, "run.json", "run.lock", "samples.jsonl", "traces"])
    assert reset(*args).code == 0 and (run / "samples.jsonl").read_bytes() == samples
    again = json.loads((run / "results.json").read_text())
    assert {**again, "timing": None} == {**results, "timing": None}


def test_calibrate(reset, tiny_checkpoint, tmp_path) -> None:
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "c-nvfp4")
    (tmp_path / "p.jsonl").write_text('{"problem": "1 + 1?"}\n{"problem": "2 + 2?"}\n')
    args = ("calibrate", checkpoint, "--problems", "p.jsonl", "--max-new-tokens", 4)
    before = sorted(path.name for path in checkpoint.iterdir())
    failed(limited(500, tmp_path, *args), "c-nvfp4/reset_config.json")
    assert sorted(path.name for path in checkpoint.iterdir()) == before
    assert reset(*args).code == 0 and json.loads((checkpoint / "reset_config.json").read_text())["tau_0"] > 0


def test_trace(reset, tiny_checkpoint, tmp_path) -> None:
    args = (
        "generate",
        tiny_checkpoint,
        "-p",
        "Two?",
        "--max-new-tokens",
        16,
        "--tau0",
        1,
        "--json",
        "--trace",
        "t.jsonl",
    )
    failed(limited(2000, tmp_path, *args), "t.jsonl")
    header, *lines = whole_lines(tmp_path / "t.jsonl")
    assert header["trace"] == 1 and 0 < len(lines) < 16
    assert reset(*args).code == 0
    assert whole_lines(tmp_path / "t.jsonl")[: 1 + len(lines)] == [header, *lines]
    failed(limited(100, tmp_path, *args), "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text() == "", "not even the header has room"


def test_bench(reset, tmp_path) -> None:
    args = ("bench-kernels", "--M", 1, "--shapes", "64x64", "--seconds", 0.1, "-o", "bench.json")
    failed(limited(300, tmp_path, *args), "bench.json")
    assert not list(tmp_path.iterdir())


def test_standard_output(tiny_checkpoint) -> None:
    """``reset ... --json > FILE`` on a full disk."""
    args = command("inspect", tiny_checkpoint, "--json", "--quiet")
    with open("/dev/full", "w") as full:
        done = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, env=environment())
    assert done.returncode == 1
    line = "error: cannot write standard output: No space left on device; free space, and run the command again\n"
    assert done.stderr.decode() == line


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB, filled but for ``room(bytes)``; needs root."""
    mount = tmp_path / "disk"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")

    def room(pages: int) -> Path:
        (mount / "ballast").unlink(missing_ok=True)
        left = os.statvfs(mount).f_bavail - pages
        (mount / "ballast").write_bytes(bytes(left * os.statvfs(mount).f_frsize))
        return mount

    yield room
    subprocess.run(["umount", mount], check=True)


def test_a_full_file_system(reset, small_disk, tiny_checkpoint, tmp_path) -> None:
    """The same on a real one: pages are all or nothing, so a sample may be cut in the middle of its line."""
    args = ("eval", tiny_checkpoint, *EVAL[:-1], "disk/run")
    full = "No space left on device"
    # run.json takes a page, the samples two: they run out of room on the way.
    small_disk(2)
    failed(reset(*args), "disk/run/samples.jsonl", full)
    run = tmp_path / "disk" / "run"
    assert 0 < len(whole_lines(run / "samples.jsonl")) < 24

    small_disk(1)
    trace = ("generate", tiny_checkpoint, "-p", "Two?", "--max-new-tokens", 40, "--tau0", 1, "--json")
    failed(reset(*trace, "--trace", "disk/t.jsonl"), "disk/t.jsonl", full)
    assert len(whole_lines(tmp_path / "disk" / "t.jsonl")) > 1
