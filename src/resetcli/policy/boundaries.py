"""Where reasoning steps end: a four-state automaton over the bytes of the generated text (design 1.3).

A token ends the step if after it the text holds a blank line ("\\n\\n", with "\\r\\n" read as "\\n") that was not
complete before it. Only line feeds and carriage returns matter, so four states are enough, and each token acts on
them as a fixed map. The maps of a whole vocabulary make one table that a tensor lookup walks, so boundaries
split over tokens cost nothing. Token bytes come from the tokenizer's own decoder rules (byte-level alphabets,
<0xNN> byte tokens, replacements); where those are unknown, from decoding each token alone, which can lose a
partial character but no line feed. Tables are cached on disk under a hash of vocabulary and decoder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resetcli.base.files import cache_dir

OTHER, NEWLINE, CR, NEWLINE_CR = range(4)
"""States: the text ends in something else; in a line feed; in a pending CR after else; in one after a line feed."""

_VERSION = 1  # of the cached tables
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def advance(state: int, data: bytes) -> tuple[int, bool]:
    """The state after ``data``, and whether a blank line became complete within it."""
    fired = False
    for byte in data:
        if byte == 0x0A:
            # A pending CR belongs to this line feed; what counts is what stood before it.
            fired |= state in (NEWLINE, NEWLINE_CR)
            state = NEWLINE
        elif byte == 0x0D:
            state = NEWLINE_CR if state == NEWLINE else CR
        else:
            state = OTHER
    return state, fired


def _byte_alphabet() -> dict[str, int]:
    """The byte-level BPE alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 on, in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


