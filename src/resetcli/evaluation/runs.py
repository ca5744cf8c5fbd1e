"""A run on disk: ``run.json``, ``samples.jsonl``, ``results.json``, and going on after a kill at any point.

A sample is appended as one line by one write and flushed to the disk before the next is begun, so a kill leaves at
most one torn line at the end, which the next opening cuts off. What may not change between sittings stands in
``run.json`` under "settings"; a difference is refused by name, so samples of two kinds never share a file. Repeats
stand beside them: they may be raised, which adds samples and changes none. One writer at a time holds the folder (see
`claim`). A folder is looked at before anything is written into it, and a call that fails before its run's first sample
leaves it as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json, write_json
from resetcli.evaluation.claim import LOCK, Claim
from resetcli.evaluation.index import SampleIndex
from resetcli.evaluation.lines import append, encode_line, sync_folder, whole_lines
from resetcli.evaluation.samples import REMEDY, SAMPLE_KEYS, Asked, parse_sample, read_lines

RUN, SAMPLES, RESULTS = "run.json", "samples.jsonl", "results.json"
PACKED = f"{SAMPLES}.gz"
REPORT, LM_EVAL_RESULTS = "report.html", "results_lm-eval.json"
"""Made of the results (see `published`); they go when these go."""

RESCORING = "rescoring"
"""In ``run.json`` while new verdicts go in: some may be by the former markers, some by those that stand there."""


def settings_hash(settings: dict[str, Any]) -> str:
    """Hex SHA-256 of the settings as JSON with sorted keys and no spaces."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def default_directory(model: str, tasks: list[str], settings: dict[str, Any], root: Path | None = None) -> Path:
    """``./reset-runs/<model>-<tasks>-<first 8 hex of the settings' hash>``, long names shortened."""
    # A folder's name has 255 bytes at most, and letters may have up to four.
    short = model.encode("utf-8", "replace")[:100].decode("utf-8", "ignore")
    name = re.sub(r"[^\w.+-]+", "_", f"{short}-{'-'.join(tasks)[:100]}")
    return (root or Path.cwd()) / "reset-runs" / f"{name}-{settings_hash(settings)[:8]}"


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """What differs, as "key (old, now new)", by dotted key; empty if nothing does."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [d for key in keys for d in differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)]
    if old == new:
        return []
    was, now = ("there" if isinstance(v, dict) else json.dumps(v, ensure_ascii=False) for v in (old, new))
    return [f"{name} ({was}, now {now})"]


class RunFolder:
    """One run's folder, locked for writing. Use as a context manager.

    Args:
        path: made if missing.
        settings: what must be equal for samples to share the folder; a JSON object.
        asked: the samples that the run asks for; None takes any with the right types.
        repeats: of each document; may be raised between sittings.
        packed: a new run keeps its samples in a gzip file; a run that has samples keeps the file it has.
        rescoring: new verdicts are to go in, so a run in which that was broken off will do.

    Raises:
        ResetError: not a run's folder, another writer, other settings (named), fewer repeats than before, a damaged
            file or a sample that is none of this run's (file and line), no room.
    """

    def __init__(
        self,
        path: Path,
        settings: dict[str, Any],
        asked: Asked | None = None,
        *,
        repeats: int | None = None,
        packed: bool = False,
        rescoring: bool = False,
    ):
        self.path = Path(path)
        self.settings = json.loads(json.dumps(settings))
        self.repeats = repeats
        self.samples = SampleIndex()
        self._asked = asked
        self._out: int | None = None
        self._begun = False
        self._read_header()
        self._claim = Claim(self.path)
        try:
            self.header = self._read_header()
            if self.header is not None:
                if not rescoring:
                    refuse_half_scored(self.path, self.header)
                self.check("settings", self.settings)
                if repeats is not None and (before := repeats_of(self.header)) is not None and before > repeats:
                    self._refuse([f"repeats ({before}, now {repeats}: they can be raised only)"])
            self.file = sample_file(self.path) or self.path / (PACKED if packed else SAMPLES)
            self._load_samples()
        except BaseException:
            self.close(failed=True)
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close(failed=kind is not None)

    def close(self, *, failed: bool = False) -> None:
        """Release the file and the lock. A run that ``failed`` without a sample on the disk is taken back."""
        self._close_file()
        if failed and self._begun and not (self.file.exists() and self.file.stat().st_size):
            with contextlib.suppress(OSError):
                self.file.unlink(missing_ok=True)
                (self.path / RUN).unlink()
        self._claim.release(undo=not (self.path / RUN).exists())

    def _read_header(self) -> dict[str, Any] | None:
        """``run.json``, None in a folder that is missing or empty; writes nothing."""
        try:
            begun = (self.path / RUN).exists()
            found = [p.name for p in self.path.iterdir()] if not begun and self.path.is_dir() else []
        except FileNotFoundError:
            return None  # it was there a moment ago: another call took it back
        except OSError as exc:
            raise ResetError(f"cannot read {self.path}: {exc.strerror or exc}; choose another with -o") from exc
        if any(name != LOCK and not name.startswith(".tmp-") for name in found):
            raise ResetError(f"output directory {self.path} is not empty and holds no {RUN}; choose another with -o")
        if not begun:
            return None
        header = read_json(self.path / RUN)
        sections = ("settings", "engine", "conditions")
        whole = isinstance(header, dict) and all(isinstance(header.get(key, {}), dict) for key in sections)
        if not whole or header.get("run") != 1 or "settings" not in header:
            raise ResetError(f"{self.path / RUN} is not the record of a run; choose another directory with -o")
        return header

    def check(self, section: str, value: dict[str, Any]) -> None:
        """Refuse if ``run.json`` has another ``section``.

        Raises:
            ResetError: what differs, by name, old against new.
        """
        assert self.header is not None
        # Versions before repeats could be raised kept them among the settings.
        known = {k: v for k, v in self.header.get(section, {}).items() if (section, k) != ("settings", "repeats")}
        if changed := differences(known, json.loads(json.dumps(value))):
            self._refuse(changed)

    def _refuse(self, changed: list[str]) -> NoReturn:
        raise ResetError(
            f"run {self.path} was begun with other settings: {'; '.join(changed)}; repeat them or choose another -o"
        )

    def begin(self, header: dict[str, Any]) -> None:
        """Write ``run.json``: ``header`` with the repeats and settings."""
        self.header = {**header, "repeats": self.repeats, "settings": self.settings}
        self._begun = True
        write_json(self.path / RUN, self.header)

    def amend(self, header: dict[str, Any]) -> None:
        """Put ``header`` in the place of ``run.json``."""
        write_json(self.path / RUN, header)
        self.header = header

    def drop_results(self) -> None:
        """Remove ``results.json`` and what was made of it.

        Raises:
            ResetError: the file system refuses.
        """
        for path in (self.path / name for name in (REPORT, LM_EVAL_RESULTS, RESULTS)):
            try:
                if path.name == RESULTS or not path.is_dir():
                    path.unlink(missing_ok=True)
            except OSError as exc:
                raise ResetError(f"cannot remove {path}: {exc.strerror or exc}; choose another -o") from exc

    def raise_repeats(self) -> None:
        """Put a larger number of repeats into ``run.json``; results of the smaller one go."""
        assert self.header is not None
        if self.repeats is None or repeats_of(self.header) == self.repeats:
            return
        self.drop_results()
        settings = {k: v for k, v in self.header["settings"].items() if k != "repeats"}
        self.amend({**self.header, "repeats": self.repeats, "settings": settings})

    def _load_samples(self) -> None:
        path = self.file
        if not path.exists():
            return
        whole = 0
        for number, line, whole in whole_lines(path):  # noqa: B007  the last whole line's end is wanted below
            sample = parse_sample(line, path, number)
            if self._asked is not None and (fault := self._asked.fault(sample)) is not None:
                raise ResetError(f"{path}, line {number}: {fault}; {REMEDY}")
            self._remember(sample, f"{path}, line {number}")
        try:
            if whole < path.stat().st_size:
                with open(path, "rb+") as stream:
                    stream.truncate(whole)
                    os.fsync(stream.fileno())
        except OSError as exc:
            raise ResetError(f"cannot write {path}: {exc.strerror or exc}; choose another folder with -o") from exc

    @property
    def failed(self) -> int:
        """Samples lost to logits that are not finite."""
        return self.samples.failed

    def forget_failed(self) -> None:
        """Take failed samples out of the file, in one step, and with them the results: all are to be made again.

        Raises:
            ResetError: the disk is full or failing; the file is as it was.
        """
        if not self.failed:
            return
        self.rewrite(lambda sample: None if sample["finish_reason"] == "error" else sample, self.drop_results)

    def rewrite(self, change: Callable[[dict[str, Any]], dict[str, Any] | None], ready: Callable[[], None]) -> None:
        """Put ``change(sample)`` in the place of each line, nothing where that is None, in one step.

        Args:
            ready: called when the new file is whole, just before it takes the old one's place.

        Raises:
            ResetError: the disk is full or failing; the file is as it was. So it is if ``change`` or ``ready`` raises.
        """
        scratch = self.path / f".tmp-{self.file.name}"
        samples = SampleIndex()
        try:
            with open(scratch, "wb") as stream:
                for number, line in read_lines(self.file):
                    sample = parse_sample(line, self.file, number)
                    if (changed := change(sample)) is not None:
                        stream.write(encode_line(line if changed is sample else _line(changed), self.file))
                        samples.add(changed)
                stream.flush()
                os.fsync(stream.fileno())
            ready()
            self._close_file()
            os.replace(scratch, self.file)
            self.samples = samples
            sync_folder(self.path)
        except OSError as exc:
            raise self._full(exc) from exc
        finally:
            scratch.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._out is not None:
            os.close(self._out)
            self._out = None

    def _full(self, exc: OSError) -> ResetError:
        return ResetError(f"cannot write {self.file}: {exc.strerror or exc}; free space, and the same command goes on")

    def _remember(self, sample: dict[str, Any], where: str) -> None:
        key = (sample["task"], sample["doc_id"], sample["repeat"])
        if key in self.samples:
            raise ResetError(f"{where}: a second sample of task {key[0]}, document {key[1]}, repeat {key[2]}; {REMEDY}")
        # Texts stay on the disk: a run of many long thoughts would not fit into memory.
        self.samples.add(sample)

    def add(self, sample: dict[str, Any]) -> None:
        """Append one sample (exactly ``SAMPLE_KEYS``); it is on the disk when this returns.

        Raises:
            ResetError: the disk is full or failing; the file keeps its whole lines only.
        """
        assert tuple(sample) == SAMPLE_KEYS, f"a sample has exactly the keys {SAMPLE_KEYS}"
        data = encode_line(_line(sample), self.file)
        self._remember(sample, str(self.file))
        try:
            if self._out is None:
                self._out = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                sync_folder(self.path)
            append(self._out, data)
        except OSError as exc:
            raise self._full(exc) from exc

    def of_task(self, task: str) -> Iterator[dict[str, Any]]:
        """The task's sample records without text, one at a time, by document id (as text) and repeat."""
        return self.samples.of_task(task)

    def results(self) -> Any:
        """What ``results.json`` holds; None if it is missing or no JSON, for it can be made again from the samples.

        Raises:
            ResetError: it is no file.
        """
        path = self.path / RESULTS
        if not path.exists():
            return None
        if not path.is_file():
            raise ResetError(f"{path} is not a file; remove it or choose another -o")
        try:
            return read_json(path)
        except ResetError:
            return None

    def finish(self, results: dict[str, Any]) -> None:
        """Write ``results.json``."""
        write_json(self.path / RESULTS, results)


