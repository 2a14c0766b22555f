"""A collective library's kernels on a machine: the protocol that the library chooses, channels, and cost.

Structure and constants are the libraries' own (NCCL and RCCL, public sources). What they do not publish is in
`hardware/catalog/ring_kernels.toml`, with sources.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.errors import InputError, join_or
from weft.graph import Collective, KernelChoice, Node
from weft.hardware import System
from weft.hardware.systems import KernelCost
from weft.kernels.channels import PAGE, ChannelRing, ChannelTiling
from weft.kernels.copies import DmaGather
from weft.kernels.direct import DirectExchange
from weft.kernels.exchange import ChannelExchange
from weft.kernels.ring import WholeRing, whole_ring
from weft.library.collectives import (
    RINGS,
    SHAPES,
    Call,
    KiB,
    MiB,
    Protocol,
    best_ring,
    canonical,
    check_channels,
    choose,
    library_vendor,
    one_step_kernels,
    own_channels,
    protocol_of,
)
from weft.library.interconnect import Interconnect, interconnect
from weft.lower.fit import occupancy
from weft.schedule.sharing import units_needed
from weft.units import format_bytes

BY_UNITS = (*RINGS, "all_to_all")
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
CollectiveKernel = ChannelRing | ChannelExchange | DirectExchange | WholeRing | DmaGather
"""A kernel of a collective: its buffers on a GPU, its script, and the name of its `algorithm`."""


def collective_kernel(node: Node, system: System) -> CollectiveKernel:
    """The kernel of a collective node on each GPU of a system; no other module makes this choice.

    Raises InputError for a collective that its driver or kernel cannot run, or whose buffer exceeds a GPU's memory.
    """
    op, choice = node.op, node.choice
    assert isinstance(op, Collective)
    held = system.gpu.memory.capacity
    if op.bytes > held:
        raise InputError(
            f"the buffer of the {op.name} is {format_bytes(op.bytes)}, but the memory of each GPU holds "
            f"{format_bytes(held)}; give a whole buffer of no more than that"
        )
    if choice.channels is not None and choice.driver == "dma":
        raise InputError(
            f"DMA engines have no channels, but channels is {choice.channels}; leave it out, or let compute units "
            "drive the collective"
        )
    if choice.kernel == "plain-ring":
        if (op.name, choice.driver) != ("all_reduce", "cu") or choice.in_flight is None:
            raise InputError(
                f"a plain ring is an all_reduce by compute units with in_flight bytes, not {op.name} by "
                f"{choice.driver}; choose the kernel 'library'"
            )
        return _plain_ring(op, choice, choice.in_flight, system)
    if choice.driver == "dma":
        name = canonical(op.name)
        if name not in PUSHES:
            raise InputError(
                f"DMA engines cannot drive {name}: they copy and cannot add; choose {join_or(PUSHES)}, or let compute "
                "units drive it"
            )
        _check(op.bytes, op.ranks)
        return DmaGather(name, op.bytes, op.ranks, **dict(choice.copies))  # type: ignore[arg-type]
    return cu_collective(op.name, op.bytes, op.ranks, system, op.dtype, choice.channels, choice.protocol)


def units_held(node: Node, system: System) -> int:
    """The least number of compute units to set apart that run all workgroups of a collective's kernel at once."""
    kernel = collective_kernel(node, system).kernel(system.gpu)
    return units_needed(kernel.workgroups, occupancy(kernel, system.gpu), system.gpu)


def _plain_ring(op: Collective, choice: KernelChoice, in_flight: int, system: System) -> WholeRing:
    """The plain ring, by default with a workgroup on each compute unit that it may use.

    All its workgroups share every chunk, so that none can wait for the end of another. InputError for more of them than
    the compute units hold at once.
    """
    gpu = system.gpu
    units = gpu.compute.compute_units if choice.compute_units is None else len(choice.compute_units)
    channels = units if choice.channels is None else choice.channels
    ring = whole_ring(op.bytes, op.ranks, channels, in_flight, 1 if op.dtype == "int8" else 2)
    most = units * occupancy(ring.kernel(gpu), gpu)
    if not 1 <= channels <= most:
        raise InputError(
            f"channels is {channels}, but the workgroups of a plain ring wait for each other, and {units} compute "
            f"units of {gpu.name} hold {most} of them at once; choose 1 to {most}"
        )
    return ring


