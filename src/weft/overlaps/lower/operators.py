"""Lower a program operator by operator: kernels one after another, on buffers that are the tensors of its graph.

What a kernel wrote may still lie in the cache when the next one reads it. Products run as tiled GEMMs, those of
convolutions with overlapping reads of the image; all other operators run the sweeps of their closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import NamedTuple

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkLoad, ChunkStore, Kernel, Phase, PlacedKernel, Plan
from weft.engine.program.plan import CACHED_STORE, Work
from weft.estimate import kernel as closed
from weft.estimate.streaming import GEMV_ROWS, THREADS, kernels_of
from weft.estimate.target import BenchmarkProtocol, Target, target
from weft.graph import (
    Attention,
    Call,
    Convolution,
    Gemm,
    Gemv,
    Graph,
    Node,
    Op,
    Pooling,
    Recurrent,
    Scan,
    Streaming,
    Tensor,
    tensor_bytes,
)
from weft.graph.op import width
from weft.hardware import Gpu
from weft.kernels import GemmTiling, adding_kernel, gemm_kernel, over_dies, stored_sizes, tile_table
from weft.kernels.attention import attention_kernel, attention_tiles
from weft.kernels.gemm import operand_sizes, running_clock
from weft.overlaps.lower.fit import MOST_TILES, check_tile, tiling_for
from weft.overlaps.lower.independent import in_order

KINDS = (Gemm, Gemv, Convolution, Pooling, Recurrent, Attention, Scan, Call, Streaming)
"""The kinds of operators that the engine has kernels for, besides collectives."""
_MOST_APART = 8
"""Most tensors that a kernel reads or writes each at its own place; longer lists, such as an optimizer's, count as one
stretch of memory."""
WAVES = 32
"""Most workgroups of a sweep, as a multiple of what the GPU holds at once: each then goes through more of the data."""
REGISTERS = 32
"""Registers per thread of a kernel that sweeps [assumed; 16 to 64]."""
_ALIGNED = 64
"""Workgroups begin to read at multiples of this [bytes]."""


class _Place(NamedTuple):
    """Where a tensor lies: a chunk of a buffer, and its size [bytes]."""

    buffer: str
    position: int
    bytes: int


@dataclass
class _PlanBuffers:
    """The buffers of a plan: one for each tensor, and "output", whose chunks are the tensors that GEMMs make."""

    sizes: dict[str, int]
    output: list[int] = field(default_factory=list)
    scratch: dict[str, int] = field(default_factory=dict)
    places: dict[str, _Place] = field(default_factory=dict)

    def name_buffers(self, prefix: str, names: Sequence[str], tensors: Sequence[Tensor]) -> list[str]:
        """Return the tensors of an operator that hold data: those that its node names, else new ones."""
        if not names:
            names = [f"{prefix} {place}" for place in range(len(tensors))]
            self.sizes |= {name: tensor.bytes for name, tensor in zip(names, tensors, strict=True)}
        return [name for name in names if self.sizes.get(name)]

    def place(self, tensor: str) -> _Place:
        """Return where a tensor lies."""
        return self.places.setdefault(tensor, _Place(tensor, 0, max(self.sizes[tensor], 1)))

    def spare(self, name: str, size: float) -> _Place:
        """Memory of a node alone, for what its operator moves beyond the tensors that it names."""
        self.scratch[name] = max(self.scratch.get(name, 1), int(size))
        return _Place(name, 0, int(size))

    def buffers(self) -> tuple[Buffer, ...]:
        """Return all buffers of the plan."""
        own = {place.buffer: place.bytes for place in self.places.values() if place.buffer != "output"}
        single = [Buffer(name, ((size,),), (CACHED_STORE,)) for name, size in (own | self.scratch).items()]
        made = [Buffer("output", (tuple(self.output),), (CACHED_STORE,) * len(self.output))] if self.output else []
        return *single, *made


@dataclass
class _PlanBuilder:
    """A plan as it grows: kernels by node, tiles of all GEMMs, buffers."""

    gpu: Gpu
    options: RunOptions
    memory: _PlanBuffers
    kernels: dict[str, list[Kernel]] = field(default_factory=dict)
    tilings: dict[str, GemmTiling] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)
    tiles: int = 0

    def add(self, node: Node) -> None:
        """Add the kernels of a node."""
        named = self.memory.name_buffers(f"{node.name} in", node.inputs, node.op.reads)
        made = self.memory.name_buffers(f"{node.name} out", node.outputs, node.op.writes)
        products = _products(node.op)
        kernels: list[Kernel] = []
        for number, product in enumerate(products):
            written = made[number] if number < len(made) else ""
            kernels += self._product(node, product, named, written, f" {number}" if number else "")
        if isinstance(node.op, Gemv):
            kernels = [self._by_rows(node, node.op, named, made)]
        elif isinstance(node.op, Recurrent):
            kernels = list(self._recurrent(node, node.op, named, made))
        elif isinstance(node.op, Attention):
            kernels = self._attention(node, node.op, named, made)
        elif not products:
            machine = target(self.gpu, self.options, BenchmarkProtocol())
            kernels = [
                self._sweeps(node, kernel, number, named, made)
                for number, kernel in enumerate(_sweep_kernels(node.op, machine))
            ]
        self.kernels[node.id] = kernels

    def _product(self, node: Node, gemm: Gemm, named: Sequence[str], written: str, suffix: str) -> list[Kernel]:
        """Return the tiled kernel of a product, and the one that adds up the parts of a split K."""
        tiling = node.choice.tiling or tiling_for(gemm, self.gpu, self.options, split=gemm.batch == 1)
        check_tile(gemm, tiling, self.gpu)
        self.tilings.setdefault(node.id, tiling)
        name, first = node.id + suffix, len(self.memory.output)
        self.memory.output += stored_sizes(gemm, tiling)
        if tiling.splits == 1 and written and written not in self.memory.places:
            self.memory.places[written] = _Place("output", first, self.memory.sizes[written])
        work = over_dies(tile_table(gemm, tiling, 1), self.gpu)
        work[:, y.WORK_TILE] += self.tiles
        work[:, y.WORK_REGION] += first
        main = gemm_kernel(gemm, self.gpu, tiling, self.options, node.name)
        at = self._operands(gemm, tiling, named, name)
        main = replace(main, name=name, part=(self.tiles, self.tiles + len(work)), phases=_read(main.phases, at))
        self.work.append(work)
        self.tiles += len(work)
        if self.tiles > MOST_TILES:
            raise InputError(
                f"the products up to '{node.id}' have {self.tiles} tiles, more than the {MOST_TILES} that a run can "
                "hold; give a smaller batch, or a part of the graph"
            )
        if tiling.splits == 1:
            return [main]
        place = self.memory.place(written) if written else self.memory.spare(f"{name} sums", gemm.output_bytes)
        return [
            main,
            replace(adding_kernel(gemm, self.gpu, tiling, node.name, first, place.buffer), name=f"{name} sum"),
        ]

    def _operands(
        self, gemm: Gemm, tiling: GemmTiling, named: Sequence[str], name: str
    ) -> dict[str, tuple[_Place, int]]:
        """Return where the operands "a" and "b" lie, each with the bytes that the product reads as if it were stored in
        full.

        Of the tensors that the node reads, the two whose sizes are nearest are the operands.
        """
        whole = dict(zip("ab", operand_sizes(gemm, tiling), strict=True))
        least = (gemm.m * gemm.k * gemm.batch * gemm.element_bytes, gemm.k * gemm.n * gemm.batch * gemm.element_bytes)
        pairs = list(permutations(dict.fromkeys(named), 2)) or [(one, one) for one in named]
        if not pairs:
            return {side: (self.memory.spare(f"{name} {side}", size), size) for side, size in whole.items()}

        def apart(pair: Iterable[str]) -> float:
            sizes = (self.memory.sizes[one] for one in pair)
            return sum(abs(math.log(size / wanted)) for size, wanted in zip(sizes, least, strict=True))

        return {
            side: (self.memory.place(one), whole[side]) for side, one in zip("ab", min(pairs, key=apart), strict=True)
        }

    def _recurrent(self, node: Node, op: Recurrent, named: Sequence[str], made: Sequence[str]) -> Iterator[Kernel]:
        """The kernels of a recurrent layer: all inputs in one product, then for each step that of the state and a sweep
        over gates and states; the gradient of the weights is one product.
        """
        if op.computes == "weights":
            yield from self._product(node, op.weight_product, named, made[0], "")
            return
        forward, inputs = op.computes == "forward", op.input_product
        whole = self._product(node, inputs, named, "", " inputs") if inputs else []
        n, k = (op.outputs, op.hidden) if forward else (op.hidden, op.outputs)
        state = self.memory.name_buffers(
            f"{node.name} step", (), (Tensor((op.batch, k), op.dtype), Tensor((k, n), op.dtype, "weight"))
        )
        product = self._product(node, Gemm(op.batch, n, k, op.dtype), state, "", " step")
        elements = op.batch * op.hidden
        size = elements * width(op.dtype)
        sweep = closed.DataSweep((2 * op.gates + 1) * size, (op.gates + 1) * size, operations=4 * op.gates * elements)
        every = (
            *product,
            self._sweeps(node, closed.SweepKernel((sweep,), elements // THREADS + 1, THREADS), 1, [], []),
        )
        yield from whole if forward else ()
        yield from (replace(one, name=f"{one.name}, step {at}") for at in range(op.steps) for one in every)
        yield from () if forward else whole

    def _attention(self, node: Node, op: Attention, named: Sequence[str], made: Sequence[str]) -> list[Kernel]:
        """Return the kernel of fused attention; of its gradient, also those before it and behind it that sweep.

        Gradients of queries are added up in fp32, and converted by the last kernel.
        """
        left = list(named)
        at = dict(zip(("query", "keys", "values", "output", "slope"), self._match_places(op, left), strict=False))
        first, size = len(self.memory.output), sum(tensor.bytes for tensor in op.writes[-2 if op.gradient else 0 :])
        self.memory.output.append(size)
        if not op.gradient and made and made[0] not in self.memory.places:
            self.memory.places[made[0]] = _Place("output", first, size)
        sums = self.memory.spare(f"{node.name} sums", op.reads[0].bytes * 4 / width(op.dtype))
        at["sums"] = sums
        work = over_dies(attention_tiles(op), self.gpu)
        work[:, y.WORK_TILE] += self.tiles
        work[:, y.WORK_REGION] = first
        where = {name: (place.buffer, place.position) for name, place in at.items()}
        main = attention_kernel(op, self.gpu, self.options, node.name, where, node.id)
        main = replace(main, part=(self.tiles, self.tiles + len(work)))
        self.work.append(work)
        self.tiles += len(work)
        if not op.gradient:
            return [main]
        outputs, rows = sum(tensor.bytes for tensor in op.reads[3:5]), op.reads[5].bytes
        before = closed.SweepKernel((closed.DataSweep(reads=outputs, writes=rows),), outputs // 4096 + 1, THREADS)
        converted = closed.DataSweep(reads=sums.bytes, writes=op.writes[0].bytes)
        behind = closed.SweepKernel((converted,), sums.bytes // 4096 + 1, THREADS)
        return [
            self._sweeps(node, before, 0, [], []),
            replace(main, name=f"{node.id} products"),
            self._sweeps(node, behind, 2, [], []),
        ]

    def _match_places(self, op: Op, named: list[str]) -> Iterator[_Place]:
        """Yield where the tensors that an operator reads lie: each the first of its size that is left among those
        named.
        """
        for place, tensor in enumerate(op.reads):
            fitting = next((name for name in named if self.memory.sizes[name] == tensor.bytes), None)
            if fitting is not None:
                named.remove(fitting)
            yield self.memory.place(fitting) if fitting else self.memory.spare(f"{op.kind} {place}", tensor.bytes)

    def _by_rows(self, node: Node, gemv: Gemv, named: Sequence[str], made: Sequence[str]) -> Kernel:
        """The kernel of a matrix times a vector: 32 threads go along each row, a row's step from those of the next."""
        size, rows, threads = width(gemv.dtype), GEMV_ROWS, THREADS
        row, step = int(gemv.columns * size), int(gemv.step * size)
        part = min(row, threads // rows * closed.BYTES_IN_FLIGHT // 2)
        iterations, name = -(-row // part), node.name
        whole = gemv.step == gemv.columns and len(named) > 1
        matrix = self.memory.place(named[0]) if whole else self.memory.spare(f"{name} matrix", gemv.rows * step)
        vector = self.memory.place(named[-1])
        result = self.memory.place(made[0])
        # First-level caches hold the vector: of all workgroups, each fetches a part of it.
        last, share = row - part * (iterations - 1), max(1, row // (-(-gemv.rows // rows) * iterations))
        along = [
            ChunkLoad(matrix.buffer, matrix.position, name, part, last, rows * step, part, number * step, cached=True)
            for number in range(rows)
        ]
        phase = Phase(
            iterations=iterations,
            slots=min(2, iterations),
            cycles=rows * gemv.columns / self.gpu.vector_lanes / iterations,
            loads=(*along, ChunkLoad(vector.buffer, vector.position, name, share, 0, share, 1, cached=True)),
        )
        stored = int(rows * size)
        end = Phase(1, 1, 0, stores=(ChunkStore(result.buffer, result.position, name, stored, 0, stored, 0),))
        return Kernel(node.id, -(-gemv.rows // rows), threads, threads * REGISTERS * 4, 0, (phase, end))

    def _sweeps(
        self, node: Node, kernel: closed.SweepKernel, number: int, named: Sequence[str], made: Sequence[str]
    ) -> Kernel:
        """Return a kernel that goes through memory as its closed form says: a phase for each sweep."""
        gpu, threads = self.gpu, int(kernel.threads)
        held = gpu.compute.resident_workgroups(threads, threads * REGISTERS * 4, 0) * gpu.compute.compute_units
        moved = max(float(sweep.reads + sweep.writes + sweep.rereads) for sweep in kernel.sweeps)
        lanes = threads * closed.BYTES_IN_FLIGHT // 2
        workgroups = max(1, min(int(kernel.workgroups), -(-int(moved) // lanes), WAVES * held))
        reads, writes = (
            _Stretch(self.memory, f"{node.name} {what}{number or ''}", [*dict.fromkeys(names)] if number == 0 else [])
            for what, names in (("in", named), ("out", made))
        )
        phases = []
        for place, sweep in enumerate(kernel.sweeps):
            read, written = float(sweep.reads + sweep.rereads), float(sweep.writes)
            iterations = max(1, -(-int(max(read, written)) // (workgroups * lanes)))
            operations = max(
                float(sweep.operations) / gpu.vector_lanes, float(sweep.specials) / closed.SPECIALS_PER_CLOCK
            )
            phases.append(
                Phase(
                    iterations=iterations,
                    slots=min(2, iterations),
                    cycles=operations / workgroups / iterations,
                    loads=tuple(
                        ChunkLoad(*one, cached=True) for one in reads.part(read, workgroups, iterations, node.name)
                    ),
                    stores=tuple(ChunkStore(*one) for one in writes.part(written, workgroups, iterations, node.name)),
                    delay_fs=round(closed.REDUCTION_CLOCKS / running_clock(gpu, self.options) * 1e15) if place else 0,
                )
            )
        name = node.id if number == 0 else f"{node.id} {number}"
        return Kernel(name, workgroups, threads, threads * REGISTERS * 4, 0, tuple(phases))


class _Stretch:
    """The memory that a sweep reads or writes: the tensors that a node names, and spare memory beyond them."""

    def __init__(self, memory: _PlanBuffers, name: str, tensors: Sequence[str]) -> None:
        self._memory, self._name = memory, name
        places = [memory.place(one) for one in tensors]
        self._places = places if len(places) <= _MOST_APART else []

    def part(
        self, amount: float, workgroups: int, iterations: int, operator: str
    ) -> Iterator[tuple[str, int, str, int, int, int, int]]:
        """Yield the fields of the accesses by which every workgroup and iteration moves its part of `amount` bytes."""
        if amount <= 0:
            return
        whole = sum(place.bytes for place in self._places)
        share = min(1.0, amount / whole) if whole else 0.0
        moved = [(place, place.bytes * share) for place in self._places]
        if amount > whole * 1.001:
            moved.append((self._memory.spare(self._name, amount - whole), amount - whole))
        for place, size in moved:
            every = place.bytes / workgroups
            row = -(-round(every) // _ALIGNED) * _ALIGNED if every > _ALIGNED else max(1, round(every))
            unit = max(1, round(size / workgroups / iterations))
            yield place.buffer, place.position, operator, unit, 0, row, max(1, row // iterations)


def _products(op: Op) -> tuple[Gemm, ...]:
    """Return the matrix products of an operator."""
    if isinstance(op, Gemm):
        return (op,)
    return (op.product,) if isinstance(op, Convolution) else getattr(op, "products", ())


def _read(phases: Iterable[Phase], operands: Mapping[str, tuple[_Place, int]]) -> tuple[Phase, ...]:
    """Phases that load their operands where these lie."""
    return tuple(replace(one, loads=tuple(_from(load, *operands[load.buffer]) for load in one.loads)) for one in phases)


def _from(load: ChunkLoad, place: _Place, whole: int) -> ChunkLoad:
    """A load from a tensor that may hold fewer bytes than the operand: windows of images overlap, and so do loads."""
    slab = load.step_stride or load.unit_bytes
    share = min(1.0, max(place.bytes - slab, 0) / (whole - slab)) if whole > slab else 1.0

    def closer(stride: int) -> int:
        return stride if share == 1.0 else int(stride * share) // _ALIGNED * _ALIGNED

    return replace(
        load,
        buffer=place.buffer,
        position=place.position,
        row_stride=closer(load.row_stride),
        column_stride=closer(load.column_stride),
        step_stride=closer(slab),
        offset=closer(load.offset),
    )


def lower_operators(graph: Graph, gpu: Gpu, options: RunOptions) -> tuple[Graph, Plan]:
    """Lower a graph of operators without collectives; returns it with the tilings of its GEMMs, and the plan.

    Raises InputError for operators without a kernel, tiles that the GPU cannot hold, and more tiles than a run holds.
    """
    _check_kinds(graph)
    made = _PlanBuilder(gpu, options, _PlanBuffers(tensor_bytes(graph)))
    for node in graph:
        made.add(node)

    def tiled(node: Node) -> Node:
        tiling = made.tilings.get(node.id) if isinstance(node.op, Gemm) else None
        return replace(node, choice=node.choice.with_tiling(tiling)) if tiling else node

    placed = in_order(graph, gpu, lambda node: [PlacedKernel(kernel) for kernel in made.kernels[node.id]])
    wavefronts = max((one.wavefronts(gpu) for one in made.tilings.values()), default=1)
    work = (np.concatenate(made.work),) if made.work else ()
    return graph.map(tiled), Plan(placed, made.memory.buffers(), work, wavefronts)


def _sweep_kernels(op: Op, machine: Target) -> tuple[closed.SweepKernel, ...]:
    """Return the kernels of an operator that is no product, as its closed form has them."""
    if isinstance(op, Scan):
        from weft.estimate.scan import scan_kernels

        return scan_kernels(op, machine)
    return kernels_of(op, machine)


def _check_kinds(graph: Graph) -> None:
    """Raise InputError for an operator without a kernel, and for dimensions that are arrays."""
    for node in graph:
        if not isinstance(node.op, KINDS):
            raise InputError(
                f"the engine has no kernel for '{node.id}' ({node.op.kind}); it runs GEMMs, convolutions, recurrent "
                "layers, scans, attention, streaming operators and captured calls: ask weft.estimate for a closed form"
            )
        if isinstance(node.op, Attention) and not node.op.fused:
            raise InputError(
                f"the engine has no kernel for '{node.id}', attention in separate kernels; give these as operators of "
                "their own, or ask weft.estimate for a closed form"
            )
        if isinstance(node.op, Recurrent) and node.op.persistent:
            raise InputError(
                f"the engine has no kernel for '{node.id}', which keeps its weights in registers; leave persistent "
                "out, or ask weft.estimate for a closed form"
            )
        if np.ndim(node.op.flops):
            raise InputError(
                f"the dimensions of '{node.id}' are arrays; a run takes a whole number for each, or ask weft.estimate"
            )
