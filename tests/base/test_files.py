"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import json

import pytest

from resetcli.base.errors import ResetError, UsageError, unknown_name
from resetcli.base.files import MARKER, read_json, sha256_file, whole_directory, write_json, write_text


def test_write_replaces_and_leaves_no_scratch(tmp_path):
    target = tmp_path / "a" / "x.json"
    write_json(target, {"ä": 1})
    write_json(target, {"ä": 2})
    assert read_json(target) == {"ä": 2}
    assert [p.name for p in target.parent.iterdir()] == ["x.json"]


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path):
    target = tmp_path / "x.json"
    write_json(target, [1])
    with pytest.raises(ValueError):
        write_json(target, [float("nan")])
    assert json.loads(target.read_text()) == [1]


def test_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResetError, match="cannot write .*file/x.*choose another folder"):
        write_text(tmp_path / "file" / "x", "y")


def test_bad_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ResetError, match="x.json is not valid JSON"):
        read_json(tmp_path / "x.json")
    with pytest.raises(ResetError, match="cannot read .*missing"):
        read_json(tmp_path / "missing")


def test_directory_appears_whole(tmp_path):
    out = tmp_path / "out"
    with whole_directory(out) as scratch:
        (scratch / "w").write_text("1")
        assert not out.exists()
    assert (out / "w").read_text() == "1" and (out / MARKER).exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [ResetError("no"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_directory_vanishes_on_any_failure(tmp_path, error):
    with pytest.raises((ResetError, KeyboardInterrupt)), whole_directory(tmp_path / "out") as scratch:
        (scratch / "w").write_text("1")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_only_what_we_made(tmp_path):
    out = tmp_path / "out"
    with whole_directory(out) as scratch:
        (scratch / "old").touch()
    with pytest.raises(ResetError, match="not empty.*--overwrite"), whole_directory(out):
        pass
    with pytest.raises(KeyboardInterrupt), whole_directory(out, overwrite=True):
        raise KeyboardInterrupt
    assert (out / "old").exists()
    with whole_directory(out, overwrite=True) as scratch:
        (scratch / "new").touch()
    assert sorted(p.name for p in out.iterdir()) == [MARKER, "new"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    with pytest.raises(ResetError, match="not made by resetcli"), whole_directory(foreign, overwrite=True):
        pass
    assert (foreign / "thesis.tex").exists()


def test_sha256(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_file(tmp_path / "x").startswith("ba7816bf8f01cfea")


def test_errors_are_one_line_and_suggest():
    assert str(ResetError("a\n  b")) == "a b"
    error = unknown_name("task", "aimee", ["aime", "gpqa"])
    assert isinstance(error, UsageError) and error.exit_code == 2
    assert str(error) == "unknown task 'aimee': did you mean aime? (known: aime, gpqa)"
