"""Whether to fuse: a GEMM and the collective that it needs, serially, in chunks that co-run, and fused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_args

from weft import hardware
from weft.core.answer import Answer, to_plain
from weft.core.contrast import UNRESOLVED
from weft.core.errors import InputError, UnknownNameError, check_name, check_type, check_whole, show_value
from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.core.units import Dimension, parse
from weft.estimate.errors import Error, gain_error, joined_error
from weft.graph import Collective, Driver, Edge, Gemm, Graph, Node
from weft.graph.collective import PairForm
from weft.hardware import Described, System
from weft.kernels.library import software
from weft.models.parallel import dependent, share_of
from weft.models.parallel.deployment import Deployment
from weft.overlaps import OVERLAPS, SEQUENTIAL, CoRunStrategy, OverlapMethod
from weft.overlaps.graphs import PATTERNS
from weft.step.durations import DurationCache, OperatorTimes
from weft.step.overlaps import TimedPair, join
from weft.step.spans import time_nodes

CHUNKS = (2, 4, 8)
"""Chunks of rows into which a pair is cut whose chunks co-run; the fastest number is taken."""
_FUTURE: Mapping[PairForm, str] = {"ag_gemm": "t3-all-gather", "gemm_rs": "t3-mca", "gemm_ar": "t3-mca"}
"""The method on hypothetical hardware that is compared unless others are named."""
_HALF_OCTAVES = (1.0, 1.5)
"""Values of M per doubling of a sweep."""


class FuseOption(NamedTuple):
    """One way to run both: its time [s], the factors of its 80 % interval and why, and its speedup over serial.

    `low` and `high` are the ends of the speedup's 80 % interval, and `gain` its factors and why.

    `chunks` counts the parts of a pair whose chunks co-run; None for a method that joins the pair itself. `needs` names
    hardware that the system lacks.
    """

    method: str
    chunks: int | None
    seconds: float
    error: Error
    speedup: float
    low: float
    high: float
    gain: Error
    needs: str = ""

    @property
    def name(self) -> str:
        """The method, and its chunks if it has some."""
        if self.chunks is None:
            return self.method
        return f"{self.method} (serial)" if self.chunks == 1 else f"{self.method} ({self.chunks} chunks)"

    @property
    def verdict(self) -> str:
        """Return "faster", "slower" or `UNRESOLVED`, against running serially; "" for the serial pair itself."""
        if self.method == SEQUENTIAL:
            return ""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else UNRESOLVED


@dataclass(frozen=True, repr=False)
class FuseAdvice(Answer):
    """One GPU's part of `gemm` and its collective over the GPUs of `system`, run in every way.

    `gemm_s` and `collective_s` are the times of both alone [s]. `options` begins with the serial pair, `left_out` has
    the methods that do not apply, each with the reason. `seen` says whether the software costs were calibrated on
    the system's rows; if not, the errors are those with one system left out. `curve` has the same
    advice for other M.
    """

    kind = "fuse advice"

    form: PairForm
    gemm: Gemm
    system: System
    seen: bool
    gemm_s: float
    collective_s: float
    collective: Collective
    fidelity: Fidelity
    options: tuple[FuseOption, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    curve: tuple[FuseAdvice, ...] = ()

    @property
    def ranks(self) -> int:
        """GPUs that share the pair."""
        return self.system.gpus

    @property
    def serial(self) -> FuseOption:
        """The GEMM and the collective serially."""
        return self.options[0]

    @property
    def available(self) -> tuple[FuseOption, ...]:
        """Options besides the serial pair that the system has the hardware for."""
        return tuple(one for one in self.options[1:] if not one.needs)

    @property
    def best(self) -> FuseOption | None:
        """The fastest option besides the serial pair that the system has the hardware for; None without any."""
        return min(self.available, key=lambda one: one.seconds, default=None)

    @property
    def ideal_saving(self) -> float:
        """The rule of thumb: at most the shorter part can be hidden, min(G, C) / (G + C) of the serial time."""
        return min(self.gemm_s, self.collective_s) / (self.gemm_s + self.collective_s)

    @property
    def pays_from(self) -> int | None:
        """The least M of the curve from which on some option is faster than serial; None if there is none."""
        return self._from(lambda one: one.speedup > 1)

    @property
    def surely_pays_from(self) -> int | None:
        """The least M of the curve from which on some option is faster beyond its 80 % interval; None if none."""
        return self._from(lambda one: one.low > 1)

    def _from(self, pays: Callable[[FuseOption], bool]) -> int | None:
        found = None
        for one in reversed(self.curve):
            if not any(map(pays, one.available)):
                break
            found = one.gemm.m
        return found

    def option(self, method: str) -> FuseOption:
        """Return the option of a method; UnknownNameError for a method that is not among the options."""
        for one in self.options:
            if one.method == method:
                return one
        raise UnknownNameError("option", method, [one.method for one in self.options], True)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; times in seconds."""
        options = [
            {
                "method": one.method, "chunks": one.chunks, "seconds": one.seconds,
                "seconds_80": one.error.around(one.seconds), "speedup": one.speedup,
                "speedup_80": (one.low, one.high), "verdict": one.verdict, "why": one.error.why,
                "speedup_why": one.gain.why, "needs": one.needs,
            }
            for one in self.options
        ]  # fmt: skip
        best = self.best
        return to_plain(
            form=self.form, gemm=[self.gemm.m, self.gemm.n, self.gemm.k], dtype=self.gemm.dtype, ranks=self.ranks,
            system=self.system.name, seen=self.seen, fidelity=self.fidelity, gemm_alone_s=self.gemm_s,
            collective_alone_s=self.collective_s, collective_bytes=self.collective.bytes,
            ideal_saving=self.ideal_saving, best=None if best is None else best.method, options=options,
            left_out=self.left_out, pays_from_m=self.pays_from, surely_pays_from_m=self.surely_pays_from,
            curve=[one.to_dict() for one in self.curve],
        )  # fmt: skip


