"""Pipeline schedules against the closed forms and the worked examples of their papers."""

import numpy as np
import pipeline_forms as forms
import pytest

from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.core.files import write_json
from weft.step.pipeline import SCHEDULES, Durations, Send, Task, read_schedule, run_schedule, schedule, schedule_to_dict


def times(name, devices, micro_batches, forward=1.0, backward=2.0, weight=0.0, send=0.0):
    """A run in which `forward`, `backward` and `weight` [s] are those of all the layers of one device."""
    built = schedule(name, devices, micro_batches)
    part = built.devices / built.stages
    return run_schedule(built, Durations(part * forward, part * backward, part * weight), send)


@pytest.mark.parametrize(
    ("name", "makespan", "idle_share", "idle_ratio", "peak"),
    [
        ("device-placement", 96, 0.75, 3.0, [1, 1, 1, 1]),
        ("gpipe", 33, 0.273, 0.375, [8, 8, 8, 8]),
        ("1f1b", 33, 0.273, 0.375, [4, 3, 2, 1]),
        ("interleaved:2", 28.5, 0.158, 0.1875, [5.5, 4.5, 3.5, 2.5]),
        ("interleaved:4", 26.25, 0.086, 0.094, [4.75, 4.25, 3.75, 3.25]),
    ],
)
def test_backward_twice_the_forward_on_four_devices(name, makespan, idle_share, idle_ratio, peak):
    ran = times(name, 4, 8)
    assert ran.makespan == pytest.approx(makespan)
    assert ran.ideal == pytest.approx(24)
    assert ran.idle_share == pytest.approx(idle_share, abs=5e-4)
    assert ran.idle_ratio == pytest.approx(idle_ratio, abs=5e-4)
    assert ran.peak_in_flight == pytest.approx(peak)


@pytest.mark.parametrize(
    ("name", "makespan", "span", "peak"), [("1f1b", 33, 33, 4), ("zb-h1", 27, 27, 4), ("zb-h2", 27, 24, 7)]
)
def test_weight_gradients_held_back_fill_the_bubbles_of_1f1b(name, makespan, span, peak):
    ran = times(name, 4, 8, 1, 1, 1)
    assert (ran.makespan, ran.span.max(), ran.peak_in_flight.max()) == (makespan, span, peak)
    assert ran.span_bubble == pytest.approx(1 - 24 / span)


@pytest.mark.parametrize(
    ("name", "devices", "micro_batches", "makespan", "peak"),
    [("1f1b", 8, 8, 45, 8), ("interleaved:2", 8, 16, 58.5, 11.5)],
)
def test_eight_devices(name, devices, micro_batches, makespan, peak):
    ran = times(name, devices, micro_batches)
    assert (ran.makespan, ran.peak_in_flight[0]) == (pytest.approx(makespan), pytest.approx(peak))


# Devices, micro-batches, T_F, T_B, T_W, T_comm [ms], bubble rates of 1F1B, interleaved, ZB-H1, ZB-H2, layers a device:
# arXiv:2401.10241, tables 5 and 9.
ZERO_BUBBLE = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083, 3),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837, 3),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674, 0.0444, 3),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 0.1323, 0.0698, 4),
    (8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 0.1045, 0.0559, 4),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 0.0554, 0.0294, 4),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672, 3),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088, 0.0516, 3),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266, 3),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421, 0.0641, 2),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106, 0.0490, 2),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 0.0594, 0.0257, 2),
]


@pytest.mark.parametrize(("column", "name"), [(0, "1f1b"), (2, "zb-h1"), (3, "zb-h2")])
def test_bubble_rates_of_zero_bubble_to_four_decimals(column, name):
    ran = [
        times(name, p, m, *profile, send=latency).span_bubble for p, m, *profile, latency, _, _, _, _, _ in ZERO_BUBBLE
    ]
    assert np.round(ran, 4) == pytest.approx([row[6 + column] for row in ZERO_BUBBLE], abs=1e-9)


