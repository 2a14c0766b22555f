"""Values that say where they come from: TOML leaves of the form { value, kind, source, low, high }."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from weft.errors import ConfigError, InputError, UnitError, join_or, nearest
from weft.hardware.fields import Quantity

Kind = Literal["peak", "published", "achieved", "measured", "derived", "assumed", "calibrated", "set by user"]
"""How a value is known: "peak" is a data sheet's, "achieved" what others measured under load, "calibrated"
fitted to measurements; "assumed" values carry a plausible range."""

_LEAF_EXAMPLE = '{ value = "450 GB/s", kind = "published", source = "data sheet" }'
_LEAF_KEYS = ("value", "kind", "source", "low", "high")
_FILE_KINDS = tuple(kind for kind in get_args(Kind) if kind != "set by user")


class Provenance(BaseModel):
    """Where a value comes from: its text as written, its kind, its source, its plausible range as texts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    kind: Kind
    source: str
    low: str | None = None
    high: str | None = None


def set_by_user(text: str, where: str = "") -> Provenance:
    """The provenance of a value that the user changed."""
    return Provenance(text=text, kind="set by user", source=f"set by the user{where}")


class Leaf(NamedTuple):
    """One value of a configuration file as written, with its provenance."""

    value: Any
    provenance: Provenance


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """The content of a TOML file; an InputError or ConfigError says why it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"the file '{file}' does not exist; check the path or give a known name") from None
    except OSError as error:
        raise InputError(
            f"the file '{file}' cannot be read ({error.strerror}); check it and its rights"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"this is no valid TOML file: {error}", str(file)) from None


def read_leaves(
    table: Mapping[str, Any], quantities: Mapping[str, Quantity | None], file: str
) -> dict[str, Leaf]:
    """Every leaf of a nested table by its dotted path; `quantities` names the known paths and their rules.

    Raises ConfigError for an unknown key (naming the nearest known one) and for a leaf that breaks a rule.
    """
    return {
        path: _leaf(raw, quantities[path], path, file) for path, raw in _walk(table, "", quantities, file)
    }


def _walk(
    table: Mapping[str, Any], prefix: str, known: Collection[str], file: str
) -> Iterator[tuple[str, Any]]:
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


def unknown_key(path: str, known: Collection[str], file: str | None = None) -> ConfigError:
    """The error for a key that no rule knows, naming the nearest known keys."""
    inside = [name for name in known if name.startswith(f"{path}.")]
    if inside:
        return ConfigError(f"this is a table; name one of its values, like '{inside[0]}'", file, path)
    same_name = [name for name in known if name.endswith(f".{path}")]
    close = same_name or nearest(path, known)[:1]
    hint = f"did you mean {join_or(close)}?" if close else f"known keys: {', '.join(known)}"
    return ConfigError(f"unknown key; {hint}", file, path)


def _leaf(raw: Any, quantity: Quantity | None, path: str, file: str) -> Leaf:
    if not isinstance(raw, Mapping):
        leaf = Leaf(raw, set_by_user(_text(raw), f" in {file}"))
    else:
        leaf = _full_leaf(raw, path, file)
    if quantity is not None:
        check_range(leaf, quantity, path, file)
    return leaf


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


def check_range(leaf: Leaf, quantity: Quantity, path: str, file: str) -> None:
    """Raises ConfigError unless low <= value <= high, with both given if the value is assumed."""
    low, high = leaf.provenance.low, leaf.provenance.high
    if (low is None or high is None) and leaf.provenance.kind == "assumed":
        raise ConfigError("an assumed value needs its plausible range: add low = and high =", file, path)
    try:
        value = quantity.parse(leaf.value)
        low_value = value if low is None else quantity.parse(low)
        high_value = value if high is None else quantity.parse(high)
    except UnitError as error:
        raise ConfigError(str(error), file, path) from None
    if not low_value <= value <= high_value:
        raise ConfigError(f"'{leaf.provenance.text}' is outside its own range, {low} to {high}", file, path)


def _text(raw: Any) -> str:
    return ", ".join(map(str, raw)) if isinstance(raw, list) else str(raw)


def translated(error: ValidationError, known: Collection[str], file: str | None = None) -> ConfigError:
    """The first problem that pydantic found, as one sentence."""
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return unknown_key(path, known, file)
    if problem["type"] == "missing":
        return ConfigError("this value is missing; add it", file, path)
    if problem["type"] in ("rule", "quantity"):
        return ConfigError(problem["msg"], file, path)
    rule = problem["msg"].removeprefix("Input should be ").replace("greater than or equal to", "at least")
    return ConfigError(f"{problem['input']!r} cannot be used; it should be {rule}", file, path)
