"""Reading rows from the files that data sets come in, with errors that name the file and the line.

One function a format, each giving a list of dictionaries; no clean-up happens here, so that texts reach the
prompt as the authors wrote them. Everything is read whole: the largest evaluation file is a few megabytes.
"""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError

Row = dict[str, Any]


def read_bytes(path: Path) -> bytes:
    """The bytes of ``path``.

    Raises:
        ResetError: the file is missing, unreadable or empty; the message names it.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise ResetError(f"data file {path} is missing; put it there or point --data-dir elsewhere") from None
    except OSError as exc:
        raise ResetError(f"cannot read data file {path}: {exc.strerror or exc}") from exc
    if not data.strip():
        raise ResetError(f"data file {path} is empty; download it again")
    return data


def parse_jsonl(data: bytes, name: str) -> list[tuple[int, Row]]:
    """(line number from 1, object) of each non-blank line.

    Raises:
        ResetError: a line is not UTF-8, not a JSON object, or holds a lone surrogate; the message names file and line.
    """
    rows: list[tuple[int, Row]] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        rows.append((number, parse_row(line, f"{name}, line {number}")))
    return rows


def parse_row(line: bytes, where: str) -> Row:
    """One line of JSON Lines; ``where`` names it in errors. Raises as ``parse_jsonl``."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        raise ResetError(f"{where} is not valid JSON ({exc}); repair or delete that line") from exc
    if not isinstance(row, dict):
        raise ResetError(f"{where} is not a JSON object; repair or delete that line")
    if b"\\ud" in line.lower():  # only an escape can make half a character
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as exc:
            half = f"\\u{ord(exc.object[exc.start]):04x}"
            raise ResetError(f"{where} holds {half}, half a character; repair that line") from exc
    return row


def parse_csv(data: bytes, name: str, columns: Iterable[str]) -> list[tuple[int, Row]]:
    """(line number on which the record ends, record) of a CSV file with a header that has ``columns``.

    Raises:
        ResetError: not UTF-8, a column is missing, or a record has the wrong number of fields.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise ResetError(f"{name}, line {line} is not UTF-8 ({exc.reason}); download the file again") from exc
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [column for column in columns if column not in (reader.fieldnames or [])]
    if missing:
        raise ResetError(f"{name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    rows: list[tuple[int, Row]] = []
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ResetError(f"{name}, line {reader.line_num}: the record has the wrong number of fields")
            rows.append((reader.line_num, row))
    except csv.Error as exc:
        raise ResetError(f"{name}, line {reader.line_num} is not valid CSV ({exc})") from exc
    return rows


def read_parquet(path: Path, columns: list[str] | None = None) -> list[Row]:
    """Rows of a Parquet file (columns absent from the file are left out).

    Raises:
        ResetError: the file is damaged.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        names = [name for name in table.schema_arrow.names if columns is None or name in columns]
        return table.read(columns=names).to_pylist()
    except (OSError, pyarrow.ArrowException) as exc:
        raise ResetError(f"cannot read {path} as Parquet ({exc}); delete it and download it again") from exc


def read_zip_member(path: Path, basename: str, password: str | None) -> bytes:
    """The member of the archive ``path`` whose file name is ``basename``, decrypted (ZipCrypto) if need be.

    Raises:
        ResetError: no such member, a password is needed, the password is wrong, or the archive is damaged.
    """
    read_bytes(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if os.path.basename(name) == basename]
            if not names:
                raise ResetError(f"{path} has no member {basename}; use the authors' own archive")
            encrypted = bool(archive.getinfo(names[0]).flag_bits & 1)
            if encrypted and not password:
                raise ResetError(
                    f"{path} is encrypted and no password was given; pass --gpqa-password or set RESET_GPQA_PASSWORD "
                    "(the authors publish it in the README of their repository)"
                )
            try:
                return archive.read(names[0], pwd=password.encode() if encrypted and password else None)
            except (RuntimeError, zlib.error, zipfile.BadZipFile, EOFError) as exc:
                # One wrong password in 256 passes the archive's check byte and fails later, as garbage.
                if not encrypted:
                    raise ResetError(f"{path} is damaged ({exc}); download it again") from exc
                raise ResetError(
                    f"wrong password for {path} (or a damaged archive); check --gpqa-password or RESET_GPQA_PASSWORD"
                ) from exc
    except NotImplementedError as exc:
        raise ResetError(f"cannot decompress {path} ({exc}); use the authors' own archive") from exc
    except zipfile.BadZipFile as exc:
        raise ResetError(f"{path} is not a ZIP archive ({exc}); download it again") from exc
