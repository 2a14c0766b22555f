"""The kernels of a ring collective on compute units: persistent workgroups that move chunk after chunk.

Workgroup w of n takes every n-th piece of a chunk; a step begins when the chunk it forwards has fully arrived. Every
GPU sends to one neighbour, and a chunk visits all GPUs. Chunks are numbered by *position*, the order in which a GPU
handles them: GPU g produces chunk g + 1 first and its own chunk g last, so position p of one GPU is position p + 1 of
the neighbour that it sends to.

Over several nodes of r GPUs each, every node has a ring of its own, and DMA engines send between GPUs of equal place in
their nodes. Positions q * r to q * r + r - 1 then hold the chunks of one node: of the next node first where chunks are
reduced, of the GPU's own node first where they are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weft.core.errors import InputError
from weft.core.units import format_bytes
from weft.engine.program import Buffer, ChunkLoad, ChunkRule, ChunkStore, DmaMap, Kernel, Phase, RemoteMap, Wait
from weft.engine.program.plan import PLAIN_STORE
from weft.hardware import Gpu

SLOTS = 4
"""Iterations that a workgroup of a ring kernel has in flight by default."""


@dataclass(frozen=True)
class RingTiling:
    """How a ring kernel is cut: workgroups (None: one per compute unit), threads, bytes of an iteration (`piece`), and
    iterations in flight per workgroup (`slots`).

    256 threads x 16 B make 4 KiB; four iterations keep 32 KiB of two operands in flight, more than latency x bandwidth
    of a compute unit's share (assumed).
    """

    workgroups: int | None = None
    threads: int = 256
    piece: int = 4096
    slots: int = SLOTS
    registers_per_thread: int = 64
    link: ClassVar[float] = 1.0
    """The share of the link's payload rate that its stores reach."""


RING = RingTiling()
"""The tiling of the ring kernels of a sub-layer."""


def _phase(
    tiling: RingTiling,
    gpu: Gpu,
    operator: str,
    sources: tuple[tuple[str, int], ...],
    target: tuple[str, int],
    wait: Wait | None = None,
    element_bytes: int = 2,
) -> Phase:
    """A phase in which all workgroups add up the chunks `sources` (buffer, position), and store the sum to `target`."""
    piece = tiling.piece
    additions = (len(sources) - 1) * piece // element_bytes
    return Phase(
        iterations=None,
        slots=tiling.slots,
        cycles=additions / gpu.compute.vector_flops_per_clock,
        loads=tuple(ChunkLoad(buffer, position, operator, piece) for buffer, position in sources),
        stores=(ChunkStore(*target, operator, piece),),
        wait=wait,
        shared=True,
    )


def _kernel(name: str, gpu: Gpu, tiling: RingTiling, phases: list[Phase]) -> Kernel:
    return Kernel(
        name=name,
        workgroups=gpu.compute.compute_units if tiling.workgroups is None else tiling.workgroups,
        threads=tiling.threads,
        registers=tiling.threads * tiling.registers_per_thread * 4,
        lds=0,
        phases=tuple(phases),
    )


def reduce_kernel(chunks: int, gpu: Gpu, tiling: RingTiling, element_bytes: int = 2, source: str = "output") -> Kernel:
    """Ring reduce-scatter of `chunks` chunks of the buffer `source`, of elements of `element_bytes`, on compute units.

    The chunk at position 0 is sent as it is; each later one is added to what was received, and the sum is sent; the
    last sum is kept.
    """
    phases = [_phase(tiling, gpu, "reduce_scatter", ((source, 0),), ("received", 0), None, element_bytes)]
    for p in range(1, chunks):
        target = ("result", 0) if p == chunks - 1 else ("received", p)
        sources, wait = ((source, p), ("received", p)), Wait("received", p)
        phases.append(_phase(tiling, gpu, "reduce_scatter", sources, target, wait, element_bytes))
    return _kernel("reduce_scatter", gpu, tiling, phases)


def near_memory_reduce_kernel(chunks: int, gpu: Gpu, tiling: RingTiling) -> Kernel:
    """Ring reduce-scatter of `chunks` chunks with additions in the memory: read a complete chunk, send updates."""
    return _forwarding("reduce_scatter", "output", chunks, gpu, tiling, ("output", 0))


def gather_kernel(
    chunks: int, gpu: Gpu, tiling: RingTiling, own: tuple[str, int], buffer: str = "gathered", nodes: int = 1
) -> Kernel:
    """Ring all-gather of `chunks` chunks into `buffer` on compute units: send the GPU's own (at `own`), then forward.

    Over several `nodes` the ring is that of a node, and DMA engines send the GPU's own chunk to the others
    (`exchange_rules`).
    """
    return _forwarding("all_gather", buffer, chunks, gpu, tiling, own, nodes)


