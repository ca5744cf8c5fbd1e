"""Safetensors files read by hand: headers without the data, tensors one at a time.

Why not the safetensors library alone: it stops at the first fault, and it maps the file, so that the pages read
count as memory beside the tensors made from them. Here a damaged file yields a list of what is wrong, and reading a
tensor costs its own bytes and nothing else. Format: a little-endian uint64 header length, a JSON header of
{name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
FLOATS = ("BF16", "F16", "F32", "F64")
_HEADER_LIMIT = 100 << 20  # as in the safetensors library


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: its bytes are [start, end) of ``file``. ``dtype`` in safetensors' spelling."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def read_header(file: Path) -> tuple[dict[str, TensorInfo], list[str]]:
    """Tensors of one file by name, and what is wrong with it (empty when sound). Reads no tensor data."""
    name = file.name
    try:
        size = file.stat().st_size
        with open(file, "rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                return {}, [f"{name} is cut short: {size} bytes, too few for its own header"]
            if length > _HEADER_LIMIT:
                return {}, [f"{name} is not a safetensors file: it claims a header of {length} bytes"]
            header = json.loads(stream.read(length))
    except OSError as exc:
        return {}, [f"{name} cannot be read: {exc.strerror or exc}"]
    except ValueError:
        return {}, [f"{name} is not a safetensors file: its header is not JSON"]
    tensors, faults = {}, []
    start = 8 + length
    expected = start
    try:
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            tensors[key] = TensorInfo(key, entry["dtype"], tuple(entry["shape"]), file, start + begin, start + end)
            expected = max(expected, start + end)
    except (TypeError, ValueError, KeyError, AttributeError):
        return {}, [f"{name} is not a safetensors file: its header has entries of another kind"]
    if expected != size:
        what = "is cut short" if size < expected else "has bytes left over"
        faults.append(f"{name} {what}: {size} bytes, its header says {expected}")
    for info in tensors.values():
        if info.dtype in DTYPES and info.nbytes != math.prod(info.shape) * DTYPES[info.dtype].itemsize:
            faults.append(f"{info.name} has {info.nbytes} bytes, not those of {info.dtype} {list(info.shape)}")
    return tensors, faults


def read_headers(path: Path) -> tuple[dict[str, TensorInfo], list[Path], list[str]]:
    """All tensors of a model directory, its files, and what is wrong, from single or sharded safetensors.

    Raises:
        ResetError: there are no safetensors weights at all, or the index is not JSON.
    """
    if (path / SINGLE).is_file():
        tensors, faults = read_header(path / SINGLE)
        return tensors, [path / SINGLE], faults
    if not (path / INDEX).is_file():
        pickles = [p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(path.glob(pattern))]
        if pickles:
            raise ResetError(f"{path} has pickled weights only ({pickles[0]}), never loaded; convert to safetensors")
        raise ResetError(f"{path} has no weights: neither {SINGLE} nor {INDEX}")
    index = read_json(path / INDEX)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ResetError(f"{path / INDEX} has no weight_map from names to files; download it again")
    tensors, files, faults = {}, [], []
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            faults.append(f"{INDEX} names a file outside the directory: {shard}")
            continue
        if not (path / shard).is_file():
            faults.append(f"{shard} is missing")
            continue
        files.append(path / shard)
        found, shard_faults = read_header(path / shard)
        faults += shard_faults
        if found:
            listed = {name for name, file in weight_map.items() if file == shard}
            faults += [f"{name} is not in {shard}, where {INDEX} has it" for name in sorted(listed - found.keys())]
            faults += [f"{name} is in {shard}, but not in {INDEX}" for name in sorted(found.keys() - listed)]
        tensors.update(found)
    return tensors, files, faults


def read_tensor(info: TensorInfo) -> torch.Tensor:
    """The tensor, on the CPU, in its stored dtype.

    Raises:
        ResetError: the file has become shorter or unreadable, or the dtype is one we do not know.
    """
    if info.dtype not in DTYPES:
        raise ResetError(f"{info.name} in {info.file} has dtype {info.dtype}, which resetcli does not read")
    raw = torch.empty(info.nbytes, dtype=torch.uint8)
    try:
        with open(info.file, "rb", buffering=0) as stream:
            stream.seek(info.start)
            view, got = raw.numpy().data, 0
            while got < info.nbytes and (n := stream.readinto(view[got:])):
                got += n
    except OSError as exc:
        raise ResetError(f"cannot read {info.file}: {exc.strerror or exc}") from exc
    if got < info.nbytes:
        raise ResetError(f"{info.file} is cut short within {info.name}; download it again")
    return raw.view(DTYPES[info.dtype]).reshape(info.shape)
