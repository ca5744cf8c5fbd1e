"""Which matrix products to time: the paper's shapes, whole models, single N x K, or a checkpoint's own layers.

A shape is [N, K] of W in Y[M,N] = X[M,K] W[N,K]^T. Model presets merge q/k/v and gate/up, as serving engines run
them; the paper's twelve (arXiv 2606.13233) are kept as it lists them. Nothing here needs torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from resetcli.base.errors import ResetError, UsageError, unknown_name

BLOCK = 16
MAX_M = 1024
"""Small-M kernels are the subject; a larger M is a typing error more often than a wish."""


@dataclass(frozen=True)
class Shape:
    """One weight matrix, N rows by K columns, and what it is in a model."""

    n: int
    k: int
    label: str = ""

    @property
    def elements(self) -> int:
        """N * K."""
        return self.n * self.k

    def __str__(self) -> str:
        return f"{self.n}x{self.k}"


PAPER = tuple(
    Shape(n, k, "paper")
    for n, k in (
        (6144, 4096), (4096, 4096), (12288, 4096), (4096, 12288), (7168, 5120), (5120, 5120), (17408, 5120),
        (5120, 17408), (10240, 5120), (5120, 8192), (25600, 5120), (5120, 25600),
    )
)  # fmt: skip


def _decoder(name: str, hidden: int, heads: int, kv_heads: int, inner: int, head: int = 128) -> tuple[Shape, ...]:
    return (
        Shape((heads + 2 * kv_heads) * head, hidden, f"{name} qkv"),
        Shape(hidden, heads * head, f"{name} o"),
        Shape(2 * inner, hidden, f"{name} gate_up"),
        Shape(hidden, inner, f"{name} down"),
    )


PRESETS: dict[str, tuple[Shape, ...]] = {
    "paper": PAPER,
    "qwen3-8b": _decoder("qwen3-8b", 4096, 32, 8, 12288),
    "qwen3-14b": _decoder("qwen3-14b", 5120, 40, 8, 17408),
    "qwen3-32b": _decoder("qwen3-32b", 5120, 64, 8, 25600),
    "r1-qwen-7b": _decoder("r1-qwen-7b", 3584, 28, 4, 18944),
    "r1-qwen-14b": _decoder("r1-qwen-14b", 5120, 40, 8, 13824),
}
"""Names that ``--shapes`` knows."""


def parse_ms(text: str) -> list[int]:
    """``--M 1,4,8``: distinct batch sizes in the order given; spaces and a trailing comma allowed.

    Raises:
        UsageError: an item is not an integer from 1 to 1024 (named), or there is none.
    """
    found: list[int] = []
    for item in _items(text):
        if not re.fullmatch(r"[0-9]+", item) or not 1 <= int(item) <= MAX_M:
            raise UsageError(f"--M: '{item}' is not an integer from 1 to {MAX_M}; write for example --M 1,4,8")
        if int(item) not in found:
            found.append(int(item))
    if not found:
        raise UsageError("--M names no batch size; write for example --M 1,4,8")
    return found


def parse_shapes(text: str | None) -> list[Shape]:
    """``--shapes``: presets, NxK and checkpoint directories, separated by commas; None means the paper's twelve.

    Equal [N, K] are kept once, under the first label.

    Raises:
        UsageError: an unknown name (with the nearest known), N or K of 0, or K not a multiple of 16.
        ResetError: a directory that is not a usable checkpoint.
    """
    found: dict[tuple[int, int], Shape] = {}
    for item in _items(text if text is not None else "paper"):
        for shape in _one(item):
            found.setdefault((shape.n, shape.k), shape)
    if not found:
        raise UsageError(f"--shapes names nothing; write NxK, a checkpoint, or one of {', '.join(PRESETS)}")
    return list(found.values())


def _items(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


def _one(item: str) -> tuple[Shape, ...]:
    if item.lower() in PRESETS:
        return PRESETS[item.lower()]
    if match := re.fullmatch(r"([0-9]+)\s*[xX]\s*([0-9]+)", item):
        n, k = int(match[1]), int(match[2])
        if n < 1 or k < BLOCK or k % BLOCK:
            raise UsageError(f"--shapes {item}: N must be at least 1 and K a positive multiple of {BLOCK} (N x K)")
        return (Shape(n, k),)
    if Path(item).expanduser().is_dir():
        return checkpoint_shapes(Path(item).expanduser())
    if "/" in item or item.startswith("."):
        raise UsageError(f"--shapes {item}: no such directory; give a checkpoint, NxK, or one of {', '.join(PRESETS)}")
    raise unknown_name("shapes", item, PRESETS)


_MERGED = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up",
}  # fmt: skip


def merge_layers(sizes: dict[str, tuple[int, int]]) -> tuple[Shape, ...]:
    """Distinct shapes of linear layers {name: (N, K)}, with q/k/v and gate/up of one block stacked along N."""
    stacked: dict[str, tuple[int, int]] = {}
    for name, (n, k) in sizes.items():
        parent, _, leaf = name.rpartition(".")
        key = f"{parent}.{_MERGED.get(leaf, leaf)}"
        before = stacked.get(key)
        stacked[key] = (n + (before[0] if before and before[1] == k else 0), k)
    found: dict[tuple[int, int], Shape] = {}
    for name, (n, k) in stacked.items():
        found.setdefault((n, k), Shape(n, k, name.rpartition(".")[2]))
    return tuple(found.values())


def checkpoint_shapes(path: Path) -> tuple[Shape, ...]:
    """The quantized layers of an NVFP4 checkpoint, or the ``*_proj`` layers of a BF16 one, merged as engines run them.

    Raises:
        ResetError: the checkpoint is broken, or has no such layers.
    """
    from resetcli.nvfp4.checkpoint import Checkpoint, is_nvfp4

    if is_nvfp4(path):
        sizes = {name: (layer.n, layer.k) for name, layer in Checkpoint.open(path).layers.items()}
    else:
        sizes = _bf16_layers(path)
    shapes = tuple(shape for shape in merge_layers(sizes) if shape.k % BLOCK == 0)
    if not shapes:
        raise ResetError(f"{path} has no linear layer that NVFP4 applies to; pass NxK to --shapes")
    return shapes


def _bf16_layers(path: Path) -> dict[str, tuple[int, int]]:
    from safetensors import SafetensorError, safe_open

    sizes = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - not a dict
                    shape = tensors.get_slice(key).get_shape()
                    if key.endswith("_proj.weight") and len(shape) == 2:
                        sizes[key.removesuffix(".weight")] = (shape[0], shape[1])
        except (OSError, SafetensorError) as exc:
            raise ResetError(f"{file} cannot be read ({exc}); download it again") from exc
    return sizes
