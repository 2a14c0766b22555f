"""What a bound means where the bar beside it shows other words: the lines under a table of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weft.predict.prediction import Prediction

_COLLECTIVE = {
    "launch": "launch and host together are the largest share",
    "link": "link and network together are the largest share",
    "memory": "copies on the GPU are the largest share",
}
_GEMM = {
    "compute": "the matrix units set the pace, as tail too, when some of them are idle or multiply padding",
    "cache": "compute units wait for the cache more than 5 % of their time",
    "memory": "the DRAM takes longer than the compute units; the bar shows only what that adds",
    "latency": "latency, fill and split together take longer than the matrix units",
}
_KERNEL = dict.fromkeys(("compute", "cache", "memory", "latency"), "it limits the longest of the kernels")


def notes(shown: Sequence[tuple[Prediction, int]]) -> Iterator[str]:
    """A line for each bound that is not the largest part of some case (a prediction and an index) in the table."""
    told: set[tuple[str, str]] = set()
    for prediction, index in shown:
        bound = str(np.ravel(prediction.bound_names())[index])
        parts = {name: float(np.ravel(part)[index]) for name, part in prediction.parts.items()}
        line = _meanings(prediction).get(bound)
        if line and max(parts, key=lambda name: parts[name]) != bound and (bound, line) not in told:
            told.add((bound, line))
            yield f"bound {bound}: {line}"


def _meanings(prediction: Prediction) -> dict[str, str]:
    if "link" in prediction.parts:
        return _COLLECTIVE
    return _GEMM if "tail" in prediction.parts else _KERNEL
