"""LiveCodeBench (code_generation_lite) as rows: which release, which dates, and where each problem's tests lie.

The tests of a whole release unfold to more than memory should hold, so a row keeps their place in the file (path,
offset, length) and `read_problem` reads them when a program is graded. They are all decoded once when the rows are
loaded, nevertheless: a damaged or hostile row is told before a model is, and the hash covers the tests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError, unknown_name
from resetcli.data.lcb_tests import BadTests, Case, decode_cases
from resetcli.data.readers import Row, parse_row

SHARDS = {f"v{n}": f"test{n if n > 1 else ''}.jsonl" for n in range(1, 7)}
"""What each release added, as the authors name its file on the hub."""

DEFAULT_RELEASE = "release_v6"


def shards_of(release: str) -> list[str]:
    """The shards ("v1" ...) of a release by the authors' names: "release_v5" is v1 to v5, "v5" that part alone, "v4_v6"
    v4 to v6, "release_latest" all.

    Raises:
        UsageError: none of these.
    """
    names = list(SHARDS)
    if release == "release_latest":
        return names
    if release in SHARDS:
        return [release]
    if (match := re.fullmatch(r"release_(v\d+)", release)) and match[1] in SHARDS:
        return names[: names.index(match[1]) + 1]
    if (match := re.fullmatch(r"(v\d+)_(v\d+)", release)) and {match[1], match[2]} <= SHARDS.keys():
        found = names[names.index(match[1]) : names.index(match[2]) + 1]
        if found:
            return found
    known = ["release_latest", *(f"release_{name}" for name in names), *names, "v1_v2"]
    raise unknown_name("--lcb-release", release, known)


@dataclass(frozen=True)
class Selection:
    """Which problems: a release (None: every local file, or ``DEFAULT_RELEASE`` from the hub) and contest dates from
    ``first`` to ``last``, both included."""

    release: str | None = None
    first: date | None = None
    last: date | None = None

    @classmethod
    def parse(cls, release: str | None = None, first: str | None = None, last: str | None = None) -> Selection:
        """From the options' texts; a month (2024-10) means its first day for ``first`` and its last for ``last``.

        Raises:
            UsageError: an unknown release, no date, or an empty window.
        """
        if release is not None:
            shards_of(release)
        start, end = _day(first, "--lcb-from", end=False), _day(last, "--lcb-to", end=True)
        if start is not None and end is not None and start > end:
            raise UsageError(f"--lcb-from {first} is after --lcb-to {last}")
        return cls(release, start, end)

    def describe(self) -> dict[str, str | None]:
        """As JSON: "release", "from", "to"."""
        days = (day.isoformat() if day is not None else None for day in (self.first, self.last))
        return dict(zip(("release", "from", "to"), (self.release, *days), strict=True))


def _day(text: str | None, option: str, *, end: bool) -> date | None:
    if text is None:
        return None
    try:
        if re.fullmatch(r"\d{4}-\d{2}", text):
            day = date(int(text[:4]), int(text[5:]), 1)
            if not end:
                return day
            following = date(day.year + day.month // 12, day.month % 12 + 1, 1)
            return date.fromordinal(following.toordinal() - 1)
        return date.fromisoformat(text)
    except ValueError as exc:
        raise UsageError(f"{option} {text} is no date; write 2024-10-01 or 2024-10") from exc


@dataclass(frozen=True)
class Problem:
    """What grading needs: the tests, public before private, and of "functional" ones the function's name."""

    cases: list[Case]
    function: str | None


def local_files(folder: Path, release: str | None) -> list[Path]:
    """The data files in a folder: every ``livecodebench*.jsonl``, or those of a release (``livecodebench_v5.jsonl``).

    Raises:
        ResetError: none there.
    """
    if release is None:
        paths = sorted(folder.glob("livecodebench*.jsonl"))
        if not paths:
            raise ResetError(f"no livecodebench*.jsonl in {folder}; put one there or point --data-dir elsewhere")
        return paths
    paths = [folder / f"livecodebench_{shard}.jsonl" for shard in shards_of(release)]
    for path in paths:
        if not path.is_file():
            raise ResetError(
                f"data file {path} is missing, which --lcb-release {release} asks for; put it there, or leave the "
                "option out to take every livecodebench*.jsonl"
            )
    return paths


