"""The examples as a reader would take them: every one compiles, and the API tour works on a tiny model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    """The example ``name`` as a module, its command line not run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(path: Path) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_scripts_compile(path) -> None:
    compile(path.read_text(encoding="utf-8"), str(path), "exec")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_valid_and_without_outputs(path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) >= (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids), "ids are unique in format 4.5"
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("code", "markdown") and isinstance(cell["metadata"], dict)
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            compile("".join(cell["source"]), f"{path}, cell {cell['id']}", "exec")


def test_quickstart_on_a_tiny_model(tiny_model_dir, tmp_path, capsys) -> None:
    answer = load("quickstart").main(str(tiny_model_dir), tmp_path / "out", problems=2, tokens=8, prompt="Two?")
    header, *lines = [json.loads(line) for line in (tmp_path / "out" / "trace.jsonl").read_text().splitlines()]
    config = json.loads((tmp_path / "out" / "checkpoint" / "reset_config.json").read_text())
    assert header["policy"]["tau_0"] == config["tau_0"] and header["policy"]["tau_0_source"] == "reset_config.json"
    assert [line["token_id"] for line in lines] == answer.token_ids and 1 <= answer.n_tokens <= 8
    shown = capsys.readouterr().out
    assert answer.text in shown and f"{answer.n_tokens} tokens" in shown


def test_notebook_on_a_tiny_model(tiny_model_dir, tmp_path, capsys) -> None:
    names: dict = {}
    first, *rest = cells(EXAMPLES / "quickstart.ipynb")
    exec(first, names)
    names |= {"MODEL": str(tiny_model_dir), "OUTPUT": tmp_path / "out", "PROBLEMS": 2, "TOKENS": 8}
    for source in rest:
        exec(source, names)
    assert len(names["events"]) == names["answer"].n_tokens
    assert names["answer"].text in capsys.readouterr().out


def test_policies_replay_the_decoded_temperatures(tiny_checkpoint, capsys) -> None:
    found = load("policies").main(tiny_checkpoint, tau_0=5.0, tokens=60, rows=5, prompt="Two?")
    assert all(len(temperatures) == len(found["reset"]) for temperatures in found.values())
    seen = {name: {round(temperature, 6) for temperature in temperatures} for name, temperatures in found.items()}
    assert seen["reset"] == {0.1, 1.0} and seen["fixed"] == {0.6}
    assert "mean of" in capsys.readouterr().out
