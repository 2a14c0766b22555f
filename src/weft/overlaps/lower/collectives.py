"""A collective library's kernels on a machine: the protocol that the library chooses, channels, and cost.

Structure and constants are the libraries' own (NCCL and RCCL, public sources). What they do not publish is in
`hardware/catalog/ring_kernels.toml`, with sources.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.core.errors import InputError, join_or
from weft.core.units import format_bytes
from weft.estimate import estimate
from weft.graph import (
    DTYPE_BYTES,
    Collective,
    DmaCopies,
    ExecutionPlanKernel,
    KernelChoice,
    LibraryCollective,
    Node,
    PaperAllReduce,
)
from weft.graph.choice import LibraryAlgorithm
from weft.graph.execution_plan import ExecutionPlan
from weft.graph.graph import check_choice
from weft.hardware import Gpu, System
from weft.hardware.fabric import NETWORK_PAYLOAD
from weft.hardware.systems import KernelCost
from weft.kernels.channels import PAGE, ChannelRing, ChannelTiling
from weft.kernels.copies import DmaGather
from weft.kernels.direct import DirectExchange, DirectReduce
from weft.kernels.exchange import ChannelExchange
from weft.kernels.execution_kernel import PlanKernel
from weft.kernels.library.collectives import (
    FLOATS,
    KERNELS,
    NVLS_CHANNELS,
    NVLS_DEPTH,
    NVLS_THREADS,
    ONE_STEP,
    RINGS,
    SHAPES,
    Algorithm,
    CollectiveCall,
    KiB,
    MiB,
    Protocol,
    canonical,
    check_channels,
    library_vendor,
    nvls_chunk,
    own_channels,
    protocol_of,
)
from weft.kernels.library.cost_model import best_ring, choose
from weft.kernels.library.interconnect import Interconnect, interconnect
from weft.kernels.library.software import executor_costs
from weft.kernels.multicast import SwitchCollective
from weft.kernels.ring import WholeRing, whole_ring
from weft.overlaps.lower.fit import occupancy
from weft.overlaps.lower.machine import fabric_of
from weft.overlaps.lower.masks import units_needed

BY_UNITS = (*RINGS, "all_to_all", "send_recv")
"""Collectives that compute units can run."""
PUSHES = ("all_gather", "all_to_all")
"""Collectives without additions: DMA engines can run them, and compute units in one step to all peers."""


class _Pairs(NamedTuple):
    """How sends and receives are dealt: channels in all, channels per peer, and the slice of each protocol [bytes]."""

    channels: int
    per_peer: int
    slices: dict[Protocol, int]


# NVIDIA: channels rounded up to a power of two, every round at once. AMD, on a full mesh: 64 channels, 8 to a peer
# (RCCL src/graph/paths.cc, ncclTopoComputeP2pChannels), one round at a time in each (NCCL_MAX_DEV_WORK_P2P_PER_BATCH is
# 1: ROCm/rccl #1760).
_PAIRS = {
    "nvidia": _Pairs(64, 64, {Protocol.LL: 16 * KiB, Protocol.SIMPLE: MiB // 2}),
    "amd": _Pairs(64, 8, {Protocol.LL: 8 * KiB, Protocol.SIMPLE: MiB // 2}),
}
_LARGEST_PART = 32
"""Slices above which a part is cut further, up to a peer's channels (NCCL enqueue.cc, addP2pToPlan)."""
_OPERATIONS = 4
"""Most rounds per channel while a peer's data can be cut into fewer parts (NCCL enqueue.cc, addP2pToPlan)."""
_PLACED = ("compute_units", "priority", "launches_before")
"""What every kernel uses of a choice."""
UnitsKernel = ChannelRing | ChannelExchange | DirectExchange | DirectReduce | SwitchCollective | PlanKernel
"""A library's kernel of a collective on compute units."""
CollectiveKernel = UnitsKernel | WholeRing | DmaGather
"""A kernel of a collective: its buffers on a GPU, its script, and the name of its `algorithm`."""


