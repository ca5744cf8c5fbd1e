"""Runs on the real engine and a tiny random model: SIGKILL at random points, lm-eval's own command line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resetcli.base.seeds import sample_seed
from resetcli.engines.protocol import Request
from resetcli.evaluation.runs import read_samples
from resetcli.policy.settings import PolicySettings

HERE = Path(__file__).parent
POLICY = {"name": "reset", "tau_0": 2.0, "t_low": 0.3, "tau_0_source": "option"}


class Runner:
    """The forking process of ``killable``."""

    def __init__(self):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "killable.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self.process.stdout.readline().strip() == "ready"

    def start(self, **call) -> int:
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def status(self) -> int:
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    runner.process.stdin.close()
    runner.process.wait(timeout=60)


def without_timing(path: Path) -> str:
    results = json.loads((path / "results.json").read_text())
    assert results.pop("timing")["tokens_per_s"] > 0
    return json.dumps(results)


def test_killed_twice_and_run_again(runner, tiny_checkpoint, data_dir, tmp_path) -> None:
    """Samples as a set of lines, results byte by byte, with other batch sizes in each sitting."""
    call = {
        "model": str(tiny_checkpoint), "data": str(data_dir),
        "tasks": "aime,gpqa,wikitext", "policy": POLICY, "repeats": 2, "limit": 6, "max_new_tokens": 40, "seed": 3,
    }  # fmt: skip
    runner.start(**call, output=str(tmp_path / "whole"), batch_size=8)
    assert runner.status() == 0
    total = len(list(read_samples(tmp_path / "whole")))
    assert total == 12 + 6 + 3
    draw = random.Random(time.time_ns())
    points = sorted(draw.sample(range(1, total - 4), 2))
    for have, batch in zip(points, (3, 1), strict=True):
        pid = runner.start(**call, output=str(tmp_path / "cut"), batch_size=batch)
        path = tmp_path / "cut/samples.jsonl"
        deadline = time.monotonic() + 60
        while not (path.exists() and path.read_bytes().count(b"\n") >= have):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(draw.random() * 0.05)
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(runner.status()) == signal.SIGKILL, f"the run was over before the kill (points {points})"
        assert not (tmp_path / "cut/results.json").exists()
    runner.start(**call, output=str(tmp_path / "cut"), batch_size=5)
    assert runner.status() == 0
    lines = [sorted((tmp_path / name / "samples.jsonl").read_bytes().splitlines()) for name in ("whole", "cut")]
    assert lines[0] == lines[1], f"killed at {points}"
    assert without_timing(tmp_path / "whole") == without_timing(tmp_path / "cut")


def test_a_sample_is_what_the_engine_says_alone(runner, tiny_model_dir, data_dir, tmp_path) -> None:
    """A sample of the run against the same prompt, seed and limit put to an engine by hand."""
    import torch

    from resetcli.engines.factory import EngineOptions, open_engine

    runner.start(model=str(tiny_model_dir), data=str(data_dir), tasks="gsm8k", policy=POLICY, repeats=2,
                 max_new_tokens=24, output=str(tmp_path / "run"), batch_size=4)  # fmt: skip
    assert runner.status() == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["batch_invariant"] is True
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        engine = open_engine(EngineOptions(path=tiny_model_dir, device="cpu", batch_size=1))
        text = (
            "Count 2 hens.\n\nSolve this problem. Reason step by step, and write your final answer inside \\boxed{} "
            "at the end."
        )
        ids = tuple(engine.encode_chat([{"role": "user", "content": text}]))
        for sample in read_samples(tmp_path / "run"):
            if sample["doc_id"] != "2":
                continue
            seed = sample_seed(0, "gsm8k", "2", sample["repeat"])
            (done,) = engine.generate([Request("x", ids, seed, 24)], PolicySettings(**POLICY))
            assert (sample["seed"], sample["text"], sample["n_tokens"], sample["finish_reason"]) == (
                seed, done.text, done.n_tokens, done.finish_reason
            )  # fmt: skip
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["module", pytest.param("stock", marks=pytest.mark.long)])
def test_lm_evals_own_command(way, tiny_model_dir, data_dir, tmp_path) -> None:
    """``lm_eval --model reset``: through our module by task name, and lm-eval's own entry with the task file's path."""
    from resetcli.evaluation.tasks import TASK_DIR

    args = ["--model", "reset", "--model_args", f"pretrained={tiny_model_dir},policy=reset,tau0=0.5,max_gen_toks=16",
            "--apply_chat_template", "--limit", "2", "--output_path", str(tmp_path), "--log_samples",
            "--gen_kwargs", "max_gen_toks=16"]  # fmt: skip
    if way == "module":
        command = ["-m", "resetcli.evaluation.lm_eval_main", *args, "--tasks", "aime22"]
    else:
        command = ["-m", "lm_eval", "run", *args, "--tasks", str(TASK_DIR / "aime22.yaml")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RESET_DATA_DIR": str(data_dir)}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = tmp_path.rglob("results_*.json")
    results = json.loads(path.read_text())
    assert results["n-samples"]["aime22"] == {"original": 4, "effective": 2}
    assert 0 <= results["results"]["aime22"]["exact_match,score"] <= 1
    (samples,) = tmp_path.rglob("samples_aime22_*.jsonl")
    assert len(samples.read_text().splitlines()) == 2 and "<|im_start|>user" in samples.read_text()
