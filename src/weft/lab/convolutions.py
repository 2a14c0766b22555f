"""Measured convolutions: every pass, by the algorithm that the library chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from weft.core.options import SHORT
from weft.estimate import Harness, estimate
from weft.graph.convolution import Convolution
from weft.hardware import Gpu
from weft.lab.closed_forms import ClosedForm, Columns
from weft.lab.seen import NO
from weft.lab.tables import FloatArray

ALGORITHMS: Mapping[str, str] = {
    "GEMM": "gemm",
    "IMPLICIT_GEMM": "gemm",
    "IMPLICIT_PRECOMP_GEMM": "gemm",
    "WINOGRAD": "winograd",
    "WINOGRAD_NONFUSED": "winograd_nonfused",
    "FFT": "fft",
    "FFT_TILING": "fft",
    "ConvolutionFwdAlgoDirect": "gemm",
    "ConvolutionFwdAlgoGEMM": "gemm",
    "ConvolutionFwdAlgoWinograd": "winograd",
    "ConvolutionFwdAlgoFFT": "fft",
}
"""What the libraries call their algorithms; a backward pass, whose own is not stated, counts as the forward pass's."""
_DIMENSIONS = {
    "batch": "batch",
    "channels": "in_channels",
    "filters": "out_channels",
    "height": "height",
    "width": "width",
    "window": "filter_height",
    "window_width": "filter_width",
    "stride": "stride_height",
    "stride_width": "stride_width",
    "padding": "pad_height",
    "padding_width": "pad_width",
}
_SAVING = 4.0
"""Largest factor by which an algorithm saves products: F(4 x 4, 3 x 3)."""
_UNKNOWN = f"Weft knows no such algorithm; it knows {', '.join(ALGORITHMS)}"


@dataclass(frozen=True)
class _Case:
    """Rows of one data type, algorithm, pass and way of timing."""

    dtype: str
    algorithm: str
    computes: str
    hosted: bool

    def _op(self, rows: Columns) -> Convolution:
        sizes: dict[str, Any] = {name: rows[column] for name, column in _DIMENSIONS.items()}
        how: dict[str, Any] = {"algorithm": self.algorithm, "computes": self.computes}
        return Convolution(**sizes, dtype=self.dtype, **how)

    def seconds(self, rows: Columns, target: Gpu) -> FloatArray:
        """Times on a GPU [s]."""
        harness = Harness(timed="host" if self.hosted else "device", rotation=1.0)
        return np.asarray(estimate(self._op(rows), target, SHORT, harness).seconds)

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the products that the algorithm leaves, at the highest clock."""
        rate = max(gpu.matrix_rate(self.dtype, clock) for clock in ("peak", "boost"))
        saving = {"gemm": 1.0, "fft": np.inf}.get(self.algorithm, _SAVING)
        # The algorithm of a backward pass is not stated.
        return np.asarray(self._op(rows).flops / rate / (saving if self.computes == "forward" else np.inf))


def _algorithms(rows: pd.DataFrame) -> pd.Series[str]:
    """The algorithm of each row; MIOpen's Winograd of other windows and strides counts as a direct product."""
    plain = (rows["filter_height"] == 3) & (rows["filter_width"] == 3)
    plain &= (rows["stride_height"] == 1) & (rows["stride_width"] == 1)
    named = rows["forward_algorithm"].map(ALGORITHMS)
    return named.where((named != "winograd") | plain, "gemm")


def _cases(rows: pd.DataFrame) -> Iterator[_Case]:
    return map(_Case, rows["dtype"], _algorithms(rows), rows["pass"], rows["source"].str.contains("NeuSight"))


CONVOLUTIONS = ClosedForm(
    kind="conv",
    cases=_cases,
    labels=lambda rows, gpu, target: {
        "dtype": rows["dtype"],
        "algorithm": _algorithms(rows),
        "pass": rows["pass"],
        "seen": NO,
    },
    checks=lambda checked: [
        checked.by_value(~checked.rows["forward_algorithm"].isin([*ALGORITHMS]), "forward_algorithm", _UNKNOWN)
    ],
    multiplies=True,
    passes=True,
)
"""Convolutions on one GPU; nothing of their closed form is fitted to a machine."""
