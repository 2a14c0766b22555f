"""The time of one collective inside one node, by algorithm and protocol: launch, hops, link and local copies.

Every form takes the bytes of the whole buffer as nccl-tests counts them, and returns its parts [s], which add up to
the time. `k` passes over the ring (2 for all-reduce) make k(n-1) hops and move k(n-1)/n of the buffer over each link;
local copies count as `copy` further shares of 1/n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.collectives.library import P2P_LL_BYTES, PAYLOAD, KiB, MiB, Protocol, steps, volume
from weft.hardware.libraries import Profile
from weft.hardware.ring_kernels import RingCost
from weft.predict.collective_home import ll128_share
from weft.predict.prediction import FloatArray

Parts = Mapping[str, FloatArray]

# In a ring step of LL every thread of a workgroup has one line of 8 B of data, and there are 512 of them
# (NCCL src/device/prims_ll.h).
_LL_BYTES_PER_WORKGROUP = 4 * KiB
_P2P_FLAT = 64 * KiB
_P2P_FIRST_STEP = 2 * MiB
_P2P_SECOND_STEP = 16 * MiB
"""Parts beyond one 512-KiB buffer step let send and receive overlap: 32 channels x 512 KiB."""


@dataclass(frozen=True)
class Ranks:
    """Who takes part, and at which rate: the library's figure per GPU and direction [bytes/s], and its workgroups.

    `home` is that figure where the profile was fitted: local copies go at a share of it, since slower links do not
    slow a GPU's memory down. `bytewise` says that the elements are one-byte integers, which take more instructions to
    add up; `switch` is the rate per direction at most when the switch reduces [bytes/s].
    """

    count: int
    figure: float
    workgroups: int
    home: float
    bytewise: bool = False
    switch: float = 0.0


def ring(collective: str, protocol: Protocol, size: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    """A ring collective with one protocol."""
    if protocol is Protocol.LL:
        return _ring_ll(collective, size, ranks, profile)
    if protocol is Protocol.LL128:
        return _ring_ll128(collective, size, ranks, profile)
    return _ring_simple(collective, size, ranks, profile)


def _table(collective: str) -> str:
    return collective if collective in ("all_reduce", "reduce_scatter") else "all_gather"


def _ring_ll(collective: str, size: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    """Workgroups are added in proportion to the size: time rises as the first is full and a second joins it (from half
    to twice its chunk), and then stays flat until all of them work.
    """
    table, n, hops = _table(collective), ranks.count, steps(collective, ranks.count)
    full = ranks.workgroups * _LL_BYTES_PER_WORKGROUP * n
    joined = np.clip(np.log2(2 * size / n / _LL_BYTES_PER_WORKGROUP) / 2, 0, 1)
    beyond = size * np.maximum(1 - full / np.maximum(size, 1), 0)
    rate = profile.value(f"{table}.ll_efficiency") * ranks.figure
    return {
        "launch": profile.value("ring.ll_launch") + profile.value(f"{table}.ll_join") * joined,
        "latency": hops * (_hop(table, profile) + profile.value(f"{table}.ll_ramp") * joined),
        "link": beyond * volume(collective, n) / rate,
        "copy": beyond * profile.value(f"{table}.ll_copy") / n / rate * ranks.figure / ranks.home,
    }


def _hop(table: str, profile: Profile) -> float:
    """One hop with flags: a collective's own, if the profile says so, else every ring's."""
    own = f"{table}.ll_step"
    return profile.value(own if own in profile.values else "ring.ll_step")


def _ring_ll128(collective: str, size: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    table, n = _table(collective), ranks.count
    rate = ll128_share(n, profile) * ranks.figure
    hops = steps(collective, n) * profile.value("ring.ll128_step")
    return {
        "launch": np.full_like(size, profile.value("ring.ll128_launch")),
        "latency": np.full_like(size, hops),
        "link": size * volume(collective, n) / rate,
        "copy": size * profile.value(f"{table}.ll_copy") / n / rate * ranks.figure / ranks.home,
    }


def _ring_simple(collective: str, size: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    table, n = _table(collective), ranks.count
    rate = profile.value(f"{table}.simple_efficiency") * ranks.figure
    if ranks.bytewise and table != "all_gather":
        rate *= profile.value(f"{table}.bytewise_efficiency")
    moved = volume(collective, n)
    copied = profile.value(f"{table}.simple_copy") / n * ranks.figure / ranks.home
    hops = np.full_like(size, steps(collective, n) * profile.value(f"{table}.simple_step"))
    latency, transfer = together(
        hops, size * (moved + copied) / rate, profile.value(f"{table}.simple_overlap")
    )
    share = moved / (moved + copied)
    return {
        "launch": np.full_like(size, profile.value("ring.simple_launch")),
        "latency": latency,
        "link": transfer * share,
        "copy": transfer * (1 - share),
    }


def together(one: FloatArray, other: FloatArray, exponent: float) -> tuple[FloatArray, FloatArray]:
    """Two times that are neither hidden nor added: (a^p + b^p)^(1/p), dealt out in the ratio a^p : b^p."""
    a, b = np.maximum(one, 1e-15) ** exponent, np.maximum(other, 1e-15) ** exponent
    total = (a + b) ** (1 / exponent)
    return total * (a / (a + b)), total * (b / (a + b))


def nvls(collective: str, size: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    """A collective that the switch reduces or copies out (NVLS): for all-reduce, half of a ring's bytes per link."""
    n = ranks.count
    moved = volume(collective, n) if collective == "all_reduce" else 2 * (1 + 1 / n)
    transfer = size * moved / (profile.value("nvls.efficiency") * ranks.figure)
    launch = np.full_like(size, profile.value("nvls.launch"))
    latency, link = together(launch, transfer, profile.value("nvls.overlap"))
    if ranks.switch:
        link = np.maximum(link, size * (1 + 1 / n) / ranks.switch - latency)
    return {"launch": latency, "latency": np.zeros_like(size), "link": link, "copy": np.zeros_like(size)}


