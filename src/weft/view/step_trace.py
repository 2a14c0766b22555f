"""A training step as traces in Chrome's event format, one file per pipeline stage: a GPU's kernels on its streams.

Perfetto opens them; HolisticTraceAnalysis reads a folder of them: kernels carry category "kernel", a stream and the
correlation of their launch, and communication is named ``nccl...Kernel_<collective>`` with the fields that PyTorch
writes for NCCL (collective, group size, data type).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.files import check_writable, write_atomically
from weft.graph import DTYPE_BYTES, Collective, Gemm, Node
from weft.result.graph_step import GraphStep
from weft.result.step import Chunk, Pass, Step
from weft.schedule.pipeline import KINDS
from weft.view.trace import HOST_PID, KERNELS, Event, encoded, named, rank_path

STREAMS = {"compute": 7, "tp": 20, "cp": 21, "ep": 22, "dp": 23, "pp": 24}
"""Stream numbers by what runs on them."""
_FIRST_OTHER = 30
_FIRST_CORRELATION = 1 << 20
MOST = 50_000
"""Kernels of a rank above which only the first micro-batches are unfolded."""
_TASKS = {"F": "forward", "B": "backward", "W": "weight"}


@dataclass(frozen=True)
class Kernel:
    """A kernel on a stream of one GPU, in seconds from the beginning of its task or of the step."""

    name: str
    stream: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)

    def moved(self, by: float, **more: Any) -> Kernel:
        """The same kernel, `by` seconds later and with more arguments."""
        return Kernel(self.name, self.stream, self.start + by, self.end + by, {**self.args, **more})

    def slowed(self, by: float) -> Kernel:
        """The same kernel, begun and ended `by` times later."""
        return self if by == 1.0 else replace(self, start=self.start * by, end=self.end * by)


def write_step_trace(answer: Step, path: str | Path, most: int = MOST) -> list[Path]:
    """Write a trace of one GPU of each pipeline device: to `path`, or to "_rank0" and so on if there are several.

    Returns the files. A path ending in ".gz" is compressed. Above `most` kernels on a GPU only the first micro-batches
    are unfolded into kernels, each task of the others is a kernel. OutputError if a file cannot be written.
    """
    ranks = [device * answer.plan.stride("pp") for device in range(answer.devices)]
    paths = [check_writable(rank_path(path, rank) if len(ranks) > 1 else path) for rank in ranks]
    return [
        write_atomically(target, encoded(step_trace(answer, device, most), target))
        for device, target in enumerate(paths)
    ]


def step_trace(answer: Step, device: int = 0, most: int = MOST) -> dict[str, Any]:
    """The trace of one GPU of a pipeline device as plain data."""
    rank = device * answer.plan.stride("pp")
    found = list(kernels(answer, device, most))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": answer.system.gpu.name}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": answer.plan.gpus},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "weft": answer.to_dict(),
        "traceEvents": [
            *named("process", rank, 0, f"GPU {rank}, stage {device} ({answer.system.gpu.name})", 0),
            *named("process", HOST_PID + rank, 0, f"host of GPU {rank}: launches", 1),
            _span("ProfilerStep#0", "user_annotation", HOST_PID + rank, 1, 0.0, answer.seconds, {}),
            *_events(found, rank),
        ],
    }


def write_graph_trace(answer: GraphStep, path: str | Path) -> list[Path]:
    """Write the trace of a captured step on one GPU; a path ending in ".gz" is compressed.

    Returns the file in a list. OutputError if it cannot be written.
    """
    target = check_writable(path)
    found = [
        Kernel(kernel_name(node), node.stream, *answer.spans[node.id], {**_arguments(node), "module": node.module})
        for node in answer.graph
    ]
    data = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": answer.gpu.name}],
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "weft": answer.to_dict(),
        "traceEvents": [
            *named("process", 0, 0, f"GPU 0 ({answer.gpu.name})", 0),
            *named("process", HOST_PID, 0, "host of GPU 0: launches", 1),
            _span("ProfilerStep#0", "user_annotation", HOST_PID, 1, 0.0, answer.seconds, {}),
            *_events(found, 0),
        ],
    }
    return [write_atomically(target, encoded(data, target))]


def _events(found: Sequence[Kernel], rank: int) -> Iterator[Event]:
    """Every kernel on its stream, its launch on the host, and the names of the streams."""
    streams = dict(STREAMS)
    for kernel in found:
        streams.setdefault(kernel.stream, _FIRST_OTHER + len(streams))
    for stream in dict.fromkeys(kernel.stream for kernel in found):
        yield from named("thread", rank, streams[stream], f"stream {streams[stream]}: {stream}", streams[stream])
    for correlation, kernel in enumerate(found, _FIRST_CORRELATION):
        args = {"stream": streams[kernel.stream], "device": rank, "context": 1, "correlation": correlation}
        yield _span(
            kernel.name, "kernel", rank, streams[kernel.stream], kernel.start, kernel.end, {**args, **kernel.args}
        )
        launch = {"cbid": 211, "correlation": correlation}
        yield _span("cudaLaunchKernel", "cuda_runtime", HOST_PID + rank, 1, kernel.start, kernel.start, launch)


def _span(name: str, category: str, pid: int, tid: int, start: float, end: float, args: dict[str, Any]) -> Event:
    begin = round(start * 1e6, 3)
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin,
        "dur": round(round(end * 1e6, 3) - begin, 3), "args": args,
    }  # fmt: skip


def kernels(answer: Step, device: int, most: int = MOST) -> Iterator[Kernel]:
    """Every kernel of one GPU of a pipeline device, in seconds from the beginning of the step."""
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
            yield Kernel(f"{_TASKS[task.kind]} of a micro-batch, not unfolded", "compute", start, end, where)
        else:
            yield from (kernel.moved(start, **where) for kernel in within)
            if task.kind == "B" and schedule.whole[task.stage, task.micro_batch]:
                done = answer.chunks[task.stage].backward.seconds
                yield from (kernel.moved(start + done, **where) for kernel in inside[task.stage, "W"])
        yield from _sent(answer, task.kind, task.stage, task.micro_batch, end)
    yield from _tail(answer, device)


def _inside(chunk: Chunk, kind: str) -> Iterator[Kernel]:
    """The kernels of a task, in seconds from its beginning."""
    begin, whole = 0.0, {"F": chunk.forward, "B": chunk.backward, "W": chunk.weight}[kind]
    numbered = list(enumerate(chunk.parts))
    for number, part in numbered if kind == "F" else reversed(numbered):
        passes = {"F": (part.forward,), "B": (part.recompute, part.backward), "W": (part.weight,)}[kind]
        alone = sum(each.seconds for each in passes)
        start, end = whole.times.get(f"pass {number}", (begin, begin + alone))
        slower = (end - start) / alone if alone else 1.0
        for each in passes:
            for kernel in _of_pass(each):
                yield kernel.slowed(slower).moved(start, part=part.name, number=number)
            start += each.seconds * slower
        begin = end
    for name, (start, end) in whole.times.items():
        if (moved := _REPLICAS.get(name.split()[0])) and end > start:
            yield Kernel(moved, "dp", start, end, {"Collective name": name})


_REPLICAS = {"gather": KERNELS["all_gather"], "scatter": KERNELS["reduce_scatter"]}
"""Collectives that gather weights and scatter gradients, by the first word of their names in `Pass.times`."""


def _of_pass(each: Pass) -> Iterator[Kernel]:
    for node in each.graph or ():
        start, end = each.times[node.id]
        yield Kernel(kernel_name(node), node.stream, start, end, _arguments(node))


def kernel_name(node: Node) -> str:
    """The name of an operator's kernel, as readers of traces classify it: "nccl..." is communication."""
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
        found |= {
            "Collective name": op.name, "In msg nelems": into, "Out msg nelems": out, "Group size": op.ranks,
            "dtype": op.dtype,
        }  # fmt: skip
    return found


def _sent(answer: Step, kind: str, stage: int, micro_batch: int, end: float) -> Iterator[Kernel]:
    """The send of a task's result to another device."""
    to = stage + {"F": 1, "B": -1}.get(kind, 0)
    device = answer.pipeline.schedule.device
    if answer.send and 0 <= to < len(device) and device[to, micro_batch] != device[stage, micro_batch]:
        args = {"Collective name": "send", "Group size": 2, "stage": stage, "micro_batch": micro_batch}
        yield Kernel(KERNELS["send_recv"], "pp", end, end + answer.send, args)


def _tail(answer: Step, device: int) -> Iterator[Kernel]:
    """What ends the step on a device: exposed communication after its last task, computing last of all."""
    order = answer.pipeline.schedule.orders[device]
    free = float(answer.pipeline.end.flat[order].max())
    moved = KERNELS["reduce_scatter" if answer.plan.zero else "all_reduce"]
    last = max(answer.seconds, free)
    for name, time in answer.tails[device].items():
        axis = name.removeprefix("exposed ")
        if name == "optimizer":
            yield Kernel(name, "compute", last - time, last)
        else:
            yield Kernel(name if axis == name else moved, "compute" if axis == name else axis, free, free + time)
            free += time
