"""What a profiler recorded, in columns, and its match: the launch and the call of each piece of work, and its waits."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.graph import Collective, Convolution, Gemm, Op
from weft.torch.traces.operators import RecordedCall, operator_of
from weft.torch.traces.reader import RankTrace
from weft.torch.traces.trace import SENDS, Trace, TraceCoverage

Ints = NDArray[np.int64]
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Kinds of work on a GPU, by Kineto's categories."""
GEMM = re.compile(r"(?<!fb)gemm|cutlass|cublas|nvjet|Cijk_|xmma", re.IGNORECASE)
"""Names of kernels that multiply matrices: of cuBLAS, CUTLASS and rocBLAS."""
CLOCKS = 3e-6
"""By how much an event may end before another starts that waits for it, from rounding [s]: Kineto writes microseconds,
and of 53,000 pairs of kernels on one stream in seven public traces one overlaps, by 2 us."""
ROUNDED = re.compile(r"tf32|_s1688|s16816(?!.*(f16|bf16))", re.IGNORECASE)
"""Names of kernels that multiply fp32 data as TF32: "tf32", or the instruction with single-precision operands."""


class Columns:
    """A table that grows by rows: `names` of integers, then of floats behind "|"."""

    def __init__(self, names: str) -> None:
        whole, _, real = names.partition("|")
        self._columns: dict[str, array[Any]] = {name: array("q") for name in whole.split()}
        self._columns |= {name: array("d") for name in real.split()}
        self.names = tuple(self._columns)

    def add(self, *row: float) -> None:
        """Append a row."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = self._columns[name]
        return np.frombuffer(column, dtype=np.int64 if column.typecode == "q" else np.float64)


class ValueNumbers(dict[Any, int]):
    """Numbers of distinct values, in the order in which they came."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


class RecordedWork:
    """What is kept of a trace: columns of numbers, and every distinct name and signature once."""

    def __init__(self, host: Columns | None = None) -> None:
        self.count = 0
        self.names, self.streams, self.threads = ValueNumbers(), ValueNumbers(), ValueNumbers()
        self.signatures, self.collectives, self.meetings = ValueNumbers(), ValueNumbers(), ValueNumbers()
        self.gpu = Columns("name stream correlation collective kind meeting | start seconds")
        self.host = host or Columns("correlation thread kind | start")
        self.calls = Columns("thread signature backward | start end")
        self.syncs = Columns("stream waits_for record correlation")


class MatchedWork:
    """Work on the GPU in the order of its start, with the launch and the call of each piece, and what it waits for."""

    def __init__(self, read: RecordedWork) -> None:
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

    def of_rank(
        self, path: str | Path, device: str, rank: int | None, world: int | None, steps: tuple[int, ...]
    ) -> RankTrace:
        """Return the trace of a rank, with what it has in common with the traces of others."""
        work, meetings = self.work, tuple(self.read.meetings)
        trace = self.trace(path, device)
        return RankTrace(trace, rank, world, steps, float(work["start"][0]), meetings, work["meeting"])

    def trace(self, path: str | Path, device: str) -> Trace:
        """Return the trace, and how much of it was found."""
        read, work = self.read, self.work
        signature = _at(read.calls["signature"], self.call, -1)
        ops = self._operators()
        mapped = np.array([*(op is not None for op in ops), False])[signature]
        names = list(read.names)
        sends = np.array([bool(SENDS.search(name)) for name in names])[work["name"]]
        mapped &= work["kind"] == ON_GPU.index("kernel")  # copies take what the link to the host allows
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
            device=device,
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
