"""Predict how many queued GEMMs to run together, from features known at queueing time, by logistic regression.

GOLDYLOC (arXiv:2409.02227) puts such a predictor into the command processor; its features and degrees are not published
in detail, so these are Weft's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log2
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling, gemm_kernel
from weft.overlaps.lower.fit import occupancy
from weft.plan.tune.queues import Judged, Kernels, Queue

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
"""Features of the predictor: means over the queued GEMMs, with the kernels that are fastest alone."""
_STRENGTH = 1.0
"""The inverse strength of the regularization."""
_PRECISELY: Any = {"maxiter": 10_000, "gtol": 1e-8, "ftol": 1e-15}
_CONSTANT = 1e-12
"""A feature that varies by at most this share of its mean is not scaled."""
Features = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """A training example: the features of a queue, and its best degree."""

    features: tuple[float, ...]
    degree: int


@dataclass(frozen=True)
class Predictor:
    """Scores are scaled features times `coefficients` plus `intercepts`; the largest score names the degree.

    `mean` and `scale` standardise each feature; `coefficients` has a row for each of `degrees`.
    """

    degrees: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]
    intercepts: tuple[float, ...]

    def choose(self, features: Sequence[float], allowed: Iterable[int]) -> int:
        """Return the degree with the largest score, or the next lower one that is allowed.

        If fewer than two batches of it are queued, all run together: a small rest would run on the GPU alone.
        """
        scaled = (np.asarray(features) - self.mean) / self.scale
        scores = np.asarray(self.coefficients) @ scaled + self.intercepts
        wanted = self.degrees[int(np.argmax(scores))]
        known = tuple(allowed)
        degree = max((one for one in known if one <= wanted), default=min(known))
        return max(known) if degree > 1 and max(known) < 2 * degree else degree

    def record(self) -> dict[str, Any]:
        """Return the predictor as plain data for JSON."""
        return {"features": FEATURES, **asdict(self)}


def features(queue: Queue, kernels: Kernels, gpu: Gpu) -> tuple[float, ...]:
    """Features of a queue that are known before it runs, in the order of `FEATURES`."""
    each = [_of_gemm(gemm, kernels[gemm].fastest_alone, gpu) for gemm in queue.gemms]
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
    """Return the training example of a judged queue."""
    return Example(features(judged.queue, kernels, gpu), judged.best_degree)


def train(examples: Sequence[Example]) -> Predictor:
    """Train a predictor on examples; InputError without any."""
    if not examples:
        raise InputError("there is nothing to learn from; judge some queues of GEMMs first")
    seen = np.array([one.features for one in examples])
    degrees, which = np.unique([one.degree for one in examples], return_inverse=True)
    mean, spread = seen.mean(axis=0), seen.std(axis=0)
    scale = np.where(spread > _CONSTANT * np.abs(mean), spread, 1.0)
    rows = _fit_classes((seen - mean) / scale, which, len(degrees))
    return Predictor(
        tuple(degrees.tolist()),
        tuple(mean.tolist()),
        tuple(scale.tolist()),
        tuple(map(tuple, rows[:, :-1].tolist())),
        tuple(rows[:, -1].tolist()),
    )


def _fit_classes(scaled: Features, which: npt.NDArray[np.intp], classes: int) -> Features:
    """Coefficients and, last, the intercept of every class: minimum log loss plus half the squared coefficients.

    Of two classes the first scores 0, and the second has the coefficients (as in scikit-learn).
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    inputs = np.column_stack([scaled, np.ones(len(scaled))])
    shape = (1 if classes == 2 else classes, inputs.shape[1])

    def rows_of(flat: Features) -> Features:
        rows = flat.reshape(shape)
        return np.vstack([np.zeros_like(rows), rows]) if classes == 2 else rows

    def loss(flat: Features) -> tuple[float, Features]:
        rows = rows_of(flat)
        log_shares = log_softmax(inputs @ rows.T, axis=1)
        held = np.where(np.arange(shape[1]) < shape[1] - 1, rows, 0.0)  # no penalty on the intercept
        slope = np.exp(log_shares)
        slope[np.arange(len(which)), which] -= 1
        value = -_STRENGTH * log_shares[np.arange(len(which)), which].sum() + (held**2).sum() / 2
        gradient = _STRENGTH * slope.T @ inputs + held
        return float(value), gradient[-shape[0] :].ravel()

    found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=_PRECISELY)
    return rows_of(found.x)


def train_without(groups: Mapping[str, Sequence[Example]], left_out: str) -> Predictor:
    """Return a predictor trained on every group of examples but one."""
    return train([one for name, group in groups.items() if name != left_out for one in group])
