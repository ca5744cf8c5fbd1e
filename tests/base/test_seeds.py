"""Seeds and draws against hashlib and a Philox written from its paper (Salmon et al., SC'11)."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resetcli.base.seeds import sample_seed, uniforms

MASK = 2**64 - 1


def philox4x64(counter: int, key: int) -> int:
    """First output word of Philox4x64-10 at a 256-bit counter."""
    c = [(counter >> (64 * i)) & MASK for i in range(4)]
    k = [key & MASK, key >> 64]
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(p1 >> 64) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 64) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c[0]


def test_sample_seed_is_the_documented_hash():
    text = '[7,"aime","2024-I-1",3]'
    expected = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & (2**63 - 1)
    assert sample_seed(7, "aime", "2024-I-1", 3) == expected
    assert sample_seed(7, "é", 1, 0) == int.from_bytes(
        hashlib.sha256('[7,"é",1,0]'.encode()).digest()[:8], "little"
    ) & (2**63 - 1)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(1, 40))
def test_draws_are_philox_at_key_and_counter(key, start, count):
    got = uniforms(key, start, count)
    assert got.dtype == np.float64 and got.shape == (count,)
    expected = [(philox4x64(start + i, key) >> 11) * 2.0**-53 for i in range(count)]
    assert got.tolist() == expected


def test_draws_are_uniform_across_keys():
    draws = np.array([uniforms(sample_seed(0, "t", i), 0, 4)[2] for i in range(4000)])
    assert abs(draws.mean() - 0.5) < 0.02 and abs(draws.var() - 1 / 12) < 0.005
