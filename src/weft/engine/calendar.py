"""The calendar: events in the order of time, then kind, then index. A 4-ary heap of two integers per event.

Taking the first event leaves the top of the heap empty. The next event to be scheduled is inserted there, which saves
moving the last event to the top and sifting twice.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.jit import block, shared
from weft.engine.state import Machine, Table

KIND_SHIFT = 40
INDEX_MASK = (1 << KIND_SHIFT) - 1


@block
def _sift_up(heap: Table, position: int, time: int, code: int) -> None:
    while position > 0:
        parent = (position - 1) >> 2
        if heap[parent, 0] < time or (heap[parent, 0] == time and heap[parent, 1] <= code):
            break
        heap[position, 0] = heap[parent, 0]
        heap[position, 1] = heap[parent, 1]
        position = parent
    heap[position, 0] = time
    heap[position, 1] = code


@shared
def _sift_down(heap: Table, size: int, time: int, code: int) -> None:
    position = 0
    while True:
        child = (position << 2) + 1
        if child >= size:
            break
        least = child
        least_time = heap[child, 0]
        least_code = heap[child, 1]
        for other in range(child + 1, min(child + 4, size)):
            t, c = heap[other, 0], heap[other, 1]
            before = (t < least_time) | ((t == least_time) & (c < least_code))  # no branch: none could be foreseen
            least = other if before else least
            least_time = t if before else least_time
            least_code = c if before else least_code
        if time < least_time or (time == least_time and code <= least_code):
            break
        heap[position, 0] = least_time
        heap[position, 1] = least_code
        position = least
    heap[position, 0] = time
    heap[position, 1] = code


@shared
def _enter(clock: Table, heap: Table, time: int, code: int) -> None:
    size = clock[y.CLOCK_HEAP]
    if clock[y.CLOCK_GAP] == 1:
        clock[y.CLOCK_GAP] = 0
        _sift_down(heap, size, time, code)
    else:
        clock[y.CLOCK_HEAP] = size + 1
        _sift_up(heap, size, time, code)


@block
def schedule(m: Machine, time: int, kind: int, index: int) -> None:
    """Enter an event; the loop keeps enough free rows for all that one event can enter."""
    _enter(m.clock, m.heap, time, (kind << KIND_SHIFT) | index)


@block
def take(m: Machine) -> int:
    """Take the first event: its time goes to the clock, its code is returned. `settle` must follow."""
    m.clock[y.CLOCK_NOW] = m.heap[0, 0]
    m.clock[y.CLOCK_GAP] = 1
    return m.heap[0, 1]  # type: ignore[no-any-return]


@block
def settle(m: Machine) -> None:
    """Close the gap of the event taken, if none has been entered since."""
    if m.clock[y.CLOCK_GAP] == 1:
        m.clock[y.CLOCK_GAP] = 0
        size = m.clock[y.CLOCK_HEAP] - 1
        m.clock[y.CLOCK_HEAP] = size
        if size > 0:
            _sift_down(m.heap, size, m.heap[size, 0], m.heap[size, 1])