def test_bubble_rates_of_interleaved_are_up_to_four_thousandths_above_the_published_ones():
    for devices, micro_batches, *profile, latency, _, published, _, _, layers in ZERO_BUBBLE:
        rate = times(f"interleaved:{layers}", devices, micro_batches, *profile, send=latency).span_bubble
        assert 0 < rate - published < 0.004


@pytest.mark.parametrize(
    ("name", "micro_batches", "backward", "makespan", "peak"),
    [("chimera", 4, 1, 10, [3, 4, 4, 3]), ("chimera", 4, 2, 16, [3, 4, 4, 3]), ("chimera:2", 8, 2, 27, [4, 5, 5, 4])],
)
def test_chimera_on_four_devices(name, micro_batches, backward, makespan, peak):
    ran = times(name, 4, micro_batches, 1, backward)
    assert ran.makespan == makespan
    assert ran.peak_in_flight == pytest.approx(peak)
    assert ran.schedule.replicas == 2


@pytest.mark.parametrize("devices", [2, 4, 6, 8])
@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_chimera_reaches_its_idle_share_when_its_order_suits_the_ratio_of_backward_to_forward(devices, ratio):
    ran = times(f"chimera:{ratio}", devices, 4 * devices, 1, ratio)
    assert ran.idle_share == pytest.approx(forms.chimera_idle_share(devices, 4 * devices))
    assert ran.peak_in_flight.max() <= devices + (ratio - 1) * (devices // 2 - 1)


@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 4), (4, 8), (6, 20), (8, 16)])
def test_dualpipe_idles_by_its_closed_form_and_holds_one_micro_batch_more_than_devices(devices, micro_batches):
    ran = times("dualpipe", devices, micro_batches, 1, 1, 1)
    assert ran.idle == pytest.approx(forms.dualpipe_idle(devices, 3, 1, 1))
    assert ran.peak_in_flight == pytest.approx([devices + 1] * devices)
    assert ran.schedule.replicas == 2


def test_forward_and_backward_together_take_the_given_time():
    ran = run_schedule(schedule("dualpipe", 4, 8), Durations(1, 1, 1, together=2.5))
    first, second = ran.schedule.pairs.T
    assert (ran.start.flat[first] == ran.start.flat[second]).all()
    assert (ran.end - ran.start).flat[ran.schedule.pairs] == pytest.approx(2.5)
    assert ran.busy == pytest.approx(24 - 0.5 * len(first) / 4)
    assert ran.idle == pytest.approx(forms.dualpipe_idle(4, 2.5, 1, 1))


@pytest.mark.parametrize("devices", [2, 3, 4, 8, 16])
def test_dualpipe_v_is_dualpipe_on_half_the_devices(devices):
    folded, flat = (
        times("dualpipe-v", devices, 2 * devices + 1, 1, 1, 1),
        times("dualpipe", 2 * devices, 4 * devices + 2),
    )
    assert folded.idle_share > 0
    assert folded.schedule.replicas == 1
    assert folded.idle.max() == pytest.approx(forms.dualpipe_idle(2 * devices, 3, 1, 1) / 2)
    assert [len(order) for order in folded.schedule.orders] == [len(order) for order in flat.schedule.orders[:devices]]


@pytest.mark.parametrize("devices", [2, 3, 4, 8, 16])
def test_zb_v_has_no_bubble_within_a_span_at_the_memory_of_1f1b(devices):
    for micro_batches in (2 * devices - 1, 2 * devices, 3 * devices + 1):
        ran = times("zb-v", devices, micro_batches, 1, 1, 1)
        assert ran.span == pytest.approx([3 * micro_batches] * devices)
        assert ran.peak_in_flight == pytest.approx([devices] * devices)


@pytest.mark.parametrize("devices", [4, 5, 6, 7, 8, 12, 16])
def test_v_half_and_v_min_give_idle_time_for_memory(devices):
    whole, half, least = (times(name, devices, 3 * devices, 1, 1, 1) for name in ("1f1b", "v-half", "v-min"))
    idle = (whole.span - whole.busy).max()
    assert 0.44 <= (half.span - half.busy).max() / idle <= 0.56
    assert 0.6 <= (least.span - least.busy).max() / idle <= 0.7
    assert half.peak_in_flight.max() <= devices / 2 + 1.5
    assert least.peak_in_flight.max() <= devices / 3 + 1.34


