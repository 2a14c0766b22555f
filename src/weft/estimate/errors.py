"""80 % intervals of Weft's times by class: GEMMs, collectives, joined pairs, co-runs, loads. Steps: `step_errors.py`.

A class is a machine or a way to join, and a size; its interval holds the measured values of rows that were left out of
the fits. `docs/errors.py` writes `model_errors.toml` from what `weft validate --bar` finds, `docs/figures.py` the
speedups of C3.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from weft import hardware
from weft.core.catalog import read_toml
from weft.core.units import format_bytes
from weft.graph import Attention, Collective, Gemm, Op, Scan
from weft.hardware import Gpu
from weft.kernels.library.served import library


def _read(name: str) -> Mapping[str, Any]:
    return read_toml(resources.files("weft.estimate") / name)


CARRIED = _read("model_errors.toml")
"""Both ends of the 80 % interval, rows and machines of every class of GEMMs, collectives and joined pairs."""
C3_SPEEDUPS: Mapping[str, tuple[float, float]] = _read("c3_speedups.toml")
"""Of each strategy: the mean speedup over the scenarios of C3 here, and the one that the published share implies."""
BESIDE: Mapping[str, Any] = CARRIED["beside"]
"""GEMMs concurrent with a collective: the largest error, and the cells and systems that were measured."""
_BOUNDS: Mapping[str, Sequence[float]] = CARRIED["bounds"]


class Contention(NamedTuple):
    """Factors on a speedup if contention were as published, and the reason."""

    low: float
    high: float
    why: str


class Error(NamedTuple):
    """The 80 % interval of a class of predictions: measured values lie between `low` and `high` times the predicted.

    `why` names the class and the measured rows that the interval rests on, or says that none is like it.
    """

    low: float
    high: float
    why: str

    @property
    def value(self) -> float:
        """Half the width of the interval, relative to the prediction."""
        return (self.high - self.low) / 2

    def around(self, seconds: float) -> tuple[float, float]:
        """Return both ends of the interval around a time [s]."""
        return seconds * self.low, seconds * self.high


COVERAGE = 0.8
"""Share of measured values that lie inside an interval."""


def interval_text(low: float, high: float) -> str:
    """Return the ends of an interval as percentages of the prediction."""
    return f"80 % interval {low - 1:+.0%} to {high - 1:+.0%}"


def gemm_error(gpu: str, seconds: float) -> Error:
    """Return the 80 % interval of GEMMs of a time [s] on a GPU; without its rows, of GPUs left out of the fits."""
    place, words = _class("gemm", seconds, lambda bound: f"{bound * 1e6:.0f} us")
    found = _error(f"GEMMs {words}", gpu, CARRIED["gemm"].get(gpu), [CARRIED["left_out"]["gemm"]], place)
    unseen = _unseen(f"GEMMs {words} on {gpu}", "gemm", gpu, seconds)
    return unseen if unseen and unseen.value > found.value else found


def collective_error(gpu: str, collective: str, size: float, nodes: int = 1) -> Error:
    """Return the 80 % interval of a collective of a size [bytes] on GPUs of one node or several.

    Without such rows it is that of the nearest class: in one node of machines left out of the fits, over nodes of the
    same collective, else of the same GPU, else of any.
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
        return _measured(what, known[gpu, collective], f"on {gpu}")
    if unseen := _unseen(what, "collective_over_nodes", collective, size):
        return unseen
    on, of = max(known, key=lambda one: (one[1] == collective, one[0] == gpu, known[one][2]))
    return _nearest(what, f"of {of} on {on}", known[on, of], gpu)


def _measured(what: str, found: Sequence[float], where: str) -> Error:
    """Return the interval of a class that has rows."""
    low, high, rows, _ = found
    return Error(low, high, f"{what}: {interval_text(low, high)}, from {_rows(rows)} {where}")


def _rows(rows: float) -> str:
    return f"{rows:,.0f} row{'s' * (rows != 1)}"


def _nearest(what: str, where: str, found: Sequence[float], gpu: str) -> Error:
    """Return the interval of the nearest class that has rows, for a case that none is like."""
    low, high, rows, machines = found
    of = f" of {machines:.0f} machine{'s' * (machines != 1)} left out of the fits" if not where else f" {where}"
    why = f"{what}: no such row is public for {gpu}; {interval_text(low, high)}, from {_rows(rows)}{of}"
    return Error(low, high, why)


UNSEEN = _read("unseen_errors.toml")
"""Errors on public rows of sources that no class holds, and that no fit saw."""
_OF_MEAN = 1.6
"""Half an 80 % interval over the mean absolute error of the rows: 1.28 over 0.80 of a normal distribution."""


def _unseen(what: str, kind: str, case: str, value: float = 0.0) -> Error | None:
    """Return the interval by rows of another source about a case; None without any."""
    for one in UNSEEN.get(kind, ()):
        if case in one["of"] and one.get("least", 0.0) <= value < one.get("below", float("inf")):
            return _of_mean(what, one, one.get("how", "rows that no fit saw"))
    return None


