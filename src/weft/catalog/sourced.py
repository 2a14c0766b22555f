"""Values that say where they come from: TOML leaves of the form { value, kind, source, low, high }."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from weft.catalog.fields import Quantity
from weft.errors import ConfigError, UnitError, check_type, join_or, nearest, shown
from weft.files import read_text

Kind = Literal["peak", "published", "achieved", "measured", "derived", "assumed", "calibrated", "set by user"]
"""How a value is known: "peak" is a data sheet's, "achieved" what others measured under load, "calibrated"
fitted to measurements; "assumed" values carry a plausible range."""

_LEAF_EXAMPLE = '{ value = "450 GB/s", kind = "published", source = "data sheet" }'
_MEANT = {"a valid dictionary or instance of": "a", "an instance of": "a", "a valid dictionary": "a table of values"}
"""What pydantic says of types, in other words."""
_LEAF_KEYS = ("value", "kind", "source", "low", "high")
LARGEST_TOML = 1 << 20
"""Most that is read of a TOML file [bytes]."""
_LISTED = 24
_FILE_KINDS = tuple(kind for kind in get_args(Kind) if kind != "set by user")


Rules = Mapping[str, Quantity | None]
"""The rule of each value by its dotted path; None for texts, truth values and lists."""


class Part(BaseModel):
    """Base of the parts of a description: immutable, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(Part):
    """Where a value comes from: its text as written, its kind, its source, its plausible range as texts."""

    text: str
    kind: Kind
    source: str
    low: str | None = None
    high: str | None = None


def set_by_user(text: str, where: str = "") -> Provenance:
    """The provenance of a value that the user changed."""
    return Provenance(text=text, kind="set by user", source=f"set by the user{where}")


class Leaf(NamedTuple):
    """One value of a configuration file [base unit, where it has a rule], with its provenance."""

    value: Any
    provenance: Provenance


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """The content of a TOML file; an InputError or ConfigError says why it cannot be read."""
    text = read_text(file, LARGEST_TOML) if isinstance(file, Path) else file.read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"this is no valid TOML file: {error}", str(file)) from None
    except ValueError:  # what Python says of its own limits
        raise ConfigError("a number has thousands of digits; write fewer", str(file)) from None
    except RecursionError:
        raise ConfigError("tables or lists are nested too deeply; nest fewer", str(file)) from None


def read_leaves(table: Mapping[str, Any], rules: Rules, file: str) -> dict[str, Leaf]:
    """Every leaf of a nested table by its dotted path; `rules` names the known paths.

    Raises ConfigError for an unknown key (naming the nearest known one) and for a leaf that breaks a rule.
    """
    return {path: _leaf(raw, rules[path], path, file) for path, raw in _walk(table, "", rules, file)}


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


def is_path(path: object, known: Collection[str]) -> bool:
    """Whether something is one of the known paths."""
    return isinstance(path, str) and path in known


def unknown_key(path: str, known: Collection[str], file: str | None = None) -> ConfigError:
    """The error for a key that no rule knows, naming the nearest known keys."""
    if not isinstance(path, str):
        return ConfigError(f"{shown(path)} is no path; give one like '{next(iter(known))}'", file)
    inside = [name for name in known if name.startswith(f"{path}.")]
    if inside:
        return ConfigError(f"this is a table; name one of its values, like '{inside[0]}'", file, path)
    same_name = [name for name in known if name.endswith(f".{path}")]
    close = same_name or nearest(path, known)[:1]
    hint = f"did you mean {join_or(close)}?" if close else _listing(known)
    return ConfigError(f"unknown key; {hint}", file, path)


def _listing(known: Collection[str]) -> str:
    if len(known) <= _LISTED:
        return f"known keys: {', '.join(known)}"
    return f"known keys begin with {', '.join(dict.fromkeys(name.partition('.')[0] for name in known))}"


def _leaf(raw: Any, quantity: Quantity | None, path: str, file: str) -> Leaf:
    if not isinstance(raw, Mapping):
        leaf = Leaf(raw, set_by_user(_text(raw), f" in {file}"))
    else:
        leaf = _full_leaf(raw, path, file)
    return leaf if quantity is None else Leaf(_in_range(leaf, quantity, path, file), leaf.provenance)


def _full_leaf(raw: Mapping[str, Any], path: str, file: str) -> Leaf:
    for key in raw:
        if key not in _LEAF_KEYS:
            raise unknown_key(key, _LEAF_KEYS, f"{file}: {path}")
    missing = [key for key in ("value", "kind", "source") if raw.get(key) in (None, "")]
    if missing:
        raise ConfigError(f"'{missing[0]}' is missing; write the value like {_LEAF_EXAMPLE}", file, path)
    if raw["kind"] not in _FILE_KINDS:
        raise ConfigError(f"kind '{raw['kind']}' is not one of {', '.join(_FILE_KINDS)}", file, path)
    texts = {key: _text(raw[key]) for key in ("low", "high") if key in raw}
    provenance = Provenance(text=_text(raw["value"]), kind=raw["kind"], source=str(raw["source"]), **texts)
    return Leaf(raw["value"], provenance)


