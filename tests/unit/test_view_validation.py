"""The page and pictures of a validation, from plain data."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from weft.lab.error_tables import bar_table, errors_table, without_rows
from weft.lab.page import ValidationReport, error_against_size, predicted_against_measured, write_validation
from weft.lab.subjects import MEASURED, Predicted, Subject, join_clouds

GROUP = {
    "kind": "gemm", "gpu": "h100-sxm", "system": None, "machine": "h100-sxm", "rows": 1200, "mean_abs_err": 0.05,
    "median_abs_err": 0.04, "p90_abs_err": 0.1, "bias": -0.01, "geomean_err": 0.051, "max_abs_err": 0.4,
}  # fmt: skip
LINE = {
    "what": "GEMM", "protocol": "held out", "statistic": "mean", "limit": 0.08, "reached": 0.0801, "rows": 40,
    "at_least": False, "verdict": "MISS",
}  # fmt: skip
WORST = {
    "file": "gemm.csv",
    "line": 7,
    "gpu": "h100-sxm",
    "m": 8,
    "measured_s": 1e-5,
    "predicted_s": 2e-5,
    "error": 1.0,
}


@dataclass(frozen=True)
class Points:
    title: str
    predicted: np.ndarray
    measured: np.ndarray
    size: np.ndarray
    size_label: str = "buffer [bytes]"


def points(title="h100-sxm bf16", count=50):
    measured = np.geomspace(1e-5, 1e-2, count)
    return Points(title, measured * 1.07, measured, measured * 1e9)


class Findings:
    def to_dict(self):
        return {
            "groups": [GROUP], "ranges": [{**GROUP, "range": ">= 20 us"}], "overall": [GROUP], "worst": [WORST],
            "rows_read": 1300, "rows_used": 1200,
        }  # fmt: skip

    def clouds(self):
        return {"gemm": [points(), points("b200 bf16")], "contention": []}

    def complaints(self):
        return ["gemm.csv line 9: <odd>"]


def test_keys_that_tell_no_group_apart_have_no_column():
    table = errors_table([GROUP])
    assert tuple(table.heads) == ("kind", "gpu", "rows", "mean", "median", "p90", "bias", "geomean")
    assert tuple(table.cells()[0]) == ("gemm", "h100-sxm", "1,200", "5.0%", "4.0%", "10.0%", "-1.0%", "5.1%")


def test_a_verdict_close_to_its_limit_shows_the_digits_that_decide():
    assert tuple(bar_table([LINE]).cells()[0]) == ("GEMM", "held out", "mean <= 8.0%", "8.01%", "40", "MISS")


def test_demands_that_no_row_is_about_are_counted_and_not_told(tmp_path):
    lines = [LINE, {**LINE, "reached": None, "rows": 0, "verdict": "no rows"}]
    assert len(bar_table(lines).rows) == 1
    assert without_rows(lines) == "1 of 2 demands is left out: no row is about it"
    assert without_rows([LINE]) == ""
    assert without_rows(lines) in write_validation(ValidationReport(Findings(), lines), tmp_path).read_text()


@pytest.mark.parametrize("draw", [predicted_against_measured, error_against_size])
def test_pictures_name_each_cloud_with_its_rows_and_mean_error(draw):
    svg = draw([points(), points("b200 bf16", 2000)]).svg()
    assert "h100-sxm bf16" in svg
    assert "2,000 rows, mean 7.0%" in svg
    assert svg == draw([points(), points("b200 bf16", 2000)]).svg()


def test_the_page_holds_tables_pictures_verdicts_and_problems(tmp_path):
    page = write_validation(ValidationReport(Findings(), [LINE]), tmp_path).read_text()
    for words in (
        "1,200 of 1,300 rows",
        "What must be reached",
        "8.01%",
        "gemm.csv:7",
        "&lt;odd&gt;",
        "By class of size",
    ):
        assert words in page
    assert (tmp_path / "gemm-predicted.png").exists()
    assert (tmp_path / "gemm-error.png").exists()


@pytest.mark.parametrize(("seconds", "unit"), [(5e-5, "µs"), (0.02, "ms"), (12.0, "s")])
def test_times_are_drawn_in_the_unit_that_suits_them(seconds, unit):
    measured = np.full(3, seconds)
    clouds = [Points("steps", measured, measured, measured, MEASURED)]
    assert f"measured [{unit}]" in predicted_against_measured(clouds).svg()
    (table,) = error_against_size(clouds).data.values()
    shown = {column.key: column for column in table.columns}
    assert (shown["measured"].unit, shown["predicted"].unit) == (unit, unit)
    assert f"measured [{unit}]" in shown["size"].head


def test_rows_of_one_title_are_one_cloud():
    (same, other) = join_clouds([points("a", 5), points("b", 2), points("a", 3)])
    assert (same.title, len(same.measured), len(same.size)) == ("a", 8, 8)
    assert (other.title, len(other.predicted)) == ("b", 2)


def test_latencies_are_drawn_by_quantity_and_rates_are_not():
    rows, lines = pd.DataFrame({"x": [1, 2, 3]}), [2, 3, 4]
    labels = pd.DataFrame({"quantity": ["TPOT", "TTFT", "throughput"], "gpu": ["b200"] * 3}, lines)
    measured = np.array([0.01, 0.1, 5.0])
    subject = Subject(
        "serving", "b200", rows.set_index(pd.Index(lines)), measured, labels, lambda rows, values: measured
    )
    assert [cloud.title for cloud in Predicted(subject, measured).clouds()] == ["TPOT b200", "TTFT b200"]
