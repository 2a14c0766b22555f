"""Reads traces of PyTorch's profiler (Kineto): kernels by stream, with the call that launched each of them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError, InputError, check_type, show_value
from weft.graph import Collective, Convolution, Gemm, Op
from weft.graph.kinds import NO_TRACE, file_kind
from weft.torch.traces.events import events
from weft.torch.traces.operators import RecordedCall, collective_of, operator_of
from weft.torch.traces.trace import SENDS, Trace, TraceCoverage

Ints = NDArray[np.int64]
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_ON_HOST = ("cuda_runtime", "cuda_driver", "hip_runtime")
GEMM = re.compile(r"(?<!fb)gemm|cutlass|cublas|nvjet|Cijk_|xmma", re.IGNORECASE)
"""Names of kernels that multiply matrices: of cuBLAS, CUTLASS and rocBLAS."""
CLOCKS = 3e-6
"""By how much an event may end before another starts that waits for it, from rounding [s]: Kineto writes microseconds,
and of 53,000 pairs of kernels on one stream in seven public traces one overlaps, by 2 us."""
ROUNDED = re.compile(r"tf32|_s1688|s16816(?!.*(f16|bf16))", re.IGNORECASE)
"""Names of kernels that multiply fp32 data as TF32: "tf32", or the instruction with single-precision operands."""
_OLDER = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime",
          "Operator": "cpu_op"}  # fmt: skip
"""Today's names of the categories that PyTorch 1.8 to 1.11 wrote with a capital letter."""
_CALLS = ("cpu_op", "user_annotation")
_USED = (*_ON_GPU, *_ON_HOST, *_CALLS, "cuda_sync")
"""Categories of the events that are used."""
_BACKWARD = "autograd::engine::evaluate_function"


def read_trace(path: str | Path) -> Trace:
    """Read a trace that PyTorch's profiler exported, a .json or .json.gz of any size, in bounded memory.

    Record with `record_shapes=True`, else no kernel is known by what it computes. Raises ConfigError for a file that is
    cut off or no trace, InputError for one without work on a GPU.
    """
    if why := NO_TRACE.get(file_kind(path)):
        raise ConfigError(why, str(path))
    read = _Reader()
    head: dict[str, Any] = {}
    for event in events(path, head):
        try:
            read.take(event)
        except InputError as error:
            why = f"event {read.count:,} of the trace is not as the profiler writes it ({error})"
            raise ConfigError(f"{why}; write it again with torch.profiler", str(path)) from None
    if not len(read.gpu):
        raise InputError(
            f"'{path}' has {read.count:,} events and none on a GPU; profile with ProfilerActivity.CUDA, on a machine "
            "with a GPU"
        )
    return _Matched(read).trace(path, head)


class _Columns:
    """A table that grows by rows: `names` of integers, then of floats behind "|"."""

    def __init__(self, names: str) -> None:
        whole, _, real = names.partition("|")
        self._columns: dict[str, array[Any]] = {name: array("q") for name in whole.split()}
        self._columns |= {name: array("d") for name in real.split()}
        self.names = tuple(self._columns)

    def add(self, *row: float) -> None:
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = self._columns[name]
        return np.frombuffer(column, dtype=np.int64 if column.typecode == "q" else np.float64)


class _ValueNumbers(dict[Any, int]):
    """Numbers of distinct values, in the order in which they came."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


class _ProfilerEvent(NamedTuple):
    """A complete event whose fields have the types that the profiler writes; times in seconds."""

    kind: str
    name: str
    start: float
    seconds: float
    process: Any
    thread: Any
    args: Mapping[str, Any]

    @classmethod
    def checked(cls, event: Mapping[str, Any], kind: str) -> _ProfilerEvent:
        """Return the event, after a check of every field that is used. Raises InputError that names the field."""
        args = event.get("args") or {}
        check_type("args", args, dict, "it should hold fields by name")
        for name in _WHOLE:
            number = args.get(name, -1)
            if isinstance(number, bool) or not isinstance(number, int) or abs(number) >= 2**63:
                raise InputError(f"{name} is {show_value(number)}; it should be a whole number of 64 bits")
        for where, name in ((event, "pid"), (event, "tid"), *((args, name) for name in _PLACES)):
            check_type(name, where.get(name), (str, int, float, NoneType), "it should be a number or a text")
        seconds = _seconds("dur", event.get("dur", 0))
        if seconds < 0:
            raise InputError(f"dur is {show_value(event['dur'])}; it should be zero or more")
        start = _seconds("ts", event.get("ts"))
        return cls(kind, str(event.get("name", "")), start, seconds, event.get("pid"), event.get("tid"), args)


_WHOLE = ("correlation", "wait_on_cuda_event_record_corr_id")
_PLACES = ("device", "stream", "wait_on_stream")
_LONGEST_US = 1e18
"""Largest time of a trace [us]: about that of its clock's 64 bits, in nanoseconds, since 1970."""


