"""Profiles of collective libraries: fitted latencies and efficiencies of NCCL and RCCL on a GPU generation.

Rates are shares of the rate that the library itself assumes, so that a profile carries over to another GPU's data
sheet. Latencies are those of the library's code on compute units at `_REFERENCE_CLOCK`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Self

from weft.core.catalog import Provenance, Quantity, Shelf, read_toml, set_by_user, unknown_key
from weft.core.errors import ConfigError, UnitError, UnknownNameError
from weft.core.units import Dimension

_TIME = Quantity(Dimension.SECONDS, zero_allowed=True)
_RATIO = Quantity(Dimension.COUNT, zero_allowed=True)


class ProfileValue(NamedTuple):
    """A value that a profile may hold: its rule, its plausible range [base unit], and its description."""

    rule: Quantity
    low: float
    high: float
    about: str


_REFERENCE_CLOCK = 1.98e9
"""Clock at which profiles state the latencies of library code: H100's boost clock [hertz]."""
_ELSEWHERE = ("network", "host")
"""Tables of times that do not scale with the compute units' clock."""
_CALLS = {"trtllm-custom": "nccl", "vllm-custom": "nccl", "sglang-custom": "nccl"}
"""Libraries that extend another library; their profiles hold the values of both."""
_ABOUT = ("name", "title", "description", "library", "version", "architecture")


@cache
def values() -> Mapping[str, ProfileValue]:
    """Return every value that a profile may hold, by path, from kernels/library/values.toml."""
    tables = read_toml(resources.files("weft.kernels.library") / "values.toml")
    return {f"{name}.{key}": _value(*about) for name in tables for key, about in _with_likes(tables, name).items()}


def _with_likes(tables: Mapping[str, Any], name: str) -> dict[str, list[Any]]:
    """Return a table with the entries of the table that it names as `like` filled in."""
    own = dict(tables[name])
    like = own.pop("like", None)
    return {**(_with_likes(tables, like) if like else {}), **own}


def _value(unit: str, low: float, high: float, about: str) -> ProfileValue:
    if unit == "us":
        return ProfileValue(_TIME, low * 1e-6, high * 1e-6, about)
    return ProfileValue(
        _RATIO, low, high, f"{about}, as a share of the library's link figure" if unit == "share" else about
    )


@cache
def quantities() -> Mapping[str, Quantity]:
    """The rule of every value that a profile may hold, by path."""
    return {path: value.rule for path, value in values().items()}


@dataclass(frozen=True)
class Profile:
    """How a library performs on a generation of GPUs: latencies [s] and shares, by path such as "all_reduce.ll_step".

    `gpus` names the GPUs that it was fitted on, its own first; `architecture` names further generations that use it;
    `version` is the library's. For a blended profile, `blended` names the GPUs of the profiles that were averaged.
    """

    name: str
    title: str
    description: str
    library: str
    version: str
    architecture: str
    gpus: tuple[str, ...]
    values: Mapping[str, float]
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)
    blended: tuple[str, ...] = ()

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The GPU on whose links its shares were fitted; for a blend, one for each averaged profile."""
        return self.gpus[:1] or self.blended

    def value(self, path: str) -> float:
        """The number at `path` [seconds, bytes or a ratio]; ConfigError names the nearest path if there is none."""
        if path not in self.values:
            if path in quantities():
                raise ConfigError(f"the profile has no such value; add {path} to it", self.name, path)
            raise unknown_key(path, tuple(self.values), self.name)
        return self.values[path]

    def text(self, path: str) -> str:
        """Return the value at `path` with its unit."""
        return quantities()[path].format(self.value(path))

    def replace(self, values: Mapping[str, str | float]) -> Self:
        """Return a copy with the values at the given paths replaced: text with a unit, or plain numbers [base unit].

        Raises ConfigError for an unknown path or a broken rule.
        """
        parsed = {path: _parse_value(path, raw, self.name) for path, raw in values.items()}
        sources = {path: set_by_user(str(raw)) for path, raw in values.items()}
        return replace(self, values={**self.values, **parsed}, provenance={**self.provenance, **sources})


def of_release(profile: Profile, version: str) -> Profile:
    """The profile scaled to another release of its library, by the ratios of its table of releases if it has one.

    A table of an older release than the profile's applies to its own and to earlier ones, down to the next table; one
    of a newer release to its own and to later ones.
    """
    wanted, own = numbers(version)[:2], numbers(profile.version)[:2]
    names = {path.partition(".")[0] for path in profile.values if path.startswith("release_")}
    tables = sorted((tuple(map(int, name.split("_")[1:])), name) for name in names)
    older = [name for release, name in tables if wanted <= release < own]
    newer = [name for release, name in tables if own < release <= wanted]
    covering = [*older[:1], *newer[-1:]]
    if not wanted or not covering or profile.library != "nccl":
        return profile
    ratios = {path.partition(".")[2]: value for path, value in profile.values.items() if path.startswith(covering[0])}
    changed = {path: value * ratios.get(_key(path), 1.0) for path, value in profile.values.items()}
    return replace(profile, values=changed)


def _key(path: str) -> str:
    """Return the key of a value in a table of releases: prefixed by its table unless that is the rings'."""
    table, _, key = path.partition(".")
    return key if table in ("ring", "all_reduce", "reduce_scatter", "all_gather") else f"{table}_{key}"


