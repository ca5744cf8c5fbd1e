"""``quantize`` on the tiny model: the files it writes, against oracles that share no code with it, and its refusals.

Rules: codes and scales are compared with a packing in NumPy and ml_dtypes written here; logits with ModelOpt's own
model after its fusing step; both bit for bit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import TEXT, fused_group, make_model_dir

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.models.resolve import ModelSource
from resetcli.nvfp4.checkpoint import Checkpoint
from resetcli.quantization import check
from resetcli.quantization.export import quietly
from resetcli.quantization.recipes import get_recipe
from resetcli.quantization.run import quantize

SMALL = {"calib_samples": 2, "calib_length": 64, "device": "cpu", "remember": False}


def source_of(path: Path) -> ModelSource:
    return ModelSource(path, path.name, "test")


@pytest.fixture(scope="module")
def made(tiny_model_dir, tmp_path_factory):
    """(checkpoint directory, report, reporter) of one run."""
    target = tmp_path_factory.mktemp("made") / "out"
    reporter = CollectingReporter()
    return target, quantize(source_of(tiny_model_dir), target, reporter=reporter, **SMALL), reporter


def pack(weight: np.ndarray, amax: np.float32) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """NVFP4 of float32 [N, K] by the exporter's rule, with ml_dtypes doing both roundings."""
    scale_2 = np.float32(amax / np.float32(6 * 448))
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scales = np.abs(blocks).max(-1) / (np.float32(6) * scale_2)
    scales[scales == 0] = 1
    scales = np.clip(scales, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn)
    scaled = blocks / (scales.astype(np.float32) * scale_2)[..., None]
    codes = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    nibbles = codes.astype(np.float32)
    magnitude = np.searchsorted(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32), np.abs(nibbles))
    values = (magnitude + 8 * (scaled < 0)).astype(np.uint8).reshape(weight.shape)
    return values[:, 0::2] | values[:, 1::2] << 4, scales, scale_2


def assert_packed(source: Path, checkpoint: Path) -> int:
    """Codes and scales of every quantized layer equal ``pack``; the number of layers compared."""
    with (
        safe_open(source / "model.safetensors", "pt") as original,
        safe_open(checkpoint / "model.safetensors", "pt") as file,
    ):
        names = [n.removesuffix(".weight_scale") for n in file.keys() if n.endswith(".weight_scale")]  # noqa: SIM118
        groups: dict[str, float] = {}
        weights = {n: original.get_tensor(f"{n}.weight").to(torch.bfloat16).float().numpy() for n in names}
        for name, weight in weights.items():
            groups[fused_group(name)] = max(groups.get(fused_group(name), 0.0), float(np.abs(weight).max()))
        for name, weight in weights.items():
            codes, scales, scale_2 = pack(weight, np.float32(groups[fused_group(name)]))
            assert np.array_equal(file.get_tensor(f"{name}.weight").numpy(), codes), name
            stored = file.get_tensor(f"{name}.weight_scale").view(torch.uint8).numpy()
            assert np.array_equal(stored, scales.view(np.uint8)), name
            assert float(file.get_tensor(f"{name}.weight_scale_2")) == float(scale_2), name
    return len(names)


def test_codes_and_scales_equal_an_independent_packing(tiny_model_dir, made):
    assert assert_packed(tiny_model_dir, made[0]) == 14


