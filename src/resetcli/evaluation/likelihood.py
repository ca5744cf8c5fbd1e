"""Log-likelihoods by lm-eval's rules over an engine that scores given tokens: the adapter's half for perplexity."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from resetcli.base.errors import ResetError
from resetcli.engines.protocol import Engine
from resetcli.evaluation.jobs import Job, Recorder


class Likelihoods(LM):
    """What `lm.ResetLM` does beside generating; it supplies what is declared here."""

    engine: Engine
    tokenizer: Any
    recorder: Recorder | None
    max_length: int
    _templated: set[str]

    @abstractmethod
    def encode(self, text: str) -> tuple[int, ...]:
        """Prompt ids."""

    @abstractmethod
    def _job(self, instance: Instance, repeat: int, prompt: str, ids: tuple[int, ...], gen: Mapping[str, Any]) -> Job:
        """The sample that a request asks for."""

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability in nats, whether greedy decoding gives it) of each continuation; the context is cut from
        the left where both do not fit."""
        found = []
        for instance in requests:
            context, continuation = instance.args
            space = len(context) - len(context.rstrip())
            if context.rstrip() and space:
                context, continuation = context[:-space], context[-space:] + continuation
            if context:
                start = len(self.encode(context))
                templated = context in self._templated
                whole = context + continuation
                ids = (
                    list(self.tokenizer(whole, add_special_tokens=False)["input_ids"])
                    if templated
                    else list(self.engine.encode(whole))
                )
            else:
                ids, start = [self.prefix_token_id, *self._plain(continuation)], 1
            cut = max(0, len(ids) - self.engine.info.context)
            start = max(1, start - cut)
            forced = self.engine.teacher_force(ids[cut:], start)
            found.append((math.fsum(forced.logprob), bool(forced.greedy.all())))
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood in nats of each whole text: every token once, in windows of ``max_length`` tokens; the last
        window reaches back for a full context."""
        found = []
        for instance in requests:
            (text,) = instance.args
            job = self._job(instance, 0, text, (), {})
            record = self.recorder.known(job) if self.recorder is not None else None
            if record is None:
                total, count = self._rolling(text)
                if not math.isfinite(total):
                    raise ResetError(f"the log-likelihood of task {job.task}, document {job.doc_id} is not finite")
                record = {"score": total}
                if self.recorder is not None:
                    record = self.recorder.add_likelihood(job, total, count)
            found.append(float(record["score"]))
        return found

    def _rolling(self, text: str) -> tuple[float, int]:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        ids = self._plain(text)
        # A window holds one token more than it predicts, hence max_length - 1.
        windows = get_rolling_token_windows(ids, self.prefix_token_id, max(1, self.max_length - 1), 1)
        parts: list[float] = []
        for context, predicted in map(make_disjoint_window, windows):
            parts.extend(self.engine.teacher_force([*context, *predicted], len(context)).logprob)
        return math.fsum(parts), len(ids)

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text: BOS, else EOS."""
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return token
        raise ResetError(f"the tokenizer of {self.engine.info.model} has neither a BOS nor an EOS token")
