"""Translate a hardware description into engine integers: seconds to femtoseconds, rates to time per 64 bytes.

Rates are achieved ones: the measured shares of the peaks of caches, link and memory path, and the running clock of the
compute units. DRAM's losses by row misses and bus turnarounds follow from its timing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.core.units import format_bytes, format_rate, to_fs
from weft.engine import layout as y
from weft.engine.program import Hardware, Wiring, below
from weft.engine.state import Table
from weft.hardware import Fabric, Gpu, GpuLink, System, chain_gain
from weft.hardware.fabric import NETWORK_PAYLOAD, full, nodes, switch
from weft.hardware.systems import Network, Node
from weft.kernels import running_clock
from weft.kernels.library.interconnect import interconnect

_UNIT = 64
_QUEUED_REQUESTS = 4
"""Fewest requests in a channel's queue: one for each bank group of HBM."""
_FEWEST_CHANNELS = 4
"""Fewest channels after ganging, so that requests still conflict in some and pass in others."""
_COARSEST = 64 * 1024
"""Largest request [bytes]: a larger one would leave a machine only a handful of channels."""


def _per_unit(bytes_per_s: float) -> int:
    """Femtoseconds per 64 bytes at a rate."""
    return to_fs(_UNIT / bytes_per_s)


def gpu_row(gpu: Gpu, start: float = 0.0, options: RunOptions = SUSTAINED) -> Table:
    """Return the engine's row of one GPU, whose work begins at `start` [s], at the clock of the options."""
    compute, cache, side, memory = gpu.compute, gpu.cache, gpu.memory_cache, gpu.memory
    t, dma, tracker, arbiter = memory.timing, gpu.dma, gpu.tracker, gpu.arbiter
    hertz, clock = running_clock(gpu, options), to_fs(1 / memory.clock)
    burst, bus = memory.burst_clocks / memory.clock, max(memory.ccd, memory.burst_clocks) * clock
    cache_out, far = to_fs(cache.latency / 2), 0
    if cache.partitions != gpu.dies:  # on AMD GPUs each partition is a cache private to its die
        # Extra mean latency from hits in other partitions: addresses are spread evenly over all.
        far = to_fs((cache.far_latency - cache.latency) * (cache.partitions - 1) / cache.partitions)
    values = {
        y.GPU_START: to_fs(start),
        y.GPU_CUS: compute.compute_units,
        y.GPU_THREADS: compute.threads_per_cu,
        y.GPU_REGISTERS: compute.registers_per_cu,
        y.GPU_LDS: compute.lds_per_cu,
        y.GPU_WORKGROUPS: compute.max_workgroups_per_cu,
        y.GPU_CYCLE: to_fs(1 / hertz),
        y.GPU_CORUN_CYCLE: to_fs(1 / hertz / gpu.achieved.gemm_corun),
        y.GPU_PORT64: _per_unit(compute.port_bytes_per_clock * hertz),
        y.GPU_LAUNCH: to_fs(compute.launch_latency),
        y.GPU_STRICT: int(gpu.vendor == "nvidia"),
        y.GPU_STORE_BUFFER: gpu.link.store_buffer,
        y.GPU_SLICE64: _per_unit(
            cache.bandwidth * gpu.achieved.gemm_cache / (gpu.dies * _slices_of(gpu, memory.channels))
        ),
        # Half of a near hit's latency passes on the way to the cache, half on the way back.
        y.GPU_CACHE_OUT: cache_out,
        y.GPU_CACHE_BACK: to_fs(cache.latency) - cache_out + far,
        # The measured memory latency averages near and far partitions, so it already contains that extra latency.
        y.GPU_MEMORY_LATENCY: max(to_fs(memory.latency) - far, 0),
        y.GPU_QUEUE_BYTES: memory.queue_entries * y.QUEUE_ENTRY,
        y.GPU_T_BURST: bus,
        y.GPU_T_LONG: memory.ccd_long * clock,
        y.GPU_T_UPDATE: memory.ccd_update * clock,
        y.GPU_SHARE_LONG: bus_share(memory.ccd_long * clock, bus),
        y.GPU_SHARE_UPDATE: bus_share(memory.ccd_update * clock, bus),
        # Long reads reach less than the bus could carry: the path from the channel to the chip limits them. What a
        # refresh delays, the bus makes up for while the path goes on.
        y.GPU_T_PATH: round(bus / memory.read_efficiency),
        y.GPU_PEAK64: _per_unit(memory.bandwidth),
        y.GPU_T_RRD: to_fs(t.rrd),
        y.GPU_T_RCD: to_fs(t.rcd),
        y.GPU_T_RAS: to_fs(t.ras),
        y.GPU_T_RP: to_fs(t.rp),
        y.GPU_T_RC: to_fs(t.rc),
        y.GPU_T_CL: to_fs(t.cl),
        y.GPU_T_FAW: to_fs(t.faw),
        y.GPU_T_RFC: to_fs(t.rfc),
        # Every bank is refreshed once in `refi`, so many at a time.
        y.GPU_REFRESH_EVERY: to_fs(t.refi * memory.refresh_banks / memory.banks),
        y.GPU_REFRESH_BANKS: memory.refresh_banks,
        # Command-to-command delays that separate the data of both on the bus: JEDEC's tRTW, tWTR + WL, tWR.
        y.GPU_T_READ_TO_WRITE: to_fs(max(t.cl + burst + 2 / memory.clock - t.wl, burst)),
        y.GPU_T_WRITE_TO_READ: to_fs(t.wl + burst + t.cdlr),
        y.GPU_T_WRITE_TO_PRECHARGE: to_fs(t.wl + burst + t.wr),
        y.GPU_T_READ_TO_PRECHARGE: to_fs(t.rtp),
        y.GPU_DMA_ENGINES: dma.engines,
        y.GPU_DMA_SETUP: to_fs(dma.setup),
        y.GPU_DMA_WINDOW: dma.window,
        y.GPU_DMA_RATE64: _per_unit(dma.bandwidth) if dma.bandwidth else 0,
        y.GPU_TRACKER_SETS: tracker.sets,
        y.GPU_TRACKER_WAYS: tracker.ways,
        y.GPU_SPILL_BYTES: tracker.spill_bytes,
        y.GPU_THRESHOLD_HIGH: arbiter.threshold_high * y.QUEUE_ENTRY,
        y.GPU_THRESHOLD_MEDIUM: arbiter.threshold_medium * y.QUEUE_ENTRY,
        y.GPU_THRESHOLD_LOW: arbiter.threshold_low * y.QUEUE_ENTRY,
        y.GPU_INTENSITY_HIGH: round(arbiter.intensity_high * 1000),
        y.GPU_INTENSITY_MEDIUM: round(arbiter.intensity_medium * 1000),
        y.GPU_INTENSITY_LOW: round(arbiter.intensity_low * 1000),
        y.GPU_STARVATION: to_fs(arbiter.starvation_limit),
    }
    if side.capacity:
        values |= {
            y.GPU_SIDE64: _per_unit(side.bandwidth * side.efficiency / memory.channels),
            y.GPU_SIDE_DIRTY: round(1000 * side.dirty_at_start),
            y.GPU_SIDE_LATENCY: max(to_fs(side.latency) - to_fs(cache.latency), 0),
        }
    if side.capacity and gpu.package.bandwidth:
        port, share = gpu.package.bandwidth / memory.channels, gpu.package.exchange_efficiency
        values |= {y.GPU_FABRIC64: _per_unit(port), y.GPU_FABRIC_EXCHANGE64: _per_unit(port * share)}
    return _row(y.GPU_COLUMNS, values)