def _forwarding(
    operator: str, buffer: str, chunks: int, gpu: Gpu, tiling: RingTiling, own: tuple[str, int], nodes: int = 1
) -> Kernel:
    """A kernel that sends `own`, then each complete chunk of `buffer` but those that have been around a node's ring.

    It ends when all of these are complete.
    """
    each = chunks // nodes
    sent = [p for p in range(chunks) if p % each < each - 1]
    phases = [
        _phase(tiling, gpu, operator, ((buffer, p),), (buffer, p), Wait(buffer, p))
        if p
        else _phase(tiling, gpu, operator, (own,), (buffer, 0))
        for p in sent
    ]
    last = (Phase(0, 1, 0, wait=Wait(buffer, p)) for p in range(each - 1, chunks, each) if p)
    return _kernel(operator, gpu, tiling, [*phases, *last])


def sum_kernel(
    name: str,
    sources: tuple[tuple[str, int], ...],
    gpu: Gpu,
    tiling: RingTiling,
    element_bytes: int = 2,
    operator: str = "reduce_scatter",
) -> Kernel:
    """Return a local kernel that stores the sum of chunks of equal size (buffer, position) into the result."""
    phase = _phase(tiling, gpu, operator, sources, ("result", 0), None, element_bytes)
    return _kernel(name, gpu, tiling, [phase])