def test_pipedream_runs_a_micro_batch_every_forward_and_backward():
    short, long = times("pipedream", 4, 40), times("pipedream", 4, 80)
    assert (long.makespan - short.makespan) / 40 == pytest.approx(3)
    assert long.peak_in_flight == pytest.approx([4, 3, 2, 1])
    assert (long.schedule.versions, long.schedule.staleness) == ((4, 3, 2, 1), (3, 2, 1, 0))
    assert not long.schedule.flushes


def test_double_buffered_pipedream_keeps_two_versions_everywhere():
    assert schedule("pipedream-2bw", 4, 8).versions == (2, 2, 2, 2)
    assert schedule("pipedream-2bw", 4, 8).staleness == (1, 1, 1, 1)


def test_ampnet_has_one_version_and_updates_between_forward_and_backward():
    built = schedule("ampnet", 4, 40)
    assert built.versions == (1, 1, 1, 1)
    assert max(built.staleness) == 3
    assert schedule("ampnet", 1, 8).staleness == (0,)


def test_forwards_alone_idle_by_their_closed_form():
    ran = times("inference", 4, 8)
    assert ran.makespan == 11
    assert ran.idle_share == pytest.approx(forms.inference_idle_share(4, 8))
    assert not ran.schedule.trains


def test_a_stage_that_takes_longer_costs_that_for_every_micro_batch():
    runs = [run_schedule(schedule("1f1b", 4, m), Durations([1, 1, 1.5, 1], [2, 2, 3, 2])) for m in (8, 16)]
    assert runs[1].makespan - runs[0].makespan == pytest.approx(8 * 4.5)
    assert forms.one_stage_makespan([3, 3, 4.5, 3], 8) <= runs[0].makespan < 8 * 4.5 + 3 * 3


def test_times_per_micro_batch_are_those_of_that_micro_batch():
    forward = np.ones((2, 3))
    forward[:, 1] = 5
    ran = run_schedule(schedule("gpipe", 2, 3), Durations(forward, 1))
    assert ran.end[0] - ran.start[0] == pytest.approx(forward)


def test_terapipe_passes_slices_one_after_the_other():
    lengths = (704, 544, 448, 352)  # a later slice attends to more tokens
    starts = np.cumsum([0, *lengths[:-1]])
    forward = np.array([1e-5 + 1e-6 * n * (1 + (start + n) / 2048) for start, n in zip(starts, lengths, strict=True)])
    built = schedule(f"terapipe:{len(lengths)}", 4, 1)
    ran = run_schedule(built, Durations(np.tile(forward, (4, 1)), 1e-12))
    assert ran.end[0].max() == pytest.approx(forms.slices_pass(forward, 4))
    last = ran.start[1, :, ::-1]
    assert (np.diff(last, axis=1) > 0).all()


@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 4), (4, 8), (4, 16), (8, 8), (16, 32)])
def test_a_send_latency_is_paid_once_by_gpipe_and_at_every_round_trip_by_1f1b(devices, micro_batches):
    plain, late = (times("gpipe", devices, micro_batches, send=send).makespan for send in (0, 0.1))
    assert late - plain == pytest.approx(2 * (devices - 1) * 0.1)
    plain, late = (times("1f1b", devices, micro_batches, send=send).makespan for send in (0, 0.1))
    assert late - plain == pytest.approx(forms.one_forward_one_backward_sends(devices, micro_batches, 0.1))


def test_twice_the_warm_up_hides_the_send_latency_again():
    assert times("1f1b", 4, 8, send=0.1).makespan == pytest.approx(34.6)
    assert times("zb-h2", 4, 8, send=0.1).makespan == pytest.approx(33 + 2 * 3 * 0.1)


def test_latencies_differ_by_direction_and_boundary():
    built = schedule("gpipe", 3, 1)
    ran = run_schedule(built, Durations(1, 2), (Send([0.1, 0.2]), Send(0.5)))
    assert ran.start[0, :, 0] == pytest.approx([0, 1.1, 2.3])
    assert ran.start[1, ::-1, 0] == pytest.approx([3.3, 5.8, 8.3])


