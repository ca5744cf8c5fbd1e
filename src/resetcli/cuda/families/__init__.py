"""The kernel families, in one list."""

from __future__ import annotations

from functools import lru_cache

from resetcli.base.errors import unknown_name
from resetcli.cuda.families.base import Family


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """All families. Each module has a list FAMILIES."""
    from resetcli.cuda.families import dense, gemv, hopper, mma, wide

    return (*gemv.FAMILIES, *mma.FAMILIES, *hopper.FAMILIES, *wide.FAMILIES, *dense.FAMILIES)


def family(name: str) -> Family:
    """The family called ``name``.

    Raises:
        UsageError: there is none.
    """
    for each in families():
        if each.name == name:
            return each
    raise unknown_name("kernel family", name, [each.name for each in families()])
