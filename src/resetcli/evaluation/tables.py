"""A comparison as a table: task x method x model, wide for people and papers, long for programs.

Wide: a row a model and method, a column a task, avg@k in per cent with its 95 % interval; below it a row a paired
difference. Long (CSV): a line a task, model and method with all figures, fractions with all their digits.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from resetcli.base.errors import unknown_name

Table = tuple[list[str], list[list[str]]]
FORMATS = ("text", "csv", "markdown", "latex")


def check_format(name: str) -> str:
    """The format, if it is one of ``FORMATS``.

    Raises:
        UsageError: it is not.
    """
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return name


def scores(document: Mapping[str, Any]) -> Table:
    """Header and rows: model, method, a column a task. Runs of one model and method with different tasks share a row.
    Rows of chosen documents (``--limit``) carry a "*"."""
    tasks = list(dict.fromkeys(task for run in document["runs"] for task in run["tasks"]))
    models = list(dict.fromkeys(run["model"] for run in document["runs"]))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    # Methods of a model stand together, in the order of the runs.
    for run in sorted(document["runs"], key=lambda run: models.index(run["model"])):
        cells = rows.setdefault((run["model"], run["method"]), {})
        for task, found in run["tasks"].items():
            cells[task] = _cell(found) + ("*" if run["limited"] else "")
    body = [[model, method, *(cells.get(task, "-") for task in tasks)] for (model, method), cells in rows.items()]
    return ["model", "method", *(_heading(document, task) for task in tasks)], body


def differences(document: Mapping[str, Any]) -> Table:
    """Header and rows of the paired comparisons' main differences, B less A."""
    rows = []
    for found in document["comparisons"]:
        a, b = document["runs"][found["a"]], document["runs"][found["b"]]
        name, main = next(iter(found["differences"].items()))
        show = points if found["kind"] == "score" else signed
        unit = "" if found["kind"] == "score" else " nats/token"
        rows.append([
            found["task"], b["model"], f"{b['method']} - {a['method']}" + _other_model(a, b), name,
            f"{show(main['difference'])}{unit}", interval(main["ci95"], show), p_value(main["p"]),
            p_value(found["p_holm"]), share(main.get("detectable")),
        ])  # fmt: skip
    return ["task", "model", "runs", "of", "difference", "95 % interval", "p", "p (Holm)", "detectable"], rows


def notes(document: Mapping[str, Any]) -> list[str]:
    """What must stand under the table."""
    kinds = {found["kind"] for found in document["comparisons"]}
    found = []
    if any("avg@k" in task for run in document["runs"] for task in run["tasks"].values()):
        found.append(
            "avg@k in per cent, with half the width of its 95 % interval, or its ends where they are not as far "
            "from it (problems are the unit)"
        )
    if any("word_perplexity" in task for run in document["runs"] for task in run["tasks"].values()):
        found.append("perplexity per word, lower is better")
    if "score" in kinds:
        found.append(
            "differences are paired by problem, in points of a per cent; detectable: the true difference that so many "
            "problems would show at the 5 % level in 80 % of cases"
        )
    if any(run["limited"] for run in document["runs"]):
        found.append("* chosen documents only (--limit or --doc-ids): not comparable with full runs")
    return found


def to_csv(document: Mapping[str, Any]) -> str:
    """Long form; empty where a run has no such figure or is no comparison's second run."""
    columns = [
        "task", "model", "method", "n", "repeats", "avg", "ci_low", "ci_high", "pass", "maj", "truncated", "unparsed",
        "tokens_mean", "tokens_per_s", "errors", "word_perplexity", "token_perplexity", "limited", "base_model",
        "base_method", "difference", "difference_low", "difference_high", "p", "p_holm", "detectable", "run",
    ]  # fmt: skip
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    compared = {(found["b"], found["task"]): found for found in document["comparisons"]}
    tasks = dict.fromkeys(task for run in document["runs"] for task in run["tasks"])
    for task in tasks:
        for number, run in enumerate(document["runs"]):
            if (found := run["tasks"].get(task)) is not None:
                row = {"task": task, "model": run["model"], "method": run["method"], "run": run["run"],
                       "limited": int(run["limited"]), **_figures(found)}  # fmt: skip
                if (comparison := compared.get((number, task))) is not None:
                    row |= _against(document, comparison)
                writer.writerow({key: "" if value is None else value for key, value in row.items()})
    return out.getvalue()


def _figures(found: Mapping[str, Any]) -> dict[str, Any]:
    if "avg@k" not in found:
        return {key: found[key] for key in ("n", "word_perplexity", "token_perplexity", "tokens_per_s")}
    low, high = found["ci95"]
    same = ("n", "repeats", "truncated", "unparsed", "tokens_mean", "tokens_per_s", "errors")
    return {
        **{key: found[key] for key in same}, "avg": found["avg@k"], "ci_low": low, "ci_high": high,
        "pass": found["pass@k"], "maj": found["maj@k"],
    }  # fmt: skip


