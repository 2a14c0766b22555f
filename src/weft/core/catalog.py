"""TOML files whose values each have a unit and a source, or are marked assumed with a range; files can be extended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from weft.core import units
from weft.core.errors import ConfigError, UnitError, UnknownNameError, check_type, join_or, nearest, show_value
from weft.core.files import parse_toml, read_text
from weft.core.units import Dimension

# Beyond these, whole runs no longer fit into 64-bit femtoseconds, or tables into memory [base units].
_SIMULATED = {
    Dimension.BYTES: (1.0, 2.0**50),
    Dimension.BYTES_PER_SECOND: (1e6, 1e18),
    Dimension.SECONDS: (1e-15, 1.0),
    Dimension.HERTZ: (1e6, 1e13),
    Dimension.COUNT: (0.0, 1e6),
}
_WRITTEN = 1e300
"""Numbers above this are written without a unit."""


@dataclass(frozen=True)
class Quantity:
    """The rule of a numeric field: its dimension, whether it is whole, and its bounds [base unit]."""

    dimension: Dimension
    whole: bool = False
    zero_allowed: bool = False
    at_most: float | None = None

    @property
    def example(self) -> str:
        """A value that obeys the rule, for messages."""
        if self.at_most != 1:
            return units.example(self.dimension)
        return "1" if self.whole else "0.5"

    def parse(self, raw: object) -> float:
        """Parse a value as a user wrote it into a plain number [base unit]; UnitError if a required unit is missing."""
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise UnitError(f"{show_value(raw)} is not a quantity; write it like '{self.example}'")
        text = raw if isinstance(raw, str) else show_value(raw)
        return self.check(units.parse(text, self.dimension), text)

    def check(self, value: float, text: str | None = None) -> float:
        """`value` as int or float if it obeys the rule, else UnitError; `text` is how it was written."""
        low, high = _SIMULATED.get(self.dimension, (0.0, float("inf")))
        broken = ""
        if not value >= 0 or (value == 0 and not self.zero_allowed):
            rule = "zero or more" if self.zero_allowed else "greater than zero"
            broken = f"must be {rule}; write it like '{self.example}'"
        elif self.at_most is not None and value > self.at_most:
            broken = f"must be at most {self.at_most:g}; write it like '{self.example}'"
        elif value > high or 0 < value < low:
            broken = f"cannot be simulated; it must lie between {self.format(low)} and {self.format(high)}"
        elif self.whole and value != int(value):
            broken = f"must be a whole number ({self.dimension}); write it like '{self.example}'"
        if broken:
            raise UnitError(f"'{self.format(value) if text is None else text}' {broken}")
        return int(value) if self.whole else float(value)

    def format(self, value: float) -> str:
        """`value` as a user would write it."""
        return units.format(value, self.dimension)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic validates a field with this rule."""
        return no_info_before_validator_function(self._validate_number, handler(source))

    def _validate_number(self, raw: object) -> float:
        """Validate what pydantic receives, text with a unit or a plain number [base unit], and return the number."""
        try:
            if isinstance(raw, int | float) and not isinstance(raw, bool):
                return self.check(raw, show_value(raw) if abs(raw) > _WRITTEN else None)
            return self.parse(raw)
        except UnitError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None


class PeakRate(float):
    """A peak of a whole GPU as its data sheet states it [FLOP/s], for a field that counts FLOP per clock and unit."""


@dataclass(frozen=True)
class OperationsPerClock(Quantity):
    """The rule of a count of operations per clock and unit, which may be given as the peak rate of the whole GPU."""

    def parse(self, raw: object) -> float:
        """Parse a count, or a peak rate such as "989 TFLOP/s" into a `PeakRate`, which the GPU divides."""
        if isinstance(raw, str):
            with suppress(UnitError):
                return PeakRate(units.parse(raw, Dimension.FLOPS))
        return super().parse(raw)


