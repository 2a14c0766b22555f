"""The bar that the shipped models are held to: errors on rows and machines that no fit saw, demand by demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from weft.validation.calibration import hold_out, leave_one_out
from weft.validation.collectives import FROM_MACHINE
from weft.validation.contentions import QUANTITIES
from weft.validation.gemms import LONG, SHORT
from weft.validation.layers import TOTAL
from weft.validation.overlaps import FLUX, FLUX_METHODS, SEQUENTIAL, right_signs
from weft.validation.run import Validation
from weft.validation.subjects import BoolArray, Predicted, Progress, Subject, errors_of, joined

Protocol = Literal["held out", "leave one out", "as shipped"]
"""On which rows an error counts: a random 30 %, a machine whose rows no fit saw, or all."""
Which = Callable[[Subject], BoolArray]

SPLITS = 3
"""How many random splits the held-out errors are averaged over: small groups depend on which rows a split takes."""


@dataclass(frozen=True)
class Line:
    """One demand: what, on which rows, the statistic and its limit; and what was reached (None without rows)."""

    what: str
    protocol: Protocol
    statistic: str
    limit: float
    reached: float | None
    rows: int
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Whether the demand is met, in a word; "no rows" if there were none to tell."""
        if self.reached is None:
            return "no rows"
        holds = self.reached >= self.limit if self.at_least else self.reached <= self.limit
        return "pass" if holds else "MISS"

    def to_dict(self) -> dict[str, Any]:
        """The line as plain data."""
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Demand:
    """Limits on the errors of some rows of one kind, by statistic: mean, p90 or geomean of the absolute error."""

    what: str
    kind: str
    protocol: Protocol
    limits: Mapping[str, float]
    which: Which

    def lines(self, predictions: Sequence[Predicted]) -> list[Line]:
        """The demand measured on predictions made by its protocol."""
        chosen = [part.take(self.which(part.subject)) for part in predictions if part.subject.kind == self.kind]
        chosen = [part for part in chosen if len(part.subject)]
        if not chosen:
            return [Line(self.what, self.protocol, name, limit, None, 0) for name, limit in self.limits.items()]
        errors = errors_of(*joined(chosen))
        by_name = {"mean": errors.mean_abs_err, "p90": errors.p90_abs_err, "geomean": errors.geomean_err}
        return [
            Line(self.what, self.protocol, name, limit, by_name[name], errors.rows)
            for name, limit in self.limits.items()
        ]


def where(machines: Sequence[str] = (), size: str = "", **labels: Sequence[Any]) -> Which:
    """Rows of some machines, within a class of size, whose labels are among those given; nothing means any."""

    def which(subject: Subject) -> BoolArray:
        nowhere = np.zeros(len(subject), dtype=np.bool_)
        mask = np.full(len(subject), not machines or subject.machine in machines)
        if size:
            mask &= subject.ranges.get(size, nowhere)
        for name, values in labels.items():
            mask &= np.isin(subject.labels[name], list(values)) if name in subject.labels else nowhere
        return mask

    return which


HALF = ("bf16", "fp16")
_TUNED = {
    "A100": ("a100-sxm-80gb",),
    "H100": ("h100-sxm",),
    "B200": ("b200",),
    "L40S": ("l40s",),
    "MI210, MI250X": ("mi210", "mi250x-gcd"),
}
_SINGLE = {"MI210": ("mi210",), "A100": ("a100-pcie-80gb", "a100-sxm-80gb"), "H100": ("h100-sxm",)}
SIZES = {">= 16 MiB": 0.035, ">= 1 MiB": 0.045, "all sizes": 0.06}
"""Classes of size of a collective, and how far off they may be on average inside one node."""
_NCCL_GPUS = ("a100-sxm-80gb", "h100-sxm", "b200")
_NCCL = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")


def demands() -> list[Demand]:
    """Every demand that the models must meet."""
    return [*_gemms(), *_collectives(), *_layers(), *_simulated()]


def _gemms() -> Iterator[Demand]:
    for name, machines in _TUNED.items():
        what = f"GEMM bf16/fp16, {name}"
        at_least_20us = where(machines, LONG, dtype=HALF)
        yield Demand(f"{what}, {LONG}", "gemm", "held out", {"mean": 0.08, "p90": 0.18}, at_least_20us)
        yield Demand(f"{what}, {SHORT}", "gemm", "held out", {"mean": 0.15}, where(machines, SHORT, dtype=HALF))
        yield Demand(f"{what}, {LONG}", "gemm", "leave one out", {"mean": 0.15}, at_least_20us)
    for name, machines in _SINGLE.items():
        rows = where(machines, dtype=("fp32",))
        yield Demand(f"GEMM fp32, {name}", "gemm", "held out", {"mean": 0.10, "p90": 0.25}, rows)
        yield Demand(f"GEMM fp32, {name}", "gemm", "leave one out", {"mean": 0.18}, rows)
    yield Demand("GEMM fp8, H100", "gemm", "held out", {"mean": 0.10}, where(("h100-sxm",), dtype=("fp8",)))


