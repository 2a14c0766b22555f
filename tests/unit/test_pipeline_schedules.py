"""Pipeline schedules against the closed forms and the worked examples of their papers."""

import numpy as np
import pytest

from weft.schedule.pipeline import Durations, run_schedule, schedule


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
