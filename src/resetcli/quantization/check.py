"""The closing check: how far the NVFP4 model's next-token distributions are from the BF16 model's.

KL(BF16 || NVFP4) in nats and top-1 agreement over held-out text, perplexity of both, and greedy tokens of one
prompt. The BF16 side is computed before quantization and waits on the CPU, so that two full models never share
the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PROMPT = "In one sentence, why is the sky blue?"
_SLICE = 128  # positions compared at once: bounds the float32 scratch to a few hundred MB at V = 152k


@dataclass
class Observed:
    """``logits``: per row [length, V] on the CPU in the model's dtype; ``greedy``: token ids after the prompt."""

    logits: list[torch.Tensor]
    greedy: list[int]


def prompt_ids(tokenizer: Any) -> list[int]:
    """The check's prompt through the chat template where there is one."""
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": PROMPT}]
        return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"])
    return list(tokenizer(PROMPT)["input_ids"])


@torch.inference_mode()
def observe(model: Any, rows: torch.Tensor, prompt: list[int], new_tokens: int, advance: Any) -> Observed:
    """Logits of each row of ``rows`` int64 [n, length] and ``new_tokens`` greedy tokens after ``prompt``."""
    device = next(model.parameters()).device
    logits = []
    for row in rows:
        logits.append(model(row[None].to(device), use_cache=False).logits[0].cpu())
        advance(1)
    greedy: list[int] = []
    ids, cache = torch.tensor([prompt], device=device), None
    for _ in range(new_tokens):
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        ids, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        greedy.append(int(ids))
    advance(1)
    return Observed(logits, greedy)


@torch.inference_mode()
def compare(reference: Observed, quantized: Observed, rows: torch.Tensor, device: torch.device) -> dict[str, Any]:
    """Figures over all positions (KL, top-1) and all predicted tokens (perplexity); NaN logits show as an error."""
    from resetcli.base.errors import ResetError

    kl = agree = positions = 0.0
    nll = [0.0, 0.0]
    predicted = 0
    for row, p_logits, q_logits in zip(rows, reference.logits, quantized.logits, strict=True):
        for start in range(0, len(row), _SLICE):
            part = slice(start, start + _SLICE)
            log_p = p_logits[part].to(device).float().log_softmax(-1)
            log_q = q_logits[part].to(device).float().log_softmax(-1)
            if not bool(torch.isfinite(log_q).all()):
                raise ResetError("the NVFP4 model gives NaN or infinite logits on the held-out text; it is not usable")
            kl += float((log_p.exp() * (log_p - log_q)).sum(-1).double().sum())
            agree += float((log_p.argmax(-1) == log_q.argmax(-1)).sum())
            positions += len(log_p)
            target = row[start + 1 : start + 1 + len(log_p)].to(device)
            for i, log in enumerate((log_p, log_q)):
                nll[i] -= float(log[: len(target)].gather(-1, target[:, None]).double().sum())
            predicted += len(target)
    first = next((i for i, (a, b) in enumerate(zip(reference.greedy, quantized.greedy, strict=True)) if a != b), None)
    return {
        "kl_nats": kl / positions,
        "top1_agreement": agree / positions,
        "positions": int(positions),
        "perplexity_bf16": float(torch.tensor(nll[0] / max(predicted, 1), dtype=torch.float64).exp()),
        "perplexity_nvfp4": float(torch.tensor(nll[1] / max(predicted, 1), dtype=torch.float64).exp()),
        "greedy_first_difference": first,
    }
