"""An engine by the protocol whose answers are drawn in plain NumPy: for the logic around generation only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import numpy as np

from resetcli.engines.protocol import Completion, EngineInfo, Request, TeacherForced, TokenEvent
from resetcli.policy.settings import PolicySettings


class NumpyEngine:
    """Answers of 5 to 40 tokens, entropies exponential; both fixed by the request's seed.

    ``fault`` changes the completion of one request id. Answers come in reverse order, as an engine may.
    """

    def __init__(self, *, nvfp4: bool = True, context: int = 4096, fault: tuple[str, dict] | None = None, shift=0.0):
        self.info = EngineInfo("double", "Some-Model-nvfp4", "/nowhere", nvfp4, "f" * 64, "cpu", "float32", context,
                               300, 8, True)  # fmt: skip
        self.tokenizer = None
        self.fault, self.shift = fault, shift
        self.calls: list[tuple[list[Request], PolicySettings]] = []
        self.chats: list[tuple[list[dict[str, str]], bool]] = []

    def encode_chat(self, messages: list[dict[str, str]], *, thinking: bool = True) -> list[int]:
        self.chats.append((messages, thinking))
        return list(messages[-1]["content"].encode())

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def generate(
        self,
        requests: Iterable[Request],
        settings: PolicySettings,
        *,
        on_token: Callable[[TokenEvent], None] | None = None,
        keep_entropies: bool = False,
    ) -> Iterator[Completion]:
        requests = list(requests)
        self.calls.append((requests, settings))
        for request in reversed(requests):
            rng = np.random.default_rng(request.seed)
            wanted = int(rng.integers(5, 40))
            n = min(wanted, request.max_new_tokens)
            entropies = rng.exponential(0.5, size=wanted)[:n]
            tokens = [int(token) for token in rng.integers(300, size=wanted)[:n]]
            for t in range(n if on_token else 0):
                on_token(TokenEvent(request.request_id, t, tokens[t], "x", entropies[t], 0, t == 0, None, None, None,
                                    None, settings.temperature, -1.0))  # fmt: skip
            done = Completion(request.request_id, tokens, f"{settings.t_low:g} {request.request_id}",
                              "stop" if wanted <= request.max_new_tokens else "length", len(request.prompt_ids), 0.5,
                              entropies=entropies if keep_entropies else None)  # fmt: skip
            if self.fault and self.fault[0] == request.request_id:
                for name, value in self.fault[1].items():
                    setattr(done, name, value)
            yield done

    def teacher_force(self, ids: list[int], start: int = 1) -> TeacherForced:
        n = len(ids) - start
        entropy = np.array([token / 300 for token in ids[start:]]) + self.shift
        return TeacherForced(np.full(n, -1.0), entropy, np.zeros(n, dtype=bool))

    def close(self) -> None:
        pass


def problem_set(n: int = 5) -> SimpleNamespace:
    return SimpleNamespace(
        problems=[f"problem {i}" for i in range(n)],
        ids=[f"id-{i}" for i in range(n)],
        answers=[str(i) for i in range(n)],
        sha256="a" * 64,
        dataset="sample.jsonl",
    )
