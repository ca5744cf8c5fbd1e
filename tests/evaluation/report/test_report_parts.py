"""The pieces of report.html: what is counted and chosen, steps read back from a trace, numbers in the figures."""

from __future__ import annotations

import json
import math
import random
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.base.errors import ResetError
from resetcli.evaluation.report import figures, page
from resetcli.evaluation.report.steps import Step, read_steps
from resetcli.evaluation.report.summary import level, natural, share, summarize


def sample(task="aime", doc="2022-I-1", repeat=0, why="wrong", tokens=10, text="x", prompt="q"):
    return {"task": task, "doc_id": doc, "repeat": repeat, "why": why, "n_tokens": tokens, "text": text,
            "prompt": prompt}  # fmt: skip


def test_prompts_count_and_are_whole_where_there_is_room() -> None:
    lines = [sample(doc=f"{i}", text="y" * 10, prompt="q" * 5000) for i in range(10)]
    found = summarize(lines, ["aime"], characters=60_000)
    assert found.cap >= 5000 and found.cut == 0
    found = summarize(lines, ["aime"], characters=30_100)
    assert found.cap == 3000 and found.cut == 10
    del lines[0]["prompt"]  # as earlier versions wrote
    assert summarize(lines, ["aime"], characters=60_000).cut == 0


@given(st.lists(st.integers(0, 50)), st.integers(0, 200))
def test_level_is_the_largest_cap_that_fits(sizes, total) -> None:
    cap = level(sizes, total)
    assert sum(min(s, cap) for s in sizes) <= total
    assert cap == max(sizes, default=0) or sum(min(s, cap + 1) for s in sizes) > total


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_are_used_up_and_even(sizes, total) -> None:
    got = share(sizes, total)
    assert sum(got) == min(total, sum(sizes)) and all(0 <= g <= s for g, s in zip(got, sizes, strict=True))
    held_back = [g for g, s in zip(got, sizes, strict=True) if g < s]
    assert not held_back or max(got) - min(held_back) <= 1


def test_every_sample_is_chosen_where_there_is_room() -> None:
    lines = [sample(doc=f"2022-I-{d}", repeat=r) for r in range(2) for d in (10, 2, 1)]
    lines.append(sample(task="wikitext", why="loglikelihood"))
    found = summarize(lines, ["aime"])
    assert found.total == 6 and found.chosen == [3, 6, 2, 5, 1, 4] and found.cut == 0
    assert found.verdicts() == {"wrong": 6} and found.lengths["aime"] == {("wrong", 10): 6}


def test_rare_verdicts_are_chosen_and_order_does_not_matter() -> None:
    lines = [sample(task=t, doc=f"d{i}", repeat=r, why="correct") for t in ("aime", "gpqa") for i in range(40)
             for r in range(2)]  # fmt: skip
    lines += [sample(doc=f"w{i}", why="wrong") for i in range(3)] + [sample(doc="u", why="unparsed", text="y" * 5000)]
    random.Random(1).shuffle(lines)
    picked = {}
    for turn in range(2):
        found = summarize(lines, ["gpqa", "aime"], most=20, characters=4000)
        picked[turn] = [(lines[i - 1]["task"], lines[i - 1]["doc_id"], lines[i - 1]["repeat"]) for i in found.chosen]
        random.Random(2).shuffle(lines)
    assert picked[0] == picked[1] and len(picked[0]) == 20
    assert [key[0] for key in picked[0]] == ["gpqa"] * 10 + ["aime"] * 10
    assert {"u", "w0", "w1", "w2"} <= {key[1] for key in picked[0]}
    assert {key[2] for key in picked[0]} == {0} and found.cut == 1 and 2000 <= found.cap < 4000


def test_memory_stays_flat() -> None:
    """20,000 samples of 2,000 characters: a few hundred places are kept."""

    def stream():
        for i in range(20_000):
            yield sample(doc=f"doc-{i}", why=("correct", "wrong", "unparsed")[i % 3], tokens=i % 3000, text="x" * 2000)

    tracemalloc.start()
    found = summarize(stream(), ["aime"], most=200)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.total == 20_000 and len(found.chosen) == 200 and peak < 3e6


def test_natural_order_takes_any_id() -> None:
    ids = ["", "2022-I-10", "2022-I-9", "²3", "rec1", 7, "x" * 5, "9" * 5000]
    assert sorted(ids, key=natural).index("2022-I-9") < sorted(ids, key=natural).index("2022-I-10")