def _against(document: Mapping[str, Any], comparison: Mapping[str, Any]) -> dict[str, Any]:
    base = document["runs"][comparison["a"]]
    main = next(iter(comparison["differences"].values()))
    low, high = main["ci95"] or (None, None)
    return {
        "base_model": base["model"], "base_method": base["method"], "difference": main["difference"],
        "difference_low": low, "difference_high": high, "p": main["p"], "p_holm": comparison["p_holm"],
        "detectable": main.get("detectable"),
    }  # fmt: skip


def to_markdown(document: Mapping[str, Any]) -> str:
    """Two pipe tables and notes."""
    parts = [_pipes(*scores(document))]
    if document["comparisons"]:
        parts.append(_pipes(*differences(document)))
    lines = [*notes(document), *(f"warning: {line}" for line in document["warnings"])]
    return "\n".join([*parts, "".join(f"- {_escaped(line, MARKDOWN)}\n" for line in lines)])


def _pipes(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(_escaped(cell, MARKDOWN) for cell in line) + " |\n" for line in lines)


def to_latex(document: Mapping[str, Any]) -> str:
    """``tabular`` environments with rules of the booktabs package; notes as comments."""
    parts = [_tabular(*scores(document), words=2, grouped=True)]
    if document["comparisons"]:
        parts.append(_tabular(*differences(document), words=4, grouped=False))
    lines = ["needs \\usepackage{booktabs}", *notes(document), *(f"warning: {w}" for w in document["warnings"])]
    return "".join(f"% {' '.join(line.split())}\n" for line in lines) + "\n".join(parts)


def _tabular(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int, grouped: bool) -> str:
    """``words``: columns of words, the rest are figures. ``grouped``: the first column's repetitions are left out, with
    a rule before each new entry."""
    form = "l" * words + "r" * (len(header) - words)
    lines = [f"\\begin{{tabular}}{{{form}}}", "\\toprule", _latex_row(header), "\\midrule"]
    last: str | None = None
    for row in rows:
        if grouped and last is not None and row[0] != last:
            lines.append("\\midrule")
        lines.append(_latex_row(["", *row[1:]] if grouped and row[0] == last else row))
        last = row[0]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _latex_row(cells: Iterable[str]) -> str:
    # A minus sign is longer than a hyphen.
    row = " & ".join(re.sub(r"(^| )-(?=\d)", r"\1$-$", _escaped(cell, LATEX)) for cell in cells) + r" \\"
    # After \midrule or \\ these would be read as its options, across the line end.
    return "{}" + row if row.startswith(("[", "*")) else row


LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$",
    "|": r"\textbar{}",
}  # fmt: skip
MARKDOWN: Mapping[str, str] = {
    "|": r"\|", "*": r"\*", "_": r"\_", "<": "&lt;", "\\": r"\\", "`": r"\`",
    "[": r"\[", "]": r"\]", "~": r"\~", "$": r"\$",
}  # fmt: skip


def _escaped(text: str, signs: Mapping[str, str]) -> str:
    return "".join(signs.get(c, c) for c in " ".join(text.split()))


WRITERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "csv": to_csv, "markdown": to_markdown, "latex": to_latex
}  # fmt: skip
"""By format; text is the command line's own."""


def _heading(document: Mapping[str, Any], task: str) -> str:
    found = [run["tasks"][task] for run in document["runs"] if task in run["tasks"]]
    repeats = {entry.get("repeats") for entry in found}
    k = repeats.pop() if len(repeats) == 1 else "k"
    return f"{task} perplexity" if "avg@k" not in found[0] else f"{task} avg@{k}"


def _cell(found: Mapping[str, Any]) -> str:
    if "avg@k" not in found:
        value = found["word_perplexity"]
        return "-" if value is None else f"{value:.4g}"
    value, (low, high) = found["avg@k"], found["ci95"]
    if math.isclose(value - low, high - value, abs_tol=1e-9):
        return f"{100 * value:.1f} ± {50 * (high - low):.1f}"
    return f"{100 * value:.1f} ({interval((low, high), share)})"


def _other_model(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    return "" if a["model"] == b["model"] else f" ({a['model']})"


def points(value: float) -> str:
    """A difference of fractions in points of a per cent, signed."""
    return f"{100 * value:+.1f}"


def signed(value: float) -> str:
    return f"{value:+.4g}"


def share(value: float | None) -> str:
    """A fraction as points without a sign."""
    return "-" if value is None else f"{100 * value:.1f}"


def interval(bounds: Sequence[float] | None, show: Callable[[float], str]) -> str:
    return "-" if bounds is None else f"{show(bounds[0])} to {show(bounds[1])}"


def p_value(p: float) -> str:
    """Three digits after the point, or a bound.

    >>> p_value(0.04), p_value(0.00005)
    ('0.040', '<0.001')
    """
    return "<0.001" if p < 0.001 else f"{p:.3f}"
