"""Keep transformers from drawing its own progress bars: ours are the only ones a user sees.

Errors and warnings of transformers are left alone; only bars and the advice level "info" are silenced, and both
settings are put back, so that a host program keeps what it chose.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars of transformers (nor of its GGUF reader) inside the block."""
    from transformers import modeling_gguf_pytorch_utils as gguf_reader
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    level = logging.get_verbosity()
    # The GGUF reader uses tqdm directly and knows no switch.
    tqdm = gguf_reader.tqdm
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    gguf_reader.tqdm = functools.partial(tqdm, disable=True)
    try:
        yield
    finally:
        gguf_reader.tqdm = tqdm
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
