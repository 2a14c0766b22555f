"""How far ratios of the TPOT of two served loads are off, by what the loads differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from weft.estimate.load_ratios import CHANGES
from weft.lab.ratios import by_change, calls, groups, half_width, pairs
from weft.lab.subjects import Predicted

_PLAN = ("tp", "pp", "dp_attn", "moe_tp", "moe_ep", "kind")
_FORMATS = ("precision", "gemm_dtype", "moe_dtype")
_ALONG: Mapping[str, Sequence[str]] = {
    "framework": ("version", "precision"), "gpu": ("version",), "model": ("precision",), "precision": ("model",),
}  # fmt: skip
"""Columns that differ along with a change: a framework's formats and versions are its own, a model's formats, too."""


def load_rows(parts: Sequence[Predicted]) -> pd.DataFrame:
    """Return served loads with a measured TPOT, what pairs may differ in, and ln(measured / predicted)."""
    found = []
    for part in parts:
        subject = part.subject
        if subject.kind == "serving":
            rows, labels = subject.rows, subject.labels
            found.append(
                pd.DataFrame(
                    {
                        "gpu": subject.machine,
                        "framework": labels["framework"],
                        "version": rows["version"],
                        "model": labels["model"],
                        "precision": groups(rows, _FORMATS),
                        "plan": groups(rows, _PLAN),
                        "clients": rows["clients"],
                        "lengths": groups(rows, ("isl", "osl")),
                        "quantity": labels["quantity"],
                        "predicted": part.seconds,
                        "residual": np.log(subject.measured / part.seconds),
                    }
                )
            )
    every = pd.concat(found, ignore_index=True)
    return every[every["quantity"] == "TPOT"].reset_index(drop=True)


def load_ratios(parts: Sequence[Predicted]) -> dict[str, list[float]]:
    """Return by change: half the 80 % interval of ln of the ratio, pairs, rows, pairs called, right, and inside.

    The interval that calls a pair is by pairs that share no model on the same GPU in the same framework with it.
    """
    if not any(part.subject.kind == "serving" for part in parts):
        return {}
    rows = load_rows(parts)
    work, predicted = groups(rows, ("gpu", "framework", "model")), rows["predicted"].to_numpy(dtype=np.float64)
    each = by_change(rows["residual"].to_numpy(), pairs(rows, CHANGES, ("version",), _ALONG))
    return {change: [*half_width(of), *calls(predicted, work, of)[1:]] for change, of in each.items()}