def test_a_send_that_occupies_the_stream_delays_the_next_task_of_both_devices():
    ran = run_schedule(schedule("inference", 2, 2), Durations(1), Send(0.5, sender_busy=0.25, receiver_busy=0.125))
    assert ran.start[0] == pytest.approx(np.array([[0, 1.25], [1.5, 2.75]]))
    assert ran.sending_busy == pytest.approx([0.5, 0.25])
    assert ran.idle == pytest.approx(ran.makespan - 2 - ran.sending_busy)


def test_stages_on_one_device_send_nothing():
    ran = run_schedule(schedule("zb-v", 1, 1), Durations(1, 1, 1), 100.0)
    assert ran.makespan == 6


def test_the_critical_path_runs_through_the_last_stage():
    ran = times("1f1b", 4, 8)
    path = ran.critical_path()
    assert path[0] == Task("F", 0, 0)
    assert path[-1] == Task("B", 7, 0)
    assert sum(1 if task.kind == "F" else 2 for task in path) == ran.makespan
    assert [task.stage for task in path].count(3) == 16


def test_idle_time_is_put_down_to_what_a_device_waits_for():
    ran = times("1f1b", 4, 8)
    assert ran.waits(0) == {"first task": 0, "activations": 0, "gradients": 9, "other devices": 0}
    assert ran.waits(3) == {"first task": 3, "activations": 0, "gradients": 0, "other devices": 6}


def test_activations_are_released_with_the_weight_gradient_unless_it_needs_less():
    built = schedule("zb-h1", 4, 8)
    assert built.peak_in_flight() == pytest.approx([4, 4, 4, 4])
    assert built.peak_in_flight(0) == pytest.approx([4, 3, 2, 1])
    assert built.peak_in_flight(0.5) == pytest.approx([4, 3.5, 3, 2.5])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_pipeline_of_thousands_of_tasks_is_built_of_arrays(name):
    """The size that a planner meets: no object per task, and a loop that touches each task once."""
    built = schedule(name, 16, 64)
    assert built.tasks >= (16 * 64 if name == "inference" else 2 * 16 * 64)
    assert all(order.dtype == np.int64 for order in built.orders)


@pytest.mark.parametrize(
    ("name", "devices", "micro_batches", "says"),
    [
        ("interleaved:2", 4, 10, "takes a multiple of its 4 devices as micro-batches, not 10; take 8"),
        ("interleaved:2:5", 4, 12, "takes groups of 5, the last of 4 or more as micro-batches, not 12; take 10"),
        ("interleaved:2", 4, 3, "not 3; take 4, or another group, as in 'interleaved:2:4'"),
        ("interleaved:2:3", 4, 8, "group of 'interleaved' is 3; it must be a whole number of at least 4"),
        ("chimera", 5, 4, "takes an even number of devices, half from each end, not 5; take 6"),
        ("dualpipe", 4, 6, "at least 8, not 6; take 8"),
        ("dualpipe-v", 4, 7, "needs at least 8 micro-batches"),
        ("pipedream-2bw", 4, 3, "at least as many micro-batches as its 4 devices, not 3; take 4"),
        ("1f1b:2", 4, 8, "'1f1b:2' is not understood; write it as '1f1b'"),
        ("interleaved:two", 4, 8, r"write it as 'interleaved:\[chunks\]:\[group\]'"),
        ("1f1b", 0, 8, "number of pipeline devices is 0"),
        ("1f1b", 4, 2.5, "number of micro-batches is 2.5"),
        ("interleaved:1000000", 4, 8, "has too many tasks; devices x micro-batches x parts must be at most 4000000"),
        ("gpipe", 4, 10**9, "of 1000000000 micro-batches on 4 devices has too many tasks"),
        (None, 4, 8, "the pipeline schedule is None; name one"),
    ],
)
def test_what_a_schedule_does_not_take_is_named_with_the_nearest_that_it_takes(name, devices, micro_batches, says):
    with pytest.raises(InputError, match=says):
        schedule(name, devices, micro_batches)


