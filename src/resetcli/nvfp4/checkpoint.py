"""An NVFP4 checkpoint on disk: recognised, read and checked before anything is built from it.

All that is wrong is found in one pass and told in one line, since a user with a broken 20 GB download should not
meet its faults one at a time. What the tensors are decides, not what the metadata says: a checkpoint
whose metadata was stripped still loads. Block scales are read whole (a ninth of the bytes), codes are not.

Two layouts (design 1.2): ModelOpt's, native; and compressed-tensors ``nvfp4-pack-quantized``, which names the codes
``weight_packed`` and stores both global scales inverted.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.nvfp4.codec import BLOCK
from resetcli.nvfp4.metadata import COMPRESSED, MODELOPT, WEIGHT_ONLY_ALGO, Metadata, read_config, read_metadata
from resetcli.nvfp4.tensorfile import FLOATS, TensorInfo, read_headers, read_tensor

FUSED: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
"""Layers that engines multiply as one, so that they must share their global scales."""

SUFFIXES = {
    MODELOPT: ("weight", "weight_scale", "weight_scale_2", "input_scale"),
    COMPRESSED: ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"),
}
"""Tensor names of a layer's codes, block scales, weight global scale and input global scale, by layout."""

_CACHE_SCALES = ("k_scale", "v_scale", "q_scale", "prob_scale", "k_bias", "v_bias")  # of a quantized KV cache
_LISTED = 8


@dataclass(frozen=True)
class LayerInfo:
    """A quantized linear layer: weight [n, k]; its tensors where they lie (``input_scale`` None: weights only)."""

    name: str
    n: int
    k: int
    weight: TensorInfo
    weight_scale: TensorInfo
    weight_scale_2: TensorInfo
    input_scale: TensorInfo | None

    @property
    def shard(self) -> str:
        return self.weight.file.name

    @property
    def nbytes(self) -> int:
        parts = (self.weight, self.weight_scale, self.weight_scale_2, self.input_scale)
        return sum(part.nbytes for part in parts if part is not None)


