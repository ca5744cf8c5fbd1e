"""Geometric means over shapes of what the bench measured, and tables of them as text.

A mean over fewer shapes than there are says of how many ("shapes"): a family that is absent on some shapes, or a peer
that does not take them, must not look better for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

BASELINE = "torch-bf16"
Row = dict[str, Any]


def geometric_mean(values: Iterable[float]) -> float | None:
    """exp of the mean logarithm; None of nothing or where a value is not positive."""
    logs = [math.log(value) if value > 0 else math.nan for value in values]
    mean = math.fsum(logs) / len(logs) if logs else math.nan
    return math.exp(mean) if math.isfinite(mean) else None


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Means by backend and M.

    Returns:
        {"by_m": [{"backend", "m", "shapes", "us", "alone_us", "of_read", "of_pdl_read" (pdl_read_us / us), "speedup"
        (over BF16), "slower_than_bf16" (shapes), "over" {peer: {"speedup", "shapes"}}}], "m8_over_m1": {backend:
        us(8)/us(1)}, "m8_over_m1_alone", "best_of_read": {m: mean of the best family of each shape, W4A4}}. A
        backend that has rows of wrong results is left out.
    """
    wrong = {row["backend"] for row in rows if not row["correct"]}
    rows = [row for row in rows if row["backend"] not in wrong]
    table: dict[tuple[str, int], dict[tuple[int, int], Row]] = {}
    for row in rows:
        table.setdefault((row["backend"], row["m"]), {})[row["n"], row["k"]] = row
    names = list(dict.fromkeys(row["backend"] for row in rows))
    ms = sorted({row["m"] for row in rows})
    ours = [name for name in names if any(row["backend"] == name and "alone_us" in row for row in rows)]
    by_m = []
    for name in names:
        for m in ms:
            if (found := table.get((name, m))) is None:
                continue
            over = {}
            for peer in names:
                other = table.get((peer, m), {})
                both = [shape for shape in found if shape in other]
                if name in ours and peer not in ours and peer != BASELINE and both:
                    mean = geometric_mean(other[shape]["us"] / found[shape]["us"] for shape in both)
                    over[peer] = {"speedup": mean, "shapes": len(both)}
            by_m.append({
                "backend": name, "m": m, "shapes": len(found),
                "us": _mean(found.values(), "us"), "alone_us": _mean(found.values(), "alone_us"),
                "of_read": _mean(found.values(), "of_read"),
                "of_pdl_read": _ratio(found.values(), "pdl_read_us", "us"),
                "speedup": _mean(found.values(), "speedup"),
                "slower_than_bf16": [f"{n}x{k}" for (n, k), row in found.items() if row["slower_than_bf16"]],
                "over": over,
            })  # fmt: skip
    return {
        "by_m": by_m,
        "m8_over_m1": _growth(table, names, "us"),
        "m8_over_m1_alone": _growth(table, ours, "alone_us"),
        "best_of_read": {str(m): _best(rows, m) for m in ms if any("alone_us" in row for row in rows)},
    }


def _mean(rows: Iterable[Row], column: str) -> float | None:
    values = [row.get(column) for row in rows]
    return None if None in values else geometric_mean(values)  # type: ignore[arg-type]


def _ratio(rows: Iterable[Row], over: str, under: str) -> float | None:
    found: list[float] = []
    for row in rows:
        a, b = row.get(over), row.get(under)
        if a is None or b is None:
            return None
        found.append(a / b)
    return geometric_mean(found)


def _growth(table: dict[tuple[str, int], dict[tuple[int, int], Row]], names: Sequence[str], column: str) -> dict:
    """Mean of column(M=8) / column(M=1) by backend, over the shapes that have both."""
    found = {}
    for name in names:
        one, eight = table.get((name, 1), {}), table.get((name, 8), {})
        both = [
            {"one": row.get(column), "eight": eight[shape].get(column)} for shape, row in one.items() if shape in eight
        ]
        if both and (mean := _ratio(both, "eight", "one")) is not None:
            found[name] = mean
    return found


def _best(rows: Sequence[Row], m: int) -> float | None:
    best: dict[tuple[int, int], float] = {}
    for row in rows:
        if row["m"] == m and "alone_us" in row and row["of_read"] is not None and row.get("activations") != "w4a16":
            key = row["n"], row["k"]
            best[key] = max(best.get(key, 0.0), row["of_read"])
    return geometric_mean(best.values())


COLUMNS = ("backend", "M", "shapes", "us", "alone", "of read", "of PDL read", "vs BF16", "slower", "vs peers")


def table(summary: dict[str, Any]) -> list[list[str]]:
    """The means as strings under ``COLUMNS``."""

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = []
    for item in summary.get("by_m", []):
        peers = ", ".join(f"{name} {number(mean['speedup'], '.2f')}" for name, mean in item["over"].items())
        lines.append([
            item["backend"], str(item["m"]), str(item["shapes"]), number(item["us"], ".2f"),
            number(item["alone_us"], ".2f"), number(item["of_read"], ".1%"), number(item["of_pdl_read"], ".1%"),
            number(item["speedup"], ".2f"), str(len(item["slower_than_bf16"])), peers,
        ])  # fmt: skip
    return lines
