"""Choosing T_low: paired seeds, ties to the lowest, held-out problems disjoint from tau_0's."""

from __future__ import annotations

import pytest
from calibration_double import NumpyEngine, problem_set

from resetcli.base.errors import ResetError, UsageError
from resetcli.calibration.t_low import held_out, parse_t_lows, select_t_low
from resetcli.policy.settings import PolicySettings

RESET = PolicySettings(tau_0=0.5)


def choose(score, candidates=(0.1, 0.2, 0.3), repeats=2, engine=None):
    return select_t_low(engine or NumpyEngine(), ["a", "b"], ["1", "2"], candidates, task="aime", settings=RESET,
                        score=score, repeats=repeats)  # fmt: skip


def test_best_average_wins() -> None:
    """The double's text begins with the T_low in use, so the scorer can prefer one."""
    choice = choose(lambda text, target, finish: float(text.startswith("0.2") and target == "1"))
    assert choice.t_low == 0.2 and choice.scores == {0.1: 0.0, 0.2: 0.5, 0.3: 0.0}
    assert choice.to_json() == {"task": "aime", "t_low": 0.2, "avg@k": {"0.1": 0.0, "0.2": 0.5, "0.3": 0.0},
                                "problems": 2, "repeats": 2}  # fmt: skip


def test_ties_go_to_the_lowest() -> None:
    assert choose(lambda *_: 1.0, candidates=(0.4, 0.3, 0.2)).t_low == 0.2
    assert choose(lambda text, *_: float(not text.startswith("0.1"))).t_low == 0.2


def test_candidates_share_their_seeds_and_differ_in_t_low_only() -> None:
    engine = NumpyEngine()
    choose(lambda *_: 0.0, engine=engine)
    keys = [[request.seed for request in requests] for requests, _ in engine.calls]
    assert keys[0] == keys[1] == keys[2] and len(set(keys[0])) == 4
    assert [settings.t_low for _, settings in engine.calls] == [0.1, 0.2, 0.3]
    assert {(settings.name, settings.tau_0) for _, settings in engine.calls} == {("reset", 0.5)}


def test_held_out_is_disjoint_and_answered() -> None:
    """Rule: the n first problems are loaded, more when some of them have no answer, and an end is an error."""
    asked: list[int] = []

    def load(n: int):
        asked.append(n)
        if n > 8:
            raise UsageError(f"--problems asks for {n}, but the sample has 8")
        pool = problem_set(n)
        pool.answers = [None if i == 3 else answer for i, answer in enumerate(pool.answers)]
        return pool

    assert held_out(load, ["id-0", "id-2"], 3) == (["problem 1", "problem 4", "problem 5"], ["1", "4", "5"])
    assert asked == [5, 6]
    with pytest.raises(ResetError, match=r"needs 7 held-out problems .* the 2 of tau_0.*for 9, but the sample has 8"):
        held_out(load, ["id-0", "id-2"], 7)
    with pytest.raises(ResetError, match="needs 6 held-out problems"):
        held_out(load, ["id-0", "id-2"], 6)


@pytest.mark.parametrize(("text", "values"), [("0.1,0.2", [0.1, 0.2]), (" 0.3 , 0.1,", [0.1, 0.3]), ("0,0,2", [0, 2])])
def test_parse(text: str, values: list[float]) -> None:
    assert parse_t_lows(text) == values


@pytest.mark.parametrize("text", ["", ",", "abc", "0.1,abc", "-0.1", "nan", "2.5"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="--select-t-low"):
        parse_t_lows(text)


def test_a_failed_answer_and_a_refused_candidate() -> None:
    fault = ("1/0", {"finish_reason": "error", "error": "NaN logits at position 3"})
    with pytest.raises(ResetError, match=r"T_low 0.1, problem 1: NaN logits at position 3"):
        choose(lambda *_: 1.0, engine=NumpyEngine(fault=fault))
    with pytest.raises(UsageError, match="--t-low"):
        choose(lambda *_: 1.0, candidates=(0.1, 1.5))
