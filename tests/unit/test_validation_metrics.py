"""Errors per group, demands on them, and what one machine may borrow from others."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from weft.estimate import Parameter
from weft.lab.bar import Demand, demands
from weft.lab.calibration import borrow_values, calibrate_subject, leave_one_out
from weft.lab.run import ROW_KINDS
from weft.lab.subjects import Predicted, Subject, errors_of, group_errors, predict_subject, worst

PACE = Parameter("pace", 0.1, 10.0, "", 5, "seconds per unit of work")


def subject(machine, pace, vendor="nvidia", count=60, dtype="bf16"):
    work = np.linspace(1, 50, count)
    rows = pd.DataFrame({"m": work}, np.arange(2, count + 2))
    return Subject(
        kind="gemm",
        machine=machine,
        rows=rows,
        measured=pace * work,
        labels=pd.DataFrame({"gpu": machine, "dtype": dtype}, rows.index),
        ranges={"long": work > 25},
        predict=lambda some, values: values.get("pace", 1.0) * some["m"].to_numpy(),
        parameters=(PACE,),
        start={"pace": 1.0},
        vendor=vendor,
    )


def test_errors_are_relative_to_the_measurement():
    found = errors_of(np.array([1.1, 0.8, 2.0]), np.array([1.0, 1.0, 2.0]))
    assert found.rows == 3
    assert found.mean_abs_err == pytest.approx(0.1)
    assert found.median_abs_err == pytest.approx(0.1)
    assert found.bias == pytest.approx(-0.1 / 3)
    assert found.p90_abs_err == pytest.approx(0.18)
    assert found.geomean_err == pytest.approx((1.1 / 0.8) ** (1 / 3) - 1)


def test_groups_are_disjoint_and_cover_all_rows():
    ones = np.ones(4)
    found = group_errors(ones, ones, pd.DataFrame({"gpu": ["a", "b", "a", "b"], "dtype": ["x", "x", "x", "y"]}))
    assert [(group.keys["gpu"], group.keys["dtype"], group.errors.rows) for group in found] == [
        ("a", "x", 2), ("b", "x", 1), ("b", "y", 1),
    ]  # fmt: skip


def test_the_worst_rows_are_those_with_the_largest_ratio_either_way():
    assert worst(np.array([1.0, 0.2, 3.0]), np.ones(3), 2).tolist() == [1, 2]


def test_calibration_lowers_the_error_on_rows_that_it_did_not_see():
    done = calibrate_subject(subject("a", 2.0))
    assert done.before.mean_abs_err == pytest.approx(0.5)
    assert done.after.mean_abs_err < 1e-3
    assert (done.fitted_rows, len(done.held_out.subject)) == (42, 18)
    assert done.fit.values()["pace"] == pytest.approx(2, rel=1e-3)


def test_a_machine_left_out_borrows_the_geometric_mean_of_its_vendors_others():
    machines = [subject("a", 1), subject("b", 2), subject("c", 8), subject("d", 5, vendor="amd")]
    fits = {f"gemm {name}": {"pace": pace} for name, pace in (("a", 1), ("b", 2), ("c", 8), ("d", 5))}
    assert borrow_values(machines[0], machines, fits) == pytest.approx({"pace": 4})
    assert borrow_values(machines[3], machines, fits) == pytest.approx({"pace": 16 ** (1 / 3)})
    left = leave_one_out(machines, fits)
    assert left[0].seconds == pytest.approx(4 * machines[0].rows["m"])


def test_what_is_borrowed_is_relative_to_what_is_known_of_each_machine():
    fits = {"gemm a": {"pace": 2.0}, "gemm b": {"pace": 9.0}}
    slow = replace(subject("b", 1), relative={"pace": 3.0})
    assert borrow_values(slow, [subject("a", 1), slow], fits) == pytest.approx({"pace": 6})
    assert borrow_values(subject("a", 1), [subject("a", 1), slow], fits) == pytest.approx({"pace": 3})


def test_a_demand_counts_only_its_rows_and_says_whether_it_holds():
    parts = [predict_subject(subject("a", 1.05)), predict_subject(subject("b", 2.0))]
    near = Demand(
        "near", "gemm", "held out", {"mean": 0.1, "p90": 0.01}, {"machines": ["a"], "size": "long", "dtype": ["bf16"]}
    )
    first, second = near.lines(parts)
    assert (first.rows, first.verdict, second.verdict) == (31, "pass", "MISS")
    assert first.reached == pytest.approx(1 - 1 / 1.05)
    nobody = Demand("none", "gemm", "held out", {"mean": 0.1}, {"machines": ["z"]})
    assert nobody.lines(parts)[0].verdict == "no rows"


def test_rows_of_several_nodes_and_without_a_label_are_told_apart():
    some = subject("a", 1.0, count=4)
    nodes = replace(some, labels=some.labels.assign(nodes=[1, 2, 3, 1]))
    several = Demand("several", "gemm", "as shipped", {"mean": 0.1}, {"nodes": "several"})
    assert several.which(nodes).tolist() == [False, True, True, False]
    unlabelled = Demand("none", "gemm", "as shipped", {"mean": 0.1}, {"library": ["nccl"]})
    assert not unlabelled.which(nodes).any()


def test_every_demand_is_about_a_kind_that_there_is_by_statistics_that_there_are():
    known = {*ROW_KINDS, "ring", "memory", "disaggregated", "energy"} - {"dram", "operator"}
    assert {demand.kind for demand in demands()} == known
    assert {name for demand in demands() for name in demand.limits} == {"mean", "p90", "geomean"}


def test_taking_rows_takes_them_everywhere():
    half = subject("a", 1.0).take(np.arange(60) < 30)
    assert len(half) == len(half.measured) == len(half.labels["gpu"]) == len(half.ranges["long"]) == 30
    assert isinstance(predict_subject(half), Predicted)
