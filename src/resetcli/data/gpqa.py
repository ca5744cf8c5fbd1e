"""GPQA-Diamond as four lettered choices: which letter is right is fixed by the record's id alone.

The order of the choices is permutation number ``SHA-256(["gpqa",367,record id]) mod 24``. A seed a document
cannot force equal counts; 367 is the smallest number for which the right letters of the 198 records fall 49, 49,
50 and 50 times. Texts stay as they are, brackets included (lm-eval's task deletes them, and with them parts of
chemical names); only white space around a choice goes, since it could betray one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.data.readers import Row

COLUMNS = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3", "Record ID")
LETTERS = "ABCD"
SALT = 367

_PERMUTATIONS = tuple(itertools.permutations(range(4)))


def choice_order(record_id: str) -> tuple[int, ...]:
    """Which of (correct, incorrect 1, 2, 3) stands at A, B, C and D for this record."""
    text = json.dumps(["gpqa", SALT, record_id], ensure_ascii=False, separators=(",", ":"))
    return _PERMUTATIONS[int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % 24]


def gpqa_rows(records: list[tuple[int, Row]], name: str) -> list[dict[str, Any]]:
    """Rows {"doc_id", "problem", "choices" (A to D), "target" (letter), "alt_answers", "domain"} of GPQA records.

    Raises:
        ResetError: a record lacks an id, the question or a choice; file and line are named.
    """
    rows = []
    for line, record in records:
        for column in COLUMNS:
            if not record[column].strip():
                raise ResetError(f"{name}, line {line}: the record has no '{column}'")
        texts = [record[column].strip() for column in COLUMNS[1:5]]
        order = choice_order(record["Record ID"].strip())
        rows.append(
            {
                "doc_id": record["Record ID"].strip(),
                "problem": record["Question"],
                "choices": [texts[index] for index in order],
                "target": LETTERS[order.index(0)],
                "alt_answers": [],
                "domain": record.get("High-level domain") or None,
            }
        )
    return rows
