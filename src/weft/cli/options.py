"""Options that several commands share: which machine, how it is changed, how fine it is simulated, where it goes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from weft.cli.output import named_file, writable_file, writable_folder
from weft.errors import InputError
from weft.options import RunOptions
from weft.units import LARGEST_COUNT

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.run.sweep.store import Store

F = TypeVar("F", bound=Callable[..., Any])
SIZE = click.IntRange(1, LARGEST_COUNT)
"""A size or count: a whole number from 1 to the largest that a library indexes with 32 bits."""


def comma_list(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """The names in "a,b,c" (None stays None); a list without a name is refused."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise click.BadParameter(f"'{text}' names nothing; write names with commas between", context, option)
    return names


def whole_numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """The whole numbers in "8,16" (None stays None)."""
    names = comma_list(context, option, text)
    if names is None:
        return None
    for name in names:
        if not name.isdecimal():
            raise click.BadParameter(
                f"'{name}' is no whole number; write numbers with commas between, like {_example(option)}",
                context,
                option,
            )
        if len(name) > len(str(LARGEST_COUNT)) or int(name) > LARGEST_COUNT:
            shown = name if len(name) < 24 else f"{name[:8]}... ({len(name)} digits)"
            raise click.BadParameter(f"{shown} is too large; give at most {LARGEST_COUNT}", context, option)
    return tuple(map(int, names))


def lower_case(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """The name in lower case (None stays None): "BF16" is bf16."""
    return None if text is None else text.strip().lower()


def _example(option: click.Parameter) -> str:
    return "8192,8192,8192" if option.metavar == "M,N,K" else "8,16"


def examples(*commands: str) -> str:
    """The end of a help page: a command to type, or several, one a line."""
    if len(commands) == 1:
        return f"Example: {commands[0]}"
    return "\n".join(("\b", "Examples:", *(f"  {command}" for command in commands)))


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one, in the order in which the help page lists them."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def set_option(what: str = "the GPU") -> Callable[[F], F]:
    """Add --set: the command's `assignments`."""
    return click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="PATH=VALUE",
        help=f'Change a value of {what}, like memory.bandwidth="2 TB/s"; repeatable.',
    )


def gpu_options(default: str | None = None, changed: str = "the GPU") -> Callable[[F], F]:
    """Add --gpu, which must be given without a default, and --set of a value of what is `changed`."""
    rule: dict[str, Any] = {"required": True} if default is None else {"default": default, "show_default": True}
    gpu = click.option(
        "--gpu",
        metavar="NAME|FILE",
        help="The GPU: a name from 'weft hardware list', or a TOML file.",
        **rule,
    )
    return together(gpu, set_option(changed))


def request_option(default: str = "as suits the GPU") -> Callable[[F], F]:
    """Add --request-bytes; `default` says what holds without it."""
    return click.option(
        "--request-bytes",
        type=int,
        metavar="BYTES",
        help=f"Size of a memory request: 64 is exact, larger ones are faster.  [default: {default}]",
    )


def clock_option(default: str = "sustained", also: Sequence[str] = (), more: str = "") -> Callable[[F], F]:
    """Add --clock, which takes "short" and "sustained", and what else there is, as `more` explains it."""
    return click.option(
        "--clock",
        type=click.Choice(("short", "sustained", *also)),
        default=default,
        show_default=True,
        help=f"What compute units run at: the boost clock of a short run, or what a long one holds{more}.",
    )


def run_options(function: F) -> F:
    """Hand a command --clock, --request-bytes and --mode as one: its `options` of a run."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        taken = {name: given.pop(name) for name in ("clock", "request_bytes", "mode") if name in given}
        set_ = {name: value for name, value in taken.items() if value is not None}
        return function(*args, options=RunOptions(**set_), **given)

    return cast(F, call)


def dtype_option(default: str, of: str) -> Callable[[F], F]:
    """Add --dtype, the data type `of` something; "BF16" is bf16."""
    return click.option(
        "--dtype",
        default=default,
        show_default=True,
        callback=lower_case,
        metavar="NAME",
        help=f"Data type of {of}: fp64, fp32, tf32, fp16, bf16, fp8 or int8.",
    )


data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="Measurements in the documented columns; else WEFT_DATA, else ../shared/data beside the project.",
)
"""Where measured rows stand: the command's `data`."""


