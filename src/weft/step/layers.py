"""What plans have in common: the parts of a model on one rank, and the passes over them, each found once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.graph import Gemm, Graph, Node
from weft.kernels.library.dispatchers import dispatcher
from weft.models.parallel.framework import Framework
from weft.models.parallel.rank import RankPart
from weft.step.chunks import launch_gaps
from weft.step.durations import Case, OperatorTimes
from weft.step.exchange_overlap import pair_passes, paired_share
from weft.step.launches import add_launch_gaps, in_graphs
from weft.step.overlaps import overlap_nodes
from weft.step.rank_parts import RankParts
from weft.step.result.step import RESIDUAL, PartTimes, Pass, add_parts
from weft.step.spans import Slowdown, kernels, time_nodes
from weft.step.stages import Shares
from weft.step.windows import GemmTimes, sum_gemm_times

FloatArray = NDArray[np.float64]


def list_cases(parts: RankParts, prices: OperatorTimes) -> Iterable[Case]:
    """Yield the operators of the passes over parts."""
    for part in parts.of.values():
        for graph in (part.forward, part.backward, part.recompute):
            yield from (prices.case(node.op, node.stream) for node in graph or ())


class RankPasses:
    """The passes over the parts of a model on a rank.

    If the schedule `splits` the backward pass, gradients of weights are a pass of their own. `like` are those of a plan
    that only recomputes otherwise, `dense` the passes over parts without experts by the id of each, if they are known.
    """

    def __init__(
        self,
        parts: RankParts,
        dtype: str,
        framework: Framework,
        prices: OperatorTimes,
        splits: bool,
        like: RankPasses | None = None,
        dense: MutableMapping[int, PartTimes] | None = None,
    ) -> None:
        self.of, self.framework, self.dtype, self.splits = parts, framework, dtype, splits
        known: Mapping[str, PartTimes] = like.parts if like else {}
        self.parts: dict[str, PartTimes] = {}
        for name, one in parts.of.items():
            same = None if dense is None or one.experts else dense.get(id(one))
            self.parts[name] = same or self._time_part(one, prices, known.get(name))
            if dense is not None and not one.experts:
                dense[id(one)] = self.parts[name]
        self.like = like or self
        self._beside: dict[tuple[Shares, bool], GemmTimes] = {}
        self._fields: dict[str, FloatArray] = {}

    def _time_part(self, of: RankPart, prices: OperatorTimes, like: PartTimes | None) -> PartTimes:
        def run(graph: Graph | None) -> Pass:
            return Pass() if graph is None else _pass(graph, prices, self.framework)

        library = prices.plan.dispatcher or self.framework.dispatcher
        is_paired = self.framework.paired and prices.plan.ep > 1
        syncs = (dispatcher(library).host_sync or self.framework.style.each_expert) and not is_paired
        far = prices.place("ep", prices.plan.ep)[1] > 1

        def start(one: Pass, syncs: bool = False) -> Pass:
            return add_launch_gaps(one, self.framework, far, syncs) if of.experts else one

        again = start(run(of.recompute), syncs)
        graphs = tuple(one for one in (of.forward, of.backward, of.recompute) if one is not None)
        if like:
            return replace(like, recompute=again, kept=of.kept, graphs=graphs)
        if self.splits:
            backward, weight = (run(_only(of.backward, phase)) for phase in ("input", "weight"))
        else:
            backward, weight = run(of.backward), Pass()
        forward = run(of.forward)
        if is_paired:
            taken = prices.taken_share(library, self.framework.dispatcher_units)
            held = self.framework.dispatcher_holds
            beside = paired_share(prices.plan)
            forward, backward = pair_passes(forward, backward, beside, taken, held, self.framework.delay_wgrad)
        forward, backward, weight = start(forward, syncs), start(backward), start(weight)
        return PartTimes(
            of.name, forward, backward, weight, again, of.parameters, of.kept, of.experts, of.narrow, graphs
        )

    def seconds(self, counts: NDArray[np.int64]) -> list[FloatArray]:
        """Forward, backward and weight gradients of a micro-batch on each stage [s], without waits for weights that are
        gathered.
        """
        launch, synchronous = self.framework.launch, self.framework.synchronous
        found = []
        for seconds, launches in zip(self._each("seconds"), self._each("launches"), strict=True):
            alone = counts @ seconds
            found.append(alone + launch_gaps(counts @ launches, alone, launch, synchronous) if launch else alone)
        return found

    def _each(self, name: str) -> NDArray[np.float64]:
        """Return a field of the passes over every part: forward, backward with what is recomputed, and weights."""
        if name not in self._fields:
            rows = [((one.forward,), (one.recompute, one.backward), (one.weight,)) for one in self.parts.values()]
            self._fields[name] = np.array(
                [[float(sum(getattr(each, name) for each in passes)) for passes in row] for row in rows]
            ).T
        return self._fields[name]

    def beside(self, shares: Shares, forward: bool) -> GemmTimes:
        """Return the times of the operators of a device's forward or backward passes, and of the passes."""
        known = self.like._beside
        if (shares, forward) not in known:
            known[shares, forward] = self.like._sum(shares, forward)
        return known[shares, forward]

    def _sum(self, shares: Shares, forward: bool) -> GemmTimes:
        spent: Counter[Gemm] = Counter()
        whole = 0.0
        for count, part in zip(shares, self._forward if forward else self._backward, strict=True):
            if count:
                whole += count * part.whole
                for gemm, seconds in part.spent.items():
                    spent[gemm] += count * seconds  # type: ignore[assignment]
        return GemmTimes(spent, whole)

    @cached_property
    def _forward(self) -> list[GemmTimes]:
        return [sum_gemm_times([one.forward], self.dtype) for one in self.parts.values()]

    @cached_property
    def _backward(self) -> list[GemmTimes]:
        return [sum_gemm_times([one.backward, one.weight], self.dtype) for one in self.parts.values()]


