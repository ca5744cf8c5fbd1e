"""Rules: the choice is the documented hash and nothing else; all of our own answers are right by computation."""

from __future__ import annotations

import hashlib
import json
import random

import huggingface_hub.constants
import pytest

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.data import hub
from resetcli.data.problems import OWN_NAME, load_calibration_problems, own_problems
from resetcli.data.sources import DataSource


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_choice_is_the_smallest_hashes_whatever_the_order(tmp_path):
    rows = [{"id": f"p{n}", "problem": f"problem {n}", "answer": n} for n in range(50)]
    expected = sorted((f"p{n}" for n in range(50)), key=lambda i: hashlib.sha256(f'[7,"{i}"]'.encode()).hexdigest())[:6]
    for shuffle in range(3):
        random.Random(shuffle).shuffle(rows)
        chosen = load_calibration_problems(write(tmp_path / "p.jsonl", rows), 6, 7)
        assert chosen.ids == expected
        assert chosen.problems == [f"problem {i[1:]}" for i in expected]
        assert chosen.answers == [i[1:] for i in expected]
        assert chosen.sha256 == hashlib.sha256((tmp_path / "p.jsonl").read_bytes()).hexdigest()


def test_row_number_where_there_is_no_id(tmp_path):
    rows = [{"question": f"q{n}", "answer": "proof"} for n in range(20)]
    chosen = load_calibration_problems(write(tmp_path / "p.jsonl", rows), 4, 1)
    assert chosen.ids == sorted(range(20), key=lambda n: hashlib.sha256(f"[1,{n}]".encode()).digest())[:4]
    assert chosen.answers == [None] * 4


def test_folder_gives_numinamath(shared_data):
    chosen = load_calibration_problems(DataSource(shared_data), 5, 0)
    assert len(chosen.problems) == len(set(chosen.ids)) == 5 and chosen.dataset == "numinamath_sample.jsonl"
    assert chosen.sha256 == hashlib.sha256((shared_data / "numinamath_sample.jsonl").read_bytes()).hexdigest()


def test_own_problems_only_where_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "unreachable", lambda: "offline (test)")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ResetError, match=r"AI-MO/NuminaMath-1\.5 .*offline \(test\).*--data-dir"):
        load_calibration_problems(DataSource())
    reporter = CollectingReporter()
    chosen = load_calibration_problems(DataSource(), own_if_offline=True, reporter=reporter)
    assert chosen.dataset == OWN_NAME and len(chosen.problems) == 5
    assert OWN_NAME in reporter.infos[0] and "offline" in reporter.infos[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"problem": "\\ud800"}\n', "line 1 holds .ud800, half a character"),
        ('{"problem": "x"}\nno\n', "line 2 is not valid JSON"),
        ('{"id": 1, "problem": "x"}\n{"id": 1, "problem": "y"}\n', "line 2: id 1 is already on line 1"),
        ('{"id": true, "problem": "x"}', "line 1: 'id' is neither"),
        ('{"id": 1}', "line 1: the row has no 'question'"),
    ],
)
def test_bad_files(tmp_path, content, message):
    (tmp_path / "p.jsonl").write_text(content)
    with pytest.raises(ResetError, match=message):
        load_calibration_problems(tmp_path / "p.jsonl")


def test_bad_counts(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"problem": "x"}])
    for n in (0, -1, 2):
        with pytest.raises(UsageError, match="--problems"):
            load_calibration_problems(path, n)
    assert len(load_calibration_problems(path).problems) == 1
    with pytest.raises(ResetError, match=r"missing\.jsonl is missing"):
        load_calibration_problems(tmp_path / "missing.jsonl")
    with pytest.raises(ResetError, match=r"no numinamath\*\.jsonl"):
        load_calibration_problems(DataSource(tmp_path), own_if_offline=True)


def test_own_answers_by_computation():
    right = {
        "pencils": 4 * 12 - 31, "train": (11 * 60 + 15) - (9 * 60 + 40), "linear": (31 - 7) // 3,
        "rectangle": 2 * (9 + 6), "tickets": 2 * 8 + 3 * 5, "sum": 347 + 586, "product": 23 * 17,
        "remainder": 100 % 7, "percent": 40 - 40 // 4, "average": (14 + 18 + 22 + 26) // 4, "ages": (29 + 5) // 2,
        "system": (20 + 6) // 2, "eggs": 5 * 6 * 3, "triangle": 180 - 48 - 75, "power": 2**5 + 3**3,
        "order": 6 + 4 * (10 - 7) - 8 // 2, "apples": 15 - 5 - 2, "speed": 18 * 5 // 2,
        "quadratic": max(x for x in range(-50, 50) if x * x - 5 * x - 14 == 0),
        "gcd": max(d for d in range(1, 85) if 84 % d == 126 % d == 0), "sequence": 4 + 9 * 7, "tank": 240 // 15,
        "committee": sum(1 for a in range(7) for _ in range(a)), "savings": sum(3 + 2 * day for day in range(6)),
    }  # fmt: skip
    everything = own_problems(24)
    assert dict(zip(everything.ids, everything.answers, strict=True)) == {
        f"own-{name}": str(value) for name, value in right.items()
    }
