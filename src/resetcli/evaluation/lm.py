"""Our engine as an lm-eval model named ``reset``.

lm-eval hands over all requests at once and wants one string for each, in order. Repeats of a document arrive as the
same object several times over; which repeat it is follows from counting. The engine streams completions as they
finish, and a recorder, where there is one, sees each at once. Sampling follows the policy the model was made with;
temperatures that a task's YAML asks for are not used, and a warning says so. lm-eval's own caches and seeds have no
part: a sample's seed comes from (seed, task, document, repeat) alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.seeds import sample_seed
from resetcli.engines.prompting import opens_thought, render_chat
from resetcli.engines.protocol import Completion, Engine, Request
from resetcli.evaluation.fit import look_over
from resetcli.policy.settings import PolicySettings

PERPLEXITY_WINDOW = 2048
DEFAULT_MAX_NEW_TOKENS = 32768


class Output(str):
    """A generated text that remembers how it ended; ``record`` is its scored sample where a run keeps one."""

    finish_reason: str | None = None
    opened_in_prompt: bool = False
    record: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Job:
    """One sample to make. ``ids`` is the prompt; ``fits`` tells whether the context has room for a token after it."""

    task: str
    doc_id: Any
    repeat: int
    seed: int
    prompt: str
    ids: tuple[int, ...]
    limit: int
    stop: tuple[str, ...]
    doc: Mapping[str, Any]
    opened_in_prompt: bool
    fits: bool

    @property
    def prompt_sha256(self) -> str:
        """Of the prompt's UTF-8 text, chat template applied."""
        return hashlib.sha256(self.prompt.encode("utf-8", "replace")).hexdigest()


class Recorder(Protocol):
    """Who keeps samples as they finish."""

    def known(self, job: Job) -> Mapping[str, Any] | None:
        """The record of a sample that need not be made again."""
        ...

    def plan(self, jobs: Sequence[Job]) -> None:
        """Told once, before generating, what is left to make."""
        ...

    def add(self, job: Job, text: str, n_tokens: int, finish_reason: str, error: str | None) -> Mapping[str, Any]:
        """Keep a finished sample; its record."""
        ...

    def add_likelihood(self, job: Job, loglikelihood: float, n_tokens: int) -> Mapping[str, Any]:
        """Keep the log-likelihood (nats) of a text; its record."""
        ...


