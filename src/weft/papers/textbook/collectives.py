"""Textbook costs of collectives and of parameter servers: a message takes a latency, and its bytes at a rate.

Real libraries switch between protocols and algorithms that these forms do not know: `weft.estimate` has their times,
`against_library` both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.errors import InputError, check_name, check_whole
from weft.core.units import Dimension, parse
from weft.estimate.answer import FloatArray
from weft.estimate.dispatch import estimate
from weft.estimate.target import target
from weft.graph import Collective
from weft.hardware import Described


@dataclass(frozen=True)
class Wire:
    """A link between ranks: `latency` of a message [s], `bandwidth` in each direction [bytes/s].

    >>> Wire.of("10 us", "100 GB/s").bandwidth
    100000000000.0
    """

    latency: float
    bandwidth: float

    @classmethod
    def of(cls, latency: str, bandwidth: str) -> Wire:
        """The link of two quantities as text; UnitError for anything else, InputError for a bandwidth of zero."""
        rate = parse(bandwidth, Dimension.BYTES_PER_SECOND)
        if rate <= 0:
            raise InputError(f"the bandwidth is {bandwidth}; give one above zero, like '100 GB/s'")
        return cls(parse(latency, Dimension.SECONDS), rate)


@dataclass(frozen=True)
class Form:
    """An algorithm's cost: the number of serial latencies, and the multiple of the bytes that pass a rank's link.

    Both are functions of the number of ranks. With `powers_of_two` it needs such a number. Additions take no time.
    """

    about: str
    latencies: Callable[[int], float]
    volumes: Callable[[int], float]
    powers_of_two: bool = False


def _rounds(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


FORMS: Mapping[str, Mapping[str, Form]] = {
    "broadcast": {
        "tree": Form("binomial tree", _rounds, _rounds),
        "ring": Form("scatter, then a ring's all-gather", lambda p: _rounds(p) + p - 1, lambda p: 2 * _share(p)),
    },
    "all_reduce": {
        "tree": Form("binomial trees: reduce, then broadcast", lambda p: 2 * _rounds(p), lambda p: 2 * _rounds(p)),
        "ring": Form("reduce-scatter, then all-gather on a ring", lambda p: 2 * (p - 1), lambda p: 2 * _share(p)),
        "doubling": Form("recursive doubling", _rounds, _rounds, powers_of_two=True),
        "halving": Form(
            "recursive halving and doubling (Rabenseifner)", lambda p: 2 * _rounds(p), lambda p: 2 * _share(p), True
        ),
    },
    "all_gather": {
        "ring": Form("ring", lambda p: p - 1, _share),
        "bruck": Form("Bruck", _rounds, _share),
    },
    "reduce_scatter": {
        "ring": Form("ring", lambda p: p - 1, _share),
        "halving": Form("recursive halving", _rounds, _share, powers_of_two=True),
    },
}
"""Costs by collective and algorithm, for bytes of the whole buffer (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005,
as in MPICH's sources; Chan and others, CCPE 19(13), 2007)."""


def textbook(collective: str, algorithm: str, bytes: Any, ranks: int, wire: Wire) -> FloatArray:
    """Return the textbook time of a collective of `bytes`, a number or an array [s].

    Raises UnknownNameError for an unknown collective or algorithm, InputError for ranks that it does not take.

    >>> round(float(textbook("all_reduce", "ring", 1e9, 8, Wire(0, 10e9))), 3)
    0.175
    """
    form = _form(collective, algorithm, ranks)
    return form.latencies(ranks) * wire.latency + form.volumes(ranks) * np.asarray(bytes) / wire.bandwidth


def _form(collective: str, algorithm: str, ranks: int) -> Form:
    check_name("collective", collective, FORMS)
    check_name(f"textbook algorithm of {collective}", algorithm, FORMS[collective])
    check_whole("ranks", ranks, 2, 8)
    form = FORMS[collective][algorithm]
    if form.powers_of_two and ranks & (ranks - 1):
        nearest = 1 << ranks.bit_length() - 1
        raise InputError(f"{form.about} needs a power of two of ranks, and there are {ranks}; give {nearest}")
    return form


def switch_point(collective: str, short: str, long: str, ranks: int, wire: Wire) -> float:
    """Bytes from which on the algorithm `long` takes less time than `short`; infinity if it never does, 0 if always.

    Raises what `textbook` raises.

    >>> f"{switch_point('all_reduce', 'tree', 'ring', 8, Wire.of('10 us', '100 GB/s')) / 1e6:.2f} MB"
    '1.88 MB'
    """
    first, second = (_form(collective, name, ranks) for name in (short, long))
    more = (second.latencies(ranks) - first.latencies(ranks)) * wire.latency
    saved = (first.volumes(ranks) - second.volumes(ranks)) / wire.bandwidth
    if saved <= 0:
        return math.inf if more > 0 or saved < 0 else 0.0
    return max(more / saved, 0.0)


def parameter_server(bytes: Any, workers: int, bandwidth: float, servers: int | None = 1) -> FloatArray:
    """Return the time for all workers to send gradients of `bytes` to parameter servers and read the weights [s].

    Each of `servers` holds an equal part and has a link of `bandwidth` [bytes/s]; so has each worker. With None the
    workers hold the parts themselves, each on its own link, as a ring all-reduce uses it. Gradients and weights share a
    server's link, one by one.

    >>> [float(parameter_server(1e9, 8, 10e9, servers)) for servers in (1, 8, None)]
    [1.6, 0.2, 0.175]
    """
    check_whole("workers", workers, 1, 8)
    if servers is None:
        return np.asarray(2 * np.asarray(bytes) * _share(workers) / bandwidth)
    check_whole("servers", servers, 1, 8)
    return np.asarray(2 * np.asarray(bytes) / bandwidth * max(workers / servers, 1.0))


@dataclass(frozen=True)
class Choices:
    """The fastest textbook algorithm of each size beside what the library's model chooses on a system.

    `wire` is the link that the textbook forms were given; `bytes`, `textbook_s` and `library_s` [s] have the shape
    (sizes,), `textbook` and `library` name the algorithms.
    """

    wire: Wire
    bytes: FloatArray
    textbook: tuple[str, ...]
    textbook_s: FloatArray
    library: tuple[str, ...]
    library_s: FloatArray


def against_library(collective: str, bytes: Sequence[float], ranks: int, system: Described) -> Choices:
    """Return what a textbook would choose for each size on a system's links, and what its library's model chooses.

    The textbook's bandwidth is the rate per GPU of the library's own cost model, of the network if the ranks are on
    several nodes. Its latency is the library's time of 8 bytes, divided by the messages of the algorithm with the
    fewest: the two agree at both ends and differ in what they know of protocols. Raises what `textbook` and
    `weft.estimate` raise.
    """
    check_name("collective", collective, FORMS.keys() - {"broadcast"})
    check_whole("ranks", ranks, 2, 8)
    aimed = target(system)
    sizes = np.asarray(bytes, dtype=np.float64)
    nodes = aimed.nodes(ranks)
    rate = aimed.fabric.nic if nodes > 1 else aimed.fabric.figure(ranks)
    fitting = [name for name, form in FORMS[collective].items() if not (form.powers_of_two and ranks & (ranks - 1))]
    smallest = float(estimate(Collective(collective, 8, ranks), system).seconds)
    fewest = min(FORMS[collective][name].latencies(ranks) for name in fitting)
    wire = Wire(smallest / fewest, rate)
    times = np.array([textbook(collective, name, sizes, ranks, wire) for name in fitting])
    found = estimate(Collective(collective, sizes, ranks), system)  # type: ignore[arg-type]  # arrays broadcast
    best = times.argmin(axis=0)
    return Choices(
        wire,
        sizes,
        tuple(fitting[at] for at in best),
        times.min(axis=0),
        tuple(np.broadcast_to(np.asarray(found.by), sizes.shape).tolist()),
        np.asarray(found.seconds),
    )
