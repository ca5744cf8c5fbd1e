"""What an engine is: requests in, completions and token events out.

One protocol for transformers and vLLM. An engine owns a model and its tokenizer; a policy's settings come
with each call, so that one loaded model serves several policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from resetcli.policy.settings import PolicySettings

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Request:
    """One prompt to continue.

    ``seed`` is the sample's 63-bit key (``base.seeds.sample_seed``); draws depend on it and the position only.
    ``stop`` strings end the text before their first occurrence; ``ignore_eos`` runs to the limit (benchmarks).
    ``watched``: its tokens go to ``on_token``, where a call has one; an engine may pass on unwatched ones too.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    seed: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    watched: bool = True


@dataclass(frozen=True)
class TokenEvent:
    """One generated token with everything the policy knew when it was drawn: a line of the trace (design 1.3).

    Entropies in nats; ``logprob`` under the raw distribution (temperature 1, nothing filtered).
    What the policy in use does not compute is None.
    """

    request: str
    t: int
    token_id: int
    text: str
    entropy: float | None
    step: int | None
    boundary: bool | None
    step_entropy: float | None
    global_mean: float | None
    uncertain: bool | None
    tau: float | None
    temperature: float | None
    logprob: float | None


@dataclass
class Completion:
    """A finished request.

    ``token_ids`` includes the end token if one was drawn; ``text`` has no special tokens (a thought's markers
    apart) and nothing from a stop string on. ``finish_reason`` is "error" when this request's logits were NaN, with
    ``error`` saying where. ``entropies`` (float64 [n_tokens], rounded as the policy sees them) are kept when the call
    asked.
    ``cooled``: tokens drawn at T_low; ``steps``, ``uncertain_tokens``: steps begun, tokens in uncertain steps.
    """

    request_id: str
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    n_prompt_tokens: int
    seconds: float
    error: str | None = None
    entropies: np.ndarray | None = None
    cooled: int = 0
    steps: int = 0
    uncertain_tokens: int = 0

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)


@dataclass
class TeacherForced:
    """Tokens of a given sequence under the raw distribution, positions ``start`` to the end.

    All float64/bool [n]: natural-log probability of the actual token, entropy in nats, whether the actual
    token was the argmax.
    """

    logprob: np.ndarray
    entropy: np.ndarray
    greedy: np.ndarray


@dataclass(frozen=True)
class EngineInfo:
    """What a run must record of its engine."""

    engine: str
    model: str
    path: str
    nvfp4: bool
    fingerprint: str
    device: str
    dtype: str
    context: int
    vocab_size: int
    batch_size: int
    batch_invariant: bool
    details: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """A loaded model that continues prompts."""

    info: EngineInfo
    tokenizer: Any

    def generate(
        self,
        requests: Iterable[Request],
        settings: PolicySettings,
        *,
        on_token: Callable[[TokenEvent], None] | None = None,
        keep_entropies: bool = False,
    ) -> Iterator[Completion]:
        """Completions in the order in which requests finish. ``requests`` is read lazily as room appears.

        ``on_token`` is called for each token of watched requests, in order within a request, before its completion
        is yielded.
        Closing the iterator (or Ctrl-C) stops the work; what was yielded stands.
        """
        ...

    def teacher_force(self, ids: list[int], start: int = 1) -> TeacherForced:
        """Log-probabilities and entropies of ``ids[start:]`` given what precedes each (1 <= start < len(ids))."""
        ...

    def encode_chat(self, messages: list[dict[str, str]], *, thinking: bool = True) -> list[int]:
        """Token ids of a chat: the model's template once, one BOS at most, generation prompt added."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain or already-templated text, exactly one BOS where the model wants one."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...