def why_no_dma(op: Collective) -> str:
    """Return why DMA engines do not run a collective that is none of PUSHES."""
    known = " and ".join(PUSHES)
    return "they copy and cannot add" if op.reduces else f"only {known} are simulated as copies"


def collective_kernel(node: Node, system: System) -> CollectiveKernel:
    """Return the kernel of a collective node on each GPU of a system; no other module makes this choice.

    Raises InputError for a collective that its driver or kernel cannot run, or whose buffer exceeds a GPU's memory.
    """
    op, choice = node.op, node.choice
    assert isinstance(op, Collective)
    held = system.gpu.memory.capacity
    if op.bytes > held:
        raise InputError(
            f"the buffer of the {op.name} is {format_bytes(op.bytes)}, but the memory of each GPU holds "
            f"{format_bytes(held, 4)}; give a whole buffer of no more than that"
        )
    match choice.kernel:
        case None | LibraryCollective():
            check_choice(node, (LibraryCollective,), _PLACED, "a library's kernel of a collective")
            own = choice.kernel or LibraryCollective()
            parts = system, op.dtype, own.channels, own.protocol, own.algorithm
            kernel = cu_collective(op.name, op.bytes, op.ranks, *parts)
            _check_mask(kernel, choice, system)
            return kernel
        case PaperAllReduce(in_flight, channels):
            return _plain_ring(op, choice, in_flight, channels, system)
        case DmaCopies():
            check_choice(node, (DmaCopies,), ("launches_before",), "a copy by DMA engines")
            if op.name not in PUSHES:
                raise InputError(
                    f"DMA engines cannot drive {op.name}: {why_no_dma(op)}; choose {join_or(PUSHES)}, or let compute "
                    "units drive it"
                )
            _check(op.bytes, op.ranks)
            return _copies(op, choice.kernel, system)
        case ExecutionPlanKernel(plan):
            return _plan_kernel(op, plan, choice, system)
        case _:
            raise InputError(
                f"the choice of '{node.id}' is a {type(choice.kernel).__name__}, which shares buffers with a GEMM, but "
                "this collective does not; leave it to the library, or let the GEMM and the collective wait by tile"
            )


def _copies(op: Collective, kernel: DmaCopies, system: System) -> DmaGather:
    """Return the copies of a collective by DMA engines; InputError for one over nodes that is no all-gather."""
    if system.nodes == 1:
        return DmaGather(op.name, op.bytes, op.ranks, **vars(kernel))
    if system.node is None or op.name != "all_gather" or system.gpus_per_node < 2:
        raise InputError(
            f"DMA engines reach no further than a node, but the {op.name} runs over {system.nodes} nodes of "
            f"{system.gpus_per_node} GPUs; choose an all_gather over nodes of at least 2, whose shares adapters bring, "
            "or let compute units drive it"
        )
    arriving = op.bytes / op.ranks / (system.node.network.bandwidth * NETWORK_PAYLOAD)
    return DmaGather(op.name, op.bytes, system.gpus_per_node, nodes=system.nodes, arriving=arriving, **vars(kernel))


def _plan_kernel(op: Collective, plan: ExecutionPlan, choice: KernelChoice, system: System) -> PlanKernel:
    """Return the kernel of an execution plan; InputError for another collective, other ranks, or too few compute units.

    Its workgroups wait for each other, so that all must fit on the compute units at once.
    """
    gpu = system.gpu
    if (plan.collective, plan.ranks) != (op.name, op.ranks):
        raise InputError(
            f"the plan '{plan.name}' is an {plan.collective} over {plan.ranks} GPUs, but is to run an {op.name} over "
            f"{op.ranks}; take {plan.ranks} GPUs, or a plan for {op.ranks}"
        )
    if plan.through_switch and not fabric_of(system).reduces:
        raise InputError(
            f"the plan '{plan.name}' adds up or copies in the switch, but {system.name} has none that does; choose a "
            "system with NVLS, like dgx-h100, or a plan without switch channels"
        )
    cost = executor_costs()
    tiling = ChannelTiling(
        plan.workgroups,
        threads=plan.threads,
        registers_per_thread=int(cost["kernel.registers"]),
        lds=int(cost["kernel.lds"]),
        in_flight=int(plan.threads * cost["kernel.in_flight"]),
        wire=2.0,
        link=cost["kernel.link"],
        sync=cost["signal.poll"],
        start=cost["kernel.start"],
    )
    kernel = PlanKernel(plan, op.bytes, tiling, cost["signal.fence"], cost["port.proxy"], int(DTYPE_BYTES[op.dtype]))
    units = gpu.compute.compute_units if choice.compute_units is None else len(choice.compute_units)
    most = units * occupancy(kernel.kernel(gpu), gpu)
    if plan.workgroups > most:
        raise InputError(
            f"the plan '{plan.name}' has {plan.workgroups} threadblocks, which wait for each other, but {units} "
            f"compute units of {gpu.name} hold {most} of them at once; give it more compute units, or a plan with fewer"
        )
    return kernel


