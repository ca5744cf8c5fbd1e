"""Opening an engine: options in, a loaded model behind the protocol out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError, unknown_name
from resetcli.base.reporting import Reporter
from resetcli.engines.protocol import Engine, EngineInfo

ENGINES = ("transformers",)
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EngineOptions:
    """How to load and run a checkpoint.

    Attributes:
        path: an NVFP4 checkpoint or a BF16 model directory.
        device: "cpu", "cuda", "cuda:N"; None takes the GPU if there is one.
        dtype: compute type; None is float32 on a CPU and bfloat16 on a GPU.
        batch_size: requests decoded together.
        batch_invariant: a request's logits do not depend on its company; None is yes where it can be had
            (CPU in float32), True elsewhere is an error.
        activations: "w4a4" (the checkpoint's own rule) or "w4a16".
        max_context: a lower limit than the model's own context.
        name: what reports call the model; None is the directory's name.
    """

    path: Path
    engine: str = "transformers"
    device: str | None = None
    dtype: str | None = None
    batch_size: int = 8
    batch_invariant: bool | None = None
    activations: str = "w4a4"
    trust_remote_code: bool = False
    max_context: int | None = None
    name: str | None = None


def open_engine(options: EngineOptions, reporter: Reporter | None = None) -> Engine:
    """Load ``options.path`` into an engine.

    Raises:
        UsageError: an unknown engine, device or dtype, or a batch size below 1.
        ResetError: the checkpoint is unusable, or batch invariance is asked for where it cannot be had.
    """
    reporter = reporter or Reporter()
    if options.engine not in ENGINES:
        raise unknown_name("engine", options.engine, ENGINES)
    if options.batch_size < 1:
        raise UsageError(f"--batch-size must be at least 1, not {options.batch_size}")
    if options.dtype is not None and options.dtype not in DTYPES:
        raise unknown_name("dtype", options.dtype, DTYPES)
    if options.activations not in ("w4a4", "w4a16"):
        raise unknown_name("activation mode", options.activations, ("w4a4", "w4a16"))

    import torch

    device = pick_device(options.device)
    dtype_name = options.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    dtype = getattr(torch, dtype_name)
    can_be_invariant = device.type == "cpu" and dtype == torch.float32
    if options.batch_invariant and not can_be_invariant:
        raise ResetError(f"batch invariance needs a CPU and float32, not {device} and {dtype_name}; drop the option")
    invariant = can_be_invariant if options.batch_invariant is None else options.batch_invariant
    return _load(options, device, dtype, dtype_name, invariant, reporter)


def pick_device(name: str | None):
    """The torch device for ``name``; None takes cuda where a GPU works, else the CPU.

    Raises:
        UsageError: torch does not know the name, or no such device is there.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device '{name}' (cpu, cuda, cuda:N)") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device '{name}' is not supported (cpu, cuda, cuda:N)")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device '{name}' is not there: torch {torch.__version__} sees no GPU; use --device cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise UsageError(f"device '{name}' is not there: this machine has {torch.cuda.device_count()} GPU(s)")
    return device


def _load(options: EngineOptions, device, dtype, dtype_name: str, invariant: bool, reporter: Reporter) -> Engine:
    from transformers import AutoTokenizer

    from resetcli.engines import packing
    from resetcli.engines.runner import ModelRunner
    from resetcli.engines.transformers_engine import TransformersEngine
    from resetcli.nvfp4.checkpoint import fingerprint
    from resetcli.nvfp4.linear import NVFP4Linear
    from resetcli.nvfp4.loader import load_pretrained
    from resetcli.policy.boundaries import BoundaryTable

    path = Path(options.path)
    trust = options.trust_remote_code
    with reporter.phase(f"load {path.name}"):
        model, is_nvfp4 = load_pretrained(
            path,
            device=device,
            dtype=dtype,
            activations=options.activations,
            trust_remote_code=trust,
            reporter=reporter,
        )
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust, local_files_only=True)
        except Exception as exc:  # tokenizers raises a bare Exception for a file it cannot make sense of
            reason = (str(exc).strip().splitlines() or [""])[0][:300]
            named = reason if isinstance(exc, OSError | ValueError) else f"{type(exc).__name__} {reason}"
            raise ResetError(f"{path} has no usable tokenizer: {named}; copy its tokenizer files there") from exc
        # Read off the layers: a weight-only checkpoint is W4A16 whatever was asked for.
        modes = {layer.activations for layer in model.modules() if isinstance(layer, NVFP4Linear)}
        activations = ", ".join(sorted(modes)) or None
        kernels = None
        if is_nvfp4 and device.type == "cuda":
            from resetcli.cuda.layers import install

            kernels = install(model, dtype=dtype, max_batch=options.batch_size, reporter=reporter).describe()
        config = model.config.get_text_config()
        vocab = min(len(tokenizer), config.vocab_size)
        packed = invariant and packing.available()
        runner = ModelRunner(
            model, slots=options.batch_size, valid_vocab=vocab, packed=packed, invariant=invariant, reporter=reporter
        )
    context = min(c for c in (getattr(config, "max_position_embeddings", None), options.max_context) if c)
    info = EngineInfo(
        engine="transformers",
        model=options.name or path.resolve().name,
        path=str(path.resolve()),
        nvfp4=is_nvfp4,
        fingerprint=fingerprint(path),
        device=str(device),
        dtype=dtype_name,
        context=context,
        vocab_size=vocab,
        batch_size=options.batch_size,
        batch_invariant=invariant,
        details={
            "activations": activations,
            "threads": torch_threads() if device.type == "cpu" else None,
            "packed": packed,
            "kernels": kernels,
        },
    )
    return TransformersEngine(
        runner, tokenizer, info, end_ids(model, tokenizer), BoundaryTable.for_tokenizer(tokenizer)
    )


def torch_threads() -> int:
    """Threads that torch uses on the CPU: part of what bit-equality depends on."""
    import torch

    return torch.get_num_threads()


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a text: those of generation_config, of the model's config and of the tokenizer together."""
    ids: set[int] = set()
    sources = (getattr(model, "generation_config", None), model.config, tokenizer)
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        if isinstance(value, int):
            ids.add(value)
        elif isinstance(value, list | tuple):
            ids.update(int(v) for v in value)
    return frozenset(ids)