def _of_mean(what: str, one: Mapping[str, Any], rows: str) -> Error:
    off = _OF_MEAN * one["mean"]
    low, high = 1 / (1 + off), 1 + off
    why = f"{what}: {interval_text(low, high)}, from {one['rows']} {rows}, off by {one['mean']:.0%} ({one['source']})"
    return Error(low, high, why)


def exchange_error(library: str) -> Error:
    """Return the 80 % interval of MoE dispatch and combine by a library, with the number of ranks left out of its fit.

    A library without rows has the widest interval of any library.
    """
    known = CARRIED["exchange"]
    what = f"exchanges by {library}"
    if library in known:
        return _measured(what, known[library], "whose number of ranks the fit left out")
    return _widest(what, known)


def _widest(what: str, known: Mapping[str, Sequence[float]]) -> Error:
    """Return the interval of the least exact class, for one without rows."""
    name = max(known, key=lambda one: known[one][1] / known[one][0])
    low, high, rows, _ = known[name]
    return Error(low, high, f"{what}: no public row; {interval_text(low, high)}, from {_rows(rows)} of {name}")


def served_error(kind: str, name: str, gpu: str = "") -> Error:
    """Return the 80 % interval of a kind of inference kernels by library, such as "trtllm-context" of "attention".

    On a GPU without such rows it is that of rows whose GPU was left out of the fit; where no row is about the library,
    it is the widest of any.
    """
    seen, unseen = CARRIED[kind], CARRIED["gpu_left_out"][kind]
    what = f"{kind} by {name}"
    if name in seen and (not gpu or gpu in CARRIED["gpus"][kind][name]):
        return _measured(what, seen[name], f"on {gpu}" if gpu and seen[name][3] == 1 else "of public GPUs")
    if name in unseen:
        low, high, rows, _ = unseen[name]
        none = f"no such row is public for {gpu}; " if gpu else ""
        why = f"{what}: {none}{interval_text(low, high)}, from {_rows(rows)} whose GPU the fit left out"
        return Error(low, high, why)
    return _widest(what, unseen or seen)


def load_error(framework: str, mixture: bool, gpu: Gpu) -> Error | None:
    """Return the 80 % interval of the TPOT of loads that a framework serves on a GPU; None where none is carried.

    Classes hold rows of NVIDIA's GPUs, each model left out of the fit. On others it is by public rows that no fit saw.
    """
    layers, what = ("mixture", "models with experts") if mixture else ("dense", "dense models")
    known: Mapping[str, Sequence[float]] = CARRIED.get("serving", {})
    found = known.get(f"{framework}-{layers}-TPOT")
    if found is None:
        return None
    if gpu.vendor == "nvidia":
        return _measured(f"loads of {what} on {framework}", found, "whose model the fit left out")
    if unseen := _unseen(f"loads on {gpu.name}", "serving", gpu.architecture):
        return unseen
    every = {name: one for name, one in known.items() if name.endswith("TPOT")}
    return _widest(f"loads on {gpu.name}", every)


def kernels_error(kernels: str, mixture: bool, prompts: bool, gpu: Gpu) -> Error:
    """Return the 80 % interval of a server's TPOT, or TTFT of `prompts`, relative to its kernels alone.

    `kernels` are those of a framework, or "vendor". The interval holds what host, sampling and scheduler add. Rows are
    of NVIDIA's GPUs; on others it holds that of public loads on their architecture, too.
    """
    layers, what = ("mixture", "models with experts") if mixture else ("dense", "dense models")
    known = CARRIED["kernels_alone"]
    quantity, clients = ("TTFT", "up to 4") if prompts else ("TPOT", "up to 128")
    name = f"{kernels}-{layers}-{quantity}"
    if name not in known:  # no server's first tokens were measured
        name = f"vendor-{layers}-{quantity}"
    low, high, rows, _ = known[name]
    where = f"loads of {what} with {clients} clients, host and scheduler included"
    if gpu.vendor == "nvidia":
        return Error(low, high, f"{quantity} of servers: {interval_text(low, high)}, from {rows:,.0f} {where}")
    unseen = _unseen(f"loads on {gpu.name}", "serving", gpu.architecture)
    low, high = (min(low, unseen.low), max(high, unseen.high)) if unseen else (low, high)
    none = f"; {unseen.why}" if unseen else f"; no such load is public for {gpu.name}"
    return Error(low, high, f"{quantity} of servers: {interval_text(low, high)}, from {rows:,.0f} {where}{none}")


def attention_error(of: str, query: Any, keys: Any, gpu: str = "") -> Error:
    """Return the 80 % interval of attention by an inference library: of one query a sequence (generation), or more."""
    phase = "generation" if np.all((np.asarray(query) == 1) & (np.asarray(keys) > 1)) else "context"
    return served_error("attention", f"{library('attention', of).name}-{phase}", gpu)


def fused_attention_error(gpu: Gpu) -> Error:
    """Return the 80 % interval of the vendor's fused attention.

    Without published rates on the architecture it is that of GEMMs of machines left out of the fits.
    """
    what = "fused attention"
    for one in UNSEEN["attention"]:
        if gpu.architecture in one["of"]:
            return _of_mean(what, one, "published rates")
    low, high, rows, _ = CARRIED["left_out"]["gemm"][-1]
    where = f"{_rows(rows)} of long GEMMs of machines left out of the fits"
    why = f"{what}: no rate is public for {gpu.architecture}; {interval_text(low, high)}, from {where}"
    return Error(low, high, why)


