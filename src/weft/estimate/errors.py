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
from weft.core.catalog import read_toml
from weft.core.units import count_words, format_bytes
from weft.graph import Attention, Collective, Gemm, Op
from weft.hardware import Gpu
from weft.kernels.library.served import library
from weft.kernels.library.software import measured_vendors


def _read(name: str) -> Mapping[str, Any]:
    return read_toml(resources.files("weft.estimate") / name)


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
        """Return a time less and plus the error [s]."""
        return seconds * (1 - self.value), seconds * (1 + self.value)


def gemm_error(gpu: str, seconds: float) -> Error:
    """Return the mean error of GEMMs of a time [s] on a GPU; without rows of the GPU, the 90th percentile elsewhere."""
    place, words = _class("gemm", seconds, lambda bound: f"{bound * 1e6:.0f} us")
    found = _error(f"GEMMs {words}", gpu, CARRIED["gemm"].get(gpu), [CARRIED["left_out"]["gemm"]], place)
    unseen = _unseen(f"GEMMs {words} on {gpu}", "gemm", gpu, seconds)
    return unseen if unseen and unseen.value > found.value else found


def collective_error(gpu: str, collective: str, size: float, nodes: int = 1) -> Error:
    """Return the mean error of a collective of a size [bytes] on GPUs of one node or several.

    Without such rows it is the 90th percentile of the nearest class: in one node of machines left out of the fits, over
    nodes of the same collective, else of the same GPU, else of any.
    """
    place, words = _class("collective", size, lambda bound: format_bytes(int(bound)))
    if nodes > 1:
        return _over_nodes(f"{collective} over nodes, {words}", gpu, collective, place, size)
    here, left = CARRIED["collective"].get(gpu, {}).get(collective), CARRIED["left_out"]
    others = [left[collective]] if collective in left else [each for name, each in left.items() if name != "gemm"]
    return _error(f"{collective} {words}", gpu, here, others, place)


def _over_nodes(what: str, gpu: str, collective: str, place: int, size: float) -> Error:
    known = {
        (on, of): classes[place]
        for on, each in CARRIED["over_nodes"].items()
        for of, classes in each.items()
        if classes[place]
    }
    if (gpu, collective) in known:
        value, rows, _, _ = known[gpu, collective]
        return Error(value, f"{what}: off by {value:.1%}, the mean on {gpu}{_thin(rows, _FEW)}")
    if unseen := _unseen(what, "collective_over_nodes", collective, size):
        return unseen
    on, of = max(known, key=lambda one: (one[1] == collective, one[0] == gpu, known[one][1]))
    return _nearest(what, f"{of} on {on}", known[on, of], gpu)


def _nearest(what: str, where: str, found: Sequence[float], gpu: str) -> Error:
    """Return the 90th percentile of the nearest class that has rows, for a case that none is like."""
    _, rows, machines, most = found
    why = f"{what}: no such row is public for {gpu}; nine of ten rows of {where} are off by less than {most:.0%}"
    return Error(most, f"{why}{_thin(rows, machines)}")


UNSEEN = _read("unseen_errors.toml")
"""Errors on public rows of sources that no class holds, and that no fit saw."""


def _unseen(what: str, kind: str, case: str, value: float = 0.0) -> Error | None:
    """Return the mean error of rows of another source about a case; None without any."""
    for one in UNSEEN.get(kind, ()):
        if case in one["of"] and one.get("least", 0.0) <= value < one.get("below", float("inf")):
            said = f"off by {one['mean']:.0%}, the mean of {one['rows']} rows that no fit saw ({one['source']})"
            return Error(one["mean"], f"{what}: {said}")
    return None


def exchange_error(library: str) -> Error:
    """Return the mean error of exchanges of tokens by a library; the largest of any library, if no row is about it."""
    known = CARRIED["exchange"]
    if library in known:
        value, rows, machines, _ = known[library]
        thin = _thin(rows, machines)
        return Error(value, f"exchanges by {library}: off by {value:.1%}, the mean of public rows{thin}")
    name = max(known, key=lambda one: known[one][3])
    why = f"exchanges by {library}: no public row; of the least exact library, {name}, nine of ten"
    return Error(known[name][3], f"{why} are off by less than {known[name][3]:.0%}")


