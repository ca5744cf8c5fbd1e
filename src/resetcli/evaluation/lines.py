"""Files of lines that only grow, plain or gzip, and what a kill in the middle of a write leaves of them.

A plain file's last line is torn if it has no line end. In a gzip file each line is a member of its own, so a line can
be flushed to the disk when it is written and a torn one cut off without touching those before it; `zcat`, `gzip` and
Python read members one after the other as one text. What that costs is compression across lines; within one long
line, a thought of thousands of tokens, little is lost.
"""

from __future__ import annotations

import contextlib
import errno
import io
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
"""Bytes read at a time."""

PIECE = 1 << 20
"""Bytes of a gzip member that wait in memory for its end, a longer line apart."""


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

    What is torn at the end, or zeros there, is left out; with ``torn``, a plain file's last line may lack its end, and
    a gzip file must be whole. The lines of a gzip member over ``PIECE`` come as they are unpacked, with the offset of
    its beginning; those of others, and the last one of each, when the member is known to be whole.

    Raises:
        ResetError: missing, no file, unreadable, or a gzip file damaged before its end, or cut off where that would
            lose lines that were whole: with ``torn``, or in a member of several lines.
    """
    if path.exists() and not path.is_file():
        raise ResetError(f"{path} is not a file; remove it or choose another -o")
    try:
        with open(path, "rb") as stream:
            if is_gzip(path):
                yield from _members(stream, path, torn)
                return
            end = 0
            for number, line in enumerate(stream, 1):
                end += len(line)
                if torn or line.endswith(b"\n"):
                    yield number, line, end
    except OSError as exc:
        raise ResetError(f"cannot read {path}: {exc.strerror or exc}") from exc


def _members(stream: BinaryIO, path: Path, torn: bool) -> Iterator[tuple[int, bytes, int]]:
    number = end = 0
    data = stream.read(CHUNK)
    while data:
        unpacker, held, before = zlib.decompressobj(GZIP), b"", number
        try:
            while data and not unpacker.eof:
                held += unpacker.decompress(data, PIECE)
                data = unpacker.unconsumed_tail or unpacker.unused_data or stream.read(CHUNK)
                whole = held.rfind(b"\n", 0, -1) + 1 if len(held) > PIECE else 0
                for line in io.BytesIO(held[:whole]):
                    number += 1
                    yield number, line, end
                held = held[whole:]
        except zlib.error:
            data = b""
        if not unpacker.eof:
            stream.seek(end)
            rest = b"" if number > before else stream.read()
            if torn and (number > before or rest.strip(b"\0")):
                raise ResetError(f"{path} is cut off or damaged after byte {end}; restore it")
            if number > before or not _torn(rest):
                raise ResetError(f"{path} is damaged at byte {end}; restore it or choose another -o")
            return
        end = stream.tell() - len(data)
        for line in io.BytesIO(held):
            number += 1
            yield number, line.removesuffix(b"\n") + b"\n", end


def _torn(rest: bytes) -> bool:
    """Whether what cannot be read is what a kill leaves of a member of ours: the beginning of one line's, perhaps with
    zeros after it, and no whole member follows."""
    try:
        text = zlib.decompressobj(GZIP).decompress(rest.rstrip(b"\0"))
    except zlib.error:
        return False
    if b"\n" in text[:-1]:
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


def sync_folder(path: Path) -> None:
    """Flush the folder's own entries to the disk: without it a power cut may lose a new name, though not its data.

    Raises:
        OSError: the disk is failing.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # file systems that cannot
            raise
    finally:
        os.close(handle)
