"""Seeds: one 63-bit key per sample, and the counter-based draws made from it.

A draw depends on the sample's key and the token position alone, so a resumed run, another batch or
another order of requests draws the same numbers.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np


def sample_seed(seed: int, task: str, doc_id: int | str, repeat: int = 0) -> int:
    """The key of one sample: 63 bits of SHA-256 over the JSON array [seed, task, doc_id, repeat].

    The array is UTF-8 JSON without spaces; the first 8 digest bytes are read little endian and the top
    bit is cleared. ``generate`` and ``calibrate`` use their own name as task and the prompt's index as doc_id.
    """
    text = json.dumps([seed, task, doc_id, repeat], ensure_ascii=False, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & (2**63 - 1)


def uniforms(key: int, start: int, count: int) -> np.ndarray:
    """Draws for positions start .. start+count-1: float64 [count] in [0, 1), Philox4x64-10 with this key.

    Position t uses the first word of the block at counter t, 53 bits of it.
    """
    # NumPy's generator steps its counter before each block, hence t - 1 (mod 2^256) to land on t.
    bits = np.random.Philox(key=key, counter=(start - 1) % 2**256)
    words = bits.random_raw(4 * count).reshape(count, 4)[:, 0]
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
