"""The clock of training steps: operators to layers, layers to stages, stages to a pipeline, and what ends the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from weft.errors import InputError, check_name
from weft.graph import DTYPE_BYTES, Collective, Graph, Node
from weft.hardware import System
from weft.models import Transformer
from weft.options import SUSTAINED, Fidelity, RunOptions
from weft.parallel.check import check_plan
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.parallel.rank import RankPart
from weft.result.step import Chunk, PartTimes, Pass, Step
from weft.run.step.chunks import Gathering, Moved, chunk
from weft.run.step.overlaps import SEQUENTIAL, check_overlap, needs, overlapped, settled
from weft.run.step.parts import chunks_of, rank_parts
from weft.run.step.prices import Prices
from weft.run.step.spans import timed
from weft.run.step.tail import end_of_step, tails
from weft.schedule.pipeline import Durations, PipelineTimes, Schedule, Send, run_schedule, schedule
from weft.units import Dimension
from weft.units import format as format_quantity


def train(
    model: Transformer,
    system: System,
    plan: Parallelism,
    framework: Framework | None = None,
    options: RunOptions = SUSTAINED,
    fidelity: Fidelity = "windows",
) -> Step:
    """Time one training step of a model on a system under a plan, and say where it goes.

    With the `fidelity` "windows" the engine says what kernels and collectives cost each other while they run at once;
    with "estimate" closed forms do. Raises InputError for a plan that does not fit the model or the system,
    UnknownNameError for an unknown fidelity.
    """
    check_name("fidelity", fidelity, get_args(Fidelity))
    if plan.gpus != system.gpus:
        raise InputError(
            f"the plan uses {plan.gpus} GPUs (tp {plan.tp} x cp {plan.cp} x pp {plan.pp} x dp {plan.dp}), but the "
            f"system has {system.gpus}; let the degrees multiply to {system.gpus}"
        )
    check_plan(model, plan, even=False)
    check_overlap(plan, system)
    framework = settled(framework or Framework(), plan)
    system, held = at_held_clock(system, framework)
    prices = Prices(system, plan, options, fidelity)
    order = schedule(plan.schedule, plan.pp, plan.micro_batches)
    rank = _Rank(model, plan, framework, prices, order)
    chunks = [rank.chunk(names) for names in chunks_of(model, order.stages, plan)]
    send = rank.send() if plan.pp > 1 else Send()
    pipeline = _run(order, chunks, send)
    ends = tails(model, chunks, pipeline, plan, framework, prices)
    return Step(
        model,
        system,
        plan,
        framework,
        tuple(chunks),
        pipeline,
        _waits(order, chunks, pipeline, send),
        tuple(end.parts for end in ends),
        tuple(end.hidden for end in ends),
        end_of_step(pipeline, ends),
        float(np.max(send.latency)),
        fidelity=fidelity,
        needs=needs(plan),
        notes=(held,) if held else (),
        windows=tuple(prices.windows.found.values()),
    )


def at_held_clock(system: System, framework: Framework) -> tuple[System, str]:
    """The system at the clock that its GPUs held in the framework's published steps, and a note that says so.

    A clock that the user set stays.
    """
    name, clocks = system.gpu.name, system.gpu.clocks
    held = dict(framework.clocks).get(name)
    if held is None or any("clocks." in change for change in system.changes):
        return system, ""
    narrow = held * clocks.sustained_fp8 / clocks.sustained
    values = {"clocks.sustained": held, "clocks.sustained_fp8": narrow}
    changed = system.replace({path: format_quantity(value, Dimension.HERTZ) for path, value in values.items()})
    shown = format_quantity(held, Dimension.HERTZ)
    return changed, f"GEMMs run at {shown}, fitted to published steps of {framework.name} on {name}."


class _Rank:
    """The parts of a model under a plan, each kind timed once."""

    def __init__(
        self, model: Transformer, plan: Parallelism, framework: Framework, prices: Prices, order: Schedule
    ) -> None:
        self.model, self.plan, self.framework, self.prices = model, plan, framework, prices
        self.splits = order.splits_backward
        self.parts = {name: self._timed(one) for name, one in rank_parts(model, plan, framework).items()}

    def _timed(self, of: RankPart) -> PartTimes:
        backward, weight = self._pass(of.backward), Pass()
        if self.splits:
            backward, weight = (self._pass(_only(of.backward, phase)) for phase in ("input", "weight"))
        again = self._pass(of.recompute) if of.recompute is not None else Pass()
        return PartTimes(of.name, self._pass(of.forward), backward, weight, again, of.parameters, of.kept, of.experts)

    def _pass(self, graph: Graph | None) -> Pass:
        if graph is None:
            return Pass()
        seconds, joined = overlapped(graph, self.prices, self.framework.tp)

        def slowdown(kernel: Node, moved: Node) -> tuple[float, float]:
            return (1.0, 1.0) if moved.name in joined else self.prices.windows(kernel, moved)

        return timed(graph, seconds, slowdown, self.prices.graph(graph) if joined else None)

    def chunk(self, names: Sequence[str]) -> Chunk:
        """The passes over the parts of a stage, by their names."""
        parts = [self.parts[name] for name in names]
        return chunk(parts, self._gathering(parts) if self.plan.gathers_each_pass else None, self.framework.launch)

    def _gathering(self, parts: Sequence[PartTimes]) -> Gathering:
        plan, replicas = self.plan, self.plan.dp * self.plan.cp
        ranks = plan.shard or replicas
        if ranks == 1:
            return Gathering([Moved()] * len(parts), [Moved()] * len(parts))

        def moved(kind: str, count: int, dtype: str, among: int = ranks, axis: str = "dp") -> Moved:
            op = Collective(kind, max(count * DTYPE_BYTES[dtype], among), among, dtype)
            return Moved(op, self.prices.of(op, axis))

        few = min(ranks, plan.expert_replicas)

        def whole(kind: str, one: PartTimes, dtype: str) -> Moved:
            shared = moved(kind, one.parameters - one.experts, dtype)
            if few == 1 or not one.experts:
                return shared
            routed = moved(kind, one.experts, dtype, few, "experts")
            return replace(shared, seconds=shared.seconds + routed.seconds)

        gradients = self.framework.gradients
        gather = [whole("all_gather", one, plan.dtype) for one in parts]
        scatter = [whole("reduce_scatter", one, gradients) for one in parts]
        if ranks < replicas:
            groups = replicas // ranks
            shares = (moved("all_reduce", one.parameters // ranks, gradients, groups, "replica") for one in parts)
            scatter = [
                replace(one, seconds=one.seconds + share.seconds) for one, share in zip(scatter, shares, strict=True)
            ]
        ahead = plan.overlap.get("dp") != SEQUENTIAL
        slowdown = self.prices.windows.of_passes
        return Gathering(gather, scatter, self.framework.keeps_weights, slowdown=slowdown, ahead=ahead)

    def send(self) -> Send:
        """What it takes to send a micro-batch's activations, under sequence parallelism a rank's share, to a stage.

        A rank that does not overlap its sends computes nothing until the tensor has arrived.
        """
        plan = self.plan
        tokens = plan.micro_batch * plan.sequence // plan.cp
        size = tokens * self.model.hidden * DTYPE_BYTES[plan.dtype]
        shared = plan.tp if plan.sp or self.framework.scatter_gather else 1
        seconds = self.prices.of(Collective("send_recv", -(-size // shared), 2, plan.dtype), "pp")
        waits = self.framework.sends == "blocking" or (self.framework.sends == "interleaved" and plan.chunks == 1)
        return Send(seconds, sender_busy=seconds if waits else 0.0)


def _only(graph: Graph, phase: str) -> Graph | None:
    """The nodes of a phase, without edges to others; None if there is none."""
    kept = [node for node in graph if node.phase == phase]
    ids = {node.id for node in kept}
    cut = (replace(node, after=tuple(edge for edge in node.edges if edge.node in ids)) for node in kept)
    return replace(graph, nodes=tuple(cut)) if kept else None


def _run(order: Schedule, chunks: Sequence[Chunk], send: Send) -> PipelineTimes:
    forward, backward, weight = (
        [getattr(one, name).seconds for one in chunks] for name in ("forward", "backward", "weight")
    )
    return run_schedule(order, Durations(forward, backward, weight), send)


def _waits(order: Schedule, chunks: Sequence[Chunk], ran: PipelineTimes, send: Send) -> dict[str, float]:
    """Why the mean pipeline device computes nothing [s]: sends, stages that differ, and the schedule's bubble."""
    at_once = _run(order, chunks, Send())
    alike = [Chunk((), *(_mean(chunks, name) for name in ("forward", "backward", "weight")))] * len(chunks)
    even = _run(order, alike, Send())
    alike_end = min(even.makespan, at_once.makespan)  # unequal stages may fit a schedule better by chance
    return {
        "exposed pp": ran.makespan - at_once.makespan,
        "imbalance": at_once.makespan - alike_end,
        "bubble": alike_end - float(even.busy.mean()),
    }


def _mean(chunks: Sequence[Chunk], name: str) -> Pass:
    return sum((getattr(one, name) for one in chunks), Pass()) * (1 / len(chunks))
