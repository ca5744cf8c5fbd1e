"""``reset compare``: parses, calls ``evaluation.compare.compare_runs``, prints the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from resetcli.cli import options as o
from resetcli.cli.output import Output, table

SHOWN = 10
"""Problems named a direction; --json has all."""

UNINTERESTING = ("model.path", "model.fingerprint", "settings.model_fingerprint", "engine.context")
"""Differences that people are not told of; --json has them."""

Runs = Annotated[list[Path], typer.Argument(metavar="RUN_A RUN_B ...", help="Folders of finished runs.")]
OnlyTasks = Annotated[str | None, typer.Option("--tasks", metavar="A,B", help="These tasks only.")]
Format = Annotated[
    str, typer.Option("--format", metavar="NAME", help="text, or a table as csv, markdown or latex.")
]  # fmt: skip
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="A,B",
        help="A name for each run, METHOD or METHOD@MODEL; left out: number format and policy, model.",
    ),
]
PassAt = Annotated[
    int | None, typer.Option("--pass-at", min=1, metavar="K", help="pass@K as well; K repeats or fewer.")
]
Resamples = Annotated[
    int, typer.Option("--resamples", min=1000, metavar="N", help="Draws of the bootstrap and the permutation test.")
]


def compare(
    runs: Runs,
    tasks: OnlyTasks = None,
    format: Format = "text",
    labels: Labels = None,
    pass_at: PassAt = None,
    resamples: Resamples = 20_000,
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Paired comparison of evaluation runs.

    Of two runs: what the second scores more or less than the first on the same problems, with intervals, p-values, the
    least difference that so many problems could show, and the problems that flipped. Of more: a table, and each run
    against the first of its model. Runs whose tasks, versions or data differ are refused.

    \b
    Examples:
      reset compare reset-runs/bf16 reset-runs/nvfp4
      reset compare bf16 rtn reset --labels BF16,RTN,ReSET --format latex
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    from resetcli.evaluation.compare import compare_runs
    from resetcli.evaluation.tables import WRITERS, check_format

    check_format(format)
    document = compare_runs(
        [path.expanduser() for path in runs],
        tasks=tasks,
        labels=[part.strip() for part in labels.rstrip(", ").split(",")] if labels is not None else (),
        pass_at=pass_at,
        resamples=resamples,
        seed=seed,
        reporter=out.reporter,
    )
    for line in document["warnings"]:
        out.reporter.warn(line)
    if json or format == "text":
        out.result(document, lambda: render(document))
    else:
        out.write(WRITERS[format](document))


def render(document: Mapping[str, Any]) -> str:
    """The table; of two runs, the pair's figures."""
    from resetcli.evaluation.tables import differences, notes, scores

    if len(document["runs"]) == 2:
        return _pair(document)
    parts = [table(*scores(document))]
    if document["comparisons"]:
        parts.append("\n" + table(*differences(document)))
    return "\n".join([*parts, "", *notes(document)])


def _pair(document: Mapping[str, Any]) -> str:
    parts = [
        f"{letter}  {run['model']}  {run['method']}  {run['run']}" + ("  (limited)" if run["limited"] else "")
        for letter, run in zip("AB", document["runs"], strict=True)
    ]
    if differs := [row for row in document["differs"] if not row["name"].startswith(UNINTERESTING)]:
        parts.append("differ in: " + "; ".join(_differing(row) for row in differs))
    for found in document["comparisons"]:
        parts += ["", *(_scores(found) if found["kind"] == "score" else _perplexity(found))]
    if len(document["comparisons"]) > 1:
        adjusted = ", ".join(f"{found['task']} {_p(found['p_holm'])}" for found in document["comparisons"])
        parts += [
            "",
            f"p of the first line of each task, adjusted for {len(document['comparisons'])} tests (Holm): {adjusted}",
        ]
    return "\n".join(parts)


def _differing(row: Mapping[str, Any]) -> str:
    from json import dumps

    name = row["name"].removeprefix("settings.")
    return f"{name} {', '.join(v if isinstance(v, str) else dumps(v) for v in row['values'])}"


def _scores(found: Mapping[str, Any]) -> list[str]:
    from resetcli.evaluation.tables import interval, points, share, signed

    rows = []
    for metric, d in found["differences"].items():
        a, b = found["values"][metric]
        if metric == "tokens_mean":
            least = None if d["detectable"] is None else f"{d['detectable']:.4g}"
            shown = [f"{a:.1f}", f"{b:.1f}", signed(d["difference"]), interval(d["ci95"], signed), _p(d["p"]), least]
        else:
            shown = [
                f"{100 * a:.1f} %", f"{100 * b:.1f} %", points(d["difference"]), interval(d["ci95"], points),
                _p(d["p"]), share(d["detectable"]),
            ]  # fmt: skip
        rows.append([metric, *shown])
    header = (f"{found['task']}", "A", "B", "B - A", "95 % interval", "p", "detectable")
    m = found["mcnemar"]
    n, k = found["n"], found["repeats"]
    lines = [
        table(header, rows),
        f"{n} problems, {k} {'samples' if k > 1 else 'sample'} each: {found['better']} better in B, {found['worse']} "
        f"worse, {found['same']} the same",
        f"right by majority: both {m['both']}, only A {m['only_a']}, only B {m['only_b']}, neither {m['neither']}; "
        f"McNemar p {_p(m['p'])}",
    ]
    for title, gained in (("lost in B", False), ("gained in B", True)):
        named = [f for f in found["flipped"] if f["gained"] == gained]
        if named:
            each = [f"{f['doc_id']} ({f['a']} to {f['b']} of {k})" for f in named[:SHOWN]]
            more = f", and {len(named) - SHOWN} more (--json has all)" if len(named) > SHOWN else ""
            lines.append(f"{title}: {', '.join(each)}{more}")
    return lines


def _perplexity(found: Mapping[str, Any]) -> list[str]:
    from resetcli.evaluation.tables import interval, signed

    d = found["differences"]["log_perplexity"]
    a, b = found["values"]["token_perplexity"]
    header = (found["task"], "A", "B", "B - A (nats)", "95 % interval", "p")
    row = ["token perplexity", f"{a:.4g}", f"{b:.4g}", signed(d["difference"]), interval(d["ci95"], signed), _p(d["p"])]
    return [table(header, [row]), f"{found['n']} texts"]


def _p(p: float) -> str:
    from resetcli.evaluation.tables import p_value

    return p_value(p)