class LibraryChoice(NamedTuple):
    """The algorithm of a collective ("ring", "tree", "nvls", "direct"), and its time alone in closed form [s]."""

    algorithm: str
    seconds: float


def library_choice(node: Node, system: System) -> LibraryChoice | None:
    """Return the algorithm that a system's library would choose for a collective.

    None where no library is known, or DMA engines drive the collective.
    """
    links, op = interconnect(system), node.op
    if isinstance(node.choice.kernel, DmaCopies) or links.gpu.vendor == "none" or not isinstance(op, Collective):
        return None
    nodes = -(-op.ranks // links.gpus_per_node)
    algorithm, _ = choose(op.name, op.bytes, op.ranks, links, nodes=nodes, floating=op.dtype != "int8")
    return LibraryChoice(Algorithm(int(algorithm)).name.lower(), float(estimate(op, system).seconds))


def units_held(node: Node, system: System) -> int:
    """The least number of compute units to reserved that run all workgroups of a collective's kernel at once."""
    kernel = collective_kernel(node, system).kernel(system.gpu)
    return units_needed(kernel.workgroups, occupancy(kernel, system.gpu), system.gpu)


def _plain_ring(
    op: Collective, choice: KernelChoice, in_flight: int, channels: int | None, system: System
) -> WholeRing:
    """Return the plain ring, by default with a workgroup on each compute unit that it may use.

    All its workgroups share every chunk, so that none can wait for the end of another. InputError for more of them than
    the compute units hold at once.
    """
    gpu = system.gpu
    units = gpu.compute.compute_units if choice.compute_units is None else len(choice.compute_units)
    channels = units if channels is None else channels
    ring = whole_ring(op.bytes, op.ranks, channels, in_flight, 1 if op.dtype == "int8" else 2)
    most = units * occupancy(ring.kernel(gpu), gpu)
    if not 1 <= channels <= most:
        raise InputError(
            f"channels is {channels}, but the workgroups of a plain ring wait for each other, and {units} compute "
            f"units of {gpu.name} hold {most} of them at once; choose 1 to {most}"
        )
    return ring


def _check_mask(kernel: UnitsKernel, choice: KernelChoice, system: System) -> None:
    """Raise InputError for a mask that cannot hold all workgroups of a part of a direct all-reduce at once."""
    if not isinstance(kernel, DirectReduce) or choice.compute_units is None:
        return
    each = occupancy(kernel.kernel(system.gpu), system.gpu)
    if len(choice.compute_units) * each < kernel.ranks:
        raise InputError(
            f"the {kernel.ranks} workgroups of a part of a direct all_reduce wait for each other, but "
            f"{len(choice.compute_units)} compute units hold {len(choice.compute_units) * each} of them at once; give "
            f"it {-(-kernel.ranks // each)} compute units, or choose the algorithm 'ring'"
        )


def cu_collective(
    collective: str,
    bytes_: int,
    ranks: int,
    system: System,
    dtype: str = "bf16",
    channels: int | None = None,
    protocol: str | None = None,
    algorithm: LibraryAlgorithm | None = None,
) -> UnitsKernel:
    """Return the library's kernel for a collective on compute units.

    `bytes_` counts the whole buffer [bytes]: a reduction's input, an all-gather's output, a GPU's data of an all-to-all
    including its own part. `channels` is the most that it may have, each one workgroup (None: the library's own
    number), `protocol` its protocol and `algorithm` "ring", "direct" or "nvls" (None: the library's choice; a ring if
    that is another one). Raises UnknownNameError for an unknown collective or protocol, InputError if there is no
    kernel for it on compute units or this fabric, and for invalid sizes, ranks or channels.
    """
    name = canonical(collective)
    if name not in BY_UNITS:
        raise InputError(f"no kernel on compute units carries out {name}; choose {join_or(BY_UNITS)}")
    _check(bytes_, ranks)
    if system.nodes > 1 and name not in RINGS:
        raise InputError(
            f"the engine runs rings over several nodes, but no {name}; take the ranks of one node, or choose "
            f"{join_or(RINGS)}"
        )
    fabric = interconnect(system)
    check_channels(channels, fabric)
    way, best = _way(name, bytes_, ranks, system, dtype, protocol, algorithm)
    if way is Algorithm.NVLS:
        return _through_switch(name, bytes_, ranks, fabric, channels)
    if way is Algorithm.DIRECT:
        return _direct(name, bytes_, ranks, fabric, dtype, channels, best)
    if name in ("all_to_all", "send_recv"):
        return _exchange(name, bytes_, ranks, fabric, best or Protocol.SIMPLE, channels)
    return library_ring(name, bytes_, ranks, system, dtype, channels, protocol)


def _way(
    name: str,
    bytes_: int,
    ranks: int,
    system: System,
    dtype: str,
    protocol: str | None,
    algorithm: LibraryAlgorithm | None,
) -> tuple[Algorithm, Protocol | None]:
    """The algorithm and protocol of a collective: those asked for, else the library's; with a protocol alone, a ring.

    Raises InputError for an algorithm that the collective or the system does not allow.
    """
    asked = None if protocol is None else protocol_of(protocol)
    if algorithm == "pairwise" and name not in ("all_to_all", "send_recv"):
        raise InputError(f"'pairwise' carries out no {name}; leave the algorithm to the library")
    if algorithm is not None and algorithm != "pairwise":
        possible = [one for one in KERNELS if not _why_not(one, name, dtype, system)]
        if reason := _why_not(algorithm, name, dtype, system):
            others = f"choose {join_or(possible)}, or " if possible else ""
            raise InputError(f"{reason}; {others}leave the algorithm to the library")
        return Algorithm[algorithm.upper()], asked
    if asked is not None and name in RINGS:
        return Algorithm.RING, asked
    if asked is not None:
        raise InputError(f"{name} takes its protocol by its size, but protocol is '{protocol}'; leave it out")
    chosen = choose(name, [bytes_], ranks, interconnect(system), nodes=system.nodes, floating=dtype in FLOATS)
    way, best = Algorithm(int(chosen[0][0])), Protocol(int(chosen[1][0]))
    reducing = fabric_of(system).reduces
    return Algorithm.RING if way is Algorithm.NVLS and not reducing else way, best


def _why_not(algorithm: str, name: str, dtype: str, system: System) -> str:
    """Return why a system cannot run a collective with an algorithm; empty if it can."""
    fabric, kernels = fabric_of(system), interconnect(system).kernels
    runs = {"ring": RINGS, "direct": tuple(ONE_STEP), "nvls": RINGS}[algorithm]
    if name not in runs:
        return f"'{algorithm}' carries out no {name}"
    if algorithm == "nvls" and not (fabric.reduces and kernels.nvls):
        return f"{system.name} has no switch that reduces, as 'nvls' needs"
    if algorithm == "nvls" and name != "all_gather" and dtype not in FLOATS:
        return f"a switch adds floating-point numbers only, not {dtype}"
    if algorithm == "direct" and not (fabric.striped and kernels.direct_simple):
        return f"{system.name} has no link from each GPU to each peer, as 'direct' needs"
    return ""


def _through_switch(name: str, bytes_: int, ranks: int, fabric: Interconnect, channels: int | None) -> SwitchCollective:
    """Return the kernel of a collective that the switch reduces or copies (NVLS)."""
    own = NVLS_CHANNELS[fabric.gpu.architecture]
    many = min(own, channels or own)
    cut = {"threads": NVLS_THREADS, "chunk": nvls_chunk(bytes_, many * ranks), "slices": 1, "depth": NVLS_DEPTH}
    tiling = _tiling(fabric, Protocol.SIMPLE, fabric.kernels.cost("nvls"), many, **cut)
    return SwitchCollective(name, bytes_, ranks, tiling)


def _direct(
    name: str,
    bytes_: int,
    ranks: int,
    fabric: Interconnect,
    dtype: str,
    channels: int | None,
    protocol: Protocol | None,
) -> DirectExchange | DirectReduce:
    """Return a kernel that pushes to all peers at once; beyond the library's sizes, that of its largest.

    InputError for fewer channels than an all-reduce needs.
    """
    sizes = [one for one in ONE_STEP[name] if protocol in (None, one.protocol)]
    kernel = next((one for one in sizes if bytes_ <= one.up_to), sizes[-1])
    cost = fabric.kernels.cost(f"direct_{kernel.protocol.name.lower()}")
    if name != "all_reduce":
        own = DirectExchange.workgroups(name, ranks, kernel.parts)
        tiling = _tiling(fabric, kernel.protocol, cost, min(own, channels or own))
        return DirectExchange(name, bytes_, ranks, tiling, kernel.parts)
    if channels is not None and channels < ranks:
        raise InputError(
            f"channels is {channels}, but a direct all_reduce over {ranks} GPUs has at least {ranks} workgroups; give "
            f"it {ranks} channels, or choose the algorithm 'ring'"
        )
    parts = min(kernel.parts, (channels or kernel.parts * ranks) // ranks)
    tiling = _tiling(fabric, kernel.protocol, cost, parts * ranks)
    return DirectReduce(bytes_, ranks, tiling, parts, element_bytes=1 if dtype == "int8" else 2)


def _tiling(fabric: Interconnect, protocol: Protocol, cost: KernelCost, channels: int, **changes: Any) -> ChannelTiling:
    """Return the tiling and cost of a kernel of a protocol, with changes."""
    shape = SHAPES[library_vendor(fabric)][protocol]._asdict()
    busy = {"acknowledge_busy": _busy(fabric.gpu, cost)}
    return ChannelTiling(channels, **(shape | cost.model_dump() | busy | changes))


def _busy(gpu: Gpu, cost: KernelCost) -> float:
    """Return the time until stores to a peer are acknowledged while a GEMM holds the clock at its power limit [s].

    Costs of kernels are those of collectives alone, at the boost clock; compute units and their caches issue the stores
    and wait for them [assumed: all of the time scales with their clock, and what a GEMM loses beside a collective,
    `achieved.gemm_corun`, is a clock of both].
    """
    limit = gpu.clocks.sustained * gpu.achieved.gemm_corun
    return cost.acknowledge * (max(gpu.compute.clock / limit, 1.0) if limit else 1.0)


def _exchange(
    name: str, bytes_: int, ranks: int, fabric: Interconnect, protocol: Protocol, channels: int | None
) -> ChannelExchange:
    rounds = ranks if name == "all_to_all" else 1
    pairs, cost = _PAIRS[library_vendor(fabric)], fabric.kernels.cost(protocol.name.lower())
    own = min(_power_of_two(fabric.workgroups(ranks) - 1) * 2, pairs.channels)
    channels = own if channels is None else min(_power_of_two(channels), own)
    slice_ = pairs.slices[protocol]
    parts = _parts(bytes_ // rounds, rounds, channels, pairs.per_peer, slice_)
    in_flight = fabric.kernels.pairs if protocol is Protocol.SIMPLE else cost.in_flight // 2
    cut = {"chunk": slice_, "slices": 1, "depth": 8, "in_flight": in_flight}
    tiling = _tiling(fabric, protocol, cost, min(rounds * parts, channels), **cut)
    return ChannelExchange(bytes_, ranks, tiling, parts, "all_to_all" if name == "all_to_all" else "send_recv")


def _parts(peer: int, ranks: int, channels: int, per_peer: int, slice_: int) -> int:
    """The number of parts of one peer's data: one channel serves all rounds of a part, unless parts become too long."""
    most = min(per_peer, channels)
    while most * ranks > channels * _OPERATIONS and most > 1:
        most //= 2
    parts = most
    while parts * ranks > channels and parts > 1:
        parts //= 2
    while peer > parts * slice_ * _LARGEST_PART and 2 * parts <= most:
        parts *= 2
    while parts > 1 and peer < parts * PAGE:
        parts //= 2
    return parts


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number."""
    return 1 << (max(number, 1).bit_length() - 1)


def library_ring(
    collective: str,
    bytes_: int,
    ranks: int,
    system: System,
    dtype: str = "bf16",
    channels: int | None = None,
    protocol: str | None = None,
) -> ChannelRing:
    """Return the ring kernel that the system's library runs for a collective of `bytes_` [bytes of the whole buffer].

    If the library would choose another algorithm (a tree, the switch), this is its best ring. `channels` is the most
    that it may have (None: the library's own number), `protocol` its protocol (None: the library's choice). Raises
    UnknownNameError for an unknown collective or protocol, InputError for one without a ring and for invalid sizes,
    ranks or channels.
    """
    name = canonical(collective)
    if name not in RINGS:
        raise InputError(f"no ring kernel drives {name}; by compute units choose {join_or(BY_UNITS)}")
    _check(bytes_, ranks)
    fabric = interconnect(system)
    check_channels(channels, fabric)
    chosen = (
        Protocol(int(best_ring(CollectiveCall(name, ranks, fabric, system.nodes), bytes_)))
        if protocol is None
        else protocol_of(protocol)
    )
    cost = fabric.kernels.cost(chosen.name.lower())
    # RCCL's reduceCopy unrolls copies from one place to one other twice as far. Two pieces in flight take as long as
    # the four wavefronts' own, to 0.3 %, and half the events.
    doubled = fabric.gpu.vendor == "amd" and chosen is Protocol.SIMPLE
    changes: dict[str, Any] = {"slots": 2, "copying": 2 * cost.in_flight} if doubled else {}
    local = ranks // system.nodes
    workgroups = int(own_channels(bytes_, ranks, fabric, chosen, channels or fabric.workgroups(local)))
    if cost.acknowledge and fabric.topology == "mesh":
        for key, wait in (("acknowledge", cost.acknowledge), ("acknowledge_busy", _busy(fabric.gpu, cost))):
            changes[key] = wait + _wait_for_link(fabric, cost, wait, workgroups, local)
    tiling = _tiling(fabric, chosen, cost, workgroups, **changes)
    return ChannelRing(name, bytes_, ranks, tiling, element_bytes=1 if dtype == "int8" else 2)


def _wait_for_link(fabric: Interconnect, cost: KernelCost, acknowledge: float, channels: int, ranks: int) -> float:
    """Return how long stores of a channel wait on average for those of others on its link [s].

    Rings are dealt to the links of a mesh in turn, and all end with the busiest link. Its channels are customers of one
    server, each with one load in flight: exact mean value analysis of a closed queue (Reiser and Lavenberg, 1980). The
    engine spreads stores evenly over all links, so that they hardly wait there.
    """
    gpu, links = fabric.gpu, max(round(fabric.width(ranks)), 1)
    served = cost.in_flight / (fabric.link_figure * cost.link)
    away = gpu.cache.latency + gpu.memory_cache.latency + acknowledge
    queued, response = 0.0, served
    for customers in range(1, -(-channels // links) + 1):
        response = served * (1 + queued)
        queued = customers * response / (away + response)
    return response - served


def _check(bytes_: int, ranks: int) -> None:
    if ranks < 2:
        raise InputError(f"a collective of {ranks} ranks has no peer; take at least 2")
    if bytes_ < ranks * 1024:
        raise InputError(
            f"{format_bytes(bytes_)} over {ranks} ranks is less than 1 KiB each; choose a larger collective"
        )
