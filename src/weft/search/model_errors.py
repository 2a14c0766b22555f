"""Errors of Weft's times against public figures, by GPU: GEMMs and collectives, alone and co-running."""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

_FILE = tomllib.loads((resources.files("weft.search") / "model_errors.toml").read_text(encoding="utf-8"))
_STEPS = tomllib.loads((resources.files("weft.search") / "step_errors.toml").read_text(encoding="utf-8"))
GEMM: Mapping[str, float] = _FILE["gemm"]
COLLECTIVE: Mapping[str, Mapping[str, float]] = _FILE["collective"]
ONE_CASE: float = _FILE["beside"]["one_case"]
GEMM_SECONDS = (20e-6,)
"""Bounds between classes of GEMMs [s]."""
GEMM_CLASSES = ("below 20 us", "from 20 us")
COLLECTIVE_BYTES = (1 << 20, 1 << 24)
"""Bounds between classes of collectives [bytes]."""
COLLECTIVE_CLASSES = ("below 1 MiB", "below 16 MiB", "from 16 MiB")
_THIN = 10  # a class with fewer rows says so
JOINED: Mapping[str, Mapping[str, tuple[float, float]]] = _FILE["joined"]
JOINED_LONG = 200e-6
"""Time from which a joined pair counts as long [s]."""
C3_SPEEDUPS: Mapping[str, tuple[float, float]] = _FILE["beside"]["c3"]


class Contention(NamedTuple):
    """Factors on a speedup if contention were as published, and the reason."""

    low: float
    high: float
    why: str


class Error(NamedTuple):
    """The mean error of a class of predictions, and a sentence that names the class."""

    value: float
    why: str


def step_error(gpu: str, framework: str, mixture: bool = False) -> Error:
    """The mean error of training steps of a framework on a GPU, of models with or without a mixture of experts.

    Without measured rows of both it is that of the framework's other GPUs or, without those, of all steps.
    """
    layers = "mixture" if mixture else "dense"
    what = "models with experts" if mixture else "dense models"
    known = {(on, of): found[layers] for on, each in _STEPS.items() for of, found in each.items() if layers in found}
    if (gpu, framework) in known:
        value, bias, rows = known[gpu, framework]
        thin = f" ({rows:.0f} rows only)" if rows < _THIN else ""
        return Error(value, f"{_steps(what, framework)} on {gpu} are off by {value:.0%}{_sided(value, bias)}{thin}")
    alike = [found for (_, of), found in known.items() if of == framework]
    value, bias = (_weighted(alike or list(known.values()), at) for at in (0, 1))
    where = f"{_steps(what, framework)} on other GPUs" if alike else f"measured steps of {what} elsewhere"
    sided = _sided(value, bias)
    return Error(value, f"no such step is public for {framework} on {gpu}; {where} are off by {value:.0%}{sided}")


def _steps(what: str, framework: str) -> str:
    return f"measured steps of {what} with {framework}"


def _sided(value: float, bias: float) -> str:
    """On which side most errors lie, if most do."""
    if abs(bias) < value / 2:
        return ""
    return ", most of them longer than Weft says" if bias < 0 else ", most of them shorter than Weft says"


def _weighted(found: Sequence[Sequence[float]], at: int) -> float:
    return sum(one[at] * one[2] for one in found) / sum(one[2] for one in found)


def gemm_error(gpu: str, seconds: float) -> Error:
    """The mean error of GEMMs of a time [s] on a GPU; of machines left out of the fits, if no row is about it."""
    place = bisect_right(GEMM_SECONDS, seconds)
    return _error("GEMMs", GEMM_CLASSES[place], gpu, _FILE["gemm_class"].get(gpu), "gemm", place)


def collective_error(gpu: str, collective: str, size: float) -> Error:
    """The mean error of a collective of a size [bytes] on a GPU; of machines left out, if no row is about it."""
    place = bisect_right(COLLECTIVE_BYTES, size)
    here = _FILE["collective_class"].get(gpu, {}).get(collective)
    return _error(collective, COLLECTIVE_CLASSES[place], gpu, here, collective, place)


def _error(what: str, of: str, gpu: str, here: Sequence[Sequence[float]] | None, key: str, place: int) -> Error:
    """The error of a class on a GPU, or of machines left out; thin classes say how many rows they have."""
    if here is None or not here[place]:
        classes = _FILE["left_out"]
        known = [classes[key]] if key in classes else [classes[name] for name in COLLECTIVE["h100-sxm"]]
        value = max(float(values[place]) for values in known)
        where = f"on machines left out of the fits, as no such row is public for {gpu}"
        return Error(value, f"{what} {of}: off by {value:.1%} {where}")
    value, rows = here[place]
    thin = f" ({rows:.0f} rows only)" if rows < _THIN else ""
    return Error(value, f"{what} {of}: off by {value:.1%}, the mean on {gpu}{thin}")


def contention_error(vendor: str, strategy: str) -> Contention:
    """Uncertainty of a strategy's speedup due to contention, on GPUs of a vendor.

    On AMD's GPUs it extends towards the published means. For other vendors a single public case exists.
    """
    if vendor == "amd" and strategy in C3_SPEEDUPS:
        here, published = C3_SPEEDUPS[strategy]
        than, side = ("no better than", "higher") if here > published else ("as good as", "lower")
        why = (
            f"{strategy} is {than} published for C3 on MI300X, where Weft's mean speedup is "
            f"{abs(here / published - 1):.0%} {side}"
        )
        return Contention(min(published / here, 1.0), max(published / here, 1.0), why)
    why = f"both side by side are off by {ONE_CASE:.1%}, as in the one case that is public (four A100)"
    return Contention(1 / (1 + ONE_CASE), 1 / (1 - ONE_CASE), why)


def joined_error(method: str, seconds: float, *, seen: bool) -> float:
    """The mean error of pairs joined by a method: of the class of its time, on a system in sight or left out."""
    short, long = JOINED[method]["seen" if seen else "left_out"]
    return long if seconds >= JOINED_LONG else short
