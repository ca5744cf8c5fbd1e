"""From a BF16 model to a streamed ReSET answer, through the Python API.

    python examples/quickstart.py                              # the embedded model, on a CPU in a minute or two
    python examples/quickstart.py --model DIR -o OUT --tokens 2048

The same as `reset quantize`, `reset calibrate`, `reset generate --trace`: checkpoint, reset_config.json and trace.jsonl
lie in the output folder afterwards. The problems that calibrate here come with the package and suit small models;
for a real model take `load_calibration_problems` (see docs/calibration.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from resetcli.base.seeds import sample_seed
from resetcli.calibration.record import save_calibration
from resetcli.calibration.tau0 import calibrate
from resetcli.data.problems import own_problems
from resetcli.engines.factory import EngineOptions, open_engine
from resetcli.engines.protocol import Completion, Request, TokenEvent
from resetcli.engines.trace import TraceWriter
from resetcli.models.resolve import resolve_model
from resetcli.policy.settings import resolve_settings
from resetcli.quantization.run import quantize

PROMPT = "A shop sells apples at 3 dollars each. How much do 7 apples cost? Explain step by step."


def main(model: str | None, output: Path, *, problems: int = 3, tokens: int = 64, prompt: str = PROMPT) -> Completion:
    """Quantize ``model`` (None: the embedded one) into ``output``, calibrate on ``problems`` problems, answer."""
    report = quantize(resolve_model(model), output / "checkpoint", remember=False)
    checkpoint, check = Path(report["path"]), report["check"]
    print(
        f"{len(report['layers'])} layers, mean relative error {report['relative_error']['mean']:.4f}, "
        f"KL to BF16 {check['kl_nats']:.4f} nats, same top token {100 * check['top1_agreement']:.1f} %"
    )

    engine = open_engine(EngineOptions(path=checkpoint, batch_size=problems))
    try:
        result = calibrate(engine, own_problems(problems), max_new_tokens=tokens)
        config = save_calibration(result, checkpoint)
        print(result.render())

        settings = resolve_settings(nvfp4=engine.info.nvfp4, model_name=engine.info.model, config=config)
        ids = tuple(engine.encode_chat([{"role": "user", "content": prompt}]))
        request = Request("0", ids, sample_seed(0, "generate", 0), max_new_tokens=tokens)
        with TraceWriter(output / "trace.jsonl", settings=settings, model=engine.info.model, seed=0) as trace:

            def on_token(event: TokenEvent) -> None:
                trace.on_token(event)
                print(event.text, end="", flush=True)

            (answer,) = engine.generate([request], settings, on_token=on_token)
    finally:
        engine.close()
    print(
        f"\n{answer.n_tokens} tokens, {answer.n_tokens / answer.seconds:.1f} tokens/s, {answer.cooled} cooled, "
        f"{answer.steps} steps, {answer.uncertain_tokens} tokens in uncertain steps; finished by {answer.finish_reason}"
    )
    return answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Quantize, calibrate and decode through the Python API.")
    parser.add_argument(
        "--model", help="directory, GGUF file or hub id; left out: RESET_MODEL, else the embedded model"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("quickstart"), help="a new folder for everything")
    parser.add_argument("--problems", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="limit of each answer")
    options = parser.parse_args()
    main(options.model, options.output, problems=options.problems, tokens=options.tokens)
