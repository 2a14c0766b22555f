"""What software adds to kernels: where it joins a GEMM and a collective, in the executor of plans, in training steps.

`software.toml` has gaps, starts, barriers and the host's time per launch, `execution.toml` the costs of MSCCL++'s
executor, `residual.toml` the calibration residual: what measured training steps take beyond what Weft models, the same
on all GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from weft.core.catalog import Leaf, Quantity, read_leaves, read_toml
from weft.core.units import Dimension

_TIME, _RATE = Quantity(Dimension.SECONDS), Quantity(Dimension.BYTES_PER_SECOND)
_BYTES, _COUNT = Quantity(Dimension.BYTES, whole=True), Quantity(Dimension.COUNT, whole=True)
_SHARE = Quantity(Dimension.COUNT, at_most=1)
RULES: Mapping[str, Quantity | None] = {
    "sequential.gap": _TIME,
    "flux.start": _TIME,
    "flux.round": _TIME,
    "flux.store_rate": _RATE,
    "userbuffers.start": _TIME,
    "userbuffers.issue": _TIME,
    "userbuffers.copy_share": _SHARE,
    "async-tp.start": _TIME,
    "async-tp.issue": _TIME,
    "async-tp.copy_share": _SHARE,
    "async-tp.barrier": _TIME,
    "mori.packet": _TIME,
    "tma.start": _TIME,
}
"""Every value of `software.toml` by path; times in seconds, the rate in bytes/s, the share a ratio."""
_EXECUTOR_RULES: Mapping[str, Quantity | None] = {
    "kernel.start": _TIME,
    "kernel.registers": _COUNT,
    "kernel.lds": _BYTES,
    "kernel.in_flight": _BYTES,
    "kernel.link": _SHARE,
    "signal.fence": _TIME,
    "signal.poll": _TIME,
    "port.proxy": _TIME,
}
"""Every value of `execution.toml` by path; times in seconds, sizes in bytes, those in flight by thread."""
RESIDUAL_RULES: Mapping[str, Quantity | None] = {
    "streaming.kernels": Quantity(Dimension.COUNT, at_most=2),
    "replicas.hidden": _SHARE,
}
"""Every value of `residual.toml` by path. A step that loses more than a hidden second would be faster
without overlap."""
COPY_STREAMS = 3
"""Streams over which userbuffers deals the GEMMs of ranks' shares (NVIDIA/TransformerEngine @0004dbd,
pytorch/module/base.py)."""
SPLITS = 4
"""Parts into which userbuffers cuts a GEMM before a reduce-scatter (same source); the last one's stays exposed."""
WORKGROUPS = 16
"""Workgroups, each on a compute unit, of userbuffers' kernels that reduce and scatter (same source)."""


class Residual(NamedTuple):
    """Time that a step takes beyond its parts: shares of its `streaming` kernels, and of the communication among
    replicas that is `hidden` during computing.
    """

    streaming: float = 0.0
    hidden: float = 0.0


@cache
def _tables(file: str) -> Mapping[str, Any]:
    return read_toml(resources.files("weft.kernels.library") / file)


def _leaves(file: str, rules: Mapping[str, Quantity | None]) -> Mapping[str, Leaf]:
    return read_leaves({name: table for name, table in _tables(file).items() if name != "rows"}, rules, file)


@cache
def leaves() -> Mapping[str, Leaf]:
    """Return the shipped values of joined kernels by path, each with its source and range."""
    return _leaves("software.toml", RULES)


@cache
def costs() -> Mapping[str, float]:
    """Return the shipped values of joined kernels by path [seconds or bytes/s]."""
    return {path: leaf.value for path, leaf in leaves().items()}


@cache
def bounds() -> Mapping[str, tuple[float, float]]:
    """Return the plausible range of every value of joined kernels by path [seconds or bytes/s]."""
    return {path: leaf.range for path, leaf in leaves().items()}


def rows() -> Mapping[str, Sequence[str]]:
    """Return the "systems" and "methods" whose rows were in sight when a value was read or a form chosen."""
    found: Mapping[str, Sequence[str]] = _tables("software.toml")["rows"]
    return found


@cache
def executor_costs() -> Mapping[str, float]:
    """Return the shipped values of the executor of MSCCL++'s plans by path [seconds, bytes or a share]."""
    return {path: leaf.value for path, leaf in _leaves("execution.toml", _EXECUTOR_RULES).items()}


@cache
def residual_leaves() -> Mapping[str, Leaf]:
    """Return the shipped values of the calibration residual by path, each with its source and range."""
    return _leaves("residual.toml", RESIDUAL_RULES)


@cache
def shipped_residual() -> Residual:
    """Return the shipped calibration residual."""
    return Residual(*(residual_leaves()[path].value for path in ("streaming.kernels", "replicas.hidden")))


def measured_vendors() -> Sequence[str]:
    """Return the vendors to whose steps the calibration residual was fitted."""
    found: Sequence[str] = _tables("residual.toml")["rows"]["vendors"]
    return found
