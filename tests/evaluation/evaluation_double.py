"""An engine by the protocol that answers by arithmetic on the request's seed: for the bookkeeping around generation."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from resetcli.base.seeds import uniforms
from resetcli.engines import prompting
from resetcli.engines.protocol import Completion, EngineInfo, Request, TeacherForced, TokenEvent
from resetcli.policy.settings import PolicySettings

FIXED = PolicySettings(name="fixed")


class SeededEngine:
    """Answers depend on the seed alone; completions come in an order of their own, ``batch`` at a time.

    Kinds of answer: a boxed number of one digit, no answer, cut off at the limit. ``broken`` names request ids
    whose logits are "NaN"; ``die_after`` raises KeyboardInterrupt after so many completions.
    """

    def __init__(self, tokenizer: Any, *, batch: int = 3, context: int = 4096, broken: tuple[str, ...] = (),
                 die_after: int | None = None, pause: float = 0.0, batch_invariant: bool = True):  # fmt: skip
        self.tokenizer = tokenizer
        self.info = EngineInfo("double", "double", "/nowhere", False, "f" * 64, "cpu", "float32", context, 320, batch,
                               batch_invariant, {"threads": 1})  # fmt: skip
        self.broken, self.die_after, self.pause = broken, die_after, pause
        self.requests: list[Request] = []
        self.settings: list[PolicySettings] = []
        self.closed = False

    def encode_chat(self, messages, *, thinking=True):
        return prompting.encode_chat(self.tokenizer, messages, thinking=thinking)

    def encode(self, text):
        return prompting.encode(self.tokenizer, text)

    def close(self):
        self.closed = True

    def generate(self, requests: Iterable[Request], settings, *, on_token=None, keep_entropies=False
                 ) -> Iterator[Completion]:  # fmt: skip
        feed = iter(requests)
        made = 0
        while batch := [r for _, r in zip(range(self.info.batch_size), feed, strict=False)]:
            for request in reversed(batch):
                probe = request.request_id.startswith("probe/")
                if not probe:
                    if self.die_after is not None and made >= self.die_after:
                        raise KeyboardInterrupt
                    self.requests.append(request)
                    self.settings.append(settings)
                    made += 1
                    time.sleep(self.pause)
                done = self.answer(request)
                for t in range(done.n_tokens if on_token else 0):
                    on_token(TokenEvent(request.request_id, t, 0, "x", *[None] * 9))
                yield done

    def answer(self, request: Request) -> Completion:
        u = uniforms(request.seed, 0, 3)
        n = min(5 + int(u[0] * 20), request.max_new_tokens)
        finish, text = "stop", f"So it is \\boxed{{{int(u[1] * 10)}}}."
        if request.request_id in self.broken:
            return Completion(request.request_id, [0] * 2, "", "error", len(request.prompt_ids), 0.1, error="NaN here")
        if u[2] < 0.2:
            text = "I do not know é \u2028 at all"
        elif u[2] < 0.4:
            finish, text = "length", "so maybe 7"
        return Completion(request.request_id, [0] * n, text, finish, len(request.prompt_ids), 0.1)

    def teacher_force(self, ids: list[int], start: int = 1) -> TeacherForced:
        assert 1 <= start < len(ids) <= self.info.context
        logprob = np.array([fake_logprob(ids[i - 1], ids[i]) for i in range(start, len(ids))])
        return TeacherForced(logprob, np.zeros(len(logprob)), np.ones(len(logprob), bool))


def fake_logprob(before: int, token: int) -> float:
    """A log-probability that depends on the pair alone, so windows do not matter."""
    return -1.0 - int(hashlib.sha256(f"{before},{token}".encode()).hexdigest()[:4], 16) / 65536
