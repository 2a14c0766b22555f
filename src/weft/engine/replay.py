"""Replay a list of memory requests on the channels alone: no kernels, no caches, no links."""

from __future__ import annotations

from typing import Any

from weft.engine import layout as y
from weft.engine.jit import entry
from weft.engine.memory import enqueue, new_request
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
