"""Types of command-line values: how each is parsed, and the names that a shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from weft.core.errors import InputError
from weft.core.units import LARGEST_COUNT, Dimension, parse, parse_collective, parse_shape, shorten_digits


class Value(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A value that `read` parses from text; `known` returns the names for shell completion, also after a comma."""

    def __init__(
        self,
        metavar: str,
        read: Callable[[str], Any] = str,
        known: Callable[[], Iterable[str]] = tuple,
        files: bool = False,
    ) -> None:
        self.name, self.read, self.known, self.files = metavar, read, known, files or "FILE" in metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder of the value on a help page."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text; a default that is already a value is returned unchanged."""
        return self.read(value) if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the known names that begin with the last name typed, or files if the value can be a file."""
        before, comma, begun = incomplete.rpartition(",")
        found = [CompletionItem(f"{before}{comma}{name}") for name in self.known() if name.startswith(begun)]
        return found or ([CompletionItem(incomplete, type="file")] if self.files else [])


class Count(click.IntRange):
    """A whole number in a range."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder of the value on a help page."""
        return "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text; BadParameter for no whole number, or one outside of the range."""
        number = click.INT.convert(value, param, ctx)
        low, high = int(self.min or 0), int(self.max or LARGEST_COUNT)
        if not low <= number <= high:
            self.fail(f"{shorten_digits(str(value))} is not in the range {low}<=x<={high}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Return the range on a help page, unless it only keeps numbers within what libraries index."""
        return "" if self.max == LARGEST_COUNT else f"{self.min} to {self.max}"


def names(text: str) -> tuple[str, ...]:
    """Parse the names in "a,b,c"; BadParameter if there is none."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise click.BadParameter(f"'{text}' names nothing; write names with commas between")
    return found


def numbers(text: str, like: str = "8,16") -> tuple[int, ...]:
    """Parse the whole numbers in "8,16"; BadParameter for anything else, or a number of more than 31 bits."""
    for name in names(text):
        if not name.isdecimal():
            raise click.BadParameter(f"'{name}' is no whole number; write numbers with commas between, like {like}")
        if len(name) > len(str(LARGEST_COUNT)) or int(name) > LARGEST_COUNT:
            raise click.BadParameter(f"{shorten_digits(name)} is too large; give at most {LARGEST_COUNT}")
    return tuple(map(int, names(text)))


def factors(text: str) -> tuple[float, ...]:
    """Parse the positive numbers in "1,2.5,4"; BadParameter for anything else."""
    found = []
    for name in names(text):
        try:
            value = float(name)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise click.BadParameter(f"'{shorten_digits(name)}' is no number above 0; write factors like 1,2,4")
        found.append(value)
    return tuple(found)


def shape(text: str) -> tuple[int, int, int]:
    """Parse M, N and K of a GEMM in "8192,8192,8192"; BadParameter for no numbers, InputError for more or fewer."""
    numbers(text, "8192,8192,8192")
    return parse_shape(text)


def size(text: str) -> int:
    """Parse a size such as "16 KiB" into bytes; UnitError for anything else."""
    return round(parse(text, Dimension.BYTES))


def split(text: str) -> tuple[int, int]:
    """Parse the compute units of GEMM and collective in "72-8"; InputError for anything else."""
    gemm, _, apart = (part.strip() for part in text.partition("-"))
    if not (gemm.isdecimal() and apart.isdecimal()):
        raise InputError(
            f"'{text}' is no split; write the GEMM's compute units and those reserved for the collective, like 72-8"
        )
    return int(gemm), int(apart)


def m_range(text: str) -> tuple[int, int]:
    """Parse the least and the largest M in "256,32768"; InputError for anything else."""
    ends = [part.strip() for part in text.split(",")]
    if len(ends) != 2 or not all(part.isdecimal() for part in ends) or not 0 < int(ends[0]) < int(ends[1]):
        raise InputError(f"'{text}' is no range of M; write the least and the largest, like 256,32768")
    return int(ends[0]), int(ends[1])


def assignments(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of --set into a dict by path; InputError for a malformed assignment or a repeated path."""
    from weft.hardware import parse_assignment

    values: dict[str, str] = {}
    for path, value in map(parse_assignment, texts):
        if path in values:
            raise InputError(f"--set gives {path} twice, {values[path]} and {value}; give it once")
        values[path] = value
    return values


def _gpu_names() -> list[str]:
    from weft.hardware import gpu_names

    return gpu_names()


def _system_names() -> list[str]:
    from weft.hardware import node_names

    return node_names()


def _overlap_names() -> list[str]:
    from weft.overlaps import overlap_names

    return overlap_names()


def _model_names() -> list[str]:
    from weft.models import model_names

    return model_names()


def _gpu(text: str) -> Any:
    from weft.hardware import gpu

    return name_doubtful_values(gpu(text))


def name_doubtful_values(machine: Any) -> Any:
    """Return a GPU or a system, after its doubtful values were named on standard error, each once."""
    context = click.get_current_context(silent=True)
    said = set() if context is None else context.meta.setdefault(__name__, set())
    for doubt in getattr(machine, "gpu", machine).doubts:
        if doubt not in said:
            said.add(doubt)
            click.echo(f"note: {doubt}", err=True)
    return machine


def _overlap_name(text: str) -> str:
    """Return the name of an overlap; one in a file, like "mine.py:Mine", is imported first."""
    if ":" not in text:
        return text
    from weft.overlaps import OVERLAPS

    return OVERLAPS[text].name


NAMES = Value("A,B", names)
NUMBERS = Value("8,16", numbers)
FACTORS = Value("1,2,4", factors)
SHAPE = Value("M,N,K", shape)
SIZE = Value("SIZE", size)
COLLECTIVE = Value("COLLECTIVE:SIZE", parse_collective)
SPLIT = Value("GEMM-COLL", split)
SPLITS = Value("72-8,64-16", lambda text: tuple(map(split, names(text))))
DTYPE = Value("NAME", lambda text: text.strip().lower())
GPU = Value("NAME|FILE", _gpu, _gpu_names)
GPUS = Value("A,B", lambda text: tuple(map(_gpu, names(text))), _gpu_names)
GPU_NAME = Value("NAME|FILE", known=_gpu_names)
GPU_NAMES = Value("A,B", names, _gpu_names)
MACHINE_NAME = Value("NAME|FILE", known=lambda: [*_gpu_names(), *_system_names()])
SYSTEM_NAME = Value("NAME", known=_system_names)
SYSTEM_NAMES = Value("A,B", names, _system_names)
MODEL_NAME = Value("NAME|FILE", known=_model_names)
MODEL = Value("MODEL", known=_model_names, files=True)
"""An argument that help texts call MODEL."""
OVERLAP = Value("NAME", _overlap_name, _overlap_names)
OVERLAPS = Value("A,B", lambda text: tuple(map(_overlap_name, names(text))), _overlap_names)
COUNT = Count(1, LARGEST_COUNT)
"""A size or count: a whole number from 1 to the largest that a library indexes with 32 bits."""
RANKS = Count(2, LARGEST_COUNT)
"""GPUs of a collective."""
