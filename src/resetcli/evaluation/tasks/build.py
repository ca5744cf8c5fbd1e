"""What the YAML files call, and lm-eval task objects built from them over our own data sources.

lm-eval 0.4.13 takes documents from a callable named in the YAML (``custom_dataset``), so nothing is asked of the hub
unless our ``DataSource`` does. ``lm_eval`` itself builds tasks without telling the callable where the data is; then
``RESET_DATA_DIR`` and ``RESET_GPQA_PASSWORD`` decide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import resetcli.evaluation.lm  # noqa: F401  registers the model "reset" with lm-eval
from resetcli.data.sources import DataSource
from resetcli.engines.thoughts import DEFAULT
from resetcli.evaluation.code.grade import score_code
from resetcli.evaluation.code.permission import allowed_by_environment, require_permission
from resetcli.evaluation.scoring.extraction import ThoughtMarkers
from resetcli.evaluation.scoring.score import score_output
from resetcli.evaluation.tasks import TASKS, TaskSpec
from resetcli.evaluation.tasks.documents import documents

_source: ContextVar[DataSource | None] = ContextVar("source", default=None)


@contextlib.contextmanager
def using(source: DataSource) -> Iterator[None]:
    """Tasks built inside the block read from ``source``."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


def dataset(*, data: str, **_: Any) -> dict[str, Any]:
    """lm-eval's ``custom_dataset``: {"test": rows} of the task data named ``data``; what lm-eval adds is not used."""
    from datasets import Dataset

    rows, _sha256 = documents(data, _source.get() or DataSource.resolve())
    return {"test": Dataset.from_list(rows)}


def process_math(doc: dict[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Mean score of a document's samples with one mathematical answer."""
    return _mean_score("math", doc, results)


def process_letters(doc: dict[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Mean score of a document's samples with one letter."""
    return _mean_score("letters", doc, results)


def process_code(doc: dict[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Mean score of a document's samples with one program each. Runs them, outside a run of ours only if
    RESET_ALLOW_CODE_EXECUTION is 1."""
    return _mean_score("code", doc, results)


def _mean_score(kind: str, doc: dict[str, Any], results: Sequence[Any]) -> dict[str, float]:
    outputs = [results[0]] if isinstance(results[0], str) else results[0]
    total = 0.0
    for output in outputs:
        markers = ThoughtMarkers(*getattr(output, "markers", DEFAULT))
        # Our adapter's outputs know how they ended, and in a run what they scored; other models give plain text.
        if (record := getattr(output, "record", None)) is not None:
            total += record["score"]
        elif kind == "code":
            require_permission([TASKS["livecodebench"]], allowed_by_environment())
            total += score_code(
                doc, output, getattr(output, "finish_reason", None), markers=markers,
                opened_in_prompt=getattr(output, "opened_in_prompt", False),
            ).score  # fmt: skip
        else:
            total += score_output(
                kind, output, doc["target"], getattr(output, "finish_reason", None), markers=markers,
                alt_answers=doc["alt_answers"] or (), opened_in_prompt=getattr(output, "opened_in_prompt", False),
            ).score  # fmt: skip
    return {"exact_match": total / len(outputs)}


def build_task(spec: TaskSpec, source: DataSource, *, repeats: int, max_new_tokens: int) -> Any:
    """The lm-eval task object of ``spec`` (``ConfigurableTask``), all ``repeats`` kept for scoring.

    Raises:
        ResetError: see ``documents``.
    """
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(spec.yaml, resolve_func=True)
    if spec.kind != "perplexity":
        config["repeats"] = repeats
        config["generation_kwargs"] = {**config["generation_kwargs"], "max_gen_toks": max_new_tokens}
        config["filter_list"] = [{"name": "score", "filter": [{"function": "take_first_k", "k": repeats}]}]
    with using(source):
        return ConfigurableTask(config=config)
