"""What a bench's document says of the machine and the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from resetcli.cuda import machine


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_looking_up_the_commit_leaves_the_checkout_alone(tmp_path, monkeypatch):
    """git writes its index anew when a file's time changed; broken off (a full disk), that leaves a lock behind."""

    def git(*arguments: str) -> str:
        settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        ran = subprocess.run(["git", *settings, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return ran.stdout.strip()

    git("init", "-q")
    tracked = tmp_path / "tracked"
    tracked.write_text("1")
    git("add", "tracked")
    git("commit", "-q", "-m", "first")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "src" / "resetcli" / "cuda" / "machine.py"))
    os.utime(tracked, (1, 1))  # another time, the same content
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    assert machine.commit() == git("rev-parse", "HEAD")
    assert index.read_bytes() == before
    tracked.write_text("2")
    assert machine.commit() == git("rev-parse", "HEAD") + "-dirty"
    shutil.rmtree(tmp_path / ".git")
    assert machine.commit() is None
