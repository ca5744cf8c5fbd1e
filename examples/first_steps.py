"""The whole chain from Python: quantize the embedded model, measure tau_0, decode one answer.

    python examples/first_steps.py

The same as `reset quantize`, `reset calibrate`, `reset generate`, on a CPU in a minute or two. Files go to a folder of
the system's temporary directory and are removed at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from resetcli.base.seeds import sample_seed
from resetcli.calibration.tau0 import calibrate
from resetcli.data.problems import own_problems
from resetcli.engines.factory import EngineOptions, open_engine
from resetcli.engines.protocol import Request
from resetcli.models.resolve import resolve_model
from resetcli.policy.settings import PolicySettings
from resetcli.quantization.run import quantize

with tempfile.TemporaryDirectory() as folder:
    report = quantize(resolve_model(), Path(folder) / "model-nvfp4", remember=False)
    check, error = report["check"], report["relative_error"]
    print(f"{len(report['layers'])} layers, relative error {error['mean']:.4f}, KL {check['kl_nats']:.3f} nats to BF16")

    engine = open_engine(EngineOptions(path=Path(report["path"]), batch_size=2))
    result = calibrate(engine, own_problems(2), max_new_tokens=64)
    print(result.render())

    settings = PolicySettings(name="reset", tau_0=result.tau_0)
    prompt = engine.encode_chat([{"role": "user", "content": "What is 17 + 25? Explain."}])
    request = Request("0", tuple(prompt), sample_seed(0, "generate", 0), max_new_tokens=64)
    for done in engine.generate([request], settings, on_token=lambda event: print(event.text, end="", flush=True)):
        print(f"\n{done.n_tokens} tokens in {done.seconds:.1f} s, {done.cooled} of them cooled, {done.steps} steps")
    engine.close()
