"""The command line: one app, its commands, and the way from an error to an exit code.

    0  done        1  findings at or above --fail-on      2  bad input, or wrong usage
    3  verify or fetch could not tell: no usable answer   70 a bug of ours, shown with its traceback
    130  interrupted

Commands import what they need inside their functions: `--help` starts at once, and an auditor never pays for JAX.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer.exceptions import TyperException

from repro import __version__
from repro.cli.audit import audit
from repro.cli.drops import drops
from repro.cli.eval import evaluate
from repro.cli.plan import plan
from repro.cli.record import diff, fetch, verify
from repro.cli.run import reproduce
from repro.cli.study import fit
from repro.cli.track import track
from repro.cli.train import train
from repro.errors import MarinReproError

BAD_USAGE, BUG, INTERRUPTED = 2, 70, 130

app = typer.Typer(
    name="marin-repro",
    help="Reproduce and audit the Marin 535B-A23B training run from its public record.",
    epilog="Example: marin-repro reproduce --out reproduction",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (fetch, verify, diff, plan, train, evaluate, fit, track, drops, audit, reproduce):
    app.command("eval" if command is evaluate else command.__name__)(command)  # eval is Python's own


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marin-repro {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Take the options that stand before a command; without a command, show what there is."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run the command line and leave the process with the exit code of what happened."""
    gc.set_threshold(100_000)  # starting makes many objects that stay; looking through them takes a tenth of an audit
    sys.exit(exit_code(arguments))


def exit_code(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; errors that a user can mend are one line on standard error, a bug is a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no − shows it as it can
    try:
        code = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except MarinReproError as error:
        typer.echo(f"marin-repro: {error}", err=True)
        return error.exit_code
    except TyperException as error:
        typer.echo(f"marin-repro: {error.format_message()} See marin-repro --help.", err=True)
        return BAD_USAGE
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except (SystemExit, OSError) as error:
        # Typer leaves with 1 where the reader of our output, such as head, has had enough; so may rich.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing is flushed at exit
        if isinstance(cause, BrokenPipeError):
            return 0
        typer.echo(f"marin-repro: cannot write the output: {cause.strerror or cause}.", err=True)
        return BAD_USAGE
    except Exception:  # noqa: BLE001  a crash must never read as a finding
        traceback.print_exc()
        typer.echo("marin-repro: this is a bug of ours. Please report it with the lines above.", err=True)
        return BUG
    if code == INTERRUPTED:
        typer.echo("marin-repro: interrupted. What was written is whole.", err=True)
    return code if isinstance(code, int) else 0
