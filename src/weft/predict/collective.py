"""The time of a collective in closed form: what the library would choose, and what that takes.

The algorithm and protocol of every size follow the library's own cost model; the time of each comes from a profile of
latencies and efficiencies. `bytes` are the whole buffer as nccl-tests counts them: the output of an all-gather, the
input of a reduce-scatter, what one rank sends in an all-to-all, its own part included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from weft.collectives.fabric import Fabric, fabric_of
from weft.collectives.library import PAYLOAD, Algorithm, MiB, Protocol, canonical, choose, volume
from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu
from weft.hardware.finding import SystemMatch
from weft.hardware.libraries import Profile, at_clock, of_release, profile_for
from weft.hardware.machine import Machine
from weft.hardware.ring_kernels import ring_cost
from weft.predict.collective_dma import copied
from weft.predict.collective_forms import Parts, Ranks, direct, nvls, one_step, oneshot, pairwise, ring
from weft.predict.collective_home import home_figure, over_links, switch_limit
from weft.predict.collective_nodes import across as between_nodes
from weft.predict.collective_nodes import pairs
from weft.predict.prediction import Bound, FloatArray, IntArray, Prediction

LIBRARIES = ("nccl", "rccl", "trtllm-custom")
HOSTS = ("", "framework", "torch", "profiler")
"""Who calls: the library's own test; a framework; one that packs lists of tensors; one whose kernels are timed, which
wait for the last rank to begin."""
_BOUND_OF = {
    "launch": Bound.LAUNCH,
    "host": Bound.LAUNCH,
    "latency": Bound.LATENCY,
    "link": Bound.LINK,
    "network": Bound.LINK,
    "copy": Bound.MEMORY,
}
_ONESHOT_BYTES = 8 * MiB
"""What the buffers of TensorRT-LLM's own all-reduce hold."""
_FLOATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


