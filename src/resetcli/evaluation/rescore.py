"""Outputs scored again without generating: the samples of a run, or a file of outputs for one task.

Both go through `judge.Judge`, as a run's own samples do. Whatever could be wrong with the input is found in a first
pass, which keeps verdicts only; lines are read a second time to be shown, so memory does not grow with their texts and
nothing is printed before all is known to be well. A run is left as it is, unless `update` is called.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.files import read_json, shortened
from resetcli.base.reporting import Reporter
from resetcli.data.livecodebench import Selection
from resetcli.engines.prompting import opens_thought
from resetcli.evaluation.code.permission import tell
from resetcli.evaluation.judge import Judge
from resetcli.evaluation.runs import RESCORING, RUN, read_samples
from resetcli.evaluation.samples import read_lines
from resetcli.evaluation.scoring.score import Score
from resetcli.evaluation.selection import Selection as Documents
from resetcli.evaluation.tasks import TASKS, TaskSpec, resolve_tasks
from resetcli.evaluation.tasks.documents import documents

if TYPE_CHECKING:
    from resetcli.data.sources import DataSource

VERDICT = ("answer", "score", "why")
REASONS = ("stop", "length", "error", None)
NEEDS_DOCUMENTS = ("code",)
"""Kinds of task whose outputs cannot be scored by a target alone."""


@dataclass
class Rescored:
    """``scores``: one a line, in the file's order, None for what has no score (perplexity, other tasks). ``changed``:
    lines whose verdict is another than the one they had. ``tasks``: of each, samples and how many of each verdict."""

    path: Path
    scores: list[Score | None] = field(default_factory=list)
    changed: list[dict[str, Any]] = field(default_factory=list)
    tasks: dict[str, Counter[str]] = field(default_factory=dict)
    _shared: dict[Score, Score] = field(default_factory=dict, repr=False)

    def _take(self, task: str, place: Mapping[str, Any], line: Mapping[str, Any], score: Score) -> None:
        self.scores.append(self._shared.setdefault(score, score))
        self.tasks.setdefault(task, Counter()).update(["samples", score.why])
        before = {key: line[key] for key in VERDICT if key in line}
        if before and any(value != getattr(score, key) for key, value in before.items()):
            self.changed.append({**place, "before": before, "after": verdict(score)})

    def summary(self) -> dict[str, dict[str, Any]]:
        """By task: {"samples", "correct", "wrong", "unparsed", "truncated", "mean"}, counts and the mean score."""
        names = ("samples", "correct", "wrong", "unparsed", "truncated")
        return {
            task: {**{name: found[name] for name in names}, "mean": found["correct"] / found["samples"]}
            for task, found in self.tasks.items()
        }


@dataclass
class RescoredRun(Rescored):
    """A run's samples scored again. ``header``: its run.json. ``marks``: of each line, which sample it is. ``limited``:
    to which documents, in words, if not to all. ``markers``: what opened and closed a thought, if an update is to put
    that into the run. ``task``: the only one that was scored."""

    header: dict[str, Any] = field(default_factory=dict, repr=False)
    marks: array[int] = field(default_factory=lambda: array("q"), repr=False)
    limited: str = ""
    markers: tuple[str, str] | None = None
    task: str | None = None

    def lines(self) -> Iterator[dict[str, Any]]:
        """The scored lines with their new verdicts, one at a time; texts and prompts stay in the run.

        Raises:
            ResetError: other samples stand there by now (more of them may).
        """
        samples = read_samples(self.path)
        for score, marked in zip(self.scores, self.marks, strict=True):
            if (sample := next(samples, None)) is None or mark(sample) != marked:
                raise written_to(self.path)
            if score is not None:
                yield {**{k: v for k, v in sample.items() if k not in ("text", "prompt")}, **verdict(score)}

    def update(self, reporter: Reporter | None = None) -> None:
        """Put the new verdicts into the run, with the markers they were made with, and make its results again.

        Raises:
            UsageError: one task of several would have other markers than the rest.
            ResetError: see `rescore_update.update_run`.
        """
        from resetcli.evaluation.rescore_update import update_run

        if self.markers is not None and self.task is not None:
            raise UsageError("--update with other thought markers takes all tasks of a run; leave --task out")
        update_run(self, reporter or Reporter())


class RescoredFile(Rescored):
    """A file's outputs scored."""

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines with their verdicts, one at a time."""
        for (_, line), score in zip(_outputs(self.path), self.scores, strict=True):
            assert score is not None
            yield {**line, **verdict(score)}


def verdict(score: Score) -> dict[str, Any]:
    """As a sample holds it."""
    return {"answer": score.answer, "score": score.score, "why": score.why}


def mark(sample: Mapping[str, Any]) -> int:
    """Which sample it is, with which text: the same within this process, so that a file that changed is seen."""
    return hash(tuple(sample[key] for key in ("task", "doc_id", "repeat", "text", "finish_reason")))


def written_to(path: Path) -> ResetError:
    """The error that the run's samples are no longer those that were scored."""
    return ResetError(f"run {path} was written to while it was scored; score it again")