def _line(sample: dict[str, Any]) -> bytes:
    return (json.dumps(sample, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")


def repeats_of(header: dict[str, Any]) -> int | None:
    """Repeats of a run, from its ``run.json``."""
    repeats = header.get("repeats", header["settings"].get("repeats"))
    return repeats if isinstance(repeats, int) else None


def refuse_half_scored(path: Path, header: dict[str, Any]) -> None:
    """Refuse a run whose verdicts may be of two kinds.

    Raises:
        ResetError: new ones were being put into it when that was broken off.
    """
    if header.get(RESCORING):
        raise ResetError(
            f"run {path} may have verdicts by two pairs of thought markers, for an update was broken off; "
            f"`reset score {path} --update` finishes it"
        )


def sample_file(folder: Path) -> Path | None:
    """The file of a run's samples, ``samples.jsonl`` or ``samples.jsonl.gz``; None if it has neither.

    Raises:
        ResetError: it has both.
    """
    found = [folder / name for name in (SAMPLES, PACKED) if (folder / name).exists()]
    if len(found) > 1:
        raise ResetError(f"run {folder} has both {SAMPLES} and {PACKED}; remove the one that is not its own")
    return found[0] if found else None


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a run's samples, or of such a file, one at a time; a torn last line is left out.

    Raises:
        ResetError: missing, or a line that is no sample.
    """
    path = Path(path)
    path = (sample_file(path) or path / SAMPLES) if path.is_dir() else path
    for number, line in read_lines(path):
        yield parse_sample(line, path, number)