def fused_modelopt_model(path: Path, rows: torch.Tensor):
    """ModelOpt's own fake-quantized model in float32 after the fusing that its exporter does."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
    from transformers import AutoModelForCausalLM

    from resetcli.quantization.cpu import cpu_fake_quantize

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()

    def forward(live):
        with torch.inference_mode():
            for row in rows:
                live(row[None], use_cache=False)

    with cpu_fake_quantize():
        quietly(lambda: mtq.quantize(model, get_recipe("rtn").config(), forward))
        quietly(lambda: requantize_resmooth_fused_llm_layers(model))
    return model


def assert_same_logits(path: Path, checkpoint: Path, ids: torch.Tensor, **calibration) -> None:
    from transformers import AutoTokenizer

    from resetcli.nvfp4.loader import load_nvfp4
    from resetcli.quantization.calibration_text import load_documents, token_rows
    from resetcli.quantization.cpu import cpu_fake_quantize

    tokenizer = AutoTokenizer.from_pretrained(path)
    rows = token_rows(load_documents(None), tokenizer, *calibration.values(), CollectingReporter()).ids
    theirs = fused_modelopt_model(path, rows).float()
    # The exporter rounds weights from BF16; float() keeps those values, and arithmetic is float32 on both sides.
    ours = load_nvfp4(checkpoint, dtype=torch.float32)
    with torch.inference_mode(), cpu_fake_quantize():
        a, b = theirs(ids, use_cache=False).logits, ours(ids, use_cache=False).logits
    assert a.dtype == b.dtype == torch.float32
    assert float(a.std()) > 0
    assert float((a - b).abs().max()) == 0.0


def test_our_loader_equals_modelopts_model_after_fusing(tiny_model_dir, tiny_tokenizer, made):
    ids = torch.tensor([tiny_tokenizer(TEXT[0])["input_ids"]])
    assert_same_logits(tiny_model_dir, made[0], ids, rows=2, length=64)


def test_files_are_carried_over_byte_for_byte(tiny_model_dir, made):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (made[0] / name).read_bytes() == (tiny_model_dir / name).read_bytes(), name


def test_only_the_decoders_linears_are_quantized_and_the_cache_is_not(made):
    config = json.loads((made[0] / "config.json").read_text())["quantization_config"]
    assert config["quant_algo"] == "NVFP4" and config["ignore"] and config.get("kv_cache_scheme") is None
    tensors = load_file(made[0] / "model.safetensors")
    assert not [n for n in tensors if "rotate" in n or "k_scale" in n or "amax" in n]
    assert tensors["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert all(t.dtype == torch.bfloat16 for n, t in tensors.items() if "norm" in n)


def test_the_report(made, tiny_model_dir):
    """Errors recomputed here from the files; every promised figure is there and plausible."""
    path, report, reporter = made
    stored = json.loads((path / "quantize_report.json").read_text())
    assert {**stored, "path": str(path)} == report
    tensors, original = load_file(path / "model.safetensors"), load_file(tiny_model_dir / "model.safetensors")
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    assert len(report["layers"]) == 14
    for layer in report["layers"]:
        packed = tensors[f"{layer['name']}.weight"].numpy()
        codes = np.stack([packed & 15, packed >> 4], -1).reshape(layer["n"], layer["k"])
        scales = tensors[f"{layer['name']}.weight_scale"].float().numpy().repeat(16, 1)
        restored = values[codes] * scales * float(tensors[f"{layer['name']}.weight_scale_2"])
        weight = original[f"{layer['name']}.weight"].double().numpy()
        error = np.linalg.norm(restored - weight) / np.linalg.norm(weight)
        assert layer["relative_error"] == pytest.approx(error, rel=1e-4)
    assert 0 < report["check"]["kl_nats"] < 2 and 0 < report["check"]["top1_agreement"] <= 1
    assert report["calibration"]["tokens"] == 2 * 64 and len(report["calibration"]["sha256"]) == 64
    assert report["versions"]["nvidia-modelopt"] and report["memory"]["peak_host_bytes"] > 0
    assert set(report["seconds"]) >= {"load", "calibrate", "export", "check", "total"}
    assert reporter.phases == ["Prepare", "Load", "Reference", "Calibrate", "Export", "Layer errors", "Check"]


def test_input_scales_come_from_the_calibration_rows_alone(tiny_model_dir, tiny_tokenizer, made):
    """max|input| of each group over the very rows, by hooks on the plain BF16 model."""
    from transformers import AutoModelForCausalLM

    from resetcli.quantization.calibration_text import load_documents, token_rows

    rows = token_rows(load_documents(None), tiny_tokenizer, 2, 64, CollectingReporter()).ids
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.bfloat16).eval()
    amax: dict[str, float] = {}

    def watch(name):
        def hook(module, args):
            amax[name] = max(amax.get(name, 0.0), float(args[0].abs().max()))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(watch(fused_group(name)))
    with torch.inference_mode():
        for row in rows:
            model(row[None], use_cache=False)
    for layer in made[1]["layers"]:
        assert layer["input_scale"] == float(np.float32(amax[fused_group(layer["name"])]) / np.float32(6 * 448))


def test_compare_against_float64():
    """KL and agreement against a direct float64 computation on random logits."""
    torch.manual_seed(0)
    rows = torch.randint(0, 50, (2, 200))
    p, q = ([torch.randn(200, 50) for _ in range(2)] for _ in range(2))
    got = check.compare(check.Observed(p, [1, 2]), check.Observed(q, [1, 3]), rows, torch.device("cpu"))
    log_p, log_q = torch.stack(p).double().log_softmax(-1), torch.stack(q).double().log_softmax(-1)
    assert got["kl_nats"] == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()), rel=1e-5)
    assert got["top1_agreement"] == pytest.approx(float((log_p.argmax(-1) == log_q.argmax(-1)).float().mean()))
    nll = -log_q[:, :-1].gather(-1, rows[:, 1:, None]).mean()
    assert got["perplexity_nvfp4"] == pytest.approx(float(nll.exp()), rel=1e-5)
    assert (got["positions"], got["greedy_first_difference"]) == (400, 1)


def test_excluded_layers_stay_in_16_bit(tiny_model_dir, tmp_path):
    report = quantize(source_of(tiny_model_dir), tmp_path / "out", exclude=["*layers.0.mlp.down_proj"], **SMALL)
    assert len(report["layers"]) == 13
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["model.layers.0.mlp.down_proj.weight"].dtype == torch.bfloat16


# Refusals: each before anything is written.


def refused(source: Path, output: Path, match: str | None, error=ResetError, **options) -> None:
    before = sorted(output.parent.iterdir())
    with pytest.raises(error, match=match):
        quantize(source_of(source), output, **{**SMALL, **options})
    assert sorted(output.parent.iterdir()) == before, "nothing half written"


def test_unknown_recipe(tiny_model_dir, tmp_path):
    refused(tiny_model_dir, tmp_path / "o", "unknown recipe 'rtm': did you mean rtn", UsageError, recipe="rtm")


@pytest.mark.parametrize(
    "option", [{"calib_samples": 0}, {"calib_length": 3}, {"device": "tpu9"}, {"device": "cuda:99"}]
)
def test_numbers_and_devices_out_of_range(tiny_model_dir, tmp_path, option):
    refused(tiny_model_dir, tmp_path / "o", "must be at least|device", UsageError, **option)


def test_output_not_empty(tiny_model_dir, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "mine").write_text("x")
    refused(tiny_model_dir, tmp_path / "o", "not empty")
    refused(tiny_model_dir, tmp_path / "o", "was not made by resetcli", overwrite=True)
    assert (tmp_path / "o" / "mine").read_text() == "x"


def test_replacing_a_calibrated_checkpoint_is_told(tiny_model_dir, tmp_path):
    reporter = CollectingReporter()
    for calibrated in (False, True):
        if calibrated:
            (tmp_path / "o" / "reset_config.json").write_text("{}")
        quantize(source_of(tiny_model_dir), tmp_path / "o", overwrite=True, reporter=reporter, **SMALL)
        told = [warning for warning in reporter.warnings if "calibration of the checkpoint" in warning]
        assert len(told) == calibrated and not (tmp_path / "o" / "reset_config.json").exists()


def test_already_nvfp4(made, tmp_path):
    refused(made[0], tmp_path / "o", "NVFP4 checkpoint already")


def test_widths_not_divisible_by_16_are_all_listed(tmp_path):
    """K = 1000: one error with every offending layer and both ways out; --exclude is a way out indeed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    source = make_model_dir(tmp_path / "k1000")
    config = AutoConfig.from_pretrained(source)
    config.intermediate_size = 1000
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(source)
    match = r"2 layers.*layers\.0\.mlp\.down_proj \(K=1000\).*layers\.1\.mlp\.down_proj \(K=1000\).*--exclude.*or use"
    refused(source, tmp_path / "o", match)
    report = quantize(source_of(source), tmp_path / "o", exclude=["*down_proj"], **SMALL)
    assert len(report["layers"]) == 12