Bytes = Annotated[int, Quantity(Dimension.BYTES, whole=True)]
"""A capacity or size, whole and positive [bytes]."""
BytesPerSecond = Annotated[float, Quantity(Dimension.BYTES_PER_SECOND)]
"""A data rate, positive [bytes/s]."""
Seconds = Annotated[float, Quantity(Dimension.SECONDS)]
"""A duration, positive [seconds]."""
Delay = Annotated[float, Quantity(Dimension.SECONDS, zero_allowed=True)]
"""A duration that may be zero [seconds]."""
Hertz = Annotated[float, Quantity(Dimension.HERTZ)]
HertzOrNone = Annotated[float, Quantity(Dimension.HERTZ, zero_allowed=True)]
"""A frequency, positive [hertz]."""
WattsOrNone = Annotated[float, Quantity(Dimension.WATTS, zero_allowed=True)]
"""A power, 0 for none [watts]."""
Count = Annotated[int, Quantity(Dimension.COUNT, whole=True)]
"""A number of things, whole and positive."""
Units = Annotated[int, Quantity(Dimension.COUNT, whole=True, at_most=10_000)]
"""A number of hardware blocks whose state the engine stores one by one, whole and positive."""
Share = Annotated[float, Quantity(Dimension.COUNT, at_most=1)]
"""A fraction of a whole, above 0 and at most 1."""
ShareOrNone = Annotated[float, Quantity(Dimension.COUNT, at_most=1, zero_allowed=True)]
"""A fraction of a whole, 0 to 1."""
Factor = Annotated[float, Quantity(Dimension.COUNT)]
"""How many times more, above zero."""
Cycles = Annotated[float, Quantity(Dimension.COUNT, zero_allowed=True)]
"""Clock cycles of a compute unit, zero or more."""
Exponent = Annotated[float, Quantity(Dimension.COUNT, at_most=10, zero_allowed=True)]
"""The exponent of a law of growth, 0 for none."""
BytesOrNone = Annotated[int, Quantity(Dimension.BYTES, whole=True, zero_allowed=True)]
"""A capacity, whole, 0 for none [bytes]."""
BytesPerSecondOrNone = Annotated[float, Quantity(Dimension.BYTES_PER_SECOND, zero_allowed=True)]
"""A data rate, 0 for none [bytes/s]."""
CountOrNone = Annotated[int, Quantity(Dimension.COUNT, whole=True, zero_allowed=True)]
"""A number of things, whole, 0 for none."""
PerClock = Annotated[int, OperationsPerClock(Dimension.COUNT, whole=True, zero_allowed=True)]
"""Operations per clock and unit, whole, 0 for none; or the peak rate of the whole GPU, such as "989 TFLOP/s"."""
Flag = Annotated[int, Quantity(Dimension.COUNT, whole=True, zero_allowed=True, at_most=1)]
"""Whether something holds: 1 for yes, 0 for no."""


Kind = Literal["peak", "published", "achieved", "measured", "derived", "assumed", "calibrated", "set by user"]
"""How a value is known: "peak" is a data sheet's, "achieved" what others measured under load, "calibrated"
fitted to measurements; "assumed" values carry a plausible range."""

_LEAF_EXAMPLE = '{ value = "450 GB/s", kind = "published", source = "data sheet" }'
_MEANT = {"a valid dictionary or instance of": "a", "an instance of": "a", "a valid dictionary": "a table of values"}
"""pydantic's type errors, reworded for users."""
_LEAF_KEYS = ("value", "kind", "source", "low", "high")
LONGEST_CHAIN = 16
"""Most files in a chain of files that extend each other."""
LARGEST_TOML = 1 << 20
"""Largest TOML file that is read [bytes]."""
_LISTED = 24
_FILE_KINDS = tuple(kind for kind in get_args(Kind) if kind != "set by user")


Rules = Mapping[str, Quantity | None]
"""The rule of each value by its dotted path; None for texts, booleans and lists."""