def rescore_run(
    path: Path,
    *,
    task: str | None = None,
    markers: tuple[str | None, str | None] = (None, None),
    source: DataSource | None = None,
    allow_code: bool = False,
    reporter: Reporter | None = None,
) -> RescoredRun:
    """Score a run's samples again.

    Args:
        path: the run's folder.
        task: this task's samples only.
        markers: what opens and closes a thought, where other than the run's.
        source: the data, for tasks that are scored by more than a target, and for runs that do not record which
            other answers are right; it must be the data of the run.
        allow_code: programs in outputs may be run, in the sandbox.

    Raises:
        UsageError: the run has no such task, or none that is scored, or programs may not be run.
        ResetError: no run, a damaged one, or data that is missing or other than the run's.
    """
    reporter = reporter or Reporter()
    header = _header(path)
    names = list(header["tasks"])
    if task is not None and task not in names:
        raise UsageError(f"run {path} has no task {task} (it has {', '.join(names)})")
    specs = [s for s in resolve_tasks([task] if task else names) if s.kind != "perplexity"]
    if not specs:
        raise UsageError(f"run {path} has no task with answers to score; perplexities are made by `reset eval` only")
    kept = header["settings"].get("think_markers") or ["<think>", "</think>"]
    judge = Judge(specs, (markers[0] or kept[0], markers[1] or kept[1]), allow_code=allow_code)
    docs = {spec.name: _documents_of(header, spec, source) for spec in specs}
    tell({s.name: list(docs[s.name].values()) for s in specs if s.kind == "code"}, reporter)
    found, prompts = RescoredRun(Path(path), header=header), True
    used = (judge.markers.open, judge.markers.close)
    found.markers, found.task = (used if list(used) != kept or header.get(RESCORING) else None), task
    named = header["settings"].get("doc_ids")
    found.limited = Documents(header["settings"].get("limit"), tuple(named) if named else None).words
    for sample in read_samples(path):
        found.marks.append(mark(sample))
        name, doc_id = sample["task"], sample["doc_id"]
        if name not in docs:
            if name not in names:
                raise ResetError(f"run {path} holds a sample of task {name}, which its {RUN} does not name")
            found.scores.append(None)
            continue
        doc = {"target": sample["target"], **docs[name].get(str(doc_id), {})}
        prompts = prompts and "prompt" in sample
        opened = opens_thought(sample.get("prompt", ""), judge.markers.open, judge.markers.close)
        score = judge.score(name, doc, sample["text"], sample["finish_reason"], opened_in_prompt=opened)
        found._take(name, {k: sample[k] for k in ("task", "doc_id", "repeat")}, sample, score)
    if not prompts:
        reporter.warn(
            f"run {path} is of a version that kept no prompts: of a thought that the chat template opened and the "
            "model never closed, the text is read as an answer"
        )
    return found


def _header(path: Path) -> dict[str, Any]:
    if not (Path(path) / RUN).exists():
        raise ResetError(f"{shortened(path)} is no run: it holds no {RUN}")
    header = read_json(Path(path) / RUN)
    sections, parts = ("tasks", "settings"), ("model", "policy", "sampling", "engine")
    if (
        not isinstance(header, dict)
        or any(not isinstance(header.get(key), dict) for key in sections)
        or any(not isinstance(part, dict) for part in (*header["tasks"].values(), *(header.get(k, {}) for k in parts)))
        or not isinstance(others := header.get("alt_answers") or {}, dict)
        or not all(isinstance(answers, dict) for answers in others.values())
        or not _texts(header["settings"].get("think_markers"), 2)
        or not _texts(header["settings"].get("doc_ids"))
    ):
        raise ResetError(f"{Path(path) / RUN} is not the record of a run")
    return header


def _texts(value: Any, number: int | None = None) -> bool:
    """Whether it is a list of texts, ``number`` of them, or None."""
    if value is None:
        return True
    return isinstance(value, list) and number in (None, len(value)) and all(isinstance(text, str) for text in value)


