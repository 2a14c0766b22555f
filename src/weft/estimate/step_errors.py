"""80 % intervals of training steps, and of the ratio of two steps, from measured steps that the intervals leave out.

`docs/errors.py` writes `step_errors.toml` from what `weft.lab.step_classes` finds in the rows of `weft validate --bar`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from weft import hardware
from weft.core.catalog import read_toml
from weft.estimate.errors import Error, interval_text
from weft.hardware import Gpu
from weft.kernels.library.software import measured_vendors

_CARRIED: Mapping[str, Any] = read_toml(resources.files("weft.estimate") / "step_errors.toml")
UNMEASURED_VENDOR = 0.1
"""Standard deviation of ln(measured / predicted) of a vendor without public steps [assumed, 0.05 to 0.15: GEMMs of
machines left out of the fits are 18 % off, served loads on MI300X and MI355X 10 to 20 %]."""

SCALED = 8
"""Factor beyond the measured numbers of GPUs up to which errors are as within: inside a class, residuals of rows two to
eight times apart in scale, or in another format, are no farther apart than those of rows alike."""
FAR = 0.3
"""ln(measured / predicted) from which a class counts as one with a cause of its own when it speaks of others [assumed,
0.25 to 0.4: three standard deviations of the other classes]."""


class MeasuredClass(NamedTuple):
    """Measured steps of a framework on a GPU: mean of ln(measured / predicted), rows, and kinds of work among them.

    Rows of one kind of work share model and number of GPUs. `gpus` are the least and largest number of GPUs.
    """

    gpu: str
    framework: str
    mean: float
    rows: int
    works: int
    gpus: tuple[int, int]


class Spread(NamedTuple):
    """Standard deviations of ln(measured / predicted) of steps: between `framework`s, `gpu`s and combinations of both
    (`both`), and between kinds of work of a combination (`work`).

    `known` and `new` are the 10 % and 90 % quantiles of left-out residuals, in predicted standard deviations, of rows
    whose combination has other rows, and of rows whose combination has none.
    """

    framework: float
    gpu: float
    both: float
    work: float
    known: tuple[float, float]
    new: tuple[float, float]


def layers_of(mixture: bool) -> str:
    """Return the name of the classes of models with experts, or of dense ones."""
    return "mixture" if mixture else "dense"


def classes(layers: str) -> list[MeasuredClass]:
    """Return the classes of measured steps of "dense" or "mixture" models."""
    return [
        MeasuredClass(gpu, framework, float(found[0]), int(found[1]), int(found[2]), (int(found[3]), int(found[4])))
        for gpu, each in _CARRIED["classes"][layers].items()
        for framework, found in each.items()
    ]


@cache
def _spread(layers: str) -> Spread:
    found = _CARRIED["spread"][layers]
    framework, gpu, both, work = (float(found[name]) for name in ("framework", "gpu", "both", "work"))
    (low, high), (least, most) = found["known"], found["new"]
    return Spread(framework, gpu, both, work, (low, high), (least, most))


def located(gpu: str, framework: str, known: Sequence[MeasuredClass], spread: Spread) -> tuple[float, float]:
    """Return the mean and the standard deviation of ln(measured / predicted) of a step, given the classes measured.

    Classes of the same framework, GPU, or both count as they are correlated with it (best linear prediction).
    """
    variances = np.square([spread.framework, spread.gpu, spread.both])

    def shared(one: tuple[str, str], two: tuple[str, str]) -> float:
        same = np.array([one[1] == two[1], one[0] == two[0], one == two])
        return float(variances @ same)

    names = [(one.gpu, one.framework) for one in known]
    prior = float(variances.sum()) + spread.work**2
    if not known:
        return 0.0, math.sqrt(prior)
    covariance = np.array([[shared(one, two) for two in names] for one in names])
    covariance += np.diag([spread.work**2 / one.works for one in known])
    means, ones = np.array([_near(one, (gpu, framework)) for one in known]), np.ones(len(known))
    to = np.array([shared((gpu, framework), one) for one in names])
    inverse = np.linalg.inv(covariance)
    precision = float(ones @ inverse @ ones)
    overall = float(ones @ inverse @ means) / precision
    mean = overall + float(to @ inverse @ (means - overall))
    lacking = 1 - float(ones @ inverse @ to)
    variance = prior - float(to @ inverse @ to) + lacking**2 / precision
    return mean, math.sqrt(max(variance, spread.work**2))


def _near(one: MeasuredClass, asked: tuple[str, str]) -> float:
    """Return the mean of a class; of one far off, which says little of others, no more than `FAR`."""
    return one.mean if (one.gpu, one.framework) == asked else min(max(one.mean, -FAR), FAR)


def step_error(
    gpu: Gpu,
    framework: str,
    mixture: bool = False,
    gpus: int | None = None,
    precision: str = "",
    traits: Sequence[str] = (),
) -> Error:
    """Return the 80 % interval of training steps of a framework on a GPU, of models with or without experts.

    The interval follows from the measured steps of the same framework and of the same GPU, each as far as such classes
    are alike, and is as wide as residuals of rows that it leaves out. It is wider without any measured step of the
    GPU's vendor, on more than `SCALED` times the measured number of `gpus`, and for a `precision` or for `traits` of a
    plan (`weft.step.result.step.plan_traits`) that no measured step has: by how far pairs of plans are apart.
    """
    layers = layers_of(mixture)
    known, spread = classes(layers), _spread(layers)
    mean, deviation = _located(gpu.name, framework, layers)
    own = next((one for one in known if (one.gpu, one.framework) == (gpu.name, framework)), None)
    if gpu.vendor not in measured_vendors():
        deviation = math.hypot(deviation, UNMEASURED_VENDOR)
    what, wider = "models with experts" if mixture else "dense models", []
    least, most = own.gpus if own else (min(one.gpus[0] for one in known), max(one.gpus[1] for one in known))
    if gpus is not None and (apart := max(gpus / most, least / gpus)) > SCALED:
        deviation = math.hypot(deviation, spread.work * math.log(apart / SCALED, SCALED))
        wider.append(f"wider as {gpus:,} GPUs are {apart:,.0f} times as {'many' if gpus > most else 'few'} as measured")
    pairs, measured = _CARRIED["ratio"][layers_of(mixture=False)], _CARRIED["traits"][layers]
    unlike = {"precision": [precision] if precision else [], "plan": traits}
    for change, named in unlike.items():
        if unmeasured := [one for one in named if one not in measured]:
            deviation = math.hypot(deviation, float(pairs[change][0]) / NORMAL_80)
            wider.append(f"wider as no measured step of {what} has {' or '.join(unmeasured)}")
    below, above = spread.known if own else spread.new
    low, high = (math.exp(mean + at * deviation) for at in (below, above))
    rows = "; ".join([_evidence(gpu, framework, what, known, own), *wider])
    return Error(low, high, f"{interval_text(low, high)}, from {rows}")


@lru_cache(maxsize=256)
def _located(gpu: str, framework: str, layers: str) -> tuple[float, float]:
    return located(gpu, framework, classes(layers), _spread(layers))


def _evidence(gpu: Gpu, framework: str, what: str, known: Sequence[MeasuredClass], own: MeasuredClass | None) -> str:
    """Say which measured steps an interval rests on, or that none is like it and which are nearest."""
    if own:
        scale = f" on {own.gpus[0]}" + (f" to {own.gpus[1]:,}" if own.gpus[1] > own.gpus[0] else "") + " GPUs"
        return f"{_steps(own.rows)} of {what} with {framework} on {gpu.name}{scale}, each left out in turn"
    total = sum(one.rows for one in known)
    kinds = {one.gpu: hardware.gpu(one.gpu).architecture for one in known}
    near = max(
        known,
        key=lambda one: (
            one.framework == framework, one.gpu == gpu.name, kinds[one.gpu] == gpu.architecture, one.works,
        ),
    )  # fmt: skip
    none = f"no measured step is like this one ({what} with {framework} on {gpu.name})"
    if gpu.vendor not in measured_vendors():
        vendor = "AMD" if gpu.vendor == "amd" else gpu.vendor
        none = f"no step on a GPU of {vendor} was measured, so the interval is wider than that of NVIDIA's steps"
    return (
        f"{_steps(total)} with their framework and GPU left out; {none}; nearest {_steps(near.rows)} with "
        f"{near.framework} on {near.gpu}"
    )


def _steps(count: int) -> str:
    return f"{count:,} measured step{'s' * (count != 1)}"


class Compared(NamedTuple):
    """What decides how alike the errors of two steps are: what two steps share or do not.

    `gpu` names GPU and node, `machine` holds their values. `load` is how many tokens each expert gets, `overlap` the
    methods by axis.
    """

    gpu: str
    framework: str
    model: str
    gpus: int
    precision: str
    dispatcher: str
    plan: Any
    mixture: bool
    vendor: str
    machine: Any = None
    load: str = ""
    overlap: str = ""


CHANGES = ("gpu", "framework", "model", "gpus", "precision", "dispatcher", "plan")
"""What two steps may differ in, each with an error of its own on the ratio of their times."""
WHAT_IFS = ("machine", "load", "overlap")
"""What else may differ. All that the parts of a step that do not change are off by is then alike in both steps."""
REPEAT_SPREAD = 0.01
"""How far apart ln of two measured times of one step may be [assumed, 0.005 to 0.02]."""


def relative_change(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return by how much the parts of two steps differ in all, relative to the mean of both steps.

    It is about |ln ratio| if all parts change in one direction, else more.
    """
    gross = sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in {*one, *other})
    return 2 * gross / (sum(one.values()) + sum(other.values()))


