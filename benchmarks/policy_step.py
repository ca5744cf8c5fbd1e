"""What the policy costs per token: entropy of the logits and the step, medians in microseconds, one JSON line.

    python benchmarks/policy_step.py [--device cpu|cuda] [--threads N] [--repeats N]

Float32 logits, policy `reset` with its defaults, called as an engine calls it (inference mode, last tokens on the
device, temperatures used at once). On CUDA the device is synchronised around each call, so launch latency counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from resetcli.base.versions import versions
from resetcli.policy.boundaries import BoundaryTable
from resetcli.policy.entropy import entropy_stats
from resetcli.policy.settings import PolicySettings
from resetcli.policy.stepper import StepPolicy


def median_us(call: Callable[[], object], repeats: int, device: str) -> float:
    """Median wall time of ``call`` in microseconds, after a tenth of ``repeats`` to warm up."""
    times = []
    for index in range(repeats + max(repeats // 10, 3)):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if index >= max(repeats // 10, 3):
            times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e6, 1)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (0: torch's default)")
    parser.add_argument("--repeats", type=int, default=200)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = []
    for vocab in (49_152, 151_936):
        table = BoundaryTable.from_bytes([b"\n\n" if i % 40 == 0 else b"x" for i in range(vocab)])
        for batch in (1, 8, 64):
            generator = torch.Generator().manual_seed(batch)
            logits = (torch.randn(batch, vocab, generator=generator) * 3).to(args.device)
            policy = StepPolicy(PolicySettings(tau_0=0.6), table, batch, args.device)
            slots = torch.arange(batch, device=args.device)
            last = torch.randint(0, vocab, (batch,), generator=generator).to(args.device)
            entropy = entropy_stats(logits)[0]
            calls = max(args.repeats // (4 if batch == 64 else 1), 5)
            rows.append(
                {
                    "vocab": vocab,
                    "batch": batch,
                    "entropy_us": median_us(lambda x=logits: entropy_stats(x), calls, args.device),
                    "step_us": median_us(
                        lambda p=policy, s=slots, e=entropy, t=last: p.step(s, e, t).temperature, calls, args.device
                    ),
                }
            )
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    print(
        json.dumps(
            {
                "bench": "policy_step",
                "device": name,
                "threads": torch.get_num_threads() if args.device == "cpu" else None,
                "repeats": args.repeats,
                "rows": rows,
                "versions": versions("torch", "resetcli"),
            }
        )
    )


if __name__ == "__main__":
    main()
