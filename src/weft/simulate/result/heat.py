"""What every memory channel, or every bank of it, did over time: load, efficiency, row hits, and how even the load was.

A run records this where its options say `heatmap="channel"` or `heatmap="bank"`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.engine import layout as y
from weft.engine.state import Machine

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Heat:
    """The load of every memory channel of a run, or of every bank, in bins of `bin_s` seconds.

    `of` is "channel" or "bank". The arrays have the shape (gpus, channels, banks, bins), with one bank if channels were
    recorded: bytes `read` and `written`, updates near memory among the latter; `requests`; `activates`, the rows that
    were opened for them; `busy_fs`, the time of their data on the bus; `pending_fs`, that with requests in the command
    queue or on the bus [fs]. `end_s` is the end of the run on the clock of the bins [s].
    """

    of: str
    bin_s: float
    end_s: float
    read: Ints
    written: Ints
    requests: Ints
    activates: Ints
    busy_fs: Ints
    pending_fs: Ints

    @property
    def moved_bytes(self) -> Ints:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def utilization(self) -> Floats:
        """The share of each bin in which data was on the bus."""
        return self.busy_fs / (self.bin_s * 1e15)

    @property
    def efficiency(self) -> Floats:
        """Of the time with requests, the share with data on the bus; NaN where there was none."""
        return _share(self.busy_fs, self.pending_fs)

    @property
    def row_hits(self) -> Floats:
        """The share of requests that found their row open; NaN where there was none."""
        return 1 - _share(np.minimum(self.activates, self.requests), self.requests)

    @property
    def camping(self) -> float:
        """The camping index: bytes of the most loaded channel (or bank) over the mean, of the whole run; 1 is even."""
        return _camping(self.moved_bytes.sum(axis=-1).reshape(len(self.read), -1))

    def window(self, start_s: float, end_s: float) -> Heat:
        """The heat of the bins that begin in a window of time [s], at least one."""
        first = min(int(start_s / self.bin_s), self.read.shape[-1] - 1)
        last = max(int(np.ceil(end_s / self.bin_s)), first + 1)
        arrays = ("read", "written", "requests", "activates", "busy_fs", "pending_fs")
        cut = {name: getattr(self, name)[..., first:last] for name in arrays}
        return replace(self, end_s=(last - first) * self.bin_s, **cut)

    def to_dict(self) -> dict[str, Any]:
        """The whole run's figures, and every channel's (or bank's), as plain data."""
        moved, busy, pending = (a.sum(axis=-1) for a in (self.moved_bytes, self.busy_fs, self.pending_fs))
        hits = 1 - _share(np.minimum(self.activates, self.requests).sum(axis=-1), self.requests.sum(axis=-1))
        return {
            "of": self.of,
            "camping": self.camping,
            "bin_s": self.bin_s,
            "bytes": moved.tolist(),
            "utilization": (busy / (self.end_s * 1e15)).tolist(),
            "efficiency": _plain(_share(busy, pending)),
            "row_hits": _plain(hits),
            "bytes_over_time": self.moved_bytes.sum(axis=(0, 2)).tolist(),
        }


def recorded_heat(m: Machine, end_fs: int) -> Heat:
    """Return the heat that a run recorded until `end_fs`."""
    gpus, width = int(m.shape[y.SIZE_GPUS]), int(m.clock[y.CLOCK_HEAT_BIN])
    of = "bank" if len(m.heat) == len(m.bank) else "channel"
    used = min(max(-(-end_fs // width), 1), m.heat.shape[1])
    last = int(np.flatnonzero(m.heat.any(axis=(0, 2)))[-1]) + 1 if m.heat.any() else 1
    table = m.heat[:, : max(used, last)].reshape(
        gpus, int(m.shape[y.SIZE_CHANNELS]), -1, max(used, last), y.HEAT_COLUMNS
    )
    read, written, requests, activates, busy, pending = (table[..., k].copy() for k in range(y.HEAT_COLUMNS))
    return Heat(of, width * 1e-15, end_fs * 1e-15, read, written, requests, activates, busy, pending)


def _share(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> Floats:
    out: Floats = np.full(np.shape(part), np.nan)
    np.divide(part, whole, out=out, where=np.asarray(whole) > 0)
    return out


def _camping(loads: npt.NDArray[Any]) -> float:
    """Return the largest over mean load of every GPU, the mean of those that moved anything; 1 if nothing moved."""
    loads = loads[loads.sum(axis=1) > 0]
    return float((loads.max(axis=1) / loads.mean(axis=1)).mean()) if len(loads) else 1.0


def _plain(values: Floats) -> Any:
    """Nested lists with None for what is not a number."""
    shown = values.astype(object)
    shown[np.isnan(values)] = None
    return shown.tolist()
