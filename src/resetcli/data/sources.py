"""Rows of the evaluation tasks, from a local folder or from the hub, checked before any model is loaded.

A ``DataSource`` is where data comes from for one command. With a folder the hub is never asked; without one the
hub (or its cache) is. Everything a task needs is read and checked at once and kept, so ``check_available`` before
the model and ``load_task_rows`` after it see the same rows. The price is that a file is parsed although its rows
may not be used; these files are small.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, unknown_name
from resetcli.data import gpqa, hub, livecodebench
from resetcli.data.readers import Row, parse_csv, parse_jsonl, read_bytes, read_parquet, read_zip_member

AIME_YEARS = ("aime22", "aime23", "aime24", "aime25")
TASK_DATA = (*AIME_YEARS, "aime", "gpqa", "math500", "gsm8k", "livecodebench", "wikitext")
"""What ``check_available`` knows: the task names and the data behind them."""

ACCEPTED_BY_CONTEST = {"2022-II-8": ["81"]}
"""AIME keys that the hub's copy lacks: both 80 and 81 were accepted in the contest."""


@dataclass(frozen=True)
class TaskData:
    """Rows of a task.

    Each row has "doc_id" (str, unique, the same for the same problem wherever it comes from, AIME 2025
    apart, whose hub copy numbers its rows), "problem" (verbatim), "target" (str), "alt_answers" (list of str)
    and what else its task needs (GPQA: "choices"; LiveCodeBench: see `livecodebench.load_rows`).
    ``sha256``: of the rows as JSON Lines, so equal content has equal hashes whatever file it came in.
    ``files``: SHA-256 of each file read. ``origin``: path or hub id and revision.
    """

    rows: list[dict[str, Any]]
    sha256: str
    origin: str
    files: dict[str, str]


@dataclass
class DataSource:
    """Where data comes from: ``data_dir``, else the hub. ``gpqa_password`` opens the authors' GPQA archive; ``lcb``
    says which LiveCodeBench problems."""

    data_dir: Path | None = None
    gpqa_password: str | None = None
    lcb: livecodebench.Selection = field(default_factory=livecodebench.Selection)
    _loaded: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def resolve(
        cls,
        data_dir: Path | str | None = None,
        gpqa_password: str | None = None,
        lcb: livecodebench.Selection | None = None,
    ) -> DataSource:
        """Options first, then ``RESET_DATA_DIR`` and ``RESET_GPQA_PASSWORD``.

        Raises:
            ResetError: the folder does not exist.
        """
        origin = "--data-dir" if data_dir else "RESET_DATA_DIR"
        folder = data_dir or os.environ.get("RESET_DATA_DIR") or None
        if folder is not None and not Path(folder).expanduser().is_dir():
            raise ResetError(f"{origin} {folder} is not a directory; name the folder that holds the data files")
        return cls(
            Path(folder).expanduser() if folder else None,
            gpqa_password or os.environ.get("RESET_GPQA_PASSWORD") or None,
            lcb or livecodebench.Selection(),
        )

    def local(self, name: str) -> Path:
        """Path of a file in ``data_dir``."""
        assert self.data_dir is not None
        return self.data_dir / name

    def hub_files(self, dataset: str) -> list[Path]:
        """Files of ``hub.HUB[dataset]`` in the hub's cache; the hub is probed once a source.

        Raises:
            ResetError: as ``hub.fetch``.
        """
        if "reach" not in self._loaded:
            self._loaded["reach"] = hub.unreachable()
        return hub.fetch(dataset, self._loaded["reach"])

    def once(self, key: str, load: Callable[[], Any]) -> Any:
        """``load()``, kept for the next call with this key."""
        if key not in self._loaded:
            self._loaded[key] = load()
        return self._loaded[key]


def check_available(tasks: Iterable[str], source: DataSource) -> None:
    """Read and check the data of all ``tasks`` now; costs no model.

    Raises:
        UsageError: a name outside ``TASK_DATA``.
        ResetError: the first task whose data is missing, unreachable, gated, locked or damaged, in one line.
    """
    for task in tasks:
        if task == "wikitext":
            load_wikitext(source)
        else:
            load_task_rows(task, source)


