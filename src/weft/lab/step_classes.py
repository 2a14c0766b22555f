"""80 % intervals of training steps: how residuals of measured steps spread, by class, and by pairs for ratios.

`docs/errors.py` writes what `step_classes` finds into `estimate/step_errors.toml`, for `estimate/step_errors.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from weft import hardware
from weft.estimate.step_errors import CHANGES, FAR, REPEAT_SPREAD, MeasuredClass, Spread, located, relative_change
from weft.lab.ratios import FEWEST, TAIL, Pairs, by_change, calls, groups, half_width, pairs, upper
from weft.lab.steps import predict_step, read_run
from weft.lab.subjects import Predicted, Subject
from weft.lab.tables import FloatArray
from weft.step.result.step import plan_traits

LAYERS: Mapping[str, Sequence[str]] = {"dense": ("dense",), "mixture": ("mixture", "mixture-by-dispatcher")}
"""The classes of rows by which models without and with experts are judged."""
_LEAST = 0.01
"""Least standard deviation of any cause."""
_ONE_HOST = "vtrain"
"""The framework whose rows, two of three, are of one GPU and one host, which decides them: a class and nothing else."""
_COLUMNS = ("gpu", "framework", "model", "gpus", "precision", "dispatcher")
_PLAN = (
    "tp", "pp", "vp", "cp", "ep", "zero_stage", "mbs_seq", "recompute", "overlap_or_schedule", "overlap_ep", "routing",
)  # fmt: skip
_WORK = ("seq_len", "gbs_seq", "task", "network", "layers", "hidden")
"""Columns that must agree for two rows to be the same work, beside what is compared."""


def step_rows(parts: Sequence[Predicted]) -> pd.DataFrame:
    """Return the rows of steps with the logarithm of measured / predicted (`residual`) and what pairs may differ in."""
    found = []
    for part in parts:
        subject = part.subject
        if subject.kind != "step":
            continue
        rows = subject.rows
        found.append(
            pd.DataFrame(
                {
                    **{name: rows[name].map(str) if name in rows else "" for name in (*_PLAN, *_WORK)},
                    **{name: rows[name].map(str) if name in rows else "" for name in _COLUMNS},
                    "gpu": subject.machine,
                    "framework": subject.labels["framework"],
                    "software": rows["framework"].map(str),
                    "count": rows["gpus"].astype(int),
                    "layers_kind": subject.labels["layers"],
                    "notes": rows["notes"].map(str) if "notes" in rows else "",
                    "measured": subject.measured,
                    "predicted": part.seconds,
                    "residual": np.log(subject.measured / part.seconds),
                    "row": [f"{subject.file}:{line}" for line in rows.index],
                    **_predicted(subject),
                }
            )
        )
    every = pd.concat(found, ignore_index=True)
    return every.assign(plan=every[[*_PLAN]].agg("|".join, axis=1))


def _predicted(subject: Subject) -> dict[str, list[Any]]:
    """Return the parts [s] of each predicted step, by the call that predicts it, and the traits of its plan."""
    gpu = hardware.gpu(subject.machine)
    steps = [predict_step(read_run(row, gpu)) for row in subject.rows.to_dict("records")]
    hidden = [step.hidden.get("dp", 0.0) / step.seconds for step in steps]
    return {
        "parts": [step.parts for step in steps],
        "traits": [plan_traits(step.plan, step.model, share) for step, share in zip(steps, hidden, strict=True)],
    }


def step_classes(by: Mapping[Any, Sequence[Predicted]]) -> dict[str, Any]:
    """Return classes, spreads and ratios of measured steps by protocol, as `step_errors.toml` holds them."""
    every = step_rows(by["as shipped"])
    for name, protocol in (("framework", "framework left out"), ("gpu", "GPU left out")):
        left = _residuals(by.get(protocol, ()))
        every[name + "_left"] = [left.get(*at) for at in zip(every["row"], every["residual"], strict=True)]
    found: dict[str, Any] = {
        "spread": {},
        "ratio": {"what-if": {}},
        "called": {"what-if": {}},
        "coverage": {},
        "traits": {},
        "classes": {},
    }
    judged: list[pd.DataFrame] = []
    for layers, kinds in LAYERS.items():
        rows = every[every["layers_kind"].isin(kinds)].reset_index(drop=True)
        found["traits"][layers] = dict(sorted(Counter(one for each in rows["traits"] for one in each).items()))
        known, rows = measured_classes(rows), rows[rows["framework"] != _ONE_HOST].reset_index(drop=True)
        spread, coverage = fitted_spread(rows, known)
        found["spread"][layers] = {name: _rounded(value) for name, value in spread._asdict().items()}
        found["coverage"][layers] = coverage
        found["ratio"][layers], found["called"][layers] = ratios(rows)
        judged.append(rows)
        found["classes"][layers] = {
            gpu: {
                one.framework: [round(one.mean, 4), one.rows, one.works, *one.gpus] for one in known if one.gpu == gpu
            }
            for gpu in sorted({one.gpu for one in known})
        }
    found["ratio"]["what-if"]["moved"], found["called"]["what-if"]["moved"] = what_ifs(judged)
    return found


def _residuals(parts: Sequence[Predicted]) -> dict[str, float]:
    """Return ln(measured / predicted) of steps by file and line."""
    return {
        f"{part.subject.file}:{line}": float(residual)
        for part in parts
        if part.subject.kind == "step"
        for line, residual in zip(part.subject.rows.index, np.log(part.subject.measured / part.seconds), strict=True)
    }


def _rounded(value: Any) -> Any:
    return [round(one, 3) for one in value] if isinstance(value, tuple) else round(value, 4)


def measured_classes(rows: pd.DataFrame) -> list[MeasuredClass]:
    """Return a class for each framework on each GPU; kinds of work weigh alike in its mean."""
    found = []
    for (gpu, framework), some in rows.groupby(["gpu", "framework"]):
        works = some.groupby(["model", "count"])["residual"].mean()
        counts = some["count"]
        found.append(
            MeasuredClass(
                str(gpu),
                str(framework),
                float(works.mean()),
                len(some),
                len(works),
                (int(counts.min()), int(counts.max())),
            )
        )
    return found


def fitted_spread(rows: pd.DataFrame, known: Sequence[MeasuredClass]) -> tuple[Spread, dict[str, list[float]]]:
    """Return the spread of residuals that is most likely, and the coverage of its intervals on rows left out.

    Coverage is with the row's kind of work, its framework or its GPU left out of all classes (see `_coverage`).
    """
    work = _within(rows)
    names = [(one.gpu, one.framework) for one in known]
    same = np.array([[[a[1] == b[1], a[0] == b[0], a == b] for b in names] for a in names], np.float64)
    means, noise = (
        np.array([min(max(one.mean, -FAR), FAR) for one in known]),
        np.array([1 / one.works for one in known]),
    )

    def unlikely(logs: FloatArray) -> float:
        framework, gpu, both, within = np.exp(2 * logs)
        covariance = same @ np.array([framework, gpu, both]) + np.diag(noise * within)
        inverse, ones = np.linalg.inv(covariance), np.ones(len(means))
        precision = float(ones @ inverse @ ones)
        apart = means - float(ones @ inverse @ means) / precision
        degrees = sum(max(one.works - 1, 0) for one in known)
        own = degrees * (math.log(within) + work**2 / within)
        return float(np.linalg.slogdet(covariance)[1] + apart @ inverse @ apart + math.log(precision) + own)

    start = np.log([0.05, 0.03, 0.05, max(work, _LEAST)])
    best = minimize(unlikely, start, method="Nelder-Mead", options={"maxiter": 800, "fatol": 1e-4})
    framework, gpu, both, within = np.maximum(np.exp(best.x), _LEAST).tolist()
    plain = Spread(framework, gpu, both, within, (-1.28, 1.28), (-1.28, 1.28))
    scores = {name: _scores(rows, plain, name) for name in _LEFT_OUT}
    which = _has_own(rows)
    own, works = scores["work"][which], groups(rows, ("gpu", "framework", "model", "count"))[which]
    named = {name: groups(rows, (name,)) for name in ("framework", "gpu")}
    new = [_ends(scores[name]) for name in named]
    ends = min(low for low, _ in new), max(high for _, high in new)
    known_ends = _ends(own)
    return plain._replace(known=known_ends, new=ends), {
        "work": _coverage(own, known_ends, works),
        **{name: _coverage(scores[name], ends, groups) for name, groups in named.items()},
    }


def _within(rows: pd.DataFrame) -> float:
    """Return the standard deviation between kinds of work of one class."""
    works = rows.groupby(["gpu", "framework", "model", "count"])["residual"].mean().reset_index()
    apart = works["residual"] - works.groupby(["gpu", "framework"])["residual"].transform("mean")
    degrees = len(works) - len(works.groupby(["gpu", "framework"]))
    between = float((apart**2).sum()) / max(degrees, 1)
    each = rows.groupby(["gpu", "framework", "model", "count"])["residual"]
    alike = rows["residual"] - each.transform("mean")
    repeated = float((alike**2).sum()) / max(len(rows) - each.ngroups, 1)
    return math.sqrt(max(between, repeated, _LEAST**2))


_LEFT_OUT: Mapping[str, Callable[[pd.DataFrame, Any], pd.Series[bool]]] = {
    "work": lambda rows, one: (
        (rows["gpu"] == one.gpu) & (rows["framework"] == one.framework) & (rows["model"] == one.model)
        & (rows["count"] == one.count_)
    ),
    "framework": lambda rows, one: rows["framework"] == one.framework,
    "gpu": lambda rows, one: rows["gpu"] == one.gpu,
}  # fmt: skip
"""What is left out with a row: its kind of work, its framework, or its GPU."""


def _scores(rows: pd.DataFrame, spread: Spread, name: str) -> FloatArray:
    """Return the residual of each row in standard deviations, from classes without the rows left out with it.

    With its framework or its GPU left out, the residual is that of predictions whose calibration leaves it out as well.
    """
    take, residuals = _LEFT_OUT[name], rows["residual" if name == "work" else f"{name}_left"].tolist()
    found, cached = np.empty(len(rows)), dict[bytes, tuple[float, float]]()
    for at, one in enumerate(rows.rename(columns={"count": "count_"}).itertuples()):
        out = take(rows, one).to_numpy()
        key = out.tobytes() + str(one.gpu).encode() + str(one.framework).encode()
        if key not in cached:
            cached[key] = located(str(one.gpu), str(one.framework), measured_classes(rows[~out]), spread)
        mean, deviation = cached[key]
        found[at] = (residuals[at] - mean) / deviation
    return found


def _has_own(rows: pd.DataFrame) -> Any:
    """Mask of rows whose class has other kinds of work."""
    works = rows.groupby(["gpu", "framework"]).apply(lambda some: some.groupby(["model", "count"]).ngroups > 1)
    return np.array([works[key] for key in zip(rows["gpu"], rows["framework"], strict=True)])


def _ends(scores: FloatArray) -> tuple[float, float]:
    """Return the conformal 10 % and 90 % quantiles of scores."""
    if not len(scores):
        return -_NORMAL_80, _NORMAL_80
    return -upper(-scores, TAIL), upper(scores, TAIL)


_NORMAL_80 = 1.28
"""Half an 80 % interval in standard deviations of a normal distribution, without any rows."""


def _coverage(scores: FloatArray, ends: tuple[float, float], groups: Any) -> list[float]:
    """Return the share of rows inside intervals, the rows, and the share if the ends leave out the row's group, too."""
    if not len(scores):
        return [0.0, 0, 0.0]
    inside = np.zeros(len(scores), np.bool_)
    for group in np.unique(groups):
        own = groups == group
        low, high = _ends(scores[~own])
        inside[own] = (scores[own] >= low) & (scores[own] <= high)
    shipped = (scores >= ends[0]) & (scores <= ends[1])
    return [round(float(shipped.mean()), 3), len(inside), round(float(inside.mean()), 3)]


