"""The kernel families, in one list."""

from __future__ import annotations

import importlib
from functools import lru_cache

from resetcli.base.errors import unknown_name
from resetcli.cuda.families.base import Family

_MODULES = ("gemv", "mma", "hopper", "dense")


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """All families. Each module of ``_MODULES`` has a list FAMILIES."""
    found: list[Family] = []
    for name in _MODULES:
        try:
            module = importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as exc:
            if exc.name != f"{__name__}.{name}":
                raise
            continue
        found += module.FAMILIES
    return tuple(found)


def family(name: str) -> Family:
    """The family called ``name``.

    Raises:
        UsageError: there is none.
    """
    for each in families():
        if each.name == name:
            return each
    raise unknown_name("kernel family", name, [each.name for each in families()])
