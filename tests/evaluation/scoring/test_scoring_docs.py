"""The examples of docs/scoring.md are run."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_examples():
    path = Path(__file__).resolve().parents[3] / "docs" / "scoring.md"
    failed, tried = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert tried >= 4 and not failed
