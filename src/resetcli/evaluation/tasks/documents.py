"""Documents of a task from our data sources; needs no lm-eval, so missing data is told before anything heavy loads."""

from __future__ import annotations

import itertools
import re
from typing import Any

from resetcli.data.problems import easy_problems
from resetcli.data.sources import DataSource, load_task_rows, load_wikitext


def documents(name: str, source: DataSource) -> tuple[list[dict[str, Any]], str]:
    """Documents of a task and the SHA-256 of its data. Each has "doc_id" (str) and what the YAML's prompt names.

    Raises:
        ResetError: the data is missing, damaged, gated or locked; one line.
    """
    if name == "wikitext":
        text, sha256, _ = load_wikitext(source)
        return [{"doc_id": str(i), "text": part} for i, part in enumerate(articles(text))], sha256
    if name == "own":
        own = easy_problems()
        rows = zip(own.ids, own.problems, own.answers, strict=True)
        return [{"doc_id": str(i), "problem": p, "target": a, "alt_answers": []} for i, p, a in rows], own.sha256
    data = load_task_rows(name, source)
    return data.rows, data.sha256


def articles(text: str) -> list[str]:
    """Cut WikiText before each title line (`` = Title = `` between blank lines); joined, the parts are ``text``."""
    cuts = [m.start(1) for m in re.finditer(r"(?m)(?:^\s*\n|\A)^( = [^=\n][^\n]* = $)(?=\n\s*\n)", text)]
    edges = [0, *(c for c in cuts if text[:c].strip()), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges) if a < b]
