"""Descriptions in TOML files: packaged ones by name, or a user's by path, which may extend another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from weft.catalog.sourced import Leaf, Rules, read_leaves, read_toml
from weft.errors import ConfigError, UnknownNameError


class Description(NamedTuple):
    """What a file says, with what it extends: texts and lists `about` it, and values; `file` names it in messages."""

    about: Mapping[str, Any]
    leaves: Mapping[str, Leaf]
    file: str
    folder: Path | None


@dataclass(frozen=True)
class Shelf:
    """A packaged folder of descriptions of one kind of thing.

    Each states `texts`, which an extending file inherits; `lists` are names that it does not, nor the truth values
    `flags`.
    """

    noun: str
    package: str
    folder: str
    texts: tuple[str, ...]
    rules: Rules
    lists: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def files(self) -> Traversable:
        """The folder."""
        return resources.files(self.package) / self.folder

    def names(self) -> list[str]:
        """The names of its files, sorted."""
        return names_in(self.files)

    def read(self, name_or_path: str | Path) -> Description:
        """The description with that name, or in that TOML file.

        Raises UnknownNameError, InputError or ConfigError.
        """
        return self._read(find(self.noun, name_or_path, self.files), ())

    def _read(self, file: Path | Traversable, seen: tuple[str, ...]) -> Description:
        label = file_label(file)
        if str(file) in seen:
            raise ConfigError("this file extends itself; remove one 'extends'", label, "extends")
        document = read_toml(file)
        base = self._base(document.pop("extends", None), file, (*seen, str(file)))
        about = {key: value for key, value in base.about.items() if key in self.texts}
        about |= {"name": file.name.removesuffix(".toml"), **self._own(document, label)}
        leaves = {**base.leaves, **read_leaves(document, self.rules, label)}
        missing = [key for key in self.texts if key not in about]
        if missing:
            raise ConfigError(f'this text is missing; add a line like {missing[0]} = "..."', label, missing[0])
        return Description(about, leaves, label, file.parent if isinstance(file, Path) else None)

    def _base(self, extends: object, file: Path | Traversable, seen: tuple[str, ...]) -> Description:
        if extends is None:
            return Description({}, {}, "", None)
        if not isinstance(extends, str):
            wanted = f'{extends!r} is no name or path; write it like "{self.names()[0]}"'
            raise ConfigError(wanted, file_label(file), "extends")
        beside = file.parent if isinstance(file, Path) else Path()
        return self._read(find(self.noun, extends, self.files, beside), seen)

    def _own(self, document: dict[str, Any], label: str) -> dict[str, Any]:
        """Takes texts, lists and truth values out of the document."""
        own = {key: document.pop(key) for key in (*self.texts, *self.flags) if key in document}
        for key, value in own.items():
            if key in self.flags and not isinstance(value, bool):
                raise ConfigError(f"{value!r} must be true or false", label, key)
            if key in self.texts and not isinstance(value, str):
                raise ConfigError(f"{value!r} must be text in quotes", label, key)
        for key, example in self.lists.items():
            names = document.pop(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ConfigError(f'{names!r} must be a list of names, like ["{example}"]', label, key)
            own[key] = tuple(names)
        return own


def names_in(folder: Traversable) -> list[str]:
    """Names of the TOML files of a packaged folder, sorted."""
    files = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def is_file(name_or_path: str | Path) -> bool:
    """Whether a user means a file rather than a name."""
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text


def find(noun: str, name_or_path: str | Path, folder: Traversable, beside: Path = Path()) -> Path | Traversable:
    """The packaged file with that name, or the path (from `beside`); UnknownNameError if it is neither."""
    text = str(name_or_path)
    if is_file(name_or_path):
        return beside / text
    if text not in names_in(folder):
        raise UnknownNameError(noun, text, names_in(folder))
    return folder / f"{text}.toml"


def file_label(file: Path | Traversable) -> str:
    """How messages name a file: the path that the user gave, or the name of a packaged file."""
    return str(file) if isinstance(file, Path) and not file.is_absolute() else file.name
