"""Published tests are decoded; whatever else a pickle, a zlib stream or a JSON text can be is refused in words."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import pickletools
import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.data import lcb_tests
from resetcli.data.lcb_tests import BadTests, Case, decode_cases, unpickle_text

ROWS = [{"input": "1\n2", "output": "3", "testtype": "stdin"}, {"input": "é", "output": "", "testtype": "stdin"}]
CASES = [Case("1\n2", "3", "stdin"), Case("é", "", "stdin")]


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def published(rows, protocol=None) -> str:
    return packed(pickle.dumps(json.dumps(rows), protocol))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_as_published_and_plain(protocol) -> None:
    assert decode_cases(published(ROWS, protocol)) == CASES == decode_cases(json.dumps(ROWS))
    assert decode_cases("[]") == [] == decode_cases(published([]))


def test_optimised_and_large_pickles() -> None:
    rows = [{"input": "x" * 300_000, "output": "y", "testtype": "stdin"}]
    text = packed(pickletools.optimize(pickle.dumps(json.dumps(rows))))
    assert decode_cases(text) == [Case("x" * 300_000, "y", "stdin")]


class Call:
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


MARK = "reset-pickle-ran"


@pytest.mark.parametrize(
    "hostile",
    [
        pickle.dumps(Call(os.mkdir, MARK)),
        pickle.dumps(Call(os.system, f"mkdir {MARK}"), 0),
        pickle.dumps(Call(eval, "1"), 2),
        pickle.dumps(Call),
        pickle.dumps(Call(print)),
        pickle.dumps([Call(os.mkdir, MARK)]),
        pickle.dumps({"a": Call(os.mkdir, MARK)}),
        b"cos\nsystem\n(S'mkdir x'\ntR.",
        b"(S'mkdir x'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02Vtext\n0cos\nmkdir\n.",
        b"\x82\x01.",
        b"Pid\n.",
        b"\x80\x02Q.",
    ],
)
def test_no_pickle_names_a_global(hostile, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadTests, match=r"global|is not of one text"):
        decode_cases(packed(hostile))
    assert list(tmp_path.iterdir()) == []


def test_the_unpickler_itself_finds_nothing() -> None:
    """Were the look at the opcodes to miss one, the second lock holds alone."""
    import io

    for data in (pickle.dumps(os.system), pickle.dumps(Call(os.mkdir, MARK)), b"cos\nsystem\n."):
        with pytest.raises(BadTests, match="names the global"):
            lcb_tests._NoGlobals(io.BytesIO(data)).load()
    with pytest.raises(BadTests, match="outside itself"):
        lcb_tests._NoGlobals(io.BytesIO(b"Pid\n.")).load()


@pytest.mark.parametrize(
    "data", [pickle.dumps(value) for value in (b"[]", 1, None, ["[]"], {"a": 1}, 1.5, True, ("[]",))]
)
def test_only_a_text_comes_out(data) -> None:
    with pytest.raises(BadTests, match=r"not of one text"):
        unpickle_text(data)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "cut off"),
        ("nonsense!", "neither"),
        ("e30=", "decompressed"),
        ("{}", "neither"),
        ("[1]", "test 1 is no JSON"),
        ("[", "not valid JSON"),
        (packed(b""), "pickle is damaged"),
        (packed(b"\x80\x04X\xff\xff\xff\x7fab."), "pickle is damaged"),
        (packed(b"\x80\x04\x8d" + b"\xff" * 8 + b"."), "pickle is damaged"),
        (packed(pickle.dumps("{}")), "no JSON list"),
        (packed(pickle.dumps("nope")), "not valid JSON"),
        (published(ROWS)[:-40] + "====", "neither|cut off|decompressed"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-6]).decode(), "cut off"),
        (json.dumps([{"input": 1, "output": "", "testtype": "stdin"}]), "no 'input'"),
        (json.dumps([{"input": "", "testtype": "stdin"}]), "no 'output'"),
        (json.dumps([{"input": "", "output": ""}]), "'testtype' null"),
        (json.dumps([{"input": "x", "output": "1", "testtype": "functional"}]), "not of JSON values"),
        (json.dumps([{"input": "1\n", "output": "1", "testtype": "functional"}]), "not of JSON values"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_bad_tests_are_named(text, words) -> None:
    with pytest.raises(BadTests, match=words):
        decode_cases(text)


def test_bombs_are_small() -> None:
    started = time.monotonic()
    with pytest.raises(BadTests, match="when decompressed"):
        decode_cases(packed(bytes(64 << 20)), largest=1 << 20)
    with pytest.raises(BadTests, match="over"):
        decode_cases(json.dumps(ROWS), largest=10)
    # A memo slot far out makes the unpickler allocate a table up to it, behind a crowd of harmless opcodes too.
    for far in (b"r\xff\xff\xff\x7f", b"p2147483647\n", b"q\x01" * 40 + b"r\xff\xff\xff\x7f"):
        with pytest.raises(BadTests, match="not of one text"):
            decode_cases(packed(b"\x80\x04\x8c\x01a" + far + b"."))
    assert time.monotonic() - started < 10


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_text_or_refused(data) -> None:
    for pickled in (data, b"\x80\x04" + data):
        with contextlib.suppress(BadTests):
            assert isinstance(unpickle_text(pickled), str)


@given(st.lists(st.tuples(st.text(), st.text()), max_size=4))
def test_round_trip(pairs) -> None:
    rows = [{"input": a, "output": b, "testtype": "stdin"} for a, b in pairs]
    assert decode_cases(published(rows)) == [Case(a, b, "stdin") for a, b in pairs] == decode_cases(json.dumps(rows))
