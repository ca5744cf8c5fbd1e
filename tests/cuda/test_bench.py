"""The bench end to end on small shapes, and that a wrong backend cannot pass as a fast one."""

from __future__ import annotations

import json

import pytest
import torch

from resetcli.base.errors import UsageError
from resetcli.cuda import backends as registry
from resetcli.cuda.backends import BASELINE, Backend, TorchFP32, backends
from resetcli.cuda.bench import COLUMNS, run_bench, table
from resetcli.cuda.shapes import Shape

SMALL = [Shape(96, 64, "small"), Shape(128, 160, "small")]


def bench(**options):
    return run_bench([1, 3], SMALL, device="cpu", seconds=0.05, memory=4e6, **options)


def test_document() -> None:
    found = bench(seed=5)
    assert found["ok"] and found["wrong"] == [] and found["seed"] == 5
    assert len(found["rows"]) == 2 * 2 * 4 and not found["skipped"]
    assert {row["backend"] for row in found["rows"]} == {"nvfp4-w4a4", "nvfp4-w4a16", "torch-bf16", "torch-fp32"}
    for row in found["rows"]:
        assert row["correct"] and 0 <= row["error"] <= 1 and row["rounds"] >= 3
        assert 0 < row["us_min"] <= row["us_q1"] <= row["us"] <= row["us_q3"]
        assert row["gb_s"] == pytest.approx(row["bytes"] / row["us"] / 1e3)
        assert row["of_read"] == pytest.approx(row["gb_s"] / row["read_gb_s"])
        assert row["speedup"] == 1 or row["backend"] != BASELINE
    json.dumps(found, allow_nan=False)
    assert all(len(line) == len(COLUMNS) for line in table(found)) and len(table(found)) == 16
    assert {"device", "threads", "last_level_cache"} <= set(found["machine"]) and found["versions"]["torch"]
    assert {"weights", "clock", "rounds", "inputs", "check", "bytes", "read"} <= set(found["method"])


def test_bytes_are_those_of_the_form_read() -> None:
    rows = {row["backend"]: row for row in bench()["rows"] if row["m"] == 3 and row["k"] == 64}
    assert rows["torch-bf16"]["bytes"] == 2 * (96 * 64 + 3 * (96 + 64))
    assert rows["nvfp4-w4a4"]["bytes"] == rows["torch-fp32"]["bytes"] == 4 * (96 * 64 + 3 * (96 + 64))


def test_bfloat16_layer() -> None:
    found = bench(dtype=torch.bfloat16)
    assert found["ok"], found["wrong"]
    assert found["method"]["dtype"] == "bfloat16"


class Broken(TorchFP32):
    """A baseline with one fault; each is a mistake that a real kernel makes."""

    name, operand = "broken", "broken"

    def __init__(self, fault):
        self.fault = fault

    def call(self, operand):
        right = super().call(operand)
        return lambda x: self.fault(right, x, operand.value)


def zeros(right, x, w):
    return torch.zeros(x.shape[0], w.shape[0])


def last_block_forgotten(right, x, w):
    return x[:, :-16] @ w[:, :-16].T


def last_row_unwritten(right, x, w):
    y = right(x)
    y[:, -1] = float("nan")
    return y


def nibbles_swapped(right, x, w):
    return x.view(x.shape[0], -1, 2).flip(-1).flatten(1) @ w.T


def wrong_shape(right, x, w):
    return right(x)[:, :-1]


def second_token_repeats_the_first(right, x, w):
    y = right(x)
    y[1:] = y[:1]
    return y


@pytest.mark.parametrize(
    "fault",
    [zeros, last_block_forgotten, last_row_unwritten, nibbles_swapped, wrong_shape, second_token_repeats_the_first],
)
def test_a_wrong_backend_is_caught(fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry.register(Broken(fault))
    found = bench(names=["broken"])
    assert not found["ok"] and found["wrong"]
    assert all(name.startswith("broken ") for name in found["wrong"])
    assert [line[-1] for line in table(found)].count("WRONG") == len(found["wrong"])
    json.dumps(found, allow_nan=False)


def test_unsupported_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(TorchFP32):
        name, operand = "picky", "picky"

        def supports(self, device, m, n, k, dtype):
            return (m == 1, "one token only") if m != 1 else (True, "")

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry.register(Picky())
    found = bench(names=["picky"])
    assert {(row["backend"], row["m"]) for row in found["rows"]} == {(BASELINE, 1), (BASELINE, 3), ("picky", 1)}
    assert [(item["m"], item["why"]) for item in found["skipped"]] == [(3, "one token only")] * 2


def test_registry() -> None:
    assert [backend.name for backend in backends(["torch-fp32"])] == [BASELINE, "torch-fp32"]
    with pytest.raises(UsageError, match="did you mean torch-bf16"):
        backends(["torch-bf61"])
    layer: Backend = next(b for b in backends() if b.name == "nvfp4-w4a4")
    assert layer.supports(torch.device("cpu"), 1, 8, 24, torch.float32) == (False, "K=24 is not a multiple of 16")


@pytest.mark.parametrize(("name", "message"), [("tpu9", "not a torch device"), ("meta", "knows cpu and cuda")])
def test_bad_device(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_bench([1], SMALL, device=name)


def test_no_work_is_refused() -> None:
    with pytest.raises(UsageError, match="--M"):
        run_bench([], SMALL)
