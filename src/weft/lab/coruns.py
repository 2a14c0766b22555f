"""GEMMs concurrent with a collective, and alone on fewer compute units, on MI300X and MI355X.

The rows do not name what all have in common. Concurrent ones: eight MI300X, and an all-reduce of 512 MiB that is
launched first (inferred from equal times of rows that say so); the GEMM alone, and each beside the other, are medians
of loops. On fewer units: one MI300X, a mask of the stream or a grid of a persistent kernel; each call of PyTorch is
timed by events on an idle GPU, so that it holds the host's launch (benchmarks/cu_sweep_torch.py @7615e1e). Over nodes:
all-gathers by RCCL, and by adapters with DMA engines inside the nodes, alone and beside a loop of GEMMs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError, join_or
from weft.estimate import BenchmarkProtocol, estimate
from weft.estimate.target import seen_by_host
from weft.graph import Collective, Driver, Gemm, Graph, KernelChoice, TiledGemm, concurrent
from weft.kernels.compute_units import units_of_mask
from weft.kernels.library.interconnect import interconnect
from weft.lab.checks import Unfit, unfit_rows
from weft.lab.kinds import RowKind
from weft.lab.tables import Measurements
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.fit import tiling_for

_GPU, _RANKS, _BYTES = "mi300x", 8, 512 << 20


class GemmKernel(StrEnum):
    """The GEMM kernels of the rows: hipBLASLt, and a persistent one whose workgroups take tiles of 256 x 256."""

    HIPBLASLT = "torch"
    STEALING = "ws"


ALONE = "all-reduce alone"
QUANTITIES = (ALONE, "GEMM slowdown", "all-reduce slowdown", "makespan")


def _check(line: int, row: Mapping[str, Any]) -> None:
    """Raise Unfit for a GEMM kernel without a model."""
    if row["gemm"] not in [*GemmKernel]:
        raise Unfit("gemm", str(row["gemm"]), f"its kernel has no model; rows may have {join_or([*GemmKernel])}")


def _expanded(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    rows = checked.rows
    measured = (
        rows["comm_alone_ms"] * 1e-3,
        rows["gemm_overlap_ms"] / rows["gemm_alone_ms"],
        rows["comm_overlap_ms"] / rows["comm_alone_ms"],
        rows["wall_ms"] * 1e-3,
    )
    for quantity, values in zip(QUANTITIES, measured, strict=True):
        once = rows.drop_duplicates("channels_max") if quantity == ALONE else rows
        yield "corun", once.assign(quantity=quantity, measured=values[once.index])


def co_run(kernel: GemmKernel, gemm: Gemm, gpu: hardware.Gpu) -> Graph:
    """Return a GEMM of a kernel concurrent with the all-reduce of the rows."""
    graph = concurrent(gemm, Collective("all_reduce", _BYTES, _RANKS, gemm.dtype), 1, 1)
    if kernel is GemmKernel.HIPBLASLT:
        return graph
    tiling = replace(tiling_for(gemm, gpu), rows=256, columns=256)
    choice = KernelChoice(TiledGemm(tiling))
    return graph.map(lambda node: replace(node, choice=choice) if isinstance(node.op, Gemm) else node)


@lru_cache(maxsize=256)
def _quantities(kernel: str, dtype: str, m: float, n: float, k: float, most: float) -> Mapping[str, float]:
    """Return every quantity of a row by `weft.compare`; the library has no more channels than its own number."""
    from weft.simulate import compare

    on = hardware.system(_GPU, gpus=_RANKS)
    channels = min(int(most), interconnect(on).workgroups(_RANKS))
    graph = co_run(GemmKernel(kernel), Gemm(int(m), int(n), int(k), dtype), on.gpu)
    found = compare(graph, on, [replace(STRATEGIES["priority"], channels=channels)]).corun()
    times = (found.collective.alone, found.gemm.slowdown, found.collective.slowdown, found.makespan)
    return dict(zip(QUANTITIES, times, strict=True))


CORUNS = RowKind(
    kind="corun",
    by=("gemm", "dtype", "m", "n", "k", "channels_max", "quantity"),
    query=lambda *cells: cells,
    call=lambda rows, machine, *cells: _quantities(*cells[:-1])[cells[-1]],
    checks=lambda checked: [unfit_rows(checked, _check)],
    expand=_expanded,
    column="",
    labels=lambda rows, machine, _: rows[["gemm", "quantity"]],
    blamed="gemm",
)
"""A GEMM concurrent with an all-reduce with a number of channels, simulated request by request."""


class LimitedKernel(StrEnum):
    """The GEMM kernels of rows on fewer compute units: hipBLASLt under a mask, work stealing with a limited grid."""

    MASKED = "torch"
    GRID = "ws_grid"


_XCDS, _XCD_BITS = 8, 38
"""The masks that rows do not state have the first bits of each run of 38, as their script takes an XCD's units to lie.
Bits in fact go to the XCDs in turn (`units_of_mask`), so shader engines keep unequally many units."""


def mask_bits(stated: str, units: int) -> list[int]:
    """Return the set bits of a row's mask: those stated in full, else the first of each run of `units` // 8."""
    if stated.startswith("0x") and not stated.endswith("."):
        return [bit for bit in range(int(stated, 16).bit_length()) if int(stated, 16) >> bit & 1]
    return [_XCD_BITS * run + bit for run in range(_XCDS) for bit in range(units // _XCDS)]


def _check_units(line: int, row: Mapping[str, Any]) -> None:
    """Raise Unfit for a kernel without a model, and for more units than there are or too few for the row's time."""
    gpu = hardware.gpu(_GPU)
    if row["backend"] not in [*LimitedKernel]:
        raise Unfit(
            "backend", str(row["backend"]), f"its kernel has no model; rows may have {join_or([*LimitedKernel])}"
        )
    units = int(row["cus"])
    if not _XCDS <= units <= gpu.compute.compute_units:
        raise Unfit("cus", str(units), f"{gpu.name} has 8 to {gpu.compute.compute_units} for a kernel on all its dies")
    least = 2 * row["size"] ** 3 / gpu.matrix_rate(row["dtype"], "boost") * gpu.compute.compute_units / units
    if row["median_ms"] * 1e-3 < least:
        raise Unfit("median_ms", f"{row['median_ms']:.6g}", f"this is faster than {units} units at their highest clock")


@lru_cache(maxsize=256)
def _limited(kernel: str, dtype: str, size: float, units: float, stated: str) -> float:
    """Return the time of a simulated GEMM on fewer compute units as the host sees it, from a call to its end [s]."""
    from weft.simulate.single import alone, simulate

    gpu, gemm, count = hardware.gpu(_GPU), Gemm(int(size), int(size), int(size), dtype), int(units)
    if kernel == LimitedKernel.GRID:
        tiling = replace(tiling_for(gemm, gpu), rows=256, columns=256, persistent=count)
        graph = alone(gemm, kernel=TiledGemm(tiling))
    else:
        whole = count == gpu.compute.compute_units
        graph = alone(gemm, compute_units=None if whole else units_of_mask(gpu, mask_bits(stated, count)))
    launch = float(estimate(gemm, gpu, harness=BenchmarkProtocol(timed="host")).parts["launch"])
    return float(seen_by_host(_FUNCTION, simulate(graph, gpu).seconds - gpu.compute.launch_latency, launch))


_FUNCTION = "bmm"
"""Rows time a call of a function of PyTorch, as those of bmm do: it costs the host less than one of a module."""


LIMITED = RowKind(
    kind="compute_units",
    by=("backend", "dtype", "size", "cus", "mask"),
    query=lambda *cells: cells,
    call=lambda rows, machine, *cells: _limited(*cells),
    checks=lambda checked: [unfit_rows(checked, _check_units)],
    expand=lambda checked: [("compute_units", checked.rows.assign(measured=checked.rows["median_ms"] * 1e-3))],
    column="",
    labels=lambda rows, machine, _: rows[["backend"]],
    blamed="cus",
)
"""A GEMM on fewer compute units, simulated request by request."""


class GatherTransport(StrEnum):
    """How all-gathers over nodes move data: RCCL's rings, or adapters and DMA engines (both names mean the same)."""

    RCCL = "rccl"
    SDMA = "sdma"
    SDMA_RDMA = "sdma+rdma"


GATHER_ALONE, GATHER_BESIDE = "all-gather alone", "makespan"
_GATHER_GEMM = Gemm(4096, 4096, 4096, "bf16")
_LOOPED = "sweep_gemm_overlap"
"""Rows of this file state neither machine nor GEMM: 2 nodes of 4 MI355X (its pages), and the GEMM of its script
(ROCm/mori tests/python/ccl/bench_gemm_overlap.py @0660f81), which reads the host's clock around a call of PyTorch."""


def _gather_system(row: Mapping[str, Any]) -> hardware.System:
    name = "mi355x-x8" if _LOOPED in row["source"] else row["system"]
    return hardware.system(name, gpus=int(row["ranks"]), nodes=int(row["nodes"]))


def _check_gather(line: int, row: Mapping[str, Any]) -> None:
    """Raise Unfit for a transport without a model, a machine that is not stated, and a row without a time alone."""
    if row["transport"] not in [*GatherTransport]:
        raise Unfit("transport", row["transport"], f"this has no model; rows may have {join_or([*GatherTransport])}")
    if not np.isfinite(row["alone_gbps"]) and not np.isfinite(row["alone_ms"]):
        raise Unfit("alone_ms", "", "the time or rate of the all-gather alone is needed; its GEMM is not stated")
    try:
        _gather_system(row)
    except InputError as error:
        raise Unfit("system", row["system"], str(error)) from None


def _expand_gathers(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    rows = checked.rows
    moved = rows["size_mb"] * (1 << 20) * rows["ranks"]
    alone = (rows["alone_ms"] * 1e-3).fillna(moved / (rows["alone_gbps"] * 1e9))
    yield "corun_nodes", rows.assign(quantity=GATHER_ALONE, measured=alone)
    both = rows[np.isfinite(rows["gemm_loop_total_ms"])]
    if len(both):
        yield "corun_nodes", both.assign(quantity=GATHER_BESIDE, measured=both["gemm_loop_total_ms"] * 1e-3)


def _gather(row: Mapping[str, Any], machine: Any) -> tuple[Any, ...]:
    loops = int(row["gemm_iters"]) if row["quantity"] == GATHER_BESIDE else 0
    moved = Collective(
        "all_gather", int(row["size_mb"] * (1 << 20)) * int(row["ranks"]), int(row["ranks"]), row["dtype"]
    )
    host = "framework" if _LOOPED in row["source"] and row["transport"] == GatherTransport.RCCL else ""
    return _gather_system(row), moved, row["transport"], host, loops


@lru_cache(maxsize=256)
def _gather_seconds(on: hardware.System, moved: Collective, transport: str, host: str, gemms: int) -> float:
    """Return the time of an all-gather alone in closed form, or until it and GEMMs launched before it end [s]."""
    from weft.simulate import compare

    by_units = transport == GatherTransport.RCCL
    if not gemms:
        harness = BenchmarkProtocol(host=host, driver=Driver.CU if by_units else Driver.DMA)
        return float(estimate(moved, on, harness=harness).seconds)
    graph = concurrent(_GATHER_GEMM, moved, gemms, 1)
    return compare(graph, on, [STRATEGIES["streams" if by_units else "dma"]]).corun().makespan


GATHERS = RowKind(
    kind="corun_nodes",
    query=_gather,
    call=lambda rows, machine, *cells: _gather_seconds(*cells),
    checks=lambda checked: [unfit_rows(checked, _check_gather)],
    expand=_expand_gathers,
    column="",
    labels=lambda rows, machine, _: rows[["quantity"]].assign(
        gpus=(rows["ranks"] / rows["nodes"]).astype("int64"), transport=rows["transport"].str.split("+").str[0]
    ),
    blamed="system",
)
"""All-gathers over nodes, alone and beside a loop of GEMMs, simulated request by request."""
