"""What a decoding policy is told: its name, thresholds, temperatures and filters (design 1.3).

No torch here: the command line and the engine protocol import it. ``resolve_settings`` is the one place that
knows what outranks what, so every command starts from the same numbers and records where tau_0 came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resetcli.base.errors import UsageError, unknown_name
from resetcli.base.reporting import Reporter
from resetcli.policy import limits
from resetcli.policy.config import FILE_NAME, ResetConfig, paper_values
from resetcli.policy.limits import ESTIMATORS, POLICIES

__all__ = ["DEFAULT_TAU_0", "ESTIMATORS", "POLICIES", "PolicySettings", "resolve_settings"]

DEFAULT_TAU_0 = 0.6
"""Nats; serves when nobody calibrated and the paper has no value."""

_FILTERS = frozenset({"top_p", "top_k", "min_p"})
_TWO = frozenset({"t_low", "t_high"})
_USES: dict[str, frozenset[str]] = {
    "reset": _FILTERS | _TWO | {"estimator", "window", "tau_0"},
    "fixed": _FILTERS | {"temperature"},
    "fixed-threshold": _FILTERS | _TWO | {"tau_0"},
    "sliding-window": _FILTERS | _TWO | {"window"},
    "step-relative": _FILTERS | _TWO | {"estimator", "window"},
    "uniform-low": _FILTERS | _TWO | {"estimator", "window"},
    "greedy": frozenset(),
}
_OPTIONS = {
    "estimator": "--estimator", "tau_0": "--tau0", "t_low": "--t-low", "t_high": "--t-high", "window": "--window",
    "temperature": "--temperature", "top_p": "--top-p", "top_k": "--top-k", "min_p": "--min-p",
}  # fmt: skip


@dataclass(frozen=True)
class PolicySettings:
    """One policy with all its numbers.

    ``tau_0`` in nats and where it came from; ``t_low``, ``t_high``, ``temperature``: 0 means argmax;
    ``window`` in tokens; ``top_k`` 0 and ``min_p`` 0 are off.
    """

    name: str = "reset"
    estimator: str = "hybrid"
    tau_0: float | None = None
    tau_0_source: str | None = None
    t_low: float = 0.1
    t_high: float = 1.0
    window: int = 32
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0

    def uses(self, field: str) -> bool:
        """Whether this policy reads that field (by attribute name)."""
        if field == "window" and self.estimator == "causal" and "estimator" in _USES[self.name]:
            return False
        return field in _USES[self.name]

    @property
    def needs_entropy(self) -> bool:
        """Whether temperatures depend on entropies at all."""
        return self.uses("t_low")

    @property
    def needs_steps(self) -> bool:
        """Whether the policy knows reasoning steps (and so needs a boundary table)."""
        return self.uses("estimator")

    def validate(self) -> None:
        """Raises UsageError naming the first option that is out of range; all fields are checked, used or not."""
        if self.name not in POLICIES:
            raise unknown_name("policy", self.name, POLICIES)
        if self.estimator not in ESTIMATORS:
            raise unknown_name("estimator", self.estimator, ESTIMATORS)
        if self.tau_0 is not None:
            limits.check_tau_0("--tau0", self.tau_0)
        elif self.uses("tau_0"):
            raise UsageError(f"policy {self.name} needs tau_0: pass --tau0, or run `reset calibrate`")
        limits.check_temperature("--t-low", self.t_low)
        limits.check_temperature("--t-high", self.t_high)
        limits.check_order("--t-low", self.t_low, "--t-high", self.t_high)
        limits.check_window("--window", self.window)
        limits.check_temperature("--temperature", self.temperature)
        limits.check_top_p("--top-p", self.top_p)
        limits.integer("--top-k", self.top_k, 0)
        limits.check_min_p("--min-p", self.min_p)

    def header(self) -> dict[str, Any]:
        """The trace header's "policy" object: every key of design 1.3, None for what this policy does not use."""
        value: dict[str, Any] = {"name": self.name}
        for field in ("estimator", "tau_0", "tau_0_source", "t_low", "t_high", "window", "temperature", "top_p",
                      "top_k", "min_p"):  # fmt: skip
            key = "tau_0" if field == "tau_0_source" else field
            value[field] = getattr(self, field) if self.uses(key) else None
        return value


def resolve_settings(
    *,
    nvfp4: bool,
    model_name: str,
    config: ResetConfig | None,
    policy: str | None = None,
    estimator: str | None = None,
    tau0: float | None = None,
    t_low: float | None = None,
    t_high: float | None = None,
    window: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    task: str | None = None,
    reporter: Reporter | None = None,
) -> PolicySettings:
    """Settings by rank: option, ``reset_config.json``, the paper's table by model name, the default (design 1.1).

    The default policy is the configuration's (``reset`` without one) for an NVFP4 checkpoint and ``fixed`` for a
    BF16 directory. ``task`` picks from ``t_low_by_task``. An option that the policy does not read gets a warning,
    as does a tau_0 that nothing but the default supplies.

    Raises:
        UsageError: an unknown name or a value out of range, named as the option.
    """
    reporter = reporter or Reporter()
    name = policy if policy is not None else ((config.policy if config else "reset") if nvfp4 else "fixed")
    if name not in POLICIES:
        raise unknown_name("policy", name, POLICIES)
    options = {
        "estimator": estimator, "tau_0": tau0, "t_low": t_low, "t_high": t_high, "window": window,
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p,
    }  # fmt: skip
    given = {field: value for field, value in options.items() if value is not None}
    paper = paper_values(model_name)

    found: dict[str, Any] = {}
    if paper is not None:
        found["t_low"] = paper[1]
    if config is not None:
        found.update(t_low=config.t_low, t_high=config.t_high, window=config.window, top_p=config.top_p)
        if task is not None and task in config.t_low_by_task:
            found["t_low"] = config.t_low_by_task[task]
    found.update(given)

    defaults = PolicySettings(name=name)
    if defaults.uses("tau_0"):
        if tau0 is not None:
            found["tau_0_source"] = "option"
        elif config is not None:
            found.update(tau_0=config.tau_0, tau_0_source=FILE_NAME)
        elif paper is not None:
            found.update(tau_0=paper[2], tau_0_source=f"paper table ({paper[0]})")
        else:
            found.update(tau_0=DEFAULT_TAU_0, tau_0_source="default")

    settings = PolicySettings(name=name, **found)
    settings.validate()
    for field in given:
        if not settings.uses(field):
            reporter.warn(f"{_OPTIONS[field]} has no effect under policy {name}")
    if settings.tau_0_source == "default":
        reporter.warn(f"tau_0 is the default {DEFAULT_TAU_0}: run `reset calibrate` to measure it for {model_name}")
    return settings