def _parse_value(path: str, raw: object, file: str) -> float:
    if path not in quantities():
        raise unknown_key(path, tuple(quantities()), file)
    rule = quantities()[path]
    try:
        return rule.check(raw, str(raw)) if isinstance(raw, float) else rule.parse(raw)
    except UnitError as error:
        raise ConfigError(str(error), file, path) from None


@cache
def _shelf() -> Shelf:
    return Shelf("library profile", "weft.kernels.library", "catalog", _ABOUT, quantities(), {"gpus": "a100-sxm-80gb"})


def library_names() -> list[str]:
    """Return the library profiles of the catalogue."""
    return _shelf().names()


def load_library(name_or_path: str | Path) -> Profile:
    """Return the profile with that name, or the one that a TOML file describes; a file may extend another one.

    Raises UnknownNameError, InputError or ConfigError.
    """
    found = _shelf().read(name_or_path)
    if missing := [text for text in _ABOUT if text not in found.about]:
        example = f'add a line like {missing[0]} = "...", or begin with a line like extends = "{library_names()[0]}"'
        raise ConfigError(f"{', '.join(missing)}: missing in this library profile; {example}", found.file)
    return Profile(
        **found.about,
        values={path: leaf.value for path, leaf in found.leaves.items()},
        provenance={path: leaf.provenance for path, leaf in found.leaves.items()},
    )


@cache
def _read_packaged(name: str) -> Profile:
    return load_library(name)


def profile_for(gpu: str, architecture: str, library: str) -> Profile:
    """Return the profile for a GPU: its own, else its architecture's, else the mean of all profiles of the library.

    Raises UnknownNameError if the library has no profile.
    """
    known = [_read_packaged(name) for name in library_names()]
    served = _CALLS.get(library, library)
    left = [profile for profile in known if profile.library == served]
    if not left:
        raise UnknownNameError("collective library", library, sorted({profile.library for profile in known}))
    own = [profile for profile in left if gpu in profile.gpus[:1]]
    related = [profile for profile in left if architecture in profile.architecture.split()]
    each = {profile.architecture: profile for profile in reversed(left)}
    return (own or related or [blend(list(each.values()), architecture)])[0]


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as "2.27.3", for comparison; empty if it has none."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


_FLAGGED = re.compile(r"(ring|all_reduce|reduce_scatter|all_gather|all_to_all)\.(ll|ll128)_(launch|step)")
_SLOWER = {"blackwell": 8.5 / 4.5}


def relative_latency(path: str, architecture: str) -> float:
    """Return how long launches and hops of protocols with flags take on an architecture, against Hopper's; 1 for other
    values.

    NCCL counts on 4.5 us for its kernels with flags up to Hopper and on 8.5 us (all-gather; 11 us where it adds) from
    Blackwell on (src/sym_kernels.cc, `baseLat`).
    """
    return _SLOWER.get(architecture, 1.0) if _FLAGGED.fullmatch(path) else 1.0


def blend(profiles: Sequence[Profile], architecture: str = "") -> Profile:
    """Return the geometric mean of several profiles, value by value: the estimate for a GPU without measurements.

    Latencies are compared relative to those of each profile's architecture, and returned for `architecture`.
    """
    if len(profiles) == 1:
        return profiles[0]
    mean = {}
    for path in sorted({path for profile in profiles for path in profile.values}):
        found = [
            profile.values[path] / relative_latency(path, profile.architecture)
            for profile in profiles
            if path in profile.values
        ]
        mean[path] = math.prod(found) ** (1 / len(found)) * relative_latency(path, architecture)
    names = " and ".join(profile.name for profile in profiles)
    source = Provenance(text="", kind="derived", source=f"geometric mean of {names}")
    return replace(
        profiles[0],
        name=f"{profiles[0].library} mean",
        title=f"Mean of {names}",
        architecture="",
        gpus=(),
        blended=tuple(gpu for profile in profiles for gpu in profile.fitted_on),
        values=mean,
        provenance=dict.fromkeys(mean, source),
    )


def at_clock(profile: Profile, clock: float) -> Profile:
    """The profile of a GPU whose compute units run at `clock` [hertz]: latencies of library code scale inversely."""
    if clock == _REFERENCE_CLOCK:
        return profile
    scaled = {
        path: value * _REFERENCE_CLOCK / clock
        for path, value in profile.values.items()
        if quantities()[path] is _TIME and path.partition(".")[0] not in _ELSEWHERE
    }
    return replace(profile, values={**profile.values, **scaled})
