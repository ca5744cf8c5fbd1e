"""Token ids to text as they come, and stop strings.

A token may hold part of a character; its text is held back until the character is whole, so that the pieces
of a request joined give its text. Only a short tail is decoded at each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TextStream:
    """Incremental decoding of one request; special tokens leave no text in `text`, those of ``kept`` theirs."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = (), kept: Mapping[int, str] | None = None):
        self.tokenizer = tokenizer
        self.kept = kept or {}
        self.stop = tuple(s for s in stop if s)
        self.text = ""
        self._ids: list[int] = []
        self._shown = 0  # ids before this are in `text`
        self._context = 0  # decoding starts here, so that a leading space is not lost

    def _decode(self, ids: list[int]) -> str:
        if not self.kept:
            return self._plain(ids)
        text, start = "", 0
        for index, token in enumerate(ids):
            if token in self.kept:
                text += self._plain(ids[start:index]) + self.kept[token]
                start = index + 1
        return text + self._plain(ids[start:])

    def _plain(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def push(self, token_id: int) -> str:
        """The new whole characters after one more token."""
        self._ids.append(token_id)
        return self._advance(final=False)

    def finish(self) -> str:
        """What was held back, as the tokenizer decodes incomplete bytes."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        before = self._decode(self._ids[self._context : self._shown])
        now = self._decode(self._ids[self._context :])
        if not final and now.endswith("�") and len(self._ids) - self._shown < 8:
            return ""
        piece = now[len(before) :]
        self._context, self._shown = self._shown, len(self._ids)
        self.text += piece
        return piece

    def stopped(self, piece: str) -> bool:
        """Cut `text` at the first stop string that ``piece`` completed; True if there was one."""
        found = -1
        for stop in self.stop:
            at = self.text.find(stop, max(0, len(self.text) - len(piece) - len(stop)))
            if at >= 0 and (found < 0 or at < found):
                found = at
        if found < 0:
            return False
        self.text = self.text[:found]
        return True
