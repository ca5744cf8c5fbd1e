"""The application: commands under their names, and one place that turns failures into a line and an exit code.

Typer's own error boxes are not used: the command runs with exceptions let through, and ``execute`` prints
``error: ...`` on standard error. Command modules import nothing heavy, so ``--help`` is fast.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from resetcli import __version__
from resetcli.base.errors import ResetError
from resetcli.cli import output, process
from resetcli.cli.bench import bench_kernels
from resetcli.cli.calibrate import calibrate
from resetcli.cli.compare import compare
from resetcli.cli.demo import demo
from resetcli.cli.doctor import doctor
from resetcli.cli.eval import evaluate
from resetcli.cli.generate import generate
from resetcli.cli.inspect import inspect
from resetcli.cli.main import INTERRUPTED
from resetcli.cli.quantize import quantize
from resetcli.cli.score import score

app = typer.Typer(
    name="reset",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("quantize")(quantize)
app.command("calibrate")(calibrate)
app.command("generate")(generate)
app.command("eval")(evaluate)
app.command("compare")(compare)
app.command("bench-kernels")(bench_kernels)
app.command("score")(score)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
app.command("demo")(demo)


@app.callback(invoke_without_command=True)
def reset(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    """Small-bit reasoning: NVFP4 checkpoints, and ReSET decoding that keeps their thoughts on track.

    \b
    First steps:
      reset demo                        the whole chain on a small embedded model
      reset quantize Qwen/Qwen3-8B      an NVFP4 checkpoint
      reset calibrate                   its entropy threshold
      reset generate -p "What is 7*8?"  an answer, streamed
    """
    if version:
        typer.echo(f"resetcli {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def execute(args: list[str]) -> int:
    """Run the command line ``args``; the exit code: 0 done, 1 the work failed, 2 usage, 130 interrupted."""
    debug = "--debug" in args
    try:
        name = Path(sys.argv[0]).name
        command = typer.main.get_command(app)
        code = command.main(args, prog_name=name if name in ("reset", "resetcli") else "reset", standalone_mode=False)
        code = code if isinstance(code, int) else 0
        if code == INTERRUPTED:
            # Typer has caught the KeyboardInterrupt already.
            process.say("interrupted")
        return code
    except (KeyboardInterrupt, typer.Abort, EOFError):
        process.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell.
        return 1
    except Exception as exc:
        # The last resort for all but ResetError: Typer's usage errors, whose classes are private copies, and whatever
        # no layer below foresaw (libraries raise anything). A user gets one line and an exit code in any case;
        # --debug shows the rest.
        if debug:
            traceback.print_exc()
        if process.interrupted():
            # Some library has made an error of its own out of the KeyboardInterrupt.
            process.say("interrupted")
            return INTERRUPTED
        if isinstance(exc, ResetError):
            process.say(str(exc))
            return exc.exit_code
        if (usage := _usage(exc)) is not None:
            process.say(usage)
            return 2
        if isinstance(exc, OSError) and (broken := output.stdout_error(exc)) is not None:
            process.say(str(broken))
            return broken.exit_code
        lines = str(exc).strip().splitlines()
        process.say(f"{type(exc).__name__}: {lines[0][:300] if lines else 'no message'} (--debug shows where)")
        return 1
    finally:
        output.restore_stdout()


def _usage(exc: Exception) -> str | None:
    """The message of a usage error. Typer brings its own copy of click, so its classes go by what they can do."""
    if not callable(format_message := getattr(exc, "format_message", None)):
        return None
    context = getattr(exc, "ctx", None)
    path = context.command_path if context is not None else "reset"
    text = str(format_message()).strip().rstrip(".")
    return f"{text} (see `{path} --help`)"
