"""The time of a collective in closed form: what the library would choose, and what that takes.

The algorithm and protocol of every size follow the library's own cost model; the time of each comes from a profile of
latencies and efficiencies.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, join_or
from weft.estimate.answer import Estimate, FloatArray, Parts, floats, from_parts
from weft.estimate.collective_forms import (
    RankGroup,
    custom,
    direct,
    nvls,
    oneshot,
    over_links,
    pairwise,
    ring,
    ring_in_rounds,
    switch_limit,
    time_copies,
    together,
    workgroups_held,
)
from weft.estimate.target import BenchmarkProtocol, Target
from weft.graph import Collective, Driver
from weft.hardware import chain_gain
from weft.kernels.library.collectives import (
    FLOATS,
    PAYLOAD,
    RINGS,
    SHAPES,
    Algorithm,
    IntArray,
    MiB,
    Protocol,
    check_channels,
    own_channels,
    parsed_way,
    volume,
    way_name,
)
from weft.kernels.library.cost_model import best_ring, check_way, choose, tree_channels
from weft.kernels.library.interconnect import Pattern
from weft.kernels.library.profiles import at_clock, of_release, profile_for
from weft.kernels.library.served import libraries

_TREE_STAGES = 4
"""Stages in which a tree holds a chunk: up and down, in one node and in the other."""
_TREE_CHUNK = {
    protocol: shape.chunk / (4 if protocol is Protocol.SIMPLE else 1) for protocol, shape in SHAPES["nvidia"].items()
}
"""Bytes of a tree's chunk, by protocol: a step of a channel's buffer, where rings with Simple take four (NCCL
src/enqueue.cc, calcCollChunking)."""

_TWO_STAGES = 3.0
"""Exponent at which the links inside a node and the network between nodes, stages of one pipeline, combine
[assumed; 1 is serial, infinity the slower alone]."""


def across(algorithm: Algorithm, protocol: Protocol, size: FloatArray, group: RankGroup) -> Parts:
    """Return a collective of ranks on several nodes."""
    if algorithm is Algorithm.PAIRWISE:
        return _pairwise(protocol, size, group)
    if algorithm is Algorithm.NVLS_TREE:
        return _switched_tree(size, group)
    if algorithm is Algorithm.PAT:
        return _pat(size, group)
    return (_tree if algorithm is Algorithm.TREE else _ring)(protocol, size, group)


def _network(group: RankGroup, pattern: Pattern) -> float:
    """Rate of all network adapters of a node [bytes/s], or of its share of oversubscribed uplinks."""
    return group.fabric.adapter(group.nodes, pattern) * group.per_node * group.value("network.efficiency")


def _hop(group: RankGroup) -> float:
    return group.fabric.nic_latency + group.value("network.step")


def _launch(group: RankGroup) -> float:
    return group.fabric.nic_launch + group.value("network.launch")


def _local_hop(protocol: Protocol, group: RankGroup) -> float:
    flagged = {Protocol.LL: "ring.ll_step", Protocol.LL128: "ring.ll128_step"}
    return group.value(flagged.get(protocol, "simple_step"))


def _combine_times(
    protocol: Protocol, hops: FloatArray, transfer: FloatArray, group: RankGroup
) -> tuple[FloatArray, FloatArray]:
    """Combine hops and transfer: in sequence for protocols with flags, overlapped as inside a node for Simple.

    An exponent below 1, a slow start, was fitted on links and is not carried over to a network.
    """
    if protocol is not Protocol.SIMPLE:
        return hops, transfer
    return together(hops, transfer, max(group.value("simple_overlap"), 1.0))


def _inside(protocol: Protocol, group: RankGroup) -> float:
    """Rate of rings through one node, in a chain of its GPUs each [bytes/s]."""
    fabric, local = group.fabric, max(group.per_node, 2)
    gain = chain_gain(fabric.topology, local, fabric.gpus_per_node)
    return fabric.figure(local) * gain * group.value("simple_efficiency") * PAYLOAD[protocol]


def _tree(protocol: Protocol, size: FloatArray, group: RankGroup) -> Parts:
    """Return a chain in each node and a double binary tree between nodes, up and down.

    Long messages first fill a pipeline, which holds a chunk of every channel in each stage.
    """
    local, nodes = group.per_node, group.nodes
    between = 2 * np.ceil(np.log2(nodes))
    hops = 2 * (local - 1) * _local_hop(protocol, group) + between * _hop(group)
    rate = _network(group, "tree") * PAYLOAD[protocol]
    fill = _TREE_STAGES * _TREE_CHUNK[protocol] * tree_channels(group) / rate
    carried = size * 2 * (nodes - 1) / nodes
    filling = fill * -np.expm1(-_TREE_STAGES * size / rate / fill)
    limit = np.maximum(carried / rate, size / (_inside(protocol, group) / 2) if local > 1 else 0.0)
    latency, moving = _combine_times(protocol, np.full_like(size, hops), limit, group)
    return {"launch": np.full_like(size, _launch(group)), "latency": latency + filling, "network": moving}


def _switched_tree(size: FloatArray, group: RankGroup) -> Parts:
    """Return the switch reduces in each node, a tree joins the nodes (NVLS-Tree)."""
    local, nodes = group.per_node, group.nodes
    hops = 2 * np.ceil(np.log2(nodes)) * _hop(group)
    start = np.full_like(size, _launch(group) + hops)
    inside = size * volume("all_reduce", local) / (group.value("nvls.efficiency") * group.fabric.figure(local))
    outside = size * 2 * (nodes - 1) / nodes / _network(group, "tree")
    both = np.sum(together(inside, outside, _TWO_STAGES), axis=0)
    latency, transfer = together(start, both, group.value("nvls.overlap"))
    most = switch_limit(local, group)
    transfer = np.maximum(transfer, size * (1 + 1 / local) / most - latency)
    return {"latency": latency, **_side(transfer, outside > inside)}


def _side(transfer: FloatArray, outside: npt.NDArray[np.bool_]) -> Parts:
    return {"network": np.where(outside, transfer, 0.0), "link": np.where(outside, 0.0, transfer)}


def _ring(protocol: Protocol, size: FloatArray, group: RankGroup) -> Parts:
    local, nodes, ranks, hops = group.per_node, group.nodes, group.ranks, group.hops
    between = hops // (ranks - 1) * (nodes - 1) if ranks > 1 else 0
    latency = (hops - between) * _local_hop(protocol, group) + between * _hop(group)
    inside, outside = _inside(protocol, group), _network(group, "ring") * PAYLOAD[protocol]
    rate = min(inside, outside) if local > 1 else outside
    side = np.full(size.shape, rate < inside or local == 1)
    transfer = size * group.volume / rate
    waiting, moving = _combine_times(protocol, np.full_like(size, latency), transfer, group)
    return {"launch": np.full_like(size, _launch(group)), "latency": waiting, **_side(moving, side)}


_PAT_RATE = 0.75
"""Rate of PAT by that of a ring, as NCCL's own model has it (src/graph/tuning.cc)."""


