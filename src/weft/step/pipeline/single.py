"""Schedules in which all micro-batches enter at the first device: GPipe, 1F1B, interleaved, PipeDream, zero bubble."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.core.errors import InputError, check_whole
from weft.models.parallel.plan import ScheduleName
from weft.step.pipeline.greedy import list_schedule
from weft.step.pipeline.orders import BACKWARD, FORWARD, WEIGHT, Ints, Schedule, codes, one_way, weave


def _woven(
    name: str,
    devices: int,
    micro_batches: int,
    warmup: Callable[[int], int],
    held_back: Callable[[int], int] | None = None,
    **more: object,
) -> Schedule:
    """One stage a device: device i runs `warmup(i)` forwards before it alternates; W is split off if `held_back`."""

    def of(kind: int, device: int) -> Ints:
        return codes(kind, device, np.arange(micro_batches), devices, micro_batches)

    def order(i: int) -> Ints:
        split = (of(WEIGHT, i), held_back(i)) if held_back else ()
        return weave(of(FORWARD, i), of(BACKWARD, i), warmup(i), *split)

    return one_way(name, np.arange(devices), micro_batches, [order(i) for i in range(devices)], **more)


def device_placement(devices: int, micro_batches: int) -> Schedule:
    """One micro-batch at a time: no two devices ever work at once."""
    return _woven("device-placement", devices, micro_batches, lambda _: 0)


def inference(devices: int, micro_batches: int) -> Schedule:
    """Forwards only, one micro-batch after the other."""
    orders = [codes(FORWARD, i, np.arange(micro_batches), devices, micro_batches) for i in range(devices)]
    return one_way("inference", np.arange(devices), micro_batches, orders)


def gpipe(devices: int, micro_batches: int) -> Schedule:
    """Return all forwards, then all backwards (arXiv:1811.06965)."""
    return _woven("gpipe", devices, micro_batches, lambda _: micro_batches)


def terapipe(devices: int, micro_batches: int, slices: int = 4) -> Schedule:
    """GPipe over slices of sequences: a slice needs only the slices before it (arXiv:2102.07988).

    Slice j of sequence i is micro-batch i x slices + j of the schedule; backwards go from the last slice to the first.

    Raises InputError for fewer than one slice.
    """
    check_whole("the slices of 'terapipe'", slices, 1, 4)
    count = micro_batches * slices
    number, kinds = np.r_[:count, count - 1 : -1 : -1], np.repeat((FORWARD, BACKWARD), count)
    orders = [codes(kinds, i, number, devices, count) for i in range(devices)]
    return one_way(f"terapipe:{slices}", np.arange(devices), count, orders)


def one_forward_one_backward(devices: int, micro_batches: int) -> Schedule:
    """1F1B with a flush: p - 1 - i forwards on device i, then one forward, one backward (arXiv:2104.04473)."""
    return _woven("1f1b", devices, micro_batches, lambda i: devices - 1 - i)


def interleaved(devices: int, micro_batches: int, chunks: int = 2, group: int | None = None) -> Schedule:
    """Interleaved 1F1B: `chunks` stages a device, visited by groups of micro-batches (arXiv:2104.04473).

    `group` is the number of micro-batches that pass one chunk in a row (None: the number of devices); with another
    group, micro-batches need not be a multiple of the devices (arXiv:2407.21783).

    Raises InputError for a group, the last one included, that is smaller than the number of devices: then devices would
    wait for each other.
    """
    check_whole("chunks of 'interleaved'", chunks, 1, 2)
    row = devices if group is None else group
    check_whole("the group of 'interleaved'", row, devices, devices)
    left = micro_batches % row
    if 0 < left < devices:
        whole, more = micro_batches - left, micro_batches - left + devices
        near = whole if whole and left <= more - micro_batches else more
        rule = (
            f"groups of {row}, the last of {devices} or more" if row > devices else f"a multiple of its {row} devices"
        )
        raise InputError(
            f"'interleaved' takes {rule} as micro-batches, not {micro_batches}; take {near}, or another group, as in "
            f"'{ScheduleName('interleaved', (chunks, max(devices, micro_batches)))}'"
        )
    if chunks == 1:
        return one_forward_one_backward(devices, micro_batches)
    micro_batch = np.tile(np.arange(micro_batches), chunks)
    chunk = np.repeat(np.arange(chunks), micro_batches)
    first = np.lexsort((micro_batch, chunk, micro_batch // row))
    last = np.lexsort((micro_batch, -chunk, micro_batch // row))
    stages = devices * chunks

    def order(i: int) -> Ints:
        forward, backward = (
            codes(kind, chunk[by] * devices + i, micro_batch[by], stages, micro_batches)
            for kind, by in ((FORWARD, first), (BACKWARD, last))
        )
        warmup = 2 * (devices - i - 1) + (chunks - 1) * min(row, micro_batches)
        return weave(forward, backward, len(forward) if micro_batches == devices else warmup)

    name = ScheduleName("interleaved", (chunks, group) if group is not None else (chunks,))
    return one_way(str(name), np.arange(stages) % devices, micro_batches, [order(i) for i in range(devices)])


def pipedream(devices: int, micro_batches: int) -> Schedule:
    """1F1B without flush: each micro-batch updates the weights; stage i keeps p - i versions (arXiv:1806.03377)."""
    kept = {"versions": tuple(range(devices, 0, -1)), "staleness": tuple(range(devices - 1, -1, -1))}
    return _woven("pipedream", devices, micro_batches, lambda i: devices - 1 - i, None, flushes=False, **kept)


def pipedream_2bw(devices: int, micro_batches: int) -> Schedule:
    """1F1B without flush, one update for all micro-batches: two versions, one update late (arXiv:2006.09503).

    Raises InputError for fewer micro-batches than devices: then more than two versions are in use.
    """
    if micro_batches < devices:
        raise InputError(
            f"'pipedream-2bw' needs at least as many micro-batches as its {devices} devices, not {micro_batches}; "
            f"take {devices}"
        )
    kept = {"versions": (2,) * devices, "staleness": (1,) * devices}
    return _woven("pipedream-2bw", devices, micro_batches, lambda i: devices - 1 - i, None, flushes=False, **kept)


def ampnet(devices: int, micro_batches: int) -> Schedule:
    """Each device runs what arrived first, and updates at once: one version of the weights (arXiv:1705.09786).

    As many micro-batches as devices are in flight. The order is that of backwards that take twice a forward; the
    forward and the backward of a micro-batch see weights that are up to `staleness` updates apart.
    """
    placement, replica = np.arange(devices)[None, :], np.zeros(micro_batches, np.int64)
    orders = list_schedule(
        placement, replica, 2, [devices] * devices, lambda kind, _, micro_batch, arrived: (arrived, -kind, micro_batch)
    )
    stale = tuple(int(_updates_between(order, devices * micro_batches).max()) for order in orders)
    return Schedule("ampnet", placement, replica, tuple(orders), flushes=False, staleness=stale)


def _updates_between(order: Ints, forwards: int) -> Ints:
    """Of each micro-batch, the other micro-batches' backwards between its forward and its backward."""
    updates = np.cumsum(order >= forwards)
    at = np.argsort(order)  # forwards by micro-batch, then backwards by micro-batch
    begun, ended = updates[at].reshape(2, -1)
    between: Ints = ended - 1 - begun
    return between


def zb_h1(devices: int, micro_batches: int) -> Schedule:
    """Zero bubble with 1F1B's memory: device i holds weight gradients back by i micro-batches (arXiv:2401.10241)."""
    return _woven("zb-h1", devices, micro_batches, lambda i: devices - 1 - i, lambda i: i)


def zb_h2(devices: int, micro_batches: int) -> Schedule:
    """Zero bubble with twice the warm-up: no idle time within a device's span (arXiv:2401.10241)."""
    return _woven("zb-h2", devices, micro_batches, lambda i: 2 * (devices - 1 - i), lambda i: 2 * i)
