"""``report.html`` of a run's folder: read the files, two passes over the samples, one page written as it is made.

The page stands alone: style, script and figures are inside, a content policy forbids it to load anything or to run
any script but its own, and everything from outside is escaped. The first pass counts and chooses (see `summary`),
the second turns the chosen samples into HTML in a scratch file, from which they are copied in the page's order; so
neither all texts nor the page are ever in memory.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json, write_chunks
from resetcli.base.reporting import Reporter
from resetcli.evaluation.report import page
from resetcli.evaluation.report.safe import safe
from resetcli.evaluation.report.steps import StepTrace, read_steps
from resetcli.evaluation.report.summary import MAX_CHARACTERS, MAX_SAMPLES, Summary, summarize
from resetcli.evaluation.runs import REPORT, RESULTS, RUN, SAMPLES, read_samples, sample_file
from resetcli.evaluation.scoring.extraction import ThoughtMarkers
from resetcli.evaluation.traces import trace_path


def write_report(
    folder: Path, *, most: int = MAX_SAMPLES, characters: int = MAX_CHARACTERS, reporter: Reporter | None = None
) -> Path:
    """Write the page of the finished run in ``folder``, in one step, and return its path.

    Args:
        folder: with run.json, results.json and samples.jsonl (or .gz); traces are shown where there are any.
        most: samples listed on the page.
        characters: characters of their prompts and texts in all.

    Raises:
        ResetError: a file of the run is missing or damaged, or the page cannot be written.
    """
    folder, reporter = Path(folder), reporter or Reporter()
    run, results = read_json(folder / RUN), read_json(folder / RESULTS)
    tasks, file = list(results["results"]), sample_file(folder) or folder / SAMPLES
    summary = summarize(read_samples(file), tasks, most=most, characters=characters)
    traces = {task: _trace(folder, task, reporter) for task in summary.lengths}
    markers = ThoughtMarkers(*(run.get("settings") or {}).get("think_markers") or ())
    script = files(__package__).joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    model = (run.get("model") or {}).get("name")
    heading = f"{model}: {', '.join(tasks)}"
    parts = {
        "title": safe(heading),
        "heading": safe(heading),
        "script_hash": f"sha256-{digest}",
        "script": script,
        "about": page.about(run, results),
        "notices": page.notices(run, results),
        "scores": page.scores(results),
        "lengths": page.lengths(summary, results),
        "entropies": page.entropies(traces),
        "samples_note": page.samples_note(summary, file.name),
        "buttons": page.buttons(summary),
        "task_options": page.task_options(summary),
        "run": page.run_record(run),
    }
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    before, after = template.split("{{samples}}")
    target = folder / REPORT
    try:
        with tempfile.TemporaryFile(dir=folder) as store:
            fragments = _samples(file, summary, markers, store)
            ends = (_fill(part, parts).encode() for part in (before, after))
            write_chunks(target, itertools.chain([next(ends)], fragments, ends))
    except OSError as exc:
        raise ResetError(f"cannot write {target}: {exc.strerror or exc}; free space or choose another -o") from exc
    return target


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """The template with its ``{{names}}`` replaced, once: what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], template)


def _samples(file: Path, summary: Summary, markers: ThoughtMarkers, store: IO[bytes]) -> Iterator[bytes]:
    """The chosen samples as HTML in the page's order; ``store`` holds them in the file's order meanwhile."""
    wanted = set(summary.chosen)
    places: dict[int, tuple[int, int]] = {}
    for line, sample in enumerate(read_samples(file), 1):
        if line in wanted:
            fragment = page.sample(sample, f"line {line} of {file.name}", markers, summary.cap).encode()
            places[line] = store.tell(), len(fragment)
            store.write(fragment)
    for line in summary.chosen:
        start, size = places[line]
        store.seek(start)
        yield store.read(size)


def _trace(folder: Path, task: str, reporter: Reporter) -> StepTrace | str:
    """The steps of the sample traced for ``task``, or why there are none."""
    path = trace_path(folder, task)
    if not path.exists():
        return "No trace was kept: the run's first sample of this task was made without one."
    try:
        found: Any = read_steps(path)
    except ResetError as exc:
        reporter.warn(str(exc))
        return "The trace cannot be read."
    return found or "The trace holds no entropies."
