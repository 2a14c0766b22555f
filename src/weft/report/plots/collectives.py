"""Predicted collectives: time and bandwidth against size, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from weft.estimate.answer import FloatArray
from weft.report.plots.style import Look, Picture, grid, legend, picture, styled
from weft.report.predictions import Predicted
from weft.units import format_bytes

PARTS: Mapping[str, Look] = {
    "launch": Look("launch", "#999999"),
    "host": Look("host", "#000000"),
    "latency": Look("latency of the steps", "#CC79A7", "xxxx"),
    "link": Look("links of the node", "#0072B2"),
    "network": Look("network between nodes", "#56B4E9", ".."),
    "copy": Look("copies on the GPU", "#E69F00", "////"),
}
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = "osD^vP*X"


def _sizes(curve: Predicted) -> FloatArray:
    """Sizes of the whole buffer [bytes]."""
    return np.asarray(curve.columns["bytes"], dtype=np.float64)


@styled
def collective_times(curves: Sequence[Predicted]) -> Picture:
    """Time [us] and bus bandwidth [GB/s] of each size, a line for each system."""
    figure = picture(10, 4.2)
    times, rates = figure.subplots(1, 2)
    for index, curve in enumerate(curves):
        style = {
            "color": _COLORS[index % len(_COLORS)],
            "marker": _MARKERS[index % len(_MARKERS)],
            "markersize": 4,
        }
        order = np.argsort(_sizes(curve))
        size = _sizes(curve)[order]
        times.plot(size, 1e6 * curve.prediction.seconds[order], label=curve.machine, **style)
        rates.plot(size, curve.rates["busbw_gbs"][order], label=curve.machine, **style)
    times.set_yscale("log")
    times.yaxis.set_major_formatter(_plain)
    times.yaxis.set_minor_formatter(NullFormatter())
    times.set_ylabel("time [µs]")
    times.set_title("How long does it take?")
    rates.set_ylim(bottom=0)
    rates.set_ylabel("bus bandwidth [GB/s]")
    rates.set_title("Which bandwidth does it reach?")
    for ax in (times, rates):
        _size_axis(ax)
    rates.legend()
    return figure


@styled
def collective_parts(curve: Predicted) -> Picture:
    """Where the time of each size goes, as shares [%]."""
    figure = picture(10, 3.4)
    ax = figure.subplots()
    order = np.argsort(_sizes(curve))
    size, seconds = _sizes(curve)[order], curve.prediction.seconds[order]
    names = [name for name, part in curve.prediction.parts.items() if np.any(part > 0)]
    looks = [PARTS.get(name, Look(name, "#F0E442")) for name in names]
    shares = [curve.prediction.parts[name][order] / seconds for name in names]
    places, bottom = np.arange(size.size), np.zeros(size.size)
    for look, share in zip(looks, shares, strict=True):
        ax.bar(places, share, bottom=bottom, color=look.color, hatch=look.hatch, edgecolor="#444444", width=0.8)
        bottom = bottom + share
    every = max(1, -(-size.size // 14))
    ax.set_xticks(places[::every], [format_bytes(value, digits=3) for value in size[::every]])
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set_ylim(0, 1)
    ax.set_xlabel("size of the buffer")
    ax.set_ylabel("share of the time [%]")
    ax.set_title(f"Where does the time go, on {curve.machine}?")
    legend(figure, looks, len(looks))
    return figure


@FuncFormatter
def _plain(value: float, _: int) -> str:
    """A tick as a plain number, 1000 instead of a power of ten."""
    return f"{value:,.10g}"


def _size_axis(ax: Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value, digits=3)))
    ax.tick_params(axis="x", rotation=30)
    ax.set_xlabel("size of the buffer")
    grid(ax)
