"""From a hardware description to the engine's integers: seconds become femtoseconds, rates become time per 64 bytes.

Rates are those that a machine reaches: the measured shares of their peaks of the caches, the link and the path from
memory, and the clock that compute units run at. What DRAM loses by rows and turns of its bus is its timing's matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.engine import layout as y
from weft.engine.state import Table
from weft.errors import InputError
from weft.hardware import Fabric, Gpu, GpuLink, System
from weft.hardware.fabric import NETWORK_PAYLOAD, Link, full, switch
from weft.kernels import running_clock
from weft.options import SUSTAINED, RunOptions
from weft.program import Hardware, Hop, Wiring
from weft.units import format_bytes, format_rate, to_fs

UNIT = 64
QUEUED_REQUESTS = 4
"""Requests that a channel's queue holds at least: one for each bank group of HBM."""
FEWEST_CHANNELS = 4
"""Channels that ganging leaves at least, so that requests still meet in some and pass in others."""
COARSEST = 64 * 1024
"""The largest request [bytes]: beyond it, a machine would be left with a handful of channels."""


def _per_unit(bytes_per_s: float) -> int:
    """Femtoseconds per 64 bytes at a rate."""
    return to_fs(UNIT / bytes_per_s)


def gpu_row(gpu: Gpu, start: float = 0.0, options: RunOptions = SUSTAINED) -> Table:
    """The engine's row of one GPU with a link that begins at `start` [s] and runs at the clock of the options."""
    row = np.zeros(y.GPU_COLUMNS, dtype=np.int64)
    _compute(row, gpu, running_clock(gpu, options))
    _cache(row, gpu)
    _memory(row, gpu)
    _timing(row, gpu)
    _movers(row, gpu)
    row[y.GPU_START] = to_fs(start)
    return row


def _compute(row: Table, gpu: Gpu, hertz: float) -> None:
    c = gpu.compute
    row[y.GPU_CUS], row[y.GPU_THREADS] = c.compute_units, c.threads_per_cu
    row[y.GPU_REGISTERS], row[y.GPU_LDS] = c.registers_per_cu, c.lds_per_cu
    row[y.GPU_WORKGROUPS], row[y.GPU_CYCLE] = c.max_workgroups_per_cu, to_fs(1 / hertz)
    row[y.GPU_PORT64] = _per_unit(c.port_bytes_per_clock * hertz)
    row[y.GPU_LAUNCH], row[y.GPU_STRICT] = to_fs(c.launch_latency), int(gpu.vendor == "nvidia")


def _cache(row: Table, gpu: Gpu) -> None:
    cache = gpu.cache
    slices = gpu.dies * slices_of(gpu, gpu.memory.channels)
    row[y.GPU_SLICE64] = _per_unit(cache.bandwidth * gpu.achieved.gemm_cache / slices)
    # Half of a near hit's latency lies on the way to the cache, half on the way back.
    row[y.GPU_CACHE_OUT] = to_fs(cache.latency / 2)
    row[y.GPU_CACHE_BACK] = to_fs(cache.latency) - row[y.GPU_CACHE_OUT] + to_fs(far_share(gpu))


