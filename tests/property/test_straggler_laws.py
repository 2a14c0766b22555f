"""What GPUs that are late cost: at most what they are late by, and nothing where none is."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import weft
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.hardware import FABRICS, Stragglers, slower, slowest
from weft.models import SubLayer
from weft.models.parallel import dependent, split
from weft.simulate.single import alone

RANKS = 4
LAYER = split(SubLayer.custom(1024, 1024, 2048), RANKS)
GATHERED = dependent("ag_gemm", weft.gemm(1024, 1024, 512, "fp16"), RANKS)
OVERLAPS = ("sequential", "t3", "t3-mca", "t3-direct")
EXPLICIT = RunOptions(mode="explicit")
laws = settings(deadline=None)
shares = st.floats(0.01, 0.3)


@pytest.mark.parametrize("overlap", OVERLAPS)
@laws
@given(share=shares)
def test_one_slow_gpu_costs_at_most_what_its_clock_loses(overlap, share):
    """Memory and links are as fast as before, so only what is computed takes longer."""
    found = weft.compare(LAYER, "t3-paper", overlap, stragglers=Stragglers("one", share))
    assert -0.02 <= found.drawn[overlap].lost <= share / (1 - share) + 0.005


def joined(fabric, **late):
    """GPUs whose links together carry the rate of one of the ring; a node holds two of them, and a switch adds."""
    gpu, more = weft.gpu("t3-paper"), {"nodes": {"each": 2}, "switch": {"reduces": True}}.get(fabric, {})
    rate = gpu.link.bandwidth / (RANKS - 1 if fabric == "full" else 1)
    return weft.System(gpu=gpu, gpus=RANKS, fabric=FABRICS[fabric](RANKS, rate, gpu.link.latency, **more), **late)


ROUNDS = [
    *((LAYER, one, "ring") for one in ("sequential", "flux", "t3", "t3-mca", "t3-critical", "t3-split-k")),
    *((LAYER, one, "full") for one in ("t3-direct", "t3-direct-dma")),
    *((LAYER, one, "switch") for one in ("t3-direct", "t3-nvls")),
    (LAYER, "t3-two-level", "nodes"),
    *((GATHERED, one, "switch") for one in ("sequential", "flux", "userbuffers", "t3-all-gather")),
]
"""Every way to overlap a GEMM and a collective that goes in rounds, with a fabric for it."""


@pytest.mark.parametrize(("graph", "overlap", "fabric"), ROUNDS)
@example(late_us=8.272636823114114, rank=2)  # where a chunk that is read waits for another GPU's updates
@laws
@given(late_us=st.floats(1, 200), rank=st.integers(0, RANKS - 1))
def test_a_gpu_that_begins_late_delays_the_end_by_no_more_and_one_round(graph, overlap, fabric, late_us, rank):
    """In a round a chunk is read from memory, crosses a link, and is added to memory."""
    gpu = weft.gpu("t3-paper")
    equal = weft.simulate(graph, joined(fabric), overlap, EXPLICIT).seconds
    of = graph["all_gather"].op.bytes if graph is GATHERED else graph["gemm"].op.output_bytes
    found = weft.simulate(graph, joined(fabric, start={rank: f"{late_us} us"}), overlap).seconds
    chunk, link = of / RANKS, gpu.link
    once = chunk / link.bandwidth + link.latency + 2 * chunk / gpu.memory.bandwidth
    assert equal * 0.98 <= found <= equal + late_us * 1e-6 + once


@laws
@given(seed=st.integers(0, 2**30), share=shares, gpus=st.integers(2, 16))
def test_clocks_are_drawn_within_the_spread_and_the_same_from_a_seed(seed, share, gpus):
    system = weft.system("t3-paper", gpus=gpus)
    drawn = Stragglers("gpus", share, draws=3, seed=seed).systems(system)
    assert drawn == Stragglers("gpus", share, draws=3, seed=seed).systems(system)
    usual = system.gpu.compute.clock
    for one in drawn:
        clocks = [one.gpu_of(rank).compute.clock / usual for rank in range(gpus)]
        assert min(clocks) >= 1 - share / 2 - 1e-6
        assert max(clocks) <= 1 + share / 2 + 1e-6
        assert len(set(clocks)) > 1


@pytest.mark.parametrize("overlap", OVERLAPS)
@laws
@given(seed=st.integers(0, 2**30), share=st.floats(0.01, 0.2))
def test_workgroups_whose_clocks_differ_cost_at_most_what_the_slowest_loses(overlap, seed, share):
    found = weft.compare(LAYER, "t3-paper", overlap, stragglers=Stragglers("workgroups", share, draws=2, seed=seed))
    low, high = found.drawn[overlap].range
    assert -share / 2 - 0.02 <= low <= high <= share / 2 / (1 - share / 2) + 0.02


@pytest.mark.parametrize("mode", ["mirrored", "explicit"])
@pytest.mark.parametrize("overlap", ["sequential", "t3-mca", "t3-split-k", "flux"])
def test_workgroups_have_the_clocks_of_their_seed(overlap, mode):
    def took(spread, seed):
        options = RunOptions(mode=mode, workgroup_spread=spread, workgroup_seed=seed)
        found = weft.simulate(LAYER, "t3-paper", overlap, options)
        return found.seconds, dict(found.traffic)

    assert took(0.1, 3) == took(0.1, 3)
    assert took(0.1, 3)[0] != took(0.1, 4)[0]
    assert took(0, 3) == took(0, 4)
    updates = sum(amount for cause, amount in took(0.1, 3)[1].items() if cause[1] != "read")
    assert updates == sum(amount for cause, amount in took(0, 3)[1].items() if cause[1] != "read")


def test_the_slowest_gpu_of_each_draw_is_named():
    gpus = weft.compare(LAYER, "t3-paper", "t3", stragglers="gpus:10%,draws=3,seed=2")
    for (rank, share), system in zip(
        gpus.slowest, Stragglers("gpus", 0.1, 3, 2).systems(weft.system("t3-paper", gpus=RANKS)), strict=True
    ):
        clocks = {g: system.gpu_of(g).compute.clock for g in range(RANKS)}
        assert clocks[rank] == min(clocks.values())
        assert share == pytest.approx(1 - clocks[rank] / system.gpu.compute.clock)
    workgroups = weft.compare(LAYER, "t3-paper", "t3", stragglers="workgroups:4%,draws=2")
    assert workgroups.slowest == (None, None)


@laws
@given(seed=st.integers(0, 2**30), share=shares)
def test_in_each_iteration_another_gpu_is_late_by_at_most_the_share(seed, share):
    late = Stragglers("iterations", share, draws=4, seed=seed)
    found = weft.compare(LAYER, "t3-paper", "t3", stragglers=late)
    assert all(0 <= lost <= share for _, lost in found.slowest)
    for (_, lost), row in zip(found.slowest, found.late_rows()[::2], strict=True):
        assert row["overlap"] == "sequential"
        assert -0.005 <= row["lost"] <= lost / (1 - lost) + 0.005
    ranks = {rank for n in range(8) for rank, _ in _slowest("iterations", share, n)}
    assert len(ranks) > 1


def _slowest(who, share, seed):
    return [slowest(one) for one in Stragglers(who, share, 4, seed).systems(weft.system("t3-paper", gpus=RANKS))]


def test_one_slow_gpu_is_compared_at_several_shares():
    found = weft.compare(LAYER, "t3-paper", "t3", stragglers="one:2/20%")
    single = [weft.compare(LAYER, "t3-paper", "t3", stragglers=f"one:{share}%") for share in (2, 20)]
    assert found.drawn["t3"].seconds == tuple(one.drawn["t3"].seconds[0] for one in single)
    rows = [row for row in found.late_rows() if row["overlap"] == "t3"]
    assert [row["slowest_gpu"] for row in rows] == [RANKS // 2] * 2
    assert [row["slower"] for row in rows] == pytest.approx([0.02, 0.2])
    assert rows[1]["lost"] > rows[0]["lost"]


@pytest.mark.parametrize("overlap", [*OVERLAPS, "flux"])
@pytest.mark.parametrize("name", ["t3-paper", "h100-sxm"])
def test_a_gpu_described_by_itself_but_equal_changes_nothing(name, overlap):
    equal = weft.system(name, gpus=RANKS)
    found = [
        weft.simulate(LAYER, one, overlap, EXPLICIT)
        for one in (equal, equal.with_variants({2: slower(equal.gpu, 0.0)}))
    ]
    assert found[0].seconds == found[1].seconds
    assert found[0].events == found[1].events


def test_a_slower_gpu_keeps_what_it_computes_in_a_clock():
    gpu = weft.gpu("h100-sxm")
    found = slower(gpu, 0.25)
    assert found.compute.clock == pytest.approx(0.75 * gpu.compute.clock)
    assert found.clocks.sustained == pytest.approx(0.75 * gpu.clocks.sustained)
    assert found.clocks.matrix_peak == gpu.clocks.matrix_peak
    assert found.memory == gpu.memory


def test_stragglers_are_simulated_gpu_by_gpu_beside_equal_ones():
    found = weft.compare(LAYER, "t3-paper", "t3", stragglers="one:10%")
    assert list(found.drawn) == ["sequential", "t3"]
    equal = weft.simulate(LAYER, "t3-paper", "t3", EXPLICIT)
    assert found.drawn["t3"].equal_s == equal.seconds
    assert found["t3"].options.mode == "explicit"
    assert found["t3"].seconds == found.drawn["t3"].seconds[0]
    record = found.to_dict()["stragglers"]
    assert record["who"] == "one GPU 10 % slower"
    assert record["by_overlap"]["t3"]["lost"] == found.drawn["t3"].lost


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Stragglers.of("one"), None),
        (lambda: Stragglers.of("late:5%"), "they are one, like one:5%, or gpus"),
        (lambda: Stragglers.of("5%"), "'5%' describes no stragglers; write them like"),
        (lambda: Stragglers.of(5), "5 describes no stragglers"),
        (lambda: Stragglers("one", 0.7), "differ by 70%; give a share above 0 and up to 50%"),
        (lambda: Stragglers("one", 0.1, draws=2), "leave draws out"),
        (lambda: Stragglers("gpus", 0.1, draws=0), "0 draws; take at least 1"),
        (lambda: Stragglers("gpus", (0.1, 0.2)), "gpus differ by 2 shares; give one"),
        (lambda: Stragglers("one", ()), "differ by 0%; give a share above 0"),
        (lambda: RunOptions(workgroup_spread=0.6), "workgroup_spread is 0.6; give a share from 0 to 0.5"),
        (lambda: RunOptions(workgroup_spread="2%"), "workgroup_spread is '2%'; give a share"),
        (lambda: RunOptions(workgroup_spread=0.1, updates=True), "leave out updates or workgroup_spread"),
        (
            lambda: weft.simulate(
                alone(weft.all_gather("1 MiB", ranks=4)), "t3-paper", options=RunOptions(workgroup_spread=0.1)
            ),
            "no GEMM runs with workgroups to slow",
        ),
        (
            lambda: Stragglers("one").systems(weft.System(gpu=weft.gpu("t3-paper"), gpus=2, start={0: "1 us"})),
            "those of this system differ",
        ),
        (
            lambda: weft.compare(
                weft.concurrent(weft.Gemm(512, 512, 512), weft.all_gather("1 MiB", ranks=4)), "t3-paper",
                stragglers="one:5%",
            ),
            "these streams are independent; leave stragglers out",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_in_a_sentence(call, words):
    if words is None:
        assert call().share == 0.08
        return
    with pytest.raises(InputError, match=words):
        call()