def write_trace(path, tokens, policy=None):
    policy = {"name": "reset", "tau_0": 0.5, "t_low": 0.1, **(policy or {})}
    keys = ("text", "entropy", "boundary", "uncertain", "temperature")
    lines = [{"trace": 1, "policy": policy, "model": "m", "seed": 0}]
    lines += [{"request": "aime/1/0", "t": t, **dict(zip(keys, token, strict=True))} for t, token in enumerate(tokens)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_steps_of_a_trace(tmp_path) -> None:
    tokens = [("a", 1.0, True, False, 1.0), (".\n\n", 0.5, False, False, 0.1), ("b", 0.25, True, True, 0.1)]
    found = read_steps(write_trace(tmp_path / "t", tokens))
    assert found is not None and found.request == "aime/1/0" and found.header["policy"]["tau_0"] == 0.5
    assert found.steps == [Step(2, 0.75, 0, 1, "a.\n\n"), Step(1, 0.25, 1, 1, "b")]


@pytest.mark.parametrize(
    ("texts", "starts"),
    [
        (["a", ".\n\n", "b"], [0, 2]),
        (["a", ".\n", "\n", "b"], [0, 3]),
        (["a\r\n", "\r", "\n", "b"], [0, 3]),
        (["\n", "\n", "\n", "x"], [0, 2, 3]),
        (["x\n", "y\n", " \n"], [0]),
    ],
)
def test_steps_by_text_where_the_policy_knows_none(tmp_path, texts, starts) -> None:
    tokens = [(text, 1.0, None, None, 0.6) for text in texts]
    found = read_steps(write_trace(tmp_path / "t", tokens, {"name": "fixed", "tau_0": None, "t_low": None}))
    lengths = [b - a for a, b in zip(starts, [*starts[1:], len(texts)], strict=True)]
    assert found is not None and [s.tokens for s in found.steps] == lengths and found.steps[0].cooled is None


@pytest.mark.parametrize(
    ("entropy", "tau_0"),
    [
        (math.nan, 0.5),
        (math.inf, 0.5),
        pytest.param(10**400, 0.5, id="huge"),
        ("1", 0.5),
        ([], 0.5),
        (1.0, "x"),
        (1.0, math.nan),
        (1.0, {}),
    ],
)
def test_traces_whose_numbers_are_none(tmp_path, entropy, tau_0) -> None:
    path = write_trace(tmp_path / "t", [("a", entropy, True, False, 1.0)], {"tau_0": tau_0})
    with pytest.raises(ResetError, match="is not a trace"):
        read_steps(path)


def test_traces_that_tell_nothing(tmp_path) -> None:
    assert read_steps(write_trace(tmp_path / "t", [])) is None
    assert read_steps(write_trace(tmp_path / "t", [("a", None, None, None, None)])) is None
    for text in ("", "{}\n", "not JSON\n", '{"trace": 1, "policy": {}}\n'):
        (tmp_path / "t").write_text(text)
        with pytest.raises(ResetError, match="is not a trace"):
            read_steps(tmp_path / "t")


@given(st.dictionaries(st.tuples(st.sampled_from(["correct", "wrong"]), st.integers(0, 40000)), st.integers(1, 9)))
def test_the_histogram_shows_every_sample(counts) -> None:
    drawn = figures.lengths(counts, None)
    shown = [int(n) for title in re.findall("<title>(.*?)</title>", drawn) for n in re.findall(r"(\d+) [cw]", title)]
    assert sum(shown) == sum(counts.values()) and len(re.findall("<g>", drawn)) <= figures.BINS + 1
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"/>', drawn)]
    assert all(0 < h <= figures.INNER_HEIGHT for h in heights)


def test_many_steps_are_joined_by_tokens() -> None:
    steps = [Step(1, 1.0, 0, 1, ""), Step(3, 2.0, 3, 0, "")] * 300
    drawn, joined = figures.entropies(steps, 0.5)
    assert joined == 3 and drawn.count("<g>") == 200 and "steps 0 to 2: 5 tokens, mean 1.6000 nats, 2 at T_low" in drawn
    assert "tau_0 0.5" in drawn


def test_what_comes_from_outside_is_escaped() -> None:
    assert page.safe("<script>&\"'") == "&lt;script&gt;&amp;&quot;&#x27;"
    assert page.safe("a\x00b\x1b\n\u202e\ud800") == "a\u2400b\u241b\n[U+202E]?"
    assert page.safe("\x85\x9b\u061c\u200f\xa0") == "[U+0085][U+009B][U+061C][U+200F]\xa0"
    drawn, _ = figures.entropies([Step(1, 1.0, 0, 1, "<b>\u202e\x07\ud800")], 0.5)
    assert "&lt;b&gt;[U+202E]\u2407?" in drawn


def test_long_texts_lose_their_middle() -> None:
    text = "A" * 3000 + "B" * 3000
    cut = page._cut(text, 1000, "line 7 of samples.jsonl.gz")
    assert cut.startswith("A" * 500 + "<span") and cut.endswith("</span>" + "B" * 500)
    assert "5000 characters left out; line 7 of samples.jsonl.gz has them" in cut and page._cut(text, 6000, "") == text