def _pat(size: FloatArray, group: RankGroup) -> Parts:
    """Return NCCL's log-time all-gather or reduce-scatter: a hop for each doubling of the nodes, which hold a GPU each.

    So small ones of 32 H100 on as many nodes take 54 us more than in one node; a ring would take some 300
    (meta-pytorch/autoparallel cost_models/h100_nvswitch_roce_400g.py; nothing is fitted to it).
    """
    latency = np.full_like(size, np.ceil(np.log2(group.nodes)) * _hop(group))
    moving = size * group.volume / (_PAT_RATE * _network(group, "exchange"))
    return {"launch": np.full_like(size, _launch(group)), "latency": latency, "network": moving}


_CONNECTION = 2 * MiB
"""Bytes that the buffers of a connection between nodes hold: two channels of eight steps of 128 KiB (NCCL
src/init.cc, p2pNetChunkSize)."""


_HOST_GPUS = 8
"""Most GPUs of a node whose messages one host sends [assumed 4 to 16]: a rack of 72 has hosts of its own."""


def _pairwise(protocol: Protocol, size: FloatArray, group: RankGroup) -> Parts:
    """Return all pairs at once: traffic between nodes shares each GPU's adapter, traffic inside a node the links.

    Each peer on another node takes its turn, and a lower share of the adapter's rate until the buffers of its
    connection are full.
    """
    local, ranks = group.per_node, group.ranks
    remote, part, rate = ranks - local, size / ranks, group.fabric.adapter(group.nodes, "exchange")
    first = np.minimum(part, _CONNECTION)
    outside = remote * first / (rate * group.value("network.exchange_first"))
    outside += remote * (part - first) / (rate * group.value("network.exchange_efficiency"))
    others = min(local, _HOST_GPUS) - 1
    start = _launch(group) + _hop(group) + others * group.value("network.exchange_local")
    start += remote * group.value("network.exchange_peer")
    if local < 2:
        kind = "ll" if protocol is Protocol.LL else "simple"
        launch = np.full_like(size, group.value(f"all_to_all.{kind}_launch"))
        return {"launch": launch, "latency": np.full_like(size, start), "network": outside}
    inside = pairwise(protocol, size * local / ranks, replace(group.pairs(local), name="all_to_all"))
    lacking = np.maximum(outside - inside["link"], 0)
    return {**inside, "latency": inside["latency"] + start, "network": lacking}


