"""Profiles of collective libraries: the fitted latencies and efficiencies of NCCL and RCCL on a GPU generation.

Rates are shares of the rate that the library itself counts on, so that a profile carries over to another GPU's data
sheet; latencies are what the library's own steps take on compute units at `REFERENCE_CLOCK`, since that is where its
code runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from weft.catalog import Provenance, Quantity, Shelf, set_by_user, unknown_key
from weft.errors import ConfigError, UnitError, UnknownNameError
from weft.units import Dimension

_TIME = Quantity(Dimension.SECONDS, zero_allowed=True)
_RATIO = Quantity(Dimension.COUNT, zero_allowed=True)


class Value(NamedTuple):
    """A value that a profile may hold: its rule, the range in which it is plausible [base unit], what it says."""

    rule: Quantity
    low: float
    high: float
    about: str


def _time(low: float, high: float, about: str) -> Value:
    return Value(_TIME, low * 1e-6, high * 1e-6, about)


def _rate(low: float, high: float, about: str) -> Value:
    return Value(_RATIO, low, high, f"{about}, as a share of the library's link figure")


def _exponent(about: str) -> Value:
    return Value(_RATIO, 0.4, 2.5, about)


def _ratio(about: str) -> Value:
    return Value(_RATIO, 0.5, 2.5, f"{about}: this release against the profile's, as a ratio")


_EVERY_RING = {
    "ll_launch": _time(2, 25, "launch of a ring collective that flags every 8 B"),
    "ll_step": _time(0.3, 2.5, "one hop of it"),
    "ll128_launch": _time(6, 30, "launch of a ring collective that flags every 128 B"),
    "ll128_step": _time(0.8, 8, "one hop of it"),
    "ll128_efficiency": _rate(0.25, 1.3, "its rate"),
    "simple_launch": _time(5, 40, "launch of a ring collective that synchronises per slice"),
}
_RING = {
    "ll_step": _time(0.3, 2.5, "one hop with a flag every 8 B, where it differs from other rings'"),
    "ll_join": _time(0.2, 5, "what more than one workgroup adds to the launch of one that flags every 8 B"),
    "ll_ramp": _time(0.05, 4, "what more than one workgroup adds to a hop of it"),
    "ll_efficiency": _rate(0.15, 0.7, "its rate with all workgroups"),
    "ll_copy": Value(_RATIO, 0.1, 4, "weight of its local copies against a link transfer"),
    "simple_step": _time(0.8, 16, "one hop of one that synchronises per slice, with its fence"),
    "simple_efficiency": _rate(0.7, 1.2, "its rate"),
    "simple_copy": Value(_RATIO, 0.005, 2, "weight of its local copies against a link transfer"),
    "simple_overlap": _exponent("how hops and transfer combine: below 1 slow start, 1 in turn, large hidden"),
}
_ADDING = _RING | {
    "bytewise_efficiency": Value(_RATIO, 0.8, 1.05, "rate with one-byte integers against wider elements, as a ratio")
}
_PAIRS = {
    "ll_launch": _time(3, 25, "launch of send and receive that flags every 8 B"),
    "ll_peer": _time(0.05, 3, "what each peer adds to it"),
    "ll_ramp": _time(0.5, 12, "how much longer it takes at 64 KiB per peer than at 4 KiB"),
    "ll_efficiency": _rate(0.15, 0.7, "its rate"),
    "simple_launch": _time(4, 40, "launch of send and receive that synchronises per slice"),
    "simple_peer": _time(0.05, 4, "what each peer adds to it"),
    "simple_ramp": _time(0.5, 15, "how much longer it takes at 64 KiB per peer than at 16 KiB"),
    "step_efficiency": _rate(0.3, 1.0, "rate while a peer's share is one buffer step"),
    "efficiency": _rate(0.6, 1.1, "rate beyond"),
    "self_copy": Value(_RATIO, 0.01, 2, "weight of the local copy against a transfer"),
}
_NVLS = {
    "launch": _time(6, 40, "launch of a collective that the switch reduces"),
    "efficiency": Value(
        _RATIO, 1.0, 1.8, "bus rate as a share of the library's link figure; the switch halves what travels"
    ),
    "overlap": Value(_RATIO, 0.3, 1.5, "how launch and transfer combine, as in simple_overlap"),
}
_DIRECT = {
    "ll_launch": _time(6, 30, "launch of the all-pairs all-reduce that flags every 8 B"),
    "ll_efficiency": _rate(0.2, 0.7, "its bus rate"),
    "simple_launch": _time(8, 40, "launch of the all-pairs all-reduce that synchronises per slice"),
    "simple_efficiency": _rate(0.4, 1.0, "its bus rate"),
}
_ONESHOT = {
    "launch": _time(1.5, 15, "launch of an all-reduce in which every GPU reads all others' buffers at once"),
    "efficiency": _rate(0.3, 1.0, "its rate"),
}
_NETWORK = {
    "launch": _time(5, 120, "what crossing nodes adds to the launch"),
    "step": _time(1, 80, "one hop between nodes beyond the network's latency"),
    "efficiency": Value(_RATIO, 0.5, 1.0, "share of the network's line rate in long transfers"),
    "fill": _time(10, 1500, "how long the pipeline of a tree takes to fill"),
}
_RELEASE = {
    "ll_launch": _ratio("launches that flag every 8 B"),
    "ll_step": _ratio("their hops"),
    "ll_join": _ratio("what more than one workgroup adds to them"),
    "ll128_efficiency": _ratio("the rate of those that flag every 128 B"),
    "simple_step": _ratio("hops that synchronise per slice"),
}
_HOST = {
    "launch": _time(1, 150, "what the call of a framework adds"),
    "floor": _time(10, 100, "how often a framework can call: no rank finishes before the last one begins"),
    "list": _time(5, 200, "what packing a list of tensors adds"),
    "gather_tensor": _time(5, 100, "what each tensor of an all-gather's list adds"),
    "scatter_tensor": _time(5, 100, "what each tensor of a reduce-scatter's list adds"),
    "exchange_tensor": _time(5, 100, "what each tensor of an all-to-all's list adds"),
    "copies": Value(_RATIO, 1, 5, "how often packing an all-gather's or reduce-scatter's list copies the buffer"),
}
_TABLES = {
    "ring": _EVERY_RING,
    "reduce_scatter": _ADDING,
    "all_gather": _RING,
    "all_reduce": _ADDING,
    "all_to_all": _PAIRS,
    "nvls": _NVLS,
    "direct": _DIRECT,
    "oneshot": _ONESHOT,
    "network": _NETWORK,
    "host": _HOST,
    "release_2_26": _RELEASE,
    "release_2_18": _RELEASE | {"nvls_launch": _ratio("launches that the switch reduces")},
}
REFERENCE_CLOCK = 1.98e9
"""The clock for which profiles state the times of code on compute units: H100's boost clock [hertz]."""
_ELSEWHERE = ("network", "host")
"""Tables of times that the clock of the compute units does not change."""
_CALLS = {"trtllm-custom": "nccl"}
"""Libraries that add something of their own to another one, whose profile holds both."""
_ABOUT = ("name", "title", "description", "library", "version", "architecture")


