"""A GEMM and the collective before or after it, joined by software, in closed form.

Methods by their names in `weft overlaps list`, over both parts' times alone and the costs of `library/software.toml`:

* sequential: the sum, and the gap between two streams of a framework;
* flux (also Triton-distributed, TileLink): one kernel; the longer part, one rank's share of the shorter one, which
  nothing hides, and the start. Tiles stored at their owners travel at `flux.store_rate` at most, and a kernel adds them
  up at the end; a gather takes a round per peer;
* userbuffers: before a GEMM a ring of copies, and a GEMM per rank's share on three streams; behind one, a
  reduce-scatter per part of the GEMM, which takes compute units off the GEMM while it runs and is exposed after the
  last part;
* async-tp: a GEMM per rank's share on two streams, beside copies. Pieces leave compute units idle where their tiles
  fill no wave, each waits for its copy (and, before a reduce-scatter, for two barriers), and the host issues every
  kernel, copy and barrier;
* in-network: the sum with the all-reduce by switches that add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

import numpy as np

from weft.errors import InputError, check_name
from weft.estimate.answer import FloatArray
from weft.estimate.dispatch import estimate
from weft.estimate.target import Harness, target
from weft.graph import Collective, Driver, Gemm, Graph
from weft.hardware import Described
from weft.kernels import running_clock
from weft.library.software import COPY_STREAMS, SPLITS, WORKGROUPS
from weft.library.software import costs as shipped
from weft.options import SUSTAINED, RunOptions

Method = Literal["sequential", "flux", "userbuffers", "async-tp", "in-network"]
"""How a GEMM and a collective are joined, by the names of overlap methods (`weft.schedule.OVERLAPS`)."""
METHODS: tuple[Method, ...] = get_args(Method)
STREAMS = 2
"""Streams over which async TP deals its pieces (PyTorch, symmetric memory)."""


@dataclass(frozen=True)
class Pair:
    """Times [s] of a GEMM and a collective alone, and of one of their pieces: numbers, or arrays of one shape.

    `gemm` and `collective` are whole; `piece` is the GEMM of one rank's share of the rows, `copy` a rank's share copied
    to one peer. `stored` is what the GEMM of a fused kernel stores at peers of its node [bytes], `summed` the time to
    add up partial sums [s]. Userbuffers' reduce-scatters take the share `taken` of the compute units, which add up
    partial sums in `added` [s]. `scatters` says that the GEMM comes first, `in_switch` that the library's collective
    lets the switch add. `framework` says that a framework calls both, so that its costs count. `simulated` is the time
    of both joined by the engine, `switched` that of the all-reduce by switches that add; NaN if unknown.
    """

    gemm: Any
    collective: Any
    piece: Any
    copy: Any
    stored: Any
    summed: Any
    taken: Any
    added: Any
    ranks: Any
    scatters: Any
    in_switch: Any
    framework: Any = True
    simulated: Any = np.nan
    switched: Any = np.nan

    @classmethod
    def stack(cls, pairs: list[Self]) -> Self:
        """Several pairs as one with arrays."""
        return cls(**{one.name: np.array([getattr(pair, one.name) for pair in pairs]) for one in fields(cls)})

    def take(self, which: Any) -> Self:
        """Some pairs of the arrays, by a mask or indices."""
        return replace(self, **{one.name: getattr(self, one.name)[which] for one in fields(self)})

    def seconds(self, method: Method, costs: Mapping[str, float] | None = None) -> FloatArray:
        """Time of both, joined by a method [s]; `costs` replaces the shipped values of some paths."""
        values = {**shipped(), **(costs or {})}
        return np.asarray(_FORMS[method](self, values), dtype=np.float64)


def _sequential(pair: Pair, costs: Mapping[str, float]) -> Any:
    return pair.gemm + pair.collective + pair.framework * costs["sequential.gap"]


def _in_network(pair: Pair, costs: Mapping[str, float]) -> Any:
    return _sequential(replace(pair, collective=np.fmin(pair.switched, pair.collective)), costs)


def _flux(pair: Pair, costs: Mapping[str, float]) -> Any:
    shorter = np.minimum(pair.gemm, pair.collective)
    device = np.maximum(pair.gemm, pair.collective) + shorter / pair.ranks
    device = np.where(np.isfinite(pair.simulated), pair.simulated, device)
    stored = np.logical_and(pair.scatters, np.logical_not(pair.in_switch))
    stores = pair.stored / costs["flux.store_rate"] + pair.gemm / pair.ranks + pair.summed
    device = np.where(stored, np.maximum(device, stores), device)
    rounds = np.where(pair.scatters, 0.0, pair.ranks - 1.0)
    device = device + rounds * costs["flux.round"]
    # A switch that adds needs neither copies nor partial sums, so nothing has to be prepared.
    return device + np.logical_and(pair.framework, np.logical_not(pair.in_switch)) * costs["flux.start"]


def _userbuffers(pair: Pair, costs: Mapping[str, float]) -> Any:
    scatters, copy = np.asarray(pair.scatters, dtype=np.bool_), pair.copy / costs["userbuffers.copy_share"]
    computed = pair.ranks * np.maximum(pair.piece / COPY_STREAMS, pair.gemm / pair.ranks) + copy
    gathered = np.maximum(computed, (pair.ranks - 1) * copy + pair.piece)
    moved = pair.collective + pair.added
    slowed = pair.gemm + pair.taken * moved
    scattered = np.maximum(slowed + moved / SPLITS, pair.gemm / SPLITS + moved)
    device = np.where(scatters, scattered, gathered)
    device = np.where(np.isfinite(pair.simulated), pair.simulated, device)
    calls = np.where(scatters, _SPLIT_CALLS * SPLITS, _COPY_CALLS * pair.ranks)
    issued = calls * costs["userbuffers.issue"]
    return np.where(pair.framework, np.maximum(device, issued) + costs["userbuffers.start"], device)


_COPY_CALLS = 4
"""What userbuffers' host issues for a rank's share: the GEMM, a send, a receive, and an event."""
_SPLIT_CALLS = 3
"""What userbuffers' host issues for a part of a GEMM: the GEMM, an event, and the reduce-scatter."""


