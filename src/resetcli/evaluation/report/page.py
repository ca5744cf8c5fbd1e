"""The parts of the page as HTML. Whatever comes from a model, a data set or a file goes through `safe`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from resetcli.engines.prompting import opens_thought
from resetcli.evaluation.report import figures
from resetcli.evaluation.report.safe import safe
from resetcli.evaluation.report.steps import StepTrace
from resetcli.evaluation.report.summary import VERDICTS, Summary
from resetcli.evaluation.scoring.extraction import ThoughtMarkers, split_thought
from resetcli.evaluation.selection import Selection

RUN_KEPT = 50_000
"""Characters of run.json on the page."""


def percent(value: Any) -> str:
    """A share for people."""
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "-"


def number(value: Any, digits: str = ".0f") -> str:
    """A number for people."""
    return format(value, digits) if isinstance(value, int | float) else "-"


def about(run: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Model, policy and circumstances in a few lines."""
    model, engine, policy = (run.get(key) or {} for key in ("model", "engine", "policy"))
    timing = results.get("timing") or {}
    used = ", ".join(f"{k} {v}" for k, v in policy.items() if v is not None and k not in ("name", "tau_0_source"))
    limit = (run.get("sampling") or {}).get("max_new_tokens")
    lines = [
        f"policy {policy.get('name')} ({used})",
        f"{engine.get('engine')} on {engine.get('device')}, {engine.get('dtype')}"
        + (", NVFP4" if engine.get("nvfp4") else "")
        + f"; seed {run.get('seed')}, at most {limit} tokens a sample, context {engine.get('context')}",
        f"fingerprint {str(model.get('fingerprint'))[:16]}",
    ]
    if timing.get("finished"):
        speed = timing.get("tokens_per_s")
        lines.append(f"finished {timing['finished']}" + (f", {speed:.1f} tokens/s" if speed else ""))
    return "".join(f'<p class="soft">{safe(line)}</p>' for line in lines)