@dataclass
class Checkpoint:
    """A checked NVFP4 checkpoint. ``scales`` holds (weight_scale_2, input_scale) of each layer as float32 values,
    inverted ones turned round; ``ignored_tensors`` are names the loader passes over; ``notes`` what a user may like
    to know.
    """

    path: Path
    config: dict[str, Any]
    format: str
    metadata: Metadata | None
    tensors: dict[str, TensorInfo]
    files: list[Path]
    layers: dict[str, LayerInfo] = field(default_factory=dict)
    scales: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    ignored_tensors: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path | str, *, trust_remote_code: bool = False) -> Checkpoint:
        """Read and check the checkpoint at ``path``.

        Raises:
            ResetError: it is missing, not a model, not NVFP4, or broken; one line with every fault (the first eight
                in words).
        """
        from resetcli.nvfp4.skeleton import meta_model

        path = Path(path)
        config = read_config(path)
        metadata = read_metadata(path, config)
        if metadata and (fault := metadata.fault()):
            raise ResetError(f"{path} cannot be loaded: {fault}")
        tensors, files, faults = read_headers(path)
        layout = _layout(tensors)
        if layout is None:
            if not faults:
                claim = ", though its metadata says so" if metadata else ""
                faults.append(f"no layer has NVFP4 tensors{claim}; it is not an NVFP4 checkpoint")
            raise _error(path, faults)
        self = cls(path, config, layout, metadata, tensors, files)
        if metadata and metadata.format != layout:
            self.notes.append(f"metadata says {metadata.format}, the tensors are {layout}")
        if metadata is None:
            self.notes.append("no quantization metadata; recognised by its tensors")
        elif metadata.kv_cache:
            self.notes.append(f"KV cache scheme {metadata.kv_cache} is not applied: the cache stays 16 bit or more")
        cut = bool(faults)
        faults += self._find_layers()
        if not cut:  # tensors behind a cut would only repeat it
            faults += self._check_values()
        try:
            model = meta_model(path, trust_remote_code=trust_remote_code)
        except ResetError:
            if not faults:
                raise
        else:
            faults += self._check_names(model, complain_missing=not cut)
        if faults:
            raise _error(path, faults)
        return self

    @property
    def weight_only(self) -> bool:
        """Whether activations have no scale, so that only W4A16 is possible."""
        return all(layer.input_scale is None for layer in self.layers.values())

    @property
    def ignored(self) -> tuple[str, ...]:
        """Module patterns that the metadata leaves unquantized."""
        return self.metadata.ignored if self.metadata else ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    def fingerprint(self) -> str:
        """As the module's ``fingerprint``."""
        return _digest(self.path, self.files, self.tensors)

    def _find_layers(self) -> list[str]:
        """Fill ``layers``; faults of missing parts, shapes and dtypes."""
        codes_name, scale_name, global_name, input_name = SUFFIXES[self.format]
        expects_input = not (self.metadata and self.metadata.algo == WEIGHT_ONLY_ALGO)
        if self.metadata is None:
            expects_input = any(name.endswith("." + input_name) for name in self.tensors)
        names = {
            name.rpartition(".")[0]
            for name, info in self.tensors.items()
            if name.endswith(("." + scale_name, "." + global_name, "." + input_name))
            or (name.endswith("." + codes_name) and info.dtype == "U8")
        }
        faults: list[str] = []
        for name in sorted(names, key=_natural):
            parts = [self.tensors.get(f"{name}.{suffix}") for suffix in SUFFIXES[self.format]]
            needed = zip(SUFFIXES[self.format], parts, (True, True, True, expects_input), strict=True)
            missing = [f"{name}.{suffix} is missing" for suffix, part, need in needed if need and part is None]
            codes, scale, global_scale, input_scale = parts
            faults += missing + _shape_faults(codes, scale, global_scale, input_scale)
            if codes and scale and global_scale and not missing and len(codes.shape) == 2:
                n, half = codes.shape
                self.layers[name] = LayerInfo(name, n, 2 * half, codes, scale, global_scale, input_scale)
        return faults

    def _check_values(self) -> list[str]:
        """Read all scales; faults of values that are NaN, zero, negative, or unequal where layers are fused."""
        faults: list[str] = []
        for name, layer in self.layers.items():
            values: list[float | None] = []
            for info in (layer.weight_scale_2, layer.input_scale):
                value, fault = _global_scale(info, inverse=self.format == COMPRESSED)
                values.append(value)
                faults += [fault] if fault else []
            self.scales[name] = (values[0] or 0.0, values[1])
            if layer.weight_scale.dtype == "F8_E4M3":
                bits = read_tensor(layer.weight_scale).view(torch.uint8).flatten()
                magnitude = bits & 0x7F
                zero_allowed = self.format == COMPRESSED  # its exporters write 0 for a block of zeros
                kinds = {
                    "NaN": magnitude == 0x7F,
                    "zero": magnitude == 0 if not zero_allowed else None,
                    "negative": (bits > 0x80) & (magnitude != 0x7F),
                }
                for kind, where in kinds.items():
                    if where is not None and (count := int(where.sum())):
                        faults.append(f"{layer.weight_scale.name} has {count} {kind} values")
        groups: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        for name in self.layers:
            parent, _, leaf = name.rpartition(".")
            for group in FUSED:
                if leaf in group:
                    groups[parent, group].append(name)
        for (parent, group), names in groups.items():
            for index, what in ((0, SUFFIXES[self.format][2]), (1, SUFFIXES[self.format][3])):
                if len({self.scales[name][index] for name in names}) > 1:
                    faults.append(f"{parent}: {'/'.join(group)} have unequal {what}; engines need one")
        return faults

    def _check_names(self, model: torch.nn.Module, *, complain_missing: bool) -> list[str]:
        """Faults of tensors that the meta model lacks or does not know, and of unquantized shapes and dtypes."""
        state = model.state_dict(keep_vars=True)
        linear = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        faults, seen = [], set()
        for name, layer in self.layers.items():
            seen |= {f"{name}.{suffix}" for suffix in SUFFIXES[self.format]}
            module = linear.get(name)
            if module is None:
                faults.append(f"{name} is quantized, but {self.architecture} has no such linear layer")
            elif tuple(module.weight.shape) != (layer.n, layer.k):
                faults.append(
                    f"{name} has weight [{layer.n}, {layer.k}], but the config says {list(module.weight.shape)}"
                )
            if self.metadata and self.metadata.ignores(name):
                self.notes.append(f"{name} is on the ignore list, yet quantized")
        for name, info in self.tensors.items():
            parent, _, leaf = name.rpartition(".")
            if name in seen or (parent not in self.layers and self._is_part(parent, leaf)):
                continue
            if leaf in _CACHE_SCALES or name.endswith("rotary_emb.inv_freq"):
                self.ignored_tensors.add(name)
            elif name not in state:
                faults.append(f"{name} is unknown to {self.architecture}")
            elif tuple(state[name].shape) != info.shape:
                faults.append(f"{name} has shape {list(info.shape)}, but the config says {list(state[name].shape)}")
            elif state[name].is_floating_point() and info.dtype not in FLOATS:
                faults.append(f"{name} has dtype {info.dtype}, not one of {', '.join(FLOATS)}")
            elif parent in linear and leaf == "weight" and self.metadata and not self.metadata.ignores(parent):
                self.notes.append(f"{parent} is not quantized, yet not on the ignore list")
        if complain_missing:
            present = set(self.tensors)
            aliases: dict[int, list[str]] = defaultdict(list)
            for name, value in state.items():
                aliases[id(value)].append(name)
            broken = {name.rpartition(".")[0] for name in present if self._is_part(*name.rpartition(".")[::2])}
            for names in aliases.values():
                stem = names[0].rpartition(".")[0]
                quantized = names[0].endswith(".weight") and (stem in self.layers or stem in broken)
                if not quantized and not any(name in present for name in names):
                    faults.append(f"{names[0]} is missing")
        return faults

    def _is_part(self, parent: str, leaf: str) -> bool:
        """Whether a tensor belongs to a quantized layer, whole or not (its faults were told with the layer's)."""
        if leaf not in SUFFIXES[self.format]:
            return False
        info = self.tensors.get(f"{parent}.{leaf}")
        return leaf != "weight" or (info is not None and info.dtype == "U8")

    @property
    def architecture(self) -> str:
        return str((self.config.get("architectures") or [self.config["model_type"]])[0])


