"""Whether overlapping pays: a GEMM and its collective joined in every way, with the error of each answer's class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

from weft import hardware
from weft.core.answer import to_plain
from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate import BenchmarkProtocol
from weft.estimate.errors import joined_error
from weft.graph import Collective, Gemm
from weft.graph.collective import Form
from weft.hardware import Described
from weft.kernels.library import software
from weft.models.parallel import dependent, share_of
from weft.overlaps import OVERLAPS, SEQUENTIAL, applicable, find_overlap
from weft.overlaps.pairs import PairTimes, pair_of

Verdict = Literal["yes", "likely", "even", "unlikely", "no"]
"""Whether a way pays: beyond its error ("yes", "no"), within it, or by less than half of it ("even")."""


class Join(NamedTuple):
    """One way to join both: its time [s], half the 80 % interval of its class, and its speedup with its interval."""

    method: str
    seconds: float
    error: float
    why: str
    speedup: float
    low: float
    high: float

    @property
    def pays(self) -> Verdict:
        """Whether it is faster than the sequence."""
        if self.low > 1:
            return "yes"
        if self.high < 1:
            return "no"
        half = 1 + (self.high / self.speedup - 1) / 2
        if 1 / half < self.speedup < half:
            return "even"
        return "likely" if self.speedup > 1 else "unlikely"


@dataclass(frozen=True)
class Joins:
    """One GPU's part of `gemm` and its collective over `ranks` GPUs of a system, joined in every way by software.

    `seen` says whether the system's rows were in sight of the software costs: the errors are then those of its rows,
    else those with one system left out.
    """

    form: Form
    gemm: Gemm
    ranks: int
    system: str
    seen: bool
    pair: PairTimes
    methods: tuple[str, ...]

    @cached_property
    def ways(self) -> tuple[Join, ...]:
        """Every method, sequential first."""
        times = {method: float(OVERLAPS[method].seconds(self.pair)) for method in self.methods}
        before = times[SEQUENTIAL]
        errors = {method: joined_error(method, seconds, seen=self.seen) for method, seconds in times.items()}
        found = []
        for method, seconds in times.items():
            error, speedup = errors[method], before / seconds
            # the sequence has the same GEMM and collective: of the ratio's error the method's own remains
            ends = (1.0, 1.0) if method == SEQUENTIAL else (speedup / error.high, speedup / error.low)
            found.append(Join(method, seconds, error.value, error.why, speedup, *ends))
        return tuple(found)

    @property
    def sentence(self) -> str:
        """The answer in words, with the class of its error."""
        _, *others = self.ways
        best = max(others, key=lambda way: way.speedup)
        said = {
            "yes": f"Overlap: {best.method} is",
            "even": f"Overlap makes no difference that Weft can see: the best way, {best.method}, is",
            "likely": f"Overlap likely pays: {best.method} is",
            "unlikely": f"Overlap is unlikely to pay: the best way, {best.method}, is",
            "no": f"Do not overlap: the best way, {best.method}, is",
        }[best.pays]
        where = (
            "in-sample: these costs were fitted on it"
            if self.seen
            else "held out: errors of systems left out of the fit"
        )
        rest = "".join(f" {way.method}: {way.pays}, {way.speedup:.2f}x." for way in others if way != best)
        return (
            f"{said} {best.speedup:.2f}x the speed of the sequence, typically {best.low:.2f}x to {best.high:.2f}x "
            f"({self.system} was {where}).{rest}"
        )

    @property
    def errors(self) -> str:
        """The class of each way's error, in words."""
        return f"typical errors: {'; '.join(way.why for way in self.ways)}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; times in seconds."""
        ways = [{**way._asdict(), "pays": None if way.method == SEQUENTIAL else way.pays} for way in self.ways]
        return to_plain(
            form=self.form, gemm=[self.gemm.m, self.gemm.n, self.gemm.k], dtype=self.gemm.dtype, ranks=self.ranks,
            system=self.system, seen=self.seen, gemm_alone_s=self.pair.gemm, collective_alone_s=self.pair.collective,
            ways=ways,
        )  # fmt: skip


def joins(
    form: Form,
    gemm: Gemm,
    ranks: int,
    system: Described,
    options: RunOptions = SUSTAINED,
    harness: BenchmarkProtocol | None = None,
    methods: Sequence[str] | None = None,
) -> Joins:
    """Return how long a GEMM split over `ranks` GPUs and its collective take, joined in several ways; `gemm` is the
    whole one.

    `methods` are overlap methods that join such a pair and have a closed form (None: all of them); "sequential" is
    added. Raises UnknownNameError for an unknown method, InputError for one that does not apply and for dimensions that
    the ranks cannot share, and what `weft.estimate` raises.
    """
    chosen = _choose_methods(form, methods)
    on = hardware.system(system, gpus=ranks) if isinstance(system, str) else hardware.system(system)
    work = dependent(form, share_of(form, gemm, ranks), ranks)
    pair = pair_of(work, on, options, harness)
    (moved,) = (node.op for node in work.collectives)
    for method in chosen:
        pair = OVERLAPS[method].complete(pair, cast(Collective, moved), on, options)
    return Joins(form, gemm, ranks, on.name, on.name in software.rows()["systems"], pair, chosen)


def _choose_methods(form: Form, methods: Sequence[str] | None) -> tuple[str, ...]:
    """Return the methods by name, sequential first; InputError for one without a closed form or not for such a pair."""
    offered = [name for name in applicable("sub-layer", "closed form") if OVERLAPS[name].applies_to(form)]
    if methods is None:
        return tuple(dict.fromkeys((SEQUENTIAL, *offered)))
    named = [find_overlap(name, "sub-layer", "closed form") for name in methods]
    for method in named:
        if not method.applies_to(form):
            raise InputError(f"the overlap '{method.name}' does not join {form}; choose one of {', '.join(offered)}")
    if all(method.in_sequence for method in named):
        others = ", ".join(name for name in offered if name != SEQUENTIAL)
        raise InputError(f"every method is compared with '{SEQUENTIAL}'; name another one of {others}")
    return tuple(dict.fromkeys((SEQUENTIAL, *(method.name for method in named))))
