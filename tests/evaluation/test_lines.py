"""Files of lines, plain and gzip: every cut, tails of zeros, damage."""

from __future__ import annotations

import gzip
import itertools
import os
import tracemalloc

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


def test_members_of_many_lines_come_as_they_are_unpacked(tmp_path) -> None:
    """As the gzip command makes them: what is in memory is a piece, not the file."""
    path, line = tmp_path / "s.jsonl.gz", b"x" * 999 + b"\n"
    path.write_bytes(gzip.compress(line * 64000, 1) + gzip.compress(b"") + gzip.compress(b"a\r\n\n\nb"))
    tracemalloc.start()
    count = sum(found[1] == line for found in itertools.islice(whole_lines(path), 64000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 64000 and peak < 8 << 20
    assert [found for _, found, _ in whole_lines(path)][64000:] == [b"a\r\n", b"\n", b"\n", b"b\n"]


@pytest.mark.parametrize("torn", [False, True])
def test_a_member_of_many_lines_that_was_cut_off_is_an_error(tmp_path, torn) -> None:
    """Lines would be lost that were whole: nobody may go on as if the file had ended there."""
    path = tmp_path / "s.jsonl.gz"
    first, second = gzip.compress(b"one\n"), gzip.compress(b"two\nthree\n" + b"".join(LINES) * 9)
    flipped = bytearray(second)
    flipped[30] ^= 255
    for data, end in ((second[:-12], 0), (second[: len(second) // 2], 0), (first + second[:-50], len(first)),
                      (first + second[:-50] + bytes(99), len(first)), (flipped, 0)):  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(ResetError, match=f"cut off or damaged after byte {end}" if torn else f"at byte {end};"):
            list(whole_lines(path, torn=torn))


def test_a_torn_member_of_one_line_is_left_out_of_a_run_only(tmp_path) -> None:
    path = tmp_path / "s.jsonl.gz"
    data = written(path)
    path.write_bytes(data[:-9])
    assert [line for _, line, _ in whole_lines(path)] == LINES[:-1]
    with pytest.raises(ResetError, match="is cut off or damaged after byte"):
        list(whole_lines(path, torn=True))
    path.write_bytes(data + bytes(300))  # padding, as some media add
    assert [line for _, line, _ in whole_lines(path, torn=True)] == LINES


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
