"""What a killed process leaves is removed by the next one with the same target; what lives never is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resetcli.base.files import MARKER, whole_directory
from resetcli.base.leftovers import OWNER, claim, remove_abandoned, started

HOLDER = """
import sys, time
from pathlib import Path
from resetcli.base.files import whole_directory
with whole_directory(Path(sys.argv[1])) as scratch:
    (scratch / "weights").write_bytes(bytes(1000))
    print(scratch, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Processes in the middle of writing a target: ``holder("out") -> (process, its scratch folder)``."""
    running = []

    def begin(name: str) -> tuple[subprocess.Popen, Path]:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / name], stdout=subprocess.PIPE, text=True)
        running.append(process)
        return process, Path(process.stdout.readline().strip())

    yield begin
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def write(path: Path) -> None:
    with whole_directory(path) as scratch:
        (scratch / "w").touch()


def test_a_killed_process_is_cleaned_up_after(holder, tmp_path):
    process, scratch = holder("out")
    assert scratch.is_dir() and json.loads((scratch / OWNER).read_text())["pid"] == process.pid
    process.kill()
    process.wait()
    assert scratch.is_dir(), "a kill leaves the scratch folder"
    write(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [MARKER, "w"], "the owner file does not stay"


def test_a_live_process_keeps_its_folder(holder, tmp_path):
    process, scratch = holder("out")
    write(tmp_path / "out")
    assert (scratch / "weights").is_file()
    process.send_signal(signal.SIGINT)
    process.wait()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_stopped_process_lives(holder, tmp_path):
    process, scratch = holder("out")
    process.send_signal(signal.SIGSTOP)
    assert remove_abandoned(tmp_path / "out", ".out.partial-") == [] and scratch.is_dir()


def test_another_targets_leftover_stays(holder, tmp_path):
    """The scratch folder of "out.partial-2" begins like one of "out"."""
    process, scratch = holder("out.partial-2")
    process.kill()
    process.wait()
    write(tmp_path / "out")
    assert scratch.is_dir()
    write(tmp_path / "out.partial-2")
    assert not scratch.exists()


def leftover(tmp_path: Path, **changes: object) -> Path:
    """A folder of a process that is gone, its owner file changed."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    folder = tmp_path / ".out.partial-x"
    folder.mkdir()
    os.close(claim(folder, tmp_path / "out"))
    owner = json.loads((folder / OWNER).read_text()) | {"pid": child.pid, "started": 1} | changes
    (folder / OWNER).write_text(json.dumps(owner))
    return folder


def test_a_process_id_used_again_is_another_process(tmp_path):
    folder = leftover(tmp_path, pid=os.getpid(), started=started(os.getpid()) - 1)
    assert remove_abandoned(tmp_path / "out", ".out.partial-") == [folder]


def test_a_leftover_from_before_a_reboot_goes(tmp_path):
    folder = leftover(tmp_path, boot="another", pid=os.getpid(), started=started(os.getpid()))
    assert remove_abandoned(tmp_path / "out", ".out.partial-") == [folder] and not folder.exists()


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"target": "other"}, {"pid": None}, {"pid": "x"}])
def test_what_cannot_be_told_stays(tmp_path, changes):
    folder = leftover(tmp_path, **changes)
    assert remove_abandoned(tmp_path / "out", ".out.partial-") == [] and folder.is_dir()


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_without_a_readable_owner_it_stays(tmp_path, text):
    folder = leftover(tmp_path)
    (folder / OWNER).unlink()
    if text is not None:
        (folder / OWNER).write_text(text)
    assert remove_abandoned(tmp_path / "out", ".out.partial-") == [] and folder.is_dir()


def test_a_held_lock_means_alive_whatever_the_process_table_says(tmp_path):
    """As with a process in another container, whose id means nothing here."""
    folder = leftover(tmp_path)
    text = (folder / OWNER).read_bytes()
    (folder / OWNER).unlink()
    handle = claim(folder, tmp_path / "out")
    try:
        (folder / OWNER).write_bytes(text)
        assert remove_abandoned(tmp_path / "out", ".out.partial-") == [] and folder.is_dir()
    finally:
        os.close(handle)
    assert remove_abandoned(tmp_path / "out", ".out.partial-") == [folder]


def test_start_time():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert started(child.pid) >= started(os.getpid()) > 0
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert started(child.pid) is None, "a zombie has no more work to lose"
    child.communicate()
    assert started(child.pid) is None
