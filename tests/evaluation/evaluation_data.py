"""A small data folder of our own writing with the task files that these tests read."""

from __future__ import annotations

import csv
import json


def write_data(folder):
    """aime_2022 to 2025 (4 problems each, one-digit answers), gsm8k, GPQA as CSV, and a WikiText of three articles."""
    folder.mkdir(parents=True, exist_ok=True)
    for year in range(2022, 2026):
        rows = [{"id": f"{year}-I-{i}", "problem": f"What is {i} plus {year % 5}?", "answer": str(i + year % 5)}
                for i in range(1, 5)]  # fmt: skip
        rows[0]["alt_answers"] = ["9"]
        (folder / f"aime_{year}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "gsm8k_test.jsonl").write_text(
        "".join(json.dumps({"question": f"Count {i} hens.", "answer": f"{i} hens.\n#### {i}"}) + "\n" for i in range(3))
    )
    with open(folder / "gpqa_diamond.csv", "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                         "Incorrect Answer 3", "Record ID"])  # fmt: skip
        writer.writerows([[f"Question {i} [x]?", "right", "w1", "{{w2}}", "w3", f"rec{i}"] for i in range(3)])
    (folder / "wikitext2_test.txt").write_text(WIKITEXT)
    return folder


WIKITEXT = (
    " \n = First = \n \n The first article has words . \n \n = = Part = = \n \n More of it . \n \n"
    " = Second one = \n \n Short . \n k = 1 \n = 1 henry and capacitance C = \n not a title . \n \n"
    " = Third = \n \n The end . \n \n"
)