def _seconds(name: str, microseconds: object) -> float:
    """Return a time that the profiler wrote [s]. Raises InputError for what is no finite number."""
    if not isinstance(microseconds, int | float) or not abs(microseconds) <= _LONGEST_US:
        raise InputError(f"{name} is {show_value(microseconds)}; it should be a number of microseconds")
    return float(microseconds) * 1e-6


class _Reader:
    """What is kept of a trace: columns of numbers, and every distinct name and signature once."""

    def __init__(self) -> None:
        self.count = 0
        self.names, self.streams, self.threads = _ValueNumbers(), _ValueNumbers(), _ValueNumbers()
        self.signatures, self.collectives = _ValueNumbers(), _ValueNumbers()
        self.gpu = _Columns("name stream correlation collective kind | start seconds")
        self.host = _Columns("correlation thread kind | start")
        self.calls = _Columns("thread signature backward | start end")
        self.syncs = _Columns("stream waits_for record correlation")

    def take(self, event: Mapping[str, Any]) -> None:
        """Keep an event. Raises InputError if a field is not as the profiler writes it."""
        self.count += 1
        kind = event.get("cat")
        kind = _OLDER.get(kind, kind) if isinstance(kind, str) else ""
        if event.get("ph") != "X" or kind not in _USED:
            return
        one = _ProfilerEvent.checked(event, kind)
        if kind in _ON_GPU:
            self._work(one)
        elif kind in _ON_HOST:
            waits = 2 if "StreamWaitEvent" in one.name else 1 if "EventRecord" in one.name else 0
            self.host.add(one.args.get("correlation", -1), self._thread(one), waits, one.start)
        elif kind in _CALLS:
            self._call(one)
        elif one.args.get("wait_on_stream") is not None:
            self._sync(one.args)

    def _work(self, event: _ProfilerEvent) -> None:
        args = event.args
        stream = self.streams[args.get("device", event.process), args.get("stream", event.thread)]
        name, correlation = self.names[event.name], args.get("correlation", -1)
        kind = _ON_GPU.index(event.kind)
        self.gpu.add(name, stream, correlation, self._collective(args), kind, event.start, event.seconds)

    def _collective(self, args: Mapping[str, Any]) -> int:
        return self.collectives[found] if "Collective name" in args and (found := collective_of(args)) else -1

    def _call(self, event: _ProfilerEvent) -> None:
        name, args = event.name, event.args
        shapes = args.get("Input Dims", args.get("Input dims"))
        signature = -1
        if (collective := self._collective(args)) >= 0:
            signature = self.signatures[name, collective]
        elif shapes is not None and event.kind == "cpu_op":
            key = name, str(shapes), str(args.get("Input type", ())), str(args.get("Concrete Inputs", ()))
            if key not in self.signatures:
                self.signatures[key] = len(self.signatures)
            signature = self.signatures[key]
        backward = 1 if name.startswith(_BACKWARD) else 2 if name.startswith("Optimizer.step") else 0
        if event.kind == "cpu_op" or backward:
            self.calls.add(self._thread(event), signature, backward, event.start, event.start + event.seconds)

    def _sync(self, args: Mapping[str, Any]) -> None:
        device = args.get("device")
        stream, waited = (self.streams[device, args.get(key)] for key in ("stream", "wait_on_stream"))
        record = args.get("wait_on_cuda_event_record_corr_id", -1)
        self.syncs.add(stream, waited, record, args.get("correlation", -1))

    def _thread(self, event: _ProfilerEvent) -> int:
        return self.threads[event.process, event.thread]


