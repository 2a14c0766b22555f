"""Overlap methods by name: of Weft, of installed packages, registered in Python, or named by their file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, ValuesView
from contextlib import contextmanager
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.core.errors import InputError, UnknownNameError, check_name, join_or, show_value
from weft.overlaps.base import AXES, KNOWN, PLACES, Clock, Methods, OverlapMethod, Place

_HOMES = {
    "sequential:Sequential": "sequential",
    "flux:Flux": "flux",
    "userbuffers:Userbuffers": "userbuffers",
    "async_tp:AsyncTP": "async-tp",
    "in_network:InNetwork": "in-network",
    "mori:MORI_METHODS": "mori mori-split",
    "tma:TmaScatter": "tma",
    "t3:T3_METHODS": "t3 t3-mca t3-critical t3-direct t3-direct-dma t3-nvls t3-two-level t3-split-k",
    "t3_all_gather:T3AllGather": "t3-all-gather",
    "remote_loads:RemoteLoading": "remote-loads",
    "t3_all_to_all:T3AllToAll": "t3-all-to-all",
    "deepep:DeepEP": "deepep",
    "ideals:IDEALS": "ideal-overlap ideal-rs-nmc",
    "rs_nmc:NearMemoryScatter": "rs-nmc",
    "corun:CORUN_STRATEGIES": "streams priority partition priority-partition dma dma-partition",
    "in_order:InOrder": "in-order",
}
"""The names of the methods in each module of Weft: of a class's default object, or of all objects in a tuple."""
_BUILT_IN = Methods(_HOMES)
BUILT_IN: ValuesView[OverlapMethod] = _BUILT_IN.values()
"""The methods of Weft; iteration imports one module after another.

The first one that accepts a graph is the baseline with which others are compared."""
_ENTRY_POINTS = "weft.overlaps"
"""The group of entry points by which installed packages add methods."""


class Registry(Mapping[str, OverlapMethod]):
    """Overlap methods by name. Entry points are read when a name is unknown, or when all methods are listed.

    A name like "my_file.py:MyMethod" or "my_package.module:MyMethod" is imported, and registered under its own name.
    """

    def __init__(self) -> None:
        self._methods = KNOWN
        self._methods.defer(_HOMES)
        self._imported: dict[str, OverlapMethod] = {}
        self._installed_read = False

    def register(self, method: OverlapMethod) -> OverlapMethod:
        """Add a method; InputError if another one has its name."""
        if not isinstance(method, OverlapMethod):
            raise not_an_overlap(method)
        known = self._methods.get(method.name)
        if known is not None and known != method and method.name in _BUILT_IN:
            raise InputError(f"an overlap of Weft is called '{method.name}'; give yours another name")
        self._methods[method.name] = method
        return method

    @contextmanager
    def using(self, method: OverlapMethod) -> Iterator[None]:
        """Register a method within the context; it replaces a registered method of the same name there."""
        before = self._methods.get(method.name)
        self._methods[method.name] = method
        try:
            yield
        finally:
            if before is None:
                del self._methods[method.name]
            else:
                self._methods[method.name] = before

    def __getitem__(self, name: str) -> OverlapMethod:
        if name in self._methods:
            return self._methods[name]
        if ":" in name or name.endswith(".py"):
            return self._import(name)
        self._read_installed()
        return self._methods[name]

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self[name].name)
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        self._read_installed()
        return iter(dict(self._methods))

    def __len__(self) -> int:
        self._read_installed()
        return len(self._methods)

    def _read_installed(self) -> None:
        """Register the methods of installed packages, once."""
        if self._installed_read:
            return
        self._installed_read = True
        from importlib.metadata import entry_points

        for point in entry_points(group=_ENTRY_POINTS):
            self.register(_instance(point.load(), point.value))

    def _import(self, name: str) -> OverlapMethod:
        """Import "file.py:Name" or "module:Name"; InputError if there is none."""
        if name not in self._imported:
            self._imported[name] = self.register(_import_method(name))
        return self._imported[name]


def _import_method(name: str) -> OverlapMethod:
    home, _, attribute = (name if ":" in name else f"{name}:").rpartition(":")
    try:
        if home.endswith(".py"):
            path = Path(home).resolve()
            spec = util.spec_from_file_location(f"weft_overlap_{path.stem}", path)
            assert spec is not None
            assert spec.loader is not None
            module = util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = import_module(home)
    except (ImportError, OSError) as error:
        raise InputError(
            f"the overlap '{name}' cannot be imported: {error}; write file.py:Name or module:Name"
        ) from error
    except (SyntaxError, TypeError) as error:
        rule = "correct it (a method's class is decorated with @dataclass(frozen=True))"
        raise InputError(f"{home} of the overlap '{name}' does not run: {error}; {rule}") from error
    if not attribute or not hasattr(module, attribute):
        names = [f"'{home}:{one}'" for one in _methods_of(module)]
        what = f"names nothing: {home} has no '{attribute}'" if attribute else "names a file, not a class"
        raise InputError(
            f"the overlap '{name}' {what}; "
            + (f"name its class: {' or '.join(names)}" if names else f"{home} has no class of OverlapMethod, either")
        )
    return _instance(getattr(module, attribute), name)


