"""A calibration problem as a request, the same for tau_0 and for T_low."""

from __future__ import annotations

from resetcli.base.errors import ResetError
from resetcli.base.seeds import sample_seed
from resetcli.engines.protocol import Engine, Request


def ask(
    engine: Engine, problem: str, name: str, *, request_id: str, index: int, repeat: int, limit: int, seed: int
) -> Request:
    """One chat turn, thinking on, at most ``limit`` tokens, keyed by ``sample_seed(seed, "calibrate", index, repeat)``.

    Raises:
        ResetError: the prompt fills the context; the message calls it ``name``.
    """
    prompt = tuple(engine.encode_chat([{"role": "user", "content": problem}], thinking=True))
    room = engine.info.context - len(prompt)
    if room < 1:
        raise ResetError(
            f"{name} has {len(prompt)} tokens, the context of {engine.info.model} is {engine.info.context}; leave it "
            "out with --problems FILE"
        )
    return Request(request_id, prompt, sample_seed(seed, "calibrate", index, repeat), min(limit, room))
