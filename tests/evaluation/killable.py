"""Runs evaluations on a real engine in processes that a test may kill: imports once, then forks for each.

A line of JSON on standard input (arguments of ``run_eval``) starts one; its process id is printed, then its result.
One thread, so that nothing of torch's is lost in the fork.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    import lm_eval.evaluator  # noqa: F401
    import torch

    import resetcli.evaluation.recorder
    import resetcli.evaluation.tasks.build  # noqa: F401
    from resetcli.data.sources import DataSource
    from resetcli.engines.factory import EngineOptions, open_engine
    from resetcli.evaluation.evaluate import run_eval
    from resetcli.nvfp4.checkpoint import fingerprint
    from resetcli.policy.settings import PolicySettings

    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        if (pid := os.fork()) == 0:
            code = 1
            try:
                model = Path(call.pop("model"))
                options = EngineOptions(path=model, device="cpu", batch_size=call.pop("batch_size"))
                settings = PolicySettings(**call.pop("policy"))
                data = DataSource(Path(call.pop("data")))
                report = run_eval(
                    lambda options=options: open_engine(options), call.pop("tasks"), data, settings, model=model.name,
                    fingerprint=fingerprint(model), output=Path(call.pop("output")), **call,
                )  # fmt: skip
                code = report["exit_code"]
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
