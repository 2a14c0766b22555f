"""What a graph says of a kernel is used, or refused where it is lowered or estimated; nothing is without effect."""

from dataclasses import replace

import pytest
from runs import Bare

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.graph import (
    DmaCopies,
    Edge,
    FusedTiles,
    KernelChoice,
    LibraryCollective,
    MoEExchange,
    NearMemoryRing,
    PaperAllReduce,
    PaperRing,
    TiledGemm,
    TrackedArrivals,
    TrackedDirect,
    TrackedRing,
)
from weft.kernels import GemmTiling
from weft.models.parallel.framework import framework
from weft.overlaps import OVERLAPS, STRATEGIES
from weft.simulate.single import alone

GEMM, MOVED = weft.Gemm(512, 512, 512), weft.Collective("all_reduce", 16 << 20, 8)
SYSTEM = "8xh100"
AS_IT_IS = Bare("bare", "", "")


def estimated(op, kernel=None, **placement):
    return weft.estimate(placed(op, kernel, **placement), SYSTEM).seconds


def placed(op, kernel=None, **placement):
    """A graph of one operator with a choice of its kernel and its placement."""
    stream = "communication" if isinstance(op, weft.Collective) else "compute"
    return weft.Graph((weft.Node(op, "op", stream=stream, choice=KernelChoice(kernel, **placement)),), 8)


def asked(**harness):
    return weft.estimate(MOVED, SYSTEM, harness=weft.BenchmarkProtocol(**harness)).seconds


@pytest.mark.parametrize(
    ("kernel", "units", "harness"),
    [
        (LibraryCollective("ring"), None, {"algorithm": "ring"}),
        (LibraryCollective("nvls"), None, {"algorithm": "nvls"}),
        (LibraryCollective("ring", protocol="ll128"), None, {"algorithm": "ring-ll128"}),
        (LibraryCollective(protocol="simple"), None, {"algorithm": "ring-simple"}),
        (LibraryCollective("ring", channels=4), None, {"algorithm": "ring", "channels": 4}),
        (
            LibraryCollective("ring", channels=4),
            (0, 1),
            {"algorithm": "ring", "channels": 4, "compute_units": 2},
        ),
    ],
)
def test_an_estimate_of_a_graph_uses_the_choice_of_a_kernel(kernel, units, harness):
    assert estimated(MOVED, kernel, compute_units=units) == asked(**harness)
    assert estimated(MOVED, kernel, compute_units=units) != estimated(MOVED) or kernel.algorithm == "nvls"  # its own


def test_launches_before_a_kernel_delay_it_in_an_estimate_too():
    launch = weft.gpu("h100-sxm").compute.launch_latency
    assert estimated(GEMM, launches_before=3) == pytest.approx(estimated(GEMM) + 3 * launch)
    queued = weft.gemm_queue([GEMM] * 4)
    assert weft.estimate(queued, "h100-sxm").seconds == pytest.approx(estimated(GEMM) + 3 * launch)


