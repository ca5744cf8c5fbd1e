"""Files of lines that only grow, plain or gzip, and what a kill in the middle of a write leaves of them.

A plain file's last line is torn if it has no line end. In a gzip file each line is a member of its own, so a line can
be flushed to the disk when it is written and a torn one cut off without touching those before it; `zcat`, `gzip` and
Python read members one after the other as one text. What that costs is compression across lines; within one long
line, a thought of thousands of tokens, little is lost.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from resetcli.base.errors import ResetError

GZIP = 31
"""zlib's ``wbits`` for the gzip format."""

MAGIC = b"\x1f\x8b\x08"
"""What a member begins with."""

CHUNK = 1 << 16


def is_gzip(path: Path) -> bool:
    """By the name: ``.gz``."""
    return path.suffix == ".gz"


def encode_line(line: bytes, path: Path) -> bytes:
    """The bytes of one line, which ends in a line end, in the file ``path``. Equal lines have equal bytes."""
    if not is_gzip(path):
        return line
    packer = zlib.compressobj(6, zlib.DEFLATED, GZIP)
    return packer.compress(line) + packer.flush()


def whole_lines(path: Path, *, torn: bool = False) -> Iterator[tuple[int, bytes, int]]:
    """(number from 1, line with its end, file offset up to which all is whole) of each whole line.

    What is torn at the end, or zeros there, is left out; with ``torn``, a plain file's last line may lack its end.

    Raises:
        ResetError: missing, no file, unreadable, or a gzip file damaged before its end.
    """
    if path.exists() and not path.is_file():
        raise ResetError(f"{path} is not a file; remove it or choose another -o")
    try:
        with open(path, "rb") as stream:
            if is_gzip(path):
                yield from _members(stream, path)
                return
            end = 0
            for number, line in enumerate(stream, 1):
                end += len(line)
                if torn or line.endswith(b"\n"):
                    yield number, line, end
    except OSError as exc:
        raise ResetError(f"cannot read {path}: {exc.strerror or exc}") from exc


def _members(stream: BinaryIO, path: Path) -> Iterator[tuple[int, bytes, int]]:
    number = end = 0
    data = stream.read(CHUNK)
    while data:
        unpacker, parts = zlib.decompressobj(GZIP), []
        try:
            while data and not unpacker.eof:
                parts.append(unpacker.decompress(data))
                data = unpacker.unused_data or stream.read(CHUNK)
        except zlib.error:
            data = b""
        if not unpacker.eof:
            stream.seek(end)
            if not _torn(stream.read()):
                raise ResetError(f"{path} is damaged at byte {end}; restore it or choose another -o")
            return
        end = stream.tell() - len(data)
        for line in b"".join(parts).removesuffix(b"\n").split(b"\n"):
            number += 1
            yield number, line + b"\n", end


def _torn(rest: bytes) -> bool:
    """Whether what cannot be read is a last member, cut off: no whole member follows it."""
    if rest.strip(b"\0") and not rest.startswith(MAGIC[: len(rest.rstrip(b"\0"))]):
        return False
    place = rest.find(MAGIC, 1)
    while place > 0:
        unpacker = zlib.decompressobj(GZIP)
        with contextlib.suppress(zlib.error):
            unpacker.decompress(rest[place:])
        if unpacker.eof:
            return False
        place = rest.find(MAGIC, place + 1)
    return True


def append(handle: int, data: bytes) -> None:
    """Write ``data`` at the end of the open file and flush it to the disk; on an error the file is as it was.

    Raises:
        OSError: the disk is full or failing.
    """
    size = os.fstat(handle).st_size
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise
