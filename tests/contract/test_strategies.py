"""What every strategy of sharing a GPU promises, with every collective that it can carry out."""

import functools
import json
from dataclasses import replace

import pytest
from runs import beside, beside_all, isolated_collective, isolated_gemm, run, sharing, together

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.graph import Collective, Gemm, concurrent
from weft.kernels import GemmTiling
from weft.kernels.compute_units import split_units
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lower.masks import apart_of
from weft.simulate import compare
from weft.simulate.result.stored import as_record, from_record, summary

GPU = "mi300x"
GEMM = Gemm(4096, 4096, 1024, "bf16")
SIZE = 128 << 20
UNITS = 32
EPS = 0.03
"""A run beside another is at most this much faster than alone: its requests meet other rows and queues, and a neighbour
breaks the lockstep in which channels of a ring queue for a link (12 % at 64 MiB, where their parts are small)."""
COLLECTIVES = ("all_gather", "all_to_all", "all_reduce")
PAIRS = [
    (name, collective)
    for name, strategy in STRATEGIES.items()
    for collective in COLLECTIVES
    if strategy.driver == "cu" or collective != "all_reduce"
]
every_pair = pytest.mark.parametrize(("name", "collective"), PAIRS)


def split_of(name):
    """A partition of the compute units, with a channel for each of the collective's."""
    if not STRATEGIES[name].partition:
        return {}
    return {"units": UNITS, "channels": UNITS if STRATEGIES[name].driver == "cu" else None}


@functools.cache
def shared(name, collective):
    return together(GEMM, collective, SIZE, GPU, strategy=name, **split_of(name))


@functools.cache
def answer(name, collective):
    return beside(GEMM, collective, SIZE, GPU, strategy=name, **split_of(name), gemms=2, collectives=1)


@functools.cache
def gemm_alone(units=None):
    return isolated_gemm(GEMM, GPU, units=units)


@functools.cache
def collective_alone(collective, driver, units=None):
    return isolated_collective(collective, SIZE, GPU, driver=driver, units=units)


def left(name):
    """The compute units that a strategy leaves the GEMM; None: all."""
    return hardware.gpu(GPU).compute.compute_units - UNITS if STRATEGIES[name].partition else None


def held(name):
    """The compute units that a strategy gives a collective on compute units; None: as it likes."""
    return UNITS if STRATEGIES[name].partition and STRATEGIES[name].driver == "cu" else None


@every_pair
def test_neither_is_faster_than_alone_with_what_the_strategy_leaves_it(name, collective):
    run = shared(name, collective)
    moved = collective_alone(collective, STRATEGIES[name].driver, held(name))
    assert run.end("gemm") >= gemm_alone(left(name)).end("gemm") * (1 - EPS)
    assert run.end(collective) >= moved.end(collective) * (1 - EPS)
    assert run.makespan == max(run.end("gemm"), run.end(collective))


@every_pair
def test_side_by_side_takes_no_longer_than_one_after_the_other(name, collective):
    moved = collective_alone(collective, STRATEGIES[name].driver, held(name))
    assert shared(name, collective).makespan <= gemm_alone(left(name)).makespan + moved.makespan


@every_pair
def test_the_link_carries_what_the_collective_needs_and_nothing_for_the_gemm(name, collective):
    alone = collective_alone(collective, STRATEGIES[name].driver, held(name)).counters["link_bytes"]
    payload = SIZE * 7 / 8 * (2 if collective == "all_reduce" else 1)
    assert shared(name, collective).counters["link_bytes"] == alone >= payload * 0.999
    assert gemm_alone().counters["link_bytes"] == 0


@every_pair
def test_a_run_is_the_same_every_time_and_as_plain_data(name, collective):
    again = together(GEMM, collective, SIZE, GPU, strategy=name, **split_of(name))
    one, other = (replace(summary(found), cpu_s=0.0) for found in (shared(name, collective), again))
    assert as_record(one) == as_record(other)
    assert from_record(json.loads(json.dumps(as_record(one)))) == one


@every_pair
def test_nobody_runs_outside_its_mask(name, collective):
    found = answer(name, collective)
    units, _, _ = found.run.residency.of(0, ("gemm", "gemm.1"))
    moved, _, _ = found.run.residency.of(0, (collective,))
    assert len(set(units.tolist())) == found.run.held["gemm"]
    assert len(set(moved.tolist())) == found.run.held[collective]
    if STRATEGIES[name].driver == "dma":
        assert found.run.held[collective] == 0
    if STRATEGIES[name].partition:
        split = split_units(hardware.gpu(GPU), UNITS)
        assert set(units.tolist()) <= set(split.gemm)
        assert set(moved.tolist()) <= set(split.apart)


@every_pair
def test_a_slowdown_has_a_reason(name, collective):
    found = answer(name, collective)
    for loop in (found.gemm, found.collective):
        assert loop.slowdown >= 1 - EPS
        if loop.slowdown > 1.1 and loop.waits:
            assert loop.added or split_of(name)
    assert found.gemm.slowdown_both <= found.gemm.slowdown * 1.5
    ideal = max(found.gemm.alone * found.gemm.count, found.library_alone.period(found.name) * found.collective.count)
    assert found.serial / found.ideal_speedup == pytest.approx(ideal)


@every_pair
def test_priority_lets_the_collective_find_compute_units_at_once(name, collective):
    if STRATEGIES[name].priority:
        assert shared(name, collective).waits(collective)["dispatch"] == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_gemm_whose_k_is_cut_ends_with_its_sums_and_keeps_to_its_mask(name):
    gemm = Gemm(512, 512, 16384, "bf16")
    found = beside(gemm, "all_gather", 8 << 20, GPU, strategy=name, **split_of(name), gemms=2, collectives=1)
    ends = {span.kernel: span.end_fs for span in found.run.spans if span.gpu == 0}
    assert [name for name in ends if "gemm" in name] == ["gemm", "gemm sum", "gemm.1", "gemm.1 sum"]
    assert found.gemm.end == ends["gemm.1 sum"] * 1e-15
    assert found.gemm.count == 2
    assert found.gemm.slowdown >= 1 - EPS
    held, _, _ = found.run.residency.of(0, ("gemm", "gemm sum", "gemm.1", "gemm.1 sum"))
    assert len(set(held.tolist())) == found.run.held["gemm"]
    if STRATEGIES[name].partition:
        assert set(held.tolist()) <= set(split_units(hardware.gpu(GPU), UNITS).gemm)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_behind_a_gemm_a_collective_waits_for_the_tail_or_with_priority_for_the_next_free_units(collective):
    waves = replace(tiling_for(GEMM, hardware.gpu(GPU)), columns=112)

    def waited(name):
        options = {"strategy": name, "first": "gemm", "tiling": waves, **split_of(name)}
        return together(GEMM, collective, SIZE, GPU, **options).waits(collective)["dispatch"]

    assert waited("streams") > 0.5 * isolated_gemm(GEMM, GPU, tiling=waves).end("gemm")
    assert 0 < waited("priority") < 0.8 * waited("streams")
    assert waited("partition") == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_host_launches_the_gemm_first_unless_the_collective_has_priority(name):
    first = "collective" if STRATEGIES[name].priority else "gemm"
    graph = concurrent(GEMM, Collective("all_gather", SIZE, 8, GEMM.dtype))
    usual, said = (
        sharing(name, first=which, **split_of(name)).apply(graph, hardware.gpu(GPU)) for which in (None, first)
    )
    assert usual == said
    assert answer(name, "all_gather").first == first
    launched = together(GEMM, "all_gather", SIZE, GPU, strategy=name, **split_of(name), first=first)
    assert shared(name, "all_gather").makespan == launched.makespan


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all"])
def test_copies_leave_the_gemm_its_compute_units_and_its_cache(collective):
    run, alone = shared("dma", collective), gemm_alone()
    assert run.held["gemm"] == alone.held["gemm"]
    assert run.counters["cache_misses"] == pytest.approx(alone.counters["cache_misses"], rel=0.02)


