"""The time of one collective inside one node, by algorithm and protocol: launch, hops, link and local copies.

Every form takes the bytes of the whole buffer as nccl-tests counts them, and returns its parts [s], which add up to
the time. `k` passes over the ring (2 for all-reduce) make k(n-1) hops and move k(n-1)/n of the buffer over each link;
local copies count as `copy` further shares of 1/n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np

from weft.errors import InputError, UnknownNameError
from weft.estimate.answer import FloatArray, Parts
from weft.hardware import system
from weft.library.collectives import (
    P2P_LL_BYTES,
    PAYLOAD,
    Call,
    KiB,
    MiB,
    Protocol,
    ll128_rate,
    step_ratio,
    switch_rate,
)
from weft.library.interconnect import Interconnect, interconnect
from weft.library.profiles import Profile

# In a ring step of LL every thread of a workgroup has one line of 8 B of data, and there are 512 of them
# (NCCL src/device/prims_ll.h).
_LL_BYTES_PER_WORKGROUP = 4 * KiB
_P2P_FLAT = 64 * KiB
_P2P_FIRST_STEP = 2 * MiB
_P2P_SECOND_STEP = 16 * MiB
"""Parts beyond one 512-KiB buffer step let send and receive overlap: 32 channels x 512 KiB."""


@dataclass(frozen=True)
class Group(Call):
    """The ranks that a collective joins, their links, and the library's profile.

    `paired` ranks all send to each other. `bytewise` says that the elements are one-byte integers, which take more
    instructions to add up.
    """

    profile: Profile = field(kw_only=True)
    bytewise: bool = False
    paired: bool = False

    @cached_property
    def figure(self) -> float:
        """The library's figure per GPU and direction [bytes/s]."""
        return self.fabric.figure(self.ranks, self.paired)

    @cached_property
    def home(self) -> float:
        """That figure among as many ranks of the profile's own machine [bytes/s]; a mean's is a mean.

        Local copies go at a share of it, since slower links do not slow a GPU's memory down.
        """
        homes = _homes(self.profile, self.fabric)
        return _mean([home.figure(min(self.ranks, home.gpus_per_node), self.paired) for home in homes]) or self.figure

    @property
    def table(self) -> str:
        """The table of the profile that serves its rings."""
        return self.name if self.name in ("all_reduce", "reduce_scatter") else "all_gather"

    def value(self, path: str) -> float:
        """A value of the profile [base unit]; without a table, of the rings'."""
        return self.profile.value(path if "." in path else f"{self.table}.{path}")

    def pairs(self, ranks: int) -> Group:
        """A group of `ranks` of its ranks in one node, which all send to each other."""
        return replace(self, ranks=ranks, nodes=1, paired=True)


