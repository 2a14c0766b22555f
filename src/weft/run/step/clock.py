"""The clock of training steps: operators to layers, layers to stages, stages to a pipeline, and what ends the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from weft.run.step.meeting import Meeting
from weft.run.step.offload import waiting_for_host
from weft.run.step.overlaps import SEQUENTIAL, check_overlap, needs, overlapped, settled
from weft.run.step.parts import chunks_of, rank_parts
from weft.run.step.prices import Prices
from weft.run.step.spans import timed
from weft.run.step.tail import end_of_step, tails
from weft.schedule.pipeline import Durations, PipelineTimes, Schedule, Send, is_searched, run_schedule, schedule
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
    running, held = at_held_clock(system, framework)
    found = _step(model, system, plan, framework, Prices(running, plan, options, fidelity))
    return replace(found, fidelity=fidelity, notes=(held,) if held else ())


def meetings(
    model: Transformer, system: System, plan: Parallelism, framework: Framework, options: RunOptions = SUSTAINED
) -> tuple[Meeting, ...]:
    """The kernels and collectives that meet in a step, by closed forms: what the fidelity "windows" simulates."""
    framework = settled(framework, plan)
    prices = Prices(at_held_clock(system, framework)[0], plan, options)
    _step(model, system, plan, framework, prices)
    return tuple(one.task for one in prices.windows.found.values() if one.source != "none")


def _step(model: Transformer, system: System, plan: Parallelism, framework: Framework, prices: Prices) -> Step:
    """A step under a plan that fits, timed by `prices`."""
    order = schedule(plan.schedule, plan.pp, plan.micro_batches)
    parts = timed_parts(rank_parts(model, plan, framework), framework, prices, order.splits_backward)
    names = chunks_of(model, order.stages, plan)
    chunks = [timed_chunk([parts[name] for name in each], plan, framework, prices) for each in names]
    send = send_between(model, plan, framework, prices)
    if is_searched(plan.schedule):
        order = schedule(plan.schedule, plan.pp, plan.micro_batches, _durations(chunks), send)
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
        needs=needs(plan),
        windows=prices.windows.shown(),
    )


def at_held_clock(system: System, framework: Framework) -> tuple[System, str]:
    """The system at the clock that its GPUs held in the framework's published steps, and a note that says so.

    A clock that the user set stays.
    """
    name, clocks = system.gpu.name, system.gpu.clocks
    held = dict(framework.clocks).get(name)
    if held in (None, clocks.sustained) or any("clocks." in change for change in system.changes):
        return system, ""
    narrow = held * clocks.sustained_fp8 / clocks.sustained
    values = {"clocks.sustained": held, "clocks.sustained_fp8": narrow}
    changed = system.replace({path: format_quantity(value, Dimension.HERTZ) for path, value in values.items()})
    shown = format_quantity(held, Dimension.HERTZ)
    return changed, f"GEMMs run at {shown}, fitted to published steps of {framework.name} on {name}."


def timed_parts(
    parts: Mapping[str, RankPart],
    framework: Framework,
    prices: Prices,
    splits: bool = False,
    like: Mapping[str, PartTimes] | None = None,
) -> dict[str, PartTimes]:
    """The parts of a model on a rank by name, each kind timed once.

    If the schedule `splits` the backward pass, gradients of weights are a pass of their own. `like` are the times of a
    plan that only recomputes otherwise, if they are known.
    """

    def run(graph: Graph | None) -> Pass:
        return Pass() if graph is None else _pass(graph, prices, framework.tp)

    def timed_part(of: RankPart) -> PartTimes:
        if like:
            again = run(of.recompute) if of.recompute else Pass()
            return replace(like[of.name], recompute=again, kept=of.kept)
        phases = ("input", "weight") if splits else ()
        backward, weight = (
            (run(_only(of.backward, phase)) for phase in phases) if splits else (run(of.backward), Pass())
        )
        return PartTimes(
            of.name, run(of.forward), backward, weight, run(of.recompute), of.parameters, of.kept, of.experts
        )

    return {name: timed_part(one) for name, one in parts.items()}


def _pass(graph: Graph, prices: Prices, method: str) -> Pass:
    seconds, joined = overlapped(graph, prices, method)

    def slowdown(kernel: Node, moved: Node) -> tuple[float, float]:
        return (1.0, 1.0) if moved.name in joined else prices.windows(kernel, moved)

    return timed(graph, seconds, slowdown, prices.graph(graph) if joined else None)


def timed_chunk(parts: Sequence[PartTimes], plan: Parallelism, framework: Framework, prices: Prices) -> Chunk:
    """The passes over the parts of a stage."""
    gathering = _gathering(parts, plan, framework, prices) if plan.gathers_each_pass else None
    alone = chunk(parts, gathering, framework.launch, framework.synchronous)
    return waiting_for_host(alone, prices.gpu) if plan.offload == "activations" else alone


def _gathering(parts: Sequence[PartTimes], plan: Parallelism, framework: Framework, prices: Prices) -> Gathering:
    replicas = plan.dp * plan.cp
    ranks = plan.shard or replicas
    if ranks == 1:
        return Gathering([Moved()] * len(parts), [Moved()] * len(parts))

    def moved(kind: str, count: int, dtype: str, among: int = ranks, axis: str = "dp") -> Moved:
        op = Collective(kind, max(count * DTYPE_BYTES[dtype], among), among, dtype)
        return Moved(op, prices.of(op, axis))

    few = min(ranks, plan.expert_replicas)

    def whole(kind: str, one: PartTimes, dtype: str) -> Moved:
        shared = moved(kind, one.parameters - one.experts, dtype)
        if few == 1 or not one.experts:
            return shared
        routed = moved(kind, one.experts, dtype, few, "experts")
        return replace(shared, seconds=shared.seconds + routed.seconds)

    gradients = framework.gradients

    def scattered(one: PartTimes) -> Moved:
        inside = whole("reduce_scatter", one, gradients)
        if ranks == replicas:
            return inside
        share = moved("all_reduce", one.parameters // ranks, gradients, replicas // ranks, "replica")
        return replace(inside, seconds=inside.seconds + share.seconds)

    kinds = {id(one): one for one in parts}
    gather = {key: whole("all_gather", one, plan.dtype) for key, one in kinds.items()}
    scatter = {key: scattered(one) for key, one in kinds.items()}
    return Gathering(
        [gather[id(one)] for one in parts],
        [scatter[id(one)] for one in parts],
        framework.keeps_weights,
        slowdown=prices.windows.of_passes,
        ahead=plan.overlap.get("dp") != SEQUENTIAL,
    )


def send_between(model: Transformer, plan: Parallelism, framework: Framework, prices: Prices) -> Send:
    """What it takes to send a micro-batch's activations, under sequence parallelism a rank's share, to a stage.

    A rank that does not overlap its sends computes nothing until the tensor has arrived.
    """
    if plan.pp == 1:
        return Send()
    tokens = plan.micro_batch * plan.sequence // plan.cp
    size = tokens * model.hidden * DTYPE_BYTES[plan.dtype]
    shared = plan.tp if plan.sp or framework.scatter_gather else 1
    seconds = prices.of(Collective("send_recv", -(-size // shared), 2, plan.dtype), "pp")
    waits = framework.sends == "blocking" or (framework.sends == "interleaved" and plan.chunks == 1)
    return Send(seconds, sender_busy=seconds if waits else 0.0)


def _only(graph: Graph, phase: str) -> Graph | None:
    """The nodes of a phase, without edges to others; None if there is none."""
    kept = [node for node in graph if node.phase == phase]
    ids = {node.id for node in kept}
    cut = (replace(node, after=tuple(edge for edge in node.edges if edge.node in ids)) for node in kept)
    return replace(graph, nodes=tuple(cut)) if kept else None


def _durations(chunks: Sequence[Chunk]) -> Durations:
    return Durations(*([getattr(one, name).seconds for one in chunks] for name in ("forward", "backward", "weight")))


def _run(order: Schedule, chunks: Sequence[Chunk], send: Send) -> PipelineTimes:
    return run_schedule(order, _durations(chunks), send)


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
