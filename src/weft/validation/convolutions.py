"""Measured convolutions as subjects: every pass, by the algorithm that the library chose, one subject per GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.estimate import Harness, estimate
from weft.graph.convolution import Convolution
from weft.hardware import Gpu
from weft.validation.checks import Checked, predicted_by
from weft.validation.gemms import changed
from weft.validation.machines import Machines
from weft.validation.passes import believable_passes, subjects_by_gpu
from weft.validation.problems import Problem
from weft.validation.seen import NO
from weft.validation.subjects import Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

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
    "batch": "batch", "channels": "in_channels", "filters": "out_channels", "height": "height", "width": "width",
    "window": "filter_height", "window_width": "filter_width", "stride": "stride_height",
    "stride_width": "stride_width", "padding": "pad_height", "padding_width": "pad_width",
}  # fmt: skip
_SAVING = 4.0
"""Largest factor by which an algorithm saves products: F(4 x 4, 3 x 3)."""


@dataclass(frozen=True, eq=False)
class _Case:
    """Rows of one data type, algorithm, pass and way of timing."""

    positions: IntArray
    dtype: str
    algorithm: str
    computes: str
    hosted: bool

    def _made(self, rows: Rows) -> Convolution:
        sizes: dict[str, Any] = {name: rows[column] for name, column in _DIMENSIONS.items()}
        how: dict[str, Any] = {"algorithm": self.algorithm, "computes": self.computes}
        return Convolution(**sizes, dtype=self.dtype, **how)

    def seconds(self, rows: Rows, on: Gpu) -> FloatArray:
        """Times on a GPU [s]."""
        harness = Harness(timed="host" if self.hosted else "device", rotation=1.0)
        return np.asarray(estimate(self._made(rows), on, harness=harness).seconds)

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the products that the algorithm leaves, at the highest clock."""
        rate = max(gpu.matrix_rate(self.dtype, clock) for clock in ("peak", "boost"))
        saving = {"gemm": 1.0, "fft": np.inf}.get(self.algorithm, _SAVING)
        # The algorithm of a backward pass is not stated.
        return np.asarray(self._made(rows).flops / rate / (saving if self.computes == "forward" else np.inf))


def _algorithms(rows: Rows) -> list[str]:
    """The algorithm of each row; MIOpen's Winograd of other windows and strides counts as a direct product."""
    plain = (rows["filter_height"] == 3) & (rows["filter_width"] == 3)
    plain &= (rows["stride_height"] == 1) & (rows["stride_width"] == 1)
    named = (ALGORITHMS[name] for name in rows["forward_algorithm"].tolist())
    return [one if one != "winograd" or as_is else "gemm" for one, as_is in zip(named, plain.tolist(), strict=True)]


def _cases(rows: Rows) -> tuple[_Case, ...]:
    hosted = ["NeuSight" in source for source in rows["source"].tolist()]
    columns = (rows["dtype"].tolist(), _algorithms(rows), rows["pass"].tolist(), hosted)
    keys = zip(*columns, strict=True)
    return tuple(_Case(positions, *key) for key, positions in positions_by(keys).items())


def convolution_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The passes of a file of convolutions by GPU, without impossible ones and algorithms that Weft does not know."""
    checked.drop(_unknown_algorithms(checked.rows))
    return subjects_by_gpu(checked, machines, lambda rows, gpu: believable_passes(rows, _cases, gpu, gpu), _subject)


def _unknown_algorithms(rows: Rows) -> Iterator[Problem]:
    algorithms = rows["forward_algorithm"]
    for name in np.unique(algorithms[~np.isin(algorithms, [*ALGORITHMS])]).tolist():
        rule = f"Weft knows no such algorithm; it knows {', '.join(ALGORITHMS)}"
        yield Problem(rows.file, rows.lines(algorithms == name), "forward_algorithm", name, rule)


def _subject(rows: Rows, gpu: Gpu, machines: Machines) -> Subject:
    return Subject(
        kind="conv",
        machine=gpu.name,
        rows=rows,
        measured=rows.seconds,
        labels={
            "gpu": machines.labels(gpu, rows["gpu"]),
            "dtype": rows["dtype"],
            "algorithm": np.array(_algorithms(rows)),
            "pass": rows["pass"],
            "seen": np.full(len(rows), NO),
        },
        predict=lambda some, values: predicted_by(_cases(some), some, changed(gpu, values)),
        vendor=gpu.vendor,
    )
