"""Laws of pipeline schedules, whatever the numbers of devices and micro-batches and the times."""

import numpy as np
import pipeline_forms as forms
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from weft.core.errors import InputError
from weft.step.pipeline import SCHEDULES, Durations, least_makespan, run_schedule, schedule

SECONDS = st.floats(0.01, 10.0)
NAMES = [*SCHEDULES, "interleaved:2:9", "interleaved:3:11", "chimera:2", "terapipe:3"]
DEVICES, MICRO_BATCHES = st.integers(1, 9), st.integers(1, 24)


def makespan(name, devices, micro_batches, durations, send=0.0):
    return run_schedule(schedule(name, devices, micro_batches), durations, send).makespan


@given(DEVICES, MICRO_BATCHES, SECONDS, SECONDS)
def test_gpipe_and_1f1b_reach_the_bound_of_equal_stages(devices, micro_batches, forward, backward):
    bound = forms.one_stage_makespan([forward + backward] * devices, micro_batches)
    assert bound == pytest.approx((micro_batches + devices - 1) * (forward + backward))
    for name in ("gpipe", "1f1b"):
        assert makespan(name, devices, micro_batches, Durations(forward, backward)) == pytest.approx(bound)


@given(st.data(), DEVICES, MICRO_BATCHES, SECONDS)
def test_no_schedule_of_unequal_stages_beats_the_bound(data, devices, micro_batches, send):
    forward, backward = (data.draw(st.lists(SECONDS, min_size=devices, max_size=devices)) for _ in range(2))
    bound = forms.one_stage_makespan(np.add(forward, backward), micro_batches)
    for name in ("gpipe", "1f1b", "device-placement", "ampnet"):
        for latency in (0.0, send):
            ran = makespan(name, devices, micro_batches, Durations(forward, backward), latency)
            assert ran >= bound * (1 - 1e-9)


@given(DEVICES, MICRO_BATCHES)
def test_1f1b_holds_no_more_micro_batches_than_devices(devices, micro_batches):
    peak = schedule("1f1b", devices, micro_batches).peak_in_flight()
    assert peak == pytest.approx(np.minimum(micro_batches, devices - np.arange(devices)))
    assert schedule("gpipe", devices, micro_batches).peak_in_flight() == pytest.approx([micro_batches] * devices)


@given(DEVICES, MICRO_BATCHES, SECONDS, SECONDS, SECONDS)
def test_a_send_latency_adds_one_round_trip_to_gpipe(devices, micro_batches, forward, backward, send):
    times = Durations(forward, backward)
    added = makespan("gpipe", devices, micro_batches, times, send) - makespan("gpipe", devices, micro_batches, times)
    assert added == pytest.approx(2 * (devices - 1) * send, abs=1e-9)


@given(st.integers(2, 9), st.integers(1, 4), SECONDS, SECONDS, st.floats(0.001, 0.5))
def test_a_send_latency_adds_a_round_trip_every_p_micro_batches_to_1f1b(devices, rounds, forward, backward, share):
    send = share * min(forward, backward) / devices
    times, count = Durations(forward, backward), rounds * devices
    added = makespan("1f1b", devices, count, times, send) - makespan("1f1b", devices, count, times)
    assert added == pytest.approx(forms.one_forward_one_backward_sends(devices, count, send), abs=1e-9)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 5), SECONDS, SECONDS)
def test_interleaving_divides_the_bubble_by_the_chunks(devices, rounds, chunks, forward, backward):
    built = schedule(f"interleaved:{chunks}", devices, rounds * devices)
    ran = run_schedule(built, Durations(forward / chunks, backward / chunks))
    assert ran.makespan - ran.ideal == pytest.approx(forms.interleaved_idle(devices, chunks, forward, backward))
    if rounds > 1:
        assert ran.peak_in_flight[0] == pytest.approx(forms.interleaved_peak(devices, chunks))


@given(DEVICES, st.integers(1, 12), SECONDS, SECONDS)
def test_the_bubble_ratio_falls_as_one_over_the_micro_batches(devices, micro_batches, forward, backward):
    few, many = (
        run_schedule(schedule("1f1b", devices, m), Durations(forward, backward)).idle_ratio
        for m in (micro_batches, 2 * micro_batches)
    )
    assert few == pytest.approx(2 * many, abs=1e-9)
    assert few == pytest.approx((devices - 1) / micro_batches, abs=1e-9)


@given(st.integers(2, 8), st.integers(2, 4), st.floats(0.5, 1.0), st.floats(0.0, 0.2))
def test_zero_bubble_idles_by_its_closed_forms_while_w_fits_into_the_gaps(devices, rounds, weight, excess):
    forward, backward = 1.0 + excess, 1.0
    assume(2 * weight <= forward + backward)
    count = 2 * rounds * devices
    for name, idle in (("zb-h1", forms.zb_h1_idle), ("zb-h2", forms.zb_h2_idle)):
        ran = run_schedule(schedule(name, devices, count), Durations(forward, backward, weight))
        within = (ran.span - ran.busy).max()
        assert within == pytest.approx(idle(devices, forward, backward, weight), abs=1e-9)


@settings(deadline=None)
@given(st.data(), st.sampled_from(NAMES), DEVICES, MICRO_BATCHES, SECONDS, SECONDS, SECONDS)
def test_longer_tasks_and_sends_never_shorten_a_step(data, name, devices, micro_batches, forward, backward, weight):
    try:
        built = schedule(name, devices, micro_batches)
    except InputError:
        reject()
    times = [np.full(built.shape[1:], value) for value in (forward, backward, weight)]
    before = run_schedule(built, Durations(*times), 0.1).makespan
    which, stage = data.draw(st.integers(0, 2)), data.draw(st.integers(0, built.stages - 1))
    times[which][stage] += data.draw(SECONDS)
    longer = Durations(*times)
    assert run_schedule(built, longer, 0.1).makespan >= before
    assert run_schedule(built, longer, 0.3).makespan >= run_schedule(built, longer, 0.1).makespan
    assert before >= least_makespan(built, Durations(forward, backward, weight), 0.1) * (1 - 1e-9)


@given(st.sampled_from(["1f1b", "zb-h2", "interleaved", "chimera", "dualpipe"]), SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_schedule_has_no_clock_of_its_own(name, forward, backward, weight, unit):
    built = schedule(name, 4, 8)
    one = run_schedule(built, Durations(forward, backward, weight), 0.5)
    scaled = run_schedule(built, Durations(unit * forward, unit * backward, unit * weight), 0.5 * unit)
    assert np.nan_to_num(scaled.start) == pytest.approx(np.nan_to_num(unit * one.start))
    assert scaled.idle_share == pytest.approx(one.idle_share, abs=1e-9)
