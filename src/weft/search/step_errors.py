"""Errors of Weft's training steps against measured ones, by GPU, framework and kind of layers."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib import resources

from weft.search.model_errors import Error

_STEPS = tomllib.loads((resources.files("weft.search") / "step_errors.toml").read_text(encoding="utf-8"))
_THIN = 10
"""A class with fewer rows says so."""


def step_error(gpu: str, framework: str, mixture: bool = False) -> Error:
    """The mean error of training steps of a framework on a GPU, of models with or without a mixture of experts.

    Without measured rows of both it is that of the framework's other GPUs or, without those, of all steps.
    """
    layers = "mixture" if mixture else "dense"
    what = "models with experts" if mixture else "dense models"
    known = {(on, of): found[layers] for on, each in _STEPS.items() for of, found in each.items() if layers in found}
    if (gpu, framework) in known:
        value, bias, rows = known[gpu, framework]
        thin = f" ({rows:.0f} rows only)" if rows < _THIN else ""
        return Error(value, f"{_steps(what, framework)} on {gpu} are off by {value:.0%}{_sided(value, bias)}{thin}")
    alike = [found for (_, of), found in known.items() if of == framework]
    value, bias = (_weighted(alike or list(known.values()), at) for at in (0, 1))
    where = f"{_steps(what, framework)} on other GPUs" if alike else f"measured steps of {what} elsewhere"
    sided = _sided(value, bias)
    return Error(value, f"no such step is public for {framework} on {gpu}; {where} are off by {value:.0%}{sided}")


def _steps(what: str, framework: str) -> str:
    return f"measured steps of {what} with {framework}"


def _sided(value: float, bias: float) -> str:
    """On which side most errors lie, if most do."""
    if abs(bias) < value / 2:
        return ""
    return ", most of them longer than Weft says" if bias < 0 else ", most of them shorter than Weft says"


def _weighted(found: Sequence[Sequence[float]], at: int) -> float:
    return sum(one[at] * one[2] for one in found) / sum(one[2] for one in found)