def is_nvfp4(path: Path | str) -> bool:
    """Whether a model directory is an NVFP4 checkpoint, by its metadata or else by its tensors' names.

    Raises:
        ResetError: there is no model at ``path``, or it is too damaged to tell.
    """
    path = Path(path)
    metadata = read_metadata(path, read_config(path))
    if metadata is not None:
        return metadata.is_nvfp4
    tensors, _, faults = read_headers(path)
    if faults and not tensors:
        raise _error(path, faults)
    return _layout(tensors) is not None


def fingerprint(path: Path | str) -> str:
    """Hex SHA-256 that tells models apart without reading them whole.

    Over config.json, and name, dtype, shape and up to 512 bytes (the first and the middle) of each tensor, in order
    of names: how the tensors are split over files does not matter. Our own files beside the model do not enter.

    Raises:
        ResetError: there is no model at ``path``, or its files are broken.
    """
    path = Path(path)
    read_config(path)
    tensors, files, faults = read_headers(path)
    if faults:
        raise _error(path, faults)
    return _digest(path, files, tensors)


def _digest(path: Path, files: list[Path], tensors: dict[str, TensorInfo]) -> str:
    digest = hashlib.sha256((path / "config.json").read_bytes())
    streams = {file: open(file, "rb") for file in files}  # noqa: SIM115 - closed below
    try:
        for name in sorted(tensors):
            info = tensors[name]
            digest.update(json.dumps([name, info.dtype, info.shape]).encode())
            stream = streams[info.file]
            for start in sorted({info.start, info.start + max(0, info.nbytes - 256) // 2}):
                stream.seek(start)
                digest.update(stream.read(min(256, info.end - start)))
    finally:
        for stream in streams.values():
            stream.close()
    return digest.hexdigest()


def _layout(tensors: dict[str, TensorInfo]) -> str | None:
    """The NVFP4 layout that the tensors have, if any."""
    if any(name.endswith(".weight_packed") and info.dtype == "U8" for name, info in tensors.items()):
        return COMPRESSED
    for name, info in tensors.items():
        stem, _, leaf = name.rpartition(".")
        if leaf == "weight" and info.dtype == "U8":
            scales = (f"{stem}.weight_scale", f"{stem}.weight_scale_2")
            if any(scale in tensors for scale in scales):
                return MODELOPT
    return None


def _shape_faults(
    codes: TensorInfo | None, scale: TensorInfo | None, global_scale: TensorInfo | None, input_scale: TensorInfo | None
) -> list[str]:
    """Faults of dtype and shape within one layer."""
    faults = []
    for info, dtypes in ((codes, ("U8",)), (scale, ("F8_E4M3",)), (global_scale, ("F32",)), (input_scale, ("F32",))):
        if info is not None and info.dtype not in dtypes:
            faults.append(f"{info.name} has dtype {info.dtype}, not {dtypes[0]}")
    for info in (codes, scale):
        if info is not None and len(info.shape) != 2:
            faults.append(f"{info.name} has shape {list(info.shape)}, not two dimensions")
            return faults
    for info in (global_scale, input_scale):
        if info is not None and info.shape not in ((), (1,)):
            faults.append(f"{info.name} has shape {list(info.shape)}, not a scalar")
    if codes is None:
        return faults
    n, half = codes.shape
    if 2 * half % BLOCK:
        faults.append(f"{codes.name} has K = {2 * half}, not divisible by {BLOCK}")
    elif scale is not None and 2 * half != BLOCK * scale.shape[1]:
        faults.append(
            f"{codes.name} has {2 * half} nibbles a row, but {scale.name} has {scale.shape[1]} scales for {BLOCK} each"
        )
    if scale is not None and n != scale.shape[0]:
        faults.append(f"{codes.name} has {n} rows, but {scale.name} has {scale.shape[0]}")
    return faults


def global_scale_tensor(info: TensorInfo, *, inverse: bool) -> torch.Tensor:
    """A global scale as float32 scalar; ``inverse`` turns round one that is stored as its reciprocal."""
    value = read_tensor(info).float().reshape(-1)[0]
    return 1 / value if inverse else value


def _global_scale(info: TensorInfo | None, *, inverse: bool) -> tuple[float | None, str | None]:
    """A global scale's value, and what is wrong with it."""
    if info is None or info.nbytes != 4 or info.dtype != "F32":
        return None, None
    stored = float(read_tensor(info).reshape(()))
    value = float(global_scale_tensor(info, inverse=inverse))
    # Below 2^-115 its product with the least block scale leaves float32's normal range.
    if not 2.0**-115 <= value < float("inf"):
        return value, f"{info.name} is {stored:g}, not a positive finite scale"
    return value, None


def _natural(name: str) -> list[Any]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def _error(path: Path, faults: list[str]) -> ResetError:
    listed = "; ".join(faults[:_LISTED])
    more = f"; and {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
    count = f"{len(faults)} faults" if len(faults) > 1 else "1 fault"
    return ResetError(f"checkpoint {path} has {count}: {listed}{more}")
