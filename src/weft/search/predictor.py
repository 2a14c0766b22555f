"""How many queued GEMMs to run together, told from what is known as they are queued: a logistic regression.

GOLDYLOC (arXiv:2409.02227) puts such a predictor into the command processor; its features and degrees are not
published in detail, so these are Weft's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling, gemm_kernel
from weft.lower.fit import occupancy
from weft.search.degree import Judged, Kernels, Queue

FEATURES = (
    "log2 M",
    "log2 N",
    "log2 K",
    "log2 workgroups",
    "occupancy",
    "waves",
    "log2 FLOP per byte",
    "log2 GEMMs queued",
)
"""What the predictor sees: means over the queued GEMMs, with the kernels that are fastest alone."""
STRENGTH = 1.0
"""The inverse strength of the regularization (scikit-learn's own default)."""
Features = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """A judged queue to learn from: its features, and the degree that was best."""

    features: tuple[float, ...]
    degree: int


@dataclass(frozen=True)
class Predictor:
    """Scaled features times `coefficients` plus `intercepts`: the largest score names the degree.

    `mean` and `scale` are of each feature, `coefficients` has a row for each of `degrees`.
    """

    degrees: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]
    intercepts: tuple[float, ...]

    def choose(self, features: Sequence[float], allowed: Iterable[int]) -> int:
        """The degree of the largest score; if it is not allowed, the next below that is.

        Where fewer than two batches of it are queued, all run together: a small rest would have the GPU to itself.
        """
        scaled = (np.asarray(features) - self.mean) / self.scale
        scores = np.asarray(self.coefficients) @ scaled + self.intercepts
        wanted = self.degrees[int(np.argmax(scores))]
        known = tuple(allowed)
        degree = max((one for one in known if one <= wanted), default=min(known))
        return max(known) if degree > 1 and max(known) < 2 * degree else degree

    def record(self) -> dict[str, Any]:
        """The predictor as plain data for JSON."""
        return {
            "features": list(FEATURES),
            "degrees": list(self.degrees),
            "mean": list(self.mean),
            "scale": list(self.scale),
            "coefficients": [list(row) for row in self.coefficients],
            "intercepts": list(self.intercepts),
        }


def features(queue: Queue, kernels: Kernels, gpu: Gpu) -> tuple[float, ...]:
    """What is known of a queue before anything of it runs, in the order of `FEATURES`."""
    each = [_of_gemm(gemm, kernels[gemm].isolated, gpu) for gemm in queue.gemms]
    return (*(fmean(column) for column in zip(*each, strict=True)), log2(len(queue.gemms)))


def _of_gemm(gemm: Gemm, tiling: GemmTiling, gpu: Gpu) -> tuple[float, ...]:
    kernel = gemm_kernel(gemm, gpu, tiling)
    held = occupancy(kernel, gpu)
    waves = kernel.workgroups / (gpu.compute.compute_units * held)
    return (
        log2(gemm.m),
        log2(gemm.n),
        log2(gemm.k),
        log2(kernel.workgroups),
        float(held),
        waves,
        log2(gemm.flops / gemm.least_bytes),
    )


def example(judged: Judged, kernels: Kernels, gpu: Gpu) -> Example:
    """What a judged queue teaches."""
    return Example(features(judged.queue, kernels, gpu), judged.best_degree)


def train(examples: Sequence[Example]) -> Predictor:
    """A predictor that has seen the examples; InputError without any."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if not examples:
        raise InputError("there is nothing to learn from; judge some queues of GEMMs first")
    seen = np.array([one.features for one in examples])
    degrees = np.array([one.degree for one in examples])
    if len(set(degrees)) == 1:  # nothing to tell apart
        width = seen.shape[1]
        return Predictor((int(degrees[0]),), (0.0,) * width, (1.0,) * width, ((0.0,) * width,), (0.0,))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=1000))
    model.fit(seen, degrees)
    scaler, logistic = model[0], model[1]
    return _linear(scaler, logistic)


def _linear(scaler: Any, logistic: Any) -> Predictor:
    """The fitted pipeline as numbers: of two classes, scikit-learn keeps the second one's scores only."""
    rows, intercepts = logistic.coef_, logistic.intercept_
    if len(logistic.classes_) == 2:
        rows, intercepts = np.vstack([-rows, rows]), np.concatenate([-intercepts, intercepts])
    return Predictor(
        tuple(int(one) for one in logistic.classes_),
        tuple(map(float, scaler.mean_)),
        tuple(map(float, scaler.scale_)),
        tuple(tuple(map(float, row)) for row in rows),
        tuple(map(float, intercepts)),
    )


def train_without(groups: Mapping[str, Sequence[Example]], left_out: str) -> Predictor:
    """A predictor that has seen every group of examples but one."""
    return train([one for name, group in groups.items() if name != left_out for one in group])