@pytest.mark.parametrize(
    ("op", "kernel", "says"),
    [
        (GEMM, LibraryCollective("ring"), "a LibraryCollective, carries out .*, but this is no collective"),
        (GEMM, DmaCopies(), "a DmaCopies, carries out .*, but this is no collective"),
        (
            GEMM,
            MoEExchange(weft.Routing(8, 2, 8, 8)),
            "a MoEExchange, carries out all_to_all, but this is no",
        ),
        (MOVED, TiledGemm(GemmTiling()), "a TiledGemm, carries out a GEMM, but this is all_reduce"),
        (MOVED, DmaCopies(engines=1), "DMA engines cannot drive all_reduce: they copy and cannot add"),
        (MOVED, PaperRing(), "a PaperRing, carries out reduce_scatter or all_gather, but this is all_reduce"),
        (MOVED, NearMemoryRing(GEMM), "a NearMemoryRing, carries out reduce_scatter, but"),
        (MOVED, FusedTiles(), "a FusedTiles, carries out reduce_scatter or all_gather, but"),
        (MOVED, TrackedRing(), "a TrackedRing, carries out reduce_scatter, but"),
        (weft.all_gather(16 << 20), PaperAllReduce(4096), "a PaperAllReduce, carries out all_reduce, but this is"),
    ],
)
def test_a_node_cannot_have_a_kernel_that_does_not_carry_it_out(op, kernel, says):
    with pytest.raises(InputError, match=says):
        placed(op, kernel)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LibraryCollective("split_k"), "unknown kernel of a library's collective 'split_k'"),
        (lambda: LibraryCollective(protocol="lll"), "unknown protocol 'lll'; known: ll, ll128, simple"),
        (lambda: LibraryCollective("nvls", protocol="ll"), r"\(nvls\) has no protocol to choose, but protocol is 'll'"),
        (lambda: LibraryCollective(channels=0), "channels is 0; it must be a whole number of at least 1"),
        (lambda: PaperAllReduce(0), "in_flight is 0; it must be a whole number of at least 1"),
        (lambda: DmaCopies(engines=0), "engines is 0; it must be a whole number of at least 1"),
        (lambda: DmaCopies(swap="yes"), "swap is 'yes'; give True or False"),
        (lambda: TrackedRing(two_level=True, split_k=True), "either two_level or split_k"),
        (lambda: TrackedDirect(by_dma=True, in_switch=True), "leave out by_dma or in_switch"),
        (lambda: TrackedArrivals(0), "tile_rows is 0; it must be a whole number of at least 1"),
        (lambda: MoEExchange(weft.Routing(8, 2, 8, 8), "depep"), "unknown dispatcher 'depep'.*did you mean 'deepep'"),
        (lambda: MoEExchange(weft.Routing(8, 2, 8, 8), "deepep", 4), "'deepep' has channels of its own"),
        (lambda: KernelChoice("ring"), "the kernel of a choice is 'ring'; give an object of TiledGemm, "),
        (lambda: replace(OVERLAPS["t3"], kernel="split_k"), "kernel is 'split_k'; give one of a reduce-scatter"),
        (
            lambda: replace(OVERLAPS["t3-all-gather"], kernel="tiles"),
            "kernel is 'tiles'; give a weft.graph.TrackedArrivals",
        ),
        (lambda: replace(STRATEGIES["streams"], driver="gpu"), "unknown driver of a collective 'gpu'; known: cu, dma"),
        (lambda: replace(STRATEGIES["streams"], algorithm="nvlss"), "unknown algorithm 'nvlss'"),
        (lambda: replace(STRATEGIES["dma"], in_flight=4096), "but DMA engines move the data"),
        (lambda: replace(STRATEGIES["streams"], in_flight=4096, algorithm="ring"), "but algorithm is stated"),
        (
            lambda: replace(STRATEGIES["streams"], copies=DmaCopies(engines=1)),
            r"no options of DMA engines \(engines",
        ),
    ],
)
def test_a_misspelt_or_impossible_kernel_cannot_be_made(make, says):
    with pytest.raises(InputError, match=says):
        make()


def test_a_kernel_that_states_nothing_is_the_librarys():
    assert KernelChoice(LibraryCollective()) == KernelChoice()
    assert estimated(MOVED, LibraryCollective()) == estimated(MOVED)


@pytest.mark.parametrize(
    ("op", "kernel", "placement", "says"),
    [
        (GEMM, TiledGemm(GemmTiling()), {}, "is a TiledGemm, which the closed form"),
        (GEMM, None, {"priority": 2}, "states priority = 2, which"),
        (MOVED, None, {"priority": 1}, "states priority = 1, which"),
        (MOVED, PaperAllReduce(4096), {}, "no closed form times the PaperAllReduce of 'op'"),
        (weft.all_gather(16 << 20), PaperRing(), {}, "no closed form times the PaperRing of 'op'"),
        (weft.all_gather(16 << 20), DmaCopies(engines=1), {}, "states engines of copies, which the closed form"),
        (weft.all_gather(16 << 20), DmaCopies(), {"compute_units": (1,)}, "which a copy by DMA engines does not use"),
    ],
)
def test_an_estimate_refuses_what_closed_forms_do_not_know(op, kernel, placement, says):
    with pytest.raises(InputError, match=says):
        estimated(op, kernel, **placement)