def _methods_of(module: ModuleType) -> list[str]:
    """Return the names of the methods that a module defines: its own classes, and objects of any."""

    def is_method(one: object) -> bool:
        own = isinstance(one, type) and issubclass(one, OverlapMethod) and one.__module__ == module.__name__
        return own or isinstance(one, OverlapMethod)

    return [name for name, one in vars(module).items() if is_method(one)]


def _instance(found: Any, where: str) -> OverlapMethod:
    """Return the method that an import found: an object, or a class whose fields all have defaults."""
    made = found
    if isinstance(found, type):
        try:
            made = found()
        except TypeError as error:
            raise InputError(f"'{where}' cannot be made: {error}; give each of its fields a default") from error
    if not isinstance(made, OverlapMethod):
        raise InputError(
            f"'{where}' is a {type(made).__name__}, not an overlap; name a subclass of weft.overlaps.OverlapMethod, "
            "or an object of one"
        )
    return made


OVERLAPS = Registry()
"""Every overlap method by name."""


def register_overlap(method: OverlapMethod) -> OverlapMethod:
    """Let every command and call of this process take a method by its name; return the method.

    Raises InputError for a name that a method of Weft has.
    """
    return OVERLAPS.register(method)


def simulated_methods() -> dict[str, OverlapMethod]:
    """Return the methods that the engine runs, by name."""
    return {name: one for name, one in OVERLAPS.items() if one.simulated}


def not_an_overlap(found: object) -> InputError:
    """Return the error for what is no object of a subclass of OverlapMethod; of a class it says to make one."""
    if isinstance(found, type) and issubclass(found, OverlapMethod):
        name = found.__name__
        return InputError(f"{name} is a class of overlap methods; give an object of it: {name}(), not {name}")
    return InputError(
        f"{show_value(found)} is no overlap method; give an object of a subclass of weft.overlaps.OverlapMethod"
    )


def find_simulated(overlap: str | OverlapMethod) -> OverlapMethod:
    """Return the method that the engine runs; UnknownNameError for an unknown name, InputError for a closed form."""
    method = overlap if isinstance(overlap, OverlapMethod) else None
    if method is None:
        if isinstance(overlap, type) and issubclass(overlap, OverlapMethod):
            raise not_an_overlap(overlap)
        if not isinstance(overlap, str) or overlap not in OVERLAPS:
            raise UnknownNameError("overlap", overlap, simulated_methods(), True)
        method = OVERLAPS[overlap]
    if not method.simulated:
        raise InputError(f"{method.engine_refusal}, or choose one of {', '.join(simulated_methods())}")
    return method


def applicable(place: Place, clock: Clock | None = None) -> list[str]:
    """Return the names of the methods that apply in a place and, if `clock` is given, that the clock times there."""
    return [name for name, one in OVERLAPS.items() if one.applies(place, clock)]


def find_overlap(name: str, place: Place, clock: Clock | None = None) -> OverlapMethod:
    """Return the method of a name that applies in a place and that the clock times there.

    Raises UnknownNameError for an unknown name, InputError with the methods that apply for any other.
    """
    if name not in OVERLAPS:
        raise UnknownNameError("overlap", name, applicable(place, clock), True)
    one = OVERLAPS[name]
    if one.applies(place, clock):
        return one
    where = f"{_WORDS[place]} ({place})" if place in AXES else _WORDS[place]
    patterns = join_or([pattern for pattern in PLACES[place] if one.applies_to(pattern)] or PLACES[place])
    own = "" if one in BUILT_IN else f" (write its estimate, and list {patterns} in its closed_forms)"
    why = (
        f"has no closed form for {patterns}; the engine times it{own}"
        if one.applies(place) and one.simulated
        else f"is not run by the engine; a closed form times it on {patterns}"
        if one.applies(place)
        else f"does not apply to {where}; it is for {', '.join(one.places)}"
    )
    raise InputError(f"the overlap '{name}' {why}; choose one of {', '.join(applicable(place, clock))}")


_WORDS: Mapping[Place, str] = {
    "sub-layer": "a GEMM with its own collective",
    "experts": "a layer of experts with its exchanges",
    "pair": "a GEMM beside an independent collective",
    "program": "a program of one GPU",
    "tp": "the collectives of tensor parallelism",
    "cp": "the collectives of context parallelism",
    "ep": "the collectives of expert parallelism",
    "dp": "the collectives of data parallelism",
}


def overlap_names(place: Place | None = None) -> list[str]:
    """Return the names of all methods, or of those that apply in a place; UnknownNameError for an unknown place."""
    if place is None:
        return list(OVERLAPS)
    check_name("place of an overlap", place, PLACES)
    return applicable(place)
