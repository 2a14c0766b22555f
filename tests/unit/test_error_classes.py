"""Errors by class: which rows count, what a class says of machines, and that answers read what the tools write."""

import importlib.util
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from weft.estimate.errors import C3_SPEEDUPS, CARRIED
from weft.lab.classes import class_coverage, class_errors
from weft.lab.subjects import Predicted, Subject
from weft.papers.c3.study import DECLARED, IDS

DOCS = Path(__file__).parents[2] / "docs"


def tool(name):
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def part(kind, machine, measured, off, labels, **columns):
    """Rows of a machine, each predicted `off` (a share) too long."""
    measured = np.array(measured)
    lines = np.arange(2, 2 + len(measured))
    rows, labels = pd.DataFrame(columns, lines), pd.DataFrame(labels, lines)
    subject = Subject(kind, machine, rows, measured, labels, lambda rows, values: measured)
    return Predicted(subject, measured * (1 + np.array(off)))


GEMMS = part("gemm", "a", [1e-5, 1e-3, 1e-3], [0.1, 0.2, 0.9], {"dtype": ["bf16", "fp16", "fp32"]})
MOVED = part(
    "collective", "a", [1e-5, 1e-4, 1e-4], [0.1, 0.3, 0.9],
    {"collective": ["all_gather"] * 3, "library": ["nccl"] * 3, "nodes": [1, 1, 2], "host": ["", "", ""]},
    bytes=[2**19, 2**24, 2**24],
)  # fmt: skip
PIECES = part(
    "overlap", "", [1e-3] * 4, [0.1, 0.1, 0.1, 0.5],
    {"join": ["async-tp"] * 4, "method": ["a"] * 4, "quantity": ["time"] * 4,
     "system": ["dgx-h100"] * 3 + ["hgx-a100-4"]},
)  # fmt: skip
CELL = part("contention", "", [1.0, 2.0], [0.02, -0.04], {"quantity": ["makespan"] * 2}, system=["hgx-a100-4"] * 2)


def many(kind, machine, ratios, **labels):
    """Rows of a machine whose measured value is each of `ratios` times the predicted."""
    count = len(ratios)
    return part(
        kind, machine, [1e-3] * count, [1 / one - 1 for one in ratios], {k: [v] * count for k, v in labels.items()}
    )


def test_a_speedup_counts_against_the_serial_pair_of_its_row():
    """Both are 10 % too long: the speedup is right, whatever the times."""
    labels = {"join": ["sequential", "flux"], "method": ["sequential", "flux"], "quantity": ["time"] * 2}
    alike, apart = (part("overlap", "", [2e-3, 1e-3], off, labels, system=["dgx-h100"] * 2) for off in OFF)
    for one in (alike, apart):
        one.subject.rows.index = one.subject.labels.index = [2, 2]
    for one, ratio in ((alike, 1.0), (apart, 1.1 / 1.0)):
        (low, high, rows, systems) = class_errors({"as shipped": [one], "system left out": [one]})["gain"]["flux"][
            "seen"
        ]
        assert low <= 1 / ratio <= high
        assert max(1 / low, high) == pytest.approx(ratio, abs=2e-3)
        assert (rows, systems) == (1, 1)


OFF = ([0.1, 0.1], [0.1, 0.0])


def test_makespans_of_few_systems_say_as_much_of_shorter_ones_as_of_longer():
    low, high, rows, _ = class_errors({"as shipped": [CELL]})["corun"]["makespan"]
    assert low == pytest.approx(1 / high, abs=1e-3)
    assert rows == 2


def test_latencies_of_loads_count_by_their_kernels_alone():
    labels = {"kernels": "vllm", "layers": "dense"}
    loads = [
        many("serving", "a", [1.2] * 10, quantity=quantity, **labels) for quantity in ("TPOT", "TTFT", "throughput")
    ]
    found = class_errors({"as shipped": [], "kernels alone": loads})["kernels_alone"]
    assert sorted(found) == ["vllm-dense-TPOT", "vllm-dense-TTFT"]
    assert found["vllm-dense-TPOT"] == [0.999, 1.2, 10, 1]


def test_only_gemms_in_16_bit_count_by_time():
    short, long = class_errors({"as shipped": [GEMMS]})["gemm"]["a"]
    assert (short[2:], long[2:]) == ([1, 1], [1, 1])


def test_only_collectives_of_one_node_count_by_size():
    small, middle, large = class_errors({"as shipped": [MOVED]})["collective"]["a"]["all_gather"]
    assert (small[2:], middle, large[2:]) == ([1, 1], [], [1, 1])
    across = class_errors({"as shipped": [MOVED]})["over_nodes"]["a"]["all_gather"]
    assert (across[:2], across[2][2:]) == ([[], []], [1, 1])


def test_an_interval_holds_four_of_five_rows_on_either_side_of_the_prediction():
    ratios = 1 + np.arange(99) / 100
    found = class_errors({"as shipped": [many("gemm", "a", ratios, dtype="bf16")]})["gemm"]["a"][1]
    assert found == [0.999, 1.89, 99, 1]  # 10 of 100 lie beyond 1.89, the next row among them
    below = class_errors({"as shipped": [many("gemm", "a", 1 / ratios, dtype="bf16")]})["gemm"]["a"][1]
    assert below == [pytest.approx(1 / 1.89, abs=1e-3), 1.001, 99, 1]