SCANS = (0.7, 2.5)
"""Measured over predicted time of scans of linear layers [assumed]: no such kernel is among the measured ones.
Triton's kernels may keep more of a chunk on chip than is counted, or reach less of the rates that are taken."""


def scan_error() -> Error:
    """Return the interval of a scan of a linear layer, assumed as none is measured."""
    low, high = SCANS
    return Error(low, high, f"scans: none is measured; {low:g} to {high:g} times the prediction is assumed")


def with_scans(error: Error, share: float) -> Error:
    """Return an interval of times of which a `share` are scans, which no measured time of its class has."""
    if not share:
        return error
    low, high = (end * (1 + share * (factor - 1)) for end, factor in zip((error.low, error.high), SCANS, strict=True))
    why = (
        f"{interval_text(low, high)}: wider for scans of linear layers, {share:.0%} of the time, no kernel of which is "
        f"measured ({SCANS[0]:g} to {SCANS[1]:g} times is assumed); without them {error.why}"
    )
    return Error(low, high, why)


def operator_errors(timed: Iterable[tuple[Op, float]], gpu: Gpu, per_node: int = 0) -> list[str]:
    """Return the classes of error of operators and their times [s] on a GPU, in words, those with the most time first.

    Collectives of more than `per_node` ranks cross nodes; 0 means that all are in one node. Ends with the operators
    whose errors are not carried, and their share of the time.
    """
    if gpu.vendor == "none":
        return [f"no one sells {gpu.name}, so nothing is measured on it"]
    found: dict[str, float] = {}
    unknown: dict[str, float] = {}
    for op, seconds in timed:
        if isinstance(op, Gemm):
            why = gemm_error(gpu.name, seconds).why
        elif isinstance(op, Collective):
            nodes = -(-op.ranks // per_node) if per_node else 1
            why = collective_error(gpu.name, op.name, op.bytes, nodes).why
        elif isinstance(op, Attention) and op.library:
            why = attention_error(op.library, op.query, op.keys, gpu.name).why
        elif isinstance(op, Attention) and op.fused:
            why = fused_attention_error(gpu).why
        elif isinstance(op, Scan):
            why = scan_error().why
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
    """Return the interval of a class on a GPU, else the widest of machines left out."""
    if here is not None and here[place]:
        return _measured(what, here[place], f"on {gpu}")
    found = max((each[place] for each in others if each[place]), key=lambda one: one[1] / one[0])
    return _nearest(what, "", found, gpu)


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
    """Return the 80 % interval of pairs joined by a method, of the class of its time, on a system in-sample or not.

    Of a method without rows in these classes it is by public rows that no fit saw. Without any, as for co-runs in
    chunks and for hypothetical hardware, it is that of serial pairs and of simulated co-runs together.
    """
    place, words = _class("joined", seconds, lambda bound: f"{bound * 1e6:.0f} us")
    column = "seen" if seen else "left_out"
    if method not in CARRIED["joined"] and (unseen := _unseen(method, "joined", method)):
        return unseen
    if method not in CARRIED["joined"]:
        serial, both = joined_error("sequential", seconds, seen=seen), _corun()
        low = math.exp(-math.hypot(math.log(serial.low), math.log(both[0])))
        high = math.exp(math.hypot(math.log(serial.high), math.log(both[1])))
        return Error(low, high, f"no public row; {interval_text(low, high)}, from serial pairs and {_corun_rows()}")
    classes = CARRIED["joined"][method][column]
    found = classes[place] or max(filter(None, classes), key=lambda one: one[1] / one[0])
    how = "in-sample of the software costs" if seen else "held out of the software costs"
    systems = f"on {found[3]:.0f} system{'s' * (found[3] != 1)}"
    return _measured(f"{method} {words}", found, f"{systems} {how}")


def gain_error(method: str, *, seen: bool) -> Error:
    """Return the 80 % interval of the speedup of a method over the serial pair, relative to the predicted.

    GEMM and collective are the same in both, so it is narrower than that of either time. On a system in-sample or not;
    of a method that was not measured beside its serial pair it is that of the makespans of simulated co-runs.
    """
    found = CARRIED["gain"].get(method)
    if found is None:
        low, high = _corun()
        low, high = 1 / high, 1 / low
        return Error(low, high, f"speedup: no public row; {interval_text(low, high)}, from {_corun_rows()}")
    low, high, rows, systems = found["seen" if seen else "left_out"]
    return Error(
        low, high, f"speedup of {method}: {interval_text(low, high)}, from {_rows(rows)} on {systems:.0f} systems"
    )


def _corun() -> tuple[float, float]:
    low, high, *_ = CARRIED["corun"]["makespan"]
    return low, high


def _corun_rows() -> str:
    *_, rows, systems = CARRIED["corun"]["makespan"]
    return f"{_rows(rows)} of simulated co-runs on {systems:.0f} systems"