_CHANGED_ALONG: Mapping[str, Sequence[str]] = {
    "framework": ("software", "era"), "gpu": ("network",), "gpus": ("network",),
    "model": ("layers", "hidden", "seq_len"),
}  # fmt: skip
"""Columns that differ along with a change."""
_ALIKE = ("gpu", "gpus", "precision")
"""Changes of neither software nor plan: the errors of such pairs are taken for what-ifs, which nobody measured."""


def step_pairs(rows: pd.DataFrame, fewest: int = FEWEST) -> dict[str, Pairs]:
    """Return the pairs of steps of the same work by the one thing of `CHANGES` that they differ in."""
    table = rows.assign(era=rows["notes"].str.extract(r"(era \w)", expand=False).fillna(""))
    return by_change(
        rows["residual"].to_numpy(), pairs(table, CHANGES, (*_WORK, "software", "era"), _CHANGED_ALONG), fewest
    )


def ratios(rows: pd.DataFrame) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Return by change: half the 80 % interval of ln of the ratio, pairs, rows; and what the interval calls.

    The interval that calls a pair is by pairs that share no model on the same GPU in the same framework with it.
    """
    each, work = step_pairs(rows), _work(rows)
    predicted = rows["predicted"].to_numpy(dtype=np.float64)
    return (
        {change: half_width(of) for change, of in each.items()},
        {change: calls(predicted, work, of) for change, of in each.items()},
    )


def _work(rows: pd.DataFrame) -> Any:
    return groups(rows, ("gpu", "framework", "model"))


def what_ifs(each: Sequence[pd.DataFrame]) -> tuple[list[float], list[int]]:
    """Return the share of what changes that a ratio is off by in 80 % of pairs, pairs and rows; and what it calls.

    The pairs, of either of the given tables, differ in GPU, number of GPUs or precision. What changes is
    `weft.estimate.step_errors.relative_change`.
    """
    rows, start, found = pd.concat(each, ignore_index=True), 0, []
    for some in each:
        known = step_pairs(some, fewest=1)
        found += [(a + start, b + start, off) for a, b, off in (known[name] for name in _ALIKE if name in known)]
        start += len(some)
    first, second, off = (np.concatenate([one[at] for one in found]) for at in range(3))
    parts = rows["parts"].tolist()
    change = np.array(
        [max(relative_change(parts[a], parts[b]), REPEAT_SPREAD) for a, b in zip(first, second, strict=True)]
    )
    of = first, second, off
    return half_width(of, change), calls(rows["predicted"].to_numpy(dtype=np.float64), _work(rows), of, change)
