"""`reset quantize` at full size on a GPU: a Qwen3-8B-shaped model with random weights, from disk to disk.

Measures what issue-level promises are about: seconds of the whole quantization, peak GPU memory against the BF16
weights, host memory; then inspects the checkpoint and generates from it. Prints one JSON line; --output keeps it.
Random weights make the shapes, bytes and time real, the text meaningless.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from resetcli.base.files import write_json
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions

QWEN3_8B = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
    "rope_theta": 1e6, "tie_word_embeddings": False,
}  # fmt: skip


class Printer(Reporter):
    """Notes with the time, so that a slow phase shows in the log."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def info(self, message: str) -> None:
        print(f"[{time.perf_counter() - self.start:7.1f} s] {message}", flush=True)

    warn = info

    def phase(self, name: str, total: int | None = None):
        self.info(name)
        return super().phase(name, total)


def write_model(path: Path, tokenizer_dir: Path, layers: int) -> int:
    """A Qwen3-shaped directory of random BF16 weights made on the GPU; returns the bytes of its weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

    torch.manual_seed(0)
    config = Qwen3Config(**{**QWEN3_8B, "num_hidden_layers": layers})
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(path, max_shard_size="4GB")
    AutoTokenizer.from_pretrained(tokenizer_dir).save_pretrained(path)
    del model
    torch.cuda.empty_cache()
    return size


def run(work: Path, tokenizer_dir: Path, layers: int) -> dict[str, Any]:
    from resetcli.engines.factory import EngineOptions, open_engine
    from resetcli.engines.protocol import Request
    from resetcli.models.resolve import resolve_model
    from resetcli.nvfp4.inspect import inspect_checkpoint
    from resetcli.policy.settings import PolicySettings
    from resetcli.quantization.run import quantize

    reporter = Printer()
    model_dir = work / "qwen3-8b-random"
    weight_bytes = write_model(model_dir, tokenizer_dir, layers)
    reporter.info(f"wrote {weight_bytes / 1e9:.1f} GB of BF16 weights")
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    report = quantize(resolve_model(str(model_dir), reporter=reporter), work / "out", remember=False, reporter=reporter)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated()
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    reporter.info(f"quantized in {seconds:.1f} s, peak {peak / weight_bytes:.3f} of the weights")
    torch.cuda.empty_cache()
    anatomy = inspect_checkpoint(work / "out")
    engine = open_engine(EngineOptions(work / "out", batch_size=8), reporter)
    settings = PolicySettings(name="reset", tau_0=0.5505, tau_0_source="option")
    rates = {}
    for batch in (1, 8):
        ids = tuple(range(100, 612))
        requests = [Request(f"r{i}", ids, i, 128, ignore_eos=True) for i in range(batch)]
        list(engine.generate(requests, settings))  # captures the graph
        began = time.perf_counter()
        tokens = sum(c.n_tokens for c in engine.generate(requests, settings))
        rates[f"batch {batch}"] = round(tokens / (time.perf_counter() - began), 1)
        reporter.info(f"batch {batch}: {rates[f'batch {batch}']} tokens/s (prefill of 512 tokens each included)")
    return {
        "what": "reset quantize of a Qwen3-8B-shaped model with random weights",
        "gpu": torch.cuda.get_device_name(),
        "layers": layers,
        "weight_bytes": weight_bytes,
        "seconds": round(seconds, 1),
        "phases": report["seconds"],
        "peak_gpu_bytes": peak,
        "peak_gpu_over_weights": round(peak / weight_bytes, 4),
        "peak_host_bytes": host,
        "check": report.get("check"),
        "quantized_layers": anatomy.get("quantized_layers") or anatomy.get("layers"),
        "inspect": {k: v for k, v in anatomy.items() if k != "path" and isinstance(v, str | int | float | bool)},
        "tokens_per_s_torch_fallback": rates,
        "versions": versions() | {"cuda": torch.version.cuda},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="a directory with any tokenizer of <= 151,936 ids"
    )
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--commit", help="of this checkout, for the record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        result = {"commit": options.commit} | run(Path(work), options.tokenizer, options.layers)
    if options.output:
        write_json(options.output, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
