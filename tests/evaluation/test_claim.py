"""The lock of a run's folder, and taking back what was made for a run of which nothing came."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from resetcli.base.errors import ResetError
from resetcli.evaluation.claim import LOCK, Claim
from resetcli.evaluation.runs import RunFolder


def test_undo_removes_what_the_claim_made_only(tmp_path) -> None:
    claim = Claim(tmp_path / "a/b/run")
    assert (tmp_path / "a/b/run" / LOCK).is_file()
    claim.release(undo=True)
    claim.release(undo=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    Claim(tmp_path / "mine/run").release(undo=False)
    assert (tmp_path / "mine/run" / LOCK).is_file()
    Claim(tmp_path / "mine/run").release(undo=True)
    assert (tmp_path / "mine/run" / LOCK).is_file(), "an older call's"
    claim = Claim(tmp_path / "other/run")
    (tmp_path / "other/theirs").touch()
    claim.release(undo=True)
    assert os.listdir(tmp_path / "other") == ["theirs"]


def test_one_holder(tmp_path) -> None:
    claim = Claim(tmp_path / "run")
    with pytest.raises(ResetError, match="is being written by another process"):
        Claim(tmp_path / "run")
    claim.release(undo=True)
    Claim(tmp_path / "run").release(undo=True)


def test_a_lock_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch) -> None:
    """The file opened is no longer the folder's when its holder has gone: nobody may rely on it."""
    import fcntl

    first, real, handles = Claim(tmp_path / "run"), fcntl.flock, []

    def flock(handle, how):
        handles.append(handle)
        if len(handles) == 1:
            first.release(undo=True)
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    second = Claim(tmp_path / "run")
    assert len(handles) == 2
    monkeypatch.undo()
    with pytest.raises(ResetError, match="another process"):
        Claim(tmp_path / "run")
    second.release(undo=True)


def test_folders_removed_meanwhile_are_made_anew(tmp_path, monkeypatch) -> None:
    """By a call that takes its own back; where it never works, the error says what is wrong."""
    plain, calls = Path.mkdir, []

    def mkdir(self, *args, **more):
        calls.append(self)
        if len(calls) < often:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        plain(self, *args, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    often = 3
    Claim(tmp_path / "a/run").release(undo=True)
    assert len(calls) >= 3 and not list(tmp_path.iterdir())
    often = 10**6
    with pytest.raises(ResetError, match="cannot write .* No such file"):
        Claim(tmp_path / "a/run")


@pytest.mark.parametrize("name", ["loop", "x" * 300, "file", "file/run"])
def test_places_that_cannot_be(tmp_path, name) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ResetError, match=r"^(output|cannot) "):
        RunFolder(tmp_path / name, {})
    assert sorted(os.listdir(tmp_path)) == before