def ring(protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    """A ring collective with one protocol."""
    return {Protocol.LL: _ring_ll, Protocol.LL128: _ring_ll128, Protocol.SIMPLE: _ring_simple}[protocol](size, group)


def _ring_ll(size: FloatArray, group: Group) -> Parts:
    """Workgroups are added in proportion to the size: time rises as the first is full and a second joins it (from half
    to twice its chunk), and then stays flat until all of them work.
    """
    n, hops = group.ranks, group.hops
    full = group.fabric.workgroups(n) * _LL_BYTES_PER_WORKGROUP * n
    joined = np.clip(np.log2(2 * size / n / _LL_BYTES_PER_WORKGROUP) / 2, 0, 1)
    beyond = size * np.maximum(1 - full / np.maximum(size, 1), 0)
    rate = group.value("ll_efficiency") * group.figure
    # A collective's own hop with flags, if the profile says so, else every ring's.
    own = f"{group.table}.ll_step"
    hop = group.value(own if own in group.profile.values else "ring.ll_step")
    return {
        "launch": group.value("ring.ll_launch") + group.value("ll_join") * joined,
        "latency": hops * (hop + group.value("ll_ramp") * joined),
        "link": beyond * group.volume / rate,
        "copy": beyond * group.value("ll_copy") / n / rate * group.figure / group.home,
    }


def _ring_ll128(size: FloatArray, group: Group) -> Parts:
    rate = _ll128_share(group.ranks, group.profile) * group.figure
    return {
        "launch": np.full_like(size, group.value("ring.ll128_launch")),
        "latency": np.full_like(size, group.hops * group.value("ring.ll128_step")),
        "link": size * group.volume / rate,
        "copy": size * group.value("ll_copy") / group.ranks / rate * group.figure / group.home,
    }


def _ring_simple(size: FloatArray, group: Group) -> Parts:
    rate = group.value("simple_efficiency") * group.figure
    if group.bytewise and group.table != "all_gather":
        rate *= group.value("bytewise_efficiency")
    moved = group.volume
    copied = group.value("simple_copy") / group.ranks * group.figure / group.home
    hops = np.full_like(size, group.hops * group.value("simple_step"))
    latency, transfer = together(hops, size * (moved + copied) / rate, group.value("simple_overlap"))
    share = moved / (moved + copied)
    return {
        "launch": np.full_like(size, group.value("ring.simple_launch")),
        "latency": latency,
        "link": transfer * share,
        "copy": transfer * (1 - share),
    }


def together(one: FloatArray, other: FloatArray, exponent: float) -> tuple[FloatArray, FloatArray]:
    """Two times that are neither hidden nor added: (a^p + b^p)^(1/p), dealt out in the ratio a^p : b^p."""
    a, b = np.maximum(one, 1e-15) ** exponent, np.maximum(other, 1e-15) ** exponent
    total = (a + b) ** (1 / exponent)
    return total * (a / (a + b)), total * (b / (a + b))


def nvls(size: FloatArray, group: Group) -> Parts:
    """A collective that the switch reduces or copies out (NVLS): for all-reduce, half of a ring's bytes per link."""
    n = group.ranks
    moved = group.volume if group.name == "all_reduce" else 2 * (1 + 1 / n)
    transfer = size * moved / (group.value("nvls.efficiency") * group.figure)
    launch = np.full_like(size, group.value("nvls.launch"))
    latency, link = together(launch, transfer, group.value("nvls.overlap"))
    if most := switch_limit(n, group):
        link = np.maximum(link, size * (1 + 1 / n) / most - latency)
    return {"launch": latency, "latency": np.zeros_like(size), "link": link, "copy": np.zeros_like(size)}


def _launch_and_link(size: FloatArray, launch: float, link: FloatArray) -> Parts:
    none = np.zeros_like(size)
    return {"launch": np.full_like(size, launch), "latency": none, "link": link, "copy": none}


def direct(protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    """The all-pairs all-reduce of a full mesh: every rank reduces its share of all others', then hands it out.

    An all-gather or all-to-all takes one step of it: what is left out is the kernel's synchronization and a hop over a
    link, and as nothing is added up, stores reach their share of the links.
    """
    kind = "ll" if protocol is Protocol.LL else "simple"
    known = f"direct.{kind}_launch" in group.profile.values
    # The launch and the two steps of an all-pairs all-reduce; where a profile has none, of a ring.
    launch = group.value(f"{'direct' if known else 'ring'}.{kind}_launch")
    if group.name in ("all_gather", "all_to_all"):
        fabric = group.fabric
        cost = fabric.kernels.cost(f"direct_{protocol.name.lower()}")
        rate = cost.link * PAYLOAD[protocol] * group.figure
        return _launch_and_link(size, launch - cost.sync - fabric.gpu.link.latency, size * group.volume / rate)
    rate = group.value(f"{'direct' if known else 'all_reduce'}.{kind}_efficiency") * group.figure
    return _launch_and_link(size, launch, size * group.volume / rate)


def oneshot(size: FloatArray, group: Group) -> Parts:
    """The all-reduce of inference libraries: every GPU reads all others' buffers, and adds them up by itself."""
    rate = group.value("oneshot.efficiency") * group.figure
    return _launch_and_link(size, group.value("oneshot.launch"), size * (group.ranks - 1) / rate)


def pairwise(protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    """Send and receive between all pairs at once: `size` is what a rank sends in all, its own part included."""
    n = group.ranks
    part = np.maximum(size / n, 1)
    if protocol is Protocol.LL:
        return _pairwise_ll(part, group)
    ramp = np.clip(np.log2(part / P2P_LL_BYTES) / 2, 0, 1) * group.value("all_to_all.simple_ramp")
    first = np.maximum(np.minimum(size, _P2P_SECOND_STEP) - _P2P_FIRST_STEP, 0)
    later = np.maximum(size - _P2P_SECOND_STEP, 0)
    slow, fast = group.value("all_to_all.step_efficiency"), group.value("all_to_all.efficiency")
    time = (first / slow + later / fast) / group.figure
    local = group.name != "send_recv"
    copied = group.value("all_to_all.self_copy") * group.figure / group.home if local else 0.0
    return {
        "launch": np.full_like(size, group.value("all_to_all.simple_launch")),
        "latency": (n - 1) * group.value("all_to_all.simple_peer") + ramp,
        "link": time * (n - 1) / n,
        "copy": time * copied / n,
    }


def _pairwise_ll(part: FloatArray, group: Group) -> Parts:
    """With few workgroups they limit the rate, not the links; slower links do so only where they are slower still."""
    n, share = group.ranks, group.value("all_to_all.ll_efficiency")
    rate = share * group.figure
    if share < PAYLOAD[Protocol.LL]:
        rate = max(rate, min(share * group.home, PAYLOAD[Protocol.LL] * group.figure))
    ramp = np.clip(np.log2(part / (4 * KiB)) / 4, 0, 1) * group.value("all_to_all.ll_ramp")
    beyond = np.maximum(part - _P2P_FLAT, 0)
    return {
        "launch": np.full_like(part, group.value("all_to_all.ll_launch")),
        "latency": (n - 1) * group.value("all_to_all.ll_peer") + ramp,
        "link": beyond * (n - 1) / rate,
        "copy": np.zeros_like(part),
    }


# The homes of a profile are the machines of the GPUs that it was fitted on. Its rates are shares of the link figure:
# those that links bound scale with the links, others, such as copies in a GPU's memory, do not.

_STEPS = {"ll_step": Protocol.LL, "ll128_step": Protocol.LL128, "simple_step": Protocol.SIMPLE}
_MEASURED_RANKS = 8
"""The most ranks of which LL128 was measured inside one node."""


def switch_limit(ranks: int, group: Group) -> float:
    """The rate per GPU and direction at most when the switch reduces [bytes/s]; 0 where none does.

    The library's search rounds to whole rings, which is right where the profile was fitted, and elsewhere only for what
    it chooses: the rate scales with the links.
    """
    fabric = group.fabric
    if not fabric.multicast:
        return 0.0
    homes = [home for home in _homes(group.profile, fabric) if home.multicast]
    shares = [switch_rate(n, home) / home.figure(n) for home in homes if (n := min(ranks, home.gpus_per_node))]
    return _mean(shares) * fabric.figure(ranks) if shares else switch_rate(ranks, fabric)


def over_links(profile: Profile, fabric: Interconnect) -> Profile:
    """The profile with the hops of this kind of link: over PCIe longer by the ratio of the library's own constants."""
    if any(home.topology == fabric.topology for home in _homes(profile)):
        return profile
    ratios = {step: step_ratio(protocol, fabric) for step, protocol in _STEPS.items()}
    values = {path: value * ratios.get(path.rpartition(".")[2], 1.0) for path, value in profile.values.items()}
    return replace(profile, values=values)


def _ll128_share(ranks: int, profile: Profile) -> float:
    """The rate of a ring with LL128 as a share of the library's figure: as fitted, up to the ranks of the fit.

    The library takes LL128 for few sizes, on Blackwell for a single one of 2 MiB per rank, where it is slow. Beyond the
    ranks that were measured it counts as no slower than the library expects: an extrapolation.
    """
    fitted = profile.value("ring.ll128_efficiency")
    if ranks <= _MEASURED_RANKS:
        return fitted
    homes = [(home, min(ranks, home.gpus_per_node)) for home in _homes(profile)]
    counted = [ll128_rate(n, home) / home.figure(n) for home, n in homes]
    return max(fitted, _mean(counted))


def _mean(values: Sequence[float]) -> float:
    return math.prod(values) ** (1 / len(values)) if values else 0.0


def _homes(profile: Profile, fabric: Interconnect | None = None) -> tuple[Interconnect, ...]:
    """The machines that the profile's GPUs are usually sold in; `fabric` itself if it is one, of whatever size."""
    found = _fabrics(profile.fitted_on)
    return tuple(
        fabric if fabric and (fabric.gpu.name, fabric.topology) == (home.gpu.name, home.topology) else home
        for home in found
    )


@cache
def _fabrics(gpus: tuple[str, ...]) -> tuple[Interconnect, ...]:
    found = []
    for gpu in gpus:
        try:
            found.append(interconnect(system(gpu)))
        except UnknownNameError:  # a user's own profile may name a GPU that the catalogue does not have
            continue
    return tuple(found)


BY_DMA = ("all_gather", "all_to_all", "broadcast", "send_recv")
"""Collectives that copy engines carry out, which cannot reduce."""


def copied(size: FloatArray, group: Group) -> Parts:
    """The parts of a collective by copy engines inside one node; InputError for one that must reduce.

    Every GPU pushes its parts to all peers at once, and no compute unit works; with fewer engines than peers, an engine
    serves several in turn. A thread of the host hands one engine's commands over after the other's, on AMD's machines
    for all GPUs of a node, and waits for every completion: that makes small collectives several times slower than by
    compute units (AMD-DMA-Latte, arXiv:2511.06605). The engine of `weft.kernels.copies` simulates the same; the two
    agree within 5 %.
    """
    name, fabric, ranks = group.name, group.fabric, group.ranks
    if group.nodes > 1:
        raise InputError(
            f"copy engines reach no further than a node of {fabric.gpus_per_node} GPUs; give at most as many ranks"
        )
    if name not in BY_DMA:
        raise InputError(
            f"copy engines cannot reduce, so {name} cannot be driven by DMA; take one of {', '.join(BY_DMA)}, or leave "
            "it to compute units"
        )
    dma = fabric.gpu.dma
    peers = 1 if name == "send_recv" else ranks - 1
    sent = size * (peers if name == "broadcast" else group.volume)
    engines = min(peers, dma.engines)
    driven = 1 if fabric.gpu.vendor == "nvidia" or name in ("broadcast", "send_recv") else ranks
    each = peers * dma.enqueue + engines * dma.doorbell
    turns = -(-peers // engines)
    earlier = each * (engines - 1) / engines
    return {
        "launch": np.full_like(size, driven * each + dma.fetch),
        "latency": np.full_like(size, turns * dma.setup + dma.drain + dma.sync + engines * dma.signal),
        "link": _transfer(sent / peers, peers, turns, fabric, earlier),
    }


def _transfer(each: FloatArray, peers: int, turns: int, fabric: Interconnect, earlier: float) -> FloatArray:
    """How long it takes to send `each` [bytes] to every peer from when the last engine begins, `earlier` [s] after the
    first: all share the egress, an engine's commands take turns.
    """
    link, dma = fabric.gpu.link, fabric.gpu.dma
    egress = fabric.figure(peers + 1, paired=True) / link.kernel_efficiency * link.dma_efficiency
    lane = min(egress, dma.bandwidth or egress)
    if fabric.topology == "mesh":
        others = fabric.gpus_per_node - 1
        lane = egress / peers / (link.dma_efficiency if dma.bandwidth else 1.0)
        lane, egress = min(lane, dma.bandwidth or lane), egress / peers * others
    return np.maximum(each * peers / egress - earlier, each * turns / lane)
