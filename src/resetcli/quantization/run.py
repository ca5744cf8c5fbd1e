"""``reset quantize``: a BF16 model directory in, an NVFP4 checkpoint directory out, through ModelOpt.

Order: everything that can be refused cheaply; load; BF16 logits of the held-out text, kept on the CPU; calibrate;
export; read the checkpoint back from disk for the errors and the closing check. One full model at a time is on the
device, so the peak stays near the BF16 weights. On a GPU the check dequantizes each layer for the moment it is
used, for the same reason.

The files that make a model usable (tokenizer, chat template, generation_config, code) are copied byte for byte from
the source over whatever the exporter wrote; config.json, the weights and hf_quant_config.json are the exporter's.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.files import check_output, output_target, whole_directory, write_json
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions
from resetcli.models.embedded import EMBEDDED_NAME
from resetcli.models.resolve import ModelSource
from resetcli.nvfp4.checkpoint import Checkpoint, fingerprint
from resetcli.nvfp4.skeleton import meta_model, quiet_transformers
from resetcli.quantization import check, preflight
from resetcli.quantization.calibration_text import TokenRows, bundled_documents, load_documents, token_rows
from resetcli.quantization.cpu import cpu_fake_quantize
from resetcli.quantization.errors import layer_errors, summary
from resetcli.quantization.export import REPORT, carry_over, export, quietly
from resetcli.quantization.last import remember_last
from resetcli.quantization.recipes import Recipe, get_recipe, with_exclusions


@dataclass
class _Clock:
    """Seconds of each phase, told to the reporter as they pass."""

    reporter: Reporter
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Any]:
        start = time.perf_counter()
        with self.reporter.phase(name, total) as advance:
            yield advance
        self.seconds[name.lower()] = round(time.perf_counter() - start, 3)


def quantize(
    source: ModelSource,
    output: Path | None = None,
    *,
    recipe: str = "rtn",
    calib_data: str | None = None,
    calib_samples: int | None = None,
    calib_length: int | None = None,
    exclude: Sequence[str] = (),
    device: str | None = None,
    overwrite: bool = False,
    seed: int = 0,
    trust_remote_code: bool = False,
    remember: bool = True,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Quantize ``source`` to NVFP4 (W4A4; KV cache, embeddings and lm_head stay BF16) and check the result.

    Args:
        output: the checkpoint directory; None: ``./<model name>-nvfp4``. It appears whole or not at all.
        calib_data: ``.txt`` or ``.jsonl`` file, or hub data set; None: the bundled text.
        calib_samples, calib_length: rows and tokens a row; None: 32 x 512 on a GPU, 8 x 256 on a CPU.
        exclude: wildcards over module names that stay in BF16.
        device: None takes CUDA where there is one.
        remember: note the output in ``.reset/last``.

    Returns:
        the report, as written to ``quantize_report.json``, plus ``path``.

    Raises:
        UsageError: unknown recipe, or a number out of range.
        ResetError: whatever ``preflight`` refuses, calibration text that cannot be used, or a failed export.
    """
    reporter = reporter or Reporter()
    plan_recipe = get_recipe(recipe)
    output = Path(output).absolute() if output is not None else Path.cwd() / f"{source.name}-nvfp4"
    where = _device(device)
    on_gpu = where.type == "cuda"
    samples = _positive("--calib-samples", calib_samples, 32 if on_gpu else 8, 1)
    length = _positive("--calib-length", calib_length, 512 if on_gpu else 256, 16)
    check_output(output, overwrite=overwrite)
    calibrated = (output / "reset_config.json").is_file()
    preflight.refuse_nvfp4(source.path)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(where)
    torch.manual_seed(seed)
    clock = _Clock(reporter)
    with _terminable(), clock.phase("Prepare"):
        documents = load_documents(calib_data, reporter)
        if calib_data is None and not source.name.startswith(EMBEDDED_NAME):
            reporter.warn("activation ranges come from resetcli's small bundled text; --calib-data names your own")
        config = with_exclusions(quietly(plan_recipe.config), exclude)
        skeleton = meta_model(source.path, trust_remote_code=trust_remote_code)
        plan = preflight.make_plan(source.path, skeleton, config)
        preflight.check_disk(output_target(output), plan.output_bytes)
        context = getattr(skeleton.config.get_text_config(), "max_position_embeddings", None) or length
        del skeleton
        tokenizer = _tokenizer(source.path, trust_remote_code)
        text = token_rows(documents, tokenizer, samples, min(length, context), reporter)
        rows = 4 if on_gpu else 2
        heldout = token_rows(bundled_documents("heldout_text.txt"), tokenizer, rows, min(length, context), Reporter())
    with _terminable(), whole_directory(output, overwrite=overwrite) as scratch:
        job = _Job(source, plan_recipe, config, plan, text, heldout, where, trust_remote_code, clock)
        report = job.run(scratch, tokenizer, new_tokens=16)
        report = {
            "format": 1,
            "recipe": recipe,
            "exclude": list(exclude),
            "model": {"name": source.name, "path": str(source.path), "fingerprint": fingerprint(source.path)},
            **report,
            "seed": seed,
            "device": torch.cuda.get_device_name(where) if on_gpu else "cpu",
            "versions": versions(),
            "seconds": {**clock.seconds, "total": round(sum(clock.seconds.values()), 3)},
            "memory": _memory(where, plan),
        }
        write_json(scratch / REPORT, report)
    if calibrated:
        reporter.warn(f"the calibration of the checkpoint that was replaced is gone; run reset calibrate {output}")
    if remember:
        remember_last(output)
    return {"path": str(output), **report}