def _decoder_parts(tokenizer: Any) -> list[dict[str, Any]] | None:
    """The decoder of a fast tokenizer as a flat list of its JSON parts; None where there is none to read."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return None
    state = decoder.__getstate__()
    spec = json.loads(state.decode("utf-8") if isinstance(state, bytes) else state)
    return _flatten(spec)


def _flatten(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec.get("type") == "Sequence":
        return [part for inner in spec["decoders"] for part in _flatten(inner)]
    return [spec]


def _vocabulary(tokenizer: Any) -> list[str | bytes | None]:
    """Token of each id, None for holes; covers ``len(tokenizer)`` and every id above it that has a token."""
    vocabulary = tokenizer.get_vocab()
    size = max(len(tokenizer), 1 + max(vocabulary.values(), default=-1))
    tokens: list[str | bytes | None] = [None] * size
    for token, index in vocabulary.items():
        if index >= 0:
            tokens[index] = token
    return tokens


def _added(tokenizer: Any) -> dict[int, str]:
    return {int(i): str(getattr(t, "content", t)) for i, t in getattr(tokenizer, "added_tokens_decoder", {}).items()}


def token_bytes(tokenizer: Any) -> list[bytes]:
    """What each token id adds to the generated text, as bytes; b"" for ids without a token.

    ``tokenizer``: a transformers tokenizer, fast or slow. The list covers all of ``len(tokenizer)``, special and
    added tokens included (those count with their content). Cleanups a decoder makes across tokens (a leading
    space stripped) are not applied: they touch no line feed.
    """
    tokens = _vocabulary(tokenizer)
    added = _added(tokenizer)
    parts = _decoder_parts(tokenizer)
    kinds = [part.get("type") for part in parts or []]
    byte_level = "ByteLevel" in kinds
    # Strip and Fuse only join or trim; any other part may rewrite text, so those vocabularies are decoded.
    known = parts is not None and bool(kinds) and set(kinds) <= {"ByteLevel", "ByteFallback", "Replace", "Metaspace",
                                                                 "Fuse", "Strip"}  # fmt: skip
    replaced: list[tuple[str, str]] = []
    for part in parts or []:
        if part.get("type") == "Metaspace":
            replaced.append((part.get("replacement", "\u2581"), " "))
        elif part.get("type") == "Replace":
            pattern = part.get("pattern", {})
            known = known and "String" in pattern
            replaced.append((pattern.get("String", ""), part.get("content", "")))
        elif part.get("type") == "Strip" and part.get("content", " ") in ("\n", "\r"):
            known = False
    alphabet = _byte_alphabet()
    out: list[bytes] = []
    for index, token in enumerate(tokens):
        if index in added and not byte_level:
            out.append(added[index].encode("utf-8", "replace"))
        elif token is None:
            out.append(added.get(index, "").encode("utf-8", "replace"))
        elif isinstance(token, bytes):
            out.append(token)
        elif not known:
            text = tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            out.append(text.encode("utf-8", "replace"))
        elif byte_level:
            # As the decoder does: a token that leaves the alphabet (an added one, mostly) stands for itself.
            values = [alphabet.get(char, -1) for char in token]
            out.append(token.encode("utf-8", "replace") if -1 in values else bytes(values))
        elif "ByteFallback" in kinds and (match := _BYTE_TOKEN.fullmatch(token)):
            out.append(bytes([int(match[1], 16)]))
        else:
            for old, new in replaced:
                token = token.replace(old, new) if old else token
            out.append(token.encode("utf-8", "replace"))
    return out


def _key(tokenizer: Any) -> str:
    """Hex SHA-256 of all that token bytes depend on."""
    tokens = _vocabulary(tokenizer)
    shown = [t.hex() if isinstance(t, bytes) else t for t in tokens]
    parts = _decoder_parts(tokenizer)
    # Without decoder rules the bytes come from the tokenizer's code, whose class is the best name for it.
    code = None if parts is not None else f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    document = json.dumps([_VERSION, parts, code, sorted(_added(tokenizer).items()), shown])
    return hashlib.sha256(document.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class BoundaryTable:
    """How every token moves the automaton, on one device.

    ``next_state`` uint8 [4, n_tokens]; ``fires`` bool [4, n_tokens]: the token completes a blank line.
    """

    next_state: torch.Tensor
    fires: torch.Tensor

    @property
    def n_tokens(self) -> int:
        return self.next_state.shape[1]

    @classmethod
    def from_bytes(cls, tokens: Sequence[bytes]) -> BoundaryTable:
        """The table of a vocabulary given as the bytes of each token, on the CPU."""
        next_state = np.zeros((4, len(tokens)), dtype=np.uint8)
        fires = np.zeros((4, len(tokens)), dtype=bool)
        for state in range(4):
            # Empty text moves nothing; text without \n or \r always leads to OTHER, which is 0.
            for index, data in enumerate(tokens):
                if not data:
                    next_state[state, index] = state
                elif b"\n" in data or b"\r" in data:
                    next_state[state, index], fires[state, index] = advance(state, data)
        return cls(torch.from_numpy(next_state), torch.from_numpy(fires))

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, cache: bool = True) -> BoundaryTable:
        """The table of a transformers tokenizer, from the disk cache where there is one (a damaged file is made anew).

        An unwritable cache folder costs only the time to build the table again.
        """
        if not cache:
            return cls.from_bytes(token_bytes(tokenizer))
        path = cache_dir() / "boundaries" / f"{_key(tokenizer)}.npy"
        size = len(_vocabulary(tokenizer))
        if (packed := _read(path, size)) is not None:
            return cls(torch.from_numpy(packed & 3), torch.from_numpy((packed & 4) != 0))
        table = cls.from_bytes(token_bytes(tokenizer))
        _write(path, table.next_state.numpy() | (table.fires.numpy().astype(np.uint8) << 2))
        return table

    def to(self, device: torch.device | str) -> BoundaryTable:
        """The same table on ``device``."""
        return BoundaryTable(self.next_state.to(device), self.fires.to(device))


def _read(path: Path, size: int) -> np.ndarray | None:
    try:
        packed = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    good = isinstance(packed, np.ndarray) and packed.dtype == np.uint8 and packed.shape == (4, size)
    return packed if good and int(packed.max(initial=0)) < 8 else None


def _write(path: Path, packed: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, packed, allow_pickle=False)
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(buffer.getvalue())
        os.replace(name, path)
        name = None
    except OSError:
        return  # a full disk or a read-only home: the table in memory is good, and the next run builds it again
    finally:
        if name is not None:
            Path(name).unlink(missing_ok=True)