def file_option(flag: str, name: str, help_text: str, several: bool = False) -> Callable[[F], F]:
    """An option that takes a file to write, or "-"; a path that cannot be written is refused before any work.

    From the name of one that becomes `several` files those of each are made, so it cannot be "-".
    """
    check = named_file if several else writable_file
    return click.option(flag, name, type=click.Path(path_type=Path), callback=check, metavar="FILE", help=help_text)


def folder_option(help_text: str, *files: str, flag: str = "--out", required: bool = False) -> Callable[[F], F]:
    """An option that takes a folder to write to; one that cannot be written is refused before any work.

    `files` are what the command writes there beside report.html.
    """
    return click.option(
        flag,
        "folder",
        required=required,
        type=click.Path(path_type=Path),
        callback=writable_folder("report.html", *files),
        metavar="DIR",
        help=help_text,
    )


def jobs_option(command: F) -> F:
    """Add --jobs."""
    return click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        metavar="N",
        help="Processes that simulate at the same time.",
    )(command)


def store_option(command: F) -> F:
    """Add --no-cache; the command's `store` is the user's store of runs, or None."""
    return click.option(
        "--no-cache",
        "store",
        is_flag=True,
        callback=_store,
        help="Simulate everything anew, and keep nothing.",
    )(command)


def _store(context: click.Context, option: click.Parameter, without: bool) -> Store | None:
    from weft.run.sweep.store import Store

    return None if without else Store()


def machine(gpu: str, assignments: tuple[str, ...]) -> Gpu:
    """The GPU with the values that --set changes; InputError for a name, path or value that cannot be."""
    from weft import hardware

    return hardware.gpu(gpu).replace(assigned(assignments))


def assigned(assignments: tuple[str, ...]) -> dict[str, str]:
    """The values that --set gives, by their paths; InputError for what is no assignment, or gives a path twice."""
    from weft.hardware import parse_assignment

    values: dict[str, str] = {}
    for path, value in map(parse_assignment, assignments):
        if path in values:
            raise InputError(f"--set gives {path} twice, {values[path]} and {value}; give it once")
        values[path] = value
    return values


def refuse_given(because: str, *names: str) -> None:
    """Raise InputError if one of the options `names` was typed, which say nothing `because` of another one."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise InputError(f"{option.opts[0]} says nothing {because}; leave it out")


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None: the others keep their defaults in Python."""
    return {name: value for name, value in options.items() if value is not None}


def parse_split(text: str, gpu: Gpu) -> int:
    """The compute units set apart in a split such as "72-8"; InputError unless it adds up to those of the GPU."""
    from weft.schedule.sharing import apart_of

    units = gpu.compute.compute_units
    gemm, dash, apart = (part.strip() for part in text.partition("-"))
    if not (dash and gemm.isdecimal() and apart.isdecimal()):
        raise InputError(
            f"'{text}' is no split; write the GEMM's compute units and those set apart, like {units - 8}-8"
        )
    return apart_of(int(gemm), int(apart), gpu)


def parse_collective(text: str) -> tuple[str, int]:
    """The name and the size [bytes] in "all_reduce:256MiB"; InputError if either is missing, or nothing is moved."""
    from weft import units

    name, colon, size = text.partition(":")
    if not (name and colon and size):
        raise InputError(f"'{text}' is no collective with its size; write it like all_reduce:256MiB")
    bytes_ = int(units.parse(size, units.Dimension.BYTES))
    if bytes_ < 1:
        raise InputError(f"'{text}' moves nothing; give a size above zero, like {name.strip()}:256MiB")
    return name.strip(), bytes_


def three_sizes(gemm: tuple[int, ...]) -> tuple[int, int, int]:
    """M, N and K; InputError for more or fewer numbers."""
    if len(gemm) != 3:
        raise InputError(f"--gemm has {len(gemm)} dimensions; write M,N,K, like 8192,8192,8192")
    return gemm