def _collectives() -> Iterator[Demand]:
    one_node = {"library": ("nccl",), "nodes": (1,), "collective": _NCCL}
    for who, only in (("every row", {}), ("nccl-tests", {"host": ("",)})):
        for size, limit in SIZES.items():
            rows = where((), size, **one_node, **only)
            yield Demand(f"NCCL, one node, {who}, {size}", "collective", "held out", {"mean": limit}, rows)
    yield Demand("NCCL, one node, every row", "collective", "leave one out", {"mean": 0.20}, where((), "", **one_node))
    for gpu in _NCCL_GPUS:
        rows = where((gpu,), "", **one_node)
        yield Demand(f"NCCL, one node, {gpu}", "collective", "held out", {"mean": 0.06}, rows)
        yield Demand(f"NCCL, one node, {gpu}", "collective", "leave one out", {"mean": 0.20}, rows)
    rows = where(("mi250x-gcd", "mi210"), "", library=("rccl",), nodes=(1,))
    yield Demand("RCCL, MI200", "collective", "held out", {"mean": 0.07}, rows)
    # Too few rows to fit, and the catalogue's values come from others.
    rows = where(("mi300x",), "", library=("rccl",), nodes=(1,))
    yield Demand("RCCL, MI300X", "collective", "as shipped", {"mean": 0.07}, rows)
    many = {"nodes": tuple(range(2, 1000)), "library": ("nccl", "rccl")}
    yield Demand("two nodes and more", "collective", "held out", {"mean": 0.20}, where((), "", **many))
    rows = where((), "", **many, network=(FROM_MACHINE,))
    what = "two nodes and more, networks not read from the rows"
    yield Demand(what, "collective", "held out", {"mean": 0.20}, rows)


def _layers() -> Iterator[Demand]:
    what = "GPT-3 layer, TP 4, prefill"
    total, each = where((), TOTAL, phase=("prefill",)), where((), "each operator", phase=("prefill",))
    yield Demand(f"{what}: total", "layer", "as shipped", {"mean": 0.03}, total)
    yield Demand(f"{what}: each operator", "layer", "as shipped", {"mean": 0.10}, each)


def _simulated() -> Iterator[Demand]:
    what = "ring reduce-scatter in the engine, 6 to 192 MB"
    yield Demand(what, "ring", "as shipped", {"geomean": 0.06}, where())
    for quantity in QUANTITIES:
        rows = where(quantity=(quantity,))
        yield Demand(f"contention cell, {quantity}", "contention", "as shipped", {"mean": 0.10}, rows)
    sequential, overlapped = where((), FLUX, method=(SEQUENTIAL,)), where((), FLUX, method=FLUX_METHODS)
    yield Demand(f"{FLUX}: sequential", "overlap", "as shipped", {"mean": 0.08}, sequential)
    yield Demand(f"{FLUX}: overlapped", "overlap", "as shipped", {"mean": 0.12}, overlapped)


def lines(demands: Sequence[Demand], predictions: Mapping[Protocol, Sequence[Predicted]]) -> list[Line]:
    """Every demand's lines; one whose protocol was not run says that there were no rows."""
    return [line for demand in demands for line in demand.lines(predictions.get(demand.protocol, ()))]


def judged(validation: Validation, progress: Progress | None = None) -> list[Line]:
    """Every demand with what was reached: held out, leaving one machine out, and as shipped."""
    subjects = [part.subject for part in validation.predictions if part.subject.parameters]

    splits = [hold_out(subjects, _part(progress, seed), seed) for seed in range(SPLITS)]
    predictions: dict[Protocol, list[Predicted]] = {
        "held out": [each.held_out for split in splits for each in split],
        "leave one out": leave_one_out(subjects, {each.subject.name: each.fit.firm() for each in splits[0]}),
        "as shipped": list(validation.predictions),
    }
    return [*lines(demands(), predictions), _signs(validation)]


def _part(progress: Progress | None, split: int) -> Progress | None:
    """Progress through all splits from that through one of them."""
    if progress is None:
        return None
    return lambda done, total, what: progress(split * total + done, SPLITS * total, what)


def _signs(validation: Validation) -> Line:
    """Whether overlapping wins or loses over the sequence is what a user decides by."""
    right, count = right_signs(validation.predictions)
    reached = right / count if count else None
    return Line(f"{FLUX}: right sign of win or loss", "as shipped", "share", 0.85, reached, count, at_least=True)
