"""Orders found for the profiles that the zero-bubble paper prints, beside the orders that its own heuristic found."""

import pytest

from weft.step.pipeline import Durations
from weft.step.pipeline.problem import OrderProblem
from weft.step.pipeline.search import find_order

# arXiv:2401.10241, tables 3, 8 and 9: stages, micro-batches; heads, hidden size; F, B, W, send [ms]; bubble rates of
# ZB-1p and ZB-2p.
PROFILES = [
    (8, 24, 24, 2304, 18.522, 18.086, 9.337, 0.601, 0.1585, 0.0433),
    (8, 32, 24, 2304, 18.513, 18.086, 9.331, 0.626, 0.1242, 0.0039),
    (8, 64, 24, 2304, 18.546, 18.097, 9.321, 0.762, 0.0674, 0.0026),
    (8, 24, 32, 4096, 29.718, 29.444, 19.927, 0.527, 0.1323, 0.0029),
    (8, 32, 32, 4096, 29.802, 29.428, 19.530, 0.577, 0.1045, 0.0022),
    (8, 64, 32, 4096, 29.935, 29.621, 19.388, 0.535, 0.0554, 0.0010),
    (16, 48, 40, 5120, 11.347, 11.248, 8.132, 0.377, 0.1397, 0.0066),
    (16, 64, 40, 5120, 11.307, 11.254, 8.101, 0.379, 0.1088, 0.0054),
    (16, 128, 40, 5120, 11.325, 11.308, 8.109, 0.378, 0.0576, 0.0028),
    (32, 96, 48, 6144, 10.419, 10.207, 7.715, 0.408, 0.1421, 0.0038),
    (32, 128, 48, 6144, 10.408, 10.204, 7.703, 0.408, 0.1106, 0.0029),
    (32, 256, 48, 6144, 10.402, 10.248, 7.698, 0.460, 0.0594, 0.0018),
]
SEQUENCE = 1024
LATE = 0.002
"""By how much a bubble rate may exceed the published one."""


def kept_for_weight(heads, hidden):
    """What B cannot release of the activations: 32 h of 34 h + 5 a s (arXiv:2401.10241, table 1)."""
    return 32 * hidden / (34 * hidden + 5 * heads * SEQUENCE)


def found(profile, memory):
    stages, micro_batches, heads, hidden, *times, send, _, _ = profile
    kept = kept_for_weight(heads, hidden)
    limit = memory * stages
    order = find_order(OrderProblem(stages, micro_batches, Durations(*times), send, limit, kept))
    assert order.times.schedule.peak_in_flight(kept).max() <= limit + 1e-6
    assert order.least <= order.cost
    return order


@pytest.mark.parametrize("profile", PROFILES, ids=lambda row: f"{row[0]}x{row[1]}")
def test_the_memory_of_1f1b_gives_the_bubbles_of_zb_1p_and_no_order_has_less(profile):
    order = found(profile, 1)
    assert round(order.times.span_bubble, 4) == pytest.approx(profile[8], abs=1e-9)
    assert order.gap == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    "profile",
    [pytest.param(row, marks=pytest.mark.slow) if row[0] > 8 else row for row in PROFILES],
    ids=lambda row: f"{row[0]}x{row[1]}",
)
def test_twice_that_memory_gives_the_bubbles_of_zb_2p_or_less(profile):
    order = found(profile, 2)
    assert order.times.span_bubble <= profile[9] + LATE
    assert order.gap <= 0.005
