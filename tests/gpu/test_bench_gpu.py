"""`reset bench-kernels` on a GPU, small: every family and part runs, is right, and its table is dispatched by."""

from __future__ import annotations

import json

import pytest
import torch

from resetcli.base.reporting import CollectingReporter

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def test_all_parts(tmp_path, monkeypatch):
    from resetcli.cuda.dispatch import dispatcher
    from resetcli.cuda.families import families
    from resetcli.cuda.kernel_table import load_table
    from resetcli.cuda.shapes import Shape
    from resetcli.cuda.suite import Parts, run_suite

    monkeypatch.setattr("resetcli.cuda.tune.user_path", lambda name: tmp_path / "user.json")
    monkeypatch.setattr("resetcli.cuda.dispatch.user_path", lambda name: tmp_path / "user.json")
    dispatcher.forget()
    reporter = CollectingReporter()
    parts = Parts(tune=True, tune_seconds=5, tune_output=tmp_path / "table.json", ablate=True, activation_quant=True)
    shapes = [Shape(1024, 2048), Shape(520, 1040)]
    try:
        found = run_suite([1, 8], shapes, seconds=1.0, parts=parts, given_commit="abc", reporter=reporter)
    finally:
        monkeypatch.undo()
        dispatcher.forget()
    json.dumps(found, allow_nan=False)
    assert found["ok"], (found["wrong"], found["failed"], found["parts_failed"], reporter.warnings)
    table = load_table(tmp_path / "table.json")
    assert table is not None and len(table.entries) == 4
    hopper = torch.cuda.get_device_capability() == (9, 0)
    names = {row["backend"] for row in found["rows"]}
    expected = {family.name for family in families() if hopper or not family.name.startswith(("wgmma", "wide"))}
    ours = (expected - {"dense-tiles"}) | {"kernels", "kernels-w4a16"}
    assert names >= ours | {"torch-bf16", "torch-int4-g32", "torch-int4-g128"}
    for row in found["rows"]:
        if "alone_us" in row:
            assert row["of_read"] and row["alone_us"] > 0 and row["row_error"] < 4e-3, row
        if row["backend"] == "kernels":
            assert row["source"] == "user table"
        if "alone_us" in row:
            assert row["activations"] == ("w4a16" if row["backend"] == "kernels-w4a16" else "w4a4")
    assert all(row["us"] for row in found["activation_quant"]["rows"]), found["activation_quant"]
    assert {row["off"] for row in found["ablation"]["rows"]} == {"all on", "C1", "C2", "C3"}
