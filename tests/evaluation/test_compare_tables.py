"""The table of runs in each format, read back by what reads such files."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from simulated_runs import write_run

from resetcli.base.errors import UsageError
from resetcli.evaluation.compare import compare_runs
from resetcli.evaluation.tables import check_format, differences, notes, p_value, scores, to_csv, to_latex, to_markdown


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(2)
    aime, gpqa = (rng.random((20, 4)) < 0.5).astype(int), (rng.random((12, 2)) < 0.5).astype(int)
    text = -rng.random((5, 1)) * 9
    a, b, c = (rng.permuted(aime, axis=1) for _ in range(3))
    runs = [
        write_run(folder / "base", {"aime": a}, model="Qwen3-8B", nvfp4=False, policy="fixed"),
        write_run(folder / "text", {"wikitext": text}, model="Qwen3-8B", nvfp4=False, policy="fixed",
                  results={"wikitext": {"word_perplexity": 12.345}}),
        write_run(folder / "gpqa", {"gpqa": gpqa}, model="Qwen3-8B", nvfp4=False, policy="fixed"),
        write_run(folder / "rtn", {"aime": b, "wikitext": text * 1.2}, policy="fixed"),
        write_run(folder / "r1", {"aime": c}, model="R1_7B & co-nvfp4", limit=20),
    ]  # fmt: skip
    return compare_runs(runs)


def test_wide(document) -> None:
    header, rows = scores(document)
    assert header == ["model", "method", "aime avg@4", "wikitext perplexity", "gpqa avg@2"]
    assert [row[:2] for row in rows] == [
        ["Qwen3-8B", "BF16 fixed"], ["Qwen3-8B", "NVFP4 fixed"], ["R1_7B & co", "NVFP4 reset"]
    ]  # fmt: skip
    task = document["runs"][0]["tasks"]["aime"]
    low, high = task["ci95"]
    assert rows[0][2] == f"{100 * task['avg@k']:.1f} ± {50 * (high - low):.1f}"
    assert rows[0][3] == "12.35" and rows[1][3:] == ["-", "-"]
    assert rows[2][2].endswith("*") and any("chosen documents" in line for line in notes(document))
    header, rows = differences(document)
    assert [row[:4] for row in rows] == [
        ["aime", "Qwen3-8B", "NVFP4 fixed - BF16 fixed", "avg@k"],
        ["wikitext", "Qwen3-8B", "NVFP4 fixed - BF16 fixed", "log_perplexity"],
    ]
    assert all(len(row) == len(header) for row in rows)


def test_an_interval_that_is_not_even_is_shown_by_its_ends(tmp_path) -> None:
    """Of none right in thirty nothing lies below 0, and the share may well be above half the interval's width."""
    shares = {"none": (0, 0), "one": (1, 0), "half": (15, 0), "all": (30, 0), "quarters": (0, 1)}
    paths = []
    for name, (right, of_each) in shares.items():
        made = np.zeros((30, 4), int)
        made[:right], made[:, :of_each] = 1, 1
        paths.append(write_run(tmp_path / name, {"aime": made}))
    found = compare_runs(paths)
    cells = [row[2] for row in scores(found)[1]]
    assert cells == [
        "0.0 (0.0 to 11.6)", "3.3 (0.0 to 10.2)", "50.0 ± 19.0", "100.0 (88.4 to 100.0)", "25.0 (22.1 to 33.7)",
    ]  # fmt: skip
    assert any("or its ends where they are not as far from it" in line for line in notes(found))


def test_csv(document) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(document))))
    assert [(r["task"], r["model"], r["method"]) for r in rows] == [
        ("aime", "Qwen3-8B", "BF16 fixed"), ("aime", "Qwen3-8B", "NVFP4 fixed"), ("aime", "R1_7B & co", "NVFP4 reset"),
        ("wikitext", "Qwen3-8B", "BF16 fixed"), ("wikitext", "Qwen3-8B", "NVFP4 fixed"),
        ("gpqa", "Qwen3-8B", "BF16 fixed"),
    ]  # fmt: skip
    base, rtn, r1 = rows[:3]
    pair = document["comparisons"][0]
    assert float(base["avg"]) == document["runs"][0]["tasks"]["aime"]["avg@k"] and base["difference"] == ""
    assert float(rtn["difference"]) == pair["differences"]["avg@k"]["difference"] and rtn["base_method"] == "BF16 fixed"
    assert float(rtn["p_holm"]) == pair["p_holm"] and (base["limited"], r1["limited"]) == ("0", "1")
    assert rows[3]["word_perplexity"] == "12.345" and rows[4]["avg"] == ""


def test_markdown(document) -> None:
    text = to_markdown(document)
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 2
    for lines in tables:
        # A bar that is not escaped ends a cell.
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert set(lines[1]) == set("| -")
    assert r"R1\_7B & co" in text and r"\*" in text


def test_latex(document) -> None:
    text = to_latex(document)
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body.count("\\toprule") == body.count("\\bottomrule") == 2
    columns = [len(form) for form in re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)]
    rows = [line for line in body if line.endswith(r" \\")]
    widths = [len(re.split(r"(?<!\\)&", row)) for row in rows]
    assert widths == [columns[0]] * 4 + [columns[1]] * 3
    assert r"R1\_7B \& co" in text and r"$\pm$" in text and not re.search(r"(?<!\\)[_%#^]|±", "".join(body))
    assert rows[2].startswith(" & NVFP4 fixed")


def test_names_with_signs_that_a_format_reads(document) -> None:
    named = {**document, "runs": [{**run, "model": "[4pt] a|b ~~c~~ $d$"} for run in document["runs"]]}
    latex = to_latex(named)
    # "[" after \\midrule is its option, though a line lies between.
    assert not re.search(r"(rule|\\\\)\s*[\[*]", latex) and r"{}[4pt] a\textbar{}b" in latex
    assert r"| \[4pt\] a\|b \~\~c\~\~ \$d\$ |" in to_markdown(named)


def test_latex_compiles_where_there_is_a_latex(document, tmp_path) -> None:
    if (latex := shutil.which("pdflatex")) is None:
        pytest.skip("no pdflatex here")
    page = (
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + to_latex(document) + "\\end{document}\n"
    )
    (tmp_path / "t.tex").write_text(page)
    command = [latex, "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout[-800:]


def test_small_things() -> None:
    assert (p_value(0.0005), p_value(0.04), p_value(1.0)) == ("<0.001", "0.040", "1.000")
    with pytest.raises(UsageError, match="did you mean markdown"):
        check_format("markdwn")
