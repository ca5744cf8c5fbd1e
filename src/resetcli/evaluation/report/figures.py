"""Figures of the page as inline SVG: interval, token lengths, entropy by step. Plain strings, nothing measured here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from resetcli.evaluation.report.safe import safe
from resetcli.evaluation.report.steps import Step
from resetcli.evaluation.report.summary import VERDICTS

BINS = 32
COLUMNS = 200
"""Columns of the entropy figure; more steps than that are joined."""

LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 34
WIDTH, HEIGHT = 560, 210
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def interval(value: float, low: float, high: float) -> str:
    """A share and its interval on an axis from 0 to 1."""
    wide = 120

    def x(share: float) -> float:
        return 4 + share * (wide - 8)

    label = f"{value:.1%}, interval {low:.1%} to {high:.1%}"
    return (
        f'<svg width="{wide}" height="18" viewBox="0 0 {wide} 18" role="img" aria-label="{label}">'
        f'<line class="axis" x1="4" y1="9" x2="{wide - 4}" y2="9"/>'
        f'<rect class="band" x="{x(low):.1f}" y="4" width="{max(1.0, x(high) - x(low)):.1f}" height="10" rx="2"/>'
        f'<circle class="dot" cx="{x(value):.1f}" cy="9" r="3.5"/></svg>'
    )


def lengths(counts: Mapping[tuple[str, int], int], mean: float | None) -> str:
    """Histogram of tokens a sample, stacked by verdict; ``counts``: (verdict, tokens) -> samples."""
    longest = max((tokens for _, tokens in counts), default=0)
    width = nice((longest + 1) / BINS, whole=True)
    bins = math.floor(longest / width) + 1
    heights: list[Counter[str]] = [Counter() for _ in range(bins)]
    for (why, tokens), count in counts.items():
        heights[int(tokens // width)][why] += count
    top = 1.15 * (max((sum(stack.values()) for stack in heights), default=0) or 1)  # the mean's label is above the bars
    step = INNER_WIDTH / bins
    parts = [_grid(top, whole=True), _x_axis(0, bins * width, "tokens")]
    for i, stack in enumerate(heights):
        if not stack:
            continue
        said = ", ".join(f"{stack[why]} {why}" for why in VERDICTS if stack[why])
        parts.append(f"<g><title>{int(i * width)} to {int((i + 1) * width) - 1} tokens: {said}</title>")
        base = 0
        for why in VERDICTS:
            if stack[why]:
                y, tall = _y(base + stack[why], top), INNER_HEIGHT * stack[why] / top
                parts.append(_bar(why, LEFT + i * step, y, step, tall))
                base += stack[why]
        parts.append("</g>")
    if mean is not None:
        at = LEFT + INNER_WIDTH * mean / (bins * width)
        parts.append(f'<line class="rule" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{TOP + INNER_HEIGHT}"/>')
        side, shift = ("end", -4) if at > WIDTH / 2 else ("start", 4)
        parts.append(_over(at + shift, TOP + 10, side, f"mean {mean:.0f}"))
    return _svg(parts, f"tokens a sample: histogram of {sum(counts.values())} samples")


def entropies(steps: Sequence[Step], tau_0: float | None) -> tuple[str, int]:
    """Mean entropy of each step, and how many steps a column stands for (1 unless there are over ``COLUMNS``)."""
    joined = math.ceil(len(steps) / COLUMNS) or 1
    columns = list(_joined(steps, joined))
    top = 1.1 * max(*(c.entropy for c in columns), tau_0 or 0.0, 0.01)
    step = INNER_WIDTH / max(1, len(columns))
    parts = [_grid(top), _x_axis(0, len(steps), "step")]
    for i, column in enumerate(columns):
        last = min(len(steps), (i + 1) * joined) - 1
        name = f"step {i}" if joined == 1 else f"steps {i * joined} to {last}"
        said = f"{name}: {column.tokens} tokens, mean {column.entropy:.4f} nats"
        if column.cooled is not None:
            said += f", {column.cooled} at T_low"
        kind = "uncertain" if 2 * column.uncertain > column.tokens else "confident"
        tall = INNER_HEIGHT * column.entropy / top
        bar = _bar(kind, LEFT + i * step, _y(column.entropy, top), step, tall)
        text = f"\n{column.text[:80]}" if column.text.strip() else ""
        parts.append(f"<g><title>{safe(said + text)}</title>{bar}</g>")
    if tau_0 is not None:
        y = _y(tau_0, top)
        parts.append(f'<line class="rule" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(_over(WIDTH - RIGHT - 3, y - 4, "end", f"tau_0 {tau_0:.4g}"))
    return _svg(parts, f"mean entropy of {len(steps)} steps"), joined


def nice(value: float, *, whole: bool = False) -> float:
    """1, 2 or 5 times a power of ten, the least that is not below ``value``; at least 1 if ``whole``.

    >>> nice(0.3), nice(33, whole=True), nice(0.01, whole=True)
    (0.5, 50.0, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    found = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))
    return max(1.0, found) if whole else found


def ticks(top: float, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to ``top``, some five of them.

    >>> ticks(10), ticks(3, whole=True)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.0, 1.0, 2.0, 3.0])
    """
    width = nice(top / 5, whole=whole)
    return [i * width for i in range(math.floor(top / width + 1e-9) + 1)]


def _joined(steps: Sequence[Step], by: int) -> Iterator[Step]:
    for at in range(0, len(steps), by):
        group = steps[at : at + by]
        tokens = sum(s.tokens for s in group)
        mean = math.fsum(s.entropy * s.tokens for s in group) / tokens
        cooled = None if group[0].cooled is None else sum(s.cooled or 0 for s in group)
        yield Step(tokens, mean, sum(s.uncertain for s in group), cooled, group[0].text)


def _y(value: float, top: float) -> float:
    return TOP + INNER_HEIGHT * (1 - value / top)


def _bar(kind: str, x: float, y: float, wide: float, tall: float) -> str:
    gap = min(1.0, wide / 5)
    return f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{wide - gap:.2f}" height="{tall:.2f}"/>'


def _over(x: float, y: float, anchor: str, text: str) -> str:
    """A label that stays readable over bars."""
    return f'<text class="over" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _grid(top: float, *, whole: bool = False) -> str:
    parts = []
    for value in ticks(top, whole=whole):
        y = _y(value, top)
        parts.append(f'<line class="axis" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    return "".join(parts)


def _x_axis(low: float, high: float, name: str) -> str:
    parts = []
    for value in ticks(high - low, whole=True):
        x = LEFT + INNER_WIDTH * value / max(high - low, 1)
        parts.append(f'<text x="{x:.1f}" y="{TOP + INNER_HEIGHT + 14}" text-anchor="middle">{value:g}</text>')
    middle = LEFT + INNER_WIDTH / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{name}</text>')
    return "".join(parts)


def _svg(parts: Sequence[str], label: str) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{safe(label)}">{body}</svg>'
