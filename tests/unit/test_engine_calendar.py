"""The calendar returns events in the order of time, then kind, then index, however far apart they are."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from interpreted import PLAIN

from weft.engine import layout as y


def calendar(shift):
    """An empty calendar whose windows are two to the power of `shift` long."""
    m = SimpleNamespace(
        clock=np.zeros(y.CLOCK_COLUMNS, dtype=np.int64),
        heap=np.zeros((1000, 2), dtype=np.int64),
        later=np.zeros((1000, y.LATER_COLUMNS), dtype=np.int64),
        window=np.zeros(y.WINDOWS, dtype=np.int64),
        window_bits=np.zeros(y.WINDOWS // 32, dtype=np.int64),
    )
    m.clock[y.CLOCK_WINDOW_SHIFT], m.clock[y.CLOCK_WINDOW_END] = shift, 1 << shift
    return m


@pytest.mark.parametrize("reach", [0, 1, 100, y.WINDOWS * 16, y.WINDOWS * 1000, 1 << 60])
def test_events_come_in_order_near_and_far(reach):
    draw = random.Random(reach)
    m, waiting = calendar(4), []
    for number in range(500):
        now = int(m.clock[y.CLOCK_NOW])
        for _ in range(draw.choice((0, 1, 1, 3)) if number < 400 else 0):
            event = now + draw.randint(0, draw.choice((0, 20, reach // 500))), draw.randrange(5), draw.randrange(100)
            PLAIN.schedule(m, *event)
            waiting.append(event)
        PLAIN.settle(m)
        assert PLAIN.pending(m) == len(waiting)
        if waiting:
            code = int(PLAIN.take(m))
            first = min(waiting)
            waiting.remove(first)
            assert (int(m.clock[y.CLOCK_NOW]), code >> 40, code & ((1 << 40) - 1)) == first
