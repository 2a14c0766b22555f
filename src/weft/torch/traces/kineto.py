"""Reads traces of PyTorch's profiler (Kineto): kernels by stream, with the call that launched each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from weft.core.errors import ConfigError, InputError, check_type, is_whole, show_value
from weft.graph.kinds import NO_TRACE, file_kind
from weft.torch.traces.events import events
from weft.torch.traces.operators import collective_of
from weft.torch.traces.reader import Meeting, RankTrace, TraceReader, rank_in_name
from weft.torch.traces.recorded import ON_GPU, MatchedWork, RecordedWork
from weft.torch.traces.trace import SENDS

_ON_HOST = ("cuda_runtime", "cuda_driver", "hip_runtime")
_OLDER = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime",
          "Operator": "cpu_op"}  # fmt: skip
"""Today's names of the categories that PyTorch 1.8 to 1.11 wrote with a capital letter."""
_CALLS = ("cpu_op", "user_annotation")
_USED = (*ON_GPU, *_ON_HOST, *_CALLS, "cuda_sync")
"""Categories of the events that are used."""
_BACKWARD = "autograd::engine::evaluate_function"


_STEP = re.compile(r"ProfilerStep#(\d+)")


class KinetoReader(TraceReader):
    """Reads what torch.profiler exported: one rank for each file, a .json or .json.gz of any size."""

    tool = "torch.profiler"
    numbered = False

    def recognizes(self, path: Path, start: bytes) -> bool:
        """Return whether the file is a trace of Chrome's format."""
        return file_kind(path) == "trace"

    def read(self, path: str | Path) -> Iterator[RankTrace]:
        """Yield the rank that wrote the file.

        Raises ConfigError for a file that is cut off or no trace, InputError for one without work on a GPU.
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
                f"'{path}' has {read.count:,} events and none on a GPU; profile with ProfilerActivity.CUDA, on a "
                "machine with a GPU"
            )
        world = head.get("distributedInfo")
        stated = world if isinstance(world, dict) else {}
        rank, ranks = (number if is_whole(number := stated.get(key)) else None for key in ("rank", "world_size"))
        rank = rank_in_name(Path(path)) if rank is None else rank
        yield MatchedWork(read).of_rank(path, _device(head), rank, ranks, tuple(sorted(read.steps)))


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


class _Reader(RecordedWork):
    """Keeps of each event what is used."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: set[int] = set()

    def take(self, event: Mapping[str, Any]) -> None:
        """Keep an event. Raises InputError if a field is not as the profiler writes it."""
        self.count += 1
        kind = event.get("cat")
        kind = _OLDER.get(kind, kind) if isinstance(kind, str) else ""
        if event.get("ph") != "X" or kind not in _USED:
            return
        one = _ProfilerEvent.checked(event, kind)
        if kind in ON_GPU:
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
        kind = ON_GPU.index(event.kind)
        collective = self._collective(args)
        meeting = self.meetings[_meeting(event.name, args)] if SENDS.search(event.name) else -1
        self.gpu.add(name, stream, correlation, collective, kind, meeting, event.start, event.seconds)

    def _collective(self, args: Mapping[str, Any]) -> int:
        return self.collectives[found] if "Collective name" in args and (found := collective_of(args)) else -1

    def _call(self, event: _ProfilerEvent) -> None:
        name, args = event.name, event.args
        if event.kind == "user_annotation" and (step := _STEP.fullmatch(name)):
            self.steps.add(int(step[1]))
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


def _meeting(kernel: str, args: Mapping[str, Any]) -> Meeting:
    """Return what a collective of other ranks has in common with this one: its group and its buffers, or its kernel."""
    name, group = args.get("Collective name"), args.get("Process Group Ranks") or args.get("Process Group Name")
    if not isinstance(name, str) or not group:
        return Meeting(kernel)
    sizes = (args.get(key) for key in ("In msg nelems", "Out msg nelems", "dtype"))
    return Meeting(name, str(group), "/".join(map(str, sizes)))


def _device(head: Mapping[str, Any]) -> str:
    """Return the name of the GPU that the profiler wrote down; "" if it did not."""
    devices = head.get("deviceProperties") or [{}]
    return str(devices[0].get("name", "")) if isinstance(devices, list) and isinstance(devices[0], dict) else ""
