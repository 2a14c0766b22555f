"""Interference in memory: how long loads take, what requests find in a channel's queues, and which stream delays which.

Each memory channel has two streams, "compute" and "communication"; an arbiter admits requests of both to one command
queue. A run records this where its options say `interference=True`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.engine import layout as y
from weft.engine.state import Machine, Table

Ints = npt.NDArray[np.int64]
STREAMS = ("compute", "communication")
_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Percentiles:
    """A distribution of `count` values: mean, median, 90th and 99th percentile, and largest value.

    All but `count` and `max` are within 2.2 %: values were counted in classes 4.4 % wide.
    """

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True)
class StreamInterference:
    """Latencies, queues and delays of one stream of a GPU's memory channels.

    `load_latency_s` is what kernels see: from the issue of an iteration's loads to its last data, caches included [s].
    `read_latency_s` is that of reads of the DRAM: from the arrival at the channel to the last data on its bus [s].
    `own_waiting_bytes`, `other_waiting_bytes` and `queue_bytes` are what an arriving request finds: bytes that wait in
    its own stream, in the other stream, and in the command queue. `ahead_bytes` is the bytes of the other stream that
    the channel serves between a request's arrival and its service.

    `requests` and `served_bytes` count what the channels served for the stream. `ahead_sum_bytes` is the sum of
    `ahead_bytes` over all requests: a byte that delays many requests counts as often. `delaying_bytes` counts the bytes
    of the other stream served while at least one request of this one waited, each once.
    """

    gpu: int
    stream: str
    requests: int
    served_bytes: int
    ahead_sum_bytes: int
    delaying_bytes: int
    load_latency_s: Percentiles
    read_latency_s: Percentiles
    ahead_bytes: Percentiles
    own_waiting_bytes: Percentiles
    other_waiting_bytes: Percentiles
    queue_bytes: Percentiles


@dataclass(frozen=True)
class MemoryInterference:
    """What the two streams of every GPU's memory channels cost each other.

    `streams` holds both streams of each GPU. `channel_bytes_per_s` is the rate of one of the `channels` channels of a
    GPU [B/s]. `load_mean_fs` and `load_p99_fs` are the mean and the 99th percentile of the latency of loads by when
    they were issued, by stream; arrays of shape (gpus, bins) over the bins of the timeline's `series`, 0 where no load
    was issued [fs]. `misses` counts the requests for a GEMM's operands that missed in the last-level cache, by the
    position of the chunk of the output that they were for, on all GPUs.
    """

    streams: tuple[StreamInterference, ...]
    channels: int
    channel_bytes_per_s: float
    misses: tuple[int, ...]
    load_mean_fs: Mapping[str, Ints]
    load_p99_fs: Mapping[str, Ints]

    def stream(self, name: str, gpu: int = 0) -> StreamInterference:
        """Return the figures of a stream, "compute" or "communication", on a GPU."""
        return next(one for one in self.streams if one.stream == name and one.gpu == gpu)

    def mean_delay(self, one: StreamInterference) -> float:
        """Return the mean time [s] that a request waited while the channel served the other stream."""
        return one.ahead_sum_bytes / max(one.requests, 1) / self.channel_bytes_per_s

    def delay_of(self, one: StreamInterference) -> float:
        """Return the time [s], mean over channels, that a stream waited while its channel served the other stream."""
        return one.delaying_bytes / self.channels / self.channel_bytes_per_s

    def without_series(self) -> MemoryInterference:
        """Return the same without the latencies over time."""
        return replace(self, load_mean_fs={}, load_p99_fs={})

    def to_dict(self) -> dict[str, Any]:
        """Return every stream's figures, and misses by chunk, as plain data; times [s]."""
        streams = [
            {
                **{name: vars(value) if isinstance(value, Percentiles) else value for name, value in vars(one).items()},
                "mean_delay_s": self.mean_delay(one),
                "delayed_s": self.delay_of(one),
            }
            for one in self.streams
        ]
        return {"streams": streams, "misses": list(self.misses)}


