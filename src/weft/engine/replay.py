"""Replay memory requests on the channels alone: listed ones, or those of a waiting kernel beside commands of PIM."""

from __future__ import annotations

from typing import Any

from weft.engine import layout as y
from weft.engine.calendar import KIND_SHIFT, pending, settle, take
from weft.engine.jit import entry, shared
from weft.engine.memory import enqueue, look, new_request, woken
from weft.engine.pim import begin_commands, give_commands
from weft.engine.run import resume
from weft.engine.state import Machine, Table, Tables, allocate, grow

# trace[r, :] — one request: what it asks for and when, then the row of `request` that held it.
TRACE_AT, TRACE_KIND, TRACE_STREAM, TRACE_ADDRESS, TRACE_BYTES, TRACE_ROW, TRACE_COLUMNS = range(7)


@entry
def enter(m: Machine, trace: Table) -> int:
    """Enqueue every request of `trace` for its time of arrival, and return how many.

    The request table has a row for each.
    """
    for r in range(trace.shape[0]):
        i = new_request(m)
        trace[r, TRACE_ROW] = i
        m.request[i, y.REQ_KIND] = trace[r, TRACE_KIND]
        m.request[i, y.REQ_BYTES] = trace[r, TRACE_BYTES]
        m.request[i, y.REQ_STREAM] = trace[r, TRACE_STREAM]
        m.request[i, y.REQ_OWNER_KIND] = y.OWNER_NOBODY
        m.request[i, y.REQ_REGION] = y.NONE
        m.request[i, y.REQ_FILLS] = y.NONE
        enqueue(m, i, 0, trace[r, TRACE_ADDRESS], trace[r, TRACE_AT])
    return trace.shape[0]  # type: ignore[no-any-return]


def replay(tables: Tables, policy: Any, trace: Table) -> tuple[int, Table, Machine]:
    """The status, when the last data of each request of `trace` was on the bus [fs], and the final state.

    `tables` hold no kernels, and the trace is in the order of arrival.
    """
    machine = allocate(tables, 1 << 40)
    while machine.request.shape[0] < len(trace):
        machine = grow(machine, y.GROW_REQUESTS)
    enter(machine, trace)
    status, machine = resume(machine, policy)
    return status, machine.request[trace[:, TRACE_ROW], y.REQ_ARRIVE], machine


# stand[:] — where a replay has got to: the next request to enter, the next one whose data is waited for, and when the
# last one was used.
STAND_ENTERED, STAND_USED, STAND_CLOCK, STAND_COLUMNS = range(4)

# source[i, :] — a request as in `weft.engine.replay`; TRACE_AT: when its data would be used, if all came in time.
# served[i, :] — when it was sent, when its data came (a write: when memory took it), and when they were used.
SERVED_SENT, SERVED_DONE, SERVED_USED, SERVED_COLUMNS = range(4)


@shared
def _enter(m: Machine, source: Table, served: Table, stand: Table, at: int) -> None:
    """Send the next request, which arrives at its channel at `at`."""
    n = stand[STAND_ENTERED]
    i = new_request(m)
    m.request[i, y.REQ_KIND] = source[n, TRACE_KIND]
    m.request[i, y.REQ_BYTES] = source[n, TRACE_BYTES]
    m.request[i, y.REQ_STREAM] = source[n, TRACE_STREAM]
    m.request[i, y.REQ_OWNER_KIND] = y.OWNER_NOBODY
    m.request[i, y.REQ_OWNER] = n
    m.request[i, y.REQ_REGION] = y.NONE
    m.request[i, y.REQ_FILLS] = y.NONE
    served[n, SERVED_SENT] = at
    stand[STAND_ENTERED] = n + 1
    enqueue(m, i, 0, source[n, TRACE_ADDRESS], at)


@shared
def _use(m: Machine, source: Table, served: Table, stand: Table, window: int) -> None:
    """Use the data that have come, in order: each frees a place of the window for the next request.

    A kernel uses the data of a request when they have come and the work on those before is done; it does not wait for
    what it has written.
    """
    while stand[STAND_USED] < stand[STAND_ENTERED]:
        n = stand[STAND_USED]
        clock = stand[STAND_CLOCK] + source[n, TRACE_AT] - (source[n - 1, TRACE_AT] if n > 0 else 0)
        if source[n, TRACE_KIND] == y.READ:
            if served[n, SERVED_DONE] == y.NONE:
                break
            clock = max(clock, served[n, SERVED_DONE])
        served[n, SERVED_USED] = stand[STAND_CLOCK] = clock
        stand[STAND_USED] = n + 1
        if stand[STAND_ENTERED] < source.shape[0]:
            _enter(m, source, served, stand, clock)


@entry
def meet(m: Machine, source: Table, served: Table, stand: Table, policy, window: int) -> int:  # type: ignore[no-untyped-def]
    """Serve all requests and all commands on one channel; returns the status.

    At most `window` requests are sent before the data of the first are used. The tables of requests and events have
    room for all.
    """
    for _ in range(min(window, source.shape[0])):
        _enter(m, source, served, stand, 0)
    _use(m, source, served, stand, window)
    begin_commands(m)
    while pending(m) > 0:
        if pending(m) + 8 > m.heap.shape[0]:
            return y.GROW_HEAP
        code = take(m)
        kind, now = code >> KIND_SHIFT, m.clock[y.CLOCK_NOW]
        m.clock[y.CLOCK_EVENTS] += 1
        if woken(m, 0, now) or kind == y.EV_PIM:
            i = look(m, 0, now, policy)
            if i != y.NONE:
                latency = m.gpu[0, y.GPU_MEMORY_LATENCY] if m.request[i, y.REQ_KIND] == y.READ else 0
                served[m.request[i, y.REQ_OWNER], SERVED_DONE] = m.request[i, y.REQ_ARRIVE] + latency
                _use(m, source, served, stand, window)
            give_commands(m, 0, now)
        settle(m)
    done = stand[STAND_USED] == source.shape[0] and m.channel[0, y.CHAN_PIM_RUN] == m.pim.shape[0]
    return y.FINISHED if done else y.STARVED
