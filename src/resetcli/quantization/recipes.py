"""The recipes of ``reset quantize``: a name, what it does, and the ModelOpt configuration that does it.

A registry, so that a recipe is one entry here and nothing elsewhere asks for it by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from resetcli.base.errors import unknown_name


@dataclass(frozen=True)
class Recipe:
    """``config()`` gives a fresh ModelOpt ``{"quant_cfg": [...], "algorithm": ...}``; ModelOpt is imported only then.

    ``needs_forward``: calibration runs text through the model (activation ranges, at least).
    """

    name: str
    summary: str
    config: Callable[[], dict[str, Any]]
    needs_forward: bool = True


def _rtn() -> dict[str, Any]:
    import modelopt.torch.quantization as mtq

    return copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)


RECIPES: dict[str, Recipe] = {
    "rtn": Recipe("rtn", "round to nearest: block scales from each block's maximum, activation ranges from text", _rtn),
}


def get_recipe(name: str) -> Recipe:
    """The recipe called ``name``.

    Raises:
        UsageError: there is none; the nearest names are given.
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]


def with_exclusions(config: dict[str, Any], exclude: Sequence[str]) -> dict[str, Any]:
    """``config`` with the modules that match the wildcards in ``exclude`` left in 16 bit."""
    config["quant_cfg"] = [*config["quant_cfg"], *({"quantizer_name": f"{p}.*", "enable": False} for p in exclude)]
    return config
