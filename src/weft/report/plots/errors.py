"""Predictions against measurements: each row a point, with the bands that a reader asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from weft.report.plots.style import Picture, grid, picture, styled

_COLUMNS = 3
_INK = "#0072B2"
_BANDS = ((0.2, "#eeeeee"), (0.1, "#d8d8d8"))
_MANY = 1000  # points, from which each is drawn as small and faint as can still be seen
_WIDEST_ERROR = 1.0


class Cloud(Protocol):
    """Rows that share a picture: predicted and measured seconds, and each row's size in the unit of its label."""

    @property
    def title(self) -> str:
        """What the rows have in common."""

    @property
    def predicted(self) -> npt.NDArray[np.float64]:
        """Predicted times [s]."""

    @property
    def measured(self) -> npt.NDArray[np.float64]:
        """Measured times [s]."""

    @property
    def size(self) -> npt.NDArray[np.float64]:
        """What the error is drawn against."""

    @property
    def size_label(self) -> str:
        """What the size is, with its unit."""


@styled
def predicted_against_measured(clouds: Sequence[Cloud]) -> Picture:
    """Predicted against measured time, both logarithmic [us], with bands of 10 % and 20 %."""
    figure, axes = _grid(clouds, 2.6)
    for ax, cloud in zip(axes, clouds, strict=False):
        measured, predicted = cloud.measured * 1e6, cloud.predicted * 1e6
        ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
        ends *= np.array([0.7, 1.4])
        for width, color in _BANDS:
            ax.fill_between(ends, ends * (1 - width), ends * (1 + width), color=color, linewidth=0)
        ax.plot(ends, ends, color="#444444", linewidth=0.6)
        ax.scatter(measured, predicted, **_mark(cloud))
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        ax.set_title(_titled(cloud), fontsize=8)
    figure.supxlabel("measured [µs]")
    figure.supylabel("predicted [µs]")
    return figure


@styled
def error_against_size(clouds: Sequence[Cloud]) -> Picture:
    """Error of each prediction [%] against the row's size, with bands of 10 % and 20 %."""
    figure, axes = _grid(clouds, 2.1)
    for ax, cloud in zip(axes, clouds, strict=False):
        error = cloud.predicted / cloud.measured - 1
        for width, color in _BANDS:
            ax.axhspan(-width, width, color=color, linewidth=0)
        ax.scatter(cloud.size, np.clip(error, -_WIDEST_ERROR, _WIDEST_ERROR), **_mark(cloud))
        ax.set_xscale("log")
        ax.set_ylim(-1.05 * _widest(error), 1.05 * _widest(error))
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_xlabel(cloud.size_label, fontsize=8)
        ax.set_title(_titled(cloud), fontsize=8)
        grid(ax)
    figure.supylabel("predicted / measured - 1")
    return figure


def _mark(cloud: Cloud) -> dict[str, Any]:
    """How a point looks: large and dark where there are few; drawn as pixels, or the file would be large."""
    few = max(0.0, 1 - len(cloud.measured) / _MANY)
    return {"s": 2 + 8 * few, "alpha": 0.35 + 0.4 * few, "linewidths": 0, "color": _INK, "rasterized": True}


def _widest(error: npt.NDArray[np.float64]) -> float:
    return float(np.clip(np.abs(error).max(), 0.25, _WIDEST_ERROR))


def _titled(cloud: Cloud) -> str:
    error = np.abs(cloud.predicted / cloud.measured - 1).mean()
    return f"{cloud.title}\n{len(cloud.measured):,} rows, mean {error:.1%}"


def _grid(clouds: Sequence[Cloud], height: float) -> tuple[Picture, list[Axes]]:
    columns = min(_COLUMNS, len(clouds))
    rows = math.ceil(len(clouds) / columns)
    figure = picture(3.2 * columns, height * rows + 0.4)
    axes = list(np.atleast_1d(np.asarray(figure.subplots(rows, columns))).flat)
    for ax in axes[len(clouds) :]:
        ax.set_axis_off()
    return figure, axes