def what_if_share() -> tuple[float, str]:
    """Return by which share of what changes the ratio of two steps may be off, and the pairs it is from."""
    share, pairs, _ = _CARRIED["ratio"]["what-if"]["moved"]
    return float(share), f"{int(pairs):,} pairs of steps that differ in GPU, number of GPUs or precision"


def ratio_error(one: Compared, other: Compared, change: float | None = None) -> Error:
    """Return the 80 % interval of measured / predicted of the ratio of two step times.

    The interval is from pairs of measured steps that differ in the same things; both sides' errors have much in common,
    so it is narrower than that of either. For a change without pairs it is that of the change with the widest. Where
    nothing but a value of the machine, the loads of experts or an overlap method differs, no pair was measured: the
    interval is then a share of what changes, `change` (`relative_change`), as large as for pairs that differ in GPU,
    number of GPUs or precision. Without `change` such steps have the interval of two plans.
    """
    known: Mapping[str, Sequence[float]] = _CARRIED["ratio"][layers_of(one.mixture or other.mixture)]
    changed = _different(CHANGES, one, other)
    what_ifs = [name for name in _different(WHAT_IFS, one, other) if not (name == "machine" and "gpu" in changed)]
    if (what_ifs and change is None) or not (changed or what_ifs):
        changed, what_ifs = [*dict.fromkeys((*changed, "plan"))], []
    most = max(float(found[0]) for found in known.values())
    widths = [float(known[name][0]) if name in known else most for name in changed]
    if what_ifs and change is not None:
        widths += [REPEAT_SPREAD, what_if_share()[0] * change]
    off = math.hypot(*widths)
    strange = sorted({each.vendor for each in (one, other)} - {*measured_vendors()})
    if strange and one.vendor != other.vendor:
        off = math.hypot(off, NORMAL_80 * UNMEASURED_VENDOR)
    said = [f"{int(known[name][1]):,} pairs that differ in {_CALLED[name]}" for name in changed if name in known]
    said += [f"no pair that differs in {_CALLED[name]}" for name in changed if name not in known]
    if what_ifs:
        share, of = what_if_share()
        said.append(f"{share:.2f} of what changes, as of {of}")
    said += [f"no measured step on a GPU of {'AMD' if name == 'amd' else name}" for name in strange]
    low, high = math.exp(-off), math.exp(off)
    return Error(low, high, f"ratio of two steps: {interval_text(low, high)}, from {' and '.join(said)}")


def _different(names: Sequence[str], one: Compared, other: Compared) -> list[str]:
    return [name for name in names if getattr(one, name) != getattr(other, name)]


NORMAL_80 = 1.28
"""Half an 80 % interval in standard deviations of a normal distribution."""
_CALLED = {
    "gpu": "GPU or network", "framework": "framework", "model": "model", "gpus": "number of GPUs",
    "precision": "precision", "dispatcher": "dispatcher", "plan": "plan",
}  # fmt: skip
