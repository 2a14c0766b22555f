"""The times of a GEMM and its collective alone and of their pieces, from which closed forms of methods are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.estimate.dispatch import estimate
from weft.estimate.target import BenchmarkProtocol, target
from weft.graph import Collective, Driver, Gemm, Graph
from weft.hardware import Described, Gpu
from weft.kernels import running_clock
from weft.kernels.library.software import WORKGROUPS
from weft.overlaps.lower.fit import tiling_for


@dataclass(frozen=True)
class PairTimes:
    """Times [s] of a GEMM and a collective alone, and of one of their pieces: numbers, or arrays of one shape.

    `gemm` and `collective` are whole; `piece` is the GEMM of one rank's share of the rows, `copy` a rank's share copied
    to one peer. `stored` is what the GEMM of a fused kernel stores at peers of its node [bytes], `summed` the time to
    add up partial sums [s]. Userbuffers' reduce-scatters take the share `taken` of the compute units, which add up
    partial sums in `added` [s]. `scatters` says that the GEMM comes first, `in_switch` that the library's collective
    lets the switch add, `waves` in how many waves the GEMM's tiles run, `gathers` that the
    collective is an all-reduce, whose sums are gathered. `framework` says that a framework calls both,
    so that its costs count. `simulated` is the time of both joined by the engine, `switched` that of the all-reduce by
    switches that add, `pushed` that of the collective by copy engines or TMA that kernels start; NaN if unknown.
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
    waves: Any
    gathers: Any = False
    framework: Any = True
    simulated: Any = np.nan
    switched: Any = np.nan
    pushed: Any = np.nan

    @classmethod
    def stack(cls, pairs: list[Self]) -> Self:
        """Several pairs as one with arrays."""
        return cls(**{one.name: np.array([getattr(pair, one.name) for pair in pairs]) for one in fields(cls)})

    def take(self, which: Any) -> Self:
        """Some pairs of the arrays, by a mask or indices."""
        return replace(self, **{one.name: getattr(self, one.name)[which] for one in fields(self)})


def pair_of(
    work: Graph, system: Described, options: RunOptions | None = None, harness: BenchmarkProtocol | None = None
) -> PairTimes:
    """Return the pair of a graph of one GEMM and one collective that depend on each other (see
    `weft.models.parallel.dependent`).

    Raises InputError for any other graph, and what `estimate` raises.
    """
    gemm, moved, scatters = _ops(work)
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
    summed = moved.bytes + each if moved.reduces else 0.0
    return PairTimes(
        gemm=both[0],
        collective=both[1],
        piece=float(estimate(share, system, options, harness).seconds),
        copy=float(estimate(copied, system, options, by_copies).seconds) / others,
        stored=others * each if one_node else 0.0,
        summed=summed / machine.gpu.memory.copy_rate,
        taken=min(WORKGROUPS / units, 1.0),
        added=summed / (min(WORKGROUPS, units) * port),
        ranks=moved.ranks,
        scatters=scatters,
        in_switch=moved.name == "all_reduce" and machine.fabric.multicast,
        waves=_waves(gemm, machine.gpu, machine.options),
        gathers=moved.name == "all_reduce",
    )


def _waves(gemm: Gemm, gpu: Gpu, options: RunOptions) -> int:
    """Return in how many waves the tiles of a GEMM run on all compute units."""
    tiling = tiling_for(gemm, gpu, options)
    return math.ceil(tiling.workgroups(gemm) / (gpu.compute.compute_units * max(tiling.resident, 1)))


def _ops(work: Graph) -> tuple[Gemm, Collective, bool]:
    """Return the GEMM and the collective of a graph of just these, and whether the GEMM comes first.

    An all-gather comes first unless it waits for the GEMM. Raises InputError for any other graph.
    """
    ops = [node.op for node in work]
    gemms, moved = [op for op in ops if isinstance(op, Gemm)], [op for op in ops if isinstance(op, Collective)]
    if len(ops) != 2 or not gemms or not moved or moved[0].name not in _JOINED:
        raise InputError(f"{work} is no GEMM with the {', '.join(_JOINED)} of its operand or output; give one of each")
    waits = any(node.edges for node in work if isinstance(node.op, Collective))
    return gemms[0], moved[0], waits or moved[0].name != "all_gather"


_JOINED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
