"""Options that several commands share: one name, one meaning, one help line each (design 1.1).

Plain annotations for Typer; ranges that need no model stand here, so a wrong number is refused before anything is
loaded. Nothing heavy is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes; warnings and errors only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Tracebacks, and the log lines of the libraries, on stderr.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Directory, GGUF file or hub id[@revision]; left out: RESET_MODEL, else the embedded model.",
        show_default=False,
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Checkpoint or BF16 model directory; left out: RESET_CHECKPOINT, else the one made last by `reset "
        "quantize` in this folder, else the embedded model's, made on the spot.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Where the result goes.", show_default=False),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a folder that resetcli itself made.")]

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="Local data files; the hub is not asked. Else RESET_DATA_DIR, else the hub."
    ),
]
GpqaPassword = Annotated[
    str | None,
    typer.Option(
        "--gpqa-password",
        metavar="TEXT",
        help="Opens the authors' GPQA archive in --data-dir; else RESET_GPQA_PASSWORD.",
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option("--tasks", metavar="A,B", help="Tasks or groups, separated by commas.", show_default=False),
]
LcbRelease = Annotated[
    str | None,
    typer.Option(
        "--lcb-release",
        metavar="NAME",
        show_default=False,
        help="Release of LiveCodeBench: release_v1 to release_v6, v6 (that part alone), v4_v6; left out: every local "
        "file, or release_v6 from the hub.",
    ),
]
LcbFrom = Annotated[
    str | None,
    typer.Option("--lcb-from", metavar="DATE", help="LiveCodeBench problems from this contest date on (2024-10-01)."),
]
LcbTo = Annotated[
    str | None,
    typer.Option("--lcb-to", metavar="DATE", help="LiveCodeBench problems to this contest date, included."),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code-execution",
        help="Run the programs that the model wrote, in a sandbox; livecodebench needs it.",
    ),
]
ListTasks = Annotated[bool, typer.Option("--list-tasks", help="Show the tasks and groups, and end.")]
DocIds = Annotated[
    str | None,
    typer.Option("--doc-ids", metavar="A,B", help="The documents of these ids only; the run is marked."),
]
Gzip = Annotated[bool, typer.Option("--gzip", help="Keep a new run's samples in samples.jsonl.gz.")]
MaxFailed = Annotated[
    float,
    typer.Option(
        "--max-failed",
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="Share of the samples that may be empty or lost to logits that are not finite; more end the run.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, metavar="N", help="The first N documents of each task only; the run is marked."),
]
Repeats = Annotated[int, typer.Option("--repeats", min=1, metavar="K", help="Samples of each document (avg@K).")]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        min=1,
        metavar="N",
        help="Limit of an answer; left out: 32768 or what the context leaves, less for the embedded model.",
    ),
]
Thinking = Annotated[
    bool, typer.Option("--thinking/--no-thinking", help="Thought, where the chat template offers the switch.")
]
ThoughtStart = Annotated[
    str | None,
    typer.Option(
        "--thought-start", metavar="TEXT", help="What opens a thought; left out: the model's own marker, else <think>."
    ),
]
ThoughtEnd = Annotated[
    str | None,
    typer.Option(
        "--thought-end",
        metavar="TEXT",
        help="What ends a thought, after which the answer is read; left out: the model's own marker, else </think>.",
    ),
]
Problems = Annotated[
    str | None,
    typer.Option(
        "--problems", metavar="N|FILE", help="How many calibration problems (default 5), or a JSON Lines file of them."
    ),
]

Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="reset, fixed, fixed-threshold, sliding-window, step-relative, uniform-low or greedy; left out: reset "
        "for an NVFP4 checkpoint, fixed for a BF16 model.",
    ),
]
Estimator = Annotated[
    str | None,
    typer.Option("--estimator", metavar="NAME", help="Step entropy: hybrid (default), causal, window or ema."),
]
Tau0 = Annotated[
    float | None,
    typer.Option(
        "--tau0", metavar="NATS", help="Entropy threshold; left out: reset_config.json, else a table, else 0.6."
    ),
]
TLow = Annotated[
    float | None,
    typer.Option("--t-low", metavar="T", help="Temperature of tokens below the threshold."),
]
THigh = Annotated[
    float | None,
    typer.Option("--t-high", metavar="T", help="Temperature of the others."),
]
Window = Annotated[
    int | None,
    typer.Option("--window", metavar="N", help="Tokens that a young step's entropy is averaged over."),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", metavar="T", help="Temperature of policy fixed."),
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", help="Nucleus mass (default 0.95; 1 is off)."),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", metavar="K", help="The K likeliest tokens only (default 0: off)."),
]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", metavar="P", help="Least share of the top probability (default 0: off)."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="DIR", help="Folder whose reset_config.json counts, in place of the checkpoint's own."
    ),
]

Engine = Annotated[str, typer.Option("--engine", metavar="NAME", help="What runs the model: transformers.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="cpu, cuda or cuda:N; left out: the GPU if there is one."),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="float32, bfloat16 or float16; left out: float32 on a CPU, bfloat16 on a GPU.",
    ),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Requests decoded together.")]
BatchInvariant = Annotated[
    bool | None,
    typer.Option(
        "--batch-invariant/--no-batch-invariant",
        help="Logits that do not depend on the batch; left out: on where it can be had (CPU, float32).",
        show_default=False,
    ),
]
Activations = Annotated[
    str, typer.Option("--activations", metavar="NAME", help="w4a4 (the checkpoint's own rule) or w4a16.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that the model directory brings along.")
]
