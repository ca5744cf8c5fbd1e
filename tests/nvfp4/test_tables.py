"""The table quantizer against the codec, whose own oracle is ml_dtypes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.nvfp4 import codec
from resetcli.nvfp4.tables import TableQuantizer

SCALES = [1.0, 0.0123, 3.7e-4, 2.0**-20, 5e3]


@pytest.mark.parametrize("scale", SCALES)
def test_same_bits_as_the_codec(scale):
    generator = torch.Generator().manual_seed(0)
    g = torch.tensor(scale)
    quantizer = TableQuantizer(g)
    for spread in (0.0, 1e-30, 1e-6, 1e-3, 1.0, 40.0, 3e3, 1e6, 1e30):
        x = torch.randn(40, 1, 192, generator=generator) * spread * scale
        x[0, 0, :16] = 0
        assert torch.equal(quantizer(x), codec.fake_quantize_activation(x, g))


@pytest.mark.parametrize("scale", SCALES)
def test_every_tie_and_its_neighbours(scale):
    """Blocks led by 6 times a step, so that the quotients are the ties themselves and the floats beside them."""
    g = torch.tensor(scale)
    quantizer = TableQuantizer(g)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    ties = torch.cat([ties, torch.nextafter(ties, torch.tensor(9.0)), torch.nextafter(ties, torch.tensor(0.0))])
    ties = torch.cat([ties, -ties, torch.tensor([0.0, -0.0, 1e-40, -1e-40])])
    for step in (2.0**-9, 1.0, 1.125, 7.5, 448.0):
        rows = [torch.cat([torch.tensor([6.0]), part, torch.zeros(15 - len(part))]) for part in ties.split(15)]
        x = torch.stack(rows) * (step * g)
        assert torch.equal(quantizer(x), codec.fake_quantize_activation(x, g))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=16),
       st.floats(2.0**-30, 2.0**10, width=32))  # fmt: skip
def test_any_block_and_scale(values, scale):
    x, g = torch.tensor([values]), torch.tensor(scale)
    assert torch.equal(TableQuantizer(g)(x), codec.fake_quantize_activation(x, g))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_block_alone(bad):
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
    x[1, 20] = bad
    y = TableQuantizer(torch.tensor(0.01))(x)
    assert y[1, 16:].isnan().all()
    assert y[0].isfinite().all() and y[1, :16].isfinite().all()
