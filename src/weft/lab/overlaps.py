"""Measured GEMMs with a collective before, after or beside them: by the engine and by closed forms.

Kernels fused tile by tile, and chunks on several streams, are simulated where the engine can cut the shape; software
costs are added (`weft.overlaps`). Sequences and async TP are in closed form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import SHORT, Clock, RunOptions
from weft.graph import Collective, Gemm, concurrent
from weft.graph.collective import Form
from weft.hardware import System
from weft.kernels.library.collectives import canonical
from weft.lab.checks import Unfit, check_multiplies, unfit_rows
from weft.lab.kinds import Columns, RowKind, RowMachine
from weft.lab.problems import Problem
from weft.lab.rigs import rig_of
from weft.lab.seen import seen_overlap, seen_systems
from weft.lab.subjects import BoolArray, Predicted
from weft.lab.tables import FloatArray, Measurements
from weft.models.parallel import dependent, share_of
from weft.overlaps import OVERLAPS, SEQUENTIAL, STRATEGIES
from weft.overlaps.lower.machine import default_request_bytes
from weft.overlaps.pairs import PairTimes, pair_of

QUANTITIES = ("GEMM slowdown", "collective slowdown", "makespan")
"""The compared quantities: two ratios of concurrent over isolated time, and a time [s]."""
FLUX = "Flux, NVLink"
"""The rows of Flux's paper and README on A100, A800 and H800 with NVLink."""
_JOINS: Mapping[str, str] = {
    **dict.fromkeys(
        ("async-tp", "async tp", "decompos", "symm_mem", "torch fused", "fused_all_gather", "fused_matmul"),
        "async-tp",
    ),
    **dict.fromkeys(("transformerengine", "userbuffers"), "userbuffers"),
    **dict.fromkeys(
        (
            *(
                "flux",
                "triton",
                "tilelink",
                "fused",
                "pallas",
                "collective matmul",
                "all-gather-matmul",
                "flashoverlap",
            ),
            *("comm-aware", "helion", "kraken", "kittens", "cutlass", "cublasmp", "nvshmem", "iris"),
        ),
        "flux",
    ),
}
"""The overlap method of a measured system, by a word of its name."""
FLUX_METHODS = ("flux", "TransformerEngine-1.4-userbuffers")
"""The methods that Flux's authors compared with running GEMM and collective in sequence."""
_COLLECTIVES = {"ag_gemm": "all_gather", "gemm_rs": "reduce_scatter", "gemm_ar": "all_reduce"}
_SUM = 0.01  # relative difference up to which a sequence counts as the sum of both parts alone
_BY = re.compile(r"system=([^;]+)")
_LOCAL = re.compile(r"local_gemm=(\d+)x(\d+)x(\d+)")


def family(method: str) -> str:
    """The word that identifies a measured system among those that join GEMM and collective alike, or its name."""
    return next((word for word in _JOINS if word in method.lower()), method)


@dataclass(frozen=True)
class MeasuredPair:
    """One measured row: the GEMM of each rank and of all [m, n, k], and who joined it with its collective.

    `alone` says that the row's sequence is the sum of both kernels alone, so that its times hold no framework's costs;
    `compiled` that a compiler issues both in one program.
    """

    system: System
    pattern: Form
    dtype: str
    ranks: int
    local: tuple[int, int, int]
    whole: tuple[int, int, int]
    measured_by: str
    alone: bool
    compiled: bool

    @property
    def join(self) -> str | None:
        """The overlap method of the measured system; None if there is no model of it."""
        return _JOINS.get(family(self.measured_by))

    @property
    def _clock(self) -> Clock:
        """A framework's loop of pairs is long enough to reach the power limit; other rows are short runs."""
        return "short" if self.alone or self.compiled else "sustained"

    def pair(self, *, simulated: bool) -> PairTimes:
        """Times of both alone, and fused as the engine simulates them if asked."""
        harness = rig_of(self.system.name, "", "").harness(self.ranks, self.system.nodes)
        alone = dependent(self.pattern, Gemm(*self.local, self.dtype), self.ranks)
        found = pair_of(alone, self.system, RunOptions(clock=self._clock), harness)
        seconds = self._simulate_pair() if simulated else np.nan
        return replace(found, framework=not (self.alone or self.compiled), simulated=seconds)

    def _simulate_pair(self) -> float:
        """Time of both fused or in chunks by the engine [s]; NaN for shapes that it cannot cut, and without a pass."""
        from weft.simulate.single import simulate

        form, gpu = self.pattern, self.system.gpu
        if self.join is None or not OVERLAPS[self.join].simulated or form == "gemm_ar":
            return np.nan
        # Single-die GPUs keep the request size with which the measured overlaps were first compared.
        grain = default_request_bytes(gpu) if gpu.dies > 1 else gpu.memory.interleave
        try:
            graph = dependent(form, share_of(form, Gemm(*self.whole, self.dtype), self.ranks), self.ranks)
            options = RunOptions(clock=self._clock, request_bytes=grain)
            return simulate(graph, self.system, self.join, options).makespan
        except InputError:
            return np.nan