def load_task_rows(task: str, source: DataSource) -> TaskData:
    """The rows of "aime22" to "aime25", "aime" (all four), "gpqa", "math500", "gsm8k" or "livecodebench".

    Raises:
        UsageError: unknown task.
        ResetError: see ``check_available``; a row without problem or target, duplicate ids and an empty file
            are errors that name file and line.
    """
    if task == "aime":
        return source.once("aime", lambda: _join([load_task_rows(year, source) for year in AIME_YEARS]))
    loaders: dict[str, Callable[[DataSource], TaskData]] = {
        **{year: _aime_loader(year) for year in AIME_YEARS},
        "gpqa": _load_gpqa,
        "math500": _load_math500,
        "gsm8k": _load_gsm8k,
        "livecodebench": _load_livecodebench,
    }
    if task not in loaders:
        raise unknown_name("task", task, [*loaders, "aime"])
    return source.once(task, lambda: loaders[task](source))


def load_wikitext(source: DataSource) -> tuple[str, str, str]:
    """WikiText-2 raw test as one text: (text, SHA-256 of its UTF-8 bytes, origin).

    The hub keeps lines without their end and blank lines empty; the original bytes are put together from them
    (a blank line is a space and a line end in the original).

    Raises:
        ResetError: missing, unreachable or not UTF-8.
    """

    def load() -> tuple[str, str, str]:
        if source.data_dir is not None:
            path = source.local("wikitext2_test.txt")
            data, origin = read_bytes(path), str(path)
        else:
            path = source.hub_files("wikitext")[0]
            lines = [row["text"].rstrip("\n") or " " for row in read_parquet(path, ["text"])]
            data, origin = "".join(line + "\n" for line in lines).encode(), hub.HUB["wikitext"].name
        try:
            return data.decode("utf-8"), hashlib.sha256(data).hexdigest(), origin
        except UnicodeDecodeError as exc:
            raise ResetError(f"{path} is not UTF-8 ({exc.reason} at byte {exc.start}); download it again") from exc

    return source.once("wikitext", load)


def text_field(row: Row, key: str, name: str, line: int) -> str:
    """A non-empty text (or an integer, as text) of a row.

    Raises:
        ResetError: absent, empty or of another type; file, line and field are named.
    """
    value = row.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ResetError(f"{name}, line {line}: the row has no '{key}' (a non-empty text)")
    return value


def _numbered(paths: list[Path]) -> list[tuple[int, Row]]:
    """Rows of the hub's JSON Lines or Parquet files, numbered from 1."""
    rows: list[tuple[int, Row]] = []
    for path in paths:
        if path.suffix == ".parquet":
            rows += enumerate(read_parquet(path), start=len(rows) + 1)
        else:
            rows += parse_jsonl(read_bytes(path), str(path))
    return rows


def _finish(rows: list[dict[str, Any]], lines: list[int], name: str, origin: str, files: dict[str, str]) -> TaskData:
    if not rows:
        raise ResetError(f"data file {name} has no row")
    seen: dict[str, int] = {}
    for row, line in zip(rows, lines, strict=True):
        if row["doc_id"] in seen:
            raise ResetError(f"{name}, line {line}: id '{row['doc_id']}' is already on line {seen[row['doc_id']]}")
        seen[row["doc_id"]] = line
    return TaskData(rows, _content_hash(rows), origin, files)


