"""One prompt under several policies, same seed: what each makes of it, and how many tokens it cools.

    python examples/compare_policies.py "Name three prime numbers and say why they are prime."

Uses the embedded model's cached NVFP4 checkpoint, made at the first call.
"""

from __future__ import annotations

import sys

from resetcli.base.seeds import sample_seed
from resetcli.engines.factory import EngineOptions, open_engine
from resetcli.engines.protocol import Request
from resetcli.policy.settings import PolicySettings
from resetcli.quantization.last import embedded_checkpoint

PROMPT = sys.argv[1] if len(sys.argv) > 1 else "Name three prime numbers and say why they are prime."

engine = open_engine(EngineOptions(path=embedded_checkpoint(), batch_size=1))
ids = tuple(engine.encode_chat([{"role": "user", "content": PROMPT}]))
for name in ("reset", "fixed", "step-relative", "greedy"):
    settings = PolicySettings(name=name, tau_0=2.0)
    request = Request(name, ids, sample_seed(0, "generate", 0), max_new_tokens=48)
    for done in engine.generate([request], settings):
        cooled = f"{done.cooled} of {done.n_tokens} tokens cooled" if settings.needs_entropy else "no cooling"
        print(f"== {name} ({cooled})\n{done.text}\n")
engine.close()