Names = npt.NDArray[np.str_]

_ONESHOT_BYTES = 8 * MiB
"""Buffer size of TensorRT-LLM's own all-reduce [bytes]."""


def collective(op: Collective, machine: Target) -> Estimate:
    """Return how long a collective takes [s], what bounds it, and by which algorithm and protocol it runs.

    The harness may name a server's library: its custom all-reduce in one node, and the vendor's library for all else.
    Raises InputError for ranks that cannot be spread evenly over the nodes, for an algorithm that the library does not
    have there, and for copy engines that would have to reduce.
    """
    size, ranks = np.broadcast_arrays(floats(op.bytes), op.ranks)
    parts: dict[str, FloatArray] = {}
    by = np.empty(size.shape, dtype=_NAMES)
    for count in _different(op.ranks):
        of = ranks == count
        found, by[of] = _among(count, size[of], op, machine)
        _fill(parts, of, found)
    return from_parts(parts, by)


def _different(values: npt.ArrayLike) -> list[int]:
    """Return the different whole numbers of an array, in order; unlike np.unique, without loading np.ma."""
    return sorted({*map(int, np.ravel(values).tolist())})


_NAMES = "<U16"


def _fill(parts: dict[str, FloatArray], cases: npt.NDArray[np.bool_], times: Parts) -> None:
    for part, seconds in times.items():
        parts.setdefault(part, np.zeros(cases.shape))[cases] = seconds


