"""A transformers model from a checkpoint on disk, NVFP4 or unquantized.

The NVFP4 way: check, build on the meta device, put NVFP4Linear where the checkpoint has quantized layers, then read
tensor by tensor and hand each over, so that memory never holds more than the checkpoint and one tensor. transformers'
own loader is not used for it: it refuses this quantization, and would allocate what we assign.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.nvfp4.checkpoint import COMPRESSED, Checkpoint, global_scale_tensor, is_nvfp4
from resetcli.nvfp4.linear import ACTIVATIONS, NVFP4Linear
from resetcli.nvfp4.metadata import read_config, read_metadata
from resetcli.nvfp4.skeleton import meta_model, quiet_transformers
from resetcli.nvfp4.tensorfile import read_headers, read_tensor


def load_pretrained(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    activations: str = "w4a4",
    trust_remote_code: bool = False,
    reporter: Reporter | None = None,
) -> tuple[Any, bool]:
    """The causal language model in a local directory, and whether it is NVFP4.

    Args:
        path: NVFP4 checkpoint or unquantized Hugging Face directory with safetensors.
        device: where its tensors go.
        dtype: of unquantized parameters and of arithmetic; None takes the config's.
        activations: "w4a4" (the checkpoint's rule) or "w4a16"; without effect on an unquantized model.
        trust_remote_code: run model code that lies in the directory.

    Returns:
        model in eval mode without gradients, its generation_config that of the directory; True for NVFP4.

    Raises:
        ResetError: no model there, a broken one, or one quantized in another way.
    """
    path = Path(path)
    if activations not in ACTIVATIONS:
        raise UsageError(f"unknown activations '{activations}' (known: {', '.join(ACTIVATIONS)})")
    if is_nvfp4(path):
        model = load_nvfp4(
            path, device=device, dtype=dtype, activations=activations, trust_remote_code=trust_remote_code,
            reporter=reporter,
        )  # fmt: skip
        return model, True
    if (metadata := read_metadata(path, read_config(path))) and (fault := metadata.fault()):
        raise ResetError(f"{path} cannot be loaded: {fault}")
    return _load_plain(path, device, dtype, trust_remote_code), False


def load_nvfp4(
    path: Path | str | Checkpoint,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    activations: str = "w4a4",
    trust_remote_code: bool = False,
    reporter: Reporter | None = None,
) -> Any:
    """As ``load_pretrained`` for an NVFP4 checkpoint (a path, or one opened already).

    A weight-only checkpoint is loaded as "w4a16" whatever ``activations`` says, with a warning to ``reporter``.
    """
    reporter = reporter or Reporter()
    checkpoint = path if isinstance(path, Checkpoint) else Checkpoint.open(path, trust_remote_code=trust_remote_code)
    for note in checkpoint.notes:
        reporter.info(f"{checkpoint.path.name}: {note}")
    if activations == "w4a4" and checkpoint.weight_only:
        reporter.warn(f"{checkpoint.path.name} quantizes weights only; activations stay in 16 bit or more (w4a16)")
        activations = "w4a16"
    model = meta_model(checkpoint.path, dtype=dtype, trust_remote_code=trust_remote_code)
    dtype = dtype or model.dtype
    for name, layer in checkpoint.layers.items():
        old = model.get_submodule(name)
        new = NVFP4Linear(
            layer.k, layer.n, bias=old.bias is not None, activations=activations, dtype=dtype, device="meta"
        )
        if layer.input_scale is None:
            new.input_scale = None
            new.activations = "w4a16"
        model.set_submodule(name, new)
    quantized = _layer_tensors(checkpoint)
    with reporter.phase("read tensors", len(checkpoint.tensors)) as advance:
        for name in sorted(checkpoint.tensors, key=lambda n: (checkpoint.tensors[n].file, checkpoint.tensors[n].start)):
            advance(1)
            info = checkpoint.tensors[name]
            if name in quantized:
                target, inverse = quantized[name]
                value = global_scale_tensor(info, inverse=inverse) if info.nbytes == 4 else read_tensor(info)
                _assign(model, target, value.to(device))
            elif name not in checkpoint.ignored_tensors:
                value = read_tensor(info)
                if not bool(torch.isfinite(value).all()):
                    raise ResetError(f"{info.name} in {info.file} has NaN or infinite values; make it again")
                _assign(model, name, value.to(device=device, dtype=dtype if value.is_floating_point() else None))
    return _finish(model, checkpoint.path, device)


def _layer_tensors(checkpoint: Checkpoint) -> dict[str, tuple[str, bool]]:
    """For each tensor of a quantized layer: its name in NVFP4Linear, and whether it is stored inverted."""
    names: dict[str, tuple[str, bool]] = {}
    inverse = checkpoint.format == COMPRESSED
    for name, layer in checkpoint.layers.items():
        names[layer.weight.name] = (f"{name}.weight", False)
        names[layer.weight_scale.name] = (f"{name}.weight_scale", False)
        names[layer.weight_scale_2.name] = (f"{name}.weight_scale_2", inverse)
        if layer.input_scale is not None:
            names[layer.input_scale.name] = (f"{name}.input_scale", inverse)
    return names


def _assign(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Make ``value`` the parameter or buffer ``name``, without a copy."""
    parent_name, _, leaf = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    if leaf in parent._buffers:
        parent._buffers[leaf] = value
    else:
        parent._parameters[leaf] = nn.Parameter(value, requires_grad=False)


def _finish(model: Any, path: Path, device: torch.device | str) -> Any:
    """Tie what is tied, rebuild buffers that are not stored, and make sure that nothing is left without values."""
    with quiet_transformers():
        model.tie_weights()
        _rebuild_buffers(model, device)
    left = [name for name, value in (*model.named_parameters(), *model.named_buffers()) if value.is_meta]
    if left:
        raise ResetError(f"{path} leaves {len(left)} tensors without values, first {left[0]}; resetcli cannot load it")
    model.generation_config = _generation_config(path, model)
    model.requires_grad_(False)
    return model.eval()


def _rebuild_buffers(model: Any, device: torch.device | str) -> None:
    """Values of buffers that no checkpoint stores (rotary frequencies): computed by the model's own initialiser.

    A buffer that the initialiser leaves alone stays NaN and is refused, rather than decode with garbage.
    """
    for name, module in model.named_modules():
        missing = [key for key, value in module._buffers.items() if value is not None and value.is_meta]
        if not missing:
            continue
        if any(True for _ in module.parameters(recurse=False)):
            raise ResetError(f"module {name} computes {missing[0]} beside stored weights; resetcli cannot load it yet")
        for key in missing:
            buffer = module._buffers[key]
            fill = float("nan") if buffer.is_floating_point() else 0
            module._buffers[key] = torch.full(buffer.shape, fill, dtype=buffer.dtype, device=device)
        with torch.no_grad():
            model._init_weights(module)
        for key in missing:
            if bool(torch.isnan(module._buffers[key]).any()):
                raise ResetError(f"buffer {name}.{key} is not stored and its model gives no value; cannot load it")


def _generation_config(path: Path, model: Any) -> Any:
    from transformers import GenerationConfig

    if not (path / "generation_config.json").is_file():
        return GenerationConfig.from_model_config(model.config)
    try:
        return GenerationConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0][:300]
        raise ResetError(f"{path / 'generation_config.json'} cannot be read: {reason}; restore or delete it") from exc


def _load_plain(path: Path, device: torch.device | str, dtype: torch.dtype | None, trust_remote_code: bool) -> Any:
    """An unquantized model by transformers' own loader, from local safetensors only; sound files only."""
    from transformers import AutoModelForCausalLM

    model: Any
    info: Any
    _, _, faults = read_headers(path)
    if faults:
        raise ResetError(f"{path} is damaged: {'; '.join(faults[:8])}")
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype or "auto", trust_remote_code=trust_remote_code, local_files_only=True,
                use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
            model, info = loaded
    except Exception as exc:  # a config that makes no sense fails anywhere in the model's code, in any way
        reason = " ".join(str(exc).split())[:300] or type(exc).__name__
        if "trust_remote_code" in str(exc):
            reason = "it needs the code in its own directory, which runs only if you pass --trust-remote-code"
        raise ResetError(f"{path} cannot be loaded as a language model: {reason}") from exc
    if missing := sorted(info["missing_keys"]):
        raise ResetError(f"{path} lacks {len(missing)} tensors of its architecture, first {missing[0]}")
    model.requires_grad_(False)
    return model.to(device).eval()
