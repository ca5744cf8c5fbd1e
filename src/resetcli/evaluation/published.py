"""What a finished run leaves beside ``results.json``: lm-eval's own results file and ``report.html``.

Both are for people and other programs; nothing of ours reads them, so a failure to write one is a warning and the
run's results stand. lm-eval's file has what its command writes, and is named so that tools which look for
``results_*.json`` find it; the dump of the machine that lm-eval adds is left out, as run.json has versions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import write_text
from resetcli.base.reporting import Reporter
from resetcli.evaluation.runs import LM_EVAL_RESULTS, REPORT


def write_lm_eval_results(
    folder: Path, values: Mapping[str, Any], *, run: Mapping[str, Any], seconds: float, finished: str
) -> None:
    """Write what lm-eval's evaluator returned in the form of lm-eval's own results file.

    Args:
        values: of ``lm_eval.evaluator.evaluate``.
        run: ``run.json``, for model and circumstances.
        seconds, finished: how long this sitting took, and when it ended (ISO 8601).

    Raises:
        ResetError: the file cannot be written.
    """
    from lm_eval.utils import handle_non_serializable, sanitize_model_name

    name = run["model"]["name"]
    # Functions, the whole data set among them, that a task of ours is made with: lm-eval writes them by name.
    configs = {
        task: {k: v.__name__ if callable(v) else v for k, v in config.items() if k != "custom_dataset"}
        for task, config in values.get("configs", {}).items()
    }
    document = {
        **{k: v for k, v in values.items() if k not in ("samples", "configs")},
        "configs": configs,
        "config": {
            "model": "reset",
            "model_args": {"pretrained": run["model"]["path"], "policy": run["policy"]["name"]},
            "batch_size": run["conditions"]["batch_size"],
            "device": run["engine"]["device"],
            "limit": run["settings"]["limit"],
            "doc_ids": run["settings"].get("doc_ids"),
            "limited": run["limited"],
            "random_seed": run["seed"],
        },
        "date": time.time(),
        "finished": finished,
        "lm_eval_version": run["conditions"]["versions"].get("lm-eval"),
        "model_source": "reset",
        "model_name": name,
        "model_name_sanitized": sanitize_model_name(name),
        "total_evaluation_time_seconds": str(seconds),
    }
    text = json.dumps(document, indent=2, default=handle_non_serializable, ensure_ascii=False)
    write_text(Path(folder) / LM_EVAL_RESULTS, text + "\n")


def publish(
    folder: Path, values: Mapping[str, Any], run: Mapping[str, Any], timing: Mapping[str, Any], reporter: Reporter
) -> None:
    """Write both files of a run that has just been finished; ``timing`` as in results.json. Failures are warnings."""
    try:
        write_lm_eval_results(folder, values, run=run, seconds=timing["seconds"], finished=timing["finished"])
    except ResetError as exc:
        reporter.warn(f"no {LM_EVAL_RESULTS}: {exc}")
    publish_report(folder, reporter)


def publish_report(folder: Path, reporter: Reporter, *, missing_only: bool = False) -> None:
    """Write ``report.html``, with ``missing_only`` where there is none; a warning if it cannot be written."""
    from resetcli.evaluation.report.write import write_report

    if missing_only and (Path(folder) / REPORT).exists():
        return
    try:
        write_report(folder, reporter=reporter)
    except ResetError as exc:
        reporter.warn(f"no {REPORT}: {exc}")
