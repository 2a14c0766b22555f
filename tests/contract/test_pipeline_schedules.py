"""What every pipeline schedule promises, on several sizes."""

from itertools import pairwise

import numpy as np
import pytest

from weft.errors import InputError
from weft.schedule.pipeline import SCHEDULES, Durations, Send, least_makespan, run_schedule, schedule

SIZES = [(1, 4), (2, 4), (4, 8), (6, 12), (8, 24), (5, 20)]
ALSO = ["interleaved:3", "interleaved:2:12", "chimera:2", "terapipe:3"]
EVEN_DEVICES = ("chimera", "chimera:2", "dualpipe")
CASES = [
    (name, devices, micro_batches)
    for name in (*SCHEDULES, *ALSO)
    for devices, micro_batches in SIZES
    if not (name in EVEN_DEVICES and devices % 2)
]
TIMES = Durations(1.0, 1.2, 0.7)
SEND = (Send(0.1), Send(0.15, sender_busy=0.02, receiver_busy=0.01))


@pytest.mark.parametrize(("name", "devices", "micro_batches"), CASES)
def test_every_task_runs_once_and_a_backward_has_a_forward(name, devices, micro_batches):
    one = schedule(name, devices, micro_batches)
    ran = np.concatenate(one.orders)
    assert len(ran) == len(set(ran.tolist()))
    forward, backward, weight = one.position >= 0
    assert forward.all()
    assert backward.all() or (name == "inference" and not backward.any())
    assert (weight == ~one.whole).all()


@pytest.mark.parametrize(("name", "devices", "micro_batches"), CASES)
def test_a_task_starts_when_its_device_and_its_input_allow(name, devices, micro_batches):
    one = schedule(name, devices, micro_batches)
    ran = run_schedule(one, TIMES, SEND)
    moves = one.device[1:] != one.device[:-1]
    assert (ran.start[0, 1:] >= ran.end[0, :-1] + 0.1 * moves).all()
    if one.trains:
        assert (ran.start[1, :-1] >= ran.end[1, 1:] + 0.15 * moves).all()
        assert (ran.start[1] >= ran.end[0]).all()
        assert (ran.start[2] >= ran.end[1])[~one.whole].all()


@pytest.mark.parametrize(("name", "devices", "micro_batches"), CASES)
def test_no_device_does_two_things_at_once_but_its_pairs(name, devices, micro_batches):
    one = schedule(name, devices, micro_batches)
    ran = run_schedule(one, TIMES, SEND)
    second = set(one.pairs[:, 1].tolist())
    for order in one.orders:
        alone = np.array([code for code in order if code not in second])
        assert (ran.start.flat[alone[1:]] >= ran.end.flat[alone[:-1]]).all()


@pytest.mark.parametrize(("name", "devices", "micro_batches"), CASES)
def test_the_memory_curve_ends_where_it_began(name, devices, micro_batches):
    one = schedule(name, devices, micro_batches)
    ran = run_schedule(one, TIMES, SEND)
    for device in range(one.devices if one.trains else 0):
        moments, held = ran.in_flight(device, 0.4)
        assert (np.diff(moments) >= 0).all()
        assert held[0] > 0
        assert held.min() >= 0
        last = one.orders[device][-1]
        released = np.where(one.whole, 1.0, 0.4 if last >= 2 * one.device.size else 0.6).ravel()
        assert held[-2] == pytest.approx(one.devices / one.stages * released[last % one.device.size])
        assert held[-1] == 0


@pytest.mark.parametrize(("name", "devices", "micro_batches"), CASES)
def test_no_makespan_beats_the_bounds(name, devices, micro_batches):
    one = schedule(name, devices, micro_batches)
    ran = run_schedule(one, TIMES, SEND)
    assert ran.makespan >= least_makespan(one, TIMES, SEND) * (1 - 1e-12)
    assert (ran.span <= ran.makespan).all()
    assert (ran.idle >= -1e-9).all()


@pytest.mark.parametrize(("name", "devices", "micro_batches"), CASES)
def test_busy_waiting_and_sending_add_up_to_the_makespan(name, devices, micro_batches):
    one = schedule(name, devices, micro_batches)
    ran = run_schedule(one, TIMES, SEND)
    for device in range(one.devices):
        waits = ran.waits(device)
        assert min(waits.values()) >= -1e-9
        assert ran.busy[device] + ran.sending_busy[device] + sum(waits.values()) == pytest.approx(ran.makespan)


@pytest.mark.parametrize(("name", "devices", "micro_batches"), CASES)
def test_the_critical_path_leaves_no_gap_from_the_first_start_to_the_last_end(name, devices, micro_batches):
    one = schedule(name, devices, micro_batches)
    ran = run_schedule(one, TIMES, 0.25)
    path = ran.critical_path()
    codes = [("FBW".index(task.kind), task.stage, task.micro_batch) for task in path]
    assert ran.start[codes[0]] == 0
    assert ran.end[codes[-1]] == ran.makespan
    for before, code in pairwise(codes):
        assert ran.start[code] - ran.end[before] in (pytest.approx(0), pytest.approx(0.25))


@pytest.mark.parametrize("name", EVEN_DEVICES)
def test_a_pipeline_with_two_ends_refuses_odd_numbers(name):
    with pytest.raises(InputError, match="takes an even number of devices, half from each end, not 5; take 6"):
        schedule(name, 5, 20)
    with pytest.raises(
        InputError, match=r"takes an even number of micro-batches, half from each end.*, not 21; take 22"
    ):
        schedule(name, 4, 21)
