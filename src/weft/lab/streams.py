"""Streams of memory requests on one channel: the engine's DRAM beside simulators that are trusted for it.

A folder of measurements may hold `dram/*.csv` or `dram/*.csv.gz`: a line per request in the order of arrival, with its
time [ns], kind (0 read, 1 write), stream, address within the channel and bytes, then one column per simulator with the
time at which the last data of the request had passed the bus [ns].
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.files import LARGEST_UNPACKED, read_text
from weft.hardware import Gpu
from weft.lab.kinds import RowKind
from weft.lab.problems import Problem
from weft.lab.tables import Measurements
from weft.overlaps.lower.machine import default_request_bytes
from weft.simulate.channel import IntArray, Requests, one_channel, replay_requests

COLUMNS = ("at_ns", "kind", "stream", "address", "bytes")
"""What a file says of each request; any other column is a simulator."""
FINEST = 32
"""Bytes of a burst: the pieces that other simulators are given."""
FS_PER_NS = 10**6
QUANTITIES = ("bandwidth", "read latency")
"""What is compared: bytes over the time until the last data [bytes/s], and the mean over all reads [s]."""
_TIMING = {"rrd": 3, "rcd": 12, "ras": 28, "rp": 12, "rc": 40, "cl": 12, "wl": 2, "cdlr": 3, "wr": 10, "rtp": 3}


def peers_channel() -> Gpu:
    """One channel of `t3-paper` as the other simulators were set up: 1 GHz, no refresh, a queue of 128 bursts.

    Delays are those of GPGPU-Sim's QV100 configuration for 850 MHz, in clocks of 1 GHz.
    """
    timing = {f"memory.timing.{name}": f"{ns} ns" for name, ns in _TIMING.items()}
    return one_channel(hardware.gpu("t3-paper").replace({**timing, "memory.queue_entries": 128}))


@dataclass(frozen=True)
class Stream:
    """Requests to one channel, and when each simulator had served them [fs], by its name."""

    file: str
    requests: Requests
    peers: Mapping[str, IntArray]

    def figures(self, done: IntArray) -> tuple[float, float]:
        """Bandwidth [bytes/s] and mean read latency [s] (NaN: no reads) if request i was served by `done[i]` [fs]."""
        reads = self.requests.kind == 0
        latency = (done - self.requests.at)[reads].mean() * 1e-15 if reads.any() else float("nan")
        return float(self.requests.bytes.sum() / (done.max() * 1e-15)), float(latency)

    def simulated(self, gpu: Gpu, piece: int) -> IntArray:
        """When the engine has served each request [fs], if it comes in pieces of at most `piece` bytes."""
        pieces, of = self.requests.cut(piece)
        done = np.zeros(len(self.requests.at), dtype=np.int64)
        np.maximum.at(done, of, replay_requests(pieces, gpu))
        return done


def read_stream(file: Path) -> Stream | Problem:
    """The stream of a CSV file, plain or compressed by gzip, or what is wrong with it."""
    try:
        text = read_text(file, LARGEST_UNPACKED)
        table: Any = np.genfromtxt(io.StringIO(text), delimiter=",", names=True, dtype=np.int64)
    except (InputError, ValueError) as error:
        return _problem(file, f"this is no table of whole numbers ({str(error).splitlines()[0]})")
    names = table.dtype.names or ()
    if missing := [name for name in COLUMNS if name not in names]:
        return _problem(file, f"this stream of requests lacks {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
    table = np.atleast_1d(table)
    at, kind, stream, address, bytes_ = (table[name] for name in COLUMNS)
    wrong = {
        "at_ns must be zero or more, in the order of arrival": (np.diff(at, prepend=0) < 0),
        "kind must be 0 (read) or 1 (write)": (kind < 0) | (kind > 1),
        "stream must be 0 (compute) or 1 (communication)": (stream < 0) | (stream > 1),
        "address must be zero or more": address < 0,
        "bytes must be above zero": bytes_ <= 0,
    }
    for rule, rows in wrong.items():
        if rows.any():
            return Problem(file.name, tuple((np.flatnonzero(rows) + 2).tolist()), "", "", f"{rule}; mend the file")
    peers = {name: table[name] * FS_PER_NS for name in names if name not in COLUMNS}
    return Stream(file.name, Requests(at * FS_PER_NS, kind, stream, address, bytes_), peers)


def _problem(file: Path, rule: str) -> Problem:
    return Problem(file.name, (), "", "", rule)


def stream_files(place: Path) -> list[Path]:
    """The streams of requests in a folder of measurements."""
    return sorted(place.glob("dram/*.csv*"))


def read_streams(place: Path) -> list[Measurements]:
    """Every stream of a folder: a row for each simulator, size of requests and quantity that it puts to the test."""
    return [_compare_stream(file, read_stream(file)) for file in stream_files(place)]


def _compare_stream(file: Path, stream: Stream | Problem) -> Measurements:
    if isinstance(stream, Problem):
        return Measurements(None, file.name, pd.DataFrame(), [stream])
    rows = [
        (peer, size, quantity, value)
        for peer, done in stream.peers.items()
        for size in _PIECES
        for quantity, value in zip(QUANTITIES, stream.figures(done), strict=True)
        if not np.isnan(value)
    ]
    table = pd.DataFrame(rows, range(1, len(rows) + 1), ["peer", "requests", "quantity", "theirs"])
    name = file.name.split(".csv")[0]
    return Measurements("dram", file.name, table.assign(stream=name, measured=table["theirs"], _path=str(file)))


_PIECES = ("bursts", "default")
"""Sizes of requests: the bursts that other simulators are given, and the engine's default."""


@lru_cache(maxsize=64)
def _simulate_stream(path: str, requests: str) -> Mapping[str, float]:
    """Return what the engine reaches of a stream. No public call takes single requests: the channel is the engine's
    own.
    """
    stream, gpu = read_stream(Path(path)), peers_channel()
    assert isinstance(stream, Stream)
    piece = FINEST if requests == "bursts" else default_request_bytes(gpu)
    return dict(zip(QUANTITIES, stream.figures(stream.simulated(gpu, piece)), strict=True))


DRAM = RowKind(
    kind="dram",
    by=("_path", "requests", "quantity"),
    query=lambda *cells: cells,
    call=lambda rows, machine, path, requests, quantity: _simulate_stream(path, requests)[quantity],
    column="stream",
    labels=lambda rows, machine, _: rows[["stream", "peer", "requests", "quantity"]],
    blamed="requests",
)
"""Streams of memory requests on one channel."""