def _among(ranks: int, size: FloatArray, op: Collective, machine: Target) -> tuple[Parts, Names]:
    """Return the parts of every size [s] for one number of ranks, and the algorithm that is used."""
    harness, nodes = machine.harness, machine.nodes(ranks)
    group = _group(ranks, nodes, op, machine)
    if harness.driver is Driver.DMA:
        if harness.channels is not None:
            raise InputError(
                f"copy engines have no channels, but channels is {harness.channels}; leave it out, or drop driver 'dma'"
            )
        return time_copies(size, group), np.full(size.shape, "copy engines", dtype=_NAMES)
    named = harness.library or ""
    if named in libraries("all_reduce") and group.name == "all_reduce" and nodes == 1:
        return custom(size, group, named, harness)
    algorithm, protocol = _ways(size, group, op.dtype in FLOATS, machine)
    if harness.channels is not None or harness.compute_units is not None:
        algorithm, protocol = _rings(algorithm, protocol, size, group, harness)
    parts: dict[str, FloatArray] = {}
    by = np.empty(size.shape, dtype=_NAMES)
    for code in _different(algorithm * len(Protocol) + protocol):
        a, p = divmod(code, len(Protocol))
        of = (algorithm == a) & (protocol == p)
        by[of] = way_name(Algorithm(a), Protocol(p))
        _fill(parts, of, _form(Algorithm(a), Protocol(p), size[of], group, harness))
    if harness.library == "trtllm-custom" and group.name == "all_reduce" and nodes == 1:
        parts, by = _or_oneshot(parts, by, size, group)
    if harness.host:
        parts["host"] = _host(parts, size, group, harness)
    return parts, by


def _ways(size: FloatArray, group: RankGroup, floating: bool, machine: Target) -> tuple[IntArray, IntArray]:
    """Return the `Algorithm` and `Protocol` of each size: the library's choice, or the one that the harness names."""
    profile, wanted = group.profile, machine.harness.algorithm
    first, second = parsed_way(wanted)
    if first is not None:
        check_way(first, second, group, profile, machine.name, wanted)
    version = (machine.harness.version or profile.version) if profile.library == "nccl" else ""
    one_step = first in (None, Algorithm.DIRECT)
    algorithm, protocol = choose(
        group.name,
        size,
        group.ranks,
        group.fabric,
        nodes=group.nodes,
        floating=floating,
        one_step=one_step,
        version=version,
    )
    if first is not None:
        algorithm = np.full(size.shape, int(first))
    if first is Algorithm.DIRECT:  # has no LL128
        protocol = np.where(protocol == Protocol.LL128, int(Protocol.SIMPLE), protocol)
    return algorithm, protocol if second is None else np.full(size.shape, int(second))


def _rings(
    algorithm: IntArray, protocol: IntArray, size: FloatArray, group: RankGroup, harness: BenchmarkProtocol
) -> tuple[IntArray, IntArray]:
    """Return the ring and protocol of each size where channels or compute units are given: the library's best ring.

    Raises InputError for collectives without a ring, several nodes, and channels or units that cannot be.
    """
    if group.name not in RINGS or group.nodes > 1:
        where = group.name if group.nodes == 1 else f"{group.name} over {group.nodes} nodes"
        raise InputError(
            f"closed forms know channels and compute_units of rings in one node, not of {where}; choose "
            f"{join_or(RINGS)} in one node, or simulate it"
        )
    check_channels(harness.channels, group.fabric)
    units = group.fabric.gpu.compute.compute_units
    if harness.compute_units is not None and harness.compute_units > units:
        raise InputError(
            f"compute_units is {harness.compute_units}, but {group.fabric.gpu.name} has {units}; choose 1 to {units}"
        )
    others = algorithm != Algorithm.RING
    if harness.algorithm != "auto" and others.any():
        raise InputError(
            f"closed forms know channels and compute_units of rings, not of '{harness.algorithm}'; choose 'ring', or "
            "leave them out"
        )
    best = np.where(others, best_ring(group, size), protocol)
    return np.full(size.shape, int(Algorithm.RING)), best


def _in_rounds(protocol: Protocol, size: FloatArray, group: RankGroup, harness: BenchmarkProtocol) -> Parts:
    """The ring with the harness's channels on its compute units; the library's own channels grow with the size."""
    if harness.channels is None:
        channels = own_channels(size, group.ranks, group.fabric, protocol)
    else:
        channels = np.full(size.shape, float(harness.channels))
    units = harness.compute_units or group.fabric.gpu.compute.compute_units
    at_once = np.full(size.shape, float(units * workgroups_held(protocol, group.fabric)))
    return ring_in_rounds(protocol, size, group, channels, at_once)