def _documents_of(header: Mapping[str, Any], spec: TaskSpec, source: DataSource | None) -> dict[str, dict[str, Any]]:
    """What scoring needs of a task's documents beside the target, by id."""
    if spec.kind not in NEEDS_DOCUMENTS and isinstance(others := header.get("alt_answers"), dict):
        return {doc_id: {"alt_answers": answers} for doc_id, answers in others.get(spec.name, {}).items()}
    recorded = header["tasks"][spec.name]
    source = _resolved(source)
    if isinstance(chosen := recorded.get("selection"), dict):
        # The very problems of the run, whatever the folder has beside them.
        lcb = Selection.parse(chosen.get("release"), chosen.get("from"), chosen.get("to"))
        source = replace(source, lcb=lcb, _loaded={})
    rows, sha256 = documents(spec.name, source)
    if sha256 != recorded.get("data_sha256"):
        raise ResetError(
            f"the data of task {spec.name} is not that of the run (SHA-256 {sha256[:8]}..., the run's "
            f"{str(recorded.get('data_sha256'))[:8]}...); name the folder that holds it with --data-dir"
        )
    return {str(row["doc_id"]): row for row in rows}


def _resolved(source: DataSource | None) -> DataSource:
    from resetcli.data.sources import DataSource

    return source if source is not None else DataSource.resolve()


def rescore_file(
    path: Path,
    task: str,
    *,
    markers: tuple[str, str] = ("<think>", "</think>"),
    source: DataSource | None = None,
    allow_code: bool = False,
    reporter: Reporter | None = None,
) -> RescoredFile:
    """Score a file of outputs, JSON Lines (or that as .gz): {"text", "target"[, "finish_reason", "alt_answers",
    "prompt"]} a line; code tasks need "doc_id" in place of "target".

    Raises:
        UsageError: unknown task, or one without answers, or programs may not be run.
        ResetError: missing, empty, or a line that will not do (file and line named).
    """
    spec = _one(task)
    if spec.kind == "perplexity":
        raise UsageError(f"task {task} has no answers to score; perplexities are made by `reset eval` only")
    judge, found, by_id = Judge([spec], markers, allow_code=allow_code), RescoredFile(Path(path)), {}
    if spec.kind in NEEDS_DOCUMENTS:
        rows, _ = documents(spec.name, _resolved(source))
        tell({spec.name: rows}, reporter or Reporter())
        by_id = {str(row["doc_id"]): row for row in rows}
    for number, line in _outputs(path):
        doc = _document(line, spec, by_id, f"{path}, line {number}")
        opened = opens_thought(line.get("prompt", ""), *markers)
        score = judge.score(spec.name, doc, line["text"], line.get("finish_reason"), opened_in_prompt=opened)
        found._take(spec.name, {"line": number}, line, score)
    if not found.scores:
        raise ResetError(f"{path} is empty; it should have a line of JSON for each output")
    return found


def _one(task: str) -> TaskSpec:
    specs = resolve_tasks(task)
    if len(specs) > 1 or task.strip() not in TASKS:
        raise UsageError(f"--task takes one task, as a file has one; not {task}")
    return specs[0]


def _outputs(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, line) of each line that is not blank, with the types that scoring needs."""
    for number, data in read_lines(Path(path), torn=True):
        if not data.strip():
            continue
        where = f"{path}, line {number}"
        try:
            line = json.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as exc:
            raise ResetError(f"{where} is not JSON ({exc}); repair or delete that line") from exc
        if not isinstance(line, dict):
            raise ResetError(f"{where} is not a JSON object; repair or delete that line")
        if not isinstance(line.get("text"), str):
            raise ResetError(f"{where} has no 'text' (a text, which may be empty)")
        if line.get("finish_reason") not in REASONS:
            raise ResetError(f"{where}: 'finish_reason' must be stop or length, not {line['finish_reason']!r}")
        if not isinstance(line.get("prompt", ""), str):
            raise ResetError(f"{where}: 'prompt' must be a text")
        yield number, line


def _document(line: Mapping[str, Any], spec: TaskSpec, by_id: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if spec.kind in NEEDS_DOCUMENTS:
        if (doc := by_id.get(str(line.get("doc_id")))) is None:
            raise ResetError(f"{where}: 'doc_id' must name a document of task {spec.name}, not {line.get('doc_id')!r}")
        return doc
    target, others = line.get("target"), line.get("alt_answers") or []
    if isinstance(target, int) and not isinstance(target, bool):
        target = str(target)
    if not isinstance(target, str) or not target.strip():
        raise ResetError(f"{where} has no 'target' (a text that is not empty)")
    if spec.kind == "letters" and target.strip() not in ("A", "B", "C", "D"):
        raise ResetError(f"{where}: 'target' of task {spec.name} must be A, B, C or D, not {target[:40]!r}")
    if not isinstance(others, list) or not all(isinstance(answer, str) for answer in others):
        raise ResetError(f"{where}: 'alt_answers' must be a list of texts")
    return {"target": target.strip(), "alt_answers": others}
