"""The torch operations without a GPU: shapes under fake tensors, whole graphs under torch.compile, one-line errors."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from resetcli.base.errors import ResetError, UsageError
from resetcli.cuda import activations, ops
from resetcli.cuda.ops import KernelWeight, check_weight, first_bad, layout_names, nvfp4_quantize, prepare_weight
from resetcli.nvfp4 import codec

N, K = 24, 64


def parts(n: int = N, k: int = K) -> list[torch.Tensor]:
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    return [codes, torch.rand(n, k // 16).add(0.5).to(torch.float8_e4m3fn)]


def weight(n: int = N, k: int = K, activations: str = "w4a4") -> KernelWeight:
    return KernelWeight(n, k, parts(n, k), "rows:2", 0.01, 0.001, activations)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(K,), (1, K), (3, K), (2, 5, K), (0, K), (2, 0, K)])
def test_shapes_and_types_under_fake_tensors(dtype, shape):
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(shape, dtype=dtype, device="cuda")
        y = weight()(x)
        assert y.shape == (*shape[:-1], N) and y.dtype == dtype and y.device == x.device
        codes, scales = nvfp4_quantize(x, 0.01)
        assert codes.shape == (*shape[:-1], K // 2) and codes.dtype == torch.uint8
        assert scales.shape == (*shape[:-1], K // 16) and scales.dtype == torch.float8_e4m3fn
        with pytest.raises(ResetError, match=r"x has shape \[2, 80\], but the weight has K=64"):
            weight()(torch.empty(2, 80, dtype=dtype))


def test_large_n_under_fake_tensors():
    with FakeTensorMode():
        for n in (151936, 248320):
            scales = torch.empty(n, K // 16, dtype=torch.float8_e4m3fn)
            big = KernelWeight(n, K, [torch.empty(n, K // 2, dtype=torch.uint8), scales], "rows:2", 1.0, 1.0, "w4a4")
            assert big(torch.empty(8, K, dtype=torch.bfloat16)).shape == (8, n)


def test_a_compiled_layer_is_one_graph_for_any_number_of_rows():
    """fullgraph, with the operation in the graph and a symbolic M; the graph is not run (that takes a GPU)."""
    held = weight()
    graphs = []

    def record(graph, inputs):
        graphs.append(graph)

        def answer(*args):
            fake = graph.graph.find_nodes(op="output")[0].args[0][0].meta["example_value"]
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 2 and arg.shape[1] == K]
            return (torch.zeros(tensors[0].shape[0], fake.shape[-1], dtype=fake.dtype),)

        return answer

    @torch.compile(fullgraph=True, backend=record, dynamic=True)
    def double(x):
        return held(x) * 2

    for m in (2, 3, 7):
        assert double(torch.randn(m, K).bfloat16()).shape == (m, N)
    assert len(graphs) == 1
    assert "nvfp4_linear" in graphs[0].code


CPU = torch.device("cpu")


def test_what_the_operations_refuse():
    held = weight()
    with pytest.raises(ResetError, match="x is on cpu; the kernels run on a GPU"):
        held(torch.zeros(1, K, dtype=torch.bfloat16))
    with pytest.raises(ResetError, match="x is float32; the kernels take bfloat16 or float16"):
        held(torch.zeros(1, K))
    with pytest.raises(ResetError, match=r"x has shape \[1, 32\], but the weight has K=64"):
        held(torch.zeros(1, 32, dtype=torch.bfloat16))
    with pytest.raises(ResetError, match=r"K=40, which is not a positive multiple of 16"):
        nvfp4_quantize(torch.zeros(1, 40, dtype=torch.bfloat16), 0.01)
    with pytest.raises(ResetError, match="x is on cpu"):
        nvfp4_quantize(torch.zeros(1, K, dtype=torch.float16), 0.01)


def test_what_a_weight_must_be():
    codes, scales = parts()
    cases = [
        (codes.int(), scales, r"weight is int32 \[24, 32\]"),
        (codes.flatten(), scales, "weight is uint8"),
        (codes[:, :28].contiguous(), scales, "K=56, which is not a positive multiple of 16"),
        (codes, scales.float(), "weight_scale is float32"),
        (codes, scales.view(torch.uint8).t().contiguous().view(torch.float8_e4m3fn), "it is transposed"),
        (codes, scales[:-1], r"must be \[24, 4\]"),
        (codes.t().contiguous().t(), scales, "weight has strides"),
        (codes, scales.view(torch.uint8).t().contiguous().t().view(torch.float8_e4m3fn), "weight_scale has strides"),
        (codes, scales, "weight is on cpu; the kernels need it on a GPU"),
    ]
    for a, b, words in cases:
        with pytest.raises(ResetError, match=words) as caught:
            check_weight(a, b)
        assert "\n" not in str(caught.value)
        with pytest.raises(ResetError, match=words):
            prepare_weight(a, b, 1.0, 1.0)


def test_a_weight_with_bad_scales_is_refused(monkeypatch):
    monkeypatch.setattr("resetcli.cuda.ops.check_weight", lambda codes, scales: (24, 64))
    codes, scales = parts()
    for bad, kind in ((float("nan"), "NaN"), (-2.0, "negative value")):
        spoiled = scales.clone()
        spoiled[5, 1] = bad
        with pytest.raises(ResetError, match=f"weight_scale has a {kind} at row 5, block 1; make the checkpoint again"):
            prepare_weight(codes, spoiled, 1.0, 1.0)


def test_bad_scales_are_found_wherever_they_are():
    assert first_bad(torch.rand(33, 7).to(torch.float8_e4m3fn)) is None
    for byte in range(256):
        one = torch.tensor([[byte]], dtype=torch.uint8).view(torch.float8_e4m3fn)
        value = float(one)
        kind = "NaN" if value != value else "negative value" if value < 0 else None
        assert first_bad(one) == (kind and (kind, 0, 0))
    for row, column in ((0, 0), (32, 6), (17, 3)):
        for bad, kind in ((float("nan"), "NaN"), (-float("nan"), "NaN"), (-(2.0**-9), "negative value")):
            scales = torch.rand(33, 7).to(torch.float8_e4m3fn)
            scales[row, column] = bad
            assert first_bad(scales) == (kind, row, column)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, 2.0]), torch.tensor(0.0)])
def test_global_scales_that_are_none(value):
    with pytest.raises(ResetError, match=r"weight_scale_2 (is|has shape)"):
        ops._scalar("weight_scale_2", value)


def test_layout_lists():
    assert layout_names("rows:2,tiles:3") == ("rows", "tiles")
    assert ops._slices("rows:2,tiles:3") == {"rows": slice(0, 2), "tiles": slice(2, 5)}


def test_a_starting_address_that_is_not_aligned_is_copied():
    base = torch.arange(100, dtype=torch.uint8)
    assert ops._aligned(base) is base or base.data_ptr() % 16
    odd = base[1:]
    copy = ops._aligned(odd)
    assert copy.data_ptr() % 16 == 0 and torch.equal(copy, odd)


def test_activations_beyond_32_bit_indices_are_refused():
    blocks = activations._blocks("nvfp4", (1 << 20) - 1, 1 << 16)[0]
    assert blocks == ((1 << 20) - 1) * (1 << 12) // 256
    with pytest.raises(UsageError, match=r"x is \[1048576, 65536\]: too large for 32-bit indices"):
        activations._blocks("nvfp4", 1 << 20, 1 << 16)


def test_the_block_size_is_the_formats():
    assert ops.BLOCK == codec.BLOCK
