"""The command line as a fixture."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli_process import Ran, command, environment
from halting import halted_processes


@pytest.fixture
def reset(tmp_path, monkeypatch):
    """Run ``reset ARGS`` in an empty folder: ``reset("eval", "--tasks", "aime", stdin="", env={...}) -> Ran``."""

    def run(*args: object, stdin: str | bytes = b"", env: dict[str, str] | None = None, cwd: Path = tmp_path) -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            command(*args), input=data, capture_output=True, env=environment(**(env or {})), cwd=cwd, timeout=280
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def halted(tmp_path_factory):
    """``halted(args, cwd, "module:function", n, part of a path)``: the command's process, stopped at that call."""
    yield from halted_processes(tmp_path_factory.mktemp("hook"))
