"""What opens and closes a model's thought: the model's own markers, and keeping them in the generated text.

Scoring cuts the thought off at its markers, so they must be right and must be seen. Most models write ``<think>`` and
``</think>``; others have a pair of their own, in some of them special tokens, which decoding to text drops. A pair is
the model's own if its tokenizer has both as tokens, else if its chat template names both. Only small files are read,
because the markers belong to an evaluation's settings and those are known before a model is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from resetcli.base.errors import UsageError

DEFAULT = ("<think>", "</think>")

KNOWN = (
    DEFAULT,
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<thought>", "</thought>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Pairs in use, the common one first."""

LARGEST = 64 << 20
"""Bytes of a tokenizer file beyond which it is not read for its markers."""


def own_markers(model: Path) -> tuple[str, str] | None:
    """The pair of ``KNOWN`` that the tokenizer in the folder ``model`` has as tokens, or its template names."""
    config = _json(model / "tokenizer_config.json")
    added = config.get("added_tokens_decoder")
    tokens = {t.get("content") for t in added.values() if isinstance(t, dict)} if isinstance(added, dict) else set()
    tokens |= set(_json(model / "added_tokens.json"))
    if not tokens:
        listed = _json(model / "tokenizer.json").get("added_tokens")
        tokens = {t.get("content") for t in listed if isinstance(t, dict)} if isinstance(listed, list) else set()
    template = json.dumps(config.get("chat_template") or "", ensure_ascii=False) + _text(model / "chat_template.jinja")
    for pair in KNOWN:
        if tokens.issuperset(pair):
            return pair
    return next((pair for pair in KNOWN if all(marker in template for marker in pair)), None)


def resolve_markers(model: Path | None = None, start: str | None = None, end: str | None = None) -> tuple[str, str]:
    """(start, end): what was given, else the model's own pair, else ``<think>`` and ``</think>``.

    With ``end`` alone, the start is the one that goes with it: by ``KNOWN``, else ``end`` without its slash.

    Raises:
        UsageError: a marker is blank, or both are the same.
    """
    for name, marker in (("--thought-start", start), ("--thought-end", end)):
        if marker is not None and not marker.strip():
            raise UsageError(f"{name} must not be blank; leave it out for the model's own marker")
    if start is None or end is None:
        own = (own_markers(model) if model is not None else None) or DEFAULT
        if end is None:
            end = next((e for s, e in KNOWN if s == start), own[1])
        elif end != own[1]:
            plain = re.sub(r"(?<=[<\[◁|])/", "", end)
            start = start or next((s for s, e in KNOWN if e == end), plain if plain != end else own[0])
        start = start or own[0]
    if start == end:
        raise UsageError(f"--thought-start and --thought-end are both {start!r}; they must differ")
    return start, end


def kept_tokens(tokenizer: Any, markers: Iterable[str] = ()) -> dict[int, str]:
    """Id -> text of the special tokens that open or close a thought: these stay in the text, unlike all others."""
    wanted = {marker for pair in KNOWN for marker in pair} | set(markers)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {index: str(token) for index, token in added.items() if token.special and str(token) in wanted}


def keep_markers(engine: Any, markers: Iterable[str]) -> None:
    """Have ``engine`` leave ``markers`` in its texts even where they are special tokens (and not of ``KNOWN``)."""
    kept = getattr(engine, "kept", None)
    if kept is not None:
        kept.update(kept_tokens(engine.tokenizer, markers))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8") if path.stat().st_size <= LARGEST else ""
    except (OSError, ValueError):
        return ""  # the loader says what is wrong with a tokenizer


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