def load_rows(paths: list[Path], selection: Selection) -> tuple[list[dict[str, Any]], str]:
    """Rows of the problems in the window, and the SHA-256 of their content, tests included, places left out.

    A row: "doc_id" and "target" (both the question id), "problem", "starter_code", "platform", "difficulty",
    "contest_date", "alt_answers" (empty), "public", "private" (numbers of tests) and "place" {"path", "offset",
    "length", "sha256" of the line}.

    Raises:
        ResetError: a bad line, a row without id, statement, date or tests, tests that are refused, an id twice, an
            empty file or window; file, line and problem are named.
    """
    rows: list[dict[str, Any]] = []
    seen: dict[str, str] = {}
    content = hashlib.sha256()
    dates: list[date] = []
    for path in paths:
        lines = 0
        for number, offset, line in _lines(path):
            lines += 1
            where = f"{path}, line {number}"
            row = parse_row(line, where)
            doc_id = _text(row, "question_id", where)
            where = f"{where} (problem {doc_id})"
            if doc_id in seen:
                raise ResetError(f"{where}: the id is already at {seen[doc_id]}")
            seen[doc_id] = f"{path.name}, line {number}"
            day = _date(row, where)
            dates.append(day)
            if (selection.first and day < selection.first) or (selection.last and day > selection.last):
                continue
            made, problem = _row(row, where)
            content.update(_canonical({**made, "function": problem.function, "tests": _digest(problem)}))
            place = {"path": str(path.resolve()), "offset": offset, "length": len(line), "sha256": _sha256(line)}
            rows.append({**made, "contest_date": day.isoformat(), "place": place})
        if not lines:
            raise ResetError(f"data file {path} is empty; download it again")
    if not rows:
        raise ResetError(
            f"no LiveCodeBench problem from {selection.first or 'the beginning'} to {selection.last or 'the end'}: "
            f"those of {', '.join(path.name for path in paths)} are dated {min(dates)} to {max(dates)}; see --lcb-from "
            "and --lcb-to"
        )
    return rows, content.hexdigest()


def read_problem(place: dict[str, Any]) -> Problem:
    """The tests of a row, read again from its place.

    Raises:
        ResetError: the file changed or went away since.
    """
    where = f"{place['path']}, byte {place['offset']}"
    try:
        with open(place["path"], "rb") as stream:
            stream.seek(place["offset"])
            line = stream.read(place["length"])
    except OSError as exc:
        raise ResetError(
            f"cannot read {place['path']}: {exc.strerror or exc}; its tests are needed for scoring"
        ) from exc
    if _sha256(line) != place["sha256"]:
        raise ResetError(f"{where}: the file changed after its rows were read; start again")
    return _problem(parse_row(line, where), where)


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, bytes) of each line that is not blank; one line in memory at a time."""
    offset = 0
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.isspace():
                    yield number, offset, line
                offset += len(line)
    except OSError as exc:
        raise ResetError(f"cannot read data file {path}: {exc.strerror or exc}") from exc


def _text(row: Row, key: str, where: str) -> str:
    value = row.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ResetError(f"{where}: the row has no '{key}' (a non-empty text)")
    return value


def _date(row: Row, where: str) -> date:
    text = _text(row, "contest_date", where)
    try:
        return date.fromisoformat(text[:10])
    except ValueError as exc:
        raise ResetError(f"{where}: 'contest_date' {text[:30]!r} is no date") from exc


def _row(row: Row, where: str) -> tuple[dict[str, Any], Problem]:
    problem = _problem(row, where)
    public = len(_cases(row, "public_test_cases", where))
    made = {
        "doc_id": _text(row, "question_id", where),
        "problem": _text(row, "question_content", where),
        "target": _text(row, "question_id", where),
        "alt_answers": [],
        "starter_code": str(row.get("starter_code") or ""),
        "platform": str(row.get("platform") or ""),
        "difficulty": str(row.get("difficulty") or ""),
        "public": public,
        "private": len(problem.cases) - public,
    }
    return made, problem


def _problem(row: Row, where: str) -> Problem:
    cases = [*_cases(row, "public_test_cases", where), *_cases(row, "private_test_cases", where)]
    if not cases:
        raise ResetError(f"{where}: the row has no tests, so no program can be judged; delete the line")
    if len({case.kind for case in cases}) > 1:
        raise ResetError(f"{where}: the row mixes stdin and functional tests")
    metadata = row.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = parse_row(metadata.encode(), f"{where}, 'metadata'")
    function = metadata.get("func_name") if isinstance(metadata, dict) else None
    if cases[0].kind == "stdin":
        return Problem(cases, None)
    if not isinstance(function, str) or not function.isidentifier():
        raise ResetError(f"{where}: functional tests need 'func_name' in 'metadata'")
    return Problem(cases, function)


def _cases(row: Row, key: str, where: str) -> list[Case]:
    value = row.get(key)
    if value is None or value == "":
        return []
    if isinstance(value, list):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise ResetError(f"{where}: '{key}' is neither a text nor a list")
    try:
        return decode_cases(value)
    except BadTests as exc:
        raise ResetError(f"{where}: '{key}' is refused: {exc}") from exc


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _digest(problem: Problem) -> str:
    digest = hashlib.sha256()
    for case in problem.cases:
        for text in (case.kind, case.input, case.output):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode() + b"\n"
