"""The bar that the shipped models are held to: errors on rows and machines that no fit saw."""

from __future__ import annotations

from collections.abc import Iterator

from weft.validation.bar import Demand, where
from weft.validation.collectives import FROM_MACHINE
from weft.validation.contentions import QUANTITIES
from weft.validation.gemms import LONG, SHORT
from weft.validation.layers import TOTAL
from weft.validation.overlaps import FLUX, FLUX_METHODS, SEQUENTIAL

HALF = ("bf16", "fp16")
_TUNED = {
    "A100": ("a100-sxm-80gb",),
    "H100": ("h100-sxm",),
    "B200": ("b200",),
    "L40S": ("l40s",),
    "MI210, MI250X": ("mi210", "mi250x-gcd"),
}
_SINGLE = {"MI210": ("mi210",), "A100": ("a100-pcie-80gb", "a100-sxm-80gb"), "H100": ("h100-sxm",)}
SIZES = {">= 16 MiB": 0.035, ">= 1 MiB": 0.045, "all sizes": 0.06}
"""Classes of size of a collective, and how far off they may be on average inside one node."""
_NCCL_GPUS = ("a100-sxm-80gb", "h100-sxm", "b200")
_NCCL = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")


def demands() -> list[Demand]:
    """Every demand that the models must meet."""
    return [*_gemms(), *_collectives(), *_layers(), *_simulated()]


def _gemms() -> Iterator[Demand]:
    for name, machines in _TUNED.items():
        what = f"GEMM bf16/fp16, {name}"
        at_least_20us = where(machines, LONG, dtype=HALF)
        yield Demand(f"{what}, {LONG}", "gemm", "held out", {"mean": 0.08, "p90": 0.18}, at_least_20us)
        yield Demand(f"{what}, {SHORT}", "gemm", "held out", {"mean": 0.15}, where(machines, SHORT, dtype=HALF))
        yield Demand(f"{what}, {LONG}", "gemm", "leave one out", {"mean": 0.15}, at_least_20us)
    for name, machines in _SINGLE.items():
        rows = where(machines, dtype=("fp32",))
        yield Demand(f"GEMM fp32, {name}", "gemm", "held out", {"mean": 0.10, "p90": 0.25}, rows)
        yield Demand(f"GEMM fp32, {name}", "gemm", "leave one out", {"mean": 0.18}, rows)
    yield Demand("GEMM fp8, H100", "gemm", "held out", {"mean": 0.10}, where(("h100-sxm",), dtype=("fp8",)))


def _collectives() -> Iterator[Demand]:
    one_node = {"library": ("nccl",), "nodes": (1,), "collective": _NCCL}
    for who, only in (("every row", {}), ("nccl-tests", {"host": ("",)})):
        for size, limit in SIZES.items():
            rows = where((), size, **one_node, **only)
            yield Demand(f"NCCL, one node, {who}, {size}", "collective", "held out", {"mean": limit}, rows)
    yield Demand("NCCL, one node, every row", "collective", "leave one out", {"mean": 0.20}, where((), "", **one_node))
    for gpu in _NCCL_GPUS:
        rows = where((gpu,), "", **one_node)
        yield Demand(f"NCCL, one node, {gpu}", "collective", "held out", {"mean": 0.06}, rows)
        yield Demand(f"NCCL, one node, {gpu}", "collective", "leave one out", {"mean": 0.20}, rows)
    rows = where(("mi250x-gcd", "mi210"), "", library=("rccl",), nodes=(1,))
    yield Demand("RCCL, MI200", "collective", "held out", {"mean": 0.07}, rows)
    # Too few rows to fit, and the catalogue's values come from others.
    rows = where(("mi300x",), "", library=("rccl",), nodes=(1,))
    yield Demand("RCCL, MI300X", "collective", "as shipped", {"mean": 0.07}, rows)
    many = where((), "", nodes=tuple(range(2, 1000)), library=("nccl", "rccl"))
    yield Demand("two nodes and more", "collective", "held out", {"mean": 0.20}, many)
    rows = where((), "", nodes=tuple(range(2, 1000)), library=("nccl", "rccl"), network=(FROM_MACHINE,))
    what = "two nodes and more, networks not read from the rows"
    yield Demand(what, "collective", "held out", {"mean": 0.20}, rows)


def _layers() -> Iterator[Demand]:
    what = "GPT-3 layer, TP 4, prefill"
    total, each = where((), TOTAL, phase=("prefill",)), where((), "each operator", phase=("prefill",))
    yield Demand(f"{what}: total", "layer", "as shipped", {"mean": 0.03}, total)
    yield Demand(f"{what}: each operator", "layer", "as shipped", {"mean": 0.10}, each)


def _simulated() -> Iterator[Demand]:
    what = "ring reduce-scatter in the engine, 6 to 192 MB"
    yield Demand(what, "ring", "as shipped", {"geomean": 0.06}, where())
    for quantity in QUANTITIES:
        rows = where(quantity=(quantity,))
        yield Demand(f"contention cell, {quantity}", "contention", "as shipped", {"mean": 0.10}, rows)
    sequential, overlapped = where((), FLUX, method=(SEQUENTIAL,)), where((), FLUX, method=FLUX_METHODS)
    yield Demand(f"{FLUX}: sequential", "overlap", "as shipped", {"mean": 0.08}, sequential)
    yield Demand(f"{FLUX}: overlapped", "overlap", "as shipped", {"mean": 0.12}, overlapped)
