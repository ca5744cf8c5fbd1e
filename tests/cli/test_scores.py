"""The table of scores: plain text in a pipe, ruled and with intervals drawn on a terminal that is wide enough."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest

from resetcli.cli.scores import bar, render

TASK = {
    "n": 30, "repeats": 8, "avg@k": 0.5125, "ci95": [0.4, 0.625], "pass@k": 0.8, "maj@k": 0.6, "truncated": 0.1,
    "unparsed": 0.0, "tokens_mean": 1234.5,
}  # fmt: skip
TEXT = {"n": 3, "tokens": 100, "word_perplexity": 12.5, "token_perplexity": 4.0, "bits_per_byte": 0.5}
RESULTS = {"results": {"aime": TASK, "wikitext": TEXT}, "limit": 30, "run": "runs/x", "timing": {"tokens_per_s": 50.0}}


class Screen(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, columns, *, unicode=True, **env):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("NO_COLOR", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **env}.items():
        monkeypatch.setenv(name, value)
    return render(RESULTS, SimpleNamespace(stream=Screen(), unicode=unicode))


def test_a_wide_terminal_gets_rules_and_intervals(monkeypatch) -> None:
    text = shown(monkeypatch, 150)
    assert "\x1b[1m" in text and bar(0.5125, 0.4, 0.625) in text and "────" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "51.2 %" in plain and "40.0 % to 62.5 %" in plain and "1234" in plain and "word perplexity" in plain
    assert plain.splitlines()[-2:] == [
        "limited to the first 30 documents of a task: not comparable with full runs", "run runs/x, 50.0 tokens/s"
    ]  # fmt: skip


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {}])
def test_elsewhere_it_is_plain_text(monkeypatch, env) -> None:
    plain = render(RESULTS)
    assert "\x1b" not in plain and plain.isascii()
    assert shown(monkeypatch, 150 if env else 60, **env) == plain


def test_colours_and_blocks_only_where_they_can_be_shown(monkeypatch) -> None:
    assert "\x1b[3" not in shown(monkeypatch, 150, NO_COLOR="1")
    assert re.sub(r"\x1b\[[\d;]*m", "", shown(monkeypatch, 150, unicode=False)).isascii()


@pytest.mark.parametrize(("value", "low", "high"), [(0, 0, 0), (1, 1, 1), (0.5, 0, 1), (0.01, 0, 0.02)])
def test_bars_have_one_width(value, low, high) -> None:
    assert len(bar(value, low, high)) == 21 and bar(value, low, high).count("●") == 1
