"""The scores of a run for people: aligned text in a pipe, ruled tables with intervals drawn on a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resetcli.cli.output import cell, table

if TYPE_CHECKING:
    from resetcli.cli.output import Output

SCORED = ("task", "n", "k", "avg@k", "95 % interval", "pass@k", "maj@k", "truncated", "unparsed", "tokens")
TEXTS = ("task", "texts", "tokens", "word perplexity", "token perplexity", "bits/byte")

BAR = 21
"""Columns of a drawn interval."""


def render(results: Mapping[str, Any], out: Output | None = None) -> str:
    """Scores a task a line, then what a reader must know of them, then where the run is."""
    from resetcli.evaluation.selection import Selection

    terminal = out is not None and out.stream.isatty() and os.environ.get("TERM") != "dumb"
    scored, texts, bars = [], [], []
    for name, task in results["results"].items():
        if "avg@k" in task:
            low, high = task["ci95"]
            scored.append([
                name, task["n"], task["repeats"], percent(task["avg@k"]), f"{percent(low)} to {percent(high)}",
                percent(task["pass@k"]), percent(task["maj@k"]), percent(task["truncated"]), percent(task["unparsed"]),
                f"{task['tokens_mean']:.0f}",
            ])  # fmt: skip
            bars.append(bar(task["avg@k"], low, high))
        else:
            texts.append([
                name, task["n"], task["tokens"], task["word_perplexity"], task["token_perplexity"],
                task["bits_per_byte"],
            ])  # fmt: skip
    parts = []
    if scored and terminal and out is not None:
        drawn = [[*row[:5], line, *row[5:]] for row, line in zip(scored, bars, strict=True)]
        full = ruled((*SCORED[:5], "0 to 100 %", *SCORED[5:]), drawn, out) if out.unicode else None
        parts.append(full or ruled(SCORED, scored, out) or table(SCORED, scored))
    elif scored:
        parts.append(table(SCORED, scored))
    if texts:
        parts.append((ruled(TEXTS, texts, out) if terminal and out is not None else None) or table(TEXTS, texts))
    parts += notes(results, Selection)
    speed = results.get("timing", {}).get("tokens_per_s")
    parts.append(f"run {results['run']}" + (f", {speed:.1f} tokens/s" if speed else ""))
    if (page := Path(results["run"]) / "report.html").exists():
        parts.append(f"report {page}")
    return "\n".join(parts)


def notes(results: Mapping[str, Any], selection: Any) -> list[str]:
    """Lines on what the scores do not say by themselves."""
    said = []
    for name, task in results["results"].items():
        if n := task.get("prompts_too_long"):
            said.append(
                f"{name}: {n} of {task['n']} prompts did not fit the context of {results['context']} tokens; "
                "their samples score 0"
            )
        if n := task.get("empty"):
            said.append(f"{name}: {n} of {task['n'] * task['repeats']} samples have no text")
    named = results.get("doc_ids")
    if words := selection(results["limit"], tuple(named) if named else None).words:
        said.append(f"limited to {words}: not comparable with full runs")
    return said


def percent(value: float | None) -> str:
    """A share for people."""
    return "-" if value is None else f"{100 * value:.1f} %"


def bar(value: float, low: float, high: float) -> str:
    """A share and its interval on a line from 0 to 1.

    >>> bar(0.5, 0.25, 0.8)
    '·····├────●─────┤····'
    >>> bar(0.0, 0.0, 0.8)
    '●───────────────┤····'
    """
    at = [round(share * (BAR - 1)) for share in (low, value, high)]
    line = ["·"] * BAR
    for i in range(at[0], at[2] + 1):
        line[i] = "─"
    line[at[0]], line[at[2]] = "├", "┤"
    line[at[1]] = "●"
    return "".join(line)


def ruled(columns: Sequence[str], rows: Sequence[Sequence[Any]], out: Output) -> str | None:
    """A table for a terminal; None where it is too narrow, since nothing may be cut off."""
    import io

    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        box=box.SIMPLE_HEAD if out.unicode else box.ASCII2, header_style="bold", show_edge=False, pad_edge=False
    )
    for i, name in enumerate(columns):
        shown.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        shown.add_row(
            *(Text(cell(value), style="bold" if columns[i] == "avg@k" else "") for i, value in enumerate(row))
        )
    terminal, text = Console(file=out.stream), io.StringIO()
    wide = Console(
        file=text, force_terminal=True, width=10_000, color_system="standard",
        no_color=terminal.no_color,
    )  # fmt: skip
    if Measurement.get(wide, wide.options, shown).maximum > terminal.width:
        return None
    wide.print(shown)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
