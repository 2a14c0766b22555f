"""Options shared by several commands: machine, changed values, request size, clock, processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import click
from click.core import ParameterSource

from weft.cli.output import Outputs
from weft.cli.values import (
    DTYPE,
    GPU,
    NUMBERS,
    Count,
    Value,
    assignments,
    name_doubtful_values,
)
from weft.core.errors import InputError, UnknownNameError
from weft.core.fields import Described, describe_fields
from weft.core.options import RunOptions
from weft.core.units import LARGEST_COUNT

if TYPE_CHECKING:
    from weft.core.store.records import Store
    from weft.hardware import System


F = TypeVar("F", bound=Callable[..., Any])


def option(flag: str, help: str, type: Any = None, name: str | None = None, **more: Any) -> Callable[[F], F]:
    """A click option whose help states its default; `name` is the function argument if `flag` does not name it."""
    return click.option(*filter(None, (flag, name)), type=type, help=help, show_default=True, **more)


_BESIDE_ITS_HEAD = 65
"""The longest example that shares a line of a help page with its head [characters]."""


def examples(*commands: str) -> str:
    """Return the epilogue of a help page: one or several example commands, each whole on one line."""
    if len(commands) == 1 and len(commands[0]) <= _BESIDE_ITS_HEAD:
        return f"Example: {commands[0]}"
    head = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(("\b", head, *(f"  {command}" for command in commands)))


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine several options into one decorator, listed on the help page in the given order."""

    def add(command: F) -> F:
        return functools.reduce(lambda made, add_option: add_option(made), reversed(options), command)

    return add


def set_option(what: str = "the GPU") -> Callable[[F], F]:
    """Add --set: the argument `changes`, values by path."""
    text = f'Change a value of {what}, like memory.bandwidth="2 TB/s"; repeatable.'
    return option("--set", text, name="changes", multiple=True, callback=assignments, metavar="PATH=VALUE")


against_option = option(
    "--against",
    "Ask again with a value or an option of this command changed, and show before, after and their ratio, like "
    'link.bandwidth="900 GB/s" or tp=4; repeatable, all changes at once.',
    name="against",
    multiple=True,
    callback=assignments,
    metavar="NAME=VALUE",
)
"""The same question on a changed machine, or with other options: the argument `against` of `on_machine`."""


def clock_option(also: Sequence[str] = (), more: str = "") -> Callable[[F], F]:
    """Add --clock, which takes "short", "sustained" and the values in `also`; `more` documents those."""
    text = f"Clock of the compute units: the boost clock of a short run, or the sustained clock of a long one{more}."
    return option("--clock", text, click.Choice(("short", "sustained", *also)), default="sustained")


_STATES = {
    "short": "At the clock of short runs, which end before the power limit lowers it.",
    "boost": "At the boost clock throughout, as if there were no power limit.",
}
"""The first line of an answer at another clock than that of long runs."""


def as_run_options(function: F) -> F:
    """Combine the options of a run, such as --clock and --memory, into the command's argument `options`.

    At another clock than the default the command's answer begins with a line that says so.
    """

    @functools.wraps(function)
    def call(*args: Any, **values: Any) -> Any:
        taken = {name: values.pop(name) for name in (*describe_fields(RunOptions), "arbiter") if name in values}
        options = RunOptions(**drop_none(**taken))
        click.get_current_context().ensure_object(Outputs).state = _STATES.get(options.clock, "")
        return function(*args, options=options, **values)

    return cast(F, call)


def on_machine(function: F) -> F:
    """Combine --system and --set into the command's argument `machine`, and leave out options that are not given.

    With --against the command answers a second time, and the contrast of both is its answer.
    """

    @functools.wraps(function)
    def call(
        *args: Any, system: str, changes: Mapping[str, str], against: Mapping[str, str] | None = None, **values: Any
    ) -> Any:
        from weft.hardware import system as described

        machine = name_doubtful_values(described(system).replace(changes))
        first = function(*args, machine=machine, **drop_none(**values))
        if not against:
            return first
        from weft.core.contrast import Contrast

        stated = {name.replace("-", "_"): text for name, text in against.items() if "." not in name}
        options = dict(_parse_option(name, text) for name, text in stated.items())
        other = described(options.pop("system", None) or system).replace(changes)
        other = other.replace({path: text for path, text in against.items() if "." in path})
        if clock := options.pop("clock", None):
            options["options"] = replace(values["options"], clock=clock)
        label = ", ".join(f"{name.replace('_', '-')} {text}" for name, text in against.items())
        return Contrast(
            {"as asked": first, label: function(*args, machine=other, **drop_none(**{**values, **options}))}
        )

    return cast(F, call)


