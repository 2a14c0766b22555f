"""What a graph says of a kernel is used, or refused where it is lowered or estimated; nothing is without effect."""

from dataclasses import replace

import pytest

import weft
from weft.errors import InputError, UnknownNameError
from weft.graph import Edge, KernelChoice
from weft.kernels import GemmTiling
from weft.parallel.framework import framework
from weft.run.single import alone

GEMM, MOVED = weft.Gemm(512, 512, 512), weft.Collective("all_reduce", 16 << 20, 8)
SYSTEM = "8xh100"


def estimated(op, **choice):
    return weft.estimate(alone(op, 8, **choice), SYSTEM).seconds


def asked(**harness):
    return weft.estimate(MOVED, SYSTEM, harness=weft.Harness(**harness)).seconds


@pytest.mark.parametrize(
    ("choice", "harness"),
    [
        ({"kernel": "ring"}, {"algorithm": "ring"}),
        ({"kernel": "nvls"}, {"algorithm": "nvls"}),
        ({"kernel": "ring", "protocol": "ll128"}, {"algorithm": "ring-ll128"}),
        ({"protocol": "simple"}, {"algorithm": "ring-simple"}),
        ({"kernel": "ring", "channels": 4}, {"algorithm": "ring", "channels": 4}),
        (
            {"kernel": "ring", "channels": 4, "compute_units": (0, 1)},
            {"algorithm": "ring", "channels": 4, "compute_units": 2},
        ),
    ],
)
def test_an_estimate_of_a_graph_uses_the_choice_of_a_kernel(choice, harness):
    assert estimated(MOVED, **choice) == asked(**harness)
    assert estimated(MOVED, **choice) != estimated(MOVED) or choice == {"kernel": "nvls"}  # the library's own choice


def test_launches_before_a_kernel_delay_it_in_an_estimate_too():
    launch = weft.gpu("h100-sxm").compute.launch_latency
    assert estimated(GEMM, launches_before=3) == pytest.approx(estimated(GEMM) + 3 * launch)
    queued = weft.gemm_queue([GEMM] * 4)
    assert weft.estimate(queued, "h100-sxm").seconds == pytest.approx(estimated(GEMM) + 3 * launch)


@pytest.mark.parametrize(
    ("op", "choice", "says"),
    [
        (GEMM, {"kernel": "ring"}, "states kernel = 'ring', which"),
        (GEMM, {"driver": "dma"}, "states driver = 'dma', which"),
        (GEMM, {"protocol": "ll"}, "states protocol = 'll', which"),
        (GEMM, {"near_memory": True}, "states near_memory = True, which"),
        (GEMM, {"in_flight": 4096}, "states in_flight = 4096, which"),
        (GEMM, {"copies": (("engines", 1),)}, "states copies = a tuple, which"),
        (GEMM, {"routing": weft.Routing(8, 2, 8, 8)}, "states routing = "),
        (MOVED, {"copies": (("engines", 1),)}, "states copies = a tuple, which"),
        (MOVED, {"in_flight": 4096}, "states in_flight = 4096, which"),
        (MOVED, {"tiling": GemmTiling()}, "states tiling = "),
        (MOVED, {"tiles_of": GEMM}, "states tiles_of = "),
        (MOVED, {"near_memory": True}, "states near_memory = True, which"),
        (MOVED, {"driver": "tiles"}, r"states driver = 'tiles'|by tiles"),
    ],
)
@pytest.mark.parametrize("ask", [weft.estimate, weft.simulate])
def test_a_choice_that_a_kernel_does_not_use_is_refused(ask, op, choice, says):
    with pytest.raises(InputError, match=says):
        ask(alone(op, 8, **choice), SYSTEM)


@pytest.mark.parametrize(
    ("op", "choice", "says"),
    [
        (GEMM, {"tiling": GemmTiling()}, "states tiling = "),
        (GEMM, {"priority": 2}, "states priority = 2, which"),
        (GEMM, {"compute_units": (1,)}, "states compute_units = a tuple, which"),
        (MOVED, {"priority": 1}, "states priority = 1, which"),
        (MOVED, {"kernel": "plain-ring"}, "no closed form times the kernel 'plain-ring'"),
    ],
)
def test_an_estimate_refuses_what_closed_forms_do_not_know(op, choice, says):
    with pytest.raises(InputError, match=says):
        estimated(op, **choice)


@pytest.mark.parametrize(
    ("moved", "choice", "says"),
    [
        (weft.all_gather(16 << 20), {"driver": "dma", "protocol": "ll"}, "states protocol = 'll', which"),
        (
            weft.all_gather(16 << 20),
            {"driver": "dma", "kernel": "ring"},
            "unknown kernel of a collective by dma 'ring'",
        ),
        (weft.all_gather(16 << 20), {"driver": "dma", "copies": (("enginez", 1),)}, "unknown option of DMA engines"),
        (MOVED, {"kernel": "nvls", "protocol": "ll"}, "no protocol to choose"),
        (MOVED, {"kernel": "pairwise"}, "unknown kernel of a collective by cu 'pairwise'"),
        (MOVED, {"kernel": "two-level"}, "unknown kernel of a collective by cu 'two-level'"),
        (weft.all_to_all(16 << 20), {"protocol": "simple"}, "takes its protocol by its size"),
    ],
)
def test_a_run_refuses_what_no_kernel_does(moved, choice, says):
    with pytest.raises(InputError, match=says):
        weft.simulate(alone(moved, 8, **choice), "h100-sxm", "dma" if choice.get("driver") == "dma" else "streams")


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
    copied = alone(weft.all_gather(1 << 20), 8, driver="dma", copies=(("engines", 2),))
    assert dict(weft.simulate(copied, "h100-sxm", "dma").graph.nodes[0].choice.copies) == {"engines": 2}
    with pytest.raises(InputError, match="'streams' moves the data of 'all_gather' by compute units, but"):
        weft.simulate(copied, "h100-sxm", "streams")


def test_a_release_of_a_library_is_a_number():
    assert weft.Harness(version="2.26.3").version == "2.26.3"
    with pytest.raises(InputError, match=r"version is 'typo'; give the library's release, like '2.26'"):
        weft.Harness(version="typo")
