"""Lines of samples.jsonl: damage of every kind is one error with file and line, before anything else happens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.base.errors import ResetError
from resetcli.base.seeds import sample_seed
from resetcli.evaluation.samples import SAMPLE_KEYS, TYPES, Asked, parse_sample, read_lines

GOOD = dict(
    zip(
        SAMPLE_KEYS,
        ("aime", "a", 1, sample_seed(3, "aime", "a", 1), "0" * 64, "x", 3, "stop", None, "7", 0, "unparsed", "Q?"),
        strict=True,
    )
)
ASKED = Asked({"aime": {"a": "7", "b": "8"}, "wikitext": {"0": None}}, {"aime": 2, "wikitext": 1},
              frozenset({"aime"}), 3)  # fmt: skip


def parsed(**change):
    return parse_sample(json.dumps({**GOOD, **change}).encode(), Path("s.jsonl"), 4)


def test_a_good_line() -> None:
    assert parsed() == GOOD and ASKED.fault(GOOD) is None and len(ASKED) == 5


@pytest.mark.parametrize(
    "change",
    [{"task": 1}, {"doc_id": ["a"]}, {"doc_id": True}, {"repeat": "x"}, {"repeat": -1}, {"repeat": 0.0},
     {"repeat": True}, {"seed": 2**63}, {"seed": None}, {"prompt_sha256": "0"}, {"text": None}, {"n_tokens": None},
     {"n_tokens": 2**63}, {"repeat": 2**64}, {"score": 10**400}, {"score": -(10**400)},
     {"finish_reason": "zzz"}, {"finish_reason": []}, {"answer": 7}, {"target": 7}, {"score": "1"},
     {"score": math.nan}, {"score": True}, {"why": "maybe"}, {"why": {}}],
)  # fmt: skip
def test_a_wrong_type_is_named(change) -> None:
    (key,) = change
    with pytest.raises(ResetError, match=rf'^s\.jsonl, line 4: "{key}" must be .*, not .*; restore') as error:
        parsed(**change)
    str(error.value).encode("ascii")


@given(st.sampled_from(SAMPLE_KEYS), st.none() | st.booleans() | st.integers() | st.floats() | st.text()
       | st.lists(st.integers(), max_size=2) | st.dictionaries(st.text(), st.integers(), max_size=1))  # fmt: skip
def test_any_value_is_taken_or_refused_in_a_line(key, value) -> None:
    try:
        assert TYPES[key][0](parsed(**{key: value})[key])
    except ResetError as error:
        assert str(error).startswith(f's.jsonl, line 4: "{key}" must be')


@pytest.mark.parametrize("line", [b"[" * 100000, b"1" * 5000, b"\xff", b"{}", b"null", b"\x00" * 8])
def test_what_is_no_sample(line) -> None:
    with pytest.raises(ResetError, match="^s.jsonl, line 4 is not "):
        parse_sample(line, Path("s.jsonl"), 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "zzz"}, 'task "zzz" is not of this run (aime, wikitext)'),
        ({"task": "\ud800"}, 'task "\\ud800"'),
        ({"doc_id": "z"}, 'this run asks for no document "z" of task aime'),
        ({"doc_id": 0}, "this run asks for no document 0 of task aime"),
        ({"repeat": 2}, "repeat 2 is beyond the 2 of this run"),
        ({"seed": 5}, f"seed 5 is not that of the sample in this run ({GOOD['seed']})"),
        ({"target": "9"}, 'target "9" is not that of document a of task aime'),
        ({"score": 0.5}, "score 0.5 (unparsed) is not one of task aime"),
    ],
)
def test_samples_of_another_run(change, message) -> None:
    assert message in (ASKED.fault(parsed(**change)) or "")


def test_no_file_to_read(tmp_path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(ResetError, match="is not a file; remove it"):
        list(read_lines(tmp_path / "d"))
    with pytest.raises(ResetError, match="cannot read"):
        list(read_lines(tmp_path / "gone"))
