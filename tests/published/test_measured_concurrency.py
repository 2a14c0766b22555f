"""The engine against measurements: co-runs with an all-reduce, ring reduce-scatters, GEMMs overlapped by libraries.

The rows are read from `WEFT_DATA`, or from the shared data beside the checkout; without them the tests are skipped.
"""

import csv
import math

import pytest
from measured import measurements
from runs import beside, overlapped, ring_collective

from weft import hardware
from weft.graph import Gemm

pytestmark = pytest.mark.slow

SIZES = range(6_000_000, 192 * 2**20)


def rows(name):
    with measurements(name).open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_gemm_beside_an_all_reduce_slows_and_is_slowed_as_measured():
    for row in rows("contention.csv"):
        answer = beside(
            Gemm(*(int(row[size]) for size in "mnk"), row["dtype"]),
            row["collective"],
            int(row["bytes"]),
            hardware.system(row["system"]),
            ranks=hardware.system(row["system"]).gpus,
            gemms=int(row["gemms"]),
            collectives=int(row["collectives"]),
            first="collective",
            clock="short",  # the source reports 1410 MHz at 323 W of 500 W
        )
        for loop, name in ((answer.gemm, "gemm"), (answer.collective, "collective")):
            slowdown = float(row[f"{name}_concurrent_us"]) / float(row[f"{name}_alone_us"])
            assert loop.slowdown == pytest.approx(slowdown, rel=0.1)
            assert loop.alone * 1e6 == pytest.approx(float(row[f"{name}_alone_us"]), rel=0.1)
        assert answer.makespan * 1e6 == pytest.approx(float(row["makespan_us"]), rel=0.1)


def test_ring_reduce_scatters_take_what_was_measured():
    errors = []
    for row in rows("collectives.csv"):
        if row["collective"] != "reduce_scatter" or int(row["bytes"]) not in SIZES or "nccl_perf" not in row["source"]:
            continue
        if not any(name in row["system"] for name in ("A100", "H100")):
            continue
        dtype = "int8" if "dtype int8" in row["notes"] else "fp16"
        machine = hardware.system(row["system"])
        predicted = ring_collective("reduce_scatter", int(row["bytes"]), machine, ranks=int(row["ranks"]), dtype=dtype)
        errors.append(abs(math.log(predicted * 1e6 / float(row["time_us"]))))
    assert math.expm1(sum(errors) / len(errors)) <= 0.06


def test_gemms_overlapped_by_flux_and_transformer_engine_take_what_was_measured():
    errors, sequential, signs = [], [], []
    for row in rows("overlap.csv"):
        if row["system"] not in ("8xA100-80GB-SXM4", "8xA800-SXM") or row["pattern"] not in (
            "ag_gemm",
            "gemm_rs",
        ):
            continue
        method = "flux" if row["notes"].startswith("system=flux") else "userbuffers"
        machine = hardware.system(row["system"])
        sizes = (int(row[size]) for size in "mnk")
        answer = overlapped(row["pattern"], *sizes, machine, method, row["dtype"])
        measured, apart = float(row["overlap_us"]) * 1e-6, float(row["sequential_us"]) * 1e-6
        errors.append(abs(answer.overlapped / measured - 1))
        sequential.append(abs(answer.sequential / apart - 1))
        signs.append((answer.sequential > answer.overlapped) == (measured < apart))
    assert sum(errors) / len(errors) <= 0.12
    assert sum(sequential) / len(sequential) <= 0.08
    assert sum(signs) / len(signs) >= 0.85