def _in_range(leaf: Leaf, quantity: Quantity, path: str, file: str) -> float:
    """The plain number of a leaf; ConfigError unless low <= value <= high, with both given if it is assumed."""
    low, high = leaf.provenance.low, leaf.provenance.high
    if (low is None or high is None) and leaf.provenance.kind == "assumed":
        raise ConfigError("an assumed value needs its plausible range: add low = and high =", file, path)
    value: float
    value, *ends = (parse_value(quantity, path, raw, file) for raw in (leaf.value, low, high) if raw is not None)
    if (low is not None and value < ends[0]) or (high is not None and value > ends[-1]):
        raise ConfigError(f"'{leaf.provenance.text}' is outside its own range, {low} to {high}", file, path)
    return value


def parse_value(quantity: Quantity | None, path: str, raw: Any, file: str | None = None) -> Any:
    """The plain number [base unit] of what a user wrote for a path; ConfigError if it breaks the rule."""
    try:
        return raw if quantity is None else quantity.parse(raw)
    except UnitError as error:
        raise ConfigError(str(error), file, path) from None


def _text(raw: Any) -> str:
    return ", ".join(map(str, raw)) if isinstance(raw, list) else str(raw)


def translated(error: ValidationError, known: Collection[str], file: str | None = None) -> ConfigError:
    """The first problem that pydantic found, as one sentence."""
    problem = error.errors(include_url=False, include_context=False)[0]
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
    return ConfigError(f"{shown(problem['input'])} cannot be used; it should be {rule}", file, path)


def broken_rule(sentence: str) -> PydanticCustomError:
    """What a validator raises for values that do not go together."""
    return PydanticCustomError("rule", "{sentence}", {"sentence": sentence})


class Sourced(Part):
    """A description whose values are reached by dotted path, such as "memory.timing.rcd", each with its source.

    `provenance` explains each value by its path. What changes is a validated copy. Raises ConfigError for values that
    break a rule.
    """

    name: str
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)
    _texts: ClassVar[tuple[str, ...]] = ()
    """Paths of values that are no numbers."""
    _optional: ClassVar[tuple[str, ...]] = ()
    """How the paths begin that a file may leave out."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise translated(error, tuple(self.rules())) from None

    @classmethod
    @cache
    def rules(cls) -> Rules:
        """Every settable path in the order of the fields, with the rule of its number."""
        return {**dict(_quantities(cls, "")), **dict.fromkeys(cls._texts)}

    def value(self, path: str) -> Any:
        """The plain number, text or list at `path` [base unit]; ConfigError names the nearest path if there is none."""
        if not is_path(path, self.rules()):
            raise unknown_key(path, self.rules())
        found: Any = self
        for part in path.split("."):
            found = getattr(found, part)
        return found

    def text(self, path: str) -> str:
        """The value at `path` as a user would write it."""
        value, rule = self.value(path), self.rules()[path]
        if rule is not None:
            return rule.format(value)
        return "; ".join(" ".join(map(str, row)) for row in value) if isinstance(value, tuple) else str(value)

    @property
    def changes(self) -> tuple[str, ...]:
        """What the user set, as texts such as "memory.bandwidth = 2 TB/s"."""
        return tuple(f"{path} = {p.text}" for path, p in self.provenance.items() if p.kind == "set by user")

    def replace(self, values: Mapping[str, Any]) -> Self:
        """A copy with the values at the given paths replaced, such as {"memory.bandwidth": "2 TB/s"}.

        Raises ConfigError for an unknown path (naming the nearest), a missing unit, or a broken rule.
        """
        check_type(
            "what to replace", values, Mapping, 'give values by their paths, like {"memory.bandwidth": "2 TB/s"}'
        )
        fields = dict(self)
        for path, raw in values.items():
            if not is_path(path, self.rules()):
                raise unknown_key(path, self.rules())
            table = path.partition(".")[0]
            if isinstance(fields[table], BaseModel):
                fields[table] = fields[table].model_dump()
            _place(fields, path, parse_value(self.rules()[path], path, raw))
        sources = {path: set_by_user(_text(raw)) for path, raw in values.items()}
        return type(self)(**{**fields, "provenance": {**self.provenance, **sources}})

    @classmethod
    def from_leaves(cls, about: Mapping[str, Any], leaves: Mapping[str, Leaf], file: str) -> Self:
        """The description with texts and other fields `about` it and the leaves of a file; ConfigError if one lacks."""
        missing = [path for path in cls.rules() if path not in leaves and not path.startswith(cls._optional)]
        if missing:
            rule = cls.rules()[missing[0]]
            example = f'{{ value = "{rule.example if rule else "..."}", kind = "published", source = "data sheet" }}'
            raise ConfigError(f"this value is missing; add it, like {example}", file, missing[0])
        sources = {path: leaf.provenance for path, leaf in leaves.items()}
        fields: dict[str, Any] = {**about, "provenance": sources}
        for path, leaf in leaves.items():
            _place(fields, path, leaf.value)
        try:
            return cls(**fields)
        except ConfigError as error:
            raise ConfigError(error.message, file, error.key) from None


def _quantities(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Quantity]]:
    """The dotted paths of the numeric fields of a model and its parts, each with its rule."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))  # the second in `Count | None`
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Part) and not issubclass(kind, Sourced | Provenance):
                yield from _quantities(kind, f"{prefix}{name}.")
        inside = (rule for kind in kinds for rule in getattr(kind, "__metadata__", ()))
        for rule in (*field.metadata, *inside):
            if isinstance(rule, Quantity):
                yield f"{prefix}{name}", rule


def _place(fields: dict[str, Any], path: str, value: Any) -> None:
    *tables, name = path.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
    fields[name] = value