def _group(ranks: int, nodes: int, op: Collective, machine: Target) -> RankGroup:
    """Return the ranks with their links, and the library's profile for its release and for the clock of the GPUs."""
    fabric, harness = machine.fabric, machine.harness
    library = harness.library or ("rccl" if fabric.gpu.vendor == "amd" else "nccl")
    known = harness.profile or profile_for(fabric.gpu.name, fabric.gpu.architecture, library)
    known = at_clock(of_release(known, harness.version), fabric.gpu.compute.clock)
    links = fabric.among(ranks // nodes)
    return RankGroup(op.name, ranks, links, nodes, profile=over_links(known, links), bytewise=op.dtype == "int8")


def _form(
    algorithm: Algorithm, protocol: Protocol, size: FloatArray, group: RankGroup, harness: BenchmarkProtocol
) -> Parts:
    """Return the parts [s] of the sizes that one algorithm and protocol serve."""
    if group.nodes > 1:
        whole = algorithm is Algorithm.PAIRWISE and group.name == "send_recv" and group.ranks == 2
        return across(algorithm, protocol, 2 * size if whole else size, group)
    if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE):
        return nvls(size, group)
    if algorithm is Algorithm.PAIRWISE:
        pairs = group.pairs(group.ranks)
        one = group.name == "send_recv"
        parts = pairwise(protocol, 2 * size if one else size, group.pairs(2) if one else pairs)
        return _no_faster_than_the_wire(parts, protocol, size, pairs)
    if algorithm is Algorithm.ONESHOT:
        parts = oneshot(size, group)
    elif harness.channels is not None or harness.compute_units is not None:
        parts = _in_rounds(protocol, size, group, harness)
    else:
        parts = (direct if algorithm is Algorithm.DIRECT else ring)(protocol, size, group)
    return _no_faster_than_the_wire(parts, protocol, size, group)


def _no_faster_than_the_wire(parts: Parts, protocol: Protocol, size: FloatArray, group: RankGroup) -> Parts:
    """Raise the link part to the wire time where it is lower, as a profile fitted on fast links may be on slow ones."""
    wire = size * group.volume / (PAYLOAD[protocol] * group.figure / group.fabric.gpu.link.kernel_efficiency)
    lacking = np.maximum(wire - parts["link"], 0)
    hidden = np.minimum(lacking, parts["latency"])
    return {**parts, "link": parts["link"] + lacking, "latency": parts["latency"] - hidden}


def _or_oneshot(parts: Parts, by: Names, size: FloatArray, group: RankGroup) -> tuple[dict[str, FloatArray], Names]:
    """Return the one-shot all-reduce where it is faster and its buffers hold the data, else the library's choice."""
    shot = oneshot(size, group)
    faster = (size <= _ONESHOT_BYTES) & (_total(shot) < _total(parts))
    name = way_name(Algorithm.ONESHOT, Protocol.SIMPLE)
    return {part: np.where(faster, shot[part], parts[part]) for part in shot}, np.where(faster, name, by)


def _host(parts: Parts, size: FloatArray, group: RankGroup, harness: BenchmarkProtocol) -> FloatArray:
    """Time that the caller adds [s]: its call, packing lists of tensors, or waiting for a rank that begins late."""
    if harness.host == "profiler":
        return np.maximum(group.value("host.floor") - _total(parts), 0)
    call = np.full_like(size, group.value("host.launch"))
    tensor = {"all_gather": "gather", "reduce_scatter": "scatter", "all_to_all": "exchange"}.get(group.name)
    if harness.host in ("framework", "eager") or tensor is None:
        return call
    copies = 0.0 if tensor == "exchange" else group.value("host.copies")
    packing = group.value("host.list") + group.ranks * group.value(f"host.{tensor}_tensor")
    return call + packing + copies * size / group.fabric.gpu.memory.copy_rate


def _total(parts: Parts) -> FloatArray:
    return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float64)