def read_interference(m: Machine, bins: int) -> MemoryInterference:
    """Return the interference that a run recorded, with series of `bins` bins."""
    channels = int(m.shape[y.SIZE_CHANNELS])
    loads = m.load_series[:, :, :bins]
    return MemoryInterference(
        streams=tuple(_stream(m, g, at) for g in range(len(m.stream)) for at in range(len(STREAMS))),
        channels=channels,
        channel_bytes_per_s=64e15 / int(m.gpu[0, y.GPU_PEAK64]) / channels,
        misses=tuple(m.misses.sum(axis=0)[: m.work[:, :, y.WORK_REGION].max(initial=y.NONE) + 1].tolist()),
        load_mean_fs={name: _means(loads[:, at]) for at, name in enumerate(STREAMS)},
        load_p99_fs={name: _percentile_classes(loads[:, at], 0.99) for at, name in enumerate(STREAMS)},
    )


def _stream(m: Machine, g: int, at: int) -> StreamInterference:
    counted, histogram = m.stream[g, at].tolist(), m.histogram[g, at]
    return StreamInterference(
        gpu=g,
        stream=STREAMS[at],
        requests=counted[y.STREAM_REQUESTS],
        served_bytes=counted[y.STREAM_BYTES],
        ahead_sum_bytes=counted[y.STREAM_AHEAD],
        delaying_bytes=counted[y.STREAM_DELAYING],
        load_latency_s=_percentiles(histogram[y.HISTOGRAM_LOAD], 1e-9, 1e-15),
        read_latency_s=_percentiles(histogram[y.HISTOGRAM_READ], 1e-9, 1e-15),
        ahead_bytes=_percentiles(histogram[y.HISTOGRAM_AHEAD]),
        own_waiting_bytes=_percentiles(histogram[y.HISTOGRAM_OWN]),
        other_waiting_bytes=_percentiles(histogram[y.HISTOGRAM_OTHER]),
        queue_bytes=_percentiles(histogram[y.HISTOGRAM_QUEUE]),
    )


def _percentiles(row: Table, unit: float = 1.0, exact: float = 1.0) -> Percentiles:
    """Return the distribution in a row of `histogram`: classes begin with `unit`, the largest value is in `exact`."""
    counts, most = row[: y.CLASSES], float(row[y.CLASSES]) * exact
    total = int(counts.sum())
    if total == 0:
        return Percentiles()
    reached, middle = np.cumsum(counts), _middles() * unit
    p50, p90, p99 = (min(float(middle[np.searchsorted(reached, share * total)]), most) for share in _SHARES)
    return Percentiles(total, min(float(counts @ middle) / total, most), p50, p90, p99, most)


def _middles() -> npt.NDArray[np.float64]:
    """Return the middle of every class, in units; 0 for values below one unit."""
    middles: npt.NDArray[np.float64] = 2 ** ((np.arange(y.CLASSES) - 0.5) / y.CLASSES_PER_DOUBLING)
    middles[0] = 0
    return middles


def _means(counts: Table) -> Ints:
    """The mean of every row of counts by class of time [fs]; 0 for rows without any."""
    means = counts @ _middles() / np.maximum(counts.sum(axis=-1), 1)
    return np.asarray(np.rint(means * y.UNIT_TIME), dtype=np.int64)


def _percentile_classes(counts: Table, share: float) -> Ints:
    """The value below which a `share` of every row of counts by class of time lies [fs]; 0 for rows without any."""
    totals = counts.sum(axis=-1, keepdims=True)
    at = (np.cumsum(counts, axis=-1) < share * totals).sum(axis=-1)
    values = _middles()[np.minimum(at, y.CLASSES - 1)] * (totals[..., 0] > 0)
    return np.asarray(np.rint(values * y.UNIT_TIME), dtype=np.int64)
