"""Errors by class: which rows count, what a class says of machines, and that answers read what the tools write."""

import importlib.util
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from weft.estimate.errors import C3_SPEEDUPS, CARRIED
from weft.lab.classes import class_errors
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
    {"join": ["async-tp"] * 4, "quantity": ["time"] * 4, "system": ["dgx-h100"] * 3 + ["hgx-a100-4"]},
)  # fmt: skip
CELL = part("contention", "", [1.0, 2.0], [0.02, -0.04], {"quantity": ["makespan"] * 2}, system=["hgx-a100-4"] * 2)


def test_only_gemms_in_16_bit_count_by_time():
    assert class_errors([GEMMS], [], [])["gemm"] == {"a": [[0.1, 1, 1, 0.1], [0.2, 1, 1, 0.2]]}


def test_only_collectives_of_one_node_count_by_size():
    assert class_errors([MOVED], [], [])["collective"] == {
        "a": {"all_gather": [[0.1, 1, 1, 0.1], [], [0.3, 1, 1, 0.3]]}
    }


def test_every_machine_of_a_class_weighs_alike():
    found = class_errors([PIECES], [], [PIECES])["joined"]["async-tp"]
    row = [0.3, 4, 2, pytest.approx(0.38)]  # systems off by 0.1 and 0.5; the last is the 90th percentile of the rows
    assert found == {"seen": [[], row], "left_out": [[], row]}
    other = part("gemm", "b", [1e-3] * 9, [0.4] * 9, {"dtype": ["bf16"] * 9})
    assert class_errors([], [GEMMS, other], [])["left_out"]["gemm"][1] == [0.3, 10, 2, 0.4]


def test_beside_a_collective_the_largest_error_counts():
    assert class_errors([CELL], [], [])["beside"] == {"largest": 0.04, "cells": 2, "systems": ["hgx-a100-4"]}


def test_what_the_tool_writes_is_what_answers_read():
    classes = class_errors([GEMMS, MOVED, PIECES, CELL], [GEMMS], [PIECES])
    read = tomllib.loads(tool("errors").classes_toml(classes))
    assert read == {**classes, "bounds": {name: list(found) for name, found in classes["bounds"].items()}}
    assert tomllib.loads(tool("errors").classes_toml(CARRIED)) == CARRIED


def test_speedups_of_c3_are_means_over_its_scenarios():
    def case(ideal, speedup):
        return {"ideal": ideal, "strategies": {name: {"speedup": speedup} for name in IDS}}

    written = tool("figures").c3_speedups({"scenarios": [case(1.4, 1.1), case(1.8, 1.3)]})
    found = tomllib.loads("\n".join(written))
    assert list(found) == list(C3_SPEEDUPS)
    published = DECLARED.claims[IDS["dma"]].published
    assert found["dma"] == pytest.approx([1.2, 1 + published * 0.6], abs=1e-3)