class Part(BaseModel):
    """Base of the parts of a description: immutable, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def from_table(cls, content: Mapping[str, Any], place: str) -> Self:
        """Return the part that a table of a file describes; ConfigError for a wrong, an unknown or a missing value."""
        try:
            return cls.model_validate(dict(content))
        except ValidationError as error:
            raise translate_error(error, tuple(cls.model_fields), place) from None


class Provenance(Part):
    """Where a value comes from: its text as written, its kind, its source, and its plausible range as text."""

    text: str
    kind: Kind
    source: str
    low: str | None = None
    high: str | None = None


def set_by_user(text: str, where: str = "") -> Provenance:
    """Return the provenance of a value that the user changed."""
    return Provenance(text=text, kind="set by user", source=f"set by the user{where}")


def changes(provenance: Mapping[str, Provenance]) -> tuple[str, ...]:
    """Return the values that the user set, as texts such as "memory.bandwidth = 2 TB/s"."""
    return tuple(f"{path} = {p.text}" for path, p in provenance.items() if p.kind == "set by user")


class Leaf(NamedTuple):
    """One value of a configuration file [base unit, where it has a rule], with its provenance.

    `range` is the plausible range of a value with a rule [base unit]: the value alone if the file states none.
    """

    value: Any
    provenance: Provenance
    range: tuple[float, float] = (math.nan, math.nan)


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """Read a TOML file; raises InputError or ConfigError that says why it cannot be read."""
    text = read_text(file, LARGEST_TOML) if isinstance(file, Path) else file.read_text(encoding="utf-8")
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"this is no valid TOML file: {error}", str(file)) from None


def read_leaves(table: Mapping[str, Any], rules: Rules, file: str, source: str = "") -> dict[str, Leaf]:
    """Every leaf of a nested table by its dotted path; `rules` names the known paths, `source` that of bare values.

    Raises ConfigError for an unknown key (naming the nearest known one) and for a leaf that breaks a rule.
    """
    return {path: _leaf(raw, rules[path], path, file, source) for path, raw in _walk(table, "", rules, file)}


def _walk(table: Mapping[str, Any], prefix: str, known: Collection[str], file: str) -> Iterator[tuple[str, Any]]:
    for key, raw in table.items():
        path = f"{prefix}{key}"
        if path in known:
            yield path, raw
        elif any(name.startswith(f"{path}.") for name in known):
            if not isinstance(raw, Mapping):
                raise ConfigError(f"this must be a table of values, not {raw!r}", file, path)
            yield from _walk(raw, f"{path}.", known, file)
        else:
            raise unknown_key(path, known, file)


def check_path(path: object, known: Collection[str]) -> None:
    """Raise ConfigError, which names the nearest known path, unless a value is one of the known paths."""
    if not isinstance(path, str) or path not in known:
        raise unknown_key(path, known)


def unknown_key(path: object, known: Collection[str], file: str | None = None) -> ConfigError:
    """Return the error for an unknown key; it names the nearest known keys."""
    if not isinstance(path, str):
        return ConfigError(f"{show_value(path)} is no path; give one like '{next(iter(known))}'", file)
    inside = [name for name in known if name.startswith(f"{path}.")]
    if inside:
        return ConfigError(f"this is a table; name one of its values, like '{inside[0]}'", file, path)
    same_name = [name for name in known if name.endswith(f".{path}")]
    table, _, last = path.rpartition(".")
    beside = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == table}
    if table and beside and not nearest(last, beside):
        return ConfigError(f"unknown key; '{table}' has {', '.join(beside)}", file, path)
    close = same_name or nearest(path, known)[:1]
    hint = f"did you mean {join_or(close)}?" if close else _listing(known)
    return ConfigError(f"unknown key; {hint}", file, path)


def _listing(known: Collection[str]) -> str:
    if len(known) <= _LISTED:
        return f"known keys: {', '.join(known)}"
    return f"known keys begin with {', '.join(dict.fromkeys(name.partition('.')[0] for name in known))}"


def _leaf(raw: Any, quantity: Quantity | None, path: str, file: str, common: str = "") -> Leaf:
    if isinstance(raw, Mapping):
        for key in raw:
            if key not in _LEAF_KEYS:
                raise unknown_key(key, _LEAF_KEYS, f"{file}: {path}")
        missing = [key for key in ("value", "kind", "source") if raw.get(key) in (None, "")]
        if missing:
            raise ConfigError(f"'{missing[0]}' is missing; write the value like {_LEAF_EXAMPLE}", file, path)
        if raw["kind"] not in _FILE_KINDS:
            raise ConfigError(f"kind '{raw['kind']}' is not one of {', '.join(_FILE_KINDS)}", file, path)
        ends = {key: _text(raw[key]) for key in ("low", "high") if key in raw}
        source = Provenance(text=_text(raw["value"]), kind=raw["kind"], source=str(raw["source"]), **ends)
        leaf = Leaf(raw["value"], source)
    elif common:
        leaf = Leaf(raw, Provenance(text=_text(raw), kind="published", source=common))
    else:
        leaf = Leaf(raw, set_by_user(_text(raw), f" in {file}"))
    return leaf if quantity is None else _in_range(leaf, quantity, path, file)


def _in_range(leaf: Leaf, quantity: Quantity, path: str, file: str) -> Leaf:
    """The value as a plain number; ConfigError unless low <= value <= high. An assumed value must state both bounds."""
    low, high = leaf.provenance.low, leaf.provenance.high
    if (low is None or high is None) and leaf.provenance.kind == "assumed":
        raise ConfigError("an assumed value needs its plausible range: add low = and high =", file, path)
    value = parse_value(quantity, path, leaf.value, file)
    least, most = (value if raw is None else parse_value(quantity, path, raw, file) for raw in (low, high))
    if not least <= value <= most:
        raise ConfigError(f"'{leaf.provenance.text}' is outside its own range, {low} to {high}", file, path)
    return Leaf(value, leaf.provenance, (least, most))


def parse_value(quantity: Quantity | None, path: str, raw: Any, file: str | None = None) -> Any:
    """Parse what a user wrote for a path into a plain number [base unit]; ConfigError if it breaks the rule."""
    try:
        return raw if quantity is None else quantity.parse(raw)
    except UnitError as error:
        raise ConfigError(str(error), file, path) from None


def _text(raw: Any) -> str:
    return ", ".join(map(str, raw)) if isinstance(raw, list) else str(raw)


def translate_error(error: ValidationError, known: Collection[str], file: str | None = None) -> ConfigError:
    """The first problem that pydantic found, as one sentence for the user; a key that is misspelt comes first."""
    try:
        problems = error.errors(include_url=False, include_context=False)
    except UnicodeEncodeError:
        return ConfigError("a text holds half of a character (a lone surrogate); write it again", file)
    problem = min(problems, key=lambda one: one["type"] != "extra_forbidden")
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return unknown_key(path, known, file)
    if problem["type"] == "missing":
        return ConfigError("this value is missing; add it", file, path)
    if problem["type"] in ("rule", "quantity"):
        return ConfigError(problem["msg"], file, path)
    rule = problem["msg"].removeprefix("Input should be ").replace("greater than or equal to", "at least")
    for name, meant in _MEANT.items():
        rule = rule.replace(name, meant)
    if problem["type"] == "value_error":
        rule = "a value of fewer digits" if "digits" in rule else rule.removeprefix("Value error, ")
    return ConfigError(f"{show_value(problem['input'])} cannot be used; it should be {rule}", file, path)


def broken_rule(sentence: str) -> PydanticCustomError:
    """Return the error that a validator raises for values that contradict each other."""
    return PydanticCustomError("rule", "{sentence}", {"sentence": sentence})


class Whole(Part):
    """Base of objects that users construct: a value that breaks a rule raises ConfigError."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise translate_error(error, tuple(type(self).model_fields)) from None

    def _with(self, **values: Any) -> Self:
        """Return a validated copy with some fields replaced."""
        return type(self)(**{**_field_values(self), **values})


