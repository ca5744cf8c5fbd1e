"""GGUF files to Hugging Face directories: bfloat16 safetensors, tokenizer, generation_config.

transformers reads the file; what it gets wrong or leaves out is mended here: the pre-tokenizer of the "smollm"
family (digits one by one), the context length of the tokenizer, and a generation_config that says what the
file says. A GGUF holds weights that are quantized already, so the result is only as good as that; it serves as
the BF16 model from which all else is measured.

A conversion is made once per file content and kept in the cache. Two processes that ask at the same time take
turns on a lock file, and the second finds the work done.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import cache_dir, whole_directory, write_json
from resetcli.base.reporting import Reporter

CONVERTER = 1
"""Raise it when the conversion changes, so that older cached results are not used."""

MAGIC = b"GGUF"


def check_gguf_packages() -> None:
    """Raise the one line that names the extra, if reading GGUF files is not possible here."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ResetError(
            f"reading a GGUF file needs {' and '.join(missing)}, not installed here; pip install 'resetcli[demo]'"
        )


def gguf_key(path: Path, samples: int = 64) -> str:
    """16 hex digits that change with the file: SHA-256 over its size and up to ``samples`` MiB spread over it."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{CONVERTER} {size}".encode())
    chunk = 1 << 20
    with open(path, "rb") as stream:
        if size <= samples * chunk:
            digest.update(stream.read())
        else:
            for i in range(samples):
                stream.seek((size - chunk) * i // (samples - 1))
                digest.update(stream.read(chunk))
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """An exclusive advisory lock on ``path`` (made if absent); released when the block or the process ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as exc:
        raise ResetError(f"cannot write {path}: {exc.strerror}; set RESET_CACHE to a folder you can write") from exc
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def converted_dir(path: Path, name: str) -> Path:
    """Where the conversion of the GGUF file ``path`` lives: ``<cache>/models/<name>-<key>``. Not made here."""
    return cache_dir() / "models" / f"{name}-{gguf_key(path)}"


def convert_gguf(path: Path, name: str, reporter: Reporter | None = None) -> Path:
    """The Hugging Face directory of the GGUF file ``path``, converted now or earlier.

    Raises:
        ResetError: the extra is missing, the file is not GGUF or damaged, its architecture is unknown, or
            the cache cannot be written.
    """
    reporter = reporter or Reporter()
    target = converted_dir(path, name)
    if (target / "config.json").is_file():
        return target
    check_gguf_packages()
    with open(path, "rb") as stream:
        if stream.read(4) != MAGIC:
            raise ResetError(f"{path} is not a GGUF file (it does not begin with GGUF); fetch it again")
    with locked(target.parent / f".{target.name}.lock"):
        if (target / "config.json").is_file():
            return target
        reporter.info(f"converting {path.name} to {target} (once)")
        with reporter.phase(f"Convert {name}", total=2) as advance, whole_directory(target) as scratch:
            _convert(path, scratch, advance)
    return target


def _convert(path: Path, scratch: Path, advance: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    from resetcli.nvfp4.skeleton import quiet_transformers

    folder, file = str(path.parent), path.name
    with quiet_transformers(), _no_reader_bar():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
            advance(1)
            model = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
            )
        except MemoryError:
            raise
        except Exception as exc:  # a damaged or foreign file fails in many ways inside the reader
            raise ResetError(f"cannot convert {path}: {type(exc).__name__}: {exc}; fetch it again or use a"
                             " Hugging Face directory") from exc  # fmt: skip
        _mend_tokenizer(tokenizer, path, model.config.max_position_embeddings)
        model.config._name_or_path = ""
        model.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    # Scratch files are made private by some writers; a cache may be shared.
    for item in scratch.iterdir():
        item.chmod(0o644)
    write_json(scratch / "source.json", {"gguf": path.name, "bytes": path.stat().st_size, "converter": CONVERTER})
    advance(1)


@contextlib.contextmanager
def _no_reader_bar() -> Iterator[None]:
    """The GGUF reader of transformers draws a tqdm bar that none of its switches turns off."""
    from transformers import modeling_gguf_pytorch_utils as reader

    tqdm = reader.tqdm
    reader.tqdm = functools.partial(tqdm, disable=True)
    try:
        yield
    finally:
        reader.tqdm = tqdm


def _mend_tokenizer(tokenizer: Any, path: Path, context: int) -> None:
    """What the GGUF reader leaves out: the context length, and the digit rule of the ``smollm`` pre-tokenizer.

    Without that rule white space before a digit is split otherwise than in training ("\\n\\n1" becomes two
    newline tokens instead of one).
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    tokenizer.model_max_length = context
    tokenizer.init_kwargs.pop("is_local", None)
    tokenizer.init_kwargs.pop("local_files_only", None)
    field = GGUFReader(path).fields.get("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
