"""Errors of Weft's times against public figures by class: GEMMs, collectives, joined pairs, co-runs, steps, loads.

A class is a machine or a way to join, a size, and whether a fit saw the rows. `docs/errors.py` writes
`model_errors.toml` and `step_errors.toml` from what `weft validate --bar` finds, `docs/figures.py` the speedups of C3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from weft import hardware
from weft.catalog import read_toml
from weft.graph import Attention, Collective, Gemm, Op
from weft.hardware import Gpu
from weft.library.residual import measured_vendors
from weft.library.served import library
from weft.units import format_bytes


def _read(name: str) -> Mapping[str, Any]:
    return read_toml(resources.files("weft.result") / name)


CARRIED = _read("model_errors.toml")
"""Mean error, rows and machines of every class of GEMMs, collectives and joined pairs."""
C3_SPEEDUPS: Mapping[str, tuple[float, float]] = _read("c3_speedups.toml")
"""Of each strategy: the mean speedup over the scenarios of C3 here, and the one that the published share implies."""
BESIDE: Mapping[str, Any] = CARRIED["beside"]
"""GEMMs beside a collective: the largest error, and the cells and systems that were measured."""
_BOUNDS: Mapping[str, Sequence[float]] = CARRIED["bounds"]
_THIN = 10
"""A class with fewer rows, or with fewer machines than `_FEW`, says so."""
_FEW = 3


class Contention(NamedTuple):
    """Factors on a speedup if contention were as published, and the reason."""

    low: float
    high: float
    why: str


class Error(NamedTuple):
    """The mean error of a class of predictions, and a sentence that names the class."""

    value: float
    why: str

    def around(self, seconds: float) -> tuple[float, float]:
        """A time less and plus the error [s]."""
        return seconds * (1 - self.value), seconds * (1 + self.value)


def gemm_error(gpu: str, seconds: float) -> Error:
    """The mean error of GEMMs of a time [s] on a GPU; of machines left out of the fits, if no row is about it."""
    place, words = _class("gemm", seconds, lambda bound: f"{bound * 1e6:.0f} us")
    return _error(f"GEMMs {words}", gpu, CARRIED["gemm"].get(gpu), [CARRIED["left_out"]["gemm"]], place)


def collective_error(gpu: str, collective: str, size: float) -> Error:
    """The mean error of a collective of a size [bytes] on a GPU; of machines left out, if no row is about it."""
    place, words = _class("collective", size, lambda bound: format_bytes(int(bound)))
    here, left = CARRIED["collective"].get(gpu, {}).get(collective), CARRIED["left_out"]
    others = [left[collective]] if collective in left else [each for name, each in left.items() if name != "gemm"]
    return _error(f"{collective} {words}", gpu, here, others, place)


def exchange_error(library: str) -> Error:
    """The mean error of exchanges of tokens by a library; the largest of any library, if no row is about it."""
    known = CARRIED["exchange"]
    if library in known:
        value, rows, machines = known[library]
        thin = _thin(rows, machines)
        return Error(value, f"exchanges by {library}: off by {value:.1%}, the mean of public rows{thin}")
    worst = max(value for value, _, _ in known.values())
    return Error(worst, f"exchanges by {library}: no public row, {worst:.1%}, the largest error of any other library")


def served_error(kind: str, name: str) -> Error:
    """The mean error of a kind of kernels of inference by library, such as "trtllm-context" of "attention".

    It is the largest of any library, if no row is about it.
    """
    known = CARRIED[kind]
    if name in known:
        value, rows, machines = known[name]
        return Error(value, f"{kind} by {name}: off by {value:.1%}, the mean of public rows{_thin(rows, machines)}")
    worst = max(value for value, _, _ in known.values())
    return Error(worst, f"{kind} by {name}: no public row, {worst:.1%}, the largest error of any other library")


def load_error(framework: str, mixture: bool) -> Error | None:
    """The mean error of the time per further token of loads that a framework serves; None where none is carried."""
    layers, what = ("mixture", "models with experts") if mixture else ("dense", "dense models")
    known: Mapping[str, Sequence[float]] = CARRIED.get("serving", {})
    found = known.get(f"{framework}-{layers}-TPOT")
    if found is None:
        return None
    value, rows, machines = found
    thin = _thin(rows, machines)
    return Error(value, f"loads of {what} on {framework}: off by {value:.0%}, the mean of public rows{thin}")


def attention_error(of: str, query: Any, keys: Any) -> Error:
    """The mean error of attention by a library of inference: of one query a sequence (generation), or of more."""
    phase = "generation" if np.all((np.asarray(query) == 1) & (np.asarray(keys) > 1)) else "context"
    return served_error("attention", f"{library('attention', of).name}-{phase}")


def operator_errors(timed: Iterable[tuple[Op, float]], gpu: Gpu) -> list[str]:
    """The classes of error of operators and their times [s] on a GPU, in words, those with the most time first.

    Ends with the operators whose errors are not carried, and their share of the time.
    """
    if gpu.vendor == "none":
        return [f"no one sells {gpu.name}, so nothing is measured on it"]
    found: dict[str, float] = {}
    unknown: dict[str, float] = {}
    for op, seconds in timed:
        if isinstance(op, Gemm):
            why = gemm_error(gpu.name, seconds).why
        elif isinstance(op, Collective):
            why = collective_error(gpu.name, op.name, op.bytes).why
        elif isinstance(op, Attention) and op.library:
            why = attention_error(op.library, op.query, op.keys).why
        else:
            name = getattr(op, "name", op.kind)
            unknown[name] = unknown.get(name, 0.0) + seconds
            continue
        found[why] = found.get(why, 0.0) + seconds
    whole = sum(found.values()) + sum(unknown.values())
    classes = sorted(found, key=lambda why: -found[why])
    if unknown:
        share = f" ({sum(unknown.values()) / whole:.0%} of the time)" if found else ""
        classes.append(unknown_error(", ".join(unknown) + share))
    return classes


def unknown_error(what: str) -> str:
    """Says that operators have no class of errors, and where to look."""
    return f"{what}: no class of errors; 'weft validate' compares what has been measured"


def _class(kind: str, value: float, written: Any) -> tuple[int, str]:
    """The class of a value among those of a kind, and its name: "below" its upper bound, or "from" the last."""
    bounds = _BOUNDS[kind]
    place = bisect_right(bounds, value)
    return place, f"below {written(bounds[place])}" if place < len(bounds) else f"from {written(bounds[-1])}"


def _error(
    what: str,
    gpu: str,
    here: Sequence[Sequence[float]] | None,
    others: Sequence[Sequence[Sequence[float]]],
    place: int,
) -> Error:
    """The error of a class on a GPU, or the largest of machines left out; thin classes say how many rows they have."""
    if here is not None and here[place]:
        value, rows, _ = here[place]
        return Error(value, f"{what}: off by {value:.1%}, the mean on {gpu}{_thin(rows, _FEW)}")
    value, rows, machines = max((each[place] for each in others if each[place]), key=lambda found: found[0])
    where = f"on machines left out of the fits{_thin(rows, machines)}, as no such row is public for {gpu}"
    return Error(value, f"{what}: off by {value:.1%} {where}")


def _thin(rows: float, machines: float, word: str = "machine") -> str:
    """How few rows and machines, or systems, a class has, if it is thin."""
    found = [f"{rows:.0f} rows"] if rows < _THIN else []
    found += [f"{machines:.0f} {word}{'s' * (machines != 1)}"] if machines < _FEW else []
    return f" ({' of '.join(found)} only)" if found else ""


def contention_error(gpu: Gpu, strategy: str) -> Contention:
    """Uncertainty of a strategy's speedup due to contention on a GPU.

    On AMD's GPUs it extends towards the published means. On others it is the error of the cells that are public.
    """
    if gpu.vendor == "amd" and strategy in C3_SPEEDUPS:
        here, published = C3_SPEEDUPS[strategy]
        than, side = ("no better than", "higher") if here > published else ("as good as", "lower")
        why = (
            f"{strategy} is {than} published for C3 on MI300X, where Weft's mean speedup is "
            f"{abs(here / published - 1):.0%} {side}"
        )
        return Contention(min(published / here, 1.0), max(published / here, 1.0), why)
    off, cells = BESIDE["largest"], BESIDE["cells"]
    known = {hardware.system(name).gpu.name for name in BESIDE["systems"]}
    case = "the one case that is public" if cells == 1 else f"the worst of {cells} cases that are public"
    why = f"both side by side are off by {off:.1%}, as in {case} (streams on {', '.join(BESIDE['systems'])})"
    if gpu.name not in known or strategy != "streams":
        why += f"; no public row has {strategy} on {gpu.name}"
    return Contention(1 / (1 + off), 1 / (1 - off), why)


def joined_error(method: str, seconds: float, *, seen: bool) -> Error:
    """The mean error of pairs joined by a method: of the class of its time, on a system in sight or left out.

    Of a method without measured rows, it is the largest error of any other.
    """
    place, words = _class("joined", seconds, lambda bound: f"{bound * 1e6:.0f} us")
    column = "seen" if seen else "left_out"
    if method not in CARRIED["joined"]:
        worst = max(part[0] for rows in CARRIED["joined"].values() for part in rows[column] if part)
        return Error(worst, f"{method}: no public row, {worst:.1%}, the largest error of any other method")
    classes = CARRIED["joined"][method][column]
    value, rows, machines = classes[place] or max(filter(None, classes), key=lambda found: found[0])
    how = "in sight of the software costs" if seen else "left out of the software costs"
    thin = _thin(rows, machines, "system")
    return Error(value, f"{method} {words}: off by {value:.1%}, the mean of pairs on systems {how}{thin}")


_STEPS = _read("step_errors.toml")


def step_error(gpu: Gpu, framework: str, mixture: bool = False) -> Error:
    """The mean error of training steps of a framework on a GPU, of models with or without a mixture of experts.

    Without measured rows of both it is that of the framework's other GPUs or, without those, of all steps; on GPUs of
    a vendor without any measured step, the largest of any GPU and framework with enough rows.
    """
    layers = "mixture" if mixture else "dense"
    what = "models with experts" if mixture else "dense models"
    known = {(on, of): found[layers] for on, each in _STEPS.items() for of, found in each.items() if layers in found}
    if (gpu.name, framework) in known:
        value, bias, rows = known[gpu.name, framework]
        thin = f" ({rows:.0f} rows only)" if rows < _THIN else ""
        return Error(
            value, f"{_steps(what, framework)} on {gpu.name} are off by {value:.0%}{_sided(value, bias)}{thin}"
        )
    alike = [found for (_, of), found in known.items() if of == framework]
    value, bias = (_weighted(alike or list(known.values()), at) for at in (0, 1))
    if gpu.vendor not in measured_vendors():
        worst = max(value, *(off for off, _, rows in known.values() if rows >= _THIN))
        vendor = "AMD" if gpu.vendor == "amd" else gpu.vendor
        why = (
            f"no step of {framework} on {gpu.name} was measured, nor any on a GPU of {vendor}, so the calibration "
            f"residual is that of NVIDIA's steps; expected error wider, {worst:.0%}, as the largest of {what} elsewhere"
        )
        return Error(worst, why)
    where = f"{_steps(what, framework)} on other GPUs" if alike else f"measured steps of {what} elsewhere"
    sided = _sided(value, bias)
    return Error(value, f"no such step is public for {framework} on {gpu.name}; {where} are off by {value:.0%}{sided}")


def _steps(what: str, framework: str) -> str:
    return f"measured steps of {what} with {framework}"


def _sided(value: float, bias: float) -> str:
    """On which side most errors lie, if most do."""
    if abs(bias) < value / 2:
        return ""
    return ", most of them longer than Weft says" if bias < 0 else ", most of them shorter than Weft says"


def _weighted(found: Sequence[Sequence[float]], at: int) -> float:
    return sum(one[at] * one[2] for one in found) / sum(one[2] for one in found)
