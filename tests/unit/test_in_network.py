"""A GEMM and the all-reduce by a switch that adds: what crosses the links, what it saves, and where it is refused."""

from dataclasses import replace

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.graph import Collective, LibraryCollective
from weft.models import SubLayer
from weft.models.parallel import dependent, split
from weft.overlaps import OVERLAPS
from weft.overlaps.lower.collectives import collective_kernel
from weft.simulate import alone

LAYER = split(SubLayer.custom(4096, 4096, 4096), 8)
NODE = weft.system("dgx-h100")
WHOLE = LAYER["gemm"].op.output_bytes


@pytest.fixture(scope="module")
def found():
    return weft.compare(LAYER, NODE, ["in-network"], RunOptions(request_bytes=2048))


def test_every_byte_goes_up_and_down_a_gpus_links_once(found):
    """A ring sends each GPU's output on twice, but for a share of the ranks; a switch lets it up, and the sum down."""
    ring, switch = (run.counters["link_bytes"] for run in found)
    assert ring == pytest.approx(2 * 7 / 8 * WHOLE, rel=0.01)
    assert switch == pytest.approx(9 / 8 * WHOLE, rel=0.05)  # what is asked of it, and its own part's sum for all


def test_an_answer_sets_new_hardware_beside_the_fastest_that_needs_none():
    found = weft.compare(LAYER, NODE, ["in-network", "t3-mca"], RunOptions(request_bytes=2048))
    ratio = found["in-network"].seconds / found["t3-mca"].seconds
    assert (
        f"Against in-network, {found['in-network'].seconds * 1e6:,.1f} µs without new hardware, it is {ratio:.2f} "
        in str(found)
    )
    assert "Against" not in str(weft.compare(LAYER, NODE, ["t3", "t3-mca"], RunOptions(request_bytes=2048)))


def test_it_takes_less_time_than_two_rings_for_large_outputs():
    large = weft.compare(split(SubLayer.custom(16384, 8192, 1024), 8), NODE, "in-network")
    assert large["in-network"].seconds < large.baseline.seconds


def test_the_closed_form_lies_within_its_error(found):
    advised = weft.advise_fuse("gemm_ar", weft.Gemm(4096, 4096, 4096), 8, NODE, fidelity="estimate")
    assert found["in-network"].seconds == pytest.approx(advised.option("in-network").seconds, rel=0.3)


@pytest.mark.parametrize(
    ("work", "system", "words"),
    [
        (LAYER, "t3-paper", "t3-paper has no switch that reduces, as 'nvls' needs"),
        (dependent("gemm_rs", LAYER["gemm"].op, 8), NODE, "behind this GEMM is a reduce_scatter, which moves no byte"),
    ],
)
def test_where_no_switch_adds_it_is_refused(work, system, words):
    with pytest.raises(InputError, match=words):
        weft.simulate(work, system, "in-network")


def test_of_every_overlap_those_that_the_machine_lacks_are_left_out_with_the_reason():
    small = split(SubLayer.custom(1024, 1024, 1024), 4)
    found = weft.compare(small, "t3-paper")
    assert {"sequential", "t3", "flux"} <= set(found.timelines)
    assert list(found.refused) == ["in-network", "t3-nvls"]
    assert "no switch that reduces" in found.refused["in-network"]
    assert "no switch that adds what passes it" in found.refused["t3-nvls"]
    assert "left out: in-network" in str(found)


def test_stragglers_of_every_overlap_leave_out_what_the_machine_lacks():
    small = split(SubLayer.custom(1024, 1024, 1024), 4)
    found = weft.compare(small, "t3-paper", stragglers="one:5%")
    assert list(found.refused) == ["in-network", "t3-nvls"]
    assert {"sequential", "t3", "flux"} <= set(found.drawn)
    assert found.drawn["t3"].lost > 0


# -- the baseline by kernels of the library


BY_SWITCH = replace(OVERLAPS["sequential"], algorithm="nvls")
COARSE = RunOptions(request_bytes=16384)
OP = weft.sublayer("t-nlg", "op", tp=8)
LARGE = OP["gemm"].op.output_bytes


