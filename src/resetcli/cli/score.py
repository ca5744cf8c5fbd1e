"""``reset score``: parses, calls ``evaluation.rescore``, prints the lines and what changed."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.files import shortened
from resetcli.cli import options as o
from resetcli.cli.output import Output, finite, table

Target = Annotated[
    Path,
    typer.Argument(metavar="RUN|FILE", help="Folder of a run, or with --task a file of outputs (JSON Lines, or .gz)."),
]
Task = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="The task of FILE; of RUN, score this task only.", show_default=False),
]
Update = Annotated[bool, typer.Option("--update", help="Put the new scores into RUN and make its results again.")]

SHOWN = 20
"""Changed samples that the summary names; --json and the lines have all."""


def score(
    *,
    target: Target,
    task: Task = None,
    update: Update = False,
    thought_start: o.ThoughtStart = None,
    thought_end: o.ThoughtEnd = None,
    allow_code_execution: o.AllowCode = False,
    data_dir: o.DataDir = None,
    gpqa_password: o.GpqaPassword = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Scores again, without generating, by the code that `reset eval` scores with.

    RUN: the samples of a run, which stays as it is without --update; samples whose score changes are listed. FILE: a
    line of JSON for each output: {"text", "target"[, "finish_reason", "alt_answers", "prompt"]}; of livecodebench,
    {"text", "doc_id"}. Standard output has the lines with "answer", "score" and "why" (those of a run without their
    texts), standard error the summary.

    \b
    Examples:
      reset score reset-runs/Qwen3-8B-nvfp4-aime-1a2b3c4d > scored.jsonl
      reset score --task aime outputs.jsonl --json
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    from resetcli.data.sources import DataSource
    from resetcli.engines.thoughts import resolve_markers
    from resetcli.evaluation.rescore import rescore_file, rescore_run

    path = target.expanduser()
    given = resolve_markers(None, thought_start, thought_end)
    if not _exists(path):
        raise ResetError(f"{shortened(path)} is not there; name the folder of a run, or a file with --task")
    source = DataSource.resolve(data_dir, gpqa_password)
    found: Any
    if path.is_dir():
        own = None if thought_start is None and thought_end is None else given
        found = rescore_run(
            path, task=task, markers=own or (None, None), source=source, allow_code=allow_code_execution,
            reporter=out.reporter,
        )  # fmt: skip
    elif task is None:
        raise UsageError("a file of outputs needs --task NAME (`reset eval --list-tasks` shows the tasks)")
    elif update:
        raise UsageError("--update goes with RUN; of a file, keep what standard output has")
    else:
        found = rescore_file(
            path, task, markers=given, source=source, allow_code=allow_code_execution, reporter=out.reporter
        )
    summary = found.summary()
    limited = getattr(found, "limited", "")
    if update:
        # Before anything is written to a reader that may go away.
        found.update(out.reporter)
        out.reporter.info(f"run {path} has the new scores")
        if found.markers is not None:
            markers = " and ".join(found.markers)
            out.reporter.info(f"its thought markers are {markers} now; `reset eval` with them goes on with -o {path}")
    if json:
        rest = {"changed": found.changed, "tasks": summary, "limited": bool(limited)}
        write_document(out.write, found, rest, ascii_only=not out.unicode)
    else:
        for line in found.lines():
            out.write(_text(line, ascii_only=not out.unicode) + "\n")
    out.reporter.info(render(summary, found.changed))
    if limited:
        out.reporter.info(f"the run is limited to {limited}: not comparable with full runs")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _text(value: Any, *, ascii_only: bool) -> str:
    return json_module.dumps(finite(value), ensure_ascii=ascii_only, allow_nan=False)


def write_document(write: Callable[[str], None], found: Any, rest: Mapping[str, Any], *, ascii_only: bool) -> None:
    """``{"samples": [...], ...rest}``, a sample at a time: a run's samples need not fit into memory."""
    write('{"samples": [')
    for i, line in enumerate(found.lines()):
        write((",\n  " if i else "\n  ") + _text(line, ascii_only=ascii_only))
    write("\n]")
    for key, value in rest.items():
        write(f",\n{json_module.dumps(key)}: {_text(value, ascii_only=ascii_only)}")
    write("}\n")


def render(summary: Mapping[str, Mapping[str, Any]], changed: list[dict[str, Any]]) -> str:
    """A task a line, then the samples whose verdict changed."""
    heads = ("task", "samples", "correct", "wrong", "unparsed", "truncated", "mean score")
    rows = [
        [task, *(n for key, n in s.items() if key != "mean"), f"{100 * s['mean']:.1f} %"] for task, s in summary.items()
    ]
    lines = [table(heads, rows), f"{len(changed)} of {sum(s['samples'] for s in summary.values())} changed"]
    for entry in changed[:SHOWN]:
        place = " ".join(f"{k} {v}" for k, v in entry.items() if k not in ("before", "after"))
        lines.append(f"  {place}: {_words(entry['before'])} -> {_words(entry['after'])}")
    if len(changed) > SHOWN:
        lines.append(f"  and {len(changed) - SHOWN} more (--json has all)")
    return "\n".join(lines)


def _words(verdict: Mapping[str, Any]) -> str:
    answer = str(verdict.get("answer"))
    return f"{answer[:40]} ({verdict.get('why', verdict.get('score'))})"
