"""The `weft` command: its list of commands, and how errors end."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

import click

from weft import __version__
from weft.cli import interrupt
from weft.cli.lazy import LazyCommand, LazyGroup, Plugin
from weft.cli.options import examples
from weft.errors import WeftError

EXIT_BAD_INPUT = 2
EXIT_BROKEN_PIPE = 1  # click's

COMMANDS = {
    "study": LazyCommand("weft.cli.study:study", "Repeat a paper's study and compare its figures."),
    "simulate": LazyCommand("weft.cli.simulate:simulate", "Simulate one sub-layer on one machine."),
    "advise": LazyCommand("weft.cli.advise:advise", "Say how a GEMM and a collective should share a GPU."),
    "tune": LazyCommand("weft.cli.tune:tune", "Tune independent GEMMs that share a GPU."),
    "predict": LazyCommand("weft.cli.predict:predict", "Predict GEMMs, collectives, operators and layers."),
    "validate": LazyCommand("weft.cli.validate:validate", "Compare the models with measured times."),
    "calibrate": LazyCommand("weft.cli.calibrate:calibrate", "Fit a machine to its own measurements."),
    "measure": Plugin("weft-measure", "measure", "Time the GPU at hand and write tables of it."),
    "hardware": LazyCommand("weft.cli.hardware:hardware", "List and show machines, each value with its source."),
    "models": LazyCommand("weft.cli.models:models", "List and show models and their sub-layers."),
    "overlaps": LazyCommand("weft.cli.overlaps:overlaps", "List the ways to overlap compute and communication."),
    "cache": LazyCommand("weft.cli.cache:cache", "Show and clear what Weft keeps for later."),
}


@click.command(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("weft study t3 --out out/t3"),
)
@click.version_option(__version__, prog_name="weft", message="%(prog)s %(version)s")
def weft() -> None:
    """Simulate what compute and communication cost each other on the GPUs that they share."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line (of the process, or the given one) and exit; errors are one sentence on stderr."""
    _steady_streams()
    try:
        status = weft.main(arguments, prog_name="weft", standalone_mode=False)
        sys.stdout.flush()
    except WeftError as error:
        _leave(str(error), EXIT_BAD_INPUT)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # a group by itself: its help, and the exit status of bad input
        sys.exit(error.exit_code)
    except click.UsageError as error:
        _leave(_usage_sentence(error), error.exit_code)
    except click.ClickException as error:
        _leave(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        interrupt.reported.set()
        _leave(interrupt.SENTENCE, interrupt.EXIT_INTERRUPTED)
    except BrokenPipeError:
        _drop(sys.stdout)  # the reader, such as `head`, has closed the pipe
        sys.exit(EXIT_BROKEN_PIPE)
    except OSError as error:
        _drop(sys.stdout)
        _leave(_system_sentence(error), EXIT_BAD_INPUT)
    except MemoryError:
        _leave("the memory of this computer does not suffice; give smaller sizes, or fewer at once", EXIT_BAD_INPUT)
    finally:
        interrupt.disarm()
    # Outside of its standalone mode click returns the exit status of --help and --version.
    sys.exit(status if isinstance(status, int) else 0)


def _steady_streams() -> None:
    """Replace a closed stream by one that discards what is printed; print "?" for letters that an encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the rest of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop(stream: TextIO) -> None:
    """Discard what a stream still holds, which Python would otherwise try to write once more when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _system_sentence(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    if error.filename is None:
        return f"cannot write to standard output: {reason}; send it elsewhere, or write files by --json or --out"
    return f"cannot use '{error.filename}': {reason}; check it and its rights"


def _usage_sentence(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "weft"
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see '{path} --help'"


def _leave(sentence: str, status: int) -> NoReturn:
    """Exit with a sentence on standard error, in which very long words are shortened; where that is full, without."""
    with suppress(OSError):
        sys.stdout.flush()
    shortened = re.sub(r"\S{200,}", lambda found: f"{found[0][:100]}... ({len(found[0])} characters)", sentence)
    try:
        click.echo(f"weft: {shortened}", err=True)
    except OSError:
        _drop(sys.stderr)
    sys.exit(status)