def test_all_zero_and_nan_weights_are_named(tiny_model_dir, tmp_path):
    for value, match in ((0.0, "all zero in model.layers.1.mlp.up_proj"), (float("nan"), "NaN or infinite in model")):
        source = tmp_path / f"source{value}"
        shutil.copytree(tiny_model_dir, source)
        tensors = load_file(source / "model.safetensors")
        tensors["model.layers.1.mlp.up_proj.weight"].fill_(value)
        save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
        refused(source, tmp_path / "o", match)


def test_a_source_cut_short(tiny_model_dir, tmp_path):
    source = tmp_path / "cut"
    shutil.copytree(tiny_model_dir, source)
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(source, tmp_path / "o", "is damaged.*fetch it again")


def test_no_tokenizer(tiny_model_dir, tmp_path):
    source = tmp_path / "bare"
    shutil.copytree(tiny_model_dir, source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    refused(source, tmp_path / "o", "no usable tokenizer")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB; needs root."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_disk_too_small_is_known_beforehand(tiny_model_dir, small_disk):
    refused(tiny_model_dir, small_disk / "o", "needs about .* MB, but .* MB free")


def test_disk_that_fills_up_during_the_export(tiny_model_dir, small_disk, monkeypatch):
    """The estimate is switched off, so that the writing itself runs into the end of the disk."""
    from resetcli.quantization import preflight

    (small_disk / "ballast").write_bytes(bytes((1 << 20) - 60_000))
    monkeypatch.setattr(preflight, "check_disk", lambda *_: None)
    refused(tiny_model_dir, small_disk / "o", r"[Nn]o space left")


@pytest.mark.parametrize("phase", ["Load", "Calibrate", "Export", "Check"])
def test_interrupted_in_any_phase_leaves_nothing(tiny_model_dir, tmp_path, phase):
    class Interrupting(CollectingReporter):
        def phase(self, name, total=None):
            if name == phase:
                raise KeyboardInterrupt
            return super().phase(name, total)

    refused(tiny_model_dir, tmp_path / "o", None, KeyboardInterrupt, reporter=Interrupting())


def test_a_folder_made_meanwhile_is_left_alone(tiny_model_dir, tmp_path):
    class Intruding(CollectingReporter):
        def phase(self, name, total=None):
            if name == "Check":
                (tmp_path / "o").mkdir()
                (tmp_path / "o" / "thesis.tex").write_text("mine")
            return super().phase(name, total)

    with pytest.raises(ResetError, match="left as it is; the finished result is .*o.finished-1"):
        quantize(ModelSource(tiny_model_dir, "m", ""), tmp_path / "o", reporter=Intruding(), **SMALL)
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["thesis.tex"]
    assert Checkpoint.open(tmp_path / "o.finished-1").layers


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_mid_run_leaves_nothing(tiny_model_dir, tmp_path, sig):
    script = (
        "import sys; from pathlib import Path; from resetcli.models.resolve import ModelSource;"
        "from resetcli.quantization.run import quantize\n"
        "try: quantize(ModelSource(Path(sys.argv[1]), 'm', ''), Path(sys.argv[2]), calib_samples=10**5,"
        " calib_length=16, calib_data=sys.argv[3], device='cpu')\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    (tmp_path / "long.txt").write_text("a b c d e f g h " * 200_000)
    work = tmp_path / "work"
    work.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", script, tiny_model_dir, work / "o", tmp_path / "long.txt"],
        cwd=work, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.time() + 200
    while not list(work.iterdir()) and child.poll() is None and time.time() < deadline:
        time.sleep(0.05)
    assert list(work.iterdir()), "the run did begin to write: " + (child.stderr.read() if child.poll() else "")
    time.sleep(1)
    child.send_signal(sig)
    assert child.wait(60) in (130, 143)
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_embedded_model_in_full(tmp_path):
    """All 210 layers of the real model: packing, logits, and a check that a sound quantization passes."""
    from resetcli.models.embedded import EMBEDDED_NAME, embedded_available, embedded_model_dir

    available, reason = embedded_available()
    if not available:
        pytest.skip(reason)
    source = embedded_model_dir()
    options = {**SMALL, "calib_samples": 2, "calib_length": 64}
    report = quantize(ModelSource(source, EMBEDDED_NAME, ""), tmp_path / "o", **options)
    assert assert_packed(source, tmp_path / "o") == 210
    assert report["relative_error"]["max"] < 0.12
    assert report["check"]["kl_nats"] < 1.0 and report["check"]["top1_agreement"] > 0.5
    assert re.search(r"sky", report["check"]["greedy_nvfp4"])
    assert_same_logits(source, tmp_path / "o", torch.arange(1000, 1012)[None], rows=2, length=64)
