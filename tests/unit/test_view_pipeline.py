"""The diagram of a pipeline schedule shows the tasks of its result."""

import pytest

from weft.core.errors import InputError
from weft.step.pipeline import Durations, run_schedule, schedule
from weft.view import pipeline_diagram


def drawn(name, micro_batches=8):
    times = run_schedule(schedule(name, 4, micro_batches), Durations(1e-3, 1e-3, 1e-3))
    return times, pipeline_diagram(times)


def test_each_task_is_a_bar_of_its_kind_on_its_device():
    times, figure = drawn("zb-h1")
    rows = figure.data["bars"].records()
    assert len(rows) == times.schedule.tasks == 3 * 4 * 8
    assert {row["kind"] for row in rows} == {"forward", "backward", "weight gradient"}
    last = [row for row in rows if row["device"] == "device 3"]
    assert (last[0]["start_ms"], last[0]["end_ms"]) == pytest.approx((3, 4))
    assert max(row["end_ms"] for row in rows) == pytest.approx(27)
    assert figure.svg().startswith("<svg")
    assert figure.caption == "Idle 11.1% of the time; at most 4 micro-batches in flight on a device."


def test_a_device_that_never_waits_idles_by_no_negative_share():
    times = run_schedule(schedule("1f1b", 1, 5), Durations(1e-4, 2e-4, 0.0))
    assert -1e-12 < times.idle_share < 0  # of rounding
    assert pipeline_diagram(times).caption.startswith("Idle 0.0% of the time")


def test_tasks_that_run_together_stand_in_two_rows():
    _, figure = drawn("dualpipe")
    rows = figure.data["bars"].records()
    assert {(row["kind"], row["row"]) for row in rows} == {
        ("forward", "above"), ("backward", "below"), ("weight gradient", "below"),
    }  # fmt: skip
    assert "yOffset" in str(figure.spec)
    assert "yOffset" not in str(drawn("1f1b")[1].spec)


def test_a_diagram_that_nobody_could_read_is_refused():
    with pytest.raises(InputError, match="a diagram of 32000 tasks shows nothing; draw at most 20000"):
        drawn("1f1b", 4000)
