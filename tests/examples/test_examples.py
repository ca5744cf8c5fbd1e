"""The trace reader as it is, on traces of a tiny model; the other examples are in test_quickstart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, cwd=cwd, env=env, timeout=280
    )


def test_trace_reader_recomputes_every_temperature(tiny_checkpoint, tmp_path) -> None:
    """Eight answers of a tiny random model, those traced that have several steps and both temperatures."""
    import numpy as np

    from resetcli.engines.factory import EngineOptions, open_engine
    from resetcli.engines.protocol import Request
    from resetcli.engines.trace import TraceWriter
    from resetcli.policy.settings import PolicySettings

    engine = open_engine(EngineOptions(path=tiny_checkpoint, batch_size=8))
    prompt = tuple(engine.encode("Two"))
    first = Request("first", prompt, 0, 100, ignore_eos=True)
    (warm,) = engine.generate([first], PolicySettings(name="fixed", temperature=1.0), keep_entropies=True)
    tau_0 = float(np.median(warm.entropies))
    settings = PolicySettings(tau_0=tau_0, tau_0_source="option", window=4, t_low=0.9)
    events: dict[str, list] = {}
    requests = [Request(str(seed), prompt, seed, 250, ignore_eos=True) for seed in range(8)]
    done = list(engine.generate(requests, settings, on_token=lambda e: events.setdefault(e.request, []).append(e)))
    engine.close()
    telling = [d for d in done if d.steps > 1 and 0 < d.cooled < d.n_tokens and d.uncertain_tokens]
    assert len(telling) >= 2, [(d.steps, d.cooled, d.uncertain_tokens) for d in done]
    for answer in telling[:2]:
        with TraceWriter(tmp_path / "t.jsonl", settings=settings, model="tiny", seed=0) as trace:
            for event in events[answer.request_id]:
                trace.on_token(event)
        ran = run(EXAMPLES / "read_trace.py", tmp_path / "t.jsonl", cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        counts = f"{answer.n_tokens} tokens of tiny, {answer.cooled} cooled, {answer.uncertain_tokens} in uncertain"
        assert counts in ran.stdout


def test_trace_reader_sees_a_wrong_temperature(tmp_path) -> None:
    policy = {"name": "reset", "estimator": "hybrid", "tau_0": 1.0, "t_low": 0.1, "t_high": 1.0, "window": 2}
    token = {"entropy": 0.5, "boundary": True, "temperature": 1.0, "uncertain": False}
    lines = [{"trace": 1, "policy": policy, "model": "m"}, token]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = run(EXAMPLES / "read_trace.py", tmp_path / "t.jsonl", cwd=tmp_path)
    assert ran.returncode == 1 and "1 temperatures differ" in ran.stdout