def slices_of(gpu: Gpu, channels: int) -> int:
    """Slices of the cache of one partition, above `channels` memory channels."""
    return max(channels // gpu.dies, 1)


def far_share(gpu: Gpu) -> float:
    """What hits in other partitions add to the mean latency of a hit [s]: addresses are spread over all alike.

    The partitions of an AMD GPU are caches of their own, which nobody else reads.
    """
    cache = gpu.cache
    if cache.partitions == gpu.dies:
        return 0.0
    return (cache.far_latency - cache.latency) * (cache.partitions - 1) / cache.partitions


def _memory(row: Table, gpu: Gpu) -> None:
    m = gpu.memory
    clock = to_fs(1 / m.clock)
    # A load from memory was measured over near and far partitions together: what hits add is part of it.
    row[y.GPU_MEMORY_LATENCY] = max(to_fs(m.latency) - to_fs(far_share(gpu)), 0)
    row[y.GPU_QUEUE_BYTES] = m.queue_entries * UNIT
    row[y.GPU_T_BURST] = max(m.ccd, m.burst_clocks) * clock
    row[y.GPU_T_LONG], row[y.GPU_T_UPDATE] = m.ccd_long * clock, m.ccd_update * clock
    # The bus could carry more than the longest reads get: the path to the rest of the chip is what holds them up.
    row[y.GPU_T_PATH] = round(row[y.GPU_T_BURST] / m.read_efficiency)
    row[y.GPU_PEAK64] = _per_unit(m.bandwidth)
    side = gpu.memory_cache
    if side.capacity:
        row[y.GPU_SIDE64] = _per_unit(side.bandwidth * side.efficiency / m.channels)
        row[y.GPU_SIDE_DIRTY] = round(1000 * side.dirty_at_start)
        row[y.GPU_SIDE_LATENCY] = max(to_fs(side.latency) - to_fs(gpu.cache.latency), 0)


def _timing(row: Table, gpu: Gpu) -> None:
    t, burst = gpu.memory.timing, gpu.memory.burst_clocks / gpu.memory.clock
    row[y.GPU_T_RRD], row[y.GPU_T_RCD], row[y.GPU_T_RAS] = to_fs(t.rrd), to_fs(t.rcd), to_fs(t.ras)
    row[y.GPU_T_RP], row[y.GPU_T_RC], row[y.GPU_T_CL] = to_fs(t.rp), to_fs(t.rc), to_fs(t.cl)
    # Command to command, as the data of one must have left the bus before the other's: JEDEC's tRTW, tWTR + WL, tWR.
    row[y.GPU_T_READ_TO_WRITE] = to_fs(max(t.cl + burst + 2 / gpu.memory.clock - t.wl, burst))
    row[y.GPU_T_WRITE_TO_READ] = to_fs(t.wl + burst + t.cdlr)
    row[y.GPU_T_WRITE_TO_PRECHARGE] = to_fs(t.wl + burst + t.wr)
    row[y.GPU_T_READ_TO_PRECHARGE] = to_fs(t.rtp)


def _movers(row: Table, gpu: Gpu) -> None:
    row[y.GPU_DMA_ENGINES], row[y.GPU_DMA_SETUP] = gpu.dma.engines, to_fs(gpu.dma.setup)
    row[y.GPU_DMA_WINDOW] = gpu.dma.window
    row[y.GPU_DMA_RATE64] = _per_unit(gpu.dma.bandwidth) if gpu.dma.bandwidth else 0
    row[y.GPU_TRACKER_SETS], row[y.GPU_TRACKER_WAYS] = gpu.tracker.sets, gpu.tracker.ways
    row[y.GPU_SPILL_BYTES] = gpu.tracker.spill_bytes
    a = gpu.arbiter
    row[y.GPU_THRESHOLD_HIGH], row[y.GPU_THRESHOLD_MEDIUM] = (
        a.threshold_high * UNIT,
        a.threshold_medium * UNIT,
    )
    row[y.GPU_THRESHOLD_LOW] = a.threshold_low * UNIT
    row[y.GPU_INTENSITY_HIGH] = round(a.intensity_high * 1000)
    row[y.GPU_INTENSITY_MEDIUM] = round(a.intensity_medium * 1000)
    row[y.GPU_INTENSITY_LOW] = round(a.intensity_low * 1000)
    row[y.GPU_STARVATION] = to_fs(a.starvation_limit)


def machine_tables(system: System, ranks: int, options: RunOptions, residents: int) -> Hardware:
    """The rows of the simulated GPUs, the sizes they share and the links between them; `residents` is the most
    workgroups of a compute unit; `options` have a request size.

    Raises InputError where GPUs differ in what must be common (channels, banks, cache, matrix rate), or
    where the request size does not fit the machine.
    """
    request_bytes = options.request_bytes or default_request_bytes(system.gpu)
    gpus = [system.gpu_of(rank) for rank in range(ranks)]
    for rank, gpu in enumerate(gpus):
        _check_common(system.gpu, gpu, rank)
    check_request(system.gpu, request_bytes)
    rows = np.stack([gpu_row(gpu, system.start_of(rank), options) for rank, gpu in enumerate(gpus)])
    memory, cache = system.gpu.memory, system.gpu.cache
    gang = ganged(system.gpu, request_bytes)
    # A queue of a few coarse requests stands for one of many fine ones: less would leave the banks idle.
    rows[:, y.GPU_QUEUE_BYTES] = np.maximum(rows[:, y.GPU_QUEUE_BYTES] * gang, QUEUED_REQUESTS * request_bytes)
    rows[:, y.GPU_SIDE64] //= gang
    rows[:, y.GPU_PATH_SLACK] = rows[:, y.GPU_QUEUE_BYTES] // (memory.burst_bytes * gang) * rows[:, y.GPU_T_BURST]
    partitions, slices = system.gpu.dies, slices_of(system.gpu, memory.channels // gang)
    rows[:, y.GPU_SLICE64] = rows[:, y.GPU_SLICE64] * slices // slices_of(system.gpu, memory.channels)
    shape = np.zeros(y.SIZE_COLUMNS, dtype=np.int64)
    shape[y.SIZE_CUS] = max(gpu.compute.compute_units for gpu in gpus)
    shape[y.SIZE_CHANNELS], shape[y.SIZE_BANKS], shape[y.SIZE_GROUPS] = (
        memory.channels // gang,
        memory.banks,
        memory.bank_groups,
    )
    shape[y.SIZE_INTERLEAVE], shape[y.SIZE_ROW], shape[y.SIZE_BURST] = (
        stripe(system.gpu, request_bytes),
        memory.row_bytes * gang,
        memory.burst_bytes * gang,
    )
    shape[y.SIZE_REQUEST], shape[y.SIZE_WAYS] = request_bytes, cache.ways
    shape[y.SIZE_PARTITIONS], shape[y.SIZE_SLICES] = partitions, slices
    shape[y.SIZE_SETS] = cache.capacity // (partitions * cache.ways * request_bytes)
    side = system.gpu.memory_cache
    shape[y.SIZE_SIDE_WAYS] = side.ways
    shape[y.SIZE_SIDE_SETS] = side.capacity // (side.ways * request_bytes * (memory.channels // gang))
    shape[y.SIZE_RESIDENT] = residents
    shape[y.SIZE_ENGINES] = max(gpu.dma.engines for gpu in gpus)
    return Hardware(rows, shape, wiring(system, ranks))


CHIPLET_REQUEST = 32 * 1024
"""Requests on GPUs of several dies, unless asked for otherwise [bytes]: a tenth of the cost of 512 B.

Within 2 % of it for GEMMs bound by compute and for collectives; a GEMM of 36 us that memory bounds is 9 % faster.
"""
COARSE_REQUEST = 16 * 1024
"""Requests on GPUs of one die, unless asked for otherwise [bytes].

On MI100, six GEMMs of 18 to 274 us alone, and eight copies of each together, come out within 9 % of 512 B; requests of
one interleave (4 KiB) make them up to 70 % longer.
"""


def default_request_bytes(gpu: Gpu) -> int:
    """The size of requests on a GPU unless another one is asked for [bytes].

    Coarse ones are nearly as exact as fine ones and several times faster. A request of just one interleave lies whole
    in one of many channels and takes too long; machines without a vendor have it all the same: their studies choose.
    """
    if gpu.vendor == "none":
        return gpu.memory.interleave
    return CHIPLET_REQUEST if gpu.dies > 1 else COARSE_REQUEST


FINE_STRIPE = 512
"""The stripe of a channel where GPUs leave a choice: they stripe at 256 B to 4 KiB [bytes]."""


def stripe(gpu: Gpu, request_bytes: int) -> int:
    """Bytes in a row that the engine leaves in one channel: as fine as requests allow, at most `memory.interleave`.

    Coarse stripes let the workgroups that share operands crowd on few channels and slices of the cache, which
    the address hashes of real GPUs prevent.
    """
    fine = max(request_bytes, FINE_STRIPE)
    coarse = max(gpu.memory.interleave, request_bytes)
    return fine if fine < coarse and coarse % fine == 0 else coarse


def ganged(gpu: Gpu, request_bytes: int) -> int:
    """How many channels serve one request together: more than one where a request exceeds the interleave.

    As many as the bytes would be striped over as finely as GPUs do. Channels that go in step keep all their times: each
    command moves the bytes of all of them.
    """
    least = request_bytes // gpu.memory.interleave
    if least <= 1:
        return 1
    channels = gpu.memory.channels
    most = min(request_bytes // FINE_STRIPE, channels // FEWEST_CHANNELS)
    return max((gang for gang in range(least, most + 1) if channels % gang == 0), default=least)


COMMON = (
    "memory.channels",
    "memory.banks",
    "memory.bank_groups",
    "memory.interleave",
    "memory.row_bytes",
    "memory.burst_bytes",
    "cache.capacity",
    "cache.ways",
    "cache.partitions",
    "memory_cache.capacity",
    "memory_cache.ways",
    "compute.vector_flops_per_clock",
    *(path for path in Gpu.rules() if path.startswith(("rates.", "achieved."))),
)
"""What the GPUs of one simulated machine must have in common."""


def _check_common(first: Gpu, gpu: Gpu, rank: int) -> None:
    for path in COMMON:
        if gpu.value(path) != first.value(path):
            raise InputError(
                f"GPU {rank} has {path} = {gpu.text(path)}, the others {first.text(path)}; GPUs of one machine may "
                f"differ in clocks, rates and counts of compute units, but not in {path}"
            )


def check_request(gpu: Gpu, request_bytes: int) -> None:
    """Raise InputError for a request size that the GPU's channels and caches cannot be cut into."""
    interleave = gpu.memory.interleave
    shown = f"the request size is {format_bytes(request_bytes)}"
    if request_bytes < UNIT or request_bytes % UNIT or max(interleave, request_bytes) % min(interleave, request_bytes):
        raise InputError(
            f"{shown}; it must be a multiple of {UNIT} B that divides the channel interleave "
            f"({format_bytes(interleave)}) or is a multiple of it: try {format_bytes(interleave)}"
        )
    gang = ganged(gpu, request_bytes)
    if gang > 1 and (request_bytes > COARSEST or gpu.memory.channels % gang):
        raise InputError(
            f"{shown}; above the channel interleave ({format_bytes(interleave)}) it may be at most "
            f"{format_bytes(COARSEST)}, and its {gang} channels must divide the {gpu.memory.channels} of "
            f"{gpu.name}: try {format_bytes(interleave)}"
        )
    _check_cut(gpu, "cache", gpu.cache.capacity, gpu.cache.ways, gpu.dies, request_bytes)
    side = gpu.memory_cache
    _check_cut(gpu, "memory_cache", side.capacity, side.ways, gpu.memory.channels // gang, request_bytes)


def _check_cut(gpu: Gpu, part: str, capacity: int, ways: int, parts: int, line_bytes: int) -> None:
    """A cache must be so many equal parts of whole sets of lines as long as a request."""
    if capacity % (parts * ways * line_bytes):
        each = f"{parts} parts of " if parts > 1 else ""
        raise InputError(
            f"{part}.capacity of {gpu.name} is {format_bytes(capacity)}; it cannot be cut into {each}{ways} ways of "
            f"{format_bytes(line_bytes)} lines; choose a smaller request size or fewer ways"
        )


def ring_link(system: System, gpu: Gpu | None = None) -> GpuLink:
    """What one GPU (None: the system's) sees of the ring, as the bandwidth and latency of its link.

    Collective libraries run as many rings at once as a node has adapters, and let each leave the node at another GPU.
    So of what a GPU sends, one ring's share leaves by its adapter and the rest by its links, side by side, and the
    slower of the two paces: bandwidth = min(links, adapters of a node), each with its own share of payload. A piece
    meets one adapter per node on its way: latency = the mean over the hops of a node.
    """
    gpu = gpu or system.gpu
    link, each = gpu.link, system.gpus_per_node
    if system.node is None:
        return link
    inside = system.node.with_gpu(gpu).bandwidth_among(each) if each > 1 else float("inf")
    if system.nodes == 1:
        return link.model_copy(update={"bandwidth": inside}) if each > 1 else link
    network = system.node.network
    out = each * network.bandwidth
    bandwidth = min(inside, out)
    values = {
        "bandwidth": bandwidth,
        "latency": ((each - 1) * link.latency + network.latency) / each,
        "kernel_efficiency": min(inside * link.kernel_efficiency, out * NETWORK_PAYLOAD) / bandwidth,
        "dma_efficiency": min(inside * link.dma_efficiency, out * NETWORK_PAYLOAD) / bandwidth,
    }
    return link.model_copy(update=values)


def fabric_of(system: System) -> Fabric:
    """The fabric of a system: its own, a full mesh where its node is one, else a switch with what a ring has of it."""
    if system.fabric is not None:
        return system.fabric
    ring = ring_link(system)
    if system.peer_bandwidth:
        whole = system.gpu.link.bandwidth  # also of the links to GPUs that take no part
        return full(system.gpus, system.peer_bandwidth, ring.latency, whole, ring.bandwidth)
    return switch(system.gpus, ring.bandwidth, ring.latency)


def ring_note(system: System) -> str:
    """What the ring makes of the link of a GPU, in words; empty where it is the GPU's own."""
    if system.node is None or ring_link(system) == system.gpu.link:
        return ""
    if system.nodes == 1:
        return f"ring of {system.gpus} of the {system.node.gpus_per_node} GPUs of {system.name}"
    return (
        f"ring of {system.gpus} GPUs through {system.nodes} nodes of {system.name}: {system.gpus_per_node} x "
        f"{format_rate(system.node.network.bandwidth)} of network a node"
    )


def wiring(system: System, ranks: int) -> Wiring:
    """The links of `ranks` simulated GPUs and the routes between them.

    With one rank, links of a kind become that GPU's own: what the others send through theirs, it sends through its.

    Raises InputError for one rank of a fabric that is not symmetric.
    """
    return _Wires(system).mirrored() if ranks == 1 else _Wires(system).explicit(ranks)


class _Wires:
    def __init__(self, system: System) -> None:
        self.system, self.fabric = system, fabric_of(system)
        self.common = self._own_link(None)
        self.own = {rank: self._own_link(rank) for rank in system.variants}

    def _own_link(self, rank: int | None) -> GpuLink:
        """The link of a GPU, as a ring has it where the system has no fabric of its own; None: that of all alike."""
        gpu = self.system.gpu if rank is None else self.system.gpu_of(rank)
        return gpu.link if self.system.fabric is not None else ring_link(self.system, gpu)

    def explicit(self, ranks: int) -> Wiring:
        links = self.fabric.links
        routes = {
            (g, distance, direct): self._hops((g, (g - distance) % ranks), range(len(links)), direct)
            for g in range(ranks)
            for distance in range(1, ranks)
            for direct in (False, True)
        }
        return Wiring(self._table(links, range(len(links))), tuple(link.name for link in links), routes)

    def mirrored(self) -> Wiring:
        links = self.fabric.links
        if not self.fabric.symmetric:
            raise InputError(
                f"one GPU cannot stand for all of the fabric '{self.fabric.name}', whose ranks are not alike; simulate "
                "each GPU, in mode 'explicit'"
            )
        first = {link.kind: link for link in reversed(links)}
        idle = _never_wait(first)
        kinds = [kind for kind in reversed(first) if kind not in idle]
        rows = [y.NONE if link.kind in idle else kinds.index(link.kind) for link in links]
        routes = {
            (0, distance, direct): self._hops((0, -distance % self.fabric.gpus), rows, direct)
            for distance in range(1, self.fabric.gpus)
            for direct in (False, True)
        }
        return Wiring(self._table([first[kind] for kind in kinds], rows), tuple(kinds), routes)

    def _hops(self, ends: tuple[int, int], rows: Sequence[int], direct: bool) -> tuple[Hop, ...]:
        """The rows of a route's links and the time to the next one or the receiver [fs], at least 1 in all."""
        hops: list[Hop] = []
        for k in self.fabric.route(*ends, direct=direct):
            link = self.fabric.links[k]
            latency = to_fs(link.latency * (self._owner(link).latency / self.common.latency))
            if rows[k] == y.NONE:
                hops[-1] = hops[-1]._replace(latency=hops[-1].latency + latency)
            else:
                hops.append(Hop(rows[k], latency))
        if not any(hop.latency for hop in hops):
            hops[-1] = hops[-1]._replace(latency=1)
        return tuple(hops)

    def _owner(self, link: Link) -> GpuLink:
        """The link of the GPU that a fabric's link belongs to; the network's are nobody's."""
        return self.common if link.payload is not None else self.own.get(link.owner, self.common)

    def _table(self, links: Sequence[Link], rows: Sequence[int]) -> Table:
        table = np.zeros((len(links), y.LINK_COLUMNS), dtype=np.int64)
        for row, link in zip(table, links, strict=True):
            own = self._owner(link)
            bandwidth = link.bandwidth * (own.bandwidth / self.common.bandwidth)
            stores, engines = bandwidth * own.kernel_efficiency, bandwidth * own.dma_efficiency
            if link.payload is not None:
                stores = engines = bandwidth * link.payload
            if link.to_peer:
                engines = min(bandwidth, self.system.gpu.dma.bandwidth or engines)
            row[y.LINK_STORE64], row[y.LINK_DMA64] = to_fs(UNIT / stores), to_fs(UNIT / engines)
            row[y.LINK_BUNDLE] = y.NONE if link.bundle is None else rows[link.bundle]
        return table


def _never_wait(first: dict[str, Link]) -> set[str]:
    """Ingress of a GPU that stands for all: it takes what its egress lets out, as fast and in the same order."""
    out, into = first.get("egress"), first.get("ingress")
    same = out and into and into.bandwidth >= out.bandwidth and into.payload == out.payload
    return {"ingress"} if same else set()