class _Matched:
    """Work on the GPU in the order of its start, with the launch and the call of each piece, and what it waits for."""

    def __init__(self, read: _Reader) -> None:
        self.read, gpu = read, read.gpu
        order = np.lexsort((gpu["seconds"], gpu["start"]))
        self.work = {name: gpu[name][order] for name in gpu.names}
        self.end = self.work["start"] + self.work["seconds"]
        self.launch = _places(self.work["correlation"], read.host["correlation"])
        self.launched = _at(read.host["start"], self.launch, np.nan)
        self.call, self.phase, self.inside = self._calls()

    def _calls(self) -> tuple[Ints, Ints, Ints]:
        """Of each piece of work: the innermost call with shapes that was open at its launch, its phase, any call."""
        read = self.read
        call, phase, inside = (np.full(len(self.launch), value) for value in (-1, 0, 0))
        threads = _at(read.host["thread"], self.launch, -1)
        for thread in np.unique(read.calls["thread"]).tolist():
            pieces = np.flatnonzero(threads == thread)
            mine = np.flatnonzero(read.calls["thread"] == thread)
            if len(pieces):
                mine = mine[np.lexsort((-read.calls["end"][mine], read.calls["start"][mine]))]
                self._sweep(pieces[np.argsort(self.launched[pieces], kind="stable")], mine, call, phase, inside)
        return call, phase, inside

    def _sweep(self, pieces: Ints, calls: Ints, call: Ints, phase: Ints, inside: Ints) -> None:
        read = self.read
        columns = (read.calls[name][calls].tolist() for name in ("start", "end", "signature", "backward"))
        opens = zip(calls.tolist(), *columns, strict=True)
        following = next(opens, None)
        stack: list[tuple[int, float, float, int, int]] = []
        for piece, time in zip(pieces.tolist(), self.launched[pieces].tolist(), strict=True):
            while following is not None and following[1] <= time:
                while stack and stack[-1][2] < following[1]:
                    stack.pop()
                stack.append(following)
                following = next(opens, None)
            while stack and stack[-1][2] < time:
                stack.pop()
            inside[piece] = bool(stack)
            call[piece] = next((one[0] for one in reversed(stack) if one[3] >= 0), -1)
            phase[piece] = max((one[4] for one in stack), default=0)

    def trace(self, path: str | Path, head: Mapping[str, Any]) -> Trace:
        """Return the trace, and how much of it was found."""
        read, work = self.read, self.work
        signature = _at(read.calls["signature"], self.call, -1)
        ops = self._operators()
        mapped = np.array([*(op is not None for op in ops), False])[signature]
        names = list(read.names)
        sends = np.array([bool(SENDS.search(name)) for name in names])[work["name"]]
        mapped &= work["kind"] == _ON_GPU.index("kernel")  # copies take what the link to the host allows
        told = np.array([*(isinstance(op, Collective) for op in ops), False])[signature]
        mapped &= ~sends | told  # a collective's shapes do not say over how many GPUs it goes
        collective = (work["collective"] >= 0) & ~mapped
        products = np.array([bool(GEMM.search(name)) for name in names])[work["name"]] & (work["kind"] == 0)
        rounded = np.array([bool(ROUNDED.search(name)) for name in names])[work["name"]] & products
        ops, signature = _in_tf32(ops, signature, np.isin(self.call, self.call[rounded]))
        edges, inferred, dropped = self._edges(names)
        known = np.array([*(op is not None and op.matrix_dtype is not None for op in ops), False])[signature]
        kernels = work["kind"] == 0
        return Trace(
            path=str(path),
            device=_device(head),
            names=tuple(names),
            streams=_streams(read.streams),
            operators=(*ops, *read.collectives),
            name=work["name"],
            stream=work["stream"],
            operator=np.where(mapped, signature, np.where(collective, work["collective"] + len(ops), -1)),
            call=self.call,
            phase=self.phase,
            start=work["start"] - work["start"][0],
            seconds=work["seconds"],
            launched=self.launched - work["start"][0],
            edges=edges,
            found=TraceCoverage(
                events=read.count,
                kernels=int(kernels.sum()),
                copies=int((~kernels).sum()),
                launches=int((self.launch >= 0).sum()),
                in_calls=int((self.inside[kernels] > 0).sum()),
                with_shapes=int(((self.call >= 0) | collective)[kernels].sum()),
                mapped=int((mapped | collective)[kernels].sum()),
                products=int(products.sum()),
                products_mapped=int((products & known).sum()),
                recorded=len(edges) - inferred,
                inferred=inferred,
                dropped=dropped,
            ),
        )

    def _operators(self) -> list[Op | None]:
        """Return the operator of each signature."""
        collectives = list(self.read.collectives)
        found: list[Op | None] = []
        for key in self.read.signatures:
            if len(key) == 2:
                found.append(collectives[key[1]])
            else:
                found.append(operator_of(RecordedCall.of_texts(*key)))
        return found

    def _edges(self, names: list[str]) -> tuple[Ints, int, int]:
        """Return what waits for what on another stream: pairs of pieces; how many are inferred, and how many were
        dropped.
        """
        told = list(self._recorded_waits())
        pairs = told or list(self._inferred_waits(names))
        limit = self.work["start"] + CLOCKS
        true = [(before, after) for before, after in pairs if before < after and self.end[before] <= limit[after]]
        distinct = sorted(set(true))
        kept = np.array(distinct, dtype=np.int64).reshape(-1, 2)
        return kept, 0 if told else len(kept), len(pairs) - len(true)

    def _recorded_waits(self) -> Iterator[tuple[int, int]]:
        """From the profiler's record of cudaStreamWaitEvent, with the event that each of them waits for."""
        read = self.read
        syncs = read.syncs
        waits = _places(syncs["correlation"], read.host["correlation"])
        records = _places(syncs["record"], read.host["correlation"])
        by_stream = self._by_stream()
        for row in np.flatnonzero((waits >= 0) & (records >= 0)).tolist():
            before = by_stream.get(int(syncs["waits_for"][row]))
            after = by_stream.get(int(syncs["stream"][row]))
            if before is None or after is None:
                continue
            last = int(np.searchsorted(self.launched[before], read.host["start"][records[row]])) - 1
            first = int(np.searchsorted(self.launched[after], read.host["start"][waits[row]]))
            if last >= 0 and first < len(after):
                yield int(before[last]), int(after[first])

    def _inferred_waits(self, names: list[str]) -> Iterator[tuple[int, int]]:
        """Without that record: a collective waits for what was launched before it, and what follows a wait for it."""
        sends = np.array([bool(SENDS.search(name)) for name in names])[self.work["name"]]
        if not sends.any():
            return
        order = np.argsort(self.launched, kind="stable")
        order = order[np.isfinite(self.launched[order])]
        waits = np.sort(self.read.host["start"][self.read.host["kind"] == 2])
        last: dict[bool, int] = {}
        for piece in order.tolist():
            other = last.get(not sends[piece])
            if other is not None and self.work["stream"][other] != self.work["stream"][piece]:
                between = np.searchsorted(waits, [self.launched[other], self.launched[piece]])
                if sends[piece] or between[1] > between[0]:
                    yield other, piece
            last[bool(sends[piece])] = piece

    def _by_stream(self) -> dict[int, Ints]:
        """Return the pieces of each stream in the order of their launch."""
        found = {}
        order = np.argsort(self.launched, kind="stable")
        order = order[np.isfinite(self.launched[order])]
        for stream in np.unique(self.work["stream"]).tolist():
            found[stream] = order[self.work["stream"][order] == stream]
        return found