def served_error(kind: str, name: str) -> Error:
    """Return the mean error of a kind of kernels of inference by library, such as "trtllm-context" of "attention".

    It is the largest of any library, if no row is about it.
    """
    known = CARRIED[kind]
    if name in known:
        value, rows, machines, _ = known[name]
        return Error(value, f"{kind} by {name}: off by {value:.1%}, the mean of public rows{_thin(rows, machines)}")
    other = max(known, key=lambda one: known[one][3])
    why = f"{kind} by {name}: no public row; of the least exact, {other}, nine of ten"
    return Error(known[other][3], f"{why} are off by less than {known[other][3]:.0%}")


def load_error(framework: str, mixture: bool, gpu: Gpu) -> Error | None:
    """Return the mean error of the TPOT of loads that a framework serves on a GPU; None where none is carried.

    Classes hold rows of NVIDIA's GPUs. On others the error is that of public rows that no fit saw.
    """
    layers, what = ("mixture", "models with experts") if mixture else ("dense", "dense models")
    known: Mapping[str, Sequence[float]] = CARRIED.get("serving", {})
    found = known.get(f"{framework}-{layers}-TPOT")
    if found is None:
        return None
    value, rows, machines = found[:3]
    if gpu.vendor == "nvidia":
        thin = _thin(rows, machines)
        return Error(value, f"loads of {what} on {framework}: off by {value:.0%}, the mean of public rows{thin}")
    if unseen := _unseen(f"loads on {gpu.name}", "serving", gpu.architecture):
        return unseen
    worst = max(known.values(), key=lambda one: one[0])[0]
    return Error(worst, f"loads on {gpu.name}: no row is public; the least exact class of others is off by {worst:.0%}")


def attention_error(of: str, query: Any, keys: Any) -> Error:
    """The mean error of attention by a library of inference: of one query a sequence (generation), or of more."""
    phase = "generation" if np.all((np.asarray(query) == 1) & (np.asarray(keys) > 1)) else "context"
    return served_error("attention", f"{library('attention', of).name}-{phase}")


def fused_attention_error(gpu: Gpu) -> Error:
    """Return the mean error of the vendor's fused attention.

    Without published rates on the architecture it is the 90th percentile of GEMMs of machines left out of the fits.
    """
    what = "fused attention"
    for one in UNSEEN["attention"]:
        if gpu.architecture in one["of"]:
            said = f"off by {one['mean']:.0%}, the mean of {one['rows']} published rates ({one['source']})"
            return Error(one["mean"], f"{what}: {said}")
    most = CARRIED["left_out"]["gemm"][-1][3]
    where = f"nine of ten long GEMMs of machines left out of the fits are off by less than {most:.0%}"
    return Error(most, f"{what}: no rate is public for {gpu.architecture}; {where}")


