"""The embedded engine: continuous batching, per-request seeds and ReSET over a `ModelRunner`.

A finished request leaves its slot at once and the next one is prefilled into it, alone, before the others decode on.
Everything drawn for a request depends on its logits, its own policy state and its own counter-based uniforms, so
company and order never change it where the logits do not depend on company (see `packing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from resetcli.base.errors import ResetError
from resetcli.base.seeds import uniforms
from resetcli.engines import prompting, sampling
from resetcli.engines.kv import Row
from resetcli.engines.protocol import Completion, EngineInfo, FinishReason, Request, TeacherForced, TokenEvent
from resetcli.engines.runner import TEACHER_CHUNK, ModelRunner
from resetcli.engines.text import TextStream
from resetcli.engines.thoughts import kept_tokens
from resetcli.policy.boundaries import BoundaryTable
from resetcli.policy.entropy import entropy_stats
from resetcli.policy.settings import PolicySettings
from resetcli.policy.stepper import StepPolicy

DRAWS_AHEAD = 256


@dataclass
class _Running:
    """One request in a slot."""

    request: Request
    row: Row
    limit: int
    stream: TextStream
    started: float
    tokens: list[int] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    draws: np.ndarray = field(default_factory=lambda: np.empty(0))
    finish: FinishReason | None = None
    error: str | None = None
    cooled: int = 0
    steps: int = 0
    uncertain: int = 0

    def uniform(self) -> float:
        t = len(self.tokens)
        if t % DRAWS_AHEAD == 0:
            self.draws = uniforms(self.request.seed, t, DRAWS_AHEAD)
        return self.draws[t % DRAWS_AHEAD]


class TransformersEngine:
    """Serves one loaded transformers model; see `protocol.Engine` for the meaning of its methods.

    Args:
        runner: the prepared model.
        tokenizer: the model's own.
        info: what runs record.
        end_ids: token ids that end a text.
        table: step boundaries of the tokenizer.
    """

    def __init__(
        self, runner: ModelRunner, tokenizer: Any, info: EngineInfo, end_ids: frozenset[int], table: BoundaryTable
    ):
        self.runner = runner
        self.tokenizer = tokenizer
        self.info = info
        self.end_ids = end_ids
        self.kept = kept_tokens(tokenizer)
        self._table = table.to(runner.device)

    def encode_chat(self, messages: list[dict[str, str]], *, thinking: bool = True) -> list[int]:
        return prompting.encode_chat(self.tokenizer, messages, thinking=thinking)

    def encode(self, text: str) -> list[int]:
        return prompting.encode(self.tokenizer, text)

    def close(self) -> None:
        del self.runner
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def check_prompt(self, ids: tuple[int, ...] | list[int]) -> None:
        """Raises:
        ResetError: the prompt is empty or leaves no room for a token in the context.
        """
        if not ids:
            raise ResetError("the prompt is empty; give some text")
        if len(ids) >= self.info.context:
            info = self.info
            raise ResetError(
                f"the prompt has {len(ids)} tokens and the context of {info.model} is {info.context}; shorten it"
            )

    def generate(
        self,
        requests: Iterable[Request],
        settings: PolicySettings,
        *,
        on_token: Callable[[TokenEvent], None] | None = None,
        keep_entropies: bool = False,
    ) -> Iterator[Completion]:
        settings.validate()
        run = _Run(self, settings, on_token, keep_entropies)
        feed = iter(requests)
        free = list(range(self.info.batch_size))
        active: list[_Running] = []
        try:
            while True:
                while free and (request := next(feed, None)) is not None:
                    self.check_prompt(request.prompt_ids)
                    running = self._start(request, free.pop(0))
                    active.append(running)
                    run.first_token(running)
                    if running.finish:
                        active.remove(running)
                        free.append(self._release(running))
                        yield self._completion(running, keep_entropies)
                if not active:
                    return
                run.next_tokens(active)
                for running in [r for r in active if r.finish]:
                    active.remove(running)
                    free.append(self._release(running))
                    yield self._completion(running, keep_entropies)
        finally:
            for running in active:
                self._release(running)

    def teacher_force(self, ids: list[int], start: int = 1) -> TeacherForced:
        if not 1 <= start < len(ids) or len(ids) > self.info.context:
            span = f"tokens {start}.. of a sequence of {len(ids)}"
            raise ResetError(f"cannot score {span} (context {self.info.context}); split the text")
        logprob, entropy, greedy = [], [], []
        row = self.runner.scratch_row()
        try:
            for at in range(0, len(ids) - 1, TEACHER_CHUNK):
                chunk = ids[at : min(at + TEACHER_CHUNK, len(ids) - 1)]
                logits = self.runner.prefill(row, chunk, keep=len(chunk))
                target = torch.tensor(ids[at + 1 : at + 1 + len(chunk)], device=logits.device)
                h, log_z = entropy_stats(logits)
                chosen = logits.gather(-1, target[:, None])[:, 0].double()
                logprob.append((chosen - log_z).cpu())
                entropy.append(h.cpu())
                greedy.append((logits.argmax(-1) == target).cpu())
        finally:
            row.release()
        cut = start - 1
        return TeacherForced(*(torch.cat(part)[cut:].numpy() for part in (logprob, entropy, greedy)))

    def _start(self, request: Request, slot: int) -> _Running:
        limit = min(request.max_new_tokens, self.info.context - len(request.prompt_ids))
        return _Running(
            request=request,
            row=self.runner.row(slot),
            limit=limit,
            stream=TextStream(self.tokenizer, request.stop, self.kept),
            started=time.perf_counter(),
        )

    def _release(self, running: _Running) -> int:
        running.row.release()
        return running.row.slot

    def _completion(self, r: _Running, keep_entropies: bool) -> Completion:
        assert r.finish is not None
        return Completion(
            request_id=r.request.request_id,
            token_ids=r.tokens,
            text=r.stream.text,
            finish_reason=r.finish,
            n_prompt_tokens=len(r.request.prompt_ids),
            seconds=time.perf_counter() - r.started,
            error=r.error,
            entropies=np.array(r.entropies, dtype=np.float64) if keep_entropies else None,
            cooled=r.cooled,
            steps=r.steps,
            uncertain_tokens=r.uncertain,
        )


class _Run:
    """One call of `TransformersEngine.generate`: the policy's state and the drawing of tokens."""

    def __init__(self, engine: TransformersEngine, settings: PolicySettings, on_token, keep_entropies: bool):
        self.engine = engine
        self.settings = settings
        self.on_token = on_token
        self.with_entropy = settings.needs_entropy or keep_entropies
        self.trash = engine.info.batch_size  # slot of padding rows
        self.policy = StepPolicy(settings, engine._table, slots=self.trash + 1, device=engine.runner.device)
        self.device = engine.runner.device

    def first_token(self, running: _Running) -> None:
        """Prefill and draw the token at position 0."""
        self.policy.join(torch.tensor([running.row.slot], device=self.device))
        logits = self.engine.runner.prefill(running.row, running.request.prompt_ids)
        self._draw(logits, [running], [0])

    def next_tokens(self, active: list[_Running]) -> None:
        """One decode step for all running requests."""
        logits = self.engine.runner.decode([r.row for r in active], [r.tokens[-1] for r in active])
        static = self.device.type == "cuda"
        self._draw(logits, active, [r.row.slot for r in active] if static else list(range(len(active))))

    @torch.inference_mode()
    def _draw(self, logits: torch.Tensor, running: list[_Running], at: list[int]) -> None:
        """Draw for each request from row ``at[i]`` of ``logits`` [R, V]; rows of no request are padding."""
        rows = logits.shape[0]
        slots, last, draws = [self.trash] * rows, [-1] * rows, [0.0] * rows
        for r, i in zip(running, at, strict=True):
            slots[i], draws[i] = r.row.slot, r.uniform()
            last[i] = r.tokens[-1] if r.tokens else -1
        slots_t = torch.tensor(slots, device=self.device)
        entropy = log_z = None
        watched = self.on_token is not None and any(r.request.watched for r in running)
        if self.with_entropy or watched:
            entropy, log_z = entropy_stats(logits)
        out = self.policy.step(slots_t, entropy, torch.tensor(last, device=self.device))
        s = self.settings
        if s.name == "greedy":
            tokens = sampling.greedy(logits)
        else:
            u = torch.tensor(draws, dtype=torch.float64, device=self.device)
            tokens = sampling.sample(logits, out.temperature, u, top_p=s.top_p, top_k=s.top_k, min_p=s.min_p)
        columns: dict[str, torch.Tensor | None] = {
            "token": tokens,
            # An entropy is NaN for whatever makes logits unusable (NaN, +inf, all -inf), and the policy reports that.
            "failed": out.failed if entropy is not None else logits.amax(-1).isfinite().logical_not(),
            "temperature": out.temperature,
            "boundary": out.boundary,
            "uncertain": out.uncertain,
            "entropy": out.entropy,
        }
        if watched:
            assert log_z is not None
            columns |= {
                "step": out.step,
                "step_entropy": out.step_entropy,
                "global_mean": out.global_mean,
                "tau": out.tau,
            }
            columns["logprob"] = logits.gather(-1, tokens[:, None])[:, 0].double() - log_z
        there = {name: column.double() for name, column in columns.items() if column is not None}
        # One copy to the host per step, whatever is asked for.
        table = torch.stack(list(there.values()), -1).tolist()
        for r, row in zip(running, at, strict=True):
            self._take(r, dict(zip(there, table[row], strict=True)))

    def _take(self, r: _Running, drawn: dict[str, float]) -> None:
        """Book what was drawn for one request: its token, counts, text, end and trace line."""
        if drawn["failed"]:
            r.finish = "error"
            layer = self.engine.runner.first_bad_layer([*r.request.prompt_ids, *r.tokens])
            where = f"first seen in {layer}" if layer else "not seen again when the tokens were run afresh"
            at = len(r.tokens)
            r.error = f"the logits of request {r.request.request_id} at position {at} are not finite ({where})"
            return
        token = int(drawn["token"])
        r.tokens.append(token)
        if "entropy" in drawn:
            r.entropies.append(drawn["entropy"])
        r.cooled += self.settings.needs_entropy and drawn["temperature"] < self.settings.t_high
        r.steps += bool(drawn.get("boundary", False))
        r.uncertain += bool(drawn.get("uncertain", False))
        piece = ""
        if token in self.engine.end_ids and not r.request.ignore_eos:
            r.finish = "stop"
        else:
            piece = r.stream.push(token)
            if r.stream.stop and r.stream.stopped(piece):
                r.finish = "stop"
            elif len(r.tokens) >= r.limit:
                r.finish = "length"
        if r.finish:
            piece += r.stream.finish()
        if self.on_token is not None and r.request.watched:
            self.on_token(self._event(r, piece, drawn))

    def _event(self, r: _Running, piece: str, drawn: dict[str, float]) -> TokenEvent:
        def of(name: str, kind: Callable[[float], Any]) -> Any:
            value = drawn.get(name)
            return None if value is None or value != value else kind(value)

        return TokenEvent(
            request=r.request.request_id,
            t=len(r.tokens) - 1,
            token_id=r.tokens[-1],
            text=piece,
            entropy=of("entropy", float),
            step=of("step", int),
            boundary=of("boundary", bool),
            step_entropy=of("step_entropy", float),
            global_mean=of("global_mean", float),
            uncertain=of("uncertain", bool),
            tau=of("tau", float),
            temperature=of("temperature", lambda t: round(t, 6)),  # float32 on the device; 0.1 is printed as 0.1
            logprob=of("logprob", float),
        )
