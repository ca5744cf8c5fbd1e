"""NVRTC for the tests that compile; they run without a GPU."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def nvrtc():
    """The compiler of this machine; skips without one, with the reason."""
    from resetcli.cuda.nvrtc import NVRTCUnavailable, compiler

    try:
        return compiler()
    except NVRTCUnavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture
def kernel_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("RESET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