@register_model("reset")
class ResetLM(LM):
    """lm-eval adapter over an engine.

    Args:
        pretrained: checkpoint or model directory (or hub id) to open, when no ``engine`` is given.
        engine: an open engine; the other engine options are then not used.
        settings: the policy, one for all tasks or by task name; without it the arguments named as the command
            line's options decide, by the same ranks.
        recorder: keeps samples as they finish.
        batch_size, device, dtype, activations, batch_invariant: how ``pretrained`` is opened.
        seed: of the run.
        max_gen_toks: token limit where a task sets none.
        max_length: window of log-likelihoods in tokens.
        thinking: asks templates that have the switch to open a thought.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        engine: Engine | None = None,
        settings: PolicySettings | Mapping[str, PolicySettings] | None = None,
        recorder: Recorder | None = None,
        reporter: Reporter | None = None,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        activations: str = "w4a4",
        batch_invariant: bool | None = None,
        trust_remote_code: bool = False,
        seed: int = 0,
        max_gen_toks: int = DEFAULT_MAX_NEW_TOKENS,
        max_length: int = PERPLEXITY_WINDOW,
        thinking: bool = True,
        think_start_token: str = "<think>",
        think_end_token: str = "</think>",
        **policy: Any,
    ):
        super().__init__()
        self.reporter = reporter or Reporter()
        if engine is None:
            if not pretrained:
                raise UsageError("--model reset needs --model_args pretrained=DIR")
            options = {
                "batch_size": 8 if str(batch_size).startswith("auto") else int(batch_size), "device": device,
                "dtype": dtype, "activations": activations, "batch_invariant": batch_invariant,
                "trust_remote_code": trust_remote_code,
            }  # fmt: skip
            engine, settings = _open(str(pretrained), settings, options, policy, self.reporter)
        elif policy:
            raise UsageError(f"unknown model argument '{next(iter(policy))}'")
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self.settings = settings
        self.recorder = recorder
        self.seed = seed
        self.max_gen_toks = max_gen_toks
        self.max_length = min(max_length, engine.info.context)
        self.thinking = thinking
        self.markers = (think_start_token, think_end_token)
        self.batch_size = engine.info.batch_size
        self._templated: set[str] = set()
        self._ids: dict[str, tuple[int, ...]] = {}
        self._warned = False

    @property
    def tokenizer_name(self) -> str:
        return self.engine.info.path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return getattr(self.tokenizer, "chat_template", None) or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt as the model's template writes it; a beginning of the answer is left open to be continued."""
        if add_generation_prompt:
            text = render_chat(self.tokenizer, chat_history, thinking=self.thinking)
        else:
            text = self.tokenizer.apply_chat_template(
                chat_history, tokenize=False, add_generation_prompt=False, continue_final_message=True,
                enable_thinking=self.thinking,
            )  # fmt: skip
        if getattr(self.tokenizer, "chat_template", None):
            self._templated.add(text)
        return text

    def encode(self, text: str) -> tuple[int, ...]:
        """Prompt ids: text that a template wrote gets no special tokens a second time."""
        if text not in self._ids:
            if text in self._templated:
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            else:
                ids = self.engine.encode(text)
            self._ids[text] = tuple(ids)
        return self._ids[text]

    def settings_of(self, task: str) -> PolicySettings:
        """The policy under which ``task`` is decoded."""
        if isinstance(self.settings, PolicySettings):
            return self.settings
        assert self.settings is not None
        return self.settings[task]

    def _job(self, instance: Instance, repeat: int, prompt: str, ids: tuple[int, ...], gen: Mapping[str, Any]) -> Job:
        task = instance.task_name or ""
        doc = instance.doc if isinstance(instance.doc, Mapping) else {}
        doc_id = doc.get("doc_id", instance.doc_id)
        return Job(
            task=task,
            doc_id=doc_id,
            repeat=repeat,
            seed=sample_seed(self.seed, task, doc_id, repeat),
            prompt=prompt,
            ids=ids,
            limit=min(gen.get("max_gen_toks", self.max_gen_toks), max(0, self.engine.info.context - len(ids))),
            stop=tuple(s for s in gen.get("until", ()) if s),
            doc=doc,
            opened_in_prompt=opens_thought(prompt, *self.markers),
            fits=0 < len(ids) < self.engine.info.context,
        )

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One `Output` a request, in order. A prompt that leaves no room in the context is not cut: its sample has
        no token and ends by "length".

        Raises:
            ResetError: most prompts of a task leave no room (see `fit`).
        """
        from lm_eval.models.utils import normalize_gen_kwargs

        seen: Counter[tuple] = Counter()
        jobs: list[tuple[Instance, Job]] = []
        for instance in requests:
            prompt, asked = instance.args[0], instance.args[1]
            gen = normalize_gen_kwargs(dict(asked), self.max_gen_toks)
            self._check_sampling(instance.task_name or "", asked)
            key = (instance.task_name, instance.doc_id, instance.idx)
            jobs.append((instance, self._job(instance, seen[key], prompt, self.encode(prompt), gen)))
            seen[key] += 1
        self._check_fit([job for _, job in jobs])
        outputs: list[Output | None] = [None] * len(requests)
        todo: dict[str, tuple[int, Job]] = {}
        for index, (instance, job) in enumerate(jobs):
            if self.recorder is not None and (record := self.recorder.known(job)) is not None:
                outputs[index] = _output("", record["finish_reason"], job, record)
            elif not job.fits:
                outputs[index] = self._keep(job, "", 0, "length", None)
            else:
                part = f"#{instance.idx}" if instance.idx else ""
                todo[f"{job.task}/{job.doc_id}{part}/{job.repeat}"] = (index, job)
        if self.recorder is not None:
            self.recorder.plan([job for _, job in todo.values()])
        for settings in dict.fromkeys(self.settings_of(job.task) for _, job in todo.values()):
            batch = {name: pair for name, pair in todo.items() if self.settings_of(pair[1].task) == settings}
            feed = (Request(name, job.ids, job.seed, job.limit, stop=job.stop) for name, (_, job) in batch.items())
            made = cast("Generator[Completion, None, None]", self.engine.generate(feed, settings))
            with contextlib.closing(made) as stream:
                for done in stream:
                    index, job = batch[done.request_id]
                    outputs[index] = self._finished(job, done)
        assert all(output is not None for output in outputs), "the engine left a request unanswered"
        return outputs  # type: ignore[return-value]

    def _finished(self, job: Job, done: Completion) -> Output:
        if done.finish_reason == "error" and self.recorder is None:
            raise ResetError(done.error or f"request {done.request_id} failed")
        return self._keep(job, done.text, done.n_tokens, done.finish_reason, done.error)

    def _keep(self, job: Job, text: str, n_tokens: int, finish_reason: str, error: str | None) -> Output:
        record = None
        if self.recorder is not None:
            record = self.recorder.add(job, text, n_tokens, finish_reason, error)
            text = ""
        return _output(text, finish_reason, job, record)

    def _check_fit(self, jobs: Sequence[Job]) -> None:
        fits: dict[str, dict[Any, bool]] = {}
        for job in jobs:
            fits.setdefault(job.task, {})[job.doc_id] = job.fits
        too_long = {task: sum(not fit for fit in docs.values()) for task, docs in fits.items()}
        look_over(too_long, {t: len(docs) for t, docs in fits.items()}, self.engine.info.context, self.reporter)

    def _check_sampling(self, task: str, asked: Mapping[str, Any]) -> None:
        used = self.settings_of(task)
        if not self._warned and asked.get("temperature") and used.name != "greedy":
            self._warned = True
            self.reporter.warn(f"task {task} asks for temperature {asked['temperature']}; policy {used.name} decides")

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


def _output(text: str, finish_reason: str, job: Job, record: Mapping[str, Any] | None) -> Output:
    output = Output(text)
    output.finish_reason, output.opened_in_prompt, output.record = finish_reason, job.opened_in_prompt, record
    return output


def _open(
    spec: str,
    settings: PolicySettings | Mapping[str, PolicySettings] | None,
    options: dict[str, Any],
    policy: dict[str, Any],
    reporter: Reporter,
) -> tuple[Engine, PolicySettings | Mapping[str, PolicySettings]]:
    """Engine and policy of a directory or hub id, by the command line's rules."""
    from pathlib import Path

    import torch

    from resetcli.engines.factory import EngineOptions, open_engine
    from resetcli.nvfp4.checkpoint import is_nvfp4
    from resetcli.policy.config import load_config
    from resetcli.policy.settings import resolve_settings

    # lm-eval's command line names cuda:0 unless told otherwise; its own models then fall back to the CPU, as does ours.
    if str(options["device"]).startswith("cuda") and not torch.cuda.is_available():
        reporter.warn(f"device {options['device']} is not there; the CPU serves")
        options = {**options, "device": "cpu"}
    path = Path(spec).expanduser()
    if not path.is_dir():
        from resetcli.models.resolve import resolve_model

        path = resolve_model(spec, reporter=reporter).path
    if settings is None:
        try:
            settings = resolve_settings(
                nvfp4=is_nvfp4(path),
                model_name=path.resolve().name,
                config=load_config(path),
                reporter=reporter,
                **policy,
            )
        except TypeError:
            known = "policy, estimator, tau0, t_low, t_high, window, temperature, top_p, top_k, min_p"
            raise UsageError(f"unknown model argument among {', '.join(policy)} (policy arguments: {known})") from None
    return open_engine(EngineOptions(path=path, **options), reporter), settings
