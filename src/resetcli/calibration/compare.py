"""How quantization moved entropy: the calibration tokens again, teacher-forced through the BF16 model.

Both models see the same prompts and the same tokens, so entropies differ by quantization alone. Low and high
are told apart by tau_0, and by whose entropy matters: groups picked by a noisy quantity drift back towards
the middle in the other one, even if nothing happened on average. The answer proper splits by the BF16
entropies ("what became of the tokens the unquantized model was sure of"); the same figures split by NVFP4's,
and by the mean of the two, stand beside it, and what all three agree on is no artefact of the split.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.calibration.distribution import percentile
from resetcli.calibration.tau0 import CalibrationResult
from resetcli.engines.protocol import Engine

SPLITS = ("bf16", "nvfp4", "mean")


def compare_entropies(result: CalibrationResult, bf16: Engine, *, reporter: Reporter | None = None) -> dict[str, Any]:
    """Entropies (nats) of the calibration tokens under ``bf16`` against those kept by calibration.

    Returns:
        {"model", "tokens", "tau_0", "percentile", "tau_0_bf16" (same percentile of the BF16 entropies),
        "mean_bf16", "mean_nvfp4", "correlation", "crossed_up", "crossed_down" (share of all tokens that
        quantization carried over tau_0), "split_by": "bf16", "groups": {split: {"low"|"high": {"tokens",
        "share", "mean_bf16", "mean_nvfp4", "mean_change", "median_change", "raised", "crossed"}}}}, where
        a change is NVFP4 minus BF16, ``raised`` and ``crossed`` are shares of the group, and an empty group has
        nulls.

    Raises:
        UsageError: the two models do not share a vocabulary.
        ResetError: NaN logits in the BF16 model, with the position.
    """
    reporter = reporter or Reporter()
    if bf16.info.vocab_size != result.info.vocab_size:
        raise UsageError(
            f"--compare {bf16.info.model}: {bf16.info.vocab_size} tokens in its vocabulary, "
            f"{result.info.vocab_size} in {result.info.model}; compare with the model it was quantized from"
        )
    parts = []
    with reporter.phase(f"the same tokens through {bf16.info.model}", total=len(result.answers)) as advance:
        for answer in result.answers:
            if answer.token_ids:
                forced = bf16.teacher_force([*answer.prompt_ids, *answer.token_ids], start=len(answer.prompt_ids))
                entropy = np.asarray(forced.entropy, dtype=np.float64)
                bad = np.flatnonzero(~np.isfinite(entropy))
                if len(bad):
                    raise ResetError(
                        f"{bf16.info.model}: NaN logits at position {bad[0]} of calibration problem {answer.problem_id}"
                    )
                parts.append(entropy)
            advance(1)
    return compare_arrays(
        np.concatenate(parts), result.entropies(), result.tau_0, q=result.percentile, model=bf16.info.model
    )


def compare_arrays(
    bf16: np.ndarray, nvfp4: np.ndarray, tau_0: float, *, q: float = 80, model: str = ""
) -> dict[str, Any]:
    """``compare_entropies`` on entropies at hand: two float64 [n] arrays over the same tokens."""
    if len(bf16) != len(nvfp4):
        raise ResetError(f"{len(bf16)} BF16 entropies for {len(nvfp4)} NVFP4 ones; they must cover the same tokens")
    by = {"bf16": bf16, "nvfp4": nvfp4, "mean": (bf16 + nvfp4) / 2}
    varied = len(bf16) > 1 and bf16.std() > 0 and nvfp4.std() > 0
    return {
        "model": model,
        "tokens": len(bf16),
        "tau_0": tau_0,
        "percentile": q,
        "tau_0_bf16": percentile(bf16, q),
        "mean_bf16": float(bf16.mean()),
        "mean_nvfp4": float(nvfp4.mean()),
        "correlation": float(np.corrcoef(bf16, nvfp4)[0, 1]) if varied else None,
        "crossed_up": float(np.mean((bf16 < tau_0) & (nvfp4 >= tau_0))),
        "crossed_down": float(np.mean((bf16 >= tau_0) & (nvfp4 < tau_0))),
        "split_by": SPLITS[0],
        "groups": {
            split: {
                "low": _group(bf16, nvfp4, values < tau_0, tau_0),
                "high": _group(bf16, nvfp4, values >= tau_0, tau_0),
            }
            for split, values in by.items()
        },
    }


def _group(bf16: np.ndarray, nvfp4: np.ndarray, chosen: np.ndarray, tau_0: float) -> dict[str, Any]:
    count = int(chosen.sum())
    before, after = bf16[chosen], nvfp4[chosen]
    change = after - before
    figures = {
        "mean_bf16": before.mean,
        "mean_nvfp4": after.mean,
        "mean_change": change.mean,
        "median_change": lambda: np.median(change),
        "raised": lambda: np.mean(change > 0),
        "crossed": lambda: np.mean((before < tau_0) != (after < tau_0)),
    }
    return {
        "tokens": count,
        "share": count / len(bf16),
        **{name: float(figure()) if count else None for name, figure in figures.items()},
    }


def render_comparison(found: dict[str, Any]) -> str:
    """The comparison as a few plain lines, the answer proper first."""
    lines = [
        f"NVFP4 against {found['model']} on the same {found['tokens']} tokens: mean entropy "
        f"{found['mean_bf16']:.4f} -> {found['mean_nvfp4']:.4f} nats, {found['percentile']:g}th percentile "
        f"{found['tau_0_bf16']:.4f} -> {found['tau_0']:.4f}; over tau_0 went {100 * found['crossed_up']:.1f} % of "
        f"all tokens, under it {100 * found['crossed_down']:.1f} %"
    ]
    for split, groups in found["groups"].items():
        for side, group in groups.items():
            head = f"  {side:<4} by {split:<5}  {group['tokens']:>7} tokens"
            if group["tokens"]:
                head += (
                    f"  mean {group['mean_bf16']:.4f} -> {group['mean_nvfp4']:.4f} ({group['mean_change']:+.4f})"
                    f"  raised {100 * group['raised']:5.1f} %  crossed {100 * group['crossed']:5.1f} %"
                )
            lines.append(head)
    return "\n".join(lines)