def collective(
    name: str,
    bytes: npt.ArrayLike,
    ranks: int,
    system: str | Gpu | Machine | SystemMatch | Fabric,
    *,
    library: str | None = None,
    algorithm: str = "auto",
    nodes: int | None = None,
    dtype: str = "fp16",
    version: str | None = None,
    host: str = "",
    nic: float | None = None,
    dma: bool = False,
    profile: Profile | None = None,
) -> Prediction:
    """How long a collective of `ranks` GPUs takes for each number of `bytes` [s], and what bounds it.

    `name` is all_reduce, reduce_scatter, all_gather, all_to_all, broadcast or send_recv; `system` a machine or a GPU,
    by description or name ("dgx-h100", "8xMI300X"). `algorithm` "auto" takes the library's choice, or names one
    ("ring", "nvls", "direct", "tree") or one with a protocol ("ring-ll128"). `version` is the library's, `host` who
    calls it, `dma` has copy engines carry it out. `nic` is the rate per GPU of a network that differs from the
    machine's [bytes/s]. Raises InputError or UnknownNameError for what no machine can do.
    """
    collective_name, fabric = canonical(name), fabric_of(system)
    size = _sizes(bytes)
    base = _library(library, fabric)
    known = profile or profile_for(fabric.gpu, fabric.architecture, base)
    known = at_clock(of_release(known, version or ""), fabric.clock)
    if nic is not None:
        fabric = replace(fabric, nic=nic)
    if nodes is None and isinstance(system, SystemMatch) and system.gpus == ranks:
        nodes = system.nodes
    across = _nodes(nodes, ranks, fabric)
    fabric = fabric.among(ranks // across)
    known = over_links(known, fabric)
    if dma:
        return _prediction(_copied(collective_name, size, ranks, across, fabric))
    chosen = _chosen(collective_name, size, ranks, fabric, known, (algorithm, across, dtype, version))
    narrow = dtype == "int8"
    parts = _dealt(collective_name, size, ranks, across, fabric, known, chosen, narrow)
    if library == "trtllm-custom" and collective_name == "all_reduce" and across == 1:
        parts = _or_oneshot(parts, size, ranks, fabric, known)
    if host:
        parts = {**parts, "host": _host(collective_name, parts, size, ranks, fabric, known, host)}
    return _prediction(parts)


def bus_factor(name: str, ranks: int) -> float:
    """What nccl-tests multiplies bytes per second by to get the bus bandwidth: the share that each rank must send."""
    return volume(canonical(name), ranks)


def _sizes(bytes: npt.ArrayLike) -> FloatArray:
    size = np.asarray(bytes, dtype=np.float64)
    if not np.all(np.isfinite(size)) or np.any(size <= 0):
        worst = size[~(np.isfinite(size) & (size > 0))].flat[0]
        raise InputError(f"a collective of {worst:g} bytes cannot be timed; give sizes above zero")
    return size


def _library(library: str | None, fabric: Fabric) -> str:
    if library is not None and library not in LIBRARIES:
        raise UnknownNameError("collective library", library, LIBRARIES)
    return library or ("rccl" if fabric.vendor == "amd" else "nccl")


def _nodes(nodes: int | None, ranks: int, fabric: Fabric) -> int:
    across = -(-ranks // fabric.gpus_per_node) if nodes is None else nodes
    if across < 1 or ranks % across:
        raise InputError(
            f"{ranks} ranks cannot be spread evenly over {across} nodes; give a number of ranks that they divide"
        )
    if ranks // across > fabric.gpus_per_node:
        raise InputError(
            f"{ranks} ranks on {across} nodes are more than the {fabric.gpus_per_node} GPUs of a node; give more nodes"
        )
    return across


def _chosen(
    name: str,
    size: FloatArray,
    ranks: int,
    fabric: Fabric,
    profile: Profile,
    how: tuple[str, int, str, str | None],
) -> tuple[IntArray, IntArray]:
    wanted, nodes, dtype, version = how
    algorithm, protocol = choose(
        name,
        size,
        ranks,
        fabric,
        nodes=nodes,
        floating=dtype in _FLOATS,
        one_step=wanted.lower().startswith(("auto", "direct")),
        version=(version or profile.version) if profile.library == "nccl" else "",
    )
    if wanted == "auto":
        return algorithm, protocol
    first, _, second = wanted.upper().replace("-", "_").rpartition("_")
    if second not in Protocol.__members__:
        first, second = wanted.upper().replace("-", "_"), ""
    if first not in Algorithm.__members__:
        raise UnknownNameError("algorithm", wanted, ["auto", *(a.name.lower() for a in Algorithm)])
    algorithm = np.full(size.shape, int(Algorithm[first]))
    return algorithm, np.full(size.shape, int(Protocol[second])) if second else protocol


def _dealt(
    name: str,
    size: FloatArray,
    ranks: int,
    nodes: int,
    fabric: Fabric,
    profile: Profile,
    chosen: tuple[IntArray, IntArray],
    bytewise: bool,
) -> Parts:
    """The parts of every size, each from the form of its algorithm and protocol."""
    algorithm, protocol = chosen
    parts: dict[str, FloatArray] = {}
    for code in np.unique(algorithm * len(Protocol) + protocol):
        a, p = divmod(int(code), len(Protocol))
        mask = (algorithm == a) & (protocol == p)
        if nodes > 1:
            found = between_nodes(name, Algorithm(a), Protocol(p), size[mask], ranks, nodes, fabric, profile)
        else:
            found = _form(name, Algorithm(a), Protocol(p), size[mask], ranks, fabric, profile, bytewise)
            found = _no_faster_than_the_wire(
                found, name, Algorithm(a), Protocol(p), size[mask], ranks, fabric
            )
        for part, seconds in found.items():
            parts.setdefault(part, np.zeros_like(size))[mask] = seconds
    return parts


def _no_faster_than_the_wire(
    parts: Parts,
    name: str,
    algorithm: Algorithm,
    protocol: Protocol,
    size: FloatArray,
    ranks: int,
    fabric: Fabric,
) -> Parts:
    """A profile of fast links says little of slow ones: what the wire takes at least counts as link time."""
    if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE):
        return parts
    figure = fabric.pair_figure(ranks) if algorithm is Algorithm.PAIRWISE else fabric.figure(ranks)
    wire = size * volume(name, ranks) / (PAYLOAD[protocol] * figure / fabric.payload)
    lacking = np.maximum(wire - parts["link"], 0)
    hidden = np.minimum(lacking, parts["latency"])
    return {**parts, "link": parts["link"] + lacking, "latency": parts["latency"] - hidden}


def _form(
    name: str,
    algorithm: Algorithm,
    protocol: Protocol,
    size: FloatArray,
    ranks: int,
    fabric: Fabric,
    profile: Profile,
    bytewise: bool,
) -> Parts:
    if algorithm is Algorithm.PAIRWISE:
        if name == "send_recv":
            return pairwise(protocol, 2 * size, pairs(2, fabric, profile), profile, local=False)
        return pairwise(protocol, size, pairs(ranks, fabric, profile), profile)
    home = home_figure(ranks, fabric, profile)
    at_most = switch_limit(ranks, fabric, profile)
    seen = Ranks(ranks, fabric.figure(ranks), fabric.workgroups(ranks), home, bytewise, at_most)
    if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE):
        return nvls(name, size, seen, profile)
    if algorithm is Algorithm.ONESHOT:
        return oneshot(size, seen, profile)
    if algorithm is Algorithm.DIRECT and name in ("all_gather", "all_to_all"):
        cost = ring_cost(fabric.vendor, fabric.architecture, f"direct_{protocol.name.lower()}")
        return one_step(protocol, size, seen, profile, cost, fabric.hop)
    if algorithm is Algorithm.DIRECT:
        return direct(protocol, size, seen, profile)
    return ring(name, protocol, size, seen, profile)