def notices(run: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """What a reader must know before the scores."""
    said = []
    named = results.get("doc_ids")
    if words := Selection(results.get("limit"), tuple(named) if named else None).words:
        said.append(f"Limited run: only {words}. Not comparable with full runs.")
    if "gpqa" in results["results"]:
        said.append(
            "This page holds questions of GPQA, whose authors ask that they not be published in plain text: keep it to "
            "yourself."
        )
    for name, task in results["results"].items():
        if n := task.get("prompts_too_long"):
            said.append(
                f"{name}: {n} of {task['n']} prompts did not fit the context of {results.get('context')} tokens; "
                "their samples score 0."
            )
        if n := task.get("errors"):
            said.append(f"{name}: {n} samples failed, as their logits were not finite; they score 0.")
        if n := task.get("empty"):
            said.append(f"{name}: {n} samples have no text.")
    return "".join(f'<p class="notice">{safe(line)}</p>' for line in said)


SCORED = ("task", "n", "k", "avg@k", "95 % interval", "", "pass@k", "maj@k", "truncated", "unparsed",
          "tokens", "median")  # fmt: skip
TEXTS = ("task", "texts", "tokens", "word perplexity", "byte perplexity", "token perplexity", "bits/byte")


def scores(results: Mapping[str, Any]) -> str:
    """The tables of results: scored tasks, then perplexities."""
    scored, texts = [], []
    for name, task in results["results"].items():
        if "avg@k" in task:
            low, high = task["ci95"]
            scored.append([
                safe(name), safe(task["n"]), safe(task["repeats"]), percent(task["avg@k"]),
                f"{percent(low)} to {percent(high)}",
                figures.interval(task["avg@k"], low, high), *(percent(task[k]) for k in SHARES),
                number(task["tokens_mean"]), number((task.get("tokens_percentiles") or {}).get("50")),
            ])  # fmt: skip
        else:
            keys = ("word_perplexity", "byte_perplexity", "token_perplexity", "bits_per_byte")
            counts = (safe(task.get(key)) for key in ("n", "tokens"))
            texts.append([safe(name), *counts, *(number(task.get(k), ".4g") for k in keys)])
    return "".join(_table(head, rows) for head, rows in ((SCORED, scored), (TEXTS, texts)) if rows)


SHARES = ("pass@k", "maj@k", "truncated", "unparsed")


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'


def lengths(summary: Summary, results: Mapping[str, Any]) -> str:
    """One histogram a task."""
    parts = []
    key = " ".join(_key(why, why) for why in VERDICTS)
    for task, counts in summary.lengths.items():
        mean = (results["results"].get(task) or {}).get("tokens_mean")
        drawn = figures.lengths(counts, mean)
        levels = (results["results"].get(task) or {}).get("tokens_percentiles") or {}
        spread = ", ".join(f"{p}\N{NO-BREAK SPACE}%:\N{NO-BREAK SPACE}{number(level)}" for p, level in levels.items())
        spread = safe(f" Percentiles {spread}.") if spread else ""
        total = sum(counts.values())
        parts.append(
            f"<figure><h3>{safe(task)}</h3>{drawn}<figcaption>Samples by tokens generated, {total} samples: {key}."
            f"{spread}</figcaption></figure>"
        )
    return "".join(parts) or "<p>No samples with text.</p>"


def entropies(traces: Mapping[str, StepTrace | str]) -> str:
    """One figure a task, or the reason why there is none."""
    parts = []
    for task, trace in traces.items():
        if isinstance(trace, str):
            parts.append(f"<figure><h3>{safe(task)}</h3><p>{safe(trace)}</p></figure>")
            continue
        policy = trace.header["policy"]
        drawn, joined = figures.entropies(trace.steps, policy.get("tau_0"))
        tokens = sum(step.tokens for step in trace.steps)
        said = f"Mean entropy in nats of each step of {trace.request}: {tokens} tokens, {len(trace.steps)} steps"
        said += f", {joined} to a column" if joined > 1 else ""
        cooled = [step.cooled for step in trace.steps]
        if None not in cooled:
            said += f"; {percent(sum(c or 0 for c in cooled) / tokens)} of its tokens drawn at T_low"
        key = ""
        if any(step.uncertain for step in trace.steps):
            key = f" By the policy: {_key('confident', 'confident')} {_key('uncertain', 'uncertain')}"
        caption = f"<figcaption>{safe(said)}.{key}</figcaption>"
        parts.append(f"<figure><h3>{safe(task)}</h3>{drawn}{caption}</figure>")
    return "".join(parts) or "<p>No task that generates text.</p>"


def _key(kind: str, name: str) -> str:
    return f'<span class="named"><span class="key {kind}"></span>{name}</span>'


def samples_note(summary: Summary, file: str) -> str:
    """How many samples of ``file`` are listed and how they were chosen, where not all are, or not whole."""
    if not summary.total:
        return "<p>This run has no samples with text.</p>"
    shown = len(summary.chosen)
    if shown == summary.total:
        said = f"All {shown} samples."
    else:
        said = (
            f"{shown} of {summary.total} samples, shared evenly over tasks and their verdicts, first repeats first. "
            f"All are in {file}. Shares in this list are not those of the run."
        )
    if summary.cut:
        said += f" Of {summary.cut} the prompt or the text has over {summary.cap} characters and is cut in the middle."
    return f'<p class="soft" id="note">{safe(said)}</p>'


def buttons(summary: Summary) -> str:
    """One switch a verdict, with the run's counts."""
    counts = summary.verdicts()
    return "".join(
        f'<button type="button" data-why="{why}" aria-pressed="false">{why} ({counts[why]})</button>'
        for why in VERDICTS
    )


def task_options(summary: Summary) -> str:
    """The tasks to choose from."""
    return "".join(f'<option value="{safe(task)}">{safe(task)}</option>' for task in summary.lengths)


def sample(record: Mapping[str, Any], place: str, markers: ThoughtMarkers, cap: int) -> str:
    """One sample: verdict, answer and key, then its prompt and its thought folded, and what follows the thought.

    ``place``: where it stands, for the reader. ``cap``: characters from which on a prompt or a text is cut.
    """
    text, prompt = record["text"], record.get("prompt")
    opened = isinstance(prompt, str) and opens_thought(prompt, markers.open, markers.close)
    split = split_thought(text, markers, opened_in_prompt=opened)
    thought = text[: len(text) - len(split.answer)]
    why, reason = record["why"], record["finish_reason"]
    ends = {"length": "cut off at the token limit", "error": "failed: its logits were not finite"}
    facts = [f"{record['n_tokens']} tokens", ends.get(reason, "ended by itself"), f"seed {record['seed']}"]
    answer = "none" if record["answer"] is None else f"<b>{safe(record['answer'])}</b>"
    # The key of a program is its problem's id: its tests are the key.
    key = "" if record["target"] == record["doc_id"] else f", key <b>{safe(record['target'])}</b>"
    parts = [
        f'<article data-why="{safe(why)}" data-task="{safe(record["task"])}" data-doc="{safe(record["doc_id"])}">'
        f"<h3>{safe(record['task'])} {safe(record['doc_id'])}, repeat {record['repeat']}: {safe(why)}</h3>"
        f"<p>answer {answer}{key}</p>"
        f'<p class="soft">{safe(", ".join(facts))}, {place}</p>'
    ]
    if isinstance(prompt, str):
        body = _cut(prompt, cap, place)
        parts.append(f"<details><summary>prompt</summary><pre>{body}</pre></details>")
    if thought:
        state = ", never closed" if split.state == "open" else ""
        body = _cut(thought, max(cap - len(split.answer), cap // 4), place)
        name = f"thought, {len(thought)} characters{state}"
        parts.append(f'<details class="thought"><summary>{name}</summary><pre>{body}</pre></details>')
    if split.answer.strip():
        parts.append(f'<pre class="answer">{_cut(split.answer.strip(), cap, place)}</pre>')
    elif not thought:
        parts.append('<p class="cut">no text</p>')
    return "".join(parts) + "</article>\n"


def _cut(text: str, cap: int, place: str) -> str:
    """The text as HTML, its middle left out where it is longer than ``cap`` characters; the end matters as much."""
    if len(text) <= cap:
        return safe(text)
    head, tail = cap - cap // 2, cap // 2
    gap = f"[{len(text) - cap} characters left out; {place} has them]"
    return f'{safe(text[:head])}<span class="cut"> {gap} </span>{safe(text[len(text) - tail :])}'


def run_record(run: Mapping[str, Any]) -> str:
    """``run.json`` for reading, its middle left out if it is very long."""
    text = json.dumps(run, indent=2, ensure_ascii=False)
    if len(text) <= RUN_KEPT:
        return safe(text)
    half = RUN_KEPT // 2
    return f'{safe(text[:half])}<span class="cut"> [... see run.json ...] </span>{safe(text[-half:])}'