def time_graph(
    graph: Graph,
    prices: OperatorTimes,
    method: str,
    seconds: Mapping[str, float] | None = None,
    windows: Slowdown | None = None,
    *,
    hides: bool = False,
    framework: bool = True,
) -> Pass:
    """Return the pass over a rank's graph, of a training step or of a server, whose operators take `seconds` by name.

    `method` joins collectives of tensor parallelism with GEMMs, `hides` and `framework` are those of `overlap_nodes`;
    `windows` say what kernels and the other collectives cost each other while they run at once (None: nothing).
    """
    times, alone, joined = overlap_nodes(graph, prices, method, seconds, hides, framework)

    def slowdown(kernel: Node, moved: Node) -> tuple[float, float]:
        return (1.0, 1.0) if windows is None or moved.name in joined else windows(kernel, moved)

    return time_nodes(graph, times, slowdown if windows else None, alone)


def _pass(graph: Graph, prices: OperatorTimes, framework: Framework) -> Pass:
    """Return a pass of a training step, with its calibration residual."""
    found = time_graph(graph, prices, framework.tp, windows=prices.windows)
    residual = sum(prices.residual(node.op) for node in graph)
    held = sum(kernels(node) for node in graph if in_graphs(node, framework.graphs))
    return replace(
        found,
        seconds=found.seconds + residual,
        parts=add_parts(found.parts, {RESIDUAL: residual}) if residual else found.parts,
        launches=found.launches - held,
    )


def _only(graph: Graph, phase: str) -> Graph | None:
    """Return the nodes of a phase, without edges to others; None if there is none."""
    kept = [node for node in graph if node.phase == phase]
    ids = {node.id for node in kept}
    cut = (replace(node, after=tuple(edge for edge in node.edges if edge.node in ids)) for node in kept)
    return replace(graph, nodes=tuple(cut)) if kept else None
