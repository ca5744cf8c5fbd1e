"""Fixtures every folder uses: tiny models made on the spot, and the real data where this checkout has it."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

# The same examples each time: a suite that judges a change must not fail by lot. HYPOTHESIS_SEARCH=1 draws new ones.
# (The tests of the kernels need no hypothesis, and the machine that runs them may lack it.)
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("suite", derandomize=True, deadline=None)
    settings.register_profile("search", deadline=None)
    settings.load_profile("search" if os.environ.get("HYPOTHESIS_SEARCH") else "suite")

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests never reach for the hub; set before huggingface_hub is imported

# Whatever starts the suite in a shell's background has SIGINT ignored, which the processes that tests interrupt would
# inherit and never end by.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    """The user's cache is left alone, unless RESET_CACHE names one for the tests to share."""
    if "RESET_CACHE" not in os.environ:
        os.environ["RESET_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory) -> Path:
    """A tiny random BF16 Llama directory (see ``tiny_models.make_model_dir``). Do not write into it."""
    from tiny_models import make_model_dir

    return make_model_dir(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_bos_model_dir(tmp_path_factory) -> Path:
    """As ``tiny_model_dir``, but tokenizer and chat template both add a BOS."""
    from tiny_models import make_model_dir

    return make_model_dir(tmp_path_factory.mktemp("tiny") / "tiny-bos", bos=True)


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model_dir):
    """The tokenizer of ``tiny_model_dir``."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_dir)


@pytest.fixture(scope="session")
def tiny_bos_tokenizer(tiny_bos_model_dir):
    """The tokenizer of ``tiny_bos_model_dir``."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_bos_model_dir)


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_model_dir, tmp_path_factory) -> Path:
    """An NVFP4 checkpoint of ``tiny_model_dir`` in ModelOpt's layout. Do not write into it; copy it first."""
    from tiny_models import modelopt_metadata, write_checkpoint

    return write_checkpoint(
        tiny_model_dir, tmp_path_factory.mktemp("tiny") / "tiny-llama-nvfp4", metadata=modelopt_metadata()
    )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real evaluation data: RESET_TEST_DATA, else ../shared/data beside the checkout; skips without."""
    path = Path(os.environ.get("RESET_TEST_DATA") or ROOT.parent / "shared" / "data")
    if not path.is_dir():
        pytest.skip("real data sets not here (RESET_TEST_DATA names their folder)")
    return path


@pytest.fixture(scope="session")
def shared_testbed() -> Path:
    """The small trained reasoning models: RESET_TEST_BED, else ../shared/testbed beside the checkout; skips without."""
    path = Path(os.environ.get("RESET_TEST_BED") or ROOT.parent / "shared" / "testbed")
    if not path.is_dir():
        pytest.skip("testbed models not here (RESET_TEST_BED names their folder)")
    return path
