"""Cold-weight bookkeeping and round counts, on calls that record themselves."""

from __future__ import annotations

import pytest
import torch

from resetcli.cuda.timing import Candidate, Reader, last_level_cache, reuse_distance, time_cpu


def nothing() -> None:
    return None


def test_reuse_distance_by_hand() -> None:
    """Order a0 b0 a1 b0 a0: from start to start b0 recurs after 15 bytes, a0 after 30."""
    a = Candidate("a", [nothing] * 2, 10, ["a0", "a1"])
    b = Candidate("b", [nothing], 5, ["b0"])
    assert reuse_distance([a, b]) == 15
    assert reuse_distance([a, Candidate("read", [nothing], 5, [])]) == 30
    assert reuse_distance([a], grouped=True) == 20
    assert reuse_distance([a, b], grouped=True) == 5


def test_shared_memory_counts_between_candidates() -> None:
    a = Candidate("a", [nothing] * 2, 10, ["m0", "m1"])
    b = Candidate("b", [nothing] * 2, 10, ["m1", "m0"])
    assert reuse_distance([a, b]) == 10
    assert reuse_distance([a, Candidate("read", [], 7, []), b]) == 10


def test_rounds_alternate_and_rotate() -> None:
    seen: list[str] = []
    candidates = [
        Candidate(name, [lambda t=f"{name}{i}": seen.append(t) for i in range(2)], 1, [f"{name}{i}" for i in range(2)])
        for name in "ab"
    ]
    time_cpu(candidates, seconds=0, least=3, most=9)
    assert seen == ["a0", "b0", "a1", "b1", "a0", "b0", "a1", "b1"]
    assert [len(candidate.seconds) for candidate in candidates] == [3, 3]
    time_cpu(candidates, seconds=60, least=1, most=5)
    assert [len(candidate.seconds) for candidate in candidates] == [8, 8]


def test_reader_covers_exactly_the_bytes_asked() -> None:
    reader = Reader(400, torch.device("cpu"))
    windows = reader.windows(240, 3)
    assert [sum(view.numel() for view in views) * 4 for views in windows] == [240, 240, 240]
    assert sum(view.numel() for views in reader.windows(1000, 1) for view in views) * 4 == 1000
    rates = reader.choose(time_cpu)
    assert set(rates) == {"sum", "amax", "dot"} and rates[reader.method] == max(rates.values())


def test_cache_size_is_plausible() -> None:
    assert 2**18 <= last_level_cache(torch.device("cpu")) < 2**34


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_graph_times_are_those_of_one_call() -> None:
    from resetcli.cuda.timing import time_cuda

    x = torch.ones(1 << 24, device="cuda")
    candidate = Candidate("copy", [lambda: x.clone()] * 3, x.numel() * 8, ["x"])
    time_cuda([candidate], seconds=0.1, least=5, most=50)
    assert len(candidate.seconds) >= 5 and 1e-6 < min(candidate.seconds) < 1e-2
