"""The time of a collective in closed form: what the library would choose, and what that takes.

The algorithm and protocol of every size follow the library's own cost model; the time of each comes from a profile of
latencies and efficiencies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, join_or
from weft.estimate.answer import Estimate, FloatArray, Parts, floats, from_parts
from weft.estimate.collective_forms import (
    Group,
    copied,
    custom,
    direct,
    nvls,
    oneshot,
    over_links,
    pairwise,
    ring,
    ring_in_rounds,
    workgroups_held,
)
from weft.estimate.collective_nodes import across
from weft.estimate.target import Harness, Target
from weft.graph import Collective, Driver
from weft.kernels.library.collectives import (
    FLOATS,
    PAYLOAD,
    RINGS,
    Algorithm,
    IntArray,
    MiB,
    Protocol,
    best_ring,
    check_channels,
    check_way,
    choose,
    own_channels,
    parsed_way,
    way_name,
)
from weft.kernels.library.profiles import at_clock, of_release, profile_for
from weft.kernels.library.served import libraries

Names = npt.NDArray[np.str_]

_ONESHOT_BYTES = 8 * MiB
"""Buffer size of TensorRT-LLM's own all-reduce [bytes]."""


def collective(op: Collective, machine: Target, values: Mapping[str, float] | None = None) -> Estimate:
    """How long a collective takes [s], what bounds it, and by which algorithm and protocol it runs.

    The harness may name a server's library: its custom all-reduce in one node, and the vendor's library for all else.
    `values` of such libraries replace shipped ones by path.
    Raises InputError for ranks that cannot be spread evenly over the nodes, for an algorithm that the library does not
    have there, and for copy engines that would have to reduce.
    """
    size, ranks = np.broadcast_arrays(floats(op.bytes), op.ranks)
    parts: dict[str, FloatArray] = {}
    by = np.empty(size.shape, dtype=_NAMES)
    for count in _different(op.ranks):
        of = ranks == count
        found, by[of] = _among(count, size[of], op, machine, values)
        _fill(parts, of, found)
    return from_parts(parts, by)


def _different(values: npt.ArrayLike) -> list[int]:
    """The different whole numbers of an array, in order; unlike np.unique, without loading np.ma."""
    return sorted({*np.ravel(values).tolist()})


_NAMES = "<U16"


def _fill(parts: dict[str, FloatArray], cases: npt.NDArray[np.bool_], times: Parts) -> None:
    for part, seconds in times.items():
        parts.setdefault(part, np.zeros(cases.shape))[cases] = seconds


def _among(
    ranks: int, size: FloatArray, op: Collective, machine: Target, values: Mapping[str, float] | None = None
) -> tuple[Parts, Names]:
    """The parts of every size [s] for one number of ranks, and the algorithm that is used."""
    harness, nodes = machine.harness, machine.nodes(ranks)
    group = _group(ranks, nodes, op, machine)
    if harness.driver is Driver.DMA:
        if harness.channels is not None:
            raise InputError(
                f"copy engines have no channels, but channels is {harness.channels}; leave it out, or drop driver 'dma'"
            )
        return copied(size, group), np.full(size.shape, "copy engines", dtype=_NAMES)
    named = harness.library or ""
    if named in libraries("all_reduce") and group.name == "all_reduce" and nodes == 1:
        return custom(size, group, named, harness.host, values)
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


def _ways(size: FloatArray, group: Group, floating: bool, machine: Target) -> tuple[IntArray, IntArray]:
    """The `Algorithm` and `Protocol` of each size: the library's choice, or the one that the harness names."""
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
    algorithm: IntArray, protocol: IntArray, size: FloatArray, group: Group, harness: Harness
) -> tuple[IntArray, IntArray]:
    """The ring and protocol of each size where channels or compute units are given: the library's best ring.

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


def _in_rounds(protocol: Protocol, size: FloatArray, group: Group, harness: Harness) -> Parts:
    """The ring with the harness's channels on its compute units; the library's own channels grow with the size."""
    if harness.channels is None:
        channels = own_channels(size, group.ranks, group.fabric, protocol)
    else:
        channels = np.full(size.shape, float(harness.channels))
    units = harness.compute_units or group.fabric.gpu.compute.compute_units
    at_once = np.full(size.shape, float(units * workgroups_held(protocol, group.fabric)))
    return ring_in_rounds(protocol, size, group, channels, at_once)


def _group(ranks: int, nodes: int, op: Collective, machine: Target) -> Group:
    """The ranks with their links, and the library's profile for its release and for the clock of the GPUs."""
    fabric, harness = machine.fabric, machine.harness
    library = harness.library or ("rccl" if fabric.gpu.vendor == "amd" else "nccl")
    known = harness.profile or profile_for(fabric.gpu.name, fabric.gpu.architecture, library)
    known = at_clock(of_release(known, harness.version), fabric.gpu.compute.clock)
    links = fabric.among(ranks // nodes)
    return Group(op.name, ranks, links, nodes, profile=over_links(known, links), bytewise=op.dtype == "int8")


def _form(algorithm: Algorithm, protocol: Protocol, size: FloatArray, group: Group, harness: Harness) -> Parts:
    """The parts [s] of the sizes that one algorithm and protocol serve."""
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


def _no_faster_than_the_wire(parts: Parts, protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    """Raise the link part to the wire time where it is lower, as a profile fitted on fast links may be on slow ones."""
    wire = size * group.volume / (PAYLOAD[protocol] * group.figure / group.fabric.gpu.link.kernel_efficiency)
    lacking = np.maximum(wire - parts["link"], 0)
    hidden = np.minimum(lacking, parts["latency"])
    return {**parts, "link": parts["link"] + lacking, "latency": parts["latency"] - hidden}


def _or_oneshot(parts: Parts, by: Names, size: FloatArray, group: Group) -> tuple[dict[str, FloatArray], Names]:
    """The one-shot all-reduce where it is faster and its buffers hold the data, else the library's choice."""
    shot = oneshot(size, group)
    faster = (size <= _ONESHOT_BYTES) & (_total(shot) < _total(parts))
    name = way_name(Algorithm.ONESHOT, Protocol.SIMPLE)
    return {part: np.where(faster, shot[part], parts[part]) for part in shot}, np.where(faster, name, by)


def _host(parts: Parts, size: FloatArray, group: Group, harness: Harness) -> FloatArray:
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
