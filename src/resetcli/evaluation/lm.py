"""Our engine as an lm-eval model named ``reset``.

lm-eval hands over all requests at once and wants one string for each, in order. Repeats of a document arrive as the
same object several times over; which repeat it is follows from counting. The engine streams completions as they
finish, and a recorder, where there is one, sees each at once. Sampling follows the policy the model was made with;
temperatures that a task's YAML asks for are not used, and a warning says so. lm-eval's own caches and seeds have no
part: a sample's seed comes from (seed, task, document, repeat) alone.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.seeds import sample_seed
from resetcli.engines.prompting import opens_thought, render_chat
from resetcli.engines.protocol import Completion, Engine, Request
from resetcli.engines.thoughts import keep_markers, resolve_markers
from resetcli.evaluation.fit import look_over
from resetcli.evaluation.jobs import Job, Output, Recorder, make_output
from resetcli.evaluation.likelihood import Likelihoods
from resetcli.evaluation.lm_open import open_by_name
from resetcli.policy.settings import PolicySettings

PERPLEXITY_WINDOW = 2048
DEFAULT_MAX_NEW_TOKENS = 32768


@register_model("reset")
class ResetLM(Likelihoods):
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
        think_start_token, think_end_token: what opens and closes a thought; None is the model's own.
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
        think_start_token: str | None = None,
        think_end_token: str | None = None,
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
            engine, settings = open_by_name(str(pretrained), settings, options, policy, self.reporter)
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
        self.markers = resolve_markers(Path(engine.info.path), think_start_token, think_end_token)
        keep_markers(engine, self.markers)
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
                outputs[index] = make_output("", record["finish_reason"], job, self.markers, record)
            elif not job.fits:
                outputs[index] = self._keep(job, "", 0, "length", None)
            else:
                part = f"#{instance.idx}" if instance.idx else ""
                todo[f"{job.task}/{job.doc_id}{part}/{job.repeat}"] = (index, job)
        if self.recorder is not None:
            self.recorder.plan([job for _, job in todo.values()])
            watched, on_token = self.recorder.watch((name, job) for name, (_, job) in todo.items())
        else:
            watched, on_token = (), None
        for settings in dict.fromkeys(self.settings_of(job.task) for _, job in todo.values()):
            batch = {name: pair for name, pair in todo.items() if self.settings_of(pair[1].task) == settings}
            feed = (
                Request(name, job.ids, job.seed, job.limit, stop=job.stop, watched=name in watched)
                for name, (_, job) in batch.items()
            )
            made = cast("Generator[Completion, None, None]", self.engine.generate(feed, settings, on_token=on_token))
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
        return make_output(text, finish_reason, job, self.markers, record)

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
