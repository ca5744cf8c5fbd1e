"""What temperature each policy gives the same tokens: one answer, its entropies replayed through every policy.

    python examples/policies.py
    python examples/policies.py --checkpoint DIR --tau0 0.6 --tokens 200 --prompt "Why is the sky blue?"

The answer is drawn under `reset`. Under another policy it would soon be another text; replaying its trace events keeps
the tokens equal, so that the columns differ by the policy alone. Without --checkpoint the embedded model's NVFP4
checkpoint serves (made once, cached).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from resetcli.base.seeds import sample_seed
from resetcli.engines.factory import EngineOptions, open_engine
from resetcli.engines.protocol import Request, TokenEvent
from resetcli.policy.boundaries import BoundaryTable
from resetcli.policy.settings import PolicySettings
from resetcli.policy.stepper import StepPolicy
from resetcli.quantization.last import embedded_checkpoint

NAMES = ("reset", "fixed-threshold", "sliding-window", "step-relative", "uniform-low", "fixed")
PROMPT = "What is 17 + 25? Explain step by step."


def replay(events: Sequence[TokenEvent], settings: PolicySettings, table: BoundaryTable) -> list[float]:
    """The temperature of each token of one request under ``settings``."""
    policy = StepPolicy(settings, table, slots=1)
    slot = torch.zeros(1, dtype=torch.int64)
    policy.join(slot)
    found, last = [], -1
    for event in events:
        entropy = torch.tensor([event.entropy], dtype=torch.float64)
        found.append(policy.step(slot, entropy, torch.tensor([last])).temperature.item())
        last = event.token_id
    return found


def main(
    checkpoint: Path, *, tau_0: float = 0.6, tokens: int = 64, rows: int = 20, prompt: str = PROMPT
) -> dict[str, list[float]]:
    """Print the first ``rows`` tokens with their temperatures, then shares; temperatures by policy."""
    engine = open_engine(EngineOptions(path=checkpoint, batch_size=1))
    try:
        table = BoundaryTable.for_tokenizer(engine.tokenizer)
        ids = tuple(engine.encode_chat([{"role": "user", "content": prompt}]))
        request = Request("0", ids, sample_seed(0, "generate", 0), max_new_tokens=tokens)
        events: list[TokenEvent] = []
        for _ in engine.generate([request], PolicySettings(tau_0=tau_0), on_token=events.append):
            pass
    finally:
        engine.close()
    found = {name: replay(events, PolicySettings(name=name, tau_0=tau_0), table) for name in NAMES}

    widths = [max(len(name), 5) for name in NAMES]
    print(f"{'t':>4}  {'token':<14} {'H_t':>7}  " + "  ".join(f"{n:>{w}}" for n, w in zip(NAMES, widths, strict=True)))
    for t, event in enumerate(events[:rows]):
        mark = "*" if event.boundary else " "
        cells = "  ".join(f"{found[n][t]:>{w}.2f}" for n, w in zip(NAMES, widths, strict=True))
        print(f"{t:>4}{mark} {event.text!r:<14.14} {event.entropy:>7.4f}  {cells}")
    means = "  ".join(f"{sum(found[n]) / len(events):>{w}.2f}" for n, w in zip(NAMES, widths, strict=True))
    print(f"{'mean of ' + str(len(events)) + ' tokens':<28}  {means}")
    print(f"* starts a step; tau_0 {tau_0:g} nats")
    assert found["reset"] == [torch.tensor(event.temperature).item() for event in events], "replay equals decoding"
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Temperatures of one answer under every policy.")
    parser.add_argument("--checkpoint", type=Path, help="left out: the embedded model's")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tau0", type=float, default=0.6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rows", type=int, default=20)
    options = parser.parse_args()
    main(
        options.checkpoint or embedded_checkpoint(), tau_0=options.tau0, tokens=options.tokens, rows=options.rows,
        prompt=options.prompt,
    )  # fmt: skip