def test_an_unknown_schedule_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"known: device-placement, .*did you mean '1f1b'"):
        schedule("1f2b", 4, 8)


@pytest.mark.parametrize(
    ("durations", "says"),
    [
        (Durations([1, 2, 3]), "the forward time does not fit; give a number, 4 numbers, or an array of 4 x 8"),
        (Durations(1, -1), "the backward time is negative"),
        (Durations(1, 1, float("inf")), "the weight time is negative or not finite"),
        (Durations("long"), "the forward time does not fit"),
    ],
)
def test_times_that_fit_no_stage_are_refused(durations, says):
    with pytest.raises(InputError, match=says):
        run_schedule(schedule("1f1b", 4, 8), durations)


def written(folder, *devices, **more):
    return write_json(folder / "mine.json", {"name": "mine", "devices": list(devices), **more})


def test_a_schedule_in_a_file_runs_in_its_order(tmp_path):
    path = written(tmp_path, "F0 F1 B0 B1 W1 W0", "F0 B0 F1 B1", flushes=False, versions=[2, 1])
    built = read_schedule(path)
    assert [str(built.task(code)) for code in built.orders[0]] == ["F0@0", "F1@0", "B0@0", "B1@0", "W1@0", "W0@0"]
    assert (built.flushes, built.versions) == (False, (2, 1))
    ran = run_schedule(built, Durations(1, 1, 1))
    assert ran.end[1, 1, 0] - ran.start[1, 1, 0] == 2
    assert ran.makespan == 10
    assert schedule(str(path), 2, 2).name == "mine"
    with pytest.raises(InputError, match="for 2 devices and 2 micro-batches, not for 2 and 4"):
        schedule(str(path), 2, 4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_reads_back_as_it_was_written(name, tmp_path):
    built = schedule(name, 4, 8)
    again = read_schedule(write_json(tmp_path / "again.json", schedule_to_dict(built)))
    assert schedule_to_dict(again) == schedule_to_dict(built)
    one, other = (run_schedule(each, Durations(1, 1, 1), 0.25) for each in (built, again))
    assert (one.makespan, one.peak_in_flight.tolist()) == (other.makespan, other.peak_in_flight.tolist())


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        (["F0 F1 B1 B0", "F0 F1 B0"], "runs B1@1 never; list each task once"),
        (["F0 F0 B0", "F0 B0"], "runs F0@0 2 times"),
        (["F0 B0", "B0 F0"], "runs B0@1 before F0@1, which it continues"),
        (["F0 B0 B0@1", "F0"], "runs B0@1 on device 0, but that stage of micro-batch 0 is on device 1"),
        (["F0 B0 W0", "F0 W0 B0"], "runs W0@1 before B0@1"),
        (["F0 X1", "F0"], "the task 'X1' on device 0 is not understood; write 'F3'"),
        (["F0 F1+B0 B1", "F0+B0 F1 B1"], "runs F0@1 and B0@1 together; pair a forward with"),
        (["F0 B9999999@9999", "F0"], "names micro-batch 9999999 and stage 9999, more than"),
        ([], "'devices' must be a list with a text of tasks per device"),
        (["  "], "'devices' must be a list with a text of tasks per device"),
    ],
)
def test_a_schedule_that_breaks_a_rule_is_refused_by_its_task(devices, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        read_schedule(written(tmp_path, *devices))


def test_devices_that_wait_for_each_other_are_named_with_what_they_wait_for(tmp_path):
    path = written(tmp_path, "F0 B0 F1 B1", "F1 B1 F0 B0")
    with pytest.raises(ConfigError, match="deadlocks: ") as caught:
        read_schedule(path)
    assert "B0@0, next on device 0, waits for B0@1" in str(caught.value)
    assert "F1@1, next on device 1, waits for F1@0" in str(caught.value)


def test_an_unknown_key_of_a_schedule_file_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="'stages' is no part of a pipeline schedule; known: name, devices"):
        read_schedule(written(tmp_path, "F0 B0", stages=1))
    with pytest.raises(ConfigError, match="'versions' must be a list of 1 whole numbers"):
        read_schedule(written(tmp_path, "F0 B0", versions=[1, 2]))