def _content_hash(rows: list[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _join(parts: list[TaskData]) -> TaskData:
    rows = [row for part in parts for row in part.rows]
    origin = ", ".join(dict.fromkeys(part.origin for part in parts))
    files = {name: digest for part in parts for name, digest in part.files.items()}
    return _finish(rows, list(range(1, len(rows) + 1)), origin, origin, files)


def _alternatives(row: Row, name: str, line: int) -> list[str]:
    values = row.get("alt_answers") or []
    if not isinstance(values, list):
        raise ResetError(f"{name}, line {line}: 'alt_answers' is not a list")
    return [text_field({"alt_answers": value}, "alt_answers", name, line) for value in values]


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def _aime_loader(task: str) -> Callable[[DataSource], TaskData]:
    year = "20" + task[-2:]

    def load(source: DataSource) -> TaskData:
        if source.data_dir is not None:
            path = source.local(f"aime_{year}.jsonl")
            records, name, origin = parse_jsonl(read_bytes(path), str(path)), str(path), str(path)
            ids = [text_field(row, "id", name, line) for line, row in records]
        else:
            dataset = "aime25" if year == "2025" else "aime22-24"
            path = source.hub_files(dataset)[0]
            records, name, origin = _numbered([path]), str(path), hub.HUB[dataset].name
            if year == "2025":
                ids = [f"2025-{text_field(row, 'id', name, line)}" for line, row in records]
            else:
                # Year, paper and number stand in the address of the solution page: .../2024_AIME_I_Problems/Problem_1
                found = [
                    re.search(r"(\d{4})_AIME_(I+)_Problems/Problem_(\d+)", str(row.get("url"))) for _, row in records
                ]
                kept = [(rec, m) for rec, m in zip(records, found, strict=True) if m and m[1] == year]
                records, ids = [rec for rec, _ in kept], [f"{m[1]}-{m[2]}-{m[3]}" for _, m in kept]
        rows = [
            {
                "doc_id": doc_id,
                "problem": text_field(row, "problem", name, line),
                "target": text_field(row, "answer", name, line),
                "alt_answers": _alternatives(row, name, line) or ACCEPTED_BY_CONTEST.get(doc_id, []),
            }
            for doc_id, (line, row) in zip(ids, records, strict=True)
        ]
        return _finish(rows, [line for line, _ in records], name, origin, {path.name: _digest(path)})

    return load


def _load_gpqa(source: DataSource) -> TaskData:
    if source.data_dir is None:
        path = source.hub_files("gpqa")[0]
        data, name, origin = read_bytes(path), str(path), hub.HUB["gpqa"].name
    elif (path := source.local("gpqa_diamond.csv")).exists():
        data, name, origin = read_bytes(path), str(path), str(path)
    elif (path := source.local("gpqa_dataset.zip")).exists():
        data = read_zip_member(path, "gpqa_diamond.csv", source.gpqa_password)
        name, origin = f"{path}: gpqa_diamond.csv", str(path)
    else:
        raise ResetError(f"neither gpqa_diamond.csv nor gpqa_dataset.zip is in {source.data_dir}; put one there")
    records = parse_csv(data, name, gpqa.COLUMNS)
    rows = gpqa.gpqa_rows(records, name)
    return _finish(rows, [line for line, _ in records], name, origin, {path.name: _digest(path)})


def _load_math500(source: DataSource) -> TaskData:
    path = source.local("math500.jsonl") if source.data_dir is not None else source.hub_files("math500")[0]
    origin = str(path) if source.data_dir is not None else hub.HUB["math500"].name
    records, name = _numbered([path]), str(path)
    rows = [
        {
            "doc_id": text_field(row, "unique_id", name, line),
            "problem": text_field(row, "problem", name, line),
            "target": text_field(row, "answer", name, line),
            "alt_answers": _alternatives(row, name, line),
            "subject": row.get("subject"),
            "level": row.get("level"),
        }
        for line, row in records
    ]
    return _finish(rows, [line for line, _ in records], name, origin, {path.name: _digest(path)})


def _load_gsm8k(source: DataSource) -> TaskData:
    path = source.local("gsm8k_test.jsonl") if source.data_dir is not None else source.hub_files("gsm8k")[0]
    origin = str(path) if source.data_dir is not None else hub.HUB["gsm8k"].name
    records, name, rows = _numbered([path]), str(path), []
    for index, (line, row) in enumerate(records):
        # The worked answer ends with "#### number".
        target = text_field(row, "answer", name, line).rpartition("####")
        if not target[1] or not target[2].strip():
            raise ResetError(f"{name}, line {line}: 'answer' has no final number after '####'")
        problem = text_field(row, "question", name, line)
        rows.append({"doc_id": str(index), "problem": problem, "target": target[2].strip(), "alt_answers": []})
    return _finish(rows, [line for line, _ in records], name, origin, {path.name: _digest(path)})


def _load_livecodebench(source: DataSource) -> TaskData:
    chosen = source.lcb
    if source.data_dir is not None:
        paths = livecodebench.local_files(source.data_dir, chosen.release)
        origin = ", ".join(map(str, paths))
    else:
        names = [f"livecodebench-{s}" for s in livecodebench.shards_of(chosen.release or livecodebench.DEFAULT_RELEASE)]
        paths = [source.hub_files(name)[0] for name in names]
        origin = hub.HUB[names[0]].name
    rows, sha256 = livecodebench.load_rows(paths, chosen)
    # These files are gigabytes: the rows' hash covers what is used of them.
    return TaskData(rows, sha256, origin, {})
