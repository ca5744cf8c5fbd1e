"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resetcli.base.errors import ResetError, UsageError, unknown_name
from resetcli.base.files import MARKER, check_output, read_json, sha256_file, whole_directory, write_json, write_text


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


def fill(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "precious").write_text(text)


def test_what_appears_meanwhile_is_left_alone_and_the_work_is_kept(tmp_path):
    out = tmp_path / "out"
    for number in (1, 2):
        where = re.escape(str(tmp_path / f"out.finished-{number}"))
        with pytest.raises(ResetError, match=f"out was made by somebody else .*result is {where}$"):  # noqa: SIM117
            with whole_directory(out) as scratch:
                (scratch / "w").write_text(str(number))
                fill(out, "mine")
        assert [p.name for p in out.iterdir()] == ["precious"]
        assert (tmp_path / f"out.finished-{number}" / "w").read_text() == str(number)
        assert (tmp_path / f"out.finished-{number}" / MARKER).exists()
        (out / "precious").unlink()
    with pytest.raises(ResetError, match="out was made by somebody else"), whole_directory(out):
        out.rmdir()
        out.write_text("a file")
    assert out.read_text() == "a file"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_two_at_the_same_target_lose_nothing(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ResetError, match="the finished result is"), whole_directory(out) as slow:
        (slow / "w").write_text("slow")
        with whole_directory(out) as quick:
            (quick / "w").write_text("quick")
    assert (out / "w").read_text() == "quick" and (tmp_path / "out.finished-1" / "w").read_text() == "slow"


@pytest.mark.parametrize("change", ["added", "edited", "deeper", "another"])
def test_overwrite_is_for_what_was_there_at_the_start(tmp_path, change):
    out = tmp_path / "out"
    with whole_directory(out) as scratch:
        fill(scratch, "first")
        fill(scratch / "sub", "first")
    with pytest.raises(ResetError, match="out changed while the work ran"):  # noqa: SIM117
        with whole_directory(out, overwrite=True) as scratch:
            (scratch / "w").write_text("new")
            if change == "another":
                out.rename(tmp_path / "away")
                with whole_directory(out) as other:
                    fill(other, "first")
            else:
                name = {"added": "more", "edited": "precious", "deeper": "sub/precious"}[change]
                (out / name).write_text("changed")
    kept = "first" if change == "another" else "changed"
    assert kept in [p.read_text() for p in out.rglob("*") if p.is_file()]
    assert (tmp_path / "out.finished-1" / "w").read_text() == "new"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_the_old_tree_comes_back_if_the_last_rename_fails(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with whole_directory(out) as scratch:
        fill(scratch, "first")
    rename = os.rename

    def failing(source, target):
        if Path(target) == out and ".partial-" in str(source):
            raise OSError(errno.EBUSY, "Device or resource busy")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(ResetError, match="cannot write .*out: Device or resource busy; the finished result is"):  # noqa: SIM117
        with whole_directory(out, overwrite=True) as scratch:
            fill(scratch, "second")
    assert (out / "precious").read_text() == "first"
    assert (tmp_path / "out.finished-1" / "precious").read_text() == "second"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "disk" / "big").mkdir(parents=True)
    link = tmp_path / "out"
    link.symlink_to("disk/big")
    for overwrite in (False, True):
        with whole_directory(link, overwrite=overwrite) as scratch:
            assert scratch.parent == tmp_path / "disk", "scratch is on the target's file system"
            (scratch / "w").write_text(str(overwrite))
        assert link.is_symlink() and (tmp_path / "disk" / "big" / "w").read_text() == str(overwrite)
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["big"]


@pytest.mark.parametrize(
    ("target", "why"), [("nowhere", "a link to nowhere, which is not there"), ("out", "leads in a circle")]
)
def test_a_link_that_leads_nowhere_is_refused_first(tmp_path, target, why):
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(ResetError, match=why), whole_directory(tmp_path / "out"):
        pytest.fail("the work began")
    with pytest.raises(ResetError, match=why):
        check_output(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").is_symlink() and len(list(tmp_path.iterdir())) == 1


def test_a_name_too_long_is_named(tmp_path):
    with pytest.raises(ResetError, match=r"output .*\.\.\.a+ cannot be used: File name too long"):
        check_output(tmp_path / ("a" * 300), overwrite=False)


def test_sha256(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_file(tmp_path / "x").startswith("ba7816bf8f01cfea")


def test_errors_are_one_line_and_suggest():
    assert str(ResetError("a\n  b")) == "a b"
    error = unknown_name("task", "aimee", ["aime", "gpqa"])
    assert isinstance(error, UsageError) and error.exit_code == 2
    assert str(error) == "unknown task 'aimee': did you mean aime? (known: aime, gpqa)"


@pytest.mark.parametrize("finished", [True, False])
def test_a_kill_between_the_two_renames_is_made_good(tmp_path, finished):
    """The old tree is aside as the process dies: the next call puts the finished tree in its place, or the old one."""
    script = f"""
import os, signal
from pathlib import Path
from resetcli.base import files
rename, path = os.rename, Path({str(tmp_path / "out")!r})
with files.whole_directory(path) as scratch:
    (scratch / "old").write_text("x")
def die(a, b):
    rename(a, b)
    if Path(a) == path:
        os.kill(os.getpid(), signal.SIGKILL)
os.rename = die
with files.whole_directory(path, overwrite=True) as scratch:
    (scratch / "new").write_text("x")
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    if not finished:
        [scratch] = tmp_path.glob(".out.partial-*")
        shutil.rmtree(scratch)
    with pytest.raises(ResetError, match="is not empty"), whole_directory(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / ("new" if finished else "old")).exists()
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_trees_of_other_targets_are_left_alone(tmp_path):
    """Names that begin alike, or are cut to the same: nothing is taken for the target's own."""
    long = "n" * 70
    for name in (".out.old-1.old-abcdefgh", f".{long[:60]}.old-abcdefgh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).touch()
    for target in ("out", long):
        with whole_directory(tmp_path / target) as scratch:
            (scratch / "mine").touch()
        assert (tmp_path / target / "mine").exists()
    assert len(list(tmp_path.glob(".*.old-abcdefgh"))) == 2