def _in_tf32(ops: list[Op | None], signature: Ints, rounded: NDArray[np.bool_]) -> tuple[list[Op | None], Ints]:
    """The operators, and of each piece its operator; products of fp32 are of TF32 where their call was `rounded`."""
    ops, signature = list(ops), signature.copy()
    for number in np.unique(signature[rounded & (signature >= 0)]).tolist():
        op = ops[number]
        if isinstance(op, Gemm | Convolution) and op.dtype == "fp32":
            signature[rounded & (signature == number)] = len(ops)
            ops.append(replace(op, dtype="tf32"))
    return ops, signature


def _places(keys: Ints, among: Ints) -> Ints:
    """Return where each key stands in a column, or -1."""
    if not len(among):
        return np.full(len(keys), -1)
    order = np.argsort(among, kind="stable")
    place = order[np.minimum(np.searchsorted(among[order], keys), len(among) - 1)]
    return np.where((among[place] == keys) & (keys >= 0), place, -1)


def _at(column: NDArray[Any], places: Ints, otherwise: float) -> NDArray[Any]:
    """Return the values of a column at some places; another one where the place is -1."""
    return np.append(column, otherwise)[places].astype(column.dtype)


def _streams(pairs: Mapping[tuple[Any, Any], int]) -> tuple[str, ...]:
    """Return the names of streams, with their device's number if there is more than one."""
    one = len({device for device, _ in pairs}) == 1
    return tuple(f"{stream}" if one else f"{device}/{stream}" for device, stream in pairs)


def _device(head: Mapping[str, Any]) -> str:
    """Return the name of the GPU that the profiler wrote down; "" if it did not."""
    devices = head.get("deviceProperties") or [{}]
    return str(devices[0].get("name", "")) if isinstance(devices, list) and isinstance(devices[0], dict) else ""