def operator_errors(timed: Iterable[tuple[Op, float]], gpu: Gpu) -> list[str]:
    """Return the classes of error of operators and their times [s] on a GPU, in words, those with the most time first.

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
        elif isinstance(op, Attention) and op.fused:
            why = fused_attention_error(gpu).why
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
    """Return the class of a value among those of a kind, and its name: "below" its upper bound, or "from" the last."""
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
    """Return the error of a class on a GPU, else the largest of machines left out; thin classes say how few rows."""
    if here is not None and here[place]:
        value, rows, _, _ = here[place]
        return Error(value, f"{what}: off by {value:.1%}, the mean on {gpu}{_thin(rows, _FEW)}")
    found = max((each[place] for each in others if each[place]), key=lambda one: one[3])
    return _nearest(what, "machines left out of the fits", found, gpu)


def _thin(rows: float, machines: float, word: str = "machine") -> str:
    """Return how few rows and machines, or systems, a class has, if it is thin."""
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
    """Return the mean error of pairs joined by a method: of the class of its time, on a system in sight or left out.

    Of a method without measured rows, it is the largest error of any other.
    """
    place, words = _class("joined", seconds, lambda bound: f"{bound * 1e6:.0f} us")
    column = "seen" if seen else "left_out"
    if method not in CARRIED["joined"]:
        worst = max(part[0] for rows in CARRIED["joined"].values() for part in rows[column] if part)
        return Error(worst, f"{method}: no public row, {worst:.1%}, the largest error of any other method")
    classes = CARRIED["joined"][method][column]
    value, rows, machines = (classes[place] or max(filter(None, classes), key=lambda found: found[0]))[:3]
    how = "in-sample of the software costs" if seen else "held out of the software costs"
    thin = _thin(rows, machines, "system")
    return Error(value, f"{method} {words}: off by {value:.1%}, the mean of pairs on systems {how}{thin}")


_STEPS = _read("step_errors.toml")
_LAYERS = {True: ("mixture", "mixture-by-dispatcher"), False: ("dense",)}
"""The classes of steps of models with experts, and of others; rows of some mixtures name a dispatcher."""


def step_error(gpu: Gpu, framework: str, mixture: bool = False) -> Error:
    """Return the mean error of training steps of a framework on a GPU, of models with or without experts.

    Without measured rows of both it is the 90th percentile of the nearest class that has rows: of the same framework,
    else of the same GPU, else of the same architecture, else of any; of those the one with the most rows. On GPUs of a
    vendor without any measured step it is the largest of the classes that are not thin.
    """
    what = "models with experts" if mixture else "dense models"
    known = {
        (on, of): _pool_classes([found[name] for name in _LAYERS[mixture] if name in found])
        for on, each in _STEPS.items()
        for of, found in each.items()
        if any(name in found for name in _LAYERS[mixture])
    }
    if (gpu.name, framework) in known:
        value, bias, rows, _ = known[gpu.name, framework]
        thin = f" ({count_words(int(rows), 'row')} only)" if rows < _THIN else ""
        return Error(
            value,
            f"{_steps(what, framework)} on {gpu.name} are off by {value:.0%}{_error_side(value, bias, rows)}{thin}",
        )
    if gpu.vendor not in measured_vendors():
        worst = max(most for _, _, rows, most in known.values() if rows >= _THIN)
        vendor = "AMD" if gpu.vendor == "amd" else gpu.vendor
        why = (
            f"no step of {framework} on {gpu.name} was measured, nor any on a GPU of {vendor}, so the calibration "
            f"residual is that of NVIDIA's steps; expected error wider, {worst:.0%}, which nine of ten of the least "
            f"exact class of {what} stay below"
        )
        return Error(worst, why)
    kinds = {on: hardware.gpu(on).architecture for on, _ in known}
    on, of = max(
        known,
        key=lambda one: (
            one[1] == framework, one[0] == gpu.name, kinds[one[0]] == gpu.architecture, known[one][2],
        ),
    )  # fmt: skip
    value, bias, rows, most = known[on, of]
    none, side = f"no such step is public for {framework} on {gpu.name}", _error_side(value, bias, rows)
    if rows == 1:
        return Error(most, f"{none}; the only one near, of {what} with {of} on {on}, is off by {most:.0%}{side}")
    near = f"of the nearest, {_steps(what, of)} on {on}, nine of ten are off by less than {most:.0%}"
    return Error(most, f"{none}; {near}{side} ({count_words(int(rows), 'row')})")


def _pool_classes(classes: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    """Return the mean, bias, rows and 90th percentile of classes together; the largest of their percentiles."""
    rows = sum(one[2] for one in classes)
    mean, bias = (sum(one[at] * one[2] for one in classes) / rows for at in (0, 1))
    return mean, bias, rows, max(one[3] for one in classes)


def _steps(what: str, framework: str) -> str:
    return f"measured steps of {what} with {framework}"


def _error_side(value: float, bias: float, rows: float) -> str:
    """Return on which side the errors of some rows lie, if most lie on one."""
    if abs(bias) < value / 2:
        return ""
    return f", {'most of them ' * (rows > 1)}{'longer' if bias < 0 else 'shorter'} than Weft says"
