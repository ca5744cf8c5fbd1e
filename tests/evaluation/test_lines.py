"""Files of lines, plain and gzip: every cut, tails of zeros, damage."""

from __future__ import annotations

import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.base.errors import ResetError
from resetcli.evaluation.lines import append, encode_line, whole_lines

LINES = [
    b'{"a": 1}\n',
    "é \u2028 \U0001f600\n".encode(),
    b"x" * 5000 + b"\n",
    b"\n",
    os.urandom(70000).hex().encode() + b"\n",
]


def written(path):
    path.write_bytes(b"".join(encode_line(line, path) for line in LINES))
    return path.read_bytes()


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz"])
def test_every_cut_leaves_the_whole_lines(tmp_path, name) -> None:
    path = tmp_path / name
    data = written(path)
    ends = [end for _, _, end in whole_lines(path)]
    assert [line for _, line, _ in whole_lines(path)] == LINES and ends[-1] == len(data)
    near = {max(0, end + step) for end in (0, *ends) for step in range(-12, 13)}
    for cut in sorted(c for c in near if c <= len(data)):
        for tail in (b"", bytes(300)):
            path.write_bytes(data[:cut] + tail)
            found = list(whole_lines(path))
            # A member ends in zeros, its length's upper bytes, which a tail of zeros makes up for.
            whole = sum((data[:cut] + tail)[:end] == data[:end] for end in ends)
            assert [line for _, line, _ in found] == LINES[:whole], (cut, tail)
            assert [number for number, _, _ in found] == list(range(1, whole + 1))
            assert (found[-1][2] if found else 0) == (ends[whole - 1] if whole else 0)


def test_gzip_files_are_gzip_files(tmp_path) -> None:
    path = tmp_path / "s.jsonl.gz"
    assert written(path) == written(path)  # no clock in it
    assert gzip.decompress(path.read_bytes()) == b"".join(LINES)
    path.write_bytes(gzip.compress(b"".join(LINES)))  # one member, as the gzip command makes
    assert [line for _, line, _ in whole_lines(path)] == LINES


def test_what_is_no_gzip_file(tmp_path) -> None:
    path = tmp_path / "s.gz"
    path.write_bytes(b"plain text\n")
    with pytest.raises(ResetError, match="is damaged at byte 0"):
        list(whole_lines(path))


@given(st.binary(max_size=300), st.integers(0, 200), st.integers(1, 255))
def test_damage_is_seen(tmp_path_factory, text, place, flip) -> None:
    """A byte changed before the end is an error, or (in the header, or in the bits that fill up deflate's last byte)
    changes nothing."""
    path = tmp_path_factory.mktemp("d") / "s.gz"
    lines = [text.replace(b"\n", b"") + b"\n", b"second\n", b"third\n"]
    data = bytearray(b"".join(encode_line(line, path) for line in lines))
    place %= len(encode_line(lines[0], path))
    data[place] ^= flip
    path.write_bytes(bytes(data))
    try:
        found = [line for _, line, _ in whole_lines(path)]
    except ResetError as error:
        assert "is damaged at byte 0" in str(error)
    else:
        assert found == lines


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz"])
def test_append_goes_to_the_end(tmp_path, name) -> None:
    path = tmp_path / name
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for line in LINES:
        append(handle, encode_line(line, path))
    os.close(handle)
    assert [line for _, line, _ in whole_lines(path)] == LINES


def test_missing_and_folders(tmp_path) -> None:
    with pytest.raises(ResetError, match="cannot read"):
        list(whole_lines(tmp_path / "none"))
    with pytest.raises(ResetError, match="is not a file"):
        list(whole_lines(tmp_path))
