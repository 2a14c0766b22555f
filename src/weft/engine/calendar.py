"""The calendar: events in the order of time, then kind, then index.

Time is cut into windows. The events of the present window are in a 4-ary heap of two integers per event, which is
small; those of later windows are in `WINDOWS` lists, which the windows take in turn, round after round. When the heap
is empty, the events of the next window that has any move into it.

Taking the first event leaves the top of the heap empty. The next event of the window to be scheduled is inserted there,
which saves moving the last event to the top and sifting twice.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import lowest_bit
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
def _enter(clock: Table, heap: Table, later: Table, window: Table, window_bits: Table, time: int, code: int) -> None:
    size = clock[y.CLOCK_HEAP]
    if time >= clock[y.CLOCK_WINDOW_END]:
        _put_off(clock, later, window, window_bits, time, code)
    elif clock[y.CLOCK_GAP] == 1:
        clock[y.CLOCK_GAP] = 0
        _sift_down(heap, size, time, code)
    else:
        clock[y.CLOCK_HEAP] = size + 1
        _sift_up(heap, size, time, code)


@block
def _put_off(clock: Table, later: Table, window: Table, window_bits: Table, time: int, code: int) -> None:
    """Put an event into the list of its window."""
    k = (time >> clock[y.CLOCK_WINDOW_SHIFT]) & (y.WINDOWS - 1)
    row = clock[y.CLOCK_FREE_LATER]
    clock[y.CLOCK_FREE_LATER] = row + 1 + later[row, y.LATER_NEXT]
    clock[y.CLOCK_LATER] += 1
    later[row, y.LATER_TIME] = time
    later[row, y.LATER_CODE] = code
    later[row, y.LATER_NEXT] = window[k] - 1
    window[k] = row + 1
    window_bits[k >> 5] |= 1 << (k & 31)
    clock[y.CLOCK_WINDOW_BITS] |= 1 << (k >> 5)


@shared
def _open_window(m: Machine) -> None:
    """Move the events of the next window that has any from their list into the heap, which is empty."""
    clock = m.clock
    shift = clock[y.CLOCK_WINDOW_SHIFT]
    number = (clock[y.CLOCK_WINDOW_END] >> shift) - 1
    last = number + y.WINDOWS
    while clock[y.CLOCK_HEAP] == 0:
        number += 1 + _windows_between(clock, m.window_bits, (number + 1) & (y.WINDOWS - 1))
        if number > last:  # all events are more than a round away
            number = _first_later(m) >> shift
        _move(m, number & (y.WINDOWS - 1), (number + 1) << shift)
    clock[y.CLOCK_WINDOW_END] = (number + 1) << shift


@block
def _windows_between(clock: Table, window_bits: Table, k: int) -> int:
    """The number of lists without events from list `k` on, round and round; at least one list has events."""
    group = k >> 5
    bits = window_bits[group] >> (k & 31)
    if bits != 0:
        return lowest_bit(bits)
    bits = clock[y.CLOCK_WINDOW_BITS] >> (group + 1)
    group = group + 1 + lowest_bit(bits) if bits != 0 else lowest_bit(clock[y.CLOCK_WINDOW_BITS])
    return ((group << 5) + lowest_bit(window_bits[group]) - k) & (y.WINDOWS - 1)


@block
def _move(m: Machine, k: int, end: int) -> None:
    """Move the events before `end` from list `k` into the heap."""
    clock, later = m.clock, m.later
    row = m.window[k] - 1
    kept = 0
    while row != y.NONE:
        following = later[row, y.LATER_NEXT]
        if later[row, y.LATER_TIME] < end:
            size = clock[y.CLOCK_HEAP]
            clock[y.CLOCK_HEAP] = size + 1
            _sift_up(m.heap, size, later[row, y.LATER_TIME], later[row, y.LATER_CODE])
            later[row, y.LATER_NEXT] = clock[y.CLOCK_FREE_LATER] - row - 1
            clock[y.CLOCK_FREE_LATER] = row
            clock[y.CLOCK_LATER] -= 1
        else:
            later[row, y.LATER_NEXT] = kept - 1
            kept = row + 1
        row = following
    m.window[k] = kept
    if kept == 0:
        m.window_bits[k >> 5] &= ~(1 << (k & 31))
        if m.window_bits[k >> 5] == 0:
            clock[y.CLOCK_WINDOW_BITS] &= ~(1 << (k >> 5))


@shared
def _first_later(m: Machine) -> int:
    """The time of the first event in any list."""
    soonest = y.NEVER
    for k in range(y.WINDOWS):
        row = m.window[k] - 1
        while row != y.NONE:
            soonest = min(soonest, m.later[row, y.LATER_TIME])
            row = m.later[row, y.LATER_NEXT]
    return soonest


@block
def pending(m: Machine) -> int:
    """The number of events in the calendar."""
    return m.clock[y.CLOCK_HEAP] + m.clock[y.CLOCK_LATER]  # type: ignore[no-any-return]


@block
def schedule(m: Machine, time: int, kind: int, index: int) -> None:
    """Enter an event; the loop keeps enough free rows for all that one event can enter."""
    _enter(m.clock, m.heap, m.later, m.window, m.window_bits, time, (kind << KIND_SHIFT) | index)


@block
def take(m: Machine) -> int:
    """Take the first event: its time goes to the clock, its code is returned. `settle` must follow."""
    if m.clock[y.CLOCK_HEAP] == 0:
        _open_window(m)
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
