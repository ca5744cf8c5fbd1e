"""Reads a trace and recomputes every temperature of policy `reset` from its entropies and boundaries alone.

    reset generate -p "What is 17 * 23?" --trace trace.jsonl
    python examples/read_trace.py trace.jsonl

Plain Python over exact integers, so it also serves as a short description of the policy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

header, *lines = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
policy = header["policy"]
if policy["name"] != "reset" or policy["estimator"] != "hybrid":
    sys.exit(f"this example recomputes policy reset with estimator hybrid, the trace has {policy['name']}")
TICKS = 2**22  # entropies are whole multiples of 2^-22 nat

seen: list[int] = []  # entropies of the request so far, in ticks
step: list[int] = []  # those of the current step
differences = cooled = uncertain_tokens = 0
for line in lines:
    entropy = round(line["entropy"] * TICKS)
    if line["boundary"]:
        step = []
    values = step if len(step) >= policy["window"] else seen[-policy["window"] :]
    values = values or [entropy]
    everything = seen or values
    # Means are compared crosswise, as exact integers: sum/n > SUM/N.
    uncertain = bool(seen) and sum(values) * len(everything) > sum(everything) * len(values)
    threshold = sum(values) / len(values) if uncertain else policy["tau_0"] * TICKS
    temperature = policy["t_low"] if entropy < threshold else policy["t_high"]
    differences += (temperature, uncertain) != (line["temperature"], line["uncertain"])
    cooled += temperature == policy["t_low"]
    uncertain_tokens += uncertain
    seen.append(entropy)
    step.append(entropy)

print(f"{len(lines)} tokens of {header['model']}, {cooled} cooled, {uncertain_tokens} in uncertain steps")
print(f"{differences} temperatures differ from the trace")
sys.exit(differences > 0)
