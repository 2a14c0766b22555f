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
import numpy.typing as npt

from weft.core.errors import InputError, UnknownNameError
from weft.estimate.answer import FloatArray, Parts
from weft.estimate.target import BenchmarkProtocol
from weft.hardware import system
from weft.kernels.channels import ChannelTiling
from weft.kernels.library.collectives import (
    P2P_LL_BYTES,
    PAYLOAD,
    SHAPES,
    CollectiveCall,
    KiB,
    MiB,
    Protocol,
    library_vendor,
)
from weft.kernels.library.cost_model import ll128_rate, step_ratio, switch_rate
from weft.kernels.library.interconnect import Interconnect, interconnect
from weft.kernels.library.profiles import Profile
from weft.kernels.library.served import library, table_of, values_of

# In a ring step of LL every thread of a workgroup has one line of 8 B of data, and there are 512 of them
# (NCCL src/device/prims_ll.h).
_LL_BYTES_PER_WORKGROUP = 4 * KiB
_P2P_FLAT = 64 * KiB
"""Bytes per peer that LL moves while sends and receives start, on the links of a profile."""
_P2P_FIRST_STEP = 2 * MiB
"""The same of Simple, for all peers."""
_P2P_SECOND_STEP = 32 * 512 * KiB
"""Parts beyond one buffer step let send and receive overlap: 32 channels of 512 KiB."""
_P2P_SECOND_STEP_PCIE = 32 * 128 * KiB
"""The same over PCIe, where a step has 128 KiB (NCCL src/init.cc, P2P_PCI_CHUNKSIZE)."""


@dataclass(frozen=True)
class RankGroup(CollectiveCall):
    """The ranks of a collective, their links, and the library's profile.

    `paired` ranks all send to each other. `bytewise` says that the elements are one-byte integers, which take more
    instructions to add.
    """

    profile: Profile = field(kw_only=True)
    bytewise: bool = False
    paired: bool = False

    @cached_property
    def figure(self) -> float:
        """Rate per GPU and direction that the library assumes in its cost model [bytes/s]."""
        return self.fabric.figure(self.ranks, self.paired)

    @cached_property
    def home(self) -> float:
        """The same rate on the machine that the profile was fitted on, with as many ranks [bytes/s].

        Of a blended profile it is the mean. Local copies run at a share of it, since slower links do not slow a GPU's
        memory down.
        """
        homes = _homes(self.profile, self.fabric)
        return _mean([home.figure(min(self.ranks, home.gpus_per_node), self.paired) for home in homes]) or self.figure

    @cached_property
    def home_channel(self) -> float:
        """A channel's share of the same rate there, with the library's own number of channels [bytes/s]."""
        counted = [(home, min(self.ranks, home.gpus_per_node)) for home in _homes(self.profile, self.fabric)]
        shares = [home.figure(n, self.paired) / home.workgroups(n) for home, n in counted]
        return _mean(shares) or self.figure / self.fabric.workgroups(self.ranks)

    @property
    def table(self) -> str:
        """The table of the profile that holds the values of rings for this collective."""
        return self.name if self.name in ("all_reduce", "reduce_scatter") else "all_gather"

    def value(self, path: str) -> float:
        """A value of the profile [base unit], from the collective's own table or, without one, from the rings'."""
        return self.profile.value(path if "." in path else f"{self.table}.{path}")

    def pairs(self, ranks: int) -> RankGroup:
        """Return a group of `ranks` ranks in one node that all send to each other."""
        return replace(self, ranks=ranks, nodes=1, paired=True)


def ring(protocol: Protocol, size: FloatArray, group: RankGroup, channels: FloatArray | None = None) -> Parts:
    """Return a ring collective with one protocol on `channels` channels at once (None: the library's own number)."""
    form = {Protocol.LL: _ring_ll, Protocol.LL128: _ring_ll128, Protocol.SIMPLE: _ring_simple}[protocol]
    return form(size, group, channels)


def ring_in_rounds(
    protocol: Protocol, size: FloatArray, group: RankGroup, channels: FloatArray, at_once: FloatArray
) -> Parts:
    """Return a ring collective by `channels` workgroups; compute units hold `at_once` of them. Both have the sizes'
    shape.

    The others start when earlier ones end, round after round. Every round carries its channels' part of the data, and
    all but the first go without the launch of the kernel, which is what a launch with LL takes.
    """
    first = np.minimum(channels, at_once)
    rounds = np.ceil(channels / first)
    last = channels - (rounds - 1) * first
    total = dict(ring(protocol, size * first / channels, group, first))
    for active, times in ((first, np.maximum(rounds - 2, 0)), (last, np.minimum(rounds - 1, 1))):
        again = ring(protocol, size * active / channels, group, active)
        total = {part: seconds + times * again[part] for part, seconds in total.items()}
        total["launch"] -= times * group.value("ring.ll_launch")
    return total


