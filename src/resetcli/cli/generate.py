"""``reset generate``: one prompt, or a chat on a terminal, decoded under the policy and shown as it comes.

Text goes to standard output, notes to standard error, so that a pipe gets the answer alone. Ctrl-C ends the command
with exit code 130 and keeps what was written, in the terminal and in the trace.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resetcli.base.errors import ResetError, UsageError
from resetcli.cli import options as o
from resetcli.cli.loading import EngineChoice, Loaded, PolicyOptions, check_writable_file, load
from resetcli.cli.output import Output

if TYPE_CHECKING:
    from resetcli.engines.protocol import Completion, Engine, TokenEvent
    from resetcli.policy.settings import PolicySettings


def generate(
    checkpoint: o.Checkpoint = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("-f", "--prompt-file", metavar="FILE", help="The prompt as a UTF-8 text file.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message before it.")] = None,
    thinking: o.Thinking = True,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without chat template.")] = False,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text (repeatable).")
    ] = None,
    max_new_tokens: o.MaxNewTokens = None,
    color: Annotated[
        bool, typer.Option("--color", help="Paint tokens by temperature; underline uncertain steps (terminal only).")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="One JSON line a token: entropy, step, temperature.")
    ] = None,
    policy: o.Policy = None,
    tau0: o.Tau0 = None,
    t_low: o.TLow = None,
    t_high: o.THigh = None,
    window: o.Window = None,
    estimator: o.Estimator = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    min_p: o.MinP = None,
    config: o.Config = None,
    engine: o.Engine = "transformers",
    device: o.Device = None,
    dtype: o.Dtype = None,
    batch_size: o.BatchSize = 1,
    batch_invariant: o.BatchInvariant = None,
    activations: o.Activations = "w4a4",
    trust_remote_code: o.TrustRemoteCode = False,
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """ReSET decoding, streamed.

    The prompt comes from -p, a file or standard input; on a terminal with none of them a chat begins. Standard error
    shows the sampling parameters in use and, at the end, speed, share of cooled tokens and steps.

    \b
    Examples:
      reset generate -p "What is 17 * 23?"
      echo "What is 17 * 23?" | reset generate --trace trace.jsonl
      reset generate -p "What is 17 * 23?" --policy fixed --temperature 0.6 --json
    """
    for option, given in (("-p", prompt), ("--system", system), *(("--stop", one) for one in stop or ())):
        _check_utf8(option, given)
    text = _prompt(prompt, prompt_file, json)
    if text is None and trace is not None:
        raise UsageError("--trace needs one prompt; give -p, a file or standard input")
    if trace is not None:
        check_writable_file(trace, "--trace", "a trace")
    out = Output(json=json, quiet=quiet, debug=debug)
    choice = PolicyOptions(
        policy, estimator, tau0, t_low, t_high, window, temperature, top_p, top_k, min_p, config
    )  # fmt: skip
    runs = EngineChoice(engine, device, dtype, batch_size, batch_invariant, activations, trust_remote_code)
    model = load(checkpoint, out.reporter, config=config)
    settings = model.settings(choice, out.reporter)
    if color and not out.stream.isatty():
        out.reporter.warn("--color has no effect here, standard output is not a terminal")
        color = False
    opened = runs.opener(model, out.reporter)()
    session = Session(
        out, opened, model, settings, seed=seed, max_new_tokens=max_new_tokens, stop=tuple(stop or ()), color=color,
        raw=raw, thinking=thinking,
    )  # fmt: skip
    try:
        messages = [{"role": "system", "content": system}] if system else []
        if text is None:
            session.chat(messages)
        else:
            document = session.answer([*messages, {"role": "user", "content": text}], 0, trace)
            if json:
                out.result(document, "")
    finally:
        opened.close()


def _check_utf8(option: str, text: str | None) -> None:
    """Raises UsageError if ``text`` came from bytes that are not UTF-8; Python holds those as lone surrogates."""
    try:
        (text or "").encode("utf-8")
    except UnicodeEncodeError as exc:
        raise UsageError(f"{option} is not UTF-8 (character {exc.start}); convert it") from exc


def _prompt(prompt: str | None, file: Path | None, json: bool) -> str | None:
    """The prompt; None for a chat.

    Raises:
        UsageError: two prompts, an empty one, or none where no chat can be.
        ResetError: a file that cannot be read as UTF-8.
    """
    if prompt is not None and file is not None:
        raise UsageError("give the prompt by -p or by --prompt-file, not both")
    text, source = prompt, "the prompt"
    if file is not None:
        source = f"the prompt in {file}"
        try:
            text = file.expanduser().read_bytes().decode("utf-8")
        except OSError as exc:
            raise ResetError(f"cannot read --prompt-file {file}: {exc.strerror or exc}") from exc
        except UnicodeDecodeError as exc:
            raise ResetError(f"--prompt-file {file} is not UTF-8 (byte {exc.start}); convert it") from exc
    elif prompt is None:
        if sys.stdin is not None and sys.stdin.isatty():
            if json:
                raise UsageError("--json needs a prompt; give -p TEXT, --prompt-file FILE or standard input")
            return None
        source = "the prompt on standard input"
        try:
            text = sys.stdin.buffer.read().decode("utf-8") if sys.stdin is not None else ""
        except OSError as exc:
            raise ResetError(f"cannot read the prompt on standard input: {exc.strerror or exc}") from exc
        except UnicodeDecodeError as exc:
            raise ResetError(f"standard input is not UTF-8 (byte {exc.start}); convert it") from exc
    assert text is not None
    if not text.strip():
        raise UsageError(f"{source} is empty; give some text by -p TEXT, --prompt-file FILE or standard input")
    return text if prompt is not None else text.rstrip("\r\n")


class Session:
    """One loaded model answering one prompt or a chat. Says on standard error what it samples with."""

    def __init__(
        self, out: Output, engine: Engine, model: Loaded, settings: PolicySettings, *, seed: int = 0,
        max_new_tokens: int | None = None, stop: tuple[str, ...] = (), color: bool = False, raw: bool = False,
        thinking: bool = True,
    ):  # fmt: skip
        self.out, self.engine, self.model, self.settings, self.seed = out, engine, model, settings, seed
        self.max_new_tokens, self.stop, self.color = max_new_tokens, stop, color
        self.raw, self.thinking = raw, thinking
        used = ", ".join(
            f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}"
            for k, v in settings.header().items()
            if v is not None and k != "name"
        )
        info = engine.info
        out.reporter.info(f"policy {settings.name}" + (f": {used}" if used else ""))
        out.reporter.info(f"engine {info.engine}, {info.device}, {info.dtype}, context {info.context}, seed {seed}")

    def chat(self, messages: list[dict[str, str]]) -> None:
        """Turn after turn until the end of input; Ctrl-C ends an answer, and at the prompt the chat."""
        self.out.reporter.info("chat; an empty line or Ctrl-D ends it")
        turn = 0
        while True:
            print("> ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                return
            messages.append({"role": "user", "content": line.rstrip("\n")})
            answer = self.answer(messages, turn, None)
            messages.append({"role": "assistant", "content": answer["text"]})
            turn += 1

    def answer(self, messages: list[dict[str, str]], index: int, trace: Path | None) -> dict[str, Any]:
        """Generate one answer, shown as it comes unless a document is wanted; that document.

        ``index`` is the prompt's place in the seed.
        """
        from resetcli.base.seeds import sample_seed
        from resetcli.engines.protocol import Request

        if self.raw:
            ids = self.engine.encode("\n\n".join(message["content"] for message in messages))
        else:
            ids = self.engine.encode_chat(messages, thinking=self.thinking)
        info = self.engine.info
        room = info.context - len(ids)
        if room < 1:
            raise ResetError(
                f"the prompt has {len(ids)} tokens and the context of {info.model} is {info.context}; shorten it"
            )
        limit = min(self.max_new_tokens or self.model.token_limit, room)
        if self.max_new_tokens and limit < self.max_new_tokens:
            self.out.reporter.info(f"the context leaves {limit} of the {self.max_new_tokens} tokens asked for")
        request = Request(
            "0", tuple(ids), sample_seed(self.seed, "generate", index), limit, stop=self.stop
        )  # fmt: skip
        tally = _Tally(self.settings)
        completion: Completion | None = None
        with self._watchers(trace, tally) as on_token:
            try:
                for done in self.engine.generate([request], self.settings, on_token=on_token):
                    completion = done
            except KeyboardInterrupt:
                if not self.out.json:
                    self.out.write(self._reset + "\n")
                self.out.reporter.info(tally.line("interrupted"))
                raise
        assert completion is not None
        if completion.finish_reason == "error":
            if not self.out.json:
                self.out.write(self._reset + "\n")
            raise ResetError(completion.error or "the logits are not finite")
        return self._close(completion, tally)

    @property
    def _reset(self) -> str:
        return "\x1b[0m" if self.color else ""

    @contextlib.contextmanager
    def _watchers(self, trace: Path | None, tally: _Tally) -> Iterator[Callable[[TokenEvent], None]]:
        """What looks at each token: the tally, the trace, the screen."""
        from resetcli.engines.trace import TraceWriter

        with contextlib.ExitStack() as stack:
            writer = None
            if trace is not None:
                writer = stack.enter_context(
                    TraceWriter(
                        trace.expanduser(), settings=self.settings, model=self.engine.info.model, seed=self.seed
                    )
                )

            def on_token(event: TokenEvent) -> None:
                tally.add(event)
                if writer is not None:
                    writer.on_token(event)
                if not self.out.json and event.text:
                    self.out.write(paint(event) if self.color else event.text)

            yield on_token

    def _close(self, completion: Completion, tally: _Tally) -> dict[str, Any]:
        speed = completion.n_tokens / completion.seconds if completion.seconds > 0 else None
        if not self.out.json:
            self.out.write(self._reset + ("" if completion.text.endswith("\n") else "\n"))
        self.out.reporter.info(tally.line(f"finished by {completion.finish_reason}", speed))
        return {
            "text": completion.text,
            "n_tokens": completion.n_tokens,
            "finish_reason": completion.finish_reason,
            "seed": self.seed,
            "tokens_per_s": speed,
            "policy": self.settings.header(),
        }


class _Tally:
    """Counts over the tokens of one answer, for its closing line."""

    def __init__(self, settings: PolicySettings):
        self.settings = settings
        self.started = time.perf_counter()
        self.tokens = self.cooled = self.steps = self.uncertain = 0

    def add(self, event: TokenEvent) -> None:
        """One token more."""
        self.tokens += 1
        self.steps += bool(event.boundary)
        self.uncertain += bool(event.uncertain)
        if self.settings.needs_entropy and event.temperature is not None:
            self.cooled += event.temperature < self.settings.t_high

    def line(self, ending: str, speed: float | None = None) -> str:
        """The closing line."""
        speed = speed if speed is not None else self.tokens / max(time.perf_counter() - self.started, 1e-9)
        parts = [f"{self.tokens} tokens", f"{speed:.1f} tokens/s"]
        if self.settings.needs_entropy and self.tokens:
            parts.append(f"{100 * self.cooled / self.tokens:.0f} % cooled")
        if self.settings.needs_steps and self.tokens:
            parts.append(f"{self.steps} step{'s' * (self.steps != 1)}")
            parts.append(f"{100 * self.uncertain / self.tokens:.0f} % in uncertain steps")
        return ", ".join([*parts, ending])


COOL, WARM = (86, 156, 214), (226, 130, 62)


def paint(event: Any) -> str:
    """The token's text in a colour from blue (T = 0) to orange (T >= 1), underlined in an uncertain step."""
    heat = min(max(event.temperature or 0.0, 0.0), 1.0)
    red, green, blue = (round(c + (w - c) * heat) for c, w in zip(COOL, WARM, strict=True))
    line = "4" if event.uncertain else "24"
    return f"\x1b[{line};38;2;{red};{green};{blue}m{event.text}\x1b[0m"
