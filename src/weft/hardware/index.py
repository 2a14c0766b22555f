"""The index of the catalogue: every name, title and alias, so that naming one machine reads that machine's files alone.

`python -c "from weft.hardware import index; index.write()"` writes it anew after a file of the catalogue was added or
changed; a test compares both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.catalog import read_toml
from weft.core.files import write_json

_FILE = "index.json"


class Entry(NamedTuple):
    """What names a GPU or a node; of a node also its GPU, how many it holds, and whether the GPU's name means it."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    gpu: str = ""
    gpus_per_node: int = 0
    usual: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, its aliases and its title."""
        return (self.name, *self.aliases, self.title)


def _catalog() -> Traversable:
    return resources.files("weft.hardware") / "catalog"


@cache
def entries(folder: str) -> Mapping[str, Entry]:
    """The entries of the folder "gpus" or "nodes" by name; a file that the index lacks is read."""
    held, found = _held()[folder], {}
    for file in sorted((_catalog() / folder).iterdir(), key=lambda file: file.name):
        name, dot, suffix = file.name.rpartition(".")
        if dot and suffix == "toml":
            found[name] = Entry(**_typed(held[name])) if name in held else _head(file)
    return found


@cache
def _held() -> dict[str, dict[str, Any]]:
    """The index as written."""
    return json.loads((_catalog() / _FILE).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _typed(held: Mapping[str, Any]) -> dict[str, Any]:
    return {**held, "aliases": tuple(held["aliases"])}


def _head(file: Traversable) -> Entry:
    """The entry of a file."""
    document = _document(file)
    count = document.get("gpus_per_node", 0)
    return Entry(
        document.get("name", file.name.removesuffix(".toml")),
        document["title"],
        tuple(document.get("aliases", ())),
        document.get("gpu", ""),
        int(count["value"] if isinstance(count, Mapping) else count),
        bool(document.get("usual", False)),
    )


def _document(file: Traversable) -> dict[str, Any]:
    """What a file says, with what it inherits of the file that it extends."""
    document = read_toml(file)
    if not isinstance(document.get("extends"), str):
        return document
    inherited = _document(_catalog() / Path(str(file)).parent.name / f"{document['extends']}.toml")
    return {name: value for name, value in inherited.items() if name not in ("name", "aliases", "usual")} | document


def made() -> dict[str, dict[str, Any]]:
    """The index as the files of the catalogue give it."""
    found: dict[str, dict[str, Any]] = {}
    for folder in ("gpus", "nodes"):
        files = [file for file in (_catalog() / folder).iterdir() if file.name.endswith(".toml")]
        listed = {file.name.removesuffix(".toml"): _head(file)._asdict() for file in files}
        found[folder] = {name: {**entry, "aliases": list(entry["aliases"])} for name, entry in sorted(listed.items())}
    return found


def write() -> None:
    """Write the index anew."""
    write_json(Path(str(_catalog() / _FILE)), made())
