"""The compile cache: what an entry's name depends on, damage, several builders at once; architectures of devices."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import resetcli
from resetcli.base.errors import ResetError
from resetcli.cuda import build as module
from resetcli.cuda.build import Build, architecture, architecture_number, build, cache_key, kernels_folder, resources
from resetcli.cuda.nvrtc import CompileError, Compiler

KERNEL = '#include "outer.cuh"\nextern "C" __global__ void f(int* x) { *x = VALUE; }\n'


@pytest.fixture
def sources(tmp_path, monkeypatch, kernel_cache):
    """A folder of CUDA sources in place of the real one."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "f.cu").write_text(KERNEL)
    (folder / "outer.cuh").write_text('#include "inner.cuh"\n')
    (folder / "inner.cuh").write_text("#ifndef VALUE\n#define VALUE 7\n#endif\n")
    (folder / "other.cuh").write_text("#define OTHER 1\n")
    monkeypatch.setattr(module, "kernels_folder", lambda: folder)
    module._read_sources.cache_clear()
    yield folder
    module._read_sources.cache_clear()


def change(path: Path) -> None:
    path.write_text(path.read_text() + "\n// changed\n")
    module._read_sources.cache_clear()


def test_the_name_depends_on_all_that_decides_the_code(sources, monkeypatch):
    plain = Build("f.cu")

    def key(what=plain, arch="sm_90a", version=(13, 0)):
        return cache_key(what, arch, version)

    seen = [key(), key(Build("f.cu", (("VALUE", 8),))), key(arch="sm_80"), key(version=(13, 1))]
    for file in ("f.cu", "outer.cuh", "inner.cuh"):
        change(sources / file)
        seen.append(key())
    last = seen[-1]
    monkeypatch.setattr(resetcli, "__version__", "0.0.0.other")
    seen.append(key())
    monkeypatch.undo()
    assert len(set(seen)) == len(seen)
    monkeypatch.setattr(module, "kernels_folder", lambda: sources)
    change(sources / "other.cuh")  # not included
    assert key() == last


def test_compiled_once_then_found(sources, nvrtc, kernel_cache, monkeypatch):
    what = Build("f.cu", (("VALUE", 8),))
    path = build(what, "sm_90a")
    assert path.parent == kernel_cache / "kernels" and path.suffix == ".cubin"
    assert path.stem == cache_key(what, "sm_90a", nvrtc.version)
    assert path.read_bytes().startswith(b"\x7fELF")
    found = resources(what, "sm_90a")
    assert found is not None and found["f"].registers > 0
    monkeypatch.setattr(Compiler, "compile", lambda *args, **options: pytest.fail("compiled again"))
    assert build(what, "sm_90a") == path and resources(what, "sm_90a") == found


def test_ptx_for_an_unknown_architecture(sources, nvrtc, kernel_cache):
    path = build(Build("f.cu"), "compute_100")
    assert path.suffix == ".ptx" and b".entry f" in path.read_bytes()
    assert resources(Build("f.cu"), "compute_100") is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone", "report", "no report"])
def test_a_damaged_entry_is_rebuilt(sources, nvrtc, kernel_cache, damage):
    path = build(Build("f.cu"), "sm_90a")
    good = path.read_bytes()
    if damage == "cut":
        path.write_bytes(good[:-9])
    elif damage == "flipped":
        path.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "gone":
        path.unlink()
    elif damage == "report":
        path.with_suffix(".json").write_text("{")
    else:
        path.with_suffix(".json").unlink()
    assert build(Build("f.cu"), "sm_90a") == path
    assert path.read_bytes().startswith(b"\x7fELF") and len(path.read_bytes()) == len(good)
    report = json.loads(path.with_suffix(".json").read_text())
    assert report["build"] == "f.cu" and report["arch"] == "sm_90a"


def _build_in_a_process(folder: Path) -> str:
    module.kernels_folder = lambda: folder
    return build(Build("f.cu"), "sm_90a").read_bytes()[:4].decode("latin-1")


def test_several_builders_at_once(sources, nvrtc, kernel_cache):
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(_build_in_a_process, [sources] * 4)) == ["\x7fELF"] * 4
    assert sorted(path.suffix for path in (kernel_cache / "kernels").iterdir()) == [".cubin", ".json"]


def test_a_faulty_source_leaves_nothing(sources, nvrtc, kernel_cache):
    (sources / "f.cu").write_text("not C++")
    with pytest.raises(CompileError, match=r"f\.cu does not compile for sm_90a"):
        build(Build("f.cu"), "sm_90a")
    assert not (kernel_cache / "kernels").exists()
    with pytest.raises(ResetError, match=r"absent\.cu cannot be read"):
        build(Build("absent.cu"), "sm_90a")


def test_an_unwritable_cache_is_one_line(sources, nvrtc, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RESET_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResetError, match="cannot write"):
        build(Build("f.cu"), "sm_90a")


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"),
     ((12, 0), "sm_120a"), ((8, 7), "compute_86"), ((10, 3), "compute_100"), ((12, 1), "compute_120"),
     ((15, 2), "compute_120")],
)  # fmt: skip
def test_architecture_of_a_device(capability, arch):
    assert architecture(capability) == arch


def test_too_old_a_device():
    with pytest.raises(ResetError, match=r"8\.0 or more; this one has 7\.5"):
        architecture((7, 5))
    assert [architecture_number(arch) for arch in ("sm_90a", "compute_120")] == [90, 120]


def test_the_sources_are_found():
    assert (kernels_folder() / "README.md").is_file()
    assert str(Build("f.cu", (("A", 1), ("B", "x")))) == "f.cu[A=1,B=x]"