@pytest.mark.parametrize("apart", [1, 4, 8, 20, 32, 64, 303])
def test_units_are_set_apart_alike_in_every_xcd(apart):
    gpu = hardware.gpu(GPU)
    split = split_units(gpu, apart)
    assert sorted(split.gemm + split.apart) == list(range(304))
    assert len(split.apart) == apart
    each = [sum(unit * gpu.dies // 304 == part for unit in split.apart) for part in range(8)]
    assert max(each) - min(each) <= 1


def test_where_there_are_no_xcds_the_last_units_are_set_apart():
    assert split_units(hardware.gpu("h100-sxm"), 12).apart == tuple(range(120, 132))


def test_all_strategies_side_by_side_are_those_that_can_carry_the_collective_out():
    small = Gemm(1024, 1024, 1024, "bf16")
    found = beside_all(small, "all_reduce", 4 << 20, GPU, gemms=1, collectives=1)
    assert list(found.timelines) == [name for name, one in STRATEGIES.items() if one.driver == "cu"]
    assert all("cannot add" in reason for reason in found.refused.values())
    assert found[found.best].makespan == min(one.makespan for one in found)
    assert found.corun("streams").first == "gemm"
    alone = beside(small, "all_reduce", 4 << 20, GPU, gemms=1, collectives=1, strategy="priority")
    assert found["priority"].makespan == alone.makespan


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: together(GEMM, "all_reduce", SIZE, GPU, strategy="dma"), InputError, "cannot add; choose"),
        (lambda: together(GEMM, "all_gather", SIZE, GPU, strategy="stream"), UnknownNameError, "'streams'"),
        (lambda: together(GEMM, "all_gather", SIZE, GPU, units=8), InputError, "sets no compute units apart"),
        (lambda: beside(GEMM, "all_to_all", SIZE, GPU, ranks=16), InputError, "rings over several nodes"),
        (lambda: isolated_collective("all_gather", SIZE, GPU, ranks=1), InputError, "at least 2"),
        (lambda: isolated_gemm(GEMM, GPU, tiling=GemmTiling(slots=9)), InputError, "between 1 and 8 iterations"),
        (lambda: isolated_gemm(GEMM, GPU, tiling=GemmTiling(512, 512)), InputError, "of registers"),
        (lambda: together(GEMM, "all_gather", SIZE, GPU, tiling=GemmTiling(slots=9)), InputError, "iterations"),
        (
            lambda: beside(GEMM, "all_gather", SIZE, GPU, tiling=GemmTiling(32, 32, step=1 << 16)),
            InputError,
            "choose a smaller tile",
        ),
        (lambda: together(GEMM, "all_gather", SIZE, GPU, strategy="partition", units=304), InputError, "at least one"),
        (lambda: together(GEMM, "all_gather", SIZE, GPU, strategy="dma-partition", units=0), InputError, "one"),
        (lambda: together(GEMM, "all_gather", SIZE, GPU, first="host"), UnknownNameError, "first stream"),
        (lambda: isolated_gemm(GEMM, GPU, units=0), InputError, "each side needs at least one"),
        (lambda: isolated_gemm(GEMM, GPU, units=305), InputError, "units is -1; it must be a whole number"),
        (lambda: isolated_collective("all_gather", SIZE, GPU, units=305), InputError, "RCCL has 1 to 128"),
        (lambda: isolated_collective("all_gather", SIZE, GPU, driver="dma", units=4), InputError, "on compute units"),
        (lambda: isolated_collective("all_gather", SIZE, GPU, driver="gpu"), UnknownNameError, "driver"),
        (lambda: isolated_gemm(GEMM, GPU, tiling=GemmTiling(512, 512, 64)), InputError, "of registers, but a compute"),
        (lambda: apart_of(272, 30, hardware.gpu(GPU)), InputError, "has 302 compute units, but mi300x has 304"),
        (lambda: apart_of(0, 304, hardware.gpu(GPU)), InputError, "each side needs at least one"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused_in_one_sentence(call, error, sentence):
    with pytest.raises(error) as refused:
        call()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_sub_layer_has_no_strategy():
    from weft.models import SubLayer
    from weft.models.parallel import split

    with pytest.raises(InputError, match="streams that do not wait for each other"):
        run(split(SubLayer.custom(512, 512, 256), 4), "t3-paper", "partition")


def test_waits_for_loads_and_stores_add_up_over_who_was_waited_for():
    found = answer("streams", "all_gather")
    (kernel,) = [span for span in found.run.spans if span.kernel == "all_gather"]
    loads = sum(found.collective.waits[why] for why in ("cache", "memory_cache", "memory"))
    stores = sum(found.collective.waits[why] for why in ("store", "link"))
    assert loads / stores == pytest.approx(kernel.waits["memory"] / kernel.waits["store"])
    assert found.collective.waits["link"] > 0


def test_only_a_gpu_with_a_memory_side_cache_waits_for_it_or_is_served_by_it():
    for gpu, there in ((GPU, True), ("a100-sxm-80gb", False)):
        run = together(GEMM, "all_gather", 16 << 20, gpu, ranks=4 if gpu != GPU else 8, strategy="priority")
        assert (run.waits("all_gather")["memory_cache"] > 0) is there
        assert any(level.startswith("memory_cache") for level in run.levels) is there
        assert run.levels["cache_hit"]["gemm", "read"] > 0


def test_what_passes_is_told_for_both_alone_and_side_by_side():
    traffic = answer("dma", "all_gather").traffic()
    gemm, collective, both = traffic["link out"]
    assert gemm == 0 < collective == pytest.approx(both)
    gemm, collective, both = traffic["L2: hits"]
    assert collective == 0 < gemm == pytest.approx(both, rel=0.05)


def co_run(overlap, gemms=1, options=None, **values):
    machine = hardware.system("mi300x", gpus=8)
    machine = machine.with_gpu(machine.gpu.replace({key.replace("__", "."): value for key, value in values.items()}))
    graph = concurrent(Gemm(4096, 4096, 4096, "bf16"), Collective("all_reduce", 64 << 20, 8, "bf16"), gemms, 1)
    return compare(graph, machine, overlap, options).corun()


def test_a_gemm_computes_more_slowly_while_a_collective_holds_compute_units():
    usual, slower = (co_run("priority", achieved__gemm_corun=share) for share in (1, 0.5))
    assert slower.gemm.alone == usual.gemm.alone
    assert slower.gemm.both > 1.5 * usual.gemm.both
    first, second = (co_run("streams", achieved__gemm_corun=share) for share in (1, 0.5))
    assert second.gemm.end == pytest.approx(first.gemm.end, rel=0.02)  # it has all units until its last wave
    assert co_run("streams", 2, achieved__gemm_corun=0.5).gemm.end > 1.02 * co_run("streams", 2).gemm.end


def test_stores_to_peers_are_acknowledged_later_while_a_gemm_holds_the_clock_down():
    few = replace(STRATEGIES["priority"], channels=8)
    slow, equal, short = (
        co_run(few, 4, options, clocks__sustained=clock, achieved__gemm_corun=1)
        for clock, options in (("1050 MHz", None), ("2100 MHz", None), ("1050 MHz", RunOptions(clock="short")))
    )
    assert slow.collective.slowdown > equal.collective.slowdown + 0.05
    assert short.collective.slowdown == pytest.approx(equal.collective.slowdown, abs=0.03)
    assert slow.collective.added == "stores over the link"
