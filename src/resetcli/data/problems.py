"""Calibration problems: which N of a data set, fixed by the seed alone.

The problems are the N with the smallest SHA-256 of the UTF-8 bytes of the JSON array ``[seed,id]`` written without
spaces, as seeds are elsewhere (``base.seeds``): ``[0,"cot-test-7"]`` for a text id, ``[0,12]`` for a number. A row
without id has its row number, from 0 over all rows. So the choice depends neither on the order of the file nor on
a random generator, and another seed gives another choice.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.data import hub
from resetcli.data.readers import Row, parse_jsonl, read_bytes, read_parquet
from resetcli.data.sources import DataSource, text_field

DEFAULT_COUNT = 5
OWN_NAME = "resetcli own problems"
OWN_FILE = Path(__file__).parent / "own_problems.jsonl"
EASY_FILE = Path(__file__).parent / "easy_problems.jsonl"
"""Problems for the task ``own``: easy enough that a 135-million-parameter model in 4 bit gets some of them right."""
NO_ANSWER = frozenset({"", "proof", "notfound"})
"""What NuminaMath-1.5 writes where there is no answer to compare with."""


@dataclass(frozen=True)
class ProblemSet:
    """Problems chosen from a data set, smallest hash first.

    ``answers`` has None where a problem has none. ``sha256`` is that of the data file's bytes; of several files
    read as one, that of their bytes one after the other in name order.
    """

    problems: list[str]
    ids: list[str | int]
    answers: list[str | None]
    sha256: str
    dataset: str


def problem_hash(seed: int, problem_id: str | int) -> bytes:
    """SHA-256 of ``[seed,id]``: the order in which problems are taken (32 bytes, compared as such).

    >>> problem_hash(0, "a").hex()[:8] == hashlib.sha256(b'[0,"a"]').hexdigest()[:8]
    True
    """
    text = json.dumps([seed, problem_id], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def load_calibration_problems(
    source: DataSource | Path,
    n: int | None = None,
    seed: int = 0,
    *,
    own_if_offline: bool = False,
    reporter: Reporter | None = None,
) -> ProblemSet:
    """``n`` problems (None: 5, or all if there are fewer) of a JSON Lines file or of a data source.

    A path is a file of objects with "problem" (or "question") and, if they have them, "id" and "answer". A source
    with a folder gives its ``numinamath*.jsonl``, read as one; without, NuminaMath-1.5 from the hub. With
    ``own_if_offline`` (the embedded model) our own problems serve where the hub cannot, and the reporter says so.

    Raises:
        UsageError: n < 1, or more than there are.
        ResetError: missing file, bad line, no usable problem, duplicate ids, hub unreachable.
    """
    if n is not None and n < 1:
        raise UsageError(f"--problems must be at least 1, not {n}")
    if isinstance(source, DataSource):
        try:
            return _from_source(source, n, seed)
        except ResetError as exc:
            if source.data_dir is not None or not own_if_offline or isinstance(exc, UsageError):
                raise
            if reporter is not None:
                reporter.info(f"{exc}. Using {OWN_NAME} instead ({OWN_FILE.name}, written for resetcli)")
            return own_problems(n, seed)
    path = Path(source)
    return _choose(_parse([path]), n, seed, _sha256([path]), path.name)


def own_problems(n: int | None = None, seed: int = 0) -> ProblemSet:
    """``n`` of the simple problems that were written for this package; all have answers."""
    return _choose(_parse([OWN_FILE]), n, seed, _sha256([OWN_FILE]), OWN_NAME)


def easy_problems() -> ProblemSet:
    """All problems of the task ``own``, which also were written for this package; all have answers."""
    rows = _parse([EASY_FILE])
    return _choose(rows, len(rows), 0, _sha256([EASY_FILE]), "resetcli easy problems")


def _from_source(source: DataSource, n: int | None, seed: int) -> ProblemSet:
    if source.data_dir is not None:
        paths = sorted(source.data_dir.glob("numinamath*.jsonl"))
        if not paths:
            raise ResetError(f"no numinamath*.jsonl in {source.data_dir}; put one there or pass --problems FILE")
        return _choose(_parse(paths), n, seed, _sha256(paths), ", ".join(path.name for path in paths))
    paths = source.hub_files("numinamath")
    rows: list[tuple[str, int, Row]] = []
    for path in paths:
        # Three columns of about 900,000 rows; the solutions, most of the bytes, stay on disk.
        name = str(path)
        for row in read_parquet(path, ["problem", "answer"]):
            rows.append((name, len(rows) + 1, row))
    return _choose(rows, n, seed, _sha256(paths), hub.HUB["numinamath"].name)


def _parse(paths: list[Path]) -> list[tuple[str, int, Row]]:
    return [(str(path), line, row) for path in paths for line, row in parse_jsonl(read_bytes(path), str(path))]


def _sha256(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _choose(rows: list[tuple[str, int, Row]], n: int | None, seed: int, sha256: str, dataset: str) -> ProblemSet:
    if not rows:
        raise ResetError(f"{dataset} has no usable problem")
    ids: list[str | int] = []
    seen: dict[str | int, int] = {}
    for index, (name, line, row) in enumerate(rows):
        value: Any = row.get("id")
        if value is None:
            value = index
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ResetError(f"{name}, line {line}: 'id' is neither a text nor an integer")
        if value in seen:
            raise ResetError(f"{name}, line {line}: id {value!r} is already on line {seen[value]}")
        seen[value] = line
        ids.append(value)
    if n is not None and n > len(rows):
        raise UsageError(f"--problems asks for {n}, but {dataset} has {len(rows)}")
    count = n if n is not None else min(DEFAULT_COUNT, len(rows))
    chosen = heapq.nsmallest(count, range(len(rows)), key=lambda index: problem_hash(seed, ids[index]))
    problems: list[str] = []
    answers: list[str | None] = []
    for index in chosen:
        name, line, row = rows[index]
        problems.append(text_field(row, "problem" if "problem" in row else "question", name, line))
        answer = row.get("answer")
        text = None if answer is None or isinstance(answer, (bool, list, dict)) else str(answer).strip()
        answers.append(None if text is None or text.lower() in NO_ANSWER else text)
    return ProblemSet(problems, [ids[index] for index in chosen], answers, sha256, dataset)