@dataclass(frozen=True)
class WholeRing:
    """A ring all-reduce of `bytes_` (the whole buffer) over `ranks` in one kernel: reduce-scatter, then all-gather.

    A step begins when the chunk that it forwards has fully arrived, as in `reduce_kernel` and `gather_kernel`. Where it
    adds, an iteration moves half of `tiling.piece`: the two operands share the workgroup's registers.
    """

    bytes_: int
    ranks: int
    tiling: RingTiling
    element_bytes: int = 2
    collective: ClassVar[str] = "all_reduce"
    algorithm: ClassVar[str] = "plain-ring"

    @property
    def chunk(self) -> int:
        """One GPU's share of the data [bytes], rounded up to whole pieces."""
        return -(-self.bytes_ // (self.ranks * self.tiling.piece)) * self.tiling.piece

    def buffers(self) -> tuple[Buffer, ...]:
        """Return a GPU's data, receive buffers, reduced chunk and result."""
        chunks = ((self.chunk,) * self.ranks,)
        return (
            Buffer("data", chunks),
            Buffer("received", chunks, forward_rules("received", "reduce_scatter", self.ranks)),
            Buffer("result", ((self.chunk,),)),
            Buffer("gathered", chunks, forward_rules("gathered", "all_gather", self.ranks)),
        )

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the kernel; `earlier` counts kernels that used the same buffers before it."""
        halved = replace(self.tiling, piece=self.tiling.piece // 2)
        reduce = reduce_kernel(self.ranks, gpu, halved, self.element_bytes, source="data")
        gather = gather_kernel(self.ranks, gpu, self.tiling, own=("result", 0))
        came = (earlier + 1) * self.chunk
        phases = (
            phase if phase.wait is None else replace(phase, wait=replace(phase.wait, bytes=came))
            for phase in (*reduce.phases, *gather.phases)
        )
        return replace(reduce, name=name or self.collective, phases=tuple(phases))


def whole_ring(bytes_: int, ranks: int, units: int | None, in_flight: int, element_bytes: int = 2) -> WholeRing:
    """A ring all-reduce by `units` workgroups (None: one per compute unit) with `in_flight` bytes in flight in each.

    Raises InputError for bytes that a workgroup's threads cannot share evenly.
    """
    grain = 128 * SLOTS
    if in_flight < grain or in_flight % grain:
        raise InputError(f"in_flight is {format_bytes(in_flight)}; it must be a multiple of {grain} B")
    if in_flight > bytes_:
        raise InputError(
            f"in_flight is {format_bytes(in_flight)}, but the buffer has {format_bytes(bytes_)}; give at most that"
        )
    return WholeRing(bytes_, ranks, RingTiling(units, piece=in_flight // SLOTS), element_bytes)


# -- address maps


def forward_rules(
    buffer: str, operator: str, gpus: int, *, update: bool = False, nodes: int = 1
) -> tuple[ChunkRule, ...]:
    """The address map of a buffer around a ring: a store (or `update`) at position p goes to the neighbour's p + 1.

    Over several `nodes` there is a ring in each, for the chunks of every node.
    """
    within = _node(gpus, nodes)
    steps = (ChunkRule(remote=RemoteMap(buffer, p, update, operator, within=within)) for p in range(1, gpus + 1))
    return tuple(PLAIN_STORE if p % (gpus // nodes) == 0 else rule for p, rule in enumerate(steps, 1))


def exchange_rules(gpus: int, nodes: int) -> tuple[ChunkRule, ...]:
    """The address map of copies of a GPU's own chunk to the GPUs of its place in the other nodes, nearest first."""
    far = (gpus // nodes * q for q in range(1, nodes))
    return tuple(ChunkRule(dma=DmaMap("gathered", step, False, "all_gather", step, direct=True)) for step in far)


def _node(gpus: int, nodes: int) -> int:
    """Return the GPUs around which ranks are counted in a node; 0 where one node holds all."""
    return gpus // nodes if nodes > 1 else 0


def two_level_reduce_scatter(
    gpus: int, nodes: int, parts: int = 1, engines: tuple[int, ...] = ()
) -> tuple[ChunkRule, ...]:
    """T3's map over several nodes: around a ring inside a node, then DMA sends a node's sum to the owner (`engines`).

    The chunks of every other node end their ring at the GPU that has their owner's place in its node. A GPU's own chunk
    is complete with its node's ring and a sum of every other node.
    """
    each = gpus // nodes
    ring, mine = (fused_reduce_scatter(each, parts, within=each) if each > 1 else ()), parts + (each > 1)
    rules = []
    for q in range(nodes):
        inside = [_shift_rule(rule, each * q) for rule in ring[:-1]]
        there = DmaMap("output", gpus - 1, True, "reduce_scatter", gpus - each * (q + 1), direct=True, engines=engines)
        rules += [*inside, ChunkRule(update=True, updates_per_element=mine, dma=there)]
    own = ChunkRule(update=True, updates_per_element=mine + nodes - 1)
    return (*rules[:-1], own)


def _shift_rule(rule: ChunkRule, by: int) -> ChunkRule:
    """The rule of a chunk whose receiver's position is `by` further on."""
    remote, dma = rule.remote, rule.dma
    return replace(
        rule,
        remote=remote and replace(remote, position=remote.position + by),
        dma=dma and replace(dma, position=dma.position + by),
    )


def fused_reduce_scatter(gpus: int, parts: int = 1, within: int = 0) -> tuple[ChunkRule, ...]:
    """T3's map of the producer's output (ASPLOS 2024, arXiv:2401.16677).

    The first chunk has a ``remote_map``: the producer's stores update the neighbour's memory. The later ones are
    updated here, by the producer and by the neighbour, and have a ``dma_map``: complete blocks are sent on as updates.
    The last one stays. A producer that cuts K into `parts` updates each element as often; the first chunk is then added
    up here and sent on, too, so that it crosses the link once. The neighbour is one of `within` GPUs (0: of all).
    """
    sent_on = (DmaMap("output", p + 1, True, "reduce_scatter", within=within) for p in range(1, gpus - 1))
    return (
        _summed_first(RemoteMap("output", 1, True, "reduce_scatter", within=within), parts),
        *(ChunkRule(update=True, updates_per_element=parts + 1, dma=dma) for dma in sent_on),
        ChunkRule(update=True, updates_per_element=parts + 1),
    )


def direct_reduce_scatter(
    gpus: int, parts: int = 1, engines: int = 0, *, summed: bool = False, merged: bool = False
) -> tuple[ChunkRule, ...]:
    """The map of the producer's output that sends every tile straight to its owner (discussed in the same paper).

    All chunks but the last have a ``remote_map``: the producer's stores update the memory of the GPU that owns the
    chunk. The last one, the GPU's own, is complete when all GPUs have updated it. A producer that cuts K into `parts`
    adds them up first; with `engines` tiles are always stored here first, and that many DMA engines send them, each
    to one owner as far as they suffice, so that none waits for the link to another. If `summed`, the switch adds up
    what the peers store to a tile, and the owner's memory is updated by the sum; if `merged`, by as many sums of some
    peers' stores as make them all.
    """
    peers, others = range(gpus - 1), gpus - 1 if summed else 0
    owners = (
        RemoteMap("output", gpus - 1, True, "reduce_scatter", gpus - 1 - p, direct=True, summed=others) for p in peers
    )
    own = ChunkRule(update=True, updates_per_element=parts + (1 if summed and not merged else gpus - 1))
    senders = (tuple(range(p % engines, engines, gpus - 1)) if engines else () for p in peers)
    return (*(_summed_first(owner, parts, each) for owner, each in zip(owners, senders, strict=True)), own)


def _summed_first(there: RemoteMap, parts: int, engines: tuple[int, ...] = ()) -> ChunkRule:
    """Stores go to another GPU at once or, where `parts` parts make a sum or `engines` are given, DMA sends them."""
    if parts == 1 and not engines:
        return ChunkRule(remote=there)
    return ChunkRule(update=True, updates_per_element=parts, dma=DmaMap(**vars(there), engines=engines))
