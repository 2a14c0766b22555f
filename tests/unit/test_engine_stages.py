"""Kernels whose workgroups are dispatched stage by stage, and stores to peers that a buffer takes."""

import itertools

import numpy as np
import pytest
from machines import finish, gpu, layer, program

import weft
from weft.engine import layout as y


def stages(machine, made) -> tuple[np.ndarray, np.ndarray]:
    """The first start and the last end [fs] of each stage of the GEMM, whose workgroups come first."""
    k = int(np.flatnonzero(machine.kernel[0, :, y.KERNEL_STAGE])[0])
    first, count = machine.kernel[0, k, [y.KERNEL_FIRST_WORK, y.KERNEL_WORKGROUPS]]
    log = machine.work_log[0, first : first + count]
    places = np.arange(count) // machine.kernel[0, k, y.KERNEL_STAGE]
    starts = [log[places == s, y.WORKLOG_START].min() for s in range(places[-1] + 1)]
    ends = [log[places == s, y.WORKLOG_END].max() for s in range(places[-1] + 1)]
    return np.array(starts), np.array(ends)


@pytest.mark.parametrize("overlap", ["sequential", "t3"])
def test_a_stage_begins_when_the_stage_before_has_ended(overlap):
    small = gpu(compute__compute_units=8, compute__stages_in_step=1)
    made = program(layer(m=1024, n=1024, k=512), overlap, small)
    starts, ends = stages(finish(made), made)
    assert len(starts) > 2
    assert (starts[1:] == ends[:-1]).all()


def test_without_stages_a_workgroup_begins_as_soon_as_it_fits():
    small = gpu(compute__compute_units=8, compute__stages_in_step=0)
    assert not program(layer(m=1024, n=1024, k=512), "t3", small).tables.kernel[0, :, y.KERNEL_STAGE].any()


SLOW = {"link.bandwidth": "20 GB/s", "compute.stages_in_step": 0}
"""A link that holds up workgroups, whose ends are not those of their stages."""


def ends(buffer: str, overlap: str) -> int:
    """When the GEMM ends [fs] on a GPU with a store buffer."""
    machine = weft.gpu("t3-paper").replace({**SLOW, "link.store_buffer": buffer})
    return weft.simulate(layer(m=2048, n=1024, k=512), machine, overlap).spans[0].end_fs


@pytest.mark.parametrize("overlap", ["t3", "t3-direct"])
def test_a_larger_store_buffer_lets_workgroups_end_earlier(overlap):
    found = [ends(buffer, overlap) for buffer in ("0 B", "512 KiB", "2 MiB", "1 TiB")]
    assert all(after <= 1.002 * before for before, after in itertools.pairwise(found))
    assert found[-1] < 0.9 * found[0]


def test_a_store_buffer_that_holds_no_store_changes_nothing_but_who_takes_them():
    assert ends("32 B", "t3-direct") == ends("0 B", "t3-direct")


@pytest.mark.parametrize("buffer", ["0 B", "64 KiB", "1 MiB", "1 TiB"])
@pytest.mark.parametrize("overlap", ["t3", "t3-direct", "flux"])
def test_what_enters_the_store_buffer_leaves_it(overlap, buffer):
    machine = finish(program(layer(m=1024, n=1024, k=512), overlap, gpu(link__store_buffer=buffer)))
    assert not machine.flow[:, [y.FLOW_BUFFERED, y.FLOW_BUFFER_FIRST, y.FLOW_BUFFER_LAST]].any()


@pytest.mark.parametrize("overlap", ["t3", "t3-critical", "t3-direct"])
@pytest.mark.parametrize(("units", "rounds"), [(8, 6), (7, 7), (40, 2)])
def test_what_is_planned_to_be_computed_and_sent_is_computed_and_sent_in_the_end(overlap, units, rounds):
    """The 48 tiles are planned as rounds of as many as there are units, the last one as long as the others."""
    machine = finish(program(layer(m=1024, n=768, k=528), overlap, gpu(compute__compute_units=units)))
    flow, computed = machine.flow[0], machine.kernel_run[0, machine.kernel[0, :, y.KERNEL_MONITOR] == 1, y.RUN_COMPUTE]
    assert flow[y.FLOW_TO_COMPUTE] * 48 == computed.sum() * units * rounds > 0
    assert flow[y.FLOW_TO_SEND] == flow[y.FLOW_SENT] > 0


@pytest.mark.parametrize(("name", "tp"), [("mega-gpt-2/op", 16), ("t-nlg/op", 16), ("t-nlg/fc2", 16)])
def test_the_critical_stream_first_is_as_good_as_the_better_of_round_robin_and_compute_first(name, tp):
    """On T-NLG's OP the first stage waits for the link, which must not count as the GEMM's own pace."""
    found = weft.compare(name, "t3-paper", ["t3", "t3-mca", "t3-critical"], tp=tp)
    seconds = {overlap: found[overlap].seconds for overlap in ("t3", "t3-mca", "t3-critical")}
    assert seconds["t3-critical"] <= min(seconds["t3"], seconds["t3-mca"]) * 1.001


def test_a_starvation_limit_that_exceeds_the_burst_of_a_stage_never_expires():
    work, paper = weft.sublayer("t-nlg", "op", tp=8), weft.gpu("t3-paper")
    short, long, none = (
        weft.simulate(work, paper.replace({"arbiter.starvation_limit": limit}), "t3-mca")
        for limit in ("2 us", "10 us", "1 ms")
    )
    assert short.counters["communication_waited_past_limit"] > 500
    assert long.counters["communication_waited_past_limit"] == 0
    assert long.seconds == none.seconds < short.seconds
