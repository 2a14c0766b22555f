"""Schedules that are found and checked, from Python, the shell, and within a step."""

import json

import numpy as np
import pytest

import weft
from weft.cli.main import main
from weft.core.errors import ConfigError, InputError, UnitError, UnknownNameError
from weft.plan.schedules import check_schedule, find_schedule
from weft.step.pipeline import Durations, Send, read_schedule, run_schedule, schedule
from weft.step.pipeline.filling import Costs, Scratch, Settings, anneal, clock, compile_filling, fill
from weft.step.pipeline.problem import OrderProblem, least_end, least_spans

EVEN = ("1 ms", "1 ms", "1 ms")


@pytest.mark.parametrize(("memory", "span"), [(4, 27), (7, 24), (8, 24)])
def test_equal_stages_reach_the_spans_of_zb_h1_and_zb_h2_and_no_order_is_shorter(memory, span):
    found = find_schedule(4, 8, *EVEN, memory=memory)
    assert found.times.span.max() == pytest.approx(span * 1e-3)
    assert found.gap == pytest.approx(0, abs=1e-12)
    assert found.peaks.max() <= memory
    assert found.times.schedule.splits_backward


def test_one_micro_batch_in_memory_leaves_one_stage_at_work():
    found = find_schedule(3, 4, *EVEN, memory=1)
    assert found.peaks.tolist() == [1, 1, 1]
    assert found.cost(found.times) == pytest.approx(0.001 * 4 * 7)  # F and B of three stages in turn, and a W
    assert found.gap == pytest.approx(0, abs=1e-12)


def test_a_bound_of_one_stage_is_its_work_and_reached():
    problem = OrderProblem(1, 5, Durations(1.0, 2.0, 0.5))
    assert least_spans(problem).tolist() == [17.5]
    assert least_end(problem) == 17.5
    assert find_schedule(1, 5, "1 s", "2 s", "0.5 s").gap == 0


def test_the_bound_counts_the_way_to_the_last_stage_and_back():
    """Little W leaves the last stage as the one to wait for: F there, all its F and B, B back, and a W."""
    problem = OrderProblem(3, 6, Durations(1.0, 1.0, 0.01), 0.1)
    assert least_spans(problem)[0] == pytest.approx(2 * 1.1 + 6 * 2 + 2 * 1.1 + 0.01)


def test_the_bound_counts_weight_gradients_without_which_memory_would_be_full():
    free, tight = (least_spans(OrderProblem(3, 6, Durations(1.0, 1.0, 0.5), 0.1, limit))[0] for limit in (6, 5))
    assert tight == pytest.approx(free + 0.5)


def test_memory_in_bytes_is_memory_in_micro_batches_of_that_size():
    counted = find_schedule(4, 8, *EVEN, memory=6, kept_for_weight=0.5)
    sized = find_schedule(4, 8, *EVEN, memory="12 GB", activations="2 GB", kept_for_weight="1 GB")
    assert sized.limit == (6, 6, 6, 6)
    assert sized.kept == (0.5, 0.5, 0.5, 0.5)
    assert sized.activations == (2e9, 2e9, 2e9, 2e9)
    assert sized.to_dict()["schedule"] == counted.to_dict()["schedule"]


def test_stages_may_differ_in_times_and_in_memory():
    found = find_schedule(3, 6, "1 ms, 2 ms, 1 ms", ["1 ms", "2 ms", "1.5 ms"], "1 ms", memory=[3, 2, 1], send="0.1 ms")
    assert (found.peaks <= [3, 2, 1]).all()
    assert set(found.named) == {"gpipe", "1f1b", "zb-h1", "zb-h2"}
    assert found.times.end[0, 1, 0] - found.times.start[0, 1, 0] == pytest.approx(2e-3)


def test_equal_stages_are_compared_with_schedules_of_two_chunks_too():
    found = find_schedule(4, 8, *EVEN)
    assert {"interleaved:2", "zb-v", "v-half", "v-min"} < set(found.named)
    assert found.bubble(found.named["1f1b"]) == pytest.approx(1 - 24 / 33)
    assert not found.fits(found.named["zb-h2"])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"memory": "12 GB"}, InputError, "memory is '12 GB'; give a number of micro-batches, or a size together with"),
        ({"memory": "1e400"}, InputError, "memory is '1e400'; give a finite number"),
        ({"memory": "4 GB", "activations": "0 B"}, InputError, "give sizes above zero"),
        ({"memory": 0.5}, InputError, "may hold 0.5 micro-batches, but needs at least 1"),
        ({"memory": [4, 4]}, InputError, "memory has 2 values; give one, or 4"),
        ({"memory": float("nan")}, InputError, "may hold nan micro-batches"),
        ({"forward": "1 ms, 2 ms"}, InputError, "forward has 2 values; give one, or 4"),
        ({"forward": 3}, UnitError, "forward: 3 is not a quantity in seconds"),
        ({"send": "-1 ms"}, InputError, "send is '-1 ms'; give values of zero or more"),
        ({"kept_for_weight": 2}, InputError, "between 0 and 1"),
        ({"objective": "time"}, UnknownNameError, "objective 'time'"),
        ({"stages": 0}, InputError, "number of pipeline devices"),
        ({"stages": 2000, "micro_batches": 2000}, InputError, "are too many to search an order for"),
    ],
)
def test_bad_input_is_one_sentence(change, error, says):
    given = dict(zip(("forward", "backward", "weight"), EVEN, strict=True)) | {"stages": 4, "micro_batches": 8} | change
    with pytest.raises(error, match=says):
        find_schedule(**given)


