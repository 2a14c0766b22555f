"""What a collective moves: bytes over links, bytes read and written in memory, and by how many workgroups.

Per rank, for `bytes` of the whole buffer. A staged ring passes every chunk through a buffer in the neighbour's memory,
which makes about three bytes of memory traffic of one on the link (from the steps of NCCL src/device/all_gather.h,
reduce_scatter.h and all_reduce.h; NVIDIA/nccl issue 1428 says two to three).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.collectives.fabric import Fabric
from weft.collectives.library import PAYLOAD, Algorithm, Protocol, canonical, volume
from weft.errors import InputError

FloatArray = npt.NDArray[np.float64]

# How a protocol's flags swell what is staged: LL stores as many flags as data.
_SWELL = {protocol: 1 / share for protocol, share in PAYLOAD.items()}
_DIRECT_RATE = {"hopper": 47e9, "blackwell": 59e9}
"""What one workgroup moves when it stores to or loads from a peer directly (NCCL src/sym_kernels.cc) [bytes/s]."""


@dataclass(frozen=True)
class Traffic:
    """Bytes per rank: over its links in one direction, and read and written in its memory."""

    link: float
    read: float
    written: float

    @property
    def memory(self) -> float:
        """Bytes read and written in memory."""
        return self.read + self.written

    @property
    def memory_per_link_byte(self) -> float:
        """Bytes of memory traffic for each byte over the links."""
        return self.memory / self.link


def traffic(
    collective: str,
    bytes: float,
    ranks: int,
    *,
    algorithm: Algorithm = Algorithm.RING,
    protocol: Protocol = Protocol.SIMPLE,
    registered: bool = False,
    dma: bool = False,
) -> Traffic:
    """The traffic of one rank in a collective of `ranks` ranks and `bytes` in all.

    `registered` buffers are written in the peer directly, `dma` has copy engines push. Raises InputError for what an
    algorithm cannot do.
    """
    name, share = canonical(collective), (ranks - 1) / ranks
    link = volume(name, ranks)
    if dma:
        read, written = _copied(name, share)
    elif algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE):
        link, read, written = _switched(name, ranks, registered)
    elif algorithm is Algorithm.DIRECT:
        read, written = _direct(name, ranks)
    else:
        read, written = _staged(name, share, registered)
        extra = _SWELL[protocol] - 1
        staged = 0.0 if registered else link
        read, written = read + staged * extra, written + staged * extra
    on_wire = link * (_SWELL[protocol] if not dma else 1.0)
    return Traffic(bytes * on_wire, bytes * read, bytes * written)


def _staged(name: str, share: float, registered: bool) -> tuple[float, float]:
    """Read and written, as shares of the buffer, through the neighbour's staging buffers; own and incoming stores."""
    if registered and name in ("all_gather", "broadcast"):
        return share, 1.0
    return {
        "all_reduce": (1 + 2 * share, 1 + 2 * share),
        "all_to_all": (1 + share, 1 + share),
        "send_recv": (2.0, 2.0),
        "broadcast": (2.0, 2.0),
    }.get(name, (1.0 + share, 1.0) if name == "reduce_scatter" else (1.0, 1.0 + share))


def _copied(name: str, share: float) -> tuple[float, float]:
    if name in ("all_reduce", "reduce_scatter"):
        raise InputError(f"copy engines cannot reduce, so {name} has no traffic by DMA; take all_gather")
    return 1.0, 1.0


def _direct(name: str, ranks: int) -> tuple[float, float]:
    """Every rank loads its part from all peers, and stores its result in theirs."""
    if name == "reduce_scatter":
        return 1.0, 1 / ranks
    if name == "all_reduce":
        return 1.0 + 1 / ranks, 1.0
    return 1.0, 1.0


def _switched(name: str, ranks: int, registered: bool) -> tuple[float, float, float]:
    """Each way over the links a whole buffer and a part; staged buffers are copied in and out."""
    if name not in ("all_reduce", "all_gather", "reduce_scatter"):
        raise InputError(f"a switch does not carry out {name}; take all_reduce, all_gather or reduce_scatter")
    times = 1.0 if registered else 3.0
    return 1 + 1 / ranks, times, times


def workgroup_rate(fabric: Fabric, ranks: int, *, direct: bool = False) -> float:
    """What one workgroup moves over the links in one direction [bytes/s].

    For a staged ring, what the library's default count needs each to carry to fill the links; for direct kernels, the
    constant that the library plans with.
    """
    if direct and fabric.architecture in _DIRECT_RATE:
        return _DIRECT_RATE[fabric.architecture]
    return fabric.figure(ranks) / fabric.workgroups(ranks)


def reached(fabric: Fabric, ranks: int, workgroups: npt.ArrayLike, *, direct: bool = False) -> FloatArray:
    """The rate over the links that some number of workgroups reaches [bytes/s]: theirs together, up to the links'.

    The two limits meet softly: where they are equal, 84 % of each is reached.
    """
    together = np.asarray(workgroups, dtype=np.float64) * workgroup_rate(fabric, ranks, direct=direct)
    return np.asarray((together**-_SOFT + fabric.figure(ranks) ** -_SOFT) ** (-1 / _SOFT))


_SOFT = 4.0