def advise_fuse(
    form: PairForm,
    gemm: Gemm,
    ranks: int,
    on: Described,
    *,
    methods: Sequence[str] | None = None,
    fidelity: Fidelity = "windows",
    m_range: tuple[int, int] | None = None,
    gemm_time: float | str | None = None,
    framework: bool = True,
    options: RunOptions = SUSTAINED,
) -> FuseAdvice:
    """Return whether to fuse a GEMM with the collective that it needs: every way to run both, with time and verdict.

    `gemm` is the whole one, shared by `ranks` GPUs. `form` says which collective comes before or after it. `methods`
    are overlap methods and co-run strategies (None: all that run on today's hardware, and T3). For methods that join
    the pair (Flux, userbuffers, async TP, in-network, T3) `weft.step` gives the same time at the same `fidelity`.
    Co-run strategies run the pair in chunks of rows, each chunk's collective with the GEMM of another chunk (the next
    one; before a GEMM, the previous one), as no step does. `gemm_time` is the measured time of one GPU's GEMM alone by
    a kernel of your own, like "57 us" or in seconds (None: the library's kernel, as predicted). With a `framework` both
    are called from two streams of one, else they are replayed from one CUDA or HIP graph. `m_range` adds the advice for
    other M between its ends, by co-run strategies and methods with a closed form (without T3).

    Raises UnknownNameError for an unknown form, method or GPU, InputError for a named method that does not apply, for
    dimensions that the ranks cannot share, for a range of M that holds fewer than two multiples of `ranks`, and what
    `weft.estimate` raises.

    >>> found = advise_fuse("ag_gemm", Gemm(8192, 28672, 8192), 8, "h100-sxm", fidelity="estimate")
    >>> found.option("flux").verdict
    'faster'
    """
    check_name("form of a dependent collective", form, get_args(PairForm))
    check_name("fidelity", fidelity, get_args(Fidelity))
    check_type("the GEMM", gemm, Gemm, "give weft.gemm(8192, 28672, 8192)")
    check_whole("ranks", ranks, 2, 8)
    system = hardware.system(on, gpus=ranks)
    chosen, left_out = _choose(form, methods, fidelity)
    own = _own_time(gemm_time)
    if m_range is not None and own is not None:
        ends = ",".join(map(str, m_range))
        raise InputError(
            f"gemm_time is {gemm_time} for M {gemm.m}, and m_range {ends} asks for other M; leave one of them out"
        )
    rows = [] if m_range is None else _rows(m_range, ranks)
    pair = _Pair(form, gemm, system, fidelity, framework, options, DurationCache(system, options), own)
    found = pair.advice(chosen, left_out, named=methods is not None)
    if m_range is None:
        return found
    quick = [name for name in chosen if _co_runs(name) or _in_closed_form(OVERLAPS[name])]
    curve = []
    for m in rows:
        other = replace(pair, gemm=replace(gemm, m=m))
        curve.append(other.advice(quick, {}, named=False))
    return replace(found, curve=tuple(curve))


def _own_time(stated: float | str | None) -> float | None:
    """Return the stated time of a GEMM [s]; InputError for none above zero, UnitError for a text without a unit."""
    seconds: object = parse(stated, Dimension.SECONDS) if isinstance(stated, str) else stated
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise InputError(f"gemm_time is {show_value(stated)}; it must be a time above zero, like '57 us'")
    return seconds


