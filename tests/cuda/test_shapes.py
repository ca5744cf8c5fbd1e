"""What --M and --shapes mean, and that each mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from resetcli.base.errors import ResetError, UsageError
from resetcli.cuda.shapes import PAPER, PRESETS, Shape, checkpoint_shapes, merge_layers, parse_ms, parse_shapes


@pytest.mark.parametrize(("text", "values"), [("1,4,8", [1, 4, 8]), (" 8 , 1,", [8, 1]), ("2,2", [2])])
def test_ms(text: str, values: list[int]) -> None:
    assert parse_ms(text) == values


@pytest.mark.parametrize(
    ("text", "named"),
    [("0,abc", "'0'"), ("abc", "'abc'"), ("1,-2", "'-2'"), ("1.5", "'1.5'"), ("", "no batch"), (",", "no batch"),
     ("1025", "'1025'"), ("٣", "'٣'"), ("1e2", "'1e2'")],
)  # fmt: skip
def test_bad_ms(text: str, named: str) -> None:
    with pytest.raises(UsageError, match="--M") as caught:
        parse_ms(text)
    assert named in str(caught.value)


def test_default_is_the_papers_twelve() -> None:
    shapes = parse_shapes(None)
    assert shapes == list(PAPER) and len({(shape.n, shape.k) for shape in shapes}) == 12
    assert str(shapes[0]) == "6144x4096" and str(shapes[-1]) == "5120x25600"


def test_presets_and_sizes_mix_and_repeat_once() -> None:
    shapes = parse_shapes("qwen3-8b, 64x32, 4096x4096, QWEN3-8B,")
    assert [(shape.n, shape.k) for shape in shapes] == [
        (6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (64, 32),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("qwen3-8b", 36 * 192_937_984), ("qwen3-14b", 40 * 330_301_440), ("qwen3-32b", 64 * 487_587_840),
     ("r1-qwen-7b", 28 * 233_046_016), ("r1-qwen-14b", 48 * 275_251_200)],
)  # fmt: skip
def test_presets_have_their_models_size(name: str, parameters: int) -> None:
    """Rule: linear weights of all decoder layers, from the published hidden, head and inner sizes, times depth."""
    depth = {"qwen3-8b": 36, "qwen3-14b": 40, "qwen3-32b": 64, "r1-qwen-7b": 28, "r1-qwen-14b": 48}[name]
    assert sum(shape.elements for shape in PRESETS[name]) * depth == parameters


@pytest.mark.parametrize(
    ("text", "message"),
    [("64x1000", "multiple of 16"), ("0x64", "at least 1"), ("64x0", "multiple of 16"), ("qwen3-8", "did you mean"),
     ("./nowhere", "no such directory"), ("", "names nothing")],
)  # fmt: skip
def test_bad_shapes(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_shapes(text)


def test_merging_stacks_qkv_and_gate_up() -> None:
    sizes = {
        f"model.layers.{i}.{name}": size
        for i in range(2)
        for name, size in {
            "self_attn.q_proj": (64, 48), "self_attn.k_proj": (32, 48), "self_attn.v_proj": (32, 48),
            "self_attn.o_proj": (48, 64), "mlp.gate_proj": (96, 48), "mlp.up_proj": (96, 48), "mlp.down_proj": (48, 96),
        }.items()
    }  # fmt: skip
    assert merge_layers(sizes) == (
        Shape(128, 48, "qkv"), Shape(48, 64, "o_proj"), Shape(192, 48, "gate_up"), Shape(48, 96, "down_proj"),
    )  # fmt: skip


def test_a_checkpoints_own_layers(tiny_model_dir: Path, tiny_checkpoint: Path) -> None:
    """Rule: the BF16 directory and the NVFP4 checkpoint made from it list the same products."""
    shapes = checkpoint_shapes(tiny_checkpoint)
    assert {shape.label for shape in shapes} >= {"qkv", "gate_up", "down_proj"}
    assert {(s.n, s.k) for s in shapes} == {(s.n, s.k) for s in checkpoint_shapes(tiny_model_dir)}
    assert parse_shapes(str(tiny_checkpoint)) == list(shapes)


def test_a_directory_without_layers(tmp_path: Path) -> None:
    with pytest.raises(ResetError):
        parse_shapes(str(tmp_path))