def test_a_class_of_few_rows_takes_the_wider_of_its_interval_and_its_kinds():
    wide = many("gemm", "a", 1 + np.linspace(-0.5, 0.5, 101), dtype="bf16")
    few = many("gemm", "b", [1.02, 1.03], dtype="bf16")
    found = class_errors({"as shipped": [wide, few]})["gemm"]
    assert found["b"][1][0] <= 1 - 0.001
    assert found["b"][1][:2] == [0.61, 1.06] or found["b"][1][0] < 0.7


def test_rows_of_a_machine_with_a_fit_count_as_held_out_of_it():
    shipped, held = (many("gemm", "a", [ratio] * 20, dtype="bf16") for ratio in (1.0, 1.2))
    assert class_errors({"as shipped": [shipped]})["gemm"]["a"][1][1] == 1.001
    assert class_errors({"as shipped": [shipped], "held out": [held]})["gemm"]["a"][1][1] == 1.2


def test_every_machine_of_a_class_weighs_alike():
    one, other = (
        many("gemm", name, [ratio] * count, dtype="bf16") for name, ratio, count in [("a", 1.1, 90), ("b", 1.4, 10)]
    )
    assert class_errors({"leave one out": [one, other]})["left_out"]["gemm"][1] == [0.999, 1.4, 100, 2]


def test_pairs_count_by_system_left_out():
    seen, left = (
        {"as shipped": [PIECES], "system left out": []},
        {"as shipped": [PIECES], "system left out": [PIECES]},
    )
    assert class_errors(seen)["joined"]["async-tp"]["left_out"] == [[], []]
    assert class_errors(left)["joined"]["async-tp"]["left_out"][1][2:] == [4, 2]


def test_beside_a_collective_the_largest_error_counts():
    assert class_errors({"as shipped": [CELL]})["beside"] == {"largest": 0.04, "cells": 2, "systems": ["hgx-a100-4"]}


def test_what_the_tool_writes_is_what_answers_read():
    classes = class_errors(
        {"as shipped": [GEMMS, MOVED, PIECES, CELL], "leave one out": [GEMMS], "system left out": [PIECES]}
    )
    read = tomllib.loads(tool("errors").classes_toml(classes))
    for kind in ("gemm", "collective", "over_nodes", "left_out", "joined", "beside", "exchange", "gain", "corun"):
        assert read.get(kind, {}) == classes[kind]
    assert tomllib.loads(tool("errors").classes_toml(CARRIED)) == CARRIED


def test_speedups_of_c3_are_means_over_its_scenarios():
    def case(ideal, speedup):
        return {"ideal": ideal, "strategies": {name: {"speedup": speedup} for name in IDS}}

    written = tool("figures").c3_speedups({"scenarios": [case(1.4, 1.1), case(1.8, 1.3)]})
    found = tomllib.loads("\n".join(written))
    assert list(found) == list(C3_SPEEDUPS)
    published = DECLARED.claims[IDS["dma"]].published
    assert found["dma"] == pytest.approx([1.2, 1 + published * 0.6], abs=1e-3)


def test_coverage_counts_rows_in_intervals_that_their_fifth_does_not_make():
    ratios = np.random.default_rng(1).lognormal(0, 0.2, 2000)
    by = {"held out": [many("gemm", "a", ratios, dtype="bf16")]}
    inside, rows, classes, least, most = class_coverage(by)["gemm"]["a fifth of its rows"]
    assert 0.77 < inside < 0.83
    assert (rows, classes) == (2000, 1)
    assert least == most == inside


def test_coverage_without_its_gpu_is_low_where_gpus_differ():
    parts = [
        many("gemm", name, np.linspace(0.99, 1.01, 40) * bias, dtype="bf16") for name, bias in [("a", 1), ("b", 2)]
    ]
    inside, *_ = class_coverage({"leave one out": parts})["gemm"]["its GPU"]
    assert inside < 0.3  # every interval holds 1


def test_classes_of_few_rows_state_no_coverage():
    assert class_coverage({"held out": [many("gemm", "a", [1.0] * 29, dtype="bf16")]})["gemm"] == {}


def test_the_interval_of_a_machine_without_rows_holds_that_of_each_machine_left_out():
    """Most rows of two machines lie near 1; the third's near 1.5 widen the interval, however few they are."""
    parts = [
        many("gemm", name, np.linspace(0.95, 1.05, count) * bias, dtype="bf16")
        for name, bias, count in [("a", 1, 400), ("b", 1, 400), ("c", 1.5, 20)]
    ]
    by = {"leave one out": parts}
    low, high, rows, machines = class_errors(by)["left_out"]["gemm"][1]
    assert low == pytest.approx(0.96, abs=0.01)
    assert high == pytest.approx(1.56, abs=0.02)
    assert (rows, machines) == (820, 3)
