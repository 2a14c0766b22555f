"""Descriptions of GPUs and machines, from the catalogue or from a user's file, which may extend another one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import ConfigError, InputError, SystemNamedError, UnknownNameError
from weft.hardware.fields import Quantity
from weft.hardware.gpu import Gpu, quantities
from weft.hardware.machine import Machine, machine_paths
from weft.hardware.sourced import Leaf, read_leaves, read_toml


class _Description(NamedTuple):
    about: Mapping[str, Any]
    leaves: Mapping[str, Leaf]


class _Kind(NamedTuple):
    """What is described: its noun, the folder of its files, the texts each must have, and its paths."""

    noun: str
    folder: str
    texts: tuple[str, ...]
    paths: Mapping[str, Quantity | None]
    example: str

    @property
    def files(self) -> Traversable:
        return resources.files("weft.hardware") / self.folder


def _gpus() -> _Kind:
    texts = ("name", "title", "description", "vendor", "architecture")
    return _Kind("GPU", "catalog", texts, quantities(), "t3-paper")


def _machines() -> _Kind:
    return _Kind("system", "systems", ("name", "title", "description", "gpu"), machine_paths(), "dgx-h100")


def names() -> list[str]:
    """The GPUs of the catalogue."""
    return names_in(_gpus().files)


def system_names() -> list[str]:
    """The machines of the catalogue."""
    return names_in(_machines().files)


def load(name_or_path: str | Path) -> Gpu:
    """The GPU of the catalogue with that name or alias, or the one that a TOML file describes.

    A file that says extends = "t3-paper" states only what differs. Raises UnknownNameError (SystemNamedError for a
    system's name), InputError or ConfigError.
    """
    known = _proper(name_or_path)
    if known in names():
        return _load_known(known)
    try:
        file = find("GPU", known, _gpus().files)
    except UnknownNameError as error:
        raise _system_named(str(known)) or error from None
    return _load_file(file)


@cache
def _load_known(name: str | Path) -> Gpu:
    return _load_file(find("GPU", name, _gpus().files))


def _load_file(file: Path | Traversable) -> Gpu:
    found = _describe(_gpus(), file, ())
    return Gpu.from_leaves(found.about, found.leaves, file_label(file))


def _proper(name: str | Path) -> str | Path:
    """The name in the catalogue of a GPU that goes by another one; anything else as it is."""
    if isinstance(name, Path) or name in names() or name.endswith(".toml") or "/" in name:
        return name
    from weft.hardware.finding import gpu_named

    return gpu_named(name) or name


def _system_named(text: str) -> SystemNamedError | None:
    """The error that tells that a text is a system's name, such as "8xH100", if it is one."""
    from weft.hardware.finding import find_system

    try:
        return SystemNamedError(text, find_system(text).gpu.name)
    except InputError:
        return None


def describes_system(file: str | Path) -> bool:
    """Whether a TOML file describes a system rather than a GPU: it names its GPU, or extends a system."""
    document = read_toml(Path(file))
    base = document.get("extends")
    if "gpu" in document or base in system_names():
        return True
    return isinstance(base, str) and base.endswith(".toml") and describes_system(Path(file).parent / base)


def load_system(name_or_path: str | Path) -> Machine:
    """The machine of the catalogue with that name, or the one that a TOML file describes.

    Its `gpu` is a name of the catalogue or a path beside the file. Raises UnknownNameError, InputError or
    ConfigError.
    """
    file = find("system", name_or_path, _machines().files)
    found = _describe(_machines(), file, ())
    about = dict(found.about)
    gpu = about.pop("gpu")
    beside = file.parent if isinstance(file, Path) and gpu.endswith(".toml") else None
    return Machine.from_leaves(about, load(beside / gpu if beside else gpu), found.leaves, file_label(file))


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


def _describe(kind: _Kind, file: Path | Traversable, seen: tuple[str, ...]) -> _Description:
    label = str(file)
    if label in seen:
        raise ConfigError("this file extends itself; remove one 'extends'", label, "extends")
    document = read_toml(file)
    base = _base(kind, document.pop("extends", None), file, (*seen, label))
    own = _own(document, file)
    inherited = {key: value for key, value in base.about.items() if key in kind.texts}
    about = {**inherited, **_about(kind, document, file, complete=not base.leaves), **own}
    leaves = read_leaves(document, kind.paths, file_label(file))
    return _Description(about, {**base.leaves, **leaves})


def _base(kind: _Kind, extends: object, file: Path | Traversable, seen: tuple[str, ...]) -> _Description:
    if extends is None:
        return _Description({}, {})
    if not isinstance(extends, str):
        raise ConfigError(
            f'{extends!r} is no name or path; write it like "{kind.example}"', file_label(file), "extends"
        )
    beside = file.parent if isinstance(file, Path) else Path()
    return _describe(kind, find(kind.noun, extends, kind.files, beside), seen)


def _own(document: dict[str, Any], file: Path | Traversable) -> dict[str, Any]:
    """What an extending file does not inherit: other names, and being what a GPU's bare name means."""
    aliases, usual = document.pop("aliases", []), document.pop("usual", False)
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ConfigError(
            f'{aliases!r} must be a list of names, like ["A100-SXM4-80GB"]', file_label(file), "aliases"
        )
    if not isinstance(usual, bool):
        raise ConfigError(f"{usual!r} must be true or false", file_label(file), "usual")
    return {"aliases": tuple(aliases), **({"usual": True} if usual else {})}


def _about(kind: _Kind, document: dict[str, Any], file: Path | Traversable, complete: bool) -> dict[str, str]:
    """Takes the texts out of the document; without a name, a file is named after itself."""
    about = {"name": file.name.removesuffix(".toml")}
    about |= {key: document.pop(key) for key in kind.texts if key in document}
    for key, value in about.items():
        if not isinstance(value, str):
            raise ConfigError(f"{value!r} must be text in quotes", file_label(file), key)
    missing = [key for key in kind.texts if key not in about]
    if complete and missing:
        raise ConfigError(
            f'this text is missing; add a line like {missing[0]} = "..."', file_label(file), missing[0]
        )
    return about
