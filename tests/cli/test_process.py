"""Ctrl-C once, twice, in a destructor, while importing: one line, exit code 130, and the clean-up undisturbed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from cli_process import environment
from halting import interrupt

from resetcli.cli import process
from resetcli.cli.main import main


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_only_the_first_interrupts() -> None:
    cleaned = []
    with pytest.raises(KeyboardInterrupt), process.interrupts():
        try:
            ctrl_c()
        finally:
            for _ in range(5):
                ctrl_c()
            cleaned.append(process.interrupted())
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "afterwards all is as it was"


def test_a_later_one_interrupts_again(monkeypatch) -> None:
    monkeypatch.setattr(process, "PATIENCE", 0.0)
    with process.interrupts():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                ctrl_c()


class Unlucky:
    def __del__(self) -> None:
        ctrl_c()


def test_an_interruption_lost_in_a_destructor_comes_again(capfd) -> None:
    with pytest.raises(KeyboardInterrupt), process.interrupts():
        Unlucky()
        time.sleep(10)
    assert capfd.readouterr().err == ""


def test_ignored_stays_ignored() -> None:
    """As in a job that a script put into the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with process.interrupts():
            ctrl_c()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_error_made_of_an_interruption_is_one(monkeypatch, capfd) -> None:
    """Libraries turn a KeyboardInterrupt into errors of their own."""

    def resolve(*_: object, **__: object) -> None:
        try:
            ctrl_c()
        except KeyboardInterrupt as exc:
            raise ImportError("initialization failed") from exc

    monkeypatch.setattr("resetcli.quantization.last.resolve_checkpoint", resolve)
    assert main(["inspect"]) == 130
    assert capfd.readouterr() == ("", "error: interrupted\n")


STARTING = {
    "the guard": "resetcli.cli.process:open_streams",
    "importing the options": "typer:Option",
    "importing the commands": "typer:Typer.command",
    "parsing": "resetcli.cli.app:execute",
    "before the streams are set": "resetcli.cli.output:_keep_stdout",
    "looking for the model": "resetcli.models.resolve:resolve_model",
}


@pytest.mark.parametrize("place", STARTING.values(), ids=list(STARTING))
def test_interrupted_while_starting(halted, tmp_path, place) -> None:
    out, err = interrupt(halted(("inspect", "nowhere/at/all", "--json"), tmp_path, place))
    assert (out, err) == ("", "error: interrupted\n")


def test_interrupted_at_the_end(tmp_path) -> None:
    """The result is out and its code stands: nothing is left to interrupt, and no traceback on the way."""
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from resetcli.cli.main import run\n"
        "sys.argv = ['reset', '--version']; run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("resetcli ")