def workgroups_held(protocol: Protocol, fabric: Interconnect) -> int:
    """Workgroups of a ring's kernel that a compute unit holds at once."""
    tiling = ChannelTiling(1, threads=SHAPES[library_vendor(fabric)][protocol].threads)
    kernel = tiling.kernel("", ())
    return fabric.gpu.compute.resident_workgroups(kernel.threads, kernel.registers, kernel.lds)


_CHANNEL_RATE = {Protocol.LL: 0.6, Protocol.LL128: 1.32, Protocol.SIMPLE: 1.74}
"""Rate of one channel, over its share of the library's link figure with the library's own number of channels.

Fitted to all-reduces of 1 to 32 channels on two and four A100 (openfabric-systems/simllm @26704c1, NCCL 2.31.2).
"""
_CHANNEL_COPY = 0.5
"""Weight of local copies against a link transfer where the channels are the limit; as above."""


def _transfer_times(
    protocol: Protocol, size: FloatArray, share: float, copy: float, group: RankGroup, channels: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Return the times of link and local copies [s] at a `share` of the library's link figure and a weight of copies.

    With a given number of `channels` the full rate is that of the profile's own machine, limited by the links and by
    the rate of each channel.
    """
    n, home = group.ranks, group.home
    if channels is None:
        rate = share * group.figure
        return size * group.volume / rate, size * copy / n / rate * group.figure / home
    link, copied = size * group.volume / (share * home), size * copy / n / (share * home)
    each = _CHANNEL_RATE[protocol] * group.home_channel
    wire = size * group.volume / (PAYLOAD[protocol] * group.figure)
    worked = size * (group.volume + _CHANNEL_COPY / n) / (channels * each)
    total = np.maximum(link + copied, np.maximum(wire, worked))
    link = np.maximum(np.maximum(link, wire), total - copied)
    return link, total - link


def _ring_ll(size: FloatArray, group: RankGroup, channels: FloatArray | None) -> Parts:
    """Return a ring with LL: workgroups are added in proportion to the size.

    Time rises as the first workgroup fills and a second joins it (from half to twice its chunk), then stays flat until
    all of them work.
    """
    n, hops = group.ranks, group.hops
    full = (group.fabric.workgroups(n) if channels is None else channels) * _LL_BYTES_PER_WORKGROUP * n
    joined = np.clip(np.log2(2 * size / n / _LL_BYTES_PER_WORKGROUP) / 2, 0, 1)
    beyond = size * np.maximum(1 - full / np.maximum(size, 1), 0)
    link, copied = _transfer_times(
        Protocol.LL, beyond, group.value("ll_efficiency"), group.value("ll_copy"), group, channels
    )
    # The hop with flags of this collective, if the profile has one, else that of all rings.
    own = f"{group.table}.ll_step"
    hop = group.value(own if own in group.profile.values else "ring.ll_step")
    return {
        "launch": group.value("ring.ll_launch") + group.value("ll_join") * joined,
        "latency": hops * (hop + group.value("ll_ramp") * joined),
        "link": link,
        "copy": copied,
    }


def _ring_ll128(size: FloatArray, group: RankGroup, channels: FloatArray | None) -> Parts:
    share = _ll128_share(group.ranks, group.profile)
    link, copied = _transfer_times(Protocol.LL128, size, share, group.value("ll_copy"), group, channels)
    return {
        "launch": np.full_like(size, group.value("ring.ll128_launch")),
        "latency": np.full_like(size, group.hops * group.value("ring.ll128_step")),
        "link": link,
        "copy": copied,
    }


def _ring_simple(size: FloatArray, group: RankGroup, channels: FloatArray | None) -> Parts:
    share = group.value("simple_efficiency")
    if group.bytewise and group.table != "all_gather":
        share *= group.value("bytewise_efficiency")
    link, copied = _transfer_times(Protocol.SIMPLE, size, share, group.value("simple_copy"), group, channels)
    hops = np.full_like(size, group.hops * group.value("simple_step"))
    latency, transfer = together(hops, link + copied, group.value("simple_overlap"))
    moved = link / (link + copied)
    return {
        "launch": np.full_like(size, group.value("ring.simple_launch")),
        "latency": latency,
        "link": transfer * moved,
        "copy": transfer * (1 - moved),
    }


def together(first: FloatArray, second: FloatArray, exponent: float) -> tuple[FloatArray, FloatArray]:
    """Combine two times that overlap in part, (a^p + b^p)^(1/p), split in the ratio a^p : b^p."""
    a, b = np.maximum(first, 1e-15) ** exponent, np.maximum(second, 1e-15) ** exponent
    total = (a + b) ** (1 / exponent)
    return total * (a / (a + b)), total * (b / (a + b))


_STAGES, _HALF_STAGES = 3, 2
"""Stages of an all-reduce by the switch (copy in, reduce and send, copy out), and of a reduce-scatter or all-gather."""


def nvls(size: FloatArray, group: RankGroup) -> Parts:
    """Return the parts of a collective that the switch reduces or copies (NVLS).

    The busier direction of a GPU's link carries S + S/n bytes of an all-reduce, S of a reduce-scatter or all-gather.
    Reduce-scatter and all-gather run two of the three stages of an all-reduce, at the same rate of the link and with
    two thirds of its start.
    """
    n, whole = group.ranks, group.name == "all_reduce"
    busier = 1 + 1 / n if whole else 1.0
    moved = replace(group, name="all_reduce").volume * busier / (1 + 1 / n)
    transfer = size * moved / (group.value("nvls.efficiency") * group.figure)
    launch = np.full_like(size, group.value("nvls.launch") * (1 if whole else _HALF_STAGES / _STAGES))
    latency, link = together(launch, transfer, group.value("nvls.overlap"))
    if most := switch_limit(n, group):
        link = np.maximum(link, size * busier / most - latency)
    return {"launch": latency, "latency": np.zeros_like(size), "link": link, "copy": np.zeros_like(size)}


def _launch_and_link(size: FloatArray, launch: float, link: FloatArray) -> Parts:
    none = np.zeros_like(size)
    return {"launch": np.full_like(size, launch), "latency": none, "link": link, "copy": none}


def direct(protocol: Protocol, size: FloatArray, group: RankGroup) -> Parts:
    """The all-pairs all-reduce of a full mesh: every rank reduces its share from all others, then sends it to them.

    An all-gather or all-to-all takes one of the two steps, without the kernel's synchronization and one hop; as nothing
    is added, stores reach their full share of the links.
    """
    kind = "ll" if protocol is Protocol.LL else "simple"
    known = f"direct.{kind}_launch" in group.profile.values
    # Launch and two steps of an all-pairs all-reduce; those of a ring if the profile has no such values.
    launch = group.value(f"{'direct' if known else 'ring'}.{kind}_launch")
    if group.name in ("all_gather", "all_to_all"):
        fabric = group.fabric
        cost = fabric.kernels.cost(f"direct_{protocol.name.lower()}")
        rate = cost.link * PAYLOAD[protocol] * group.figure
        return _launch_and_link(size, launch - cost.sync - fabric.gpu.link.latency, size * group.volume / rate)
    rate = group.value(f"{'direct' if known else 'all_reduce'}.{kind}_efficiency") * group.figure
    return _launch_and_link(size, launch, size * group.volume / rate)


def oneshot(size: FloatArray, group: RankGroup) -> Parts:
    """The one-shot all-reduce of inference libraries: every GPU reads all others' buffers and adds them up itself."""
    rate = group.value("oneshot.efficiency") * group.figure
    return _launch_and_link(size, group.value("oneshot.launch"), size * (group.ranks - 1) / rate)


_HOSTED = 8.0
"""How sharply the longer of the host's call and the device decides [assumed; 4 to infinity]."""


_ON_PACKAGE = 150e9
"""Rate beyond any PCIe at which a GPU reaches the memory of a host that is on its package: Grace [bytes/s]."""


def custom(
    size: FloatArray, group: RankGroup, name: str, harness: BenchmarkProtocol
) -> tuple[Parts, npt.NDArray[np.str_]]:
    """Return the all-reduce of a server's own kernels in one node, and whether it runs in one shot or two.

    Below a limit (always between two GPUs) every GPU reads all others' buffers and adds them up; else each reduces its
    part and gathers those of the others, after another barrier. From three on, GPUs without NVLink share the `bridge`
    of the host, where the measured one limits them. In a graph the device launches the kernel; "eager", the host
    calls, and the input is first copied.
    """
    of, gpu, ranks = library("all_reduce", name), group.fabric.gpu, group.ranks
    place = table_of("all_reduce", of.name, "nvlink" if gpu.link.links else "pcie", gpu.architecture)
    own = values_of(place, harness.values)
    bridged = not gpu.link.links and ranks > 2
    most = np.inf if ranks == 2 else next((most for count, most in of.how["once"] if ranks <= count), 0)
    once = (size < most) & (not bridged)
    rate = (own["link"] if ranks > 2 else own["pair"]) * gpu.link.bandwidth
    if bridged and "bridge" in own:
        rate = min(rate, own["bridge"] / ranks)
    parts = {
        "launch": np.full_like(size, own["start"]),
        "latency": (ranks - 2) * own["peer"] + np.where(once, 0.0, own["second"]),
        "link": np.where(once, ranks - 1.0, 2 * (ranks - 1) / ranks) * size / rate,
    }
    if harness.host == "eager":
        parts["copy"] = 2 * size / (own["copy"] * gpu.memory.bandwidth)
        device = sum(parts.values(), np.zeros_like(size))
        call = own["grace"] if "grace" in own and gpu.host.bandwidth > _ON_PACKAGE else own["host"]
        parts["host"] = (device**_HOSTED + call**_HOSTED) ** (1 / _HOSTED) - device
    return parts, np.where(once, "one-shot", "two-shot")


def pairwise(protocol: Protocol, size: FloatArray, group: RankGroup) -> Parts:
    """Send and receive between all pairs at once; each rank sends `size` bytes, its own part included."""
    n = group.ranks
    part = np.maximum(size / n, 1)
    if protocol is Protocol.LL:
        return _pairwise_ll(part, group)
    ramp = np.clip(np.log2(part / P2P_LL_BYTES) / 2, 0, 1) * group.value("all_to_all.simple_ramp")
    second = _P2P_SECOND_STEP_PCIE if group.fabric.topology == "pcie" else _P2P_SECOND_STEP
    first = np.maximum(np.minimum(size, second) - _hidden(_P2P_FIRST_STEP, group), 0)
    later = np.maximum(size - second, 0)
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


def _hidden(moved: float, group: RankGroup) -> float:
    """Return the bytes that these links move in the time in which the profile's own links move `moved`.

    That time passes while sends and receives start; slower links hide less in it.
    """
    return moved * min(group.figure / group.home, 1.0)


def _pairwise_ll(part: FloatArray, group: RankGroup) -> Parts:
    """Return all-pairs with LL: few workgroups limit the rate, not the links, unless the links are slower still."""
    n, share = group.ranks, group.value("all_to_all.ll_efficiency")
    rate = share * group.figure
    if share < PAYLOAD[Protocol.LL]:
        rate = max(rate, min(share * group.home, PAYLOAD[Protocol.LL] * group.figure))
    ramp = np.clip(np.log2(part / (4 * KiB)) / 4, 0, 1) * group.value("all_to_all.ll_ramp")
    beyond = np.maximum(part - _hidden(_P2P_FLAT, group), 0)
    return {
        "launch": np.full_like(part, group.value("all_to_all.ll_launch")),
        "latency": (n - 1) * group.value("all_to_all.ll_peer") + ramp,
        "link": beyond * (n - 1) / rate,
        "copy": np.zeros_like(part),
    }


# A profile's home machines are those that it was fitted on. Its rates are shares of the link rate assumed there:
# rates that links bound scale with the links; others, such as copies in a GPU's memory, do not.

_STEPS = {"ll_step": Protocol.LL, "ll128_step": Protocol.LL128, "simple_step": Protocol.SIMPLE}
_MEASURED_RANKS = 8
"""The most ranks inside one node for which LL128 was measured."""


def switch_limit(ranks: int, group: RankGroup) -> float:
    """Return the highest rate per GPU and direction where the switch reduces [bytes/s]; 0 where none does.

    The library's search rounds to whole rings. That is right where the profile was fitted; on other machines it decides
    only the library's choice, and the rate scales with the links.
    """
    fabric = group.fabric
    if not fabric.multicast:
        return 0.0
    homes = [home for home in _homes(group.profile, fabric) if home.multicast]
    shares = [switch_rate(n, home) / home.figure(n) for home in homes if (n := min(ranks, home.gpus_per_node))]
    return _mean(shares) * fabric.figure(ranks) if shares else switch_rate(ranks, fabric)


def over_links(profile: Profile, fabric: Interconnect) -> Profile:
    """The profile for this kind of link: hops over PCIe are longer by the ratio of the library's own constants."""
    if any(home.topology == fabric.topology for home in _homes(profile)):
        return profile
    ratios = {step: step_ratio(protocol, fabric) for step, protocol in _STEPS.items()}
    values = {path: value * ratios.get(path.rpartition(".")[2], 1.0) for path, value in profile.values.items()}
    return replace(profile, values=values)


def _ll128_share(ranks: int, profile: Profile) -> float:
    """Rate of a ring with LL128 as a share of the library's assumed rate.

    The fitted share holds up to the measured number of ranks. Beyond it, LL128 is taken to be no slower than the
    library expects: an extrapolation. The rows are few: on Blackwell a single size, 2 MiB per rank, where LL128 is
    slow.
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
    """The machines in which the profile's GPUs are usually sold; `fabric` itself if it is one of them, of any size."""
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


_BY_DMA = ("all_gather", "all_to_all", "broadcast", "send_recv")
"""Collectives that copy engines can run; they cannot reduce."""


def time_copies(size: FloatArray, group: RankGroup) -> Parts:
    """Return a collective by copy engines, in parts; InputError for one that must reduce.

    Every GPU pushes its parts to all peers at once, without compute units; with fewer engines than peers, an engine
    serves several in turn. A host thread hands over the commands of one engine after another, on AMD's machines for all
    GPUs of a node, and waits for every completion: small collectives take several times longer than on compute units
    (AMD-DMA-Latte, arXiv:2511.06605). `weft.kernels.copies` simulates the same scheme in the engine; the two agree
    within 5 %. Over nodes, adapters bring the shares of GPUs of the same index, which engines push on as they arrive.
    """
    name, fabric, ranks = group.name, group.fabric, group.ranks
    if group.nodes > 1:
        return _gather_over_nodes(size, group)
    if name not in _BY_DMA:
        raise InputError(
            f"copy engines cannot reduce, so {name} cannot be driven by DMA; take one of "
            f"{', '.join(_BY_DMA)}, or leave "
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


def _gather_over_nodes(size: FloatArray, group: RankGroup) -> Parts:
    """Return an all-gather by adapters between nodes and copy engines inside them (MORI's `HierAllGather`).

    Each GPU's adapter brings one share after the other, and engines push its own and every one that has arrived to the
    GPUs of its node: they end when all have been pushed, or the last one after it has arrived.
    """
    fabric, local, nodes = group.fabric, group.per_node, group.nodes
    if group.name != "all_gather" or local < 2:
        raise InputError(
            f"copy engines reach no further than a node of {fabric.gpus_per_node} GPUs; give at most as many ranks, or "
            "an all_gather over nodes of at least 2 GPUs, whose shares adapters bring"
        )
    inside = time_copies(size, replace(group, ranks=local, nodes=1))
    arriving = size / group.ranks / (fabric.nic * group.value("network.efficiency"))
    pushed = inside["link"] / nodes
    last = (nodes - 1) * arriving + pushed
    hop = fabric.nic_launch + group.value("network.launch") + fabric.nic_latency + group.value("network.step")
    return {**inside, "latency": inside["latency"] + hop, "network": np.maximum(last - inside["link"], 0.0)}


def _transfer(each: FloatArray, peers: int, turns: int, fabric: Interconnect, earlier: float) -> FloatArray:
    """Return the time to send `each` [bytes] to every peer after the last engine begins, `earlier` [s] after the first.

    All engines share the egress link; an engine runs its commands in turn.
    """
    link, dma = fabric.gpu.link, fabric.gpu.dma
    egress = fabric.figure(peers + 1, paired=True) / link.kernel_efficiency * link.dma_efficiency
    lane = min(egress, dma.bandwidth or egress)
    if fabric.topology == "mesh":
        others = fabric.gpus_per_node - 1
        lane = egress / peers / (link.dma_efficiency if dma.bandwidth else 1.0)
        lane, egress = min(lane, dma.bandwidth or lane), egress / peers * others
    return np.maximum(each * peers / egress - earlier, each * turns / lane)