def cu_collective(
    collective: str,
    bytes_: int,
    ranks: int,
    system: System,
    dtype: str = "bf16",
    channels: int | None = None,
    protocol: str | None = None,
) -> ChannelRing | ChannelExchange | DirectExchange:
    """The library's kernel for a collective on compute units: a ring, sends and receives, or one step to all peers.

    `bytes_` counts the whole buffer [bytes]: a reduction's input, an all-gather's output, a GPU's data of an all-to-all
    including its own part. `channels` is the most that it may have, each one workgroup (None: the library's own
    number), `protocol` the one of a ring (None: the library's choice). Raises UnknownNameError for an unknown
    collective or protocol, InputError if there is no kernel for it on compute units, and for invalid sizes, ranks or
    channels.
    """
    name = canonical(collective)
    _check(bytes_, ranks)
    fabric = interconnect(system)
    check_channels(channels, fabric)
    for kernel in (
        one_step_kernels(name, ranks, fabric) if name in PUSHES else ()
    ):  # RCCL's MSCCL kernels for eight MI300X
        if bytes_ <= kernel.up_to:
            own = DirectExchange.workgroups(name, ranks, kernel.parts)
            cost = fabric.kernels.cost(f"direct_{kernel.protocol.name.lower()}")
            tiling = _tiling(fabric, kernel.protocol, cost, min(own, channels or own))
            return DirectExchange(name, bytes_, ranks, tiling, kernel.parts)
    if name != "all_to_all":
        return library_ring(name, bytes_, ranks, system, dtype, channels, protocol)
    chosen = choose(name, [bytes_], ranks, fabric)[1]
    return _exchange(bytes_, ranks, fabric, Protocol(int(chosen[0])), channels)


def _tiling(fabric: Interconnect, protocol: Protocol, cost: KernelCost, channels: int, **changes: Any) -> ChannelTiling:
    """The tiling and cost of a kernel of a protocol, with changes."""
    shape = SHAPES[library_vendor(fabric)][protocol]._asdict()
    return ChannelTiling(channels, **(shape | cost.model_dump() | changes))


def _exchange(
    bytes_: int, ranks: int, fabric: Interconnect, protocol: Protocol, channels: int | None
) -> ChannelExchange:
    pairs, cost = _PAIRS[library_vendor(fabric)], fabric.kernels.cost(protocol.name.lower())
    own = min(_power_of_two(fabric.workgroups(ranks) - 1) * 2, pairs.channels)
    channels = own if channels is None else min(_power_of_two(channels), own)
    slice_ = pairs.slices[protocol]
    parts = _parts(bytes_ // ranks, ranks, channels, pairs.per_peer, slice_)
    in_flight = fabric.kernels.pairs if protocol is Protocol.SIMPLE else cost.in_flight // 2
    cut = {"chunk": slice_, "slices": 1, "depth": 8, "in_flight": in_flight}
    return ChannelExchange(bytes_, ranks, _tiling(fabric, protocol, cost, min(ranks * parts, channels), **cut), parts)


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
    """The largest power of two that is not above a number."""
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
    """The ring kernel that the system's library runs for a collective of `bytes_` [bytes of the whole buffer].

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
    chosen = Protocol(int(best_ring(Call(name, ranks, fabric), bytes_))) if protocol is None else protocol_of(protocol)
    cost = fabric.kernels.cost(chosen.name.lower())
    # RCCL's reduceCopy unrolls copies from one place to one other twice as far. Two pieces in flight take as long as
    # the four wavefronts' own, to 0.3 %, and half the events.
    doubled = fabric.gpu.vendor == "amd" and chosen is Protocol.SIMPLE
    changes = {"slots": 2, "copying": 2 * cost.in_flight} if doubled else {}
    workgroups = int(own_channels(bytes_, ranks, fabric, chosen, channels))
    tiling = _tiling(fabric, chosen, cost, workgroups, **changes)
    return ChannelRing(name, bytes_, ranks, tiling, element_bytes=1 if dtype == "int8" else 2)


def _check(bytes_: int, ranks: int) -> None:
    if ranks < 2:
        raise InputError(f"a collective of {ranks} ranks has no peer; take at least 2")
    if bytes_ < ranks * 1024:
        raise InputError(
            f"{format_bytes(bytes_)} over {ranks} ranks is less than 1 KiB each; choose a larger collective"
        )