@pytest.mark.parametrize(
    ("moved", "kernel", "says"),
    [
        (MOVED, LibraryCollective("pairwise"), "'pairwise' carries out no all_reduce"),
        (weft.reduce_scatter(16 << 20), TrackedRing(two_level=True), "which shares buffers with a GEMM"),
        (weft.reduce_scatter(16 << 20), FusedTiles(), "which shares buffers with a GEMM"),
        (weft.reduce_scatter(16 << 20), PaperRing(), "leave the kernels of their collectives to the library"),
        (weft.all_to_all(16 << 20), LibraryCollective(protocol="simple"), "takes its protocol by its size"),
    ],
)
def test_a_run_refuses_what_no_kernel_does(moved, kernel, says):
    with pytest.raises(InputError, match=says):
        weft.simulate(placed(moved, kernel), "h100-sxm", AS_IT_IS)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"after": (Edge("a", "typo"),)}, "unknown granularity of an edge 'typo'; known: kernel, tile"),
        ({"phase": "Load"}, "unknown phase of a node 'Load'.*did you mean 'load'"),
        ({"frees": ("ghost",)}, "node 'b' frees 'ghost', which no node of the graph reads or writes"),
        ({"iteration": -1}, "iteration is -1"),
        ({"choice": "ring"}, "the choice of node 'b' is 'ring'"),
    ],
)
def test_a_node_that_says_what_cannot_be_is_refused(wrong, says):
    with pytest.raises(InputError, match=says):
        weft.Graph((weft.Node(GEMM, "a"), weft.Node(GEMM, "b", **wrong)))


@pytest.mark.parametrize("name", ["launches_before", "priority"])
def test_a_number_below_zero_of_a_choice_is_refused(name):
    with pytest.raises(InputError, match=f"{name} is -5; it must be a whole number of at least 0"):
        KernelChoice(**{name: -5})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention", "typo"), ("sends", "typo"), ("graphs", ("typo",)), ("pads", ("typo",)), ("recipes", ("typo",)),
        ("reduces", "typo"), ("dispatcher", "typo"), ("gradients", "typo"), ("optimizer", "typo"), ("weights", "typo"),
    ],
)  # fmt: skip
def test_a_framework_with_a_name_that_nobody_knows_is_refused(field, value):
    with pytest.raises(UnknownNameError, match="typo"):
        replace(framework("megatron-core"), **{field: value})


@pytest.mark.parametrize(("field", "value"), [("optimizer_bytes", -100), ("launch", -1.0), ("bucket", -5), ("zero", 7)])
def test_a_framework_with_a_number_that_cannot_be_is_refused(field, value):
    with pytest.raises(InputError, match=f"^{field} is "):
        replace(framework("megatron-core"), **{field: value})


def test_a_step_of_a_framework_with_an_unknown_overlap_is_refused():
    wrong = replace(framework("megatron-core"), tp="typo")
    with pytest.raises(UnknownNameError, match="method of a framework's tp 'typo'"):
        weft.step("llama-3-8b", SYSTEM, tp=8, framework=wrong, fidelity="estimate")


def test_a_way_to_share_keeps_what_the_graph_states_or_refuses_it():
    copied = alone(weft.all_gather(1 << 20), 8, DmaCopies(engines=2))
    assert weft.simulate(copied, "h100-sxm", "dma").graph.nodes[0].choice.kernel == DmaCopies(engines=2)
    with pytest.raises(InputError, match="'streams' moves the data of 'all_gather' by compute units, but"):
        weft.simulate(copied, "h100-sxm", "streams")
    ringed = alone(weft.all_gather(1 << 20), 8, LibraryCollective("ring"))
    with pytest.raises(InputError, match="'dma' moves the data of 'all_gather' by DMA engines, but its choice"):
        weft.simulate(ringed, "h100-sxm", "dma")


def test_a_release_of_a_library_is_a_number():
    assert weft.BenchmarkProtocol(version="2.26.3").version == "2.26.3"
    with pytest.raises(InputError, match=r"version is 'typo'; give the library's release, like '2.26'"):
        weft.BenchmarkProtocol(version="typo")