def lone(name):
    return alone(Collective(name, LARGE, 8, "fp16"), kernel=LibraryCollective("nvls"))


def test_behind_a_gemm_collectives_through_the_switch_take_what_they_take_alone():
    found = weft.simulate(OP, NODE, BY_SWITCH, COARSE)
    assert [node.choice.kernel for node in found.graph.collectives] == [LibraryCollective("nvls")] * 2
    for name in ("reduce_scatter", "all_gather"):
        by_itself = weft.simulate(lone(name), NODE, "streams", COARSE)
        assert found.duration(name) == pytest.approx(by_itself.seconds, rel=0.01)


@pytest.mark.parametrize(("name", "up"), [("reduce_scatter", 1), ("all_gather", 1 / 8)])
def test_the_switch_takes_every_byte_and_the_librarys_turns_come_on_top(name, up):
    """All S bytes pass a GPU's link, its own share included, where a ring moves 7/8 S; one turn fills the pipeline."""
    found, kernel = weft.simulate(lone(name), NODE, "streams", COARSE), collective_kernel(lone(name).nodes[0], NODE)
    assert found.counters["link_bytes"] == pytest.approx(up * LARGE, rel=0.01)
    link, cost = NODE.gpu.link, NODE.library.nvls
    wire = LARGE / (link.bandwidth * link.kernel_efficiency * cost.link)
    assert found.seconds > wire
    turns = kernel.turns + 1
    law = wire * turns / kernel.turns + cost.start + turns * cost.sync
    assert 0.87 * law < found.seconds < 1.02 * law
    bare = NODE.replace({"library.nvls.start": "0 s", "library.nvls.sync": "0 s"})
    assert weft.simulate(lone(name), bare, "streams", COARSE).seconds < 1.13 * wire


def test_a_baseline_with_an_algorithm_takes_the_place_of_the_plain_one():
    small = split(SubLayer.custom(1024, 1024, 1024), 8)
    found = weft.compare(small, NODE, ["t3-nvls", "ideal-overlap", BY_SWITCH], COARSE)
    assert list(found.timelines) == ["sequential", "t3-nvls", "ideal-overlap"]
    assert found.baseline.graph.collectives[0].choice.kernel == LibraryCollective("nvls")
    ideal, base = found["ideal-overlap"], found.baseline
    assert ideal.duration("all_gather") == base.duration("all_gather")
    plain = weft.compare(small, NODE, ["t3-nvls"], COARSE)
    assert plain.baseline.seconds != base.seconds
    assert plain["t3-nvls"].seconds == found["t3-nvls"].seconds


def test_the_librarys_choice_is_one_of_its_algorithms():
    small = split(SubLayer.custom(1024, 1024, 1024), 8)
    chosen, ring = (weft.simulate(small, NODE, replace(BY_SWITCH, algorithm=name)) for name in ("library", "ring"))
    assert [node.choice.kernel for node in chosen.graph.collectives] == [LibraryCollective("ring")] * 2
    assert chosen.seconds <= ring.seconds


@pytest.mark.parametrize(
    ("name", "algorithm", "system", "error", "words"),
    [
        ("sequential", "tree", NODE, UnknownNameError, "algorithm"),
        ("sequential", "direct", NODE, InputError, "'direct' carries out no reduce_scatter; choose 'ring' or 'nvls'"),
        ("sequential", "nvls", "t3-paper", InputError, "t3-paper has no switch that reduces"),
    ],
)
def test_algorithms_that_no_kernel_carries_out_are_refused(name, algorithm, system, error, words):
    with pytest.raises(error, match=words):
        weft.simulate(LAYER, system, replace(OVERLAPS[name], algorithm=algorithm))


@pytest.mark.parametrize(("algorithm", "said"), [("nvls", True), ("library", False), (None, False)])
def test_a_baseline_that_the_library_would_not_choose_is_named(algorithm, said):
    """A reduce-scatter and an all-gather by the switch take longer than rings."""
    work = weft.models.parallel.split(SubLayer.custom(2048, 4096, 4096), tp=8)
    found = weft.compare(work, NODE, [replace(OVERLAPS["sequential"], algorithm=algorithm), "t3"])
    assert ("the library would choose ring" in str(found)) == said