@dataclass
class _Job:
    source: ModelSource
    recipe: Recipe
    config: dict[str, Any]
    plan: preflight.Plan
    text: TokenRows
    heldout: TokenRows
    device: torch.device
    trust_remote_code: bool
    clock: _Clock

    def run(self, scratch: Path, tokenizer: Any, new_tokens: int) -> dict[str, Any]:
        """Load, observe, calibrate, export into ``scratch``, read back; the figures of the report."""
        prompt = check.prompt_ids(tokenizer)
        rows = self.heldout.ids
        try:
            with self.clock.phase("Load"):
                model = self._load()
                preflight.check_weights(model, self.plan.layers)
            with self.clock.phase("Reference", len(rows) + 1) as advance:
                reference = check.observe(model, rows, prompt, new_tokens, advance)
            with self.clock.phase("Calibrate", len(self.text.ids)) as advance:
                self._calibrate(model, advance)
            with self.clock.phase("Export"):
                export(model, scratch)
                del model
                _free()
                carry_over(self.source.path, scratch)
            checkpoint = Checkpoint.open(scratch, trust_remote_code=self.trust_remote_code)
            with self.clock.phase("Layer errors", len(checkpoint.layers)) as advance:
                layers = layer_errors(checkpoint, self.plan.tensors, self.device, advance)
            with self.clock.phase("Check", len(rows) + 1) as advance:
                quantized = self._observe_checkpoint(checkpoint, rows, prompt, new_tokens, advance)
                figures = check.compare(reference, quantized, rows, self.device)
        except torch.cuda.OutOfMemoryError as exc:
            raise ResetError(
                f"GPU memory is too small for {self.source.name} ({self.plan.bf16_bytes / 1e9:.1f} GB in BF16);"
                " use --device cpu, or fewer and shorter rows (--calib-length)"
            ) from exc
        return {
            "calibration": {
                "data": self.text.documents.origin,
                "sha256": self.text.documents.sha256,
                "rows": len(self.text.ids),
                "length": self.text.ids.shape[1],
                "tokens": self.text.ids.numel(),
            },
            "relative_error": summary(layers),
            "layers": layers,
            "check": {
                **figures,
                "text": self.heldout.documents.origin,
                "dtype": "bfloat16",
                "prompt": check.PROMPT,
                "greedy_bf16": tokenizer.decode(reference.greedy, skip_special_tokens=True),
                "greedy_nvfp4": tokenizer.decode(quantized.greedy, skip_special_tokens=True),
            },
            "size_bytes": {"bf16": self.plan.bf16_bytes, "nvfp4": checkpoint.size_bytes},
        }

    def _load(self) -> Any:
        import importlib.util

        from transformers import AutoModelForCausalLM

        # Straight to the GPU where accelerate is there to do it; by way of the host where not.
        direct = self.device.type == "cuda" and importlib.util.find_spec("accelerate") is not None
        with quiet_transformers():
            model: Any = AutoModelForCausalLM.from_pretrained(
                self.source.path, dtype=torch.bfloat16, local_files_only=True, use_safetensors=True,
                trust_remote_code=self.trust_remote_code, **({"device_map": {"": self.device}} if direct else {}),
            )  # fmt: skip
        return model.to(self.device).eval().requires_grad_(False)

    def _calibrate(self, model: Any, advance: Any) -> None:
        def forward(live: Any) -> None:
            with torch.inference_mode():
                for row in self.text.ids:
                    live(row[None].to(self.device), use_cache=False, logits_to_keep=1)
                    advance(1)

        import modelopt.torch.quantization as mtq

        with cpu_fake_quantize():
            quietly(lambda: mtq.quantize(model, self.config, forward if self.recipe.needs_forward else None))
        preflight.check_ranges(model, self.plan.layers)

    def _observe_checkpoint(self, checkpoint: Checkpoint, *args: Any) -> check.Observed:
        from resetcli.nvfp4.linear import NVFP4Linear
        from resetcli.nvfp4.loader import load_nvfp4

        model = load_nvfp4(
            checkpoint, device=self.device, dtype=torch.bfloat16, trust_remote_code=self.trust_remote_code
        )
        if self.device.type == "cuda":
            for module in model.modules():
                if isinstance(module, NVFP4Linear):
                    module.register_forward_hook(lambda layer, *_: layer.drop_cache())
        seen = check.observe(model, *args)
        del model
        _free()
        return seen


def _tokenizer(path: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]
        raise ResetError(f"{path} has no usable tokenizer ({reason}); copy its tokenizer files there") from exc


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as exc:
        raise UsageError(f"unknown device '{name}'; use cpu, cuda or cuda:N") from exc
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device '{name}' cannot quantize; use cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device '{name}' asks for CUDA, which torch does not find here; use --device cpu")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        if device.index >= torch.cuda.device_count():
            raise UsageError(f"there is no device '{name}': {torch.cuda.device_count()} GPUs here")
    return device


def _positive(option: str, value: int | None, default: int, least: int) -> int:
    if value is None:
        return default
    if value < least:
        raise UsageError(f"{option} must be at least {least}, not {value}")
    return value


def _memory(device: torch.device, plan: preflight.Plan) -> dict[str, Any]:
    """Peaks in bytes: of this process on the host since it began; of tensors on the GPU during the run."""
    found: dict[str, Any] = {"peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "cuda":
        found["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(device)
        found["peak_gpu_reserved_bytes"] = torch.cuda.max_memory_reserved(device)
        found["peak_gpu_over_bf16"] = found["peak_gpu_bytes"] / plan.bf16_bytes
    return found


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C inside the block, so that a terminated run leaves nothing behind either."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(*_: Any) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