def _async_tp(pair: Pair, costs: Mapping[str, float]) -> Any:
    others, barriers = pair.ranks - 1, np.where(pair.scatters, 2.0, 0.0)
    copy = pair.copy / costs["async-tp.copy_share"]
    step = pair.piece + copy + barriers * costs["async-tp.barrier"]
    computed = pair.ranks * np.maximum(pair.piece / STREAMS, pair.gemm / pair.ranks) + copy
    linked = others * copy + pair.piece
    device = np.maximum(np.maximum(computed, linked), others / STREAMS * step + pair.piece) + pair.summed
    issued = (others * (2 + barriers) + 4) * costs["async-tp.issue"]
    return costs["async-tp.start"] + np.maximum(device, issued)


_FORMS = {
    "sequential": _sequential,
    "flux": _flux,
    "userbuffers": _userbuffers,
    "async-tp": _async_tp,
    "in-network": _in_network,
}


def pair_of(work: Graph, system: Described, options: RunOptions | None = None, harness: Harness | None = None) -> Pair:
    """The pair of a graph of one GEMM and one collective that depend on each other (see `weft.parallel.dependent`).

    Raises InputError for any other graph, and what `estimate` raises.
    """
    gemm, moved = _ops(work)
    machine = target(system, options, harness)
    both = [float(estimate(op, system, options, harness).seconds) for op in (gemm, moved)]
    share = replace(gemm, m=-(-int(gemm.m) // moved.ranks))
    copied, one_node = replace(moved, name="all_gather"), machine.nodes(moved.ranks) == 1
    # Copy engines reach no other node, and fused kernels hand tiles for other nodes over to copies.
    by_copies = replace(machine.harness, driver=Driver.DMA, library=None) if one_node else machine.harness
    others, each = moved.ranks - 1, moved.bytes / moved.ranks
    units, port = (
        machine.gpu.compute.compute_units,
        machine.gpu.compute.port_bytes_per_clock * running_clock(machine.gpu, machine.options),
    )
    summed = 0.0 if moved.name == "all_gather" else moved.bytes + each
    return Pair(
        gemm=both[0],
        collective=both[1],
        piece=float(estimate(share, system, options, harness).seconds),
        copy=float(estimate(copied, system, options, by_copies).seconds) / others,
        stored=others * each if one_node else 0.0,
        summed=summed / machine.gpu.memory.copy_rate,
        taken=min(WORKGROUPS / units, 1.0),
        added=summed / (min(WORKGROUPS, units) * port),
        ranks=moved.ranks,
        scatters=moved.name != "all_gather",
        in_switch=moved.name == "all_reduce" and machine.fabric.multicast,
    )


def _ops(work: Graph) -> tuple[Gemm, Collective]:
    """The GEMM and the collective of a graph of just these; InputError for any other graph."""
    ops = [node.op for node in work]
    gemms, moved = [op for op in ops if isinstance(op, Gemm)], [op for op in ops if isinstance(op, Collective)]
    if len(ops) != 2 or not gemms or not moved or moved[0].name not in _JOINED:
        raise InputError(f"{work} is no GEMM with the {', '.join(_JOINED)} of its operand or output; give one of each")
    return gemms[0], moved[0]


_JOINED = ("all_gather", "reduce_scatter", "all_reduce")


def joined(
    work: Graph,
    system: Described,
    method: Method = "sequential",
    options: RunOptions = SUSTAINED,
    harness: Harness | None = None,
) -> float:
    """Time of a GEMM and the collective that depends on it, joined by a method and called by a framework [s].

    Raises UnknownNameError for an unknown method, and what `pair_of` raises.
    """
    check_name("overlap", method, METHODS, listed=True)
    return float(pair_of(work, system, options, harness).seconds(method))
