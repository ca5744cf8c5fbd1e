"""Arguments and launch configurations in memory, as the driver reads them; what is said where there is no GPU."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest
import torch

from resetcli.base.errors import ResetError
from resetcli.cuda import availability, driver, launch
from resetcli.cuda.driver import Attribute, KernelsUnavailable, LaunchConfig
from resetcli.cuda.launch import pack


def read(packer, index: int, kind):
    return kind.from_address(packer.pointers[index]).value


def test_arguments_as_a_kernel_takes_them():
    block = bytes(range(128))
    args = (5, 2.5, np.int64(-(2**40)), None, np.float16(1.5), block, True, np.uint8(200), -1)
    packer = pack(args, 0)
    assert read(packer, 0, ctypes.c_int32) == 5
    assert read(packer, 1, ctypes.c_float) == 2.5
    assert read(packer, 2, ctypes.c_int64) == -(2**40)
    assert read(packer, 3, ctypes.c_uint64) == 0
    assert np.float16(1.5).tobytes() == ctypes.string_at(packer.pointers[4], 2)
    assert ctypes.string_at(packer.pointers[5], 128) == block and packer.pointers[5] % 64 == 0
    assert read(packer, 6, ctypes.c_int32) == 1
    assert read(packer, 7, ctypes.c_uint8) == 200
    assert read(packer, 8, ctypes.c_int32) == -1
    again = pack((6, 0.5, np.int64(1), None, np.float16(0), block, False, np.uint8(0), 2), 0)
    assert again is packer and read(packer, 0, ctypes.c_int32) == 6  # one buffer a signature


def test_what_a_kernel_does_not_take():
    with pytest.raises(ResetError, match="out of range"):
        pack((2**31,), 0)
    with pytest.raises(ResetError, match="given a str"):
        pack(("text",), 0)
    with pytest.raises(ResetError, match=r"on cuda:0 was given a tensor on cpu"):
        pack((torch.zeros(2),), 0)


def test_launch_configuration():
    """Sizes and offsets of cuda.h on a 64-bit host; attributes 4 (cluster) and 6 (programmatic serialization)."""
    assert ctypes.sizeof(Attribute) == 72 and Attribute.value.offset == 8
    assert ctypes.sizeof(LaunchConfig) == 56
    assert (LaunchConfig.stream.offset, LaunchConfig.attributes.offset, LaunchConfig.n_attributes.offset) == (
        32,
        40,
        48,
    )
    config, address = driver.launch_config((7,), (32, 4), 1000, True, 2)
    assert address == ctypes.addressof(config)
    assert list(config.grid) == [7, 1, 1] and list(config.block) == [32, 4, 1] and config.shared == 1000
    assert config.n_attributes == 2
    assert [config.attributes[i].id for i in range(2)] == [6, 4]
    assert config.attributes[0].value[0] == 1 and list(config.attributes[1].value) == [2, 1, 1]
    plain, _ = driver.launch_config((1,), (1,), 0, False, 0)
    assert plain.n_attributes == 0 and not plain.attributes


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    launch.import_cupy.cache_clear()
    yield
    launch.import_cupy.cache_clear()


@pytest.mark.parametrize(("version", "extra"), [((13, 0), "cuda13"), ((12, 8), "cuda12"), (None, "cuda13")])
def test_a_missing_cupy_is_one_line_with_its_install(monkeypatch, no_cupy, version, extra):
    monkeypatch.setattr(driver, "driver_version", lambda: version)
    with pytest.raises(KernelsUnavailable, match=rf"^CuPy is not installed; pip install 'resetcli\[{extra}\]'$"):
        launch.import_cupy()


def test_a_mismatched_cupy_is_one_line(monkeypatch, no_cupy, tmp_path):
    """A module that fails on first use, as a CuPy for a newer CUDA than the driver's does."""
    package = tmp_path / "cupy"
    package.mkdir()
    (package / "__init__.py").write_text(
        "class cuda:\n    class runtime:\n        @staticmethod\n        def getDeviceCount():\n"
        "            raise RuntimeError('CUDA driver version is insufficient for CUDA runtime version\\nmore')\n"
    )
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        KernelsUnavailable, match=r"does not work here \(CUDA driver .*version\); pip install 'resetcli"
    ):
        launch.import_cupy()
    sys.modules.pop("cupy")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_reasons_on_a_machine_without_a_gpu():
    there, why = availability.kernels_available()
    assert not there and "torch" in why and "\n" not in why
    if driver.driver_version() is None:
        with pytest.raises(KernelsUnavailable, match="no NVIDIA driver"):
            driver.libcuda()
