"""``reset eval`` where a run cannot be relied on: one ``error: `` line, the exit code, what is left in the folder."""

from __future__ import annotations

import json
import shutil

import pytest

OWN = ("--tasks", "own", "--limit", 2, "--max-new-tokens", 4, "--tau0", 1)


@pytest.fixture(scope="module")
def overflowing(tiny_checkpoint, tmp_path_factory):
    """A sound-looking checkpoint whose logits are not finite: one layer's scale is near the top of float32."""
    import torch
    from safetensors.torch import load_file, save_file

    path = shutil.copytree(tiny_checkpoint, tmp_path_factory.mktemp("nan") / "nan-nvfp4")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight_scale_2"] = torch.tensor(3e38)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def test_failed_samples_end_with_one_error_line(reset, overflowing, tmp_path) -> None:
    """Each time it is asked, and with --quiet; the document is whole all the same, and the samples are tried again."""
    for more in ((), ("--quiet", "--json")):
        ran = reset("eval", overflowing, *OWN, "-o", "run", *more)
        assert ran.code == 1, ran.err
        assert "2 of 2 samples failed and score 0, as their logits were not finite (own 2)" in ran.error
        assert ran.out
    found = json.loads(ran.out)
    assert found["failed"] == 2 and found["error"] in ran.error and found["results"]["own"]["errors"] == 2
    assert "2 that failed are made again" in reset("eval", overflowing, *OWN, "-o", "run").err
    assert len((tmp_path / "run/samples.jsonl").read_text().splitlines()) == 2


def test_refusals_leave_every_folder_as_it_was(reset, tiny_checkpoint, tmp_path) -> None:
    """A checkpoint, a stranger's folder, the folder one stands in, a model that is damaged."""
    model = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    for name in ("theirs", "theirs-too"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs/notes.txt").write_text("years of work")
    (tmp_path / "theirs-too/run.json").write_text('{"settings": {"speed": "fast"}}')
    damaged = shutil.copytree(tiny_checkpoint, tmp_path / "damaged")
    (damaged / "tokenizer.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    for output in (model, "theirs", "theirs-too", ".", ".."):
        ran = reset("eval", tiny_checkpoint, *OWN, "-o", output)
        assert ran.code == 1 and "choose another" in ran.error
    for output in (("-o", "new/run"), ()):
        assert reset("eval", damaged, *OWN, *output).code == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_prompts_that_do_not_fit(reset, tiny_checkpoint, tmp_path) -> None:
    rows = [{"id": f"2022-I-{i}", "problem": "word " * size + "?", "answer": "1"} for i, size in enumerate((600, 2, 2))]
    data = tmp_path / "aime_2022.jsonl"
    args = ("eval", tiny_checkpoint, "--tasks", "aime22", "--data-dir", ".", "--max-new-tokens", 4, "--tau0", 1)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in ("made", "finished"):
        ran = reset(*args, "-o", "run")
        assert ran.code == 0, ran.err
        assert "warning: task aime22: 1 of 3 prompts does not fit the model's context of" in ran.err
        assert "aime22: 1 of 3 prompts did not fit the context of" in ran.out
    data.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:2], {**rows[0], "id": "2022-I-9"}]))
    ran = reset(*args, "-o", "new", "--json")
    assert ran.code == 1 and ran.out == "" and not (tmp_path / "new").exists()
    assert "task aime22: 2 of 3 prompts do not fit the model's context of" in ran.error


def test_thought_options_are_settings_of_the_run(reset, tiny_checkpoint, tmp_path) -> None:
    """Recorded, refused by name when they change, and blank markers refused before anything is loaded."""
    args = ("eval", tiny_checkpoint, *OWN, "-o", "run")
    assert reset(*args, "--thought-end", "[/THINK]", "--no-thinking").code == 0
    settings = json.loads((tmp_path / "run/run.json").read_text())["settings"]
    assert settings["think_markers"] == ["[THINK]", "[/THINK]"] and settings["thinking"] is False
    ran = reset(*args)
    assert ran.code == 1 and "think_markers" in ran.error and "thinking (false, now true)" in ran.error
    ran = reset("eval", "no-such-checkpoint", *OWN, "--thought-end", " ")
    assert ran.code == 2 and "--thought-end must not be blank" in ran.error
