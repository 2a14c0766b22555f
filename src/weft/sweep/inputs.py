"""Machines and tilings as a task's inputs: every value of theirs that a run could read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from weft.hardware import Gpu
from weft.kernels import GemmTiling

_PROSE = {"provenance", "title", "description", "aliases"}


def gpu_inputs(gpu: Gpu) -> dict[str, Any]:
    """Every value of a GPU, and which of them the user set, as results say."""
    changed = {path: p.text for path, p in gpu.provenance.items() if p.kind == "set by user"}
    return {"gpu": gpu.model_dump(exclude=_PROSE), "changed": changed}


def tiling_inputs(tiling: GemmTiling | None) -> dict[str, Any] | None:
    """How a GEMM is cut; None where the machine's library decides."""
    return None if tiling is None else asdict(tiling)
