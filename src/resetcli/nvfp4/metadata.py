"""What a model directory says about its own quantization, from config.json and hf_quant_config.json."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json
from resetcli.nvfp4.codec import BLOCK

MODELOPT = "modelopt"
COMPRESSED = "compressed-tensors"
WEIGHT_ONLY_ALGO = "W4A16_NVFP4"


@dataclass(frozen=True)
class Metadata:
    """The quantization a directory claims.

    ``format``: "modelopt", "compressed-tensors" or another method's name; ``algo``: "NVFP4", "W4A16_NVFP4" or another;
    ``ignored``: module patterns left unquantized; ``kv_cache``: the KV-cache scheme it names, which we do not apply.
    """

    format: str
    algo: str
    group_size: int
    ignored: tuple[str, ...]
    kv_cache: str | None = None
    producer: str | None = None

    @property
    def is_nvfp4(self) -> bool:
        return self.format in (MODELOPT, COMPRESSED) and self.algo in ("NVFP4", WEIGHT_ONLY_ALGO)

    def fault(self) -> str | None:
        """Why this quantization cannot be loaded, or None."""
        if not self.is_nvfp4:
            return f"it is quantized as {self.format} {self.algo}, and resetcli loads NVFP4 and unquantized models only"
        if self.group_size != BLOCK:
            return f"its quantization blocks have {self.group_size} values; NVFP4 has {BLOCK}"
        return None

    def ignores(self, module: str) -> bool:
        """Whether ``module`` is on the ignore list (exact names, shell patterns, or "re:" and an expression)."""
        for pattern in self.ignored:
            if pattern.startswith("re:"):
                if re.match(pattern[3:], module):
                    return True
            elif fnmatch.fnmatchcase(module, pattern) or module.startswith(pattern + "."):
                return True
        return False


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a model directory.

    Raises:
        ResetError: the directory is missing, or holds no model; the message says which.
    """
    path = Path(path)
    if not path.exists():
        raise ResetError(f"model directory {path} does not exist; check the path")
    if not path.is_dir():
        raise ResetError(f"{path} is a file, not a model directory")
    if not (path / "config.json").is_file():
        raise ResetError(f"{path} is not a model directory: it has no config.json")
    config = read_json(path / "config.json")
    if not isinstance(config, dict):
        raise ResetError(f"{path / 'config.json'} is not a JSON object; download it again")
    if "model_type" not in config:
        raise ResetError(f"{path} is not a model directory: its config.json has no model_type")
    return config


def read_metadata(path: Path, config: dict[str, Any]) -> Metadata | None:
    """The quantization that ``path`` claims, None if it claims none. config.json wins over hf_quant_config.json.

    Raises:
        ResetError: what it says of it makes no sense.
    """
    try:
        found = _claimed(path, config)
        for pattern in found.ignored if found is not None else ():
            if pattern.startswith("re:"):
                re.compile(pattern[3:])
    except (ValueError, TypeError, AttributeError, re.error) as exc:
        raise ResetError(f"{path}: the description of its quantization is broken ({exc}); restore config.json") from exc
    return found


def _claimed(path: Path, config: dict[str, Any]) -> Metadata | None:
    claimed = config.get("quantization_config") or config.get("compression_config")
    if isinstance(claimed, dict) and claimed:
        method = str(claimed.get("quant_method") or (MODELOPT if "quant_algo" in claimed else "unknown"))
        if method == COMPRESSED:
            return _compressed(claimed)
        if method != MODELOPT:
            return Metadata(method, str(claimed.get("fmt") or claimed.get("bits") or ""), BLOCK, ())
        sizes = [
            half["group_size"]
            for group in _dicts(claimed.get("config_groups"))
            for half in _dicts(group)
            if "group_size" in half
        ]
        cache = claimed.get("kv_cache_scheme")
        return Metadata(
            MODELOPT,
            str(claimed.get("quant_algo")),
            int(claimed.get("group_size") or (sizes[0] if sizes else BLOCK)),
            _names(claimed.get("ignore", claimed.get("exclude_modules"))),
            f"{cache.get('num_bits')}-bit" if isinstance(cache, dict) else cache,
            _producer(claimed.get("producer")),
        )
    if (path / "hf_quant_config.json").is_file():
        whole = read_json(path / "hf_quant_config.json")
        details = whole.get("quantization") if isinstance(whole, dict) else None
        if not isinstance(details, dict):
            raise ResetError(f'{path / "hf_quant_config.json"} has no "quantization" object; restore or delete it')
        return Metadata(
            MODELOPT,
            str(details.get("quant_algo")),
            int(details.get("group_size") or BLOCK),
            _names(details.get("exclude_modules")),
            details.get("kv_cache_quant_algo"),
            _producer(whole.get("producer")),
        )
    return None


def _compressed(claimed: dict[str, Any]) -> Metadata:
    groups = _dicts(claimed.get("config_groups"))
    formats = {str(group.get("format") or claimed.get("format")) for group in groups} or {str(claimed.get("format"))}
    algo = ", ".join(sorted(formats))
    size = BLOCK
    if algo == "nvfp4-pack-quantized":
        algo = "NVFP4" if any(group.get("input_activations") for group in groups) else WEIGHT_ONLY_ALGO
        sizes = [(group.get("weights") or {}).get("group_size") for group in groups]
        size = next((int(s) for s in sizes if s), BLOCK)
    cache = claimed.get("kv_cache_scheme")
    bits = f"{cache.get('num_bits')}-bit" if isinstance(cache, dict) else None
    return Metadata(COMPRESSED, algo, size, _names(claimed.get("ignore")), bits, "compressed-tensors")


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value.values() if isinstance(v, dict)] if isinstance(value, dict) else []


def _names(value: Any) -> tuple[str, ...]:
    return tuple(str(v) for v in value) if isinstance(value, list) else ()


def _producer(value: Any) -> str | None:
    return f"{value.get('name')} {value.get('version', '')}".strip() if isinstance(value, dict) else None