def _field_values(item: Whole) -> dict[str, Any]:
    """Return the values of the fields; what was computed from them and kept is left out."""
    return {name: getattr(item, name) for name in type(item).model_fields}


class Sourced(Whole):
    """A description whose values are reached by dotted path, such as "memory.timing.rcd", each with its source.

    `provenance` maps each path to the origin of its value. Objects are immutable: `replace` returns a validated copy.
    Raises ConfigError for values that break a rule.
    """

    name: str
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)
    _texts: ClassVar[tuple[str, ...]] = ()
    """Paths of values that are not numbers."""
    _remedy: ClassVar[str] = 'add them, or a line like extends = "NAME" that takes them from a known file'
    """What to do about a file that lacks values."""

    def __repr__(self) -> str:
        """One line that names it: there are some hundred values, which `model_dump` returns."""
        title = getattr(self, "title", "")
        return f"<{type(self).__name__} {self.name}{': ' * bool(title)}{title}>"

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(tuple(value for field, value in self if field != "provenance"))

    @classmethod
    @cache
    def rules(cls) -> Rules:
        """Return every settable path in the order of the fields, with the rule of its number."""
        return {**{path: rule for path, rule, _ in _fields(cls) if rule}, **dict.fromkeys(cls._texts)}

    def value(self, path: str) -> Any:
        """The plain number, text or list at `path` [base unit]; ConfigError names the nearest path if there is none."""
        check_path(path, self.rules())
        try:
            return attrgetter(path)(self)
        except AttributeError:
            raise ConfigError(f"{self.name} has no such value", None, path) from None

    def text(self, path: str) -> str:
        """Return the value at `path` as a user would write it."""
        value, rule = self.value(path), self.rules()[path]
        if rule is not None:
            return rule.format(value)
        if not isinstance(value, tuple):
            return str(value)
        return "; ".join(" ".join(map(str, row)) if isinstance(row, tuple) else str(row) for row in value)

    @property
    def changes(self) -> tuple[str, ...]:
        """What the user set, as texts such as "memory.bandwidth = 2 TB/s"."""
        return changes(self.provenance)

    def replace(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with the values at the given paths replaced, such as {"memory.bandwidth": "2 TB/s"}.

        Raises ConfigError for an unknown path (naming the nearest), a missing unit, or a broken rule.
        """
        check_type("what to replace", values, Mapping, 'give values by path, like {"memory.bandwidth": "2 TB/s"}')
        if not values:
            return self
        fields = _field_values(self)
        for path, raw in values.items():
            check_path(path, self.rules())
            table, dot, _ = path.partition(".")
            if dot and not isinstance(fields[table], dict):
                fields[table] = fields[table].model_dump() if fields[table] else {}
            _place(fields, path, parse_value(self.rules()[path], path, raw))
        sources = {**self.provenance, **{path: set_by_user(_text(raw)) for path, raw in values.items()}}
        sources |= self._derive_values(fields, sources)
        return type(self)(**fields).model_copy(update={"provenance": sources})

    @classmethod
    def _derive_values(cls, fields: dict[str, Any], sources: Mapping[str, Provenance]) -> dict[str, Provenance]:
        """Replace, in `fields`, values that follow from others, and return where those come from."""
        return {}

    @classmethod
    def from_leaves(cls, about: Mapping[str, Any], leaves: Mapping[str, Leaf], file: str) -> Self:
        """Build the description from text fields (`about`) and the values of a file; ConfigError if one is missing."""
        cls._check_missing(about, leaves, file)
        sources = {path: leaf.provenance for path, leaf in leaves.items()}
        fields: dict[str, Any] = {**about}
        for path, leaf in leaves.items():
            _place(fields, path, leaf.value)
        sources |= cls._derive_values(fields, sources)
        try:
            return cls(**fields, provenance=sources)
        except ConfigError as error:
            raise ConfigError(error.message, file, error.key) from None

    @classmethod
    def _check_missing(cls, about: Mapping[str, Any], leaves: Mapping[str, Leaf], file: str) -> None:
        """Raise ConfigError that names all texts and values that a file lacks."""
        needed = [path for path, _, needed in _fields(cls) if needed and path in cls.rules()]
        words = (name for name, field in cls.model_fields.items() if field.is_required() and _is_text(field.annotation))
        texts = [name for name in words if name not in about and name not in cls.rules()]
        values = [path for path in needed if path not in leaves]
        if len(texts) + len(values) == 1:
            if texts:
                raise ConfigError(f'this text is missing; add a line like {texts[0]} = "..."', file, texts[0])
            rule = cls.rules()[values[0]]
            example = f'{{ value = "{rule.example if rule else "..."}", kind = "published", source = "data sheet" }}'
            raise ConfigError(f"this value is missing; add it, like {example}", file, values[0])
        if texts or values:
            listed = ", ".join((*texts, *_by_table(values, needed)))
            raise ConfigError(f"{len(texts) + len(values)} values are missing: {listed}; {cls._remedy}", file)


def _is_text(kind: Any) -> bool:
    return kind is str or get_origin(kind) is Literal


def _by_table(missing: Collection[str], needed: Collection[str]) -> Iterator[str]:
    """Paths for a message; the tables that lack all their values by their names alone, at the end."""
    tables: dict[str, list[str]] = {}
    for path in missing:
        tables.setdefault(path.rpartition(".")[0], []).append(path)
    sizes = Counter(path.rpartition(".")[0] for path in needed)
    whole = [f"[{table}]" for table, paths in tables.items() if table and len(paths) == sizes[table]]
    for table, paths in tables.items():
        if f"[{table}]" not in whole:
            yield from paths
    if whole:
        yield f"all of {', '.join(whole)}"


_Field = tuple[str, Quantity | None, bool]
"""The dotted path of a field, its rule if it is a number, and whether it is required."""


@cache
def _fields(model: type[BaseModel]) -> tuple[_Field, ...]:
    """Return all fields of a model, those of its nested parts included."""
    return tuple(_list_fields(model, "", True))


def _list_fields(model: type[BaseModel], prefix: str, needed: bool) -> Iterator[_Field]:
    for name, about in model.model_fields.items():
        path, required = f"{prefix}{name}", needed and about.is_required()
        kinds = (about.annotation, *get_args(about.annotation))  # the second in `Count | None`
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Part) and not issubclass(kind, Sourced | Provenance):
                yield from _list_fields(kind, f"{path}.", required)
        rules = (*about.metadata, *(rule for kind in kinds for rule in getattr(kind, "__metadata__", ())))
        yield path, next((rule for rule in rules if isinstance(rule, Quantity)), None), required


def _place(fields: dict[str, Any], path: str, value: Any) -> None:
    *tables, name = path.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
    fields[name] = value


class Description(NamedTuple):
    """The content of a file, merged with what it extends: text fields (`about`) and values; `file` names it.

    `stated` are the paths of values that files of a user state, `known` the values of the packaged file they extend.
    """

    about: Mapping[str, Any]
    leaves: Mapping[str, Leaf]
    file: str
    folder: Path | None
    stated: frozenset[str] = frozenset()
    known: Mapping[str, Leaf] = {}


@dataclass(frozen=True)
class Shelf:
    """A packaged folder of TOML files that describe things of one kind.

    `texts` are required text fields, which an extending file inherits. `lists` (lists of names) and `flags` (booleans)
    are not inherited. A file may name one `source` for all values that it gives without one: they count as published.
    """

    noun: str
    package: str
    folder: str
    texts: tuple[str, ...]
    rules: Rules
    lists: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """Return the names of the packaged files, sorted."""
        files = (resources.files(self.package) / self.folder).iterdir()
        return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))

    def read(self, name_or_path: str | Path) -> Description:
        """Return the description with that name, or in that TOML file.

        Raises UnknownNameError, InputError or ConfigError.
        """
        return self._read(self._find(name_or_path), ())

    def _find(self, name_or_path: str | Path, beside: Path = Path()) -> Path | Traversable:
        """The packaged file with that name, or the path relative to `beside`; UnknownNameError if neither exists."""
        text = str(name_or_path)
        if is_file(name_or_path):
            return beside / text
        if text not in self.names():
            raise UnknownNameError(self.noun, text, self.names())
        return resources.files(self.package) / self.folder / f"{text}.toml"

    def _read(self, file: Path | Traversable, seen: tuple[str, ...]) -> Description:
        label, folder = file_label(file), file.parent if isinstance(file, Path) else None
        if str(file) in seen:
            raise ConfigError("this file extends itself; remove one 'extends'", label, "extends")
        if len(seen) > LONGEST_CHAIN:
            raise ConfigError(f"more than {LONGEST_CHAIN} files extend one another; merge some", label, "extends")
        document, base = read_toml(file), Description({}, {}, "", None)
        extends = document.pop("extends", None)
        if extends is not None:
            if not isinstance(extends, str):
                wanted = f'{extends!r} is no name or path; write it like "{self.names()[0]}"'
                raise ConfigError(wanted, label, "extends")
            base = self._read(self._find(extends, folder or Path()), (*seen, str(file)))
        about = {key: value for key, value in base.about.items() if key in self.texts}
        about |= {"name": file.name.removesuffix(".toml"), **self._own(document, label)}
        source = self._own_source(document, label)
        own = read_leaves(document, self.rules, label, source)
        leaves = {**base.leaves, **own}
        if folder == resources.files(self.package) / self.folder:
            return Description(about, leaves, label, folder, frozenset(), leaves)
        return Description(about, leaves, label, folder, base.stated | own.keys(), base.known)

    def _own_source(self, document: dict[str, Any], label: str) -> str:
        """Remove and return the source that all bare values of the file share; ConfigError if it is no text."""
        source = document.pop("source", "")
        if not isinstance(source, str):
            raise ConfigError(
                f"{show_value(source)} must be text in quotes, the source of all bare values", label, "source"
            )
        return source

    def _own(self, document: dict[str, Any], label: str) -> dict[str, Any]:
        """Remove text fields, flags and lists of names from the document and return them; ConfigError if mistyped."""
        rules: dict[str, tuple[type, str]] = dict.fromkeys(self.texts, (str, "text in quotes"))
        rules |= dict.fromkeys(self.flags, (bool, "true or false"))
        rules |= {key: (list, f'a list of names, like ["{example}"]') for key, example in self.lists.items()}
        own: dict[str, Any] = {key: document.pop(key) for key in rules if key in document}
        for key, value in own.items():
            kind, rule = rules[key]
            names = value if kind is list and isinstance(value, list) else ()
            if not (isinstance(value, kind) and all(isinstance(name, str) for name in names)):
                raise ConfigError(f"{value!r} must be {rule}", label, key)
        return own | {key: tuple(own.get(key, ())) for key in self.lists}


def is_file(name_or_path: str | Path) -> bool:
    """Return whether a user means a file rather than a name."""
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text


def file_label(file: Path | Traversable) -> str:
    """Return the name of a file in messages: the path that the user gave, or the name of a packaged file."""
    return str(file) if isinstance(file, Path) and not file.is_absolute() else file.name