def _row(columns: int, values: Mapping[int, int]) -> Table:
    """Return a row with the given values by column, and zero elsewhere."""
    row = np.zeros(columns, dtype=np.int64)
    row[list(values)] = list(values.values())
    return row


def bus_share(gap: int, burst: int) -> int:
    """The share of the bus, in parts of `WHOLE_BUS`, of one burst every `gap`: slots of `burst` at equal distances."""
    return y.WHOLE_BUS // -(-gap // burst)


def _slices_of(gpu: Gpu, channels: int) -> int:
    """Return the number of cache slices of one partition, which serve `channels` memory channels."""
    return max(channels // gpu.dies, 1)


def machine_tables(system: System, ranks: int, options: RunOptions, residents: int, group: int = 0) -> Hardware:
    """Return the engine's tables of the machine: rows of simulated GPUs, shared sizes, and wiring.

    `residents` is the most workgroups of a compute unit; `options` have a request size. Raises InputError where GPUs
    differ in what must be common (channels, banks, cache, matrix rate), or where the request size does not fit the
    machine.
    """
    request_bytes = options.request_bytes or default_request_bytes(system.gpu)
    gpus = [system.gpu_of(rank) for rank in range(ranks)]
    for rank, gpu in enumerate(gpus):
        for path in COMMON:
            if gpu.value(path) != system.gpu.value(path):
                raise InputError(
                    f"GPU {rank} has {path} = {gpu.text(path)}, the others {system.gpu.text(path)}; GPUs of one "
                    f"machine may differ in clocks, rates and counts of compute units, but not in {path}"
                )
    check_request(system.gpu, request_bytes)
    rows = np.stack([gpu_row(gpu, system.start_of(rank), options) for rank, gpu in enumerate(gpus)])
    memory, cache = system.gpu.memory, system.gpu.cache
    gang = count_ganged(system.gpu, request_bytes)
    # A queue of a few coarse requests stands for many fine ones; a shorter one would leave banks idle.
    rows[:, y.GPU_QUEUE_BYTES] = np.maximum(rows[:, y.GPU_QUEUE_BYTES] * gang, _QUEUED_REQUESTS * request_bytes)
    rows[:, [y.GPU_SIDE64, y.GPU_FABRIC64, y.GPU_FABRIC_EXCHANGE64]] //= gang
    rows[:, y.GPU_PATH_SLACK] = rows[:, y.GPU_QUEUE_BYTES] // (memory.burst_bytes * gang) * rows[:, y.GPU_T_BURST]
    partitions, slices = system.gpu.dies, _slices_of(system.gpu, memory.channels // gang)
    rows[:, y.GPU_SLICE64] = rows[:, y.GPU_SLICE64] * slices // _slices_of(system.gpu, memory.channels)
    side, channels = system.gpu.memory_cache, memory.channels // gang
    sizes = {
        y.SIZE_CUS: max(gpu.compute.compute_units for gpu in gpus),
        y.SIZE_CHANNELS: channels,
        y.SIZE_BANKS: memory.banks,
        y.SIZE_GROUPS: memory.bank_groups,
        y.SIZE_INTERLEAVE: stripe(system.gpu, request_bytes, hashing=options.hashing),
        y.SIZE_HASH: -1 if options.hashing else 0,
        y.SIZE_ROW: memory.row_bytes * gang,
        y.SIZE_BURST: memory.burst_bytes * gang,
        y.SIZE_REQUEST: request_bytes,
        y.SIZE_WAYS: cache.ways,
        y.SIZE_PARTITIONS: partitions,
        y.SIZE_SLICES: slices,
        y.SIZE_SETS: cache.capacity // (partitions * cache.ways * request_bytes),
        y.SIZE_SIDE_WAYS: side.ways,
        y.SIZE_SIDE_SETS: side.capacity // (side.ways * request_bytes * channels),
        y.SIZE_RESIDENT: residents,
        y.SIZE_ENGINES: max(gpu.dma.engines for gpu in gpus),
    }
    if options.memory == "bandwidth":
        _leave_out_banks(rows, sizes)
    wired = wiring(system, ranks, group)
    rows[:, [y.GPU_UP, y.GPU_DOWN]] = wired.switch
    fabric = fabric_of(system)
    rows[:, [y.GPU_MERGE_ENTRIES, y.GPU_MERGE_WINDOW]] = fabric.merge_entries, to_fs(fabric.merge_window)
    return Hardware(rows, _row(y.SIZE_COLUMNS, sizes), wired)


_OF_ROWS = (
    y.GPU_T_RRD, y.GPU_T_RCD, y.GPU_T_RAS, y.GPU_T_RP, y.GPU_T_RC, y.GPU_T_FAW, y.GPU_T_RFC, y.GPU_REFRESH_EVERY,
    y.GPU_T_WRITE_TO_PRECHARGE, y.GPU_T_READ_TO_PRECHARGE,
)  # fmt: skip
_ONE_ROW = 1 << 60
"""Bytes of a row that holds every address."""


def _leave_out_banks(rows: Table, sizes: dict[int, int]) -> None:
    """Make each channel one server at the rate of its bus: a single bank with one row, always open.

    Turnarounds between reads and writes stay. A near-memory update takes as many times the bus of a write as its column
    delay within a bank group is that of a write.
    """
    rows[:, _OF_ROWS] = 0
    burst = rows[:, y.GPU_T_BURST]
    rows[:, y.GPU_T_UPDATE] = np.maximum(burst, rows[:, y.GPU_T_UPDATE] * burst // rows[:, y.GPU_T_LONG])
    rows[:, y.GPU_T_LONG] = burst
    rows[:, (y.GPU_SHARE_LONG, y.GPU_SHARE_UPDATE)] = y.WHOLE_BUS
    sizes |= {y.SIZE_BANKS: 1, y.SIZE_GROUPS: 1, y.SIZE_ROW: _ONE_ROW}


_CHIPLET_REQUEST = 32 * 1024
"""Default request size on GPUs of several dies [bytes]: a tenth of the simulation cost of 512 B. Within 2 % of it for
compute-bound GEMMs and for collectives; a memory-bound GEMM of 36 us comes out 9 % faster."""
_COARSE_REQUEST = 16 * 1024
"""Default request size on GPUs of one die [bytes]. On MI100, six GEMMs of 18 to 274 us alone, and eight copies of each
together, come out within 9 % of 512 B; requests of one interleave (4 KiB) make them up to 70 % longer."""


def default_request_bytes(gpu: Gpu) -> int:
    """Default size of requests on a GPU [bytes].

    Coarse requests are nearly as exact as fine ones and several times faster. A request of one interleave is served by
    a single channel, which overstates its time; machines without a vendor use it by default, and their studies choose
    the size. On a GPU with few channels requests are smaller, so that _FEWEST_CHANNELS remain.
    """
    if gpu.vendor == "none":
        return gpu.memory.interleave
    size = _CHIPLET_REQUEST if gpu.dies > 1 else _COARSE_REQUEST
    while size > gpu.memory.interleave and _FEWEST_CHANNELS * size > gpu.memory.channels * gpu.memory.interleave:
        size //= 2
    return size


_FINE_STRIPE = 512
"""Default stripe of a channel; GPUs stripe at 256 B to 4 KiB [bytes]."""


def stripe(gpu: Gpu, request_bytes: int, *, hashing: bool = True) -> int:
    """Consecutive bytes that the engine maps to one channel: as fine as requests allow, at most `memory.interleave`.

    Coarse stripes would make workgroups that share operands crowd on few channels and cache slices, which the address
    hashes of real GPUs prevent; without `hashing`, they stay as coarse as they are.
    """
    fine = max(request_bytes, _FINE_STRIPE)
    coarse = max(gpu.memory.interleave, request_bytes)
    return fine if hashing and fine < coarse and coarse % fine == 0 else coarse


def count_ganged(gpu: Gpu, request_bytes: int) -> int:
    """Return how many channels serve one request together: more than one if a request exceeds the interleave.

    The number is that over which fine striping would spread the bytes. Ganged channels work in step and keep all their
    timings: each command moves the bytes of all of them.
    """
    least = request_bytes // gpu.memory.interleave
    if least <= 1:
        return 1
    channels = gpu.memory.channels
    most = min(request_bytes // _FINE_STRIPE, channels // _FEWEST_CHANNELS)
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
"""Values in which the GPUs of one simulated machine must agree."""


def check_request(gpu: Gpu, request_bytes: int) -> None:
    """Raise InputError for a request size that does not divide the GPU's channels and caches."""
    interleave = gpu.memory.interleave
    shown = f"the request size is {format_bytes(request_bytes)}"
    if (
        request_bytes < _UNIT
        or request_bytes % _UNIT
        or max(interleave, request_bytes) % min(interleave, request_bytes)
    ):
        raise InputError(
            f"{shown}; it must be a multiple of {_UNIT} B that divides the channel interleave "
            f"({format_bytes(interleave)}) or is a multiple of it: try {format_bytes(interleave)}"
        )
    gang = count_ganged(gpu, request_bytes)
    if gang > 1 and (request_bytes > _COARSEST or gpu.memory.channels % gang):
        raise InputError(
            f"{shown}; above the channel interleave ({format_bytes(interleave)}) it may be at most "
            f"{format_bytes(_COARSEST)}, and its {gang} channels must divide the {gpu.memory.channels} of "
            f"{gpu.name}: try {format_bytes(interleave)}"
        )
    # Caches consist of equal parts, each a whole number of sets; lines are as long as a request.
    side = gpu.memory_cache
    for part, capacity, ways, parts in (
        ("cache", gpu.cache.capacity, gpu.cache.ways, gpu.dies),
        ("memory_cache", side.capacity, side.ways, gpu.memory.channels // gang),
    ):
        if capacity % (parts * ways * request_bytes):
            each = f"{parts} parts of " if parts > 1 else ""
            raise InputError(
                f"{part}.capacity of {gpu.name} is {format_bytes(capacity)}; it cannot be cut into {each}{ways} ways "
                f"of {format_bytes(request_bytes)} lines; choose a smaller request size or fewer ways"
            )


def ring_link(system: System, gpu: Gpu | None = None) -> GpuLink:
    """Return what one GPU (None: the system's) sees of the ring, as the bandwidth and latency of its link.

    Collective libraries run as many rings at once as a node has adapters, and each leaves the node at another GPU. Of
    what a GPU sends, one ring's share leaves by its adapter and the rest by its links, in parallel, and the slower of
    the two limits both: bandwidth = min(links of its chains, adapters of a node), each with its own share of payload. A
    piece passes one adapter per node: latency = the mean over the hops of a node.
    """
    gpu = gpu or system.gpu
    link, each = gpu.link, system.gpus_per_node
    if system.node is None:
        return link
    inside = _inside(system.node.with_gpu(gpu), each)
    if system.nodes == 1:
        return link.model_copy(update={"bandwidth": inside}) if each > 1 else link
    network = system.node.network
    rate = interconnect(system).adapter(system.nodes, "ring") if network.oversubscribed else network.bandwidth
    out = each * rate
    inside *= chain_gain(system.node.topology, each, system.node.gpus_per_node)
    bandwidth = min(inside, out)
    values = {
        "bandwidth": bandwidth,
        "latency": ((each - 1) * link.latency + network.latency) / each,
        "kernel_efficiency": min(inside * link.kernel_efficiency, out * NETWORK_PAYLOAD) / bandwidth,
        "dma_efficiency": min(inside * link.dma_efficiency, out * NETWORK_PAYLOAD) / bandwidth,
    }
    return link.model_copy(update=values)


def _inside(node: Node, gpus: int) -> float:
    """Return what a ring of `gpus` GPUs of a node moves on each GPU's links [bytes/s]; infinite for one alone."""
    return node.bandwidth_among(gpus) * node.path_share(gpus) if gpus > 1 else float("inf")


def of_levels(system: System) -> System:
    """The system with the links of its nodes and the adapters of its network apart, where a ring sees their mean."""
    if system.node is None or system.nodes == 1 or system.fabric is not None:
        return system
    network, link, each = system.node.network, system.gpu.link, system.gpus_per_node
    inside = min(_inside(system.node, each), link.bandwidth)
    apart = _leaves(network, system.nodes)
    joined = nodes(system.gpus, inside, link.latency, each, network.bandwidth, network.latency, apart)
    return system.model_copy(update={"fabric": joined})


def _leaves(network: Network, count: int) -> float | None:
    """Return by how much uplinks of leaves of a node each are oversubscribed; None where no uplink limits.

    Raises InputError for larger leaves, which the fabric of nodes does not have.
    """
    if not network.oversubscribed or count <= network.leaf:
        return None
    if network.leaf > 1:
        raise InputError(
            f"network.leaf is {network.leaf}, and the engine joins {count} nodes by a leaf switch each; set "
            "network.leaf=1, or ask for closed forms ('weft step --fidelity estimate', 'weft predict')"
        )
    return network.oversubscription


def nodes_among(system: System, ranks: int) -> int:
    """Over how many nodes, or rows, of the system's fabric `ranks` neighbouring GPUs are spread; 1 without any.

    Raises InputError for a fabric without equal parts, and for GPUs that are neither whole nodes nor part of one.
    """
    fabric = fabric_of(system)
    each = fabric.period or fabric.gpus * fabric.symmetric
    if not each:
        raise InputError(
            f"the fabric '{fabric.name}' has no equal nodes or rows to reduce in first; say how many GPUs each has "
            "(period of Fabric), or send tiles around one ring, like 't3'"
        )
    if ranks % each and each % ranks:
        raise InputError(
            f"{ranks} ranks are no whole nodes of the fabric '{fabric.name}', which has {each} GPUs in each; choose a "
            f"multiple or a part of {each}, or send tiles around one ring, like 't3'"
        )
    return max(ranks // each, 1)


def fabric_of(system: System) -> Fabric:
    """The fabric of a system: its own, a full mesh if its node is one, else a switch with a ring's share of links."""
    if system.fabric is not None:
        return system.fabric
    ring = ring_link(system)
    if system.peer_bandwidth:
        whole = system.gpu.link.bandwidth  # links to GPUs that take no part carry traffic, too
        return full(system.gpus, system.peer_bandwidth, ring.latency, whole, ring.bandwidth)
    node = system.node
    if node is None or system.nodes > 1:
        return switch(system.gpus, ring.bandwidth, ring.latency)
    return switch(
        system.gpus, ring.bandwidth, ring.latency,
        reduces=node.switch_reduces, merge_entries=node.merge_entries, merge_window=node.merge_window,
    )  # fmt: skip


def ring_note(system: System) -> str:
    """Return which ring limits the link of a GPU, in words; empty if the GPU's own link does."""
    if system.node is None or ring_link(system) == system.gpu.link:
        return ""
    if system.nodes == 1:
        return f"ring of {system.gpus} of the {system.node.gpus_per_node} GPUs of {system.name}"
    return (
        f"ring of {system.gpus} GPUs through {system.nodes} nodes of {system.name}: {system.gpus_per_node} x "
        f"{format_rate(system.node.network.bandwidth)} of network a node"
    )


def wiring(system: System, ranks: int, group: int = 0) -> Wiring:
    """Return the links of `ranks` simulated GPUs and the routes between them.

    With one rank, that GPU has one link of each kind: traffic that others send through theirs goes through its own.
    With a `group`, only as many consecutive GPUs send to each other (0: all); if these are more than `ranks`, the
    simulated ones represent them: those of one node or row.

    Raises InputError for one rank of a fabric that is not symmetric.
    """
    fabric = fabric_of(system)
    links, every = fabric.links, range(len(fabric.links))
    kept: Sequence[int] = every
    rows: Sequence[int] = every
    if ranks == 1:
        kept, rows = _mirrored_links(fabric)
    elif group > ranks:
        kept, rows = _represented_links(fabric, ranks)
    common, own = _link_of(system, system.gpu), {r: _link_of(system, gpu) for r, gpu in system.variants.items()}
    # A fabric's link takes its payload share from the GPU that owns it; network links have no owner.
    owners = [common if link.payload is not None else own.get(link.owner, common) for link in links]
    delays = [to_fs(link.latency * (o.latency / common.latency)) for link, o in zip(links, owners, strict=True)]
    table = np.zeros((len(kept), y.LINK_COLUMNS), dtype=np.int64)
    for row, k in enumerate(kept):
        link, owner = links[k], owners[k]
        bandwidth = link.bandwidth * (owner.bandwidth / common.bandwidth)
        stores, engines = (bandwidth * (link.payload or own) for own in (owner.kernel_efficiency, owner.dma_efficiency))
        if link.to_peer:
            engines = min(bandwidth, system.gpu.dma.bandwidth or engines)
        table[row] = _per_unit(stores), _per_unit(engines), y.NONE if link.bundle is None else rows[link.bundle]
    route: list[tuple[int, int]] = []
    first: dict[tuple[int, int, bool], int] = {}
    peers = fabric.gpus if ranks == 1 else group or ranks
    for g, distance, direct in itertools.product(range(ranks), range(1, peers), (False, True)):
        first[g, distance, direct] = len(route)
        passed = fabric.route(g, below(g, distance, peers), direct=direct)
        route += [*_hops([(rows[k], delays[k]) for k in passed]), (y.NONE, 0)]
    through = np.full((ranks, 2), y.NONE, dtype=np.int64)
    for g in range(ranks) if fabric.reduces or fabric.merges else ():
        above = below(g, -1, peers)
        up, down = fabric.route(g, above)[0], fabric.route(above, g)[-1]
        for way, k in enumerate((up, down)):
            through[g, way] = len(route)
            route += [*_hops([(rows[k], delays[k])]), (y.NONE, 0)]
    names = tuple(links[k].kind if ranks == 1 else links[k].name for k in kept)
    return Wiring(table, names, np.array(route or [(y.NONE, 0)], dtype=np.int64), first, through, group)


def _link_of(system: System, gpu: Gpu) -> GpuLink:
    """Return the link of a GPU; without a fabric, the share of it that a ring uses."""
    return gpu.link if system.fabric is not None else ring_link(system, gpu)


def _mirrored_links(fabric: Fabric) -> tuple[list[int], list[int]]:
    """The links of one GPU that represents all, one link of each kind, and the row of each fabric link among them.

    The ingress is left out if it is as fast as the egress, since it would repeat the egress's order, unless a switch
    that reduces fills it with copies.
    """
    if not fabric.symmetric:
        raise InputError(
            f"one GPU cannot represent all of the fabric '{fabric.name}', whose ranks are not alike; simulate "
            "each GPU, in mode 'explicit'"
        )
    first: dict[str, int] = {}
    for k, link in enumerate(fabric.links):
        first.setdefault(link.kind, k)
    if "egress" in first and "ingress" in first and not fabric.reduces:
        out, into = fabric.links[first["egress"]], fabric.links[first["ingress"]]
        if into.bandwidth >= out.bandwidth and into.payload == out.payload:
            del first["ingress"]
    row = {kind: number for number, kind in enumerate(first)}
    return list(first.values()), [row.get(link.kind, y.NONE) for link in fabric.links]


def _represented_links(fabric: Fabric, ranks: int) -> tuple[list[int], list[int]]:
    """The links of the first `ranks` GPUs and their switches, and the row of each link's equivalent among them."""
    each = {kind: count * ranks // fabric.gpus for kind, count in Counter(link.kind for link in fabric.links).items()}
    kept = [k for k, link in enumerate(fabric.links) if link.owner < each[link.kind]]
    row = {(fabric.links[k].kind, fabric.links[k].owner): number for number, k in enumerate(kept)}
    return kept, [row[link.kind, link.owner % each[link.kind]] for link in fabric.links]


def _hops(passed: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Links of a route by row, with the latency to the next one or to the receiver [fs], at least 1 fs in all."""
    hops: list[tuple[int, int]] = []
    for row, delay in passed:
        if row == y.NONE:
            hops[-1] = hops[-1][0], hops[-1][1] + delay
        else:
            hops.append((row, delay))
    if not any(delay for _, delay in hops):
        hops[-1] = hops[-1][0], 1
    return hops