def _copied(name: str, size: FloatArray, ranks: int, nodes: int, fabric: Fabric) -> Parts:
    if nodes > 1:
        raise InputError(
            f"copy engines reach no further than a node of {fabric.gpus_per_node} GPUs; give at most as many ranks"
        )
    return copied(name, size, ranks, fabric)


def _or_oneshot(parts: Parts, size: FloatArray, ranks: int, fabric: Fabric, profile: Profile) -> Parts:
    """The one-shot all-reduce where it is faster and its buffers hold the data, else what the library takes."""
    figure = fabric.figure(ranks)
    shot = oneshot(size, Ranks(ranks, figure, 0, figure), profile)
    faster = (size <= _ONESHOT_BYTES) & (_total(shot) < _total(parts))
    return {part: np.where(faster, shot[part], parts[part]) for part in shot}


def _host(
    name: str, parts: Parts, size: FloatArray, ranks: int, fabric: Fabric, profile: Profile, host: str
) -> FloatArray:
    """What the caller adds: its call, the packing of lists of tensors, or the wait for a rank that begins late."""
    if host not in HOSTS:
        raise UnknownNameError("host", host, HOSTS[1:])
    if host == "profiler":
        return np.maximum(profile.value("host.floor") - _total(parts), 0)
    call = np.full_like(size, profile.value("host.launch"))
    tensor = {"all_gather": "gather", "reduce_scatter": "scatter", "all_to_all": "exchange"}.get(name)
    if host == "framework" or tensor is None:
        return call
    copies = 0.0 if tensor == "exchange" else profile.value("host.copies")
    packing = profile.value("host.list") + ranks * profile.value(f"host.{tensor}_tensor")
    return call + packing + copies * size / fabric.copy_rate


def _total(parts: Parts) -> FloatArray:
    return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float64)


def _prediction(parts: Mapping[str, FloatArray]) -> Prediction:
    seconds = _total(parts)
    shares: dict[Bound, FloatArray] = {}
    for part, values in parts.items():
        bound = _BOUND_OF[part]
        shares[bound] = shares.get(bound, np.zeros_like(seconds)) + values
    codes = np.array([int(bound) for bound in shares])
    largest = np.argmax(np.stack(list(shares.values())), axis=0)
    return Prediction(seconds, np.asarray(codes[largest], dtype=np.int64), dict(parts))
