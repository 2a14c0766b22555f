"""Rows on parallelism: ZeRO, collectives, parameter servers, rules of replicas, and pipeline schedules."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.stats import uniform

from weft.papers.memo.values import Values, case
from weft.papers.textbook.collectives import FORMS, Wire, parameter_server, switch_point, textbook
from weft.papers.textbook.replicas import COLLECTIVES, Consistency, update_rules, zero_stages
from weft.step.pipeline import Durations, PipelineTimes, run_schedule, schedule


def zero() -> Values:
    """Return the bytes of a rank by ZeRO's stage [GB], and what it sends over what plain data parallelism does."""
    stages = zero_stages(*case("zero"))
    held = {f"stage{one.stage}": one.bytes / 1e9 for one in stages}
    sent = {f"sent{one.stage}": one.sent / stages[0].sent for one in stages}
    return {**held, **sent, "all_reduces": COLLECTIVES[2].count("all_reduce")}


def wire() -> Wire:
    """Return the memo's link between ranks."""
    return Wire.of(*case("wire"))


def collectives() -> Values:
    """Return where a ring all-reduce overtakes trees [MB], rounds of a binomial tree, and both at ends of the range
    [us].
    """
    ranks, link = case("ranks"), wire()
    small, large = (textbook("all_reduce", name, 8.0, ranks, link) for name in ("tree", "ring"))
    return {
        "switch": switch_point("all_reduce", "tree", "ring", ranks, link) / 1e6,
        "rounds": FORMS["broadcast"]["tree"].latencies(ranks),
        "tree_small": float(small) * 1e6,
        "ring_small": float(large) * 1e6,
        "ring_volume": FORMS["all_reduce"]["ring"].volumes(ranks),
    }


def replicas() -> Values:
    """Parameter servers and a ring [s], and the mean step of eight workers with and without a barrier."""
    size, workers, rate = case("server")
    found = rules()
    return {
        "server": float(parameter_server(size, workers, rate)),
        "sharded": float(parameter_server(size, workers, rate, workers)),
        "ring": float(parameter_server(size, workers, rate, None)),
        "bsp": found["BSP"].step,
        "asp": found["ASP"].step,
        "ssp_lag": max(found["SSP 1"].lag),
        "bsp_delay": found["BSP"].delay,
    }


@cache
def rules() -> Consistency:
    """BSP, SSP and ASP for eight workers whose steps take 1 to 2 s, uniformly."""
    return update_rules([uniform(1, 1)] * 8, [0, 1, 4, math.inf], steps=400)


def time_schedule(name: str, micro_batches: int, backward: float, weight: float) -> PipelineTimes:
    """Return a schedule on the memo's devices, with a device's forward of a micro-batch as the unit of time."""
    order = schedule(name, case("devices"), micro_batches)
    part = order.devices / order.stages
    return run_schedule(order, Durations(part, part * backward, part * weight))


def pipelines() -> Values:
    """Makespans of schedules, idle shares, what devices hold, and versions of weights."""
    ran = {row: time_schedule(*how) for row, (_, *how) in case("schedules").items()}
    spans = {row: ran[row].makespan for row in ran}
    devices, batches = case("devices"), case("micro_batches")
    late = [time_schedule(name, 8 * batches, 2, 0).peak_in_flight.max() for name in ("1f1b", "gpipe")]
    async_, double = (schedule(name, devices, batches).versions for name in ("pipedream", "pipedream-2bw"))
    send = run_schedule(schedule("1f1b", devices, batches), Durations(1, 2), case("send")).makespan
    return {
        **spans,
        "zb_h2_span": float(ran["zb_h2"].span.max()),
        "idle_placement": ran["placement"].idle_share,
        "idle_1f1b": ran["one_forward"].idle_share,
        "idle_interleaved": ran["interleaved"].idle_share,
        "idle_chimera": ran["chimera"].idle_share,
        "idle_dualpipe": ran["dualpipe"].idle_share,
        "idle_inference": time_schedule("inference", batches, 0, 0).idle_share,
        "peak_1f1b": float(ran["one_forward"].peak_in_flight.max()),
        "peak_gpipe": float(ran["gpipe"].peak_in_flight.max()),
        "peak_interleaved": float(ran["interleaved"].peak_in_flight.max()),
        "peak_many": float(late[0]),
        "peak_many_gpipe": float(late[1]),
        "versions_first": async_[0] / devices,
        "versions_mean": float(np.mean(async_)) / devices,
        "versions_2bw": max(double) / devices,
        "send_1f1b": send,
    }