def test_an_order_that_was_found_is_read_back_and_checked(tmp_path):
    found = find_schedule(4, 8, *EVEN, memory=7)
    path = found.write_schedule(tmp_path / "order.json")
    assert schedule(str(path), 4, 8).name == "found"
    checked = check_schedule(path, *EVEN, memory=7)
    assert checked.cost(checked.times) == found.cost(found.times)
    assert checked.least == found.least
    assert check_schedule(path).gap == pytest.approx(0, abs=1e-12)
    assert check_schedule(path, memory=4).gap is None


def test_a_written_schedule_of_chunks_is_timed_against_the_work_of_a_device(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"devices": ["F0@0 F1@0 F0@1 B0@1 F1@1 B1@1 B0@0 B1@0"]}')
    checked = check_schedule(path, "1 ms", "1 ms", "0 ms")
    assert checked.least == pytest.approx(8e-3)
    assert checked.named == {}


def test_tasks_that_wait_for_each_other_are_named(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"devices": ["F0 B0 F1 B1", "F1 B1 F0 B0"]}')
    with pytest.raises(ConfigError, match=r"deadlocks: F1@1, next on device 1, waits for F1@0; B0@0, next on device 0"):
        check_schedule(path)


def test_compiled_code_does_what_plain_python_does():
    problem = OrderProblem(3, 5, Durations([1, 2, 1.5], [1, 1, 2], [0.5, 1, 0.7]), 0.2, 3, 0.4)
    orders, code = [], compile_filling()
    for run in (lambda name: code[name], lambda name: {"fill": fill, "clock": clock, "anneal": anneal}[name]):
        order, scratch = np.empty((3, 15), np.int64), Scratch.of(3, 5)
        assert run("fill")(problem.costs, order, Settings(np.array([3, 2, 1]), np.array([3, 3, 3]), 0.5, 0), scratch)
        spans = run("clock")(problem.costs, order, scratch)
        before = order.copy()
        draws = np.random.default_rng(1).random((200, 4))
        least = run("anneal")(problem.costs, order, draws, 0.0, False, 0.1, scratch)
        assert least <= spans[0]
        orders.append((before.tolist(), spans, order.tolist(), least))
    assert orders[0] == orders[1]
    assert isinstance(problem.costs, Costs)


# -- the command


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(["schedule", *arguments])
    shown = capsys.readouterr()
    return left.value.code, shown.out, shown.err


TIMES = ("--forward", "1ms", "--backward", "1ms", "--weight", "1ms")


def test_the_command_finds_an_order_and_writes_page_and_files(capsys, tmp_path):
    code, out, _ = command(
        capsys, "--stages", "4", "--micro-batches", "8", *TIMES, "--memory", "7", "--out", str(tmp_path)
    )
    assert code == 0
    assert out.startswith("The order found idles 0.00% of its longest span, 24.0 ms, and holds at most 7 of 7")
    assert "no order of one stage a device within this memory is shorter" in out
    assert "zb-h1" in out
    assert read_schedule(tmp_path / "order.json").devices == 4
    found = json.loads((tmp_path / "schedule.json").read_text())
    assert found["least_s"] == pytest.approx(found["longest_span_s"])
    assert "<script" in (tmp_path / "report.html").read_text()


def test_a_named_schedule_that_is_shorter_is_said(capsys):
    _, out, _ = command(capsys, "find", "--stages", "4", "--micro-batches", "8", *TIMES, "--memory", "4")
    assert "'zb-v', which needs 2 chunks of the model on each device, idles 0.00% within the same limit." in " ".join(
        out.split()
    )


def test_the_command_checks_a_file(capsys, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text('{"name": "mine", "devices": ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"]}')
    code, out, _ = command(capsys, "check", str(mine), *TIMES, "--memory", "1")
    assert (code, out.startswith("'mine' idles ")) == (0, True)
    assert "holds up to 2 micro-batches' activations, more than a limit of 1 admits" in " ".join(out.split())
    mine.write_text('{"devices": ["F0 B0 F1 B1", "F1 B1 F0 B0"]}')
    code, _, err = command(capsys, "check", str(mine))
    assert (code, "waits for" in err) == (2, True)


# -- within a step

PLAN = {"tp": 8, "pp": 4, "batch": 8, "sequence": 2048, "fidelity": "estimate"}


def test_a_step_runs_an_order_found_for_its_own_times():
    layers = (18, 10, 10, 10)
    found, fixed = (
        weft.step("gpt-22b", "32xa100", schedule=name, layers=layers, **PLAN) for name in ("search:5", "1f1b")
    )
    assert found.pipeline.schedule.name == "search:5"
    assert found.pipeline.makespan < fixed.pipeline.makespan
    assert found.pipeline.peak_in_flight.max() <= 5
    nominal = run_schedule(schedule("search:5", 4, 8), durations_of(found), Send(found.send, found.send))
    assert found.pipeline.makespan < nominal.makespan


def durations_of(step):
    return Durations(
        *([getattr(one, name).seconds for one in step.chunks] for name in ("forward", "backward", "weight"))
    )


def test_the_memory_of_a_step_follows_the_order_that_was_found():
    found = weft.step("gpt-22b", "32xa100", schedule="zb-2p", **PLAN)
    held = found.pipeline.peak_in_flight
    activations = [device.held.max() for device in found.memory.devices]
    assert np.argmax(activations) in np.flatnonzero(held == held.max())


def test_a_step_takes_the_order_that_the_search_wrote(tmp_path):
    order = find_schedule(4, 8, *EVEN, memory=7).write_schedule(tmp_path / "order.json")
    step = weft.step("gpt-22b", "32xa100", schedule=str(order), **PLAN)
    assert step.pipeline.schedule.name == "found"
    assert step.pipeline.peak_in_flight.max() == 7
