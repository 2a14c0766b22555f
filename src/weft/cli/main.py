"""The `weft` command: its list of commands, and how errors become messages and exit statuses."""

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
from weft.cli.commands import GROUPS
from weft.cli.lazy import LazyGroup
from weft.cli.options import examples
from weft.core.errors import LISTED_IN_FULL, UnknownNameError, WeftError, join_or, nearest

_EXIT_BAD_INPUT = 2
_EXIT_BROKEN_PIPE = 1  # click's

_LISTS = dict.fromkeys(("GPU", "system"), "; see 'weft hardware list'") | {
    "command": "; see 'weft --help'",
    "model": "; see 'weft models list'",
}
"""Where names that are too many for a message are listed, by their kind."""


_STEP = "weft step gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64"
_COMPARE = f"{_STEP} --against system=64xh100"
_SERVE = "weft serve llama-3-8b --system 1xh100 --rate 4 --ttft 1s --tpot 40ms"


@click.command(
    cls=LazyGroup,
    groups=GROUPS,
    extends=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(_STEP, _COMPARE, _SERVE),
)
@click.version_option(__version__, prog_name="weft", message="%(prog)s %(version)s")
def weft() -> None:
    """Predict training and serving on GPUs: simulate what compute and communication that share a GPU cost each other.

    A MODEL is a name of 'weft models list', a --system one of 'weft hardware list', such as 8xh100. --against compares
    two machines, plans or settings.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line (of the process, or the given one) and exit; errors are one sentence on stderr."""
    _steady_streams()
    try:
        status = weft.main(arguments, prog_name="weft", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # a group without a command: show its help, exit with the status of bad input
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _leave(sentence_of(error), error.exit_code)
    except WeftError as error:
        _leave(sentence_of(error), _EXIT_BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        interrupt.reported.set()
        _leave(interrupt.sentence(), interrupt.exit_status())
    except BrokenPipeError:
        _drop(sys.stdout)  # the reader, such as `head`, has closed the pipe
        sys.exit(_EXIT_BROKEN_PIPE)
    except (OSError, MemoryError) as error:
        _drop(sys.stdout)
        _leave(sentence_of(error), _EXIT_BAD_INPUT)
    finally:
        interrupt.disarm()
        _settle(sys.stdout)
    if isinstance(sys.stdout, _Closed) and sys.stdout.is_written:
        _leave(f"cannot write to standard output: it is closed; {_ELSEWHERE}", _EXIT_BAD_INPUT)
    # With standalone_mode=False click returns the exit status of --help and --version.
    sys.exit(status if isinstance(status, int) else 0)


def sentence_of(error: WeftError | click.ClickException | OSError | MemoryError) -> str:
    """Return the sentence with which the command line ends on an error that is not a defect of Weft."""
    if isinstance(error, UnknownNameError):
        return f"{error}{_LISTS.get(error.kind, '') if error.is_cut else ''}"
    if isinstance(error, click.UsageError):
        return _usage_sentence(error)
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError):
        return _system_sentence(error)
    if isinstance(error, MemoryError):
        return "the memory of this computer does not suffice; give smaller sizes, or fewer at once"
    return str(error)


_ELSEWHERE = "send it elsewhere, or write files by --json or --out"


class _Closed(io.TextIOWrapper):
    """Takes the place of a closed stream, and notes whether anything was printed."""

    is_written = False

    def write(self, text: str, /) -> int:
        """Drop a text."""
        self.is_written = self.is_written or bool(text)
        return super().write(text)


def _steady_streams() -> None:
    """Replace closed streams by a null stream, and print "?" for characters that the encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _Closed(Path(os.devnull).open("wb")))  # noqa: SIM115 - for the rest of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _settle(stream: TextIO) -> None:
    """Flush a stream, also where a library ended the command; one whose reader has gone is dropped."""
    try:
        stream.flush()
    except BrokenPipeError:
        _drop(stream)
    except (OSError, ValueError):
        pass  # told already, or told by Python at its end


def _drop(stream: TextIO) -> None:
    """Discard a stream's buffered output, which Python would otherwise try to flush at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _system_sentence(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    if error.filename is None:
        return f"cannot write to standard output: {reason}; {_ELSEWHERE}"
    return f"cannot use '{error.filename}': {reason}; check the path and its permissions"


def _usage_sentence(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "weft"
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.ctx:
        message = _no_such_option(error.option_name, error.ctx.command)
    return f"{message[:1].lower()}{message[1:]}; see '{path} --help'"


def _no_such_option(name: str, command: click.Command) -> str:
    """Return what is wrong, with the nearest options of the command, and all of them if they are few."""
    known = [option.opts[0] for option in command.params if isinstance(option, click.Option)]
    if not known:
        return f"no such option '{name}'; '{command.name}' has none, its subcommands do"
    listed = f"; known: {', '.join(known)}" if len(known) <= LISTED_IN_FULL else ""
    if not name.startswith("--"):
        like = min((option for option in known if option[2:3] == name[1:2]), default=known[0], key=len)
        return f"no such option '{name}'{listed}; options begin with two dashes, like {like}"
    if name[2:] in [argument.name for argument in command.params if isinstance(argument, click.Argument)]:
        return f"no such option '{name}'{listed}; write the {name[2:]} without {name}"
    close = nearest(name[2:], [option[2:] for option in known])
    hint = f"; did you mean {join_or([f'--{option}' for option in close])}?" if close else ""
    return f"no such option '{name}'{listed}{hint}"


def _leave(sentence: str, status: int) -> NoReturn:
    """Exit with a one-sentence message on standard error, very long words shortened; silently if stderr is full."""
    with suppress(OSError):
        sys.stdout.flush()
    shortened = re.sub(r"\S{200,}", lambda found: f"{found[0][:100]}... ({len(found[0])} characters)", sentence)
    try:
        click.echo(f"weft: {shortened}", err=True)
    except OSError:
        _drop(sys.stderr)
    sys.exit(status)