@cache
def values() -> Mapping[str, Value]:
    """Every value that a profile may hold, by its path."""
    return {f"{table}.{key}": value for table, rules in _TABLES.items() for key, value in rules.items()}


@cache
def quantities() -> Mapping[str, Quantity]:
    """The rule of every value that a profile may hold, by its path."""
    return {path: value.rule for path, value in values().items()}


@dataclass(frozen=True)
class Profile:
    """How a library performs on a generation of GPUs: latencies [s] and shares, by path such as "all_reduce.ll_step".

    `gpus` names the GPUs that it was fitted on, its own first; `architecture` the generations that it serves as well;
    `version` is the library's. `blended` names the GPUs of the profiles that it is the mean of, if it is one.
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
        """The GPU on whose links its shares were fitted; for a mean, one for each of its profiles."""
        return self.gpus[:1] or self.blended

    def value(self, path: str) -> float:
        """The number at `path` [seconds, bytes or a ratio]; ConfigError names the nearest path if there is none."""
        if path not in self.values:
            if path in quantities():
                raise ConfigError(f"the profile has no such value; add {path} to it", self.name, path)
            raise unknown_key(path, tuple(self.values), self.name)
        return self.values[path]

    def text(self, path: str) -> str:
        """The value at `path` with its unit."""
        return quantities()[path].format(self.value(path))

    def replace(self, values: Mapping[str, str | float]) -> Self:
        """A copy with the values at the given paths replaced: text with a unit, or plain numbers [base unit].

        Raises ConfigError for an unknown path or a broken rule.
        """
        parsed = {path: _parsed(path, raw, self.name) for path, raw in values.items()}
        sources = {path: set_by_user(str(raw)) for path, raw in values.items()}
        return replace(self, values={**self.values, **parsed}, provenance={**self.provenance, **sources})


def of_release(profile: Profile, version: str) -> Profile:
    """The profile as an older release of its library performs, by the ratios of its table of releases if it has one.

    A table holds for its own release and those before, down to the next table.
    """
    wanted = numbers(version)[:2]
    tables = sorted({path.partition(".")[0] for path in profile.values if path.startswith("release_")})
    covering = [table for table in tables if wanted and wanted <= tuple(map(int, table.split("_")[1:]))]
    if not covering or profile.library != "nccl":
        return profile
    ratios = {path.partition(".")[2]: value for path, value in profile.values.items() if path.startswith(covering[0])}
    changed = {path: value * ratios.get(_key(path), 1.0) for path, value in profile.values.items()}
    return replace(profile, values=changed)


def _key(path: str) -> str:
    """How a table of ratios names a value: those of rings by the value alone; send and receive did not change."""
    table, _, key = path.partition(".")
    return key if table in ("ring", "all_reduce", "reduce_scatter", "all_gather") else f"{table}_{key}"


def _parsed(path: str, raw: object, file: str) -> float:
    if path not in quantities():
        raise unknown_key(path, tuple(quantities()), file)
    rule = quantities()[path]
    try:
        return rule.check(raw, str(raw)) if isinstance(raw, float) else rule.parse(raw)
    except UnitError as error:
        raise ConfigError(str(error), file, path) from None


@cache
def _shelf() -> Shelf:
    return Shelf("library profile", "weft.library", "catalog", _ABOUT, quantities(), {"gpus": "a100-sxm-80gb"})


def library_names() -> list[str]:
    """The library profiles of the catalogue."""
    return _shelf().names()


def load_library(name_or_path: str | Path) -> Profile:
    """The profile with that name, or the one that a TOML file describes; a file may extend another one.

    Raises UnknownNameError, InputError or ConfigError.
    """
    found = _shelf().read(name_or_path)
    return Profile(
        **found.about,
        values={path: leaf.value for path, leaf in found.leaves.items()},
        provenance={path: leaf.provenance for path, leaf in found.leaves.items()},
    )


@cache
def _packaged(name: str) -> Profile:
    return load_library(name)


def profile_for(gpu: str, architecture: str, library: str, *, without: Sequence[str] = ()) -> Profile:
    """The profile for a GPU: its own, else its architecture's, else the mean of all profiles of the library.

    Profiles fitted on a GPU in `without` are left out, which predicts that GPU from the others. Raises
    UnknownNameError if no profile of the library is left.
    """
    known = [_packaged(name) for name in library_names()]
    served = _CALLS.get(library, library)
    left = [profile for profile in known if profile.library == served and not set(without) & set(profile.gpus)]
    if not left:
        raise UnknownNameError("collective library", library, sorted({profile.library for profile in known}))
    own = [profile for profile in left if gpu in profile.gpus[:1]]
    alike = [profile for profile in left if architecture in profile.architecture.split()]
    each = {profile.architecture: profile for profile in reversed(left)}
    return (own or alike or [blend(list(each.values()))])[0]


def numbers(version: str) -> tuple[int, ...]:
    """A version such as "2.27.3" as numbers that compare; empty if it is none."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def blend(profiles: Sequence[Profile]) -> Profile:
    """The geometric mean of several profiles, value by value: what one expects of a GPU that none was fitted on."""
    if len(profiles) == 1:
        return profiles[0]
    mean = {}
    for path in sorted({path for profile in profiles for path in profile.values}):
        found = [profile.values[path] for profile in profiles if path in profile.values]
        mean[path] = math.prod(found) ** (1 / len(found))
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
    """The profile of a GPU whose compute units run at `clock` [hertz]: times of their code scale with it."""
    if clock == REFERENCE_CLOCK:
        return profile
    scaled = {
        path: value * REFERENCE_CLOCK / clock
        for path, value in profile.values.items()
        if quantities()[path] is _TIME and path.partition(".")[0] not in _ELSEWHERE
    }
    return replace(profile, values={**profile.values, **scaled})
