"""Tables of measured kernel choices, one file a device.

An entry is one product (N, K, M of a bucket, type, activations) with the fastest configuration of each family and the
time of BF16 for the same shape, so that a shape on which 4 bits do not pay can be told. The user's table, written by
``reset bench-kernels --tune``, goes before the one that ships; both may be absent. Files hold plain JSON and are
replaced whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import cache_dir, read_json, write_json

FORMAT = 2
"""1 was of kernels that are no more: its times and configurations mean nothing to those of today."""
EXACT = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)
"""Values of M that have an entry of their own; above, powers of two."""


@dataclass(frozen=True)
class Key:
    """What a choice depends on beside the device. ``dtype`` is torch's name without "torch."."""

    m: int
    n: int
    k: int
    dtype: str
    activations: str


@dataclass(frozen=True)
class Timed:
    """The fastest configuration of a family: microseconds from 16-bit X to Y, quantization included.

    ``pdl`` is 0, EARLY or LATE (families.base).
    ``alone`` is the configuration that was fastest without quantization and programmatic dependent launch, where that
    was measured, and ``alone_us`` how fast: the bench reports it, nothing runs it otherwise.
    """

    family: str
    config: dict[str, Any]
    pdl: int
    us: float
    alone: dict[str, Any] | None = None
    alone_us: float | None = None


@dataclass
class Entry:
    """Measured choices for one key, fastest first, and BF16's time in microseconds."""

    choices: list[Timed]
    bf16_us: float | None = None


@dataclass
class KernelTable:
    """Entries of one device."""

    device: str
    entries: dict[Key, Entry] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def find(self, key: Key) -> Entry | None:
        """The entry of ``key``, its M rounded up to a bucket."""
        return self.entries.get(Key(bucket(key.m), key.n, key.k, key.dtype, key.activations))

    def to_json(self) -> dict[str, Any]:
        entries = [
            {**asdict(key), "bf16_us": entry.bf16_us, "choices": [asdict(choice) for choice in entry.choices]}
            for key, entry in sorted(self.entries.items(), key=lambda item: tuple(asdict(item[0]).values()))
        ]
        return {"format": FORMAT, "device": self.device, "about": self.about, "entries": entries}


def bucket(m: int) -> int:
    """The least M with an entry of its own that is not below ``m``: 1 to 8, 16, 32, 64, 128, powers of two."""
    for exact in EXACT:
        if m <= exact:
            return exact
    return 1 << (m - 1).bit_length()


def buckets(most: int) -> list[int]:
    """All buckets that M up to ``most`` fall into."""
    found = [1]
    while found[-1] < most:
        found.append(bucket(found[-1] + 1))
    return found


def file_name(device: str) -> str:
    """Name of a device's table: "NVIDIA H200" gives "nvidia-h200.json"."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json"


def user_path(device: str) -> Path:
    """Where the user's table of a device lies (whether or not it is there)."""
    return cache_dir() / "tables" / file_name(device)


def shipped_path(device: str) -> Path:
    """Where the table that ships for a device lies, if one does."""
    return Path(__file__).parent / "tables" / file_name(device)


def load_table(path: Path) -> KernelTable | None:
    """The table in a file; None if there is no such file.

    Raises:
        ResetError: the file is not a table of this format.
    """
    if not path.exists():
        return None
    try:
        value = read_json(path)
        if value["format"] != FORMAT:
            raise ResetError(
                f"kernel table {path} has format {value['format']}, not {FORMAT}; tune again, which replaces it"
            )
        table = KernelTable(str(value["device"]), about=dict(value.get("about") or {}))
        for item in value["entries"]:
            m, n, k = (int(item[name]) for name in ("m", "n", "k"))
            key = Key(m, n, k, str(item["dtype"]), str(item["activations"]))
            choices = [
                Timed(
                    str(c["family"]), dict(c["config"]), _pdl(c["pdl"]), float(c["us"]),
                    None if c.get("alone") is None else dict(c["alone"]),
                    None if c.get("alone_us") is None else float(c["alone_us"]),
                )
                for c in item["choices"]
            ]  # fmt: skip
            bf16 = item.get("bf16_us")
            table.entries[key] = Entry(choices, None if bf16 is None else float(bf16))
    except (KeyError, TypeError, ValueError) as exc:
        raise ResetError(
            f"kernel table {path} is damaged ({type(exc).__name__}: {exc}); delete it and tune again"
        ) from exc
    return table


def _pdl(value: Any) -> int:
    if value not in (0, 1, 2):
        raise ValueError(f"pdl is {value!r}, not 0, 1 or 2")
    return int(value)


def save_table(table: KernelTable, path: Path) -> None:
    """Write ``table`` to ``path`` in one step; what ``path`` holds already is kept where ``table`` has nothing newer.

    Raises:
        ResetError: the file cannot be written.
    """
    try:
        older = load_table(path)
    except ResetError:
        older = None  # a damaged table has nothing worth keeping
    merged = KernelTable(table.device, {**(older.entries if older else {}), **table.entries}, table.about)
    write_json(path, merged.to_json())


def same_config(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two configurations are equal once written as JSON and read back (tuples and lists alike)."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def merge(tables: Iterable[KernelTable | None], device: str) -> KernelTable:
    """One table of several, earlier ones first in rank."""
    merged = KernelTable(device)
    for table in tables:
        if table is not None:
            merged.entries = {**table.entries, **merged.entries}
    return merged
