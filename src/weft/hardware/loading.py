"""GPU descriptions from the catalogue or from a user's file, which may extend another one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import ConfigError, UnknownNameError
from weft.hardware.gpu import Gpu, quantities
from weft.hardware.sourced import Leaf, read_leaves, read_toml

_ABOUT = ("name", "title", "description", "vendor", "architecture")


class _Description(NamedTuple):
    about: Mapping[str, Any]
    leaves: Mapping[str, Leaf]


def names() -> list[str]:
    """The GPUs of the catalogue."""
    return names_in(resources.files("weft.hardware") / "catalog")


def load(name_or_path: str | Path) -> Gpu:
    """The GPU of the catalogue with that name, or the one that a TOML file describes.

    A file that says extends = "t3-paper" states only what differs. Raises UnknownNameError, InputError or
    ConfigError.
    """
    file = find("GPU", name_or_path, resources.files("weft.hardware") / "catalog")
    found = _describe(file, ())
    return Gpu.from_leaves(found.about, found.leaves, file_label(file))


def names_in(folder: Traversable) -> list[str]:
    """Names of the TOML files of a packaged folder, sorted."""
    files = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def find(
    kind: str, name_or_path: str | Path, folder: Traversable, beside: Path = Path()
) -> Path | Traversable:
    """The packaged file with that name, or the path (from `beside`); UnknownNameError if it is neither."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        return beside / text
    if text not in names_in(folder):
        raise UnknownNameError(kind, text, names_in(folder))
    return folder / f"{text}.toml"


def file_label(file: Path | Traversable) -> str:
    """How messages name a file: the path that the user gave, or the name of a packaged file."""
    return str(file) if isinstance(file, Path) and not file.is_absolute() else file.name


def _describe(file: Path | Traversable, seen: tuple[str, ...]) -> _Description:
    label = str(file)
    if label in seen:
        raise ConfigError("this file extends itself; remove one 'extends'", label, "extends")
    document = read_toml(file)
    base = _base(document.pop("extends", None), file, (*seen, label))
    aliases = _aliases(document.pop("aliases", []), file)
    about = {**base.about, **_about(document, file, complete=not base.leaves), "aliases": aliases}
    leaves = read_leaves(document, quantities(), file_label(file))
    return _Description(about, {**base.leaves, **leaves})


def _base(extends: object, file: Path | Traversable, seen: tuple[str, ...]) -> _Description:
    if extends is None:
        return _Description({}, {})
    if not isinstance(extends, str):
        raise ConfigError(
            f'{extends!r} is no name or path; write it like "t3-paper"', file_label(file), "extends"
        )
    beside = file.parent if isinstance(file, Path) else Path()
    base = find("GPU", extends, resources.files("weft.hardware") / "catalog", beside)
    return _describe(base, seen)


def _aliases(found: object, file: Path | Traversable) -> tuple[str, ...]:
    """Other names of a GPU; an extending file does not inherit them."""
    if not isinstance(found, list) or not all(isinstance(alias, str) for alias in found):
        raise ConfigError(
            f'{found!r} must be a list of names, like ["A100-SXM4-80GB"]', file_label(file), "aliases"
        )
    return tuple(found)


def _about(document: dict[str, Any], file: Path | Traversable, complete: bool) -> dict[str, str]:
    """Takes name, title and description out of the document; without them a file is named after itself."""
    about = {"name": file.name.removesuffix(".toml")}
    about |= {key: document.pop(key) for key in _ABOUT if key in document}
    for key, value in about.items():
        if not isinstance(value, str):
            raise ConfigError(f"{value!r} must be text in quotes", file_label(file), key)
    missing = [key for key in _ABOUT if key not in about]
    if complete and missing:
        raise ConfigError(
            f'this text is missing; add a line like {missing[0]} = "..."', file_label(file), missing[0]
        )
    return about
