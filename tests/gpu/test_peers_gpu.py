"""Other projects' products, where they are installed: each agrees with float64 of its own weights, captured too."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

if torch.cuda.is_available():
    from resetcli.cuda.peers import PEERS
    from resetcli.cuda.problem import check, make_problem
    from resetcli.cuda.shapes import Shape
else:
    PEERS = ()


@pytest.mark.parametrize("m", [1, 8, 33])
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_agrees_with_float64(peer, m):
    device, n, k = torch.device("cuda"), 1024, 2048
    able, why = peer.supports(device, m, n, k, torch.bfloat16)
    if not able:
        pytest.skip(why)
    problem = make_problem(Shape(n, k), m, seed=m, device=device)
    operand = peer.load(problem, device, torch.bfloat16)
    x = problem.x.bfloat16()
    if (own := peer.truth(operand, x)) is not None:
        truth, size, slack = *own, None
    elif peer.quantizes:
        truth, size, slack = problem.quantized, problem.quantized_size, problem.quantized_slack
    else:
        truth, size, slack = problem.plain * problem.global_scale, problem.plain_size * problem.global_scale, None
    call = peer.call(operand)
    y = call(x)
    assert (y.dtype, y.shape) == (torch.bfloat16, (m, n))
    found = check(y, truth, size, slack, peer.tolerance(torch.bfloat16), peer.rounding)
    assert found.correct, found.worst
    assert not check(torch.zeros_like(y), truth, size, slack, peer.tolerance(torch.bfloat16), peer.rounding).correct

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = call(x)
    graph.replay()
    torch.cuda.synchronize()
    verdict = check(captured, truth, size, slack, peer.tolerance(torch.bfloat16), peer.rounding)
    assert verdict.correct, verdict.worst