def _rows(ends: tuple[int, int], ranks: int) -> list[int]:
    """Return the values of M of a sweep: multiples of the ranks, two in each doubling."""
    low, high = ends
    if not 0 < low < high:
        raise InputError(f"the range of M is {low},{high}; give the least and the largest, like 512,32768")
    found = {-(-low // ranks) * ranks, high // ranks * ranks}
    at = 1
    while at < high:
        found |= {round(at * step) // ranks * ranks for step in _HALF_OCTAVES if low <= at * step <= high}
        at *= 2
    rows = sorted(one for one in found if low <= one <= high)
    if len(rows) < 2:
        raise InputError(
            f"the range of M is {low},{high}; it holds {len(rows)} multiples of the {ranks} GPUs, and two are needed: "
            "give a wider range, like 512,32768"
        )
    return rows


def _co_runs(name: str) -> bool:
    """Return whether a method is a co-run strategy, under which the pair runs in chunks."""
    return isinstance(OVERLAPS[name], CoRunStrategy)


def _in_closed_form(method: OverlapMethod) -> bool:
    return bool(method.closed_forms)


def _choose(form: PairForm, methods: Sequence[str] | None, fidelity: Fidelity) -> tuple[list[str], dict[str, str]]:
    """Return the methods to compare, and those that are left out with the reasons; InputError for a named one."""
    joining = [
        name for name, one in OVERLAPS.items()
        if one.joins_gemms and one.compared and not one.parts and not one.leaves_out and name != SEQUENTIAL
    ]  # fmt: skip
    offered = [*joining, *filter(_co_runs, OVERLAPS)]
    asked = offered
    if methods is not None:
        for name in methods:
            if name not in OVERLAPS:
                raise UnknownNameError("overlap", name, [SEQUENTIAL, *offered], True)
            if name not in (SEQUENTIAL, *offered):
                raise InputError(
                    f"the overlap '{name}' is no way to run a GEMM with its own collective; choose one of "
                    f"{', '.join(offered)}"
                )
        asked = [name for name in methods if name != SEQUENTIAL]
        if not asked:
            raise InputError(f"every method is compared with '{SEQUENTIAL}'; name another one, like flux")
    chosen, left_out = [SEQUENTIAL], {}
    for name in dict.fromkeys(asked):
        one = OVERLAPS[name]
        why = _not_for(one, form, fidelity)
        if why and methods is not None:
            known = [other for other in offered if not _not_for(OVERLAPS[other], form, fidelity)]
            raise InputError(f"the overlap '{name}' {why}; choose one of {', '.join(known)}")
        future = not _in_closed_form(one) and not _co_runs(name) and bool(one.hardware_needs)
        if not why and methods is None and future and name != _FUTURE.get(form):
            why = f"is a variant on hypothetical hardware; ask with --compare {name}"
        if why:
            left_out[name] = why
        else:
            chosen.append(name)
    return chosen, left_out


def _not_for(one: OverlapMethod, form: PairForm, fidelity: Fidelity) -> str:
    """Return why a method cannot be compared on a form at a fidelity; "" if it can."""
    closed = "only the engine times it; ask with the fidelity 'windows'"
    if isinstance(one, CoRunStrategy):
        if not one.moves(form in ("gemm_rs", "gemm_ar")):
            return "moves data by copy engines, which cannot add: no reduce-scatter or all-reduce"
        return closed if fidelity == "estimate" and not one.applies("tp", "closed form") else ""
    if not one.applies_to(form):
        own = [PATTERNS[each] for each in one.patterns if each in PATTERNS]
        return f"is for {' or '.join(own)}"
    return closed if fidelity == "estimate" and not one.estimates(form) else ""


@dataclass(frozen=True)
class _Pair:
    """Times one GPU's part of a whole GEMM and its collective, as a step does."""

    form: PairForm
    gemm: Gemm
    system: System
    fidelity: Fidelity
    framework: bool
    options: RunOptions
    known: DurationCache
    gemm_time: float | None = None

    def advice(self, methods: Sequence[str], left_out: Mapping[str, str], named: bool) -> FuseAdvice:
        """Return the advice by methods, the serial pair first; what cannot run is left out unless it was named."""
        ranks = self.system.gpus
        work = dependent(self.form, share_of(self.form, self.gemm, ranks), ranks)
        (gemm,), (moved,) = (tuple(node.op for node in nodes) for nodes in (work.gemms, work.collectives))
        assert isinstance(gemm, Gemm)
        assert isinstance(moved, Collective)
        prices = self._prices()
        library_s, moved_s = prices.of(gemm), prices.of(moved, "tp")
        gemm_s = self.gemm_time or library_s
        reasons, found = dict(left_out), list[tuple[str, int | None, float]]()
        for name in methods:
            needs = OVERLAPS[name].missing_hardware(self.system)
            if needs and not named and name != _FUTURE.get(self.form):
                reasons[name] = needs.removeprefix(f"{name} ").removesuffix(".")
                continue
            try:
                chunks, seconds = self._seconds(name, gemm, moved, moved_s, gemm_s / library_s)
                found.append((name, chunks, seconds))
            except InputError as error:
                if named:
                    raise
                reasons[name] = str(error)
        seen = self.system.name in software.rows()["systems"]
        return FuseAdvice(
            form=self.form, gemm=self.gemm, system=self.system, seen=seen, gemm_s=gemm_s, collective_s=moved_s,
            collective=moved, fidelity=self.fidelity, left_out=reasons,
            options=tuple(self._rated(found, seen)),
        )  # fmt: skip

    def _prices(self, strategy: str = "") -> OperatorTimes:
        plan = Deployment(tp=self.system.gpus, overlap={"tp": strategy} if strategy else {})
        return OperatorTimes(self.system, plan, self.options, self.fidelity, self.known)

    def _seconds(
        self, name: str, gemm: Gemm, moved: Collective, moved_s: float, kernel: float
    ) -> tuple[int | None, float]:
        """Return the time of both by a method [s], and the chunks of one whose chunks co-run.

        `kernel` is how many times as long as the library's the GEMM's own kernel takes.
        """
        if _co_runs(name):
            return min(self._in_chunks(name, gemm, moved, kernel), key=lambda one: one[1])
        gather_s = 0.0
        if moved.name == "all_reduce":
            gather_s = min(self._prices().of(replace(moved, name="all_gather"), "tp"), moved_s)
        pair = TimedPair(
            gemm, moved, self._prices().of(gemm) * kernel, moved_s, gather_s, self.system, self.options,
            self.framework, self.form, kernel,
        )  # fmt: skip
        return None, sum(join(pair, name))

    def _in_chunks(self, strategy: str, gemm: Gemm, moved: Collective, kernel: float) -> Iterator[tuple[int, float]]:
        """Yield numbers of chunks and the time of both in chunks of rows, whose GEMMs and collectives co-run [s].

        Copy engines also run the whole pair serially.
        """
        prices, gap = self._prices(strategy), self.framework * software.costs()["sequential.gap"]
        method = OVERLAPS[strategy]
        assert isinstance(method, CoRunStrategy)
        one_by_one = (1,) if method.driver is Driver.DMA and not method.partition else ()
        fit = [chunks for chunks in (*one_by_one, *CHUNKS) if gemm.m % (chunks * self.system.gpus) == 0]
        if not fit:
            raise InputError(
                f"M is {self.gemm.m}, which {CHUNKS[0]} chunks over {self.system.gpus} GPUs cannot share evenly"
            )
        for chunks in fit:
            graph = _chunk_graph(self.form, gemm, moved, chunks)
            alone = prices.graph(graph)
            seconds = {name: each * kernel if name == "gemm" else each + gap for name, each in alone.items()}
            took = time_nodes(graph, seconds, prices.windows).seconds
            unknown = [one.why for one in prices.windows.found.values() if one.source == "none"]
            if unknown and chunks > 1:
                raise InputError(unknown[0])
            yield chunks, took

    def _rated(self, found: Sequence[tuple[str, int | None, float]], seen: bool) -> Iterator[FuseOption]:
        """Yield the options with their intervals; the serial pair has the same GEMM and collective as all others."""
        before = found[0][2]
        for name, chunks, seconds in found:
            # one chunk is the serial pair on other engines
            error = joined_error(SEQUENTIAL if chunks == 1 else name, seconds, seen=seen)
            speedup, off = before / seconds, gain_error(name, seen=seen)
            ends = (1.0, 1.0) if name == SEQUENTIAL else off.around(speedup)
            needs = OVERLAPS[name].missing_hardware(self.system)
            yield FuseOption(name, chunks, seconds, error, speedup, *ends, off, needs)


def _chunk_graph(form: PairForm, gemm: Gemm, moved: Collective, chunks: int) -> Graph:
    """Return a pair cut into chunks of rows: GEMMs in one stream, collectives in another, each waits for its own."""
    part, piece = replace(gemm, m=gemm.m // chunks), replace(moved, bytes=moved.bytes // chunks)
    nodes: list[Node] = []
    for at in range(chunks):
        end = f".{at}" if at else ""
        computes, moves = f"gemm{end}", f"{moved.name}{end}"
        edges = {computes: (), moves: (Edge(computes),)}
        if form == "ag_gemm":
            edges = {moves: (), computes: (Edge(moves),)}
        for id_, after in edges.items():
            op, stream = (part, "compute") if id_ == computes else (piece, "tp")
            nodes.append(Node(op, id_.partition(".")[0], at, stream=stream, after=after))
    return Graph(tuple(nodes), moved.ranks)
