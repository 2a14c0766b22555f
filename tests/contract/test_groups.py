"""Systems of several groups of GPUs that each share the same sub-layer, and nodes or rows that represent all."""

import pytest
from machines import gpu, layer
from runs import run as simulate

import weft
from weft.core.errors import InputError
from weft.hardware import FABRICS, System

GPU, RANKS = gpu(), 8
LAYER = layer(m=1024, n=1024, k=1024, tp=RANKS)
OVERLAPS = ["sequential", "t3", "t3-mca", "t3-direct", "flux"]


def groups(fabric="switch", gpus=16, **more):
    """Groups of 8 GPUs; a row of a torus is one. In a full mesh, links to a group move as much as a GPU's own link."""
    link, shaped = GPU.link, {"columns": RANKS} if fabric == "torus" else {}
    each = link.bandwidth
    if fabric == "full":
        each, shaped = each / (RANKS - 1), {"egress": each, "striped": each}
    joined = FABRICS[fabric](gpus, each, link.latency, **shaped)
    return System(gpu=GPU, gpus=gpus, fabric=joined, **more)


def ends(result):
    """When each group ends [fs]."""
    last = {}
    for span in result.spans:
        last[span.gpu // RANKS] = max(last.get(span.gpu // RANKS, 0), span.end_fs)
    return last


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("fabric", ["switch", "torus", "nodes", "full"])
def test_equal_groups_end_with_the_gpus_of_one(fabric, overlap):
    """What a group sends stays on its own links; a row of a torus is a ring."""
    if (fabric, overlap) == ("torus", "t3-direct"):
        pytest.skip("a torus does not join every GPU with every other")
    alone = simulate(LAYER, groups("ring" if fabric == "torus" else fabric, RANKS), overlap, mode="explicit")
    found = simulate(LAYER, groups(fabric), overlap)
    assert found.seconds == pytest.approx(alone.seconds, rel=0.01)
    assert dict(found.traffic) == dict(alone.traffic)
    assert {span.gpu for span in found.spans} == set(range(16))


@pytest.mark.parametrize("overlap", ["sequential", "t3-mca"])
def test_eight_of_sixty_four_gpus_end_with_the_one_that_represents_them(overlap):
    mirrored = simulate(LAYER, GPU, overlap, mode="mirrored")
    assert simulate(LAYER, groups(gpus=64), overlap).seconds == pytest.approx(mirrored.seconds, rel=0.01)


def test_a_group_in_a_ring_sends_from_its_first_gpu_to_its_last_through_all_others():
    """A hop of the reduce-scatter and one of the all-gather pass six GPUs more than in a ring of the group's own."""
    own = simulate(LAYER, groups("ring", gpus=RANKS), "sequential", mode="explicit")
    found = simulate(LAYER, groups("ring"), "sequential")
    passed = 2 * (RANKS - 2) * GPU.link.latency
    assert found.seconds - own.seconds == pytest.approx(passed, rel=0.1)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_late_gpu_delays_its_own_group_alone(overlap):
    equal, late = simulate(LAYER, groups(), overlap), simulate(LAYER, groups(start={9: 50e-6}), overlap)
    before, after = ends(equal), ends(late)
    assert after[0] == pytest.approx(before[0], rel=0.01)
    assert after[1] >= before[1] + 30e9


def test_stragglers_are_drawn_among_the_gpus_of_all_groups():
    found = weft.compare(LAYER, groups("torus"), "t3", stragglers="one:20%")
    assert found.slowest == ((8, pytest.approx(0.2)),)
    assert found.drawn["t3"].lost > 0.01


def test_unequal_gpus_without_a_fabric_form_groups_on_a_switch():
    slow = System(gpu=GPU, gpus=16, variants={3: GPU.replace({"compute.clock": "0.7 GHz"})})
    found = ends(simulate(LAYER, slow, "t3"))
    assert found[0] > 1.1 * found[1]


# -- one node or row for all -----------------------------------------------------------------------------------------


def of_nodes(fabric, gpus):
    """`gpus` GPUs in nodes of 8, with a network of rails or an oversubscribed tree, or in rows of 8 of a torus."""
    shaped = {"rails": {"each": RANKS}, "tree": {"each": RANKS, "oversubscription": 2.0}, "torus": {"columns": RANKS}}
    name = "torus" if fabric == "torus" else "nodes"
    joined = FABRICS[name](gpus, GPU.link.bandwidth, GPU.link.latency, **shaped[fabric])
    return System(gpu=GPU, gpus=gpus, fabric=joined)


@pytest.mark.parametrize("fabric", ["switch", "torus", "nodes", "full"])
def test_groups_gather_rows_among_themselves(fabric):
    work = weft.dependent("ag_gemm", weft.Gemm(2048, 256, 512, "fp16"), RANKS)
    shared = simulate(work, groups(fabric), "t3-all-gather")
    alone = simulate(work, groups("ring" if fabric == "torus" else fabric, RANKS), "t3-all-gather", mode="explicit")
    assert len(ends(shared)) == 2
    for end in ends(shared).values():
        assert end * 1e-15 == pytest.approx(alone.makespan, rel=0.005)


@pytest.mark.parametrize("overlap", ["sequential", "t3", "t3-mca", "t3-two-level", "flux"])
@pytest.mark.parametrize("fabric", ["rails", "tree", "torus"])
def test_one_of_two_nodes_ends_with_all_gpus(fabric, overlap):
    across = layer(m=1024, n=1024, k=64 * 16, tp=16)
    one, all_ = (simulate(across, of_nodes(fabric, 16), overlap, mode=mode) for mode in ("mirrored", "explicit"))
    assert {span.gpu for span in one.spans} == set(range(8))
    assert (one.options.mode, all_.options.mode) == ("mirrored", "explicit")
    assert one.seconds == pytest.approx(all_.seconds, rel=0.01)
    assert dict(one.traffic) == dict(all_.traffic)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["sequential", "t3", "t3-mca", "t3-two-level"])
