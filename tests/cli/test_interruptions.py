"""Ctrl-C at every phase of calibrate and eval, and a kill in quantize: the signal lands where it is meant to.

Each command is halted at a place inside the phase (see ``halting``) and interrupted there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from halting import interrupt

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


CALIBRATE_PHASES = {
    "model load": ("resetcli.nvfp4.loader:load_nvfp4", 1),
    "first prompt": ("resetcli.engines.runner:ModelRunner.prefill", 2),
    "generation": ("resetcli.engines.runner:ModelRunner.decode", 3),
    "T_low generation": ("resetcli.engines.transformers_engine:TransformersEngine.generate", 2),
    "T_low scoring": ("resetcli.evaluation.scoring.score:score_output", 1),
    "percentiles": ("resetcli.calibration.distribution:bootstrap_percentile", 1),
    "comparison": ("resetcli.engines.transformers_engine:TransformersEngine.teacher_force", 1),
    "writing": ("os:replace", 1, "reset_config.json"),
}


def test_calibrate_interrupted_in_each_phase(halted, reset, tiny_checkpoint, tiny_model_dir, tmp_path) -> None:
    """One command, interrupted in one phase after the other, and done at last."""
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "c-nvfp4")
    rows = [{"id": f"p{i}", "problem": f"{i} + {i}?", "answer": str(2 * i)} for i in range(7)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ("calibrate", checkpoint, "--problems", "p.jsonl", "--max-new-tokens", 6, "--select-t-low", "0.1,0.3",
            "--select-problems", 2, "--repeats", 1, "--compare", tiny_model_dir)  # fmt: skip
    before = files(tmp_path)
    for phase, place in CALIBRATE_PHASES.items():
        out, _ = interrupt(halted(args, tmp_path, *place))
        assert out == "", phase
        assert files(tmp_path) == before, f"{phase}: nothing half written"
    again = reset(*args)
    assert again.code == 0, again.err
    assert json.loads((checkpoint / "reset_config.json").read_text())["calibration"]["problems"] == 5


EVAL_PHASES = {
    "model load": (("resetcli.nvfp4.loader:load_nvfp4", 1), 0),
    "run.json": (("os:replace", 1, "run.json"), 0),
    "speed probe": (("resetcli.engines.runner:ModelRunner.decode", 2), 0),
    "generation": (("resetcli.engines.runner:ModelRunner.decode", 7), 0),
    "scoring": (("resetcli.evaluation.judge:score_output", 2), 1),
    "sample on the disk": (("os:fsync", 2, "samples.jsonl"), 3),
    "statistics": (("resetcli.evaluation.results:task_statistics", 1), 4),
    "results.json": (("os:replace", 1, "results.json"), 4),
}
"""Where each phase is interrupted, and how many samples are on the disk then."""


def outcome(run: Path) -> tuple[list[bytes], dict]:
    """Samples in any order, and results without timing."""
    results = json.loads((run / "results.json").read_text())
    results.pop("timing")
    return sorted((run / "samples.jsonl").read_bytes().splitlines()), results


def test_eval_interrupted_in_each_phase(halted, reset, tiny_checkpoint, tmp_path) -> None:
    """One run, interrupted in one phase after the other, each time continued by the same command."""
    args = ("eval", tiny_checkpoint, "--tasks", "own", "--limit", 4, "--max-new-tokens", 6, "--tau0", 1,
            "--batch-size", 2, "-o")  # fmt: skip
    run, kept = tmp_path / "run", b""
    for phase, (place, samples) in EVAL_PHASES.items():
        had = kept.count(b"\n")
        out, err = interrupt(halted((*args, run), tmp_path, *place))
        assert out == "", phase
        assert not had or f"goes on: {had} of 4 samples are there" in err
        left = sorted(path.name for path in run.iterdir()) if run.exists() else []
        assert bool(left) == bool(samples), f"{phase}: a run without samples leaves nothing"
        assert set(left) <= {"run.lock", "run.json", "samples.jsonl", "traces"}, f"{phase}: no scratch file, no results"
        if "run.json" in left:
            json.loads((run / "run.json").read_text())
        now = (run / "samples.jsonl").read_bytes() if "samples.jsonl" in left else b""
        assert now.startswith(kept), f"{phase}: what was there stays as it is"
        assert all(line.endswith(b"\n") and json.loads(line) for line in now.splitlines(keepends=True)), phase
        assert now.count(b"\n") == samples, phase
        kept = now
    last = reset(*args, run)
    assert last.code == 0 and (run / "samples.jsonl").read_bytes() == kept, last.err
    undisturbed = reset(*args, tmp_path / "undisturbed")
    assert undisturbed.code == 0, undisturbed.err
    assert outcome(run) == outcome(tmp_path / "undisturbed")


QUANTIZE_PHASES = {
    "before anything": ("resetcli.quantization.run:load_documents", 1),
    "reading the model": ("resetcli.quantization.run:_Job._load", 1),
    "calibration": ("resetcli.quantization.run:_Job._calibrate", 1),
    "export": ("resetcli.quantization.run:export", 1),
    "files beside the weights": ("resetcli.quantization.run:carry_over", 1),
    "check": ("resetcli.quantization.run:_Job._observe_checkpoint", 1),
    "report": ("os:replace", 1, "quantize_report.json"),
    "the last rename": ("os:rename", 1, "/out"),
}


def test_quantize_interrupted_in_each_phase(halted, tiny_model_dir, tmp_path) -> None:
    args = ("quantize", tiny_model_dir, "-o", tmp_path / "out", "--calib-samples", 1, "--calib-length", 32)
    for phase, place in QUANTIZE_PHASES.items():
        out, _ = interrupt(halted(args, tmp_path, *place))
        assert out == "" and list(tmp_path.iterdir()) == [], phase


def test_generate_interrupted_keeps_what_was_written(halted, tiny_checkpoint, tmp_path) -> None:
    args = ("generate", tiny_checkpoint, "-p", "Two?", "--max-new-tokens", 100, "--trace", tmp_path / "t.jsonl",
            "--policy", "fixed", "--temperature", 2, "--top-p", 1, "--seed", 2)  # fmt: skip
    out, err = interrupt(halted(args, tmp_path, "resetcli.engines.runner:ModelRunner.decode", 5))
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert len(lines) == 1 + 5 and "".join(line["text"] for line in lines[1:]).strip() == out.strip() != ""
    assert err.splitlines()[-2].startswith("5 tokens, ") and err.splitlines()[-2].endswith(", interrupted")


def test_generate_interrupted_while_loading(halted, tiny_checkpoint, tmp_path) -> None:
    args = ("generate", tiny_checkpoint, "-p", "Two?", "--trace", tmp_path / "t.jsonl")
    out, _ = interrupt(halted(args, tmp_path, "resetcli.nvfp4.loader:load_nvfp4"))
    assert out == "" and list(tmp_path.iterdir()) == []


def test_quantize_killed_and_done_again(halted, reset, tiny_model_dir, tmp_path) -> None:
    """`kill -9` cannot be caught: the scratch folder stays, and the next run of the same target removes it."""
    args = ("quantize", tiny_model_dir, "-o", tmp_path / "out", "--calib-samples", 1, "--calib-length", 32)
    process = halted(args, tmp_path, "resetcli.quantization.run:carry_over")
    (scratch,) = tmp_path.iterdir()
    assert scratch.name.startswith(".out.partial-") and list(scratch.glob("*.safetensors"))
    process.kill()
    process.communicate()
    assert scratch.is_dir()
    ran = reset(*args, "--quiet")
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".reset", "out"]
