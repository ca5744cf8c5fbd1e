"""The bench as a figure: microseconds and share of the read ceiling by shape, a column of panels for each M."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.files import write_bytes

FORMATS = ("png", "svg", "pdf")


def check_plot(path: Path) -> None:
    """Raises:
    UsageError: a name whose ending is not one of ``FORMATS``.
    ResetError: matplotlib is not installed.
    """
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end in .{', .'.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ResetError("--plot needs matplotlib; pip install matplotlib")


def plot(document: dict[str, Any], path: Path) -> None:
    """Write the figure of a document of ``run_bench``.

    Raises:
        UsageError, ResetError: see ``check_plot``; or there are no rows.
    """
    check_plot(path)
    rows = document["rows"]
    if not rows:
        raise ResetError("--plot: the bench has no rows to draw")
    import io

    from matplotlib.figure import Figure

    ms = sorted({row["m"] for row in rows})
    shapes = list(dict.fromkeys((row["n"], row["k"]) for row in rows))
    names = list(dict.fromkeys(row["backend"] for row in rows))
    figure = Figure(figsize=(max(4.5, 0.45 * len(shapes) + 1.5) * len(ms), 7.5), layout="constrained")
    axes = figure.subplots(2, len(ms), squeeze=False, sharex=True)
    for column, m in enumerate(ms):
        for index, name in enumerate(names):
            found = {(row["n"], row["k"]): row for row in rows if row["m"] == m and row["backend"] == name}
            style = {"color": f"C{index % 10}", "marker": "osD^v"[index // 10 % 5], "markersize": 4, "linewidth": 1}
            _line(axes[0][column], shapes, {key: row["us"] for key, row in found.items()}, name, style)
            shares = {k: 100 * row["of_read"] for k, row in found.items() if row["of_read"] is not None}
            _line(axes[1][column], shapes, shares, name, style)
        axes[0][column].set_title(f"M = {m}")
        axes[0][column].set_yscale("log")
        axes[1][column].axhline(100, color="grey", linewidth=0.5)
        axes[1][column].set_ylim(bottom=0)
        axes[1][column].set_xticks(range(len(shapes)), [f"{n}x{k}" for n, k in shapes], rotation=60, ha="right")
    axes[0][0].set_ylabel("microseconds")
    axes[1][0].set_ylabel("% of the read ceiling")
    # A backend may have no row in the last column, so names come from all of them.
    lines = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
    figure.legend(lines.values(), lines.keys(), fontsize="x-small", loc="outside right upper")
    figure.suptitle(f"NVFP4 products, {document['machine']['device']}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lstrip(".").lower(), dpi=150)
    write_bytes(path, buffer.getvalue())


def _line(
    axis: Any, shapes: Sequence[tuple[int, int]], values: dict[tuple[int, int], float], name: str, style: dict[str, Any]
) -> None:
    places = [i for i, shape in enumerate(shapes) if shape in values]
    if places:
        axis.plot(places, [values[shapes[i]] for i in places], label=name, **style)
