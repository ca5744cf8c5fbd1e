"""Calibration text: documents in, equal-length rows of token ids out.

Documents are joined by the end token and cut into rows of one length, so no row is padded and no padding token
can enter the activation ranges; a BOS, where the tokenizer adds one, opens every row. The tokenizer is only read.

Text sources: a ``.txt`` file (one document), a ``.jsonl`` file with ``text``, a hub data set
with a ``text`` column, or the bundled text (written for this project). The held-out text of the closing check is
bundled too and apart from the calibration text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.base.files import sha256_file
from resetcli.base.reporting import Reporter

BUNDLED = "bundled"
_FILES = (".txt", ".jsonl", ".json", ".md")
_ROW_LIMIT = 4096  # rows read of a hub data set at most


@dataclass(frozen=True)
class Documents:
    """Texts in order, where they come from, and the SHA-256 of the file (hub: of the texts read)."""

    texts: list[str]
    origin: str
    sha256: str


@dataclass(frozen=True)
class TokenRows:
    """``ids`` int64 [rows, length]: whole rows only. ``documents`` says what they were cut from."""

    ids: torch.Tensor
    documents: Documents


def bundled_documents(name: str = "calibration_text.txt") -> Documents:
    """The bundled text ``calibration_text.txt`` or ``heldout_text.txt``."""
    raw = (resources.files("resetcli.quantization") / name).read_bytes()
    texts = [part.strip("\n") for part in raw.decode("utf-8").split("\n----\n")]
    return Documents(texts, f"{BUNDLED} {name}", hashlib.sha256(raw).hexdigest())


def load_documents(spec: str | None, reporter: Reporter | None = None) -> Documents:
    """The documents that ``--calib-data`` names; None is the bundled text.

    Raises:
        ResetError: the file is missing or has no usable line, or the hub data set cannot be read.
    """
    if spec is None:
        return bundled_documents()
    path = Path(spec).expanduser()
    if path.is_file():
        return _from_file(path)
    if path.exists():
        raise ResetError(f"calibration data {spec} is a folder; name a .txt or .jsonl file, or a hub data set")
    if path.suffix.lower() in _FILES or not re.fullmatch(r"[\w.\-]+/[\w.\-]+(@[\w.\-/]+)?", spec) or spec[0] == ".":
        raise ResetError(f"calibration file {spec} does not exist; name a .txt or .jsonl file, or a hub data set")
    return _from_hub(spec, reporter or Reporter())


def token_rows(documents: Documents, tokenizer: Any, rows: int, length: int, reporter: Reporter) -> TokenRows:
    """Up to ``rows`` rows of ``length`` tokens. Shorter text gives fewer rows, or one shorter row, with a warning.

    Raises:
        ResetError: the text has fewer than 16 tokens.
    """
    bos = _leading_bos(tokenizer)
    body = length - len(bos)
    stream: list[int] = []
    for text in documents.texts:
        # No more of a long file than can be used: a token is rarely over 20 characters.
        stream += tokenizer(text[: 20 * rows * body], add_special_tokens=False)["input_ids"]
        if tokenizer.eos_token_id is not None:
            stream.append(tokenizer.eos_token_id)
        if len(stream) >= rows * body:
            break
    if len(stream) < 16:
        raise ResetError(f"calibration data {documents.origin} gives only {len(stream)} tokens; name a longer text")
    if len(stream) < body:
        body = len(stream)
    count = min(rows, len(stream) // body)
    if count < rows:
        reporter.warn(f"{documents.origin} gives {count} rows of {body} tokens where {rows} of {length} were asked for")
    cut = [bos + stream[i * body : (i + 1) * body] for i in range(count)]
    return TokenRows(torch.tensor(cut, dtype=torch.int64), documents)


def _leading_bos(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer itself puts before a text, if they are a BOS; found by trying, not by flags."""
    ids = tokenizer("a")["input_ids"]
    return [ids[0]] if ids and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id else []


def _from_file(path: Path) -> Documents:
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ResetError(f"calibration file {path} cannot be read as UTF-8 text ({exc})") from exc
    if path.suffix.lower() in (".jsonl", ".json"):
        texts = []
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("text"), str) and row["text"].strip():
                texts.append(row["text"])
        needed = 'one JSON object a line with a "text"'
    else:
        texts = [text] if text.strip() else []
        needed = "plain text"
    if not texts:
        raise ResetError(f"calibration file {path} has no usable line; it needs {needed}")
    return Documents(texts, path.name, sha256_file(path))


def _from_hub(spec: str, reporter: Reporter) -> Documents:
    from datasets import load_dataset

    name, _, revision = spec.partition("@")
    remedy = "name a local .txt or .jsonl file with --calib-data"
    texts: list[str] = []
    try:
        with reporter.phase(f"Fetch {spec}"):
            for i, row in enumerate(load_dataset(name, split="train", streaming=True, revision=revision or None)):
                if isinstance(row.get("text"), str) and row["text"].strip():
                    texts.append(row["text"])
                if i + 1 >= _ROW_LIMIT:
                    break
    except Exception as exc:  # the data set library raises its own, the hub's and the network's errors alike
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]
        raise ResetError(f"calibration data set {spec} cannot be read from the hub: {reason}; {remedy}") from exc
    if not texts:
        raise ResetError(f"calibration data set {spec} has no column 'text' with text in it; {remedy}")
    return Documents(texts, spec, hashlib.sha256("\0".join(texts).encode()).hexdigest())
