"""An evaluation killed in the middle and resumed has the samples of an undisturbed one (CPU, float32).

    python examples/resume.py [CHECKPOINT]

Runs `reset eval` three times as a process of its own: once undisturbed, once with SIGKILL after the first sample, once
more to go on. Left out, CHECKPOINT is found as the command finds it. A minute or two on a CPU with the embedded model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def command(output: Path, arguments: list[str]) -> list[str]:
    """`reset eval` on four bundled problems, two at a time."""
    options = ["--limit", "4", "--max-new-tokens", "48", "--batch-size", "2", "--device", "cpu", "--quiet"]
    return [sys.executable, "-m", "resetcli", "eval", *arguments, "--tasks", "own", *options, "-o", str(output)]


def samples(folder: Path) -> list[dict]:
    """The run's samples, in the order of documents rather than of finishing."""
    lines = (folder / "samples.jsonl").read_bytes().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return sorted(whole, key=lambda sample: (sample["doc_id"], sample["repeat"]))


def main(arguments: list[str]) -> bool:
    """Whether samples, and results but for their timing, are equal."""
    with tempfile.TemporaryDirectory() as work:
        whole, cut = Path(work) / "whole", Path(work) / "cut"
        subprocess.run(command(whole, arguments), check=True)

        process = subprocess.Popen(command(cut, arguments), stdout=subprocess.DEVNULL)
        file = cut / "samples.jsonl"
        while process.poll() is None and not (file.exists() and b"\n" in file.read_bytes()):
            time.sleep(0.02)
        process.kill()
        process.wait()
        print(f"killed with {len(samples(cut))} of 4 samples on the disk")
        subprocess.run(command(cut, arguments), check=True)

        first, second = (json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in (whole, cut))
        del first["timing"], second["timing"]
        equal = samples(whole) == samples(cut) and first == second
        print("equal samples and results" if equal else "samples or results differ")
    return equal


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
