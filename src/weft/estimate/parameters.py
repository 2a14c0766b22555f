"""The closed list of what calibration may fit: of a GPU's GEMMs, and of a collective library's profile."""

from __future__ import annotations

from weft.core.units import Dimension
from weft.estimate.answer import Parameter
from weft.kernels.library.profiles import Profile, values

_NEEDS_ROWS = 4
_NEEDS_ROWS_OF_LL128 = 2
"""A library uses LL128 for few sizes, so few rows determine its rate."""

GEMM_PARAMETERS: tuple[Parameter, ...] = (
    *(
        Parameter(f"achieved.matrix_{dtype}", 0.3, 1.0, "", 10, f"share of the {dtype} matrix rate in the main loop")
        for dtype in ("bf16", "fp16", "fp8", "int8", "tf32", "fp32")
    ),
    Parameter("achieved.gemm_memory", 0.4, 1.0, "", 10, "share of the DRAM's peak bandwidth"),
    Parameter("achieved.gemm_cache", 0.15, 1.0, "", 20, "share of the last-level cache's peak bandwidth"),
    Parameter("achieved.gemm_resident", 0.05, 1.0, "", 20, "share of the cache that keeps operands"),
    Parameter("achieved.gemm_issue", 1.0, 300.0, "cycles", 20, "cost of a K step beside its matrix instructions"),
    Parameter("achieved.gemm_latency", 2e-7, 4e-6, "s", 20, "from asking for a K step's operands to having them"),
    Parameter("achieved.gemm_fill", 1e-7, 6e-6, "s", 20, "to begin and end a workgroup"),
    Parameter("achieved.gemm_split", 1e-7, 1e-5, "s", 20, "to add up the parts of a split K"),
    Parameter("achieved.gemm_launch", 2e-7, 1e-5, "s", 20, "from one kernel to the next on the device"),
    Parameter("achieved.gemm_host", 1e-6, 8e-5, "s", 20, "from one kernel to the next, issued and awaited by the host"),
)
"""GPU parameters that may be fitted to measured GEMMs."""


def collective_parameters(profile: Profile) -> tuple[Parameter, ...]:
    """The parameters of a profile that calibration may fit."""
    units = {Dimension.SECONDS: "s", Dimension.BYTES: "bytes"}
    return tuple(
        Parameter(path, value.low, value.high, units.get(value.rule.dimension, ""), _rows(path), value.about)
        for path, value in values().items()
        if path in profile.values
    )


def _rows(path: str) -> int:
    return _NEEDS_ROWS_OF_LL128 if "ll128" in path else _NEEDS_ROWS
