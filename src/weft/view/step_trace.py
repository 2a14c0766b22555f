"""A training step as traces, one file for each pipeline stage: a GPU's kernels on its streams.

Communication is named ``nccl...Kernel_<collective>`` and has the fields that PyTorch writes for NCCL (collective, group
size, data type).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.graph import DTYPE_BYTES, Collective, Gemm, Node
from weft.step.pipeline import KINDS
from weft.step.result.graph_step import GraphStep
from weft.step.result.step import LAUNCH_GAPS, RESIDUAL, Chunk, Pass, Step, exposed_axis
from weft.view.trace import KERNELS, RankTrace, TraceKernel, write_traces

MOST = 50_000
"""Kernels of a rank above which only the first micro-batches are unfolded."""
_TASKS = {"F": "forward", "B": "backward", "W": "weight"}


def write_step_trace(answer: Step, path: str | Path, most: int = MOST) -> list[Path]:
    """Write a trace of one GPU of each pipeline device: to `path`, or to "_rank0" and so on if there are several.

    Returns the files. A path ending in ".gz" is compressed. Above `most` kernels on a GPU only the first micro-batches
    are unfolded into kernels, each task of the others is a kernel. OutputError if a file cannot be written.
    """
    return write_traces([step_trace(answer, device, most) for device in range(answer.devices)], path)


def step_trace(answer: Step, device: int = 0, most: int = MOST) -> RankTrace:
    """Return the trace of one GPU of a pipeline device."""
    rank, gpu = device * answer.plan.stride("pp"), answer.system.gpu.name
    found = list(kernels(answer, device, most))
    about, place = answer.to_dict(), f", stage {device}"
    return RankTrace(rank, gpu, found, about, answer.plan.gpus, place, answer.seconds)


def write_graph_trace(answer: GraphStep, path: str | Path) -> list[Path]:
    """Write the trace of a captured step on one GPU; a path ending in ".gz" is compressed.

    Returns the file in a list. OutputError if it cannot be written.
    """
    found = [_kernel(node, *answer.spans[node.id], **_arguments(node), module=node.module) for node in answer.graph]
    return write_traces([RankTrace(0, answer.gpu.name, found, answer.to_dict(), step=answer.seconds)], path)


def _kernel(node: Node, start: float, end: float, **args: Any) -> TraceKernel:
    return TraceKernel(kernel_name(node), node.stream, start, end, args)


def kernels(answer: Step, device: int, most: int = MOST) -> Iterator[TraceKernel]:
    """Yield every kernel of one GPU of a pipeline device, in seconds from the beginning of the step."""
    schedule, times = answer.pipeline.schedule, answer.pipeline
    inside = {(stage, kind): list(_inside(chunk, kind)) for stage, chunk in enumerate(answer.chunks) for kind in KINDS}
    left = most
    for code in schedule.orders[device].tolist():
        task = schedule.task(code)
        start, end = float(times.start.flat[code]), float(times.end.flat[code])
        within = inside[task.stage, task.kind]
        left -= len(within)
        where = {"stage": task.stage, "micro_batch": task.micro_batch}
        if left < 0:
            yield TraceKernel(
                f"{_TASKS[task.kind]} of a micro-batch, not unfolded", "compute", start, end, where, launched=start
            )
        else:
            yield from (kernel.shift(start, **where) for kernel in within)
            if task.kind == "B" and schedule.whole[task.stage, task.micro_batch]:
                done = answer.chunks[task.stage].backward.seconds
                yield from (kernel.shift(start + done, **where) for kernel in inside[task.stage, "W"])
        yield from _send_kernels(answer, task.kind, task.stage, task.micro_batch, end)
    yield from _tail(answer, device)


def _inside(chunk: Chunk, kind: str) -> Iterator[TraceKernel]:
    """Yield the kernels of a task, in seconds from its beginning."""
    begin, whole = 0.0, {"F": chunk.forward, "B": chunk.backward, "W": chunk.weight}[kind]
    numbered = list(enumerate(chunk.parts))
    for number, part in numbered if kind == "F" else reversed(numbered):
        passes = {"F": (part.forward,), "B": (part.recompute, part.backward), "W": (part.weight,)}[kind]
        alone = sum(each.seconds for each in passes)
        start, end = whole.times.get(f"pass {number}", (begin, begin + alone))
        idle = sum(map(_idle, passes))
        slower = (end - start - idle) / (alone - idle) if alone > idle else 1.0
        for each in passes:
            for kernel in _of_pass(each):
                yield kernel.stretch(slower).shift(start, part=part.name, number=number)
            start += (each.seconds - _idle(each)) * slower + _idle(each)
        begin = end
    for name, (start, end) in whole.times.items():
        if (moved := _REPLICAS.get(name.split()[0])) and end > start:
            yield TraceKernel(moved, "dp", start, end, {"Collective name": name})


_REPLICAS = {"gather": KERNELS["all_gather"], "scatter": KERNELS["reduce_scatter"]}
"""Collectives that gather weights and scatter gradients, by the first word of their names in `Pass.times`."""


def _idle(each: Pass) -> float:
    """Return the time of a pass in which no kernel of it runs [s]: at its end, beyond what is modelled."""
    return each.parts.get(RESIDUAL, 0.0) + each.parts.get(LAUNCH_GAPS, 0.0)


def _of_pass(each: Pass) -> Iterator[TraceKernel]:
    for node in each.graph or ():
        start, end = each.times[node.id]
        yield _kernel(node, start, end, **_arguments(node))


def kernel_name(node: Node) -> str:
    """Return the name of an operator's kernel, as readers of traces classify it: "nccl..." is communication."""
    op = node.op
    if isinstance(op, Collective):
        return KERNELS[op.name]
    if isinstance(op, Gemm):
        return f"gemm_{op.dtype}_{op.m}x{op.n}x{op.k}"
    return getattr(op, "name", op.kind)


def _arguments(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"operator": node.name, "phase": node.phase}
    op = node.op
    if isinstance(op, Collective):
        count = op.bytes // DTYPE_BYTES[op.dtype]
        own, whole = count // op.ranks, count
        into, out = {"all_gather": (own, whole), "reduce_scatter": (whole, own)}.get(op.name, (whole, whole))
        found |= {"Collective name": op.name, "In msg nelems": into, "Out msg nelems": out}
        found |= {"Group size": op.ranks, "dtype": op.dtype}
    return found


def _send_kernels(answer: Step, kind: str, stage: int, micro_batch: int, end: float) -> Iterator[TraceKernel]:
    """Yield the send of a task's result to another device."""
    to = stage + {"F": 1, "B": -1}.get(kind, 0)
    device = answer.pipeline.schedule.device
    if answer.send and 0 <= to < len(device) and device[to, micro_batch] != device[stage, micro_batch]:
        args = {"Collective name": "send", "Group size": 2, "stage": stage, "micro_batch": micro_batch}
        yield TraceKernel(KERNELS["send_recv"], "pp", end, end + answer.send, args)


def _tail(answer: Step, device: int) -> Iterator[TraceKernel]:
    """Yield what ends the step on a device: exposed communication after its last task, computing last of all."""
    order = answer.pipeline.schedule.orders[device]
    free = float(answer.pipeline.end.flat[order].max())
    moved = KERNELS["reduce_scatter" if answer.plan.zero else "all_reduce"]
    last = max(answer.seconds, free)
    for name, time in answer.tails[device].items():
        axis = exposed_axis(name)
        if name == "optimizer":
            yield TraceKernel(name, "compute", last - time, last)
        else:
            yield TraceKernel(moved if axis else name, axis or "compute", free, free + time)
            free += time
