"""Engine and policy of a checkpoint that lm-eval's own command line names, by the rules of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resetcli.base.errors import UsageError
from resetcli.base.reporting import Reporter
from resetcli.engines.protocol import Engine
from resetcli.policy.settings import PolicySettings

POLICY_ARGUMENTS = (
    "policy", "estimator", "tau0", "t_low", "t_high", "window", "temperature", "top_p", "top_k", "min_p"
)  # fmt: skip
"""Model arguments that are the policy's, named as the command line's options."""


def open_by_name(
    spec: str,
    settings: PolicySettings | Mapping[str, PolicySettings] | None,
    options: dict[str, Any],
    policy: dict[str, Any],
    reporter: Reporter,
) -> tuple[Engine, PolicySettings | Mapping[str, PolicySettings]]:
    """Engine and policy of a directory or hub id, by the command line's rules.

    Raises:
        UsageError: a name in ``policy`` that is none of ``POLICY_ARGUMENTS``, or a value that will not do.
        ResetError: no model there, or it does not load.
    """
    for name in policy:
        if name not in POLICY_ARGUMENTS:
            raise UsageError(f"unknown model argument '{name}' (policy arguments: {', '.join(POLICY_ARGUMENTS)})")
    # lm-eval reads policy=3 as a number.
    policy = {**policy, **{name: str(policy[name]) for name in ("policy", "estimator") if policy.get(name) is not None}}
    import torch

    from resetcli.engines.factory import EngineOptions, open_engine
    from resetcli.nvfp4.checkpoint import is_nvfp4
    from resetcli.policy.config import load_config
    from resetcli.policy.settings import resolve_settings

    # lm-eval's command line names cuda:0 unless told otherwise; its own models then fall back to the CPU, as does ours.
    if str(options["device"]).startswith("cuda") and not torch.cuda.is_available():
        reporter.warn(f"device {options['device']} is not there; the CPU serves")
        options = {**options, "device": "cpu"}
    path = Path(spec).expanduser()
    if not path.is_dir():
        from resetcli.models.resolve import resolve_model

        path = resolve_model(spec, reporter=reporter).path
    if settings is None:
        settings = resolve_settings(
            nvfp4=is_nvfp4(path), model_name=path.resolve().name, config=load_config(path), reporter=reporter, **policy
        )
    return open_engine(EngineOptions(path=path, **options), reporter), settings