@pytest.mark.parametrize("fabric", ["rails", "tree", "torus"])
def test_one_of_four_nodes_ends_with_all_gpus(fabric, overlap):
    across = layer(m=2048, n=2048, k=128 * 32, tp=32)
    one, all_ = (simulate(across, of_nodes(fabric, 32), overlap, mode=mode) for mode in ("mirrored", "explicit"))
    assert one.seconds == pytest.approx(all_.seconds, rel=0.015)
    assert one.events < 0.4 * all_.events


@pytest.mark.parametrize("fabric", ["rails", "torus"])
def test_one_node_represents_all_of_a_collective_beside_a_gemm(fabric):
    pair = weft.concurrent(weft.Gemm(512, 512, 512), weft.all_reduce("1 MiB", ranks=16))
    one, all_ = (simulate(pair, of_nodes(fabric, 16), "streams", mode=mode) for mode in ("mirrored", "explicit"))
    assert one.seconds == pytest.approx(all_.seconds, rel=0.01)
    assert one.events < 0.6 * all_.events


def test_a_fabric_without_equal_parts_is_simulated_gpu_by_gpu():
    late = System(gpu=GPU, gpus=16, fabric=of_nodes("rails", 16).fabric, start={3: 1e-6})
    with pytest.raises(InputError, match="cannot represent all 16, because they differ; choose mode 'explicit'"):
        simulate(layer(m=1024, n=1024, k=1024, tp=16), late, "t3", mode="mirrored")


@pytest.mark.parametrize(
    ("work", "system", "options", "words"),
    [
        (LAYER, groups(), {"mode": "mirrored"}, "cannot represent all 16, because they form 2 groups"),
        (LAYER, groups(), {"updates": True}, "tiles of 8 GPUs, but 16 are simulated; leave updates out"),
        (LAYER, groups(gpus=128), {}, "128 GPUs are too many to simulate each .* choose fewer groups"),
        (
            weft.concurrent(weft.Gemm(512, 512, 512), weft.all_gather("1 MiB", ranks=8)), groups(), {},
            "the system has 16 GPUs that a fabric joins, but 8 are asked for",
        ),
    ],
)  # fmt: skip
def test_what_several_groups_cannot_do_is_refused_in_a_sentence(work, system, options, words):
    with pytest.raises(InputError, match=words):
        simulate(work, system, "t3" if work is LAYER else "streams", **options)
