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
    """Each time it is asked, and with --quiet; the document is whole all the same."""
    for more in ((), ("--quiet", "--json")):
        ran = reset("eval", overflowing, *OWN, "-o", "run", *more)
        assert ran.code == 1, ran.err
        assert "2 of 2 samples failed and score 0, as their logits were not finite (own 2)" in ran.error
        assert ran.out
    found = json.loads(ran.out)
    assert found["failed"] == 2 and found["error"] in ran.error and found["results"]["own"]["errors"] == 2