def direct(protocol: Protocol, size: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    """The all-pairs all-reduce of a full mesh: every rank reduces its share of all others', then hands it out."""
    kind = _kind(protocol)
    known = f"direct.{kind}_launch" in profile.values
    rate = profile.value(f"{'direct' if known else 'all_reduce'}.{kind}_efficiency") * ranks.figure
    return {
        "launch": np.full_like(size, _direct_launch(kind, profile)),
        "latency": np.zeros_like(size),
        "link": size * volume("all_reduce", ranks.count) / rate,
        "copy": np.zeros_like(size),
    }


def one_step(
    protocol: Protocol, size: FloatArray, ranks: Ranks, profile: Profile, cost: RingCost, hop: float
) -> Parts:
    """An all-gather or all-to-all in one step of a full mesh: an all-pairs all-reduce without the second of its two.

    What is left out is the kernel's synchronization and a `hop` over a link [s]. As nothing is added up, stores reach
    their share of the links.
    """
    rate = cost.link * PAYLOAD[protocol] * ranks.figure
    launch = _direct_launch(_kind(protocol), profile) - cost.sync - hop
    return {
        "launch": np.full_like(size, launch),
        "latency": np.zeros_like(size),
        "link": size * volume("all_gather", ranks.count) / rate,
        "copy": np.zeros_like(size),
    }


def _kind(protocol: Protocol) -> str:
    return "ll" if protocol is Protocol.LL else "simple"


def _direct_launch(kind: str, profile: Profile) -> float:
    """The launch and the two steps of an all-pairs all-reduce; where a profile has none, of a ring."""
    known = f"direct.{kind}_launch" in profile.values
    return profile.value(f"{'direct' if known else 'ring'}.{kind}_launch")


def oneshot(size: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    """The all-reduce of inference libraries: every GPU reads all others' buffers, and adds them up by itself."""
    rate = profile.value("oneshot.efficiency") * ranks.figure
    return {
        "launch": np.full_like(size, profile.value("oneshot.launch")),
        "latency": np.zeros_like(size),
        "link": size * (ranks.count - 1) / rate,
        "copy": np.zeros_like(size),
    }


def pairwise(
    protocol: Protocol, size: FloatArray, ranks: Ranks, profile: Profile, *, local: bool = True
) -> Parts:
    """Send and receive between all pairs at once: `size` is what a rank sends in all, its own part included."""
    n = ranks.count
    part = np.maximum(size / n, 1)
    if protocol is Protocol.LL:
        return _pairwise_ll(part, ranks, profile)
    ramp = np.clip(np.log2(part / P2P_LL_BYTES) / 2, 0, 1) * profile.value("all_to_all.simple_ramp")
    first = np.maximum(np.minimum(size, _P2P_SECOND_STEP) - _P2P_FIRST_STEP, 0)
    later = np.maximum(size - _P2P_SECOND_STEP, 0)
    slow, fast = profile.value("all_to_all.step_efficiency"), profile.value("all_to_all.efficiency")
    time = (first / slow + later / fast) / ranks.figure
    copied = profile.value("all_to_all.self_copy") * ranks.figure / ranks.home if local else 0.0
    return {
        "launch": np.full_like(size, profile.value("all_to_all.simple_launch")),
        "latency": (n - 1) * profile.value("all_to_all.simple_peer") + ramp,
        "link": time * (n - 1) / n,
        "copy": time * copied / n,
    }


def _pairwise_ll(part: FloatArray, ranks: Ranks, profile: Profile) -> Parts:
    """With few workgroups they limit the rate, not the links; slower links do so only where they are slower still."""
    n, share = ranks.count, profile.value("all_to_all.ll_efficiency")
    rate = share * ranks.figure
    if share < PAYLOAD[Protocol.LL]:
        rate = max(rate, min(share * ranks.home, PAYLOAD[Protocol.LL] * ranks.figure))
    ramp = np.clip(np.log2(part / (4 * KiB)) / 4, 0, 1) * profile.value("all_to_all.ll_ramp")
    beyond = np.maximum(part - _P2P_FLAT, 0)
    return {
        "launch": np.full_like(part, profile.value("all_to_all.ll_launch")),
        "latency": (n - 1) * profile.value("all_to_all.ll_peer") + ramp,
        "link": beyond * (n - 1) / rate,
        "copy": np.zeros_like(part),
    }
