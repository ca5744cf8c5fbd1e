"""Text from outside as HTML. Whatever comes from a model, a data set or a file goes through here."""

from __future__ import annotations

from html import escape
from typing import Any

_VISIBLE = {i: chr(0x2400 + i) for i in range(32) if chr(i) not in "\n\t\r"} | {0x7F: "\u2421"}
# Other control characters; and marks that reorder text could make a page show something else than the model wrote.
_VISIBLE |= {
    i: f"[U+{i:04X}]"
    for i in (*range(0x80, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def safe(value: Any) -> str:
    """``value`` as HTML text or attribute: escaped, control and reordering characters made visible. Lone surrogates,
    which are no UTF-8, become "?"."""
    text = str(value).translate(_VISIBLE).encode("utf-8", "replace").decode("utf-8")
    return escape(text, quote=True)
