"""The model of a directory without its weights: on the meta device, so that names and shapes are known for free.

The reader checks a checkpoint against it, the loader fills it. ``quantization_config`` is taken off first, because
transformers knows neither of the two NVFP4 layouts as something to load.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError


def meta_model(path: Path, *, dtype: torch.dtype | None = None, trust_remote_code: bool = False) -> Any:
    """A causal language model of ``path``'s config with every parameter on the meta device.

    ``dtype``: of its unquantized parameters; None takes the config's. Code in the directory runs only with
    ``trust_remote_code``.

    Raises:
        ResetError: transformers does not know the architecture, or the config is broken.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
        for part in {id(c): c for c in (config, config.get_text_config())}.values():
            for name in ("quantization_config", "compression_config"):
                if hasattr(part, name):
                    delattr(part, name)
        with torch.device("meta"), quiet_transformers():
            return AutoModelForCausalLM.from_config(
                config, dtype=dtype or getattr(config, "dtype", None) or torch.bfloat16,
                trust_remote_code=trust_remote_code,
            )  # fmt: skip
    except Exception as exc:  # a config that makes no sense fails anywhere in the model's code, in any way
        reason = " ".join(str(exc).split())[:300] or type(exc).__name__
        if "trust_remote_code" in str(exc):
            reason = "it needs the code in its own directory, which runs only if you pass --trust-remote-code"
        raise ResetError(f"{path} cannot be built as a language model by its config.json: {reason}") from exc


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' warnings and progress bars within; our own reporting says what matters."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
