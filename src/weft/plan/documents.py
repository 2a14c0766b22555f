"""Configuration files as settings by their dotted names: YAML, JSON and TOML, and the files that they name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import ConfigError
from weft.core.files import read_text

COMMAND = "the launch"
"""What messages call a command that stands in no file."""
BY_OPTIONS = (
    "state the run by options, like: weft step llama-3-8b --system 8xh100 --framework deepspeed-zero3 --zero 3 "
    "--batch 64 --micro-batch 1 --sequence 4096 --recompute full (and --tp --pp --cp --ep)"
)
"""What refusals of launches that are not read advise."""
LARGEST = 1 << 18
"""Longest launch file [bytes]."""
_DEEPEST = 20
_SETTINGS = 20_000
"""Most settings of a file: anchors of YAML can repeat tables without end."""
_ANCESTORS = 6
"""Folders above a file in which files that it names are looked for: its repository's root is one of them."""
_REFERENCE = re.compile(r"\$\{(?:oc\.env:)?([\w.]+)(?:[:,]([^{}]*))?\}")
_PRODUCT = re.compile(r"\$\{multiply:\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\}")
_LONGEST = 5_000
"""Longest word of a TOML [characters]: the parser takes the square of a dotted name's parts."""


def flatten(table: Mapping[str, Any], file: str, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted names; ConfigError for tables nested deeper than any launcher reads."""
    if depth > _DEEPEST:
        raise ConfigError(f"tables are nested more than {_DEEPEST} deep; nest fewer", file)
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, file, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", value


def flat_settings(table: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return settings by their dotted names; ConfigError for more than a launch has."""
    flat: dict[str, Any] = {}
    for name, value in flatten(table, file):
        flat[name] = value
        if len(flat) > _SETTINGS:
            raise ConfigError(f"it has more than {_SETTINGS:,} settings; repeat less", file)
    return flat


def to_words(value: object) -> list[str]:
    """Return a value of TOML, JSON or YAML as the words of an argument."""
    if isinstance(value, list):
        return [each for one in value for each in to_words(one)]
    return [str(value).lower() if isinstance(value, bool) or value is None else str(value)]


def given_words(flat: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return settings as the words of arguments."""
    return {name: to_words(value) for name, value in flat.items()}


def resolve_references(flat: Mapping[str, Any], defined: Mapping[str, str]) -> dict[str, Any]:
    """Return settings whose values name others (`${model.size}`) or variables (`${TP:4}`, `${oc.env:TP,4}`) with these.

    Variables have their `defined` values, else those that the file states for want of one; others stay as they stand.
    """

    def stated(found: re.Match[str]) -> str:
        name, usual = found[1], found[2]
        if name in defined:
            return defined[name]
        value = flat.get(name)
        if name in flat and not isinstance(value, str | list | dict):
            return " ".join(to_words(value))
        return found[0] if usual is None else usual

    def resolved(name: str, value: object) -> object:
        if isinstance(value, list):
            return [resolved(name, each) for each in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        section = name.rpartition(".")[0]
        whole = re.sub(r"\$\{\.", f"${{{section}." if section else "${", value)
        return _PRODUCT.sub(lambda found: str(int(found[1]) * int(found[2])), _REFERENCE.sub(stated, whole))

    return {name: resolved(name, value) for name, value in flat.items()}


def parse_yaml(text: str, file: str) -> Mapping[str, Any]:
    """Return the table of a YAML; ConfigError for a text that is none."""
    for document in parse_yamls(text, file):
        if isinstance(document, dict):
            return {str(name): value for name, value in document.items()}
    raise ConfigError("this is no table of settings", file)


def parse_yamls(text: str, file: str) -> list[Any]:
    """Return the documents of a YAML; ConfigError for a text that is none."""
    import yaml  # imported for such a file only

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(yaml.load_all(text, loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else None
        raise ConfigError("this is no YAML; mend it there", file, where) from None


def parse_toml(text: str) -> Mapping[str, Any]:
    """Return the tables of a TOML; none for a text that is none."""
    try:
        return tomllib.loads(text) if max(map(len, re.findall(r"[^\s=]+", text)), default=0) < _LONGEST else {}
    except (ValueError, RecursionError):
        return {}


def parse_json(text: str, file: str) -> Mapping[str, Any] | None:
    """Return the table of a JSON, None for a text that is none; ConfigError for a key that stands there twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError("it stands there twice, which DeepSpeed refuses; state it once", file, twice)
        return found

    try:
        document = json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ConfigError("the JSON is nested too deep; nest less", file) from None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def source_text(source: str | Path) -> tuple[str, str]:
    """Return the text of a launch, and its file; a source of several words that is no file is a command itself."""
    named = str(source)
    if not isinstance(source, Path) and len(named.split()) > 1 and not _is_file(named):
        return named, COMMAND
    return read_text(source, LARGEST), named


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def find_beside(name: str, file: str) -> Path | None:
    """Return the file that a launch file names, looked for from its folder upwards and from here; None if none is."""
    named, folder = Path(name), Path(file).absolute().parent
    places = [folder, *folder.parents[:_ANCESTORS], Path.cwd()]
    for path in (*(place / named for place in places), folder / named.name):
        if _is_file(str(path)):
            return path
    return None


def read_beside(name: str, file: str) -> str | None:
    """Return the text of the file that a launch file names, None if there is none."""
    found = find_beside(name, file)
    return None if found is None else read_text(found, LARGEST)