def _parse_option(name: str, text: str) -> tuple[str, Any]:
    """Return the argument and the value of an option of the running command; UnknownNameError for another name."""
    context = click.get_current_context()
    exposed = (one for one in context.command.params if isinstance(one, click.Option) and one.expose_value)
    known = {one.opts[0].lstrip("-").replace("-", "_"): one for one in exposed if one.name not in _NOT_AGAINST}
    if name not in known:
        raise UnknownNameError("value of the machine, or option of this command,", name, known, listed=True)
    return str(known[name].name), known[name].process_value(context, text)


_NOT_AGAINST = ("against", "changes", "compare_overlaps")


def run_options(
    gpu: str | None = None, changed: str = "the GPU", requests: str | None = "as suits the GPU"
) -> Callable[[F], F]:
    """Add --gpu, --set, --clock and --request-bytes: the command's arguments `gpu`, `changes` and `options`.

    --gpu is required if it has no default. `changed` names in the help what --set changes. `requests` describes the
    default request size; None omits the option.
    """
    name = "The GPU: a name from 'weft hardware list', or a TOML file."
    size = f"Size of a memory request: 64 is exact, larger ones are faster.  [default: {requests}]"
    return together(
        option("--gpu", name, GPU, required=gpu is None, **drop_none(default=gpu)),
        set_option(changed),
        clock_option(),
        *([option("--request-bytes", size, int, metavar="BYTES")] if requests else []),
        as_run_options,
    )


def dtype_option(of: str, own: str = "") -> Callable[[F], F]:
    """Add --dtype, the data type `of` something; "BF16" is bf16. None is the default that `own` describes, if any."""
    text = f"Data type of {of}: fp64, fp32, tf32, fp16, bf16, fp8 or int8."
    return option("--dtype", text + f"  [default: {own}]" * bool(own), DTYPE, default=None if own else "bf16")


data_option = option(
    "--data",
    "Measurements in the documented columns; else WEFT_DATA, else ../shared/data beside the project.",
    click.Path(path_type=Path),
    metavar="DIR|FILE",
)
"""Add --data, the measured rows."""


def _store(context: click.Context, option: click.Parameter, without: bool) -> Store | None:
    from weft.core.store.records import Store

    return None if without else Store()


store_option = option(
    "--no-cache", "Simulate everything anew, and keep nothing.", name="store", is_flag=True, callback=_store
)
"""Add --no-cache: the command's argument `store`, the user's store of runs or None."""


def many_options(command: F) -> F:
    """Add --jobs and --no-cache: the command's arguments `jobs` and `store`."""
    text = "Processes that simulate at the same time."
    jobs_option: Callable[[F], F] = option("--jobs", text, click.IntRange(min=1), default=2, metavar="N")
    return jobs_option(store_option(command))


def refuse_given(because: str, *names: str) -> None:
    """Raise InputError if an option in `names` was given, which has no effect `because` of another one."""
    context = click.get_current_context()
    for one in context.command.params:
        if one.name in names and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE:
            raise InputError(f"{one.opts[0]} has no effect {because}; leave it out")


def typed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that stand on the command line, without those that have their defaults."""
    context = click.get_current_context()
    typed_in = ParameterSource.COMMANDLINE
    return {name: value for name, value in options.items() if context.get_parameter_source(name) is typed_in}


def against_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options whose values --against changed from those of the command line."""
    asked = click.get_current_context().params
    return {name: value for name, value in options.items() if value != asked.get(name)}


