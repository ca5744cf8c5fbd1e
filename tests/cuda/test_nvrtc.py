"""NVRTC by ctypes: machine code for every architecture without a GPU, ptxas' report, one-line errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from resetcli.cuda import nvrtc as module
from resetcli.cuda.build import ARCHITECTURES
from resetcli.cuda.nvrtc import CompileError, Compiler, NVRTCUnavailable, Resources, parse_resources

SCALE = '#include "factor.cuh"\nextern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR * WIDTH; }\n'
HEADERS = {"factor.cuh": "#define FACTOR 3.0f\n"}


def hungry(values: int) -> str:
    """A kernel of 1024 threads, two blocks a multiprocessor (32 registers a thread), with so many live floats."""
    return f"""
    extern "C" __global__ void __launch_bounds__(1024, 2) hungry(float* x, int n) {{
        float a[{values}];
        #pragma unroll
        for (int i = 0; i < {values}; i++) a[i] = x[i * n + threadIdx.x];
        for (int i = 0; i < n; i++) {{
            #pragma unroll
            for (int j = 0; j < {values}; j++) a[j] = a[(j + 1) % {values}] * a[j] + 3.0f;
        }}
        #pragma unroll
        for (int i = 0; i < {values}; i++) x[i * n + threadIdx.x] = a[i];
    }}"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_machine_code_for_every_architecture(nvrtc, arch):
    compiled = nvrtc.compile(SCALE, "scale.cu", arch=arch, headers=HEADERS, defines={"WIDTH": 2})
    assert compiled.cubin.startswith(b"\x7fELF") and b"scale" in compiled.cubin
    assert compiled.resources is not None
    found = compiled.resources["scale"]
    assert 4 <= found.registers <= 32 and found.stack == found.spill_stores == found.spill_loads == found.shared == 0


def test_ptx_for_a_generic_architecture(nvrtc):
    compiled = nvrtc.compile(SCALE, "scale.cu", arch="compute_90", headers=HEADERS, defines={"WIDTH": 2})
    assert b".target sm_90" in compiled.cubin and b".entry scale" in compiled.cubin
    assert compiled.resources is None  # ptxas did not run


def test_spills_and_shared_memory_are_reported(nvrtc):
    resources = nvrtc.compile(hungry(8) + hungry(64).replace("hungry", "starved"), "h.cu", arch="sm_90a").resources
    assert resources is not None and set(resources) == {"hungry", "starved"}
    assert resources["hungry"].spill_stores == resources["hungry"].spill_loads == 0
    starved = resources["starved"]
    assert starved.registers == 32 and min(starved.stack, starved.spill_stores, starved.spill_loads) > 100
    shared = 'extern "C" __global__ void s(float* x) { __shared__ float t[96]; t[threadIdx.x] = *x; *x = t[x[1] > 0]; }'
    resources = nvrtc.compile(shared, "s.cu", arch="sm_90a").resources
    assert resources is not None and resources["s"].shared == 384


def test_a_refused_source_is_one_line_with_its_place(nvrtc):
    with pytest.raises(CompileError, match=r"^bad\.cu does not compile for sm_90a: bad\.cu\(2\): error: ") as caught:
        nvrtc.compile('extern "C" __global__ void f() {\n  undeclared = 1;\n}', "bad.cu", arch="sm_90a")
    assert "\n" not in str(caught.value) and "undeclared" in caught.value.log
    with pytest.raises(CompileError, match=r"missing\.cuh"):
        nvrtc.compile('#include "missing.cuh"\n', "inc.cu", arch="sm_90a")
    with pytest.raises(CompileError, match=r"does not know sm_999a"):
        nvrtc.compile(SCALE, "scale.cu", arch="sm_999a")


def test_reports_of_several_kernels_and_functions():
    """A log as ptxas writes it, with a device function between two kernels."""
    log = (
        "ptxas info    : 16 bytes gmem\n"
        "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
        "ptxas info    : Function properties for first\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem\n"
        "ptxas info    : Function properties for helper\n"
        "    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
        "ptxas info    : Function properties for second\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 24 registers, 380 bytes cmem[0]\n"
    )
    assert parse_resources(log) == {"first": Resources(255, 8, 4, 12, 1024), "second": Resources(24, 0, 0, 0, 0)}
    assert parse_resources("no report here\n") is None


@pytest.fixture
def fresh(monkeypatch):
    module.compiler.cache_clear()
    yield
    module.compiler.cache_clear()


def test_a_machine_without_nvrtc(monkeypatch, fresh, tmp_path):
    monkeypatch.setattr(module, "_SONAMES", ("libnvrtc-absent.so",))
    monkeypatch.setattr(module, "candidates", lambda: ["libnvrtc-absent.so"])
    with pytest.raises(NVRTCUnavailable, match=r"is not here; pip install 'resetcli\[cuda13\]'$"):
        module.compiler()
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(module, "candidates", lambda: [str(broken)])
    with pytest.raises(NVRTCUnavailable, match=r"unusable .*pip install") as caught:
        module.compiler()
    assert "\n" not in str(caught.value)


def test_a_compiler_newer_than_the_driver(monkeypatch, fresh, nvrtc):
    monkeypatch.setattr(module, "driver_version", lambda: (12, 4))
    if nvrtc.version[0] <= 12:
        pytest.skip("this NVRTC is not newer than CUDA 12")
    monkeypatch.setattr(module, "candidates", lambda: [nvrtc.path])
    with pytest.raises(
        NVRTCUnavailable, match=r"this driver \(CUDA 12\.4\) cannot load; pip install 'resetcli\[cuda12"
    ):
        module.compiler()
    monkeypatch.setattr(module, "driver_version", lambda: (13, 0))
    assert module.compiler().path == nvrtc.path


def test_wheels_come_before_the_toolkit_and_newer_ones_first(monkeypatch, tmp_path):
    for file in ("w/cuda_nvrtc/lib/libnvrtc.so.12", "w/cu13/lib/libnvrtc.so.13", "t/lib64/libnvrtc.so.13.1.80"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    (tmp_path / "w/cu13/lib/libnvrtc-builtins.so.13.0").touch()
    wheels = [tmp_path / "w/cuda_nvrtc/lib", tmp_path / "w/cu13/lib"]
    monkeypatch.setattr(module, "wheel_folders", lambda: wheels)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "t"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    found = module.candidates()
    assert [Path(path).name for path in found[:3]] == ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.13.1.80"]
    assert found[3:] == list(module._SONAMES)


def test_the_wheel_is_found(nvrtc):
    assert isinstance(nvrtc, Compiler) and nvrtc.version >= (12, 0)
    assert {80, 86, 89, 90} <= set(nvrtc.architectures)