def _pairs(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield what is comparable in each row with a model, by measured system and quantity: the sequence first, then
    times.
    """
    found: dict[tuple[str, str, str], dict[int, tuple[PairTimes, float]]] = {}

    def compare(line: int, row: dict[str, Any]) -> None:
        for method, quantity, join, pair, measured in _compare_pair(row, _read_pair(row)):
            found.setdefault((method, quantity, join), {})[line] = pair, measured

    checked.drop(unfit_rows(checked, compare))
    for key in sorted(found, key=lambda key: (key[0] != SEQUENTIAL, key[0], key[1] != "time")):
        rows = checked.rows[checked.rows.index.isin([*found[key]])]
        pairs, measured = zip(*(found[key][line] for line in rows.index), strict=True)
        times = pd.DataFrame([vars(pair) for pair in pairs], rows.index).add_prefix("_")
        yield "overlap", rows.assign(**dict(zip(_COMPARED, key, strict=True)), measured=measured, **times)


_COMPARED = ("method", "quantity", "join")
"""What a figure of a row is of: who is measured, a time or a speedup, and how both are joined."""


def _predict_pairs(rows: Columns, machine: RowMachine, join: str, quantity: str) -> FloatArray:
    """The time [s] of a pair joined in a way, or its speedup over the sequence, with the machine's software costs."""
    pairs = PairTimes(**{one.name: rows[f"_{one.name}"] for one in fields(PairTimes)})
    seconds = OVERLAPS[join].seconds(pairs, machine.values)
    return OVERLAPS[SEQUENTIAL].seconds(pairs, machine.values) / seconds if quantity == "speedup" else seconds


def _checks(checked: Measurements) -> list[Iterator[Problem]]:
    rule = f"Weft has no model of this pattern; it has {', '.join(_COLLECTIVES)}"
    return [checked.by_value(~checked.rows["pattern"].isin([*_COLLECTIVES]), "pattern", rule)]


def _read_pair(row: Mapping[str, Any]) -> MeasuredPair:
    """A row's GEMM of all ranks and of each (its note says which one it gives); bf16 unless a data type is stated.

    Raises Unfit for a row without a shape, and for an invalid system, number of ranks or data type.
    """
    if not all(np.isfinite(row[name]) for name in ("m", "n", "k", "ranks")):
        raise Unfit("m, n, k, ranks", "", "a shape is needed to predict this row")
    ranks, dtype, pattern, notes = int(row["ranks"]), row["dtype"] or "bf16", row["pattern"], row["notes"]
    try:
        system = hardware.system(row["system"], gpus=ranks)
    except InputError as error:
        raise Unfit("ranks", str(ranks), str(error)) from None
    check_multiplies(system.gpu, dtype)
    m, n, k = (int(row[name]) for name in ("m", "n", "k"))
    if "shape=global" in notes:
        whole = (m, n, k)
        local = (m, n // ranks, k) if pattern == "ag_gemm" else (m, n, k // ranks)
    else:
        if noted := _LOCAL.search(notes):
            m, n, k = (int(size) for size in noted.groups())
        local = (m, n, k)
        whole = (m, n * ranks, k) if pattern == "ag_gemm" else (m, n, k * ranks)
    by, source = _BY.search(notes), f"{row['source']} {notes}".lower()
    both = row["gemm_us"] + row["comm_us"]
    return MeasuredPair(
        system,
        pattern,
        dtype,
        ranks,
        local,
        whole,
        measured_by=by[1].strip() if by else "",
        alone=bool(abs(both - row["sequential_us"]) < _SUM * both),
        compiled="jax" in source,
    )


def _compare_pair(row: Mapping[str, Any], case: MeasuredPair) -> Iterator[tuple[str, str, str, PairTimes, float]]:
    """Yield everything comparable in a row: method, quantity, way to join, pair, and the measured time [s] or speedup.

    If it has only a speedup, the speedup is compared.

    Raises Unfit if there is nothing.
    """
    timed, join = np.isfinite(row["overlap_us"]), case.join
    overlaps = join is not None and (timed or np.isfinite(row["speedup"]))
    if not overlaps and not np.isfinite(row["sequential_us"]):
        rule = "Weft has no model of this way to overlap, and the row has no time without overlap"
        raise Unfit("system in notes", case.measured_by, rule)
    try:
        pair = case.pair(simulated=overlaps)
    except InputError as error:
        raise Unfit("system", case.system.name, str(error)) from None
    if np.isfinite(row["sequential_us"]):
        yield SEQUENTIAL, "time", "sequential", pair, row["sequential_us"] * 1e-6
    if join is not None and overlaps:
        measured = row["overlap_us"] * 1e-6 if timed else row["speedup"]
        yield case.measured_by, "time" if timed else "speedup", join, pair, measured


def _is_flux(rows: pd.DataFrame) -> BoolArray:
    """Return which rows are Flux's own on an NVLink machine, from its paper or README."""
    source, system = rows["source"].str, rows["system"].str
    paper = source.startswith("Flux paper") & system.contains("SXM") & ~system.contains("nodes")
    return np.asarray(paper | source.startswith("bytedance/flux README"), dtype=np.bool_)


OVERLAP = RowKind(
    kind="overlap",
    by=("join", "quantity"),
    query=lambda join, quantity: (join, quantity),
    call=_predict_pairs,
    checks=_checks,
    expand=_pairs,
    column="",
    labels=lambda rows, machine, _: rows[["system", "collective", "pattern", "join", "method", "quantity"]].assign(
        seen=list(map(seen_overlap, rows["system"], rows["method"]))
    ),
    ranges=lambda rows: {FLUX: _is_flux(rows)},
)
"""GEMMs with a collective before or after them, by measured system and quantity."""


def right_signs(predictions: Sequence[Predicted], within: str | None = FLUX) -> tuple[int, int]:
    """Number of overlapped rows whose win or loss over the sequence is predicted correctly, and number of rows.

    `within` names the range of rows that count, Flux's own comparisons by default; None: every overlapped row.
    """
    rows = gains(predictions, within)
    if within == FLUX:
        rows = rows[rows["method"].isin(FLUX_METHODS)]
    return int(((rows["predicted"] > 1) == (rows["measured"] > 1)).sum()), len(rows)


def gains(predictions: Sequence[Predicted], within: str | None = None) -> pd.DataFrame:
    """Return overlapped rows with their speedup over the sequence, predicted and measured.

    `within` is as in `right_signs`.
    """
    parts = [part for part in predictions if part.subject.kind == "overlap"]
    if not parts:
        return pd.DataFrame({name: [] for name in ("predicted", "measured", "method", "join", "system")})
    every = pd.concat([part.frame().assign(counted=part.subject.ranges[within] if within else True) for part in parts])
    sequence = every["method"] == SEQUENTIAL
    before = every[sequence][["predicted", "measured"]].add_suffix("_before")
    rows = every[~sequence & every["counted"]].join(before[~before.index.duplicated(keep="last")])
    speedups = {
        value: rows[value].where(rows["quantity"] == "speedup", rows[f"{value}_before"] / rows[value])
        for value in ("predicted", "measured")
    }
    return rows.assign(**speedups)[speedups["predicted"].notna()]


def _check_cell(line: int, row: Mapping[str, Any]) -> None:
    """Raise Unfit for a row that no GPU can have."""
    check_multiplies(hardware.system(row["system"]).gpu, row["dtype"])
    for what in ("gemm", "collective"):
        beside = row[f"{what}_concurrent_us"]
        if beside < row[f"{what}_alone_us"] / 2:
            rule = "this is less than half of the time alone; nothing runs faster beside something else"
            raise Unfit(f"{what}_concurrent_us", f"{beside:g}", rule)


def _quantities(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    rows = checked.rows
    gemm, moved = (rows[f"{what}_concurrent_us"] / rows[f"{what}_alone_us"] for what in ("gemm", "collective"))
    for quantity, measured in zip(QUANTITIES, (gemm, moved, rows["makespan_us"] * 1e-6), strict=True):
        yield "contention", rows.assign(quantity=quantity, measured=measured)


@lru_cache(maxsize=256)
def _corun(
    where: str, dtype: str, name: str, m: float, n: float, k: float, gemms: float, size: float, collectives: float
) -> Mapping[str, float]:
    """Every quantity of a row by `weft.compare`, at the clock of runs too short to reach the power limit.

    The sources do not say which loop was launched first; here the collectives' is.
    """
    from weft.simulate import compare

    on = hardware.system(where)
    collective = Collective(canonical(name), int(size), on.gpus, dtype)
    graph = concurrent(Gemm(int(m), int(n), int(k), dtype), collective, int(gemms), int(collectives))
    found = compare(graph, on, [replace(STRATEGIES["streams"], first="collective")], SHORT).corun()
    times = (found.gemm.slowdown, found.collective.slowdown, found.makespan)
    return dict(zip(QUANTITIES, times, strict=True))


CONTENTION = RowKind(
    kind="contention",
    by=("system", "dtype", "collective", "m", "n", "k", "gemms", "bytes", "collectives", "quantity"),
    query=lambda *cells: cells,
    call=lambda rows, machine, *cells: _corun(*cells[:-1])[cells[-1]],
    checks=lambda checked: [unfit_rows(checked, _check_cell)],
    expand=_quantities,
    column="",
    labels=lambda rows, machine, _: rows[["system", "collective", "quantity"]].assign(
        seen=seen_systems("contention", rows["system"])
    ),
    blamed="system",
)
"""A loop of GEMMs concurrent with a loop of collectives, simulated request by request."""