def price_option() -> Callable[[F], F]:
    """Add --price, which is read before anything runs: the command gets a text that holds for its machine."""
    text = "What a GPU costs, like '3.5 USD/GPU/h', or a TOML file of prices by GPU."
    return option("--price", text, Value("PRICE|FILE"))


def energy_option() -> Callable[[F], F]:
    """Add --energy, which is read before anything runs."""
    text = (
        "State power and energy: of gpus alone, or with what counts beside them, like '300 W/GPU, PUE 1.2, 0.1 "
        "USD/kWh'."
    )
    return option("--energy", text, Value("TERMS"))


def check_terms(price: str | None, energy: str | None, machine: System) -> None:
    """Raise InputError for a price or an energy that does not hold for the GPUs of a machine."""
    if price is not None:
        from weft.core.price import Price

        Price.of(price, machine.gpu.name)
    if energy is not None:
        from weft.core.energy import EnergyTerms

        EnergyTerms.of(energy)
        machine.gpu.check_power()


class Valued(Protocol):
    """What says what it costs and draws."""

    def priced(self, price: str) -> Self:
        """Return it with what a GPU costs."""

    def powered(self, terms: str) -> Self:
        """Return it with its power and energy."""


V = TypeVar("V", bound=Valued)


def valued(answer: V, price: str | None, energy: str | None) -> V:
    """Return an answer with what it costs and draws, where these are asked for."""
    answer = answer.priced(price) if price else answer
    return answer.powered(energy) if energy else answer


def drop_none(**options: Any) -> dict[str, Any]:
    """Return the options that are not None; the others keep their Python defaults."""
    return {name: value for name, value in options.items() if value is not None}


def field_options(owner: type, *names: str, **types: click.ParamType) -> Callable[[F], F]:  # type: ignore[type-arg]
    """Add an option for each named field of a dataclass, listed on the help page in the given order.

    `types` replace the type of fields whose text is parsed in its own way, or whose names a shell completes.
    """
    return together(*(_option(describe_fields(owner)[name], types.get(name)) for name in names))


def fields_in(owner: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a dataclass."""
    return {name: value for name, value in options.items() if name in owner.__dataclass_fields__}


def _option(one: Described, given: click.ParamType | None) -> Callable[[F], F]:  # type: ignore[type-arg]
    flag = f"--{one.name.replace('_', '-')}"
    about = one.declared
    value = None if about.default else one.value
    shown = f"  [default: {about.default}]" if about.default else ""
    if one.kinds == (bool,):
        two_ways = one.value is None or about.default or one.value
        flags = f"{flag}/--no-{flag[2:]}" if two_ways else flag
        return option(flags, f"{about.help}{shown}", name=one.name, default=value, is_flag=True)
    kind = given or _kind(one)
    completed = tuple(kind.known()) if isinstance(kind, Value) and "{names}" in about.help else ()
    names = (one.choices if "{names}" in about.help else ()) or completed
    return option(flag, about.help.replace("{names}", ", ".join(names)) + shown, kind, one.name, default=value)


def _kind(one: Described) -> click.ParamType:  # type: ignore[type-arg]
    """Return the type of an option: a choice, a whole number in its range, numbers with commas between, or a name."""
    if isinstance(one.declared.names, str):  # of a higher package: imported when a shell completes them
        return Value("NAME", str, lambda: one.choices)
    if one.choices:
        return click.Choice(one.choices)
    if one.kinds == (int,):
        return Count(one.declared.least, one.declared.most or LARGEST_COUNT)
    if one.kinds == (float,):
        return click.FloatRange(*one.declared.bounds or (0, None))
    return NUMBERS if one.kinds == (tuple[int, ...],) else Value("NAME")


class WithScript(click.Command):
    """A command whose words behind "--" are the arguments of the script that --launch names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before "--", and keep those behind it as they are."""
        own, behind = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta[_BEHIND] = tuple(behind)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of the line of usage."""
        return [*super().collect_usage_pieces(ctx), "[-- ARG ...]"]


_BEHIND = "weft.cli.behind"


def words_behind() -> tuple[str, ...]:
    """Return the words behind "--" of a command of `WithScript`."""
    found: tuple[str, ...] = click.get_current_context().meta[_BEHIND]
    return found
