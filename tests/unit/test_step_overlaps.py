"""Overlap methods of a plan: which collectives they join with which GEMMs, what that takes, and what they refuse."""

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import SUSTAINED
from weft.graph import Collective, Gemm, Graph, Node
from weft.kernels.library import software
from weft.kernels.library.software import SPLITS, WORKGROUPS
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import OVERLAPS, applicable
from weft.step.clock import train
from weft.step.overlaps import TimedPair, join, needs, pairs

NODE = weft.system("8xa100")
MODEL = Transformer(
    name="small", title="small", hidden=4096, layers=4, heads=32, sequence_length=2048, vocabulary=32000
)  # fmt: skip


def step(**options):
    plan = TrainingPlan(**{"tp": 8, "batch": 4, "sequence": 2048, "sp": True, **options})
    return train(MODEL, NODE, plan, Framework(), fidelity="estimate")


def refused(error=InputError, **options) -> str:
    with pytest.raises(error) as caught:
        step(**options)
    return str(caught.value)


def pair(name: str, gemm_s: float, moved_s: float) -> TimedPair:
    gemm, moved = Gemm(4096, 4096, 2048, "bf16"), Collective(name, 32 << 20, 8)
    return TimedPair(gemm, moved, gemm_s, moved_s, 0.0, NODE, SUSTAINED)


def test_every_method_shortens_what_computing_waits_for():
    waited = {name: step(overlap={"tp": name}).exposed["tp"] for name in ("sequential", "userbuffers", "t3-mca")}
    assert waited["userbuffers"] < waited["sequential"]
    assert waited["t3-mca"] < waited["sequential"]


def test_the_framework_decides_where_the_plan_names_no_method():
    chunked = train(MODEL, NODE, TrainingPlan(tp=8, batch=4, sp=True), Framework(tp="userbuffers"), fidelity="estimate")
    named = step(overlap={"tp": "userbuffers"})
    assert chunked.seconds == pytest.approx(named.seconds)


def test_t3_says_which_hardware_it_needs():
    (sentence,) = step(overlap={"tp": "t3-mca"}).needs
    assert "tracker" in sentence
    assert "no GPU on sale" in sentence
    assert step(overlap={"tp": "userbuffers"}).needs == ()


def test_parts_add_up_under_every_method():
    anywhere = [name for name in applicable("tp") if OVERLAPS[name].forms and name != "t3-nvls"]
    for name in (*anywhere, "dma"):
        found = step(overlap={"tp": name}, sp=name != "in-network")
        assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-3)


def test_tile_lines_hide_all_gathers():
    lines, sequence = (step(overlap={"tp": name}) for name in ("t3-all-gather", "sequential"))
    assert 0 < lines.exposed["tp"] < 0.5 * sequence.exposed["tp"]
    assert "all-gathers, at either fidelity" in " ".join(lines.notes)
    assert "set sp" in refused(overlap={"tp": "t3-all-gather"}, sp=False)


def test_two_methods_hide_what_each_hides_alone():
    def under(name: str):
        plan = TrainingPlan(tp=8, batch=4, sequence=2048, sp=True, overlap={"tp": name})
        return train(MODEL, NODE, plan, Framework(async_tp=False), fidelity="estimate")

    whole = under("t3-mca+t3-all-gather")
    before, *each = (under(name).seconds for name in ("sequential", "t3-mca", "t3-all-gather"))
    assert before - whole.seconds == pytest.approx(sum(before - one for one in each), rel=1e-6)
    assert {"t3-mca has", "t3-all-gather has"} <= {" ".join(note.split()[:2]) for note in whole.notes}
    assert len(whole.needs) == 2


def test_two_methods_join_different_collectives():
    assert "'t3' and 't3-mca' both time" in refused(overlap={"tp": "t3+t3-mca"})
    assert "'t3-mca' and 'priority' both time" in refused(overlap={"tp": "t3-mca+priority"})
    assert "set sp" in refused(overlap={"tp": "t3-mca+t3-all-gather"}, sp=False)
    assert "did you mean 't3-all-gather'" in refused(UnknownNameError, overlap={"tp": "t3-mca+t3-all-gathers"})


@pytest.mark.parametrize("tokens", [2048, 8192])
def test_an_all_gather_and_its_gemm_take_what_the_gemm_and_the_link_allow(tokens):
    gemm, moved = Gemm(tokens, 1024, 4096, "bf16"), Collective("all_gather", tokens * 4096 * 2, 8)
    alone = {op.kind: weft.estimate(op, NODE).seconds for op in (gemm, moved)}
    both = TimedPair(gemm, moved, alone["gemm"], alone["collective"], 0.0, NODE, SUSTAINED)
    wire = moved.bytes * 7 / 8 / NODE.gpu.link.bandwidth
    assert max(0.9 * alone["gemm"], wire) < sum(join(both, "t3-all-gather")) < sum(alone.values())


def test_updates_that_travel_after_a_gemm_of_one_wave_are_exposed():
    """All tiles end together, so that the last of them passes N - 2 hops of the ring after its GEMM."""
    gemm, moved = Gemm(8, 4096, 2048, "bf16"), Collective("reduce_scatter", 8 * 4096 * 2, 8)
    _, beyond = join(TimedPair(gemm, moved, 20e-6, 20e-6, 0.0, NODE, SUSTAINED), "t3-mca")
    assert beyond > 6 * NODE.gpu.link.latency


def test_needs_of_switches_that_add_are_met_by_a_node_that_has_them():
    assert needs(TrainingPlan(tp=8, overlap={"tp": "in-network"}), weft.system("8xh100")) == ()
    (sentence,) = needs(TrainingPlan(tp=8, overlap={"tp": "in-network"}), NODE)
    assert "that dgx-a100 lacks: switches that add" in sentence


def test_tiles_are_summed_where_the_switch_adds():
    assert "dgx-a100 has no switch that adds" in refused(overlap={"tp": "t3-nvls"})
    plan = TrainingPlan(tp=8, batch=4, sp=True, overlap={"tp": "t3-nvls"})
    found = train(MODEL, weft.system("8xh100"), plan, Framework(), fidelity="estimate")
    assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-3)


def test_unknown_methods_and_axes_are_named():
    assert "did you mean 't3'" in refused(UnknownNameError, overlap={"tp": "t4"})
    assert "known: tp" in refused(UnknownNameError, overlap={"zp": "t3"})


def test_methods_that_join_gemms_are_for_tensor_parallelism():
    said = refused(overlap={"dp": "t3"})
    assert "does not apply to the collectives of data parallelism" in said
    assert "priority" in said


def test_methods_without_an_all_reduce_ask_for_sequence_parallelism():
    assert "set sp" in refused(overlap={"tp": "async-tp"}, sp=False)
    assert step(overlap={"tp": "flux"}, sp=False).seconds > 0


def test_copies_cannot_add_nor_leave_the_node():
    assert "cannot add" in refused(overlap={"tp": "dma"}, sp=False)
    plan = TrainingPlan(tp=8, dp=2, batch=4, zero=3, overlap={"dp": "dma"})
    with pytest.raises(InputError, match="several nodes"):
        train(MODEL, weft.system("16xa100"), plan, fidelity="estimate")


@pytest.mark.parametrize("name", ["t3-direct", "t3-direct-dma"])
def test_tiles_that_go_straight_to_their_owners_stay_in_the_node(name):
    assert step(overlap={"tp": name}).exposed["tp"] < step(overlap={"tp": "sequential"}).exposed["tp"]
    plan = TrainingPlan(tp=16, batch=4, sp=True, overlap={"tp": name})
    with pytest.raises(InputError, match=f"'{name}' stores tiles .* the 8 GPUs of a node, .*; choose t3 or t3-mca"):
        train(MODEL, weft.system("16xa100"), plan, fidelity="estimate")


def test_a_gemm_is_joined_with_one_collective_and_gradients_of_weights_with_none():
    gemm, gather = Gemm(64, 64, 64), Collective("all_gather", 1 << 20, 8)
    reduced = Collective("reduce_scatter", 1 << 20, 8)
    work = Graph(
        (
            Node(gather, "gather", stream="tp", phase="input"),
            Node(gemm, "input", after=("gather",), stream="compute", phase="input"),
            Node(reduced, "reduce", after=("input",), stream="tp", phase="input"),
            Node(gather, "again", stream="tp", phase="weight"),
            Node(gemm, "weight", after=("again", "input"), stream="compute", phase="weight"),
        ),
        ranks=8,
    )
    assert [(one.name, other.name) for one, other in pairs(work)] == [("input", "gather")]


def test_userbuffers_expose_the_last_parts_reduce_scatter_and_take_compute_units_off_the_gemm():
    compute, start = NODE.gpu.compute, software.costs()["userbuffers.start"]
    short, long = (pair("reduce_scatter", 1.0, seconds) for seconds in (0.4, 2.0))
    added = short.moved.bytes * 9 / 8 / (WORKGROUPS * compute.port_bytes_per_clock * NODE.gpu.clocks.sustained)
    taken = WORKGROUPS / compute.compute_units
    assert join(short, "userbuffers")[1] == pytest.approx((0.4 + added) * (taken + 1 / SPLITS) + start)
    assert join(long, "userbuffers")[1] == pytest.approx(2.0 + added - (1 - 1 / SPLITS) + start)


def test_gathers_in_sequence_with_layers_are_exposed():
    plan = {"tp": 1, "dp": 8, "batch": 8, "zero": 3, "sp": False}
    ahead, after = (step(**plan, overlap=overlap) for overlap in ({}, {"dp": "sequential"}))
    assert after.exposed["dp"] > 2 * ahead.exposed["dp"]
    assert after.parts.get("contention", 0.0) == 0.0


def test_tokens_of_several_sequences_are_copied_around_their_collectives_unless_a_method_joins_them():
    plain = TrainingPlan(tp=8, batch=4, micro_batch=2, sp=True)
    joined = TrainingPlan(tp=8, batch=4, micro_batch=2, sp=True, overlap={"tp": "async-tp"})
    single = TrainingPlan(tp=8, batch=4, micro_batch=1, sp=True)
    copied = Framework(orders_tokens=True)

    def copies(plan):
        names = {node.name for part in train(MODEL, NODE, plan, copied, fidelity="estimate").chunks[0].parts
                 for node in part.forward.graph}  # fmt: skip
        return any(name.endswith(".order") for name in names)

    assert (copies(plain), copies(joined), copies(single)) == (True, False, False)


def test_inputs_that_are_kept_whole_are_not_gathered_again():
    plan = TrainingPlan(tp=8, batch=4, sp=True, overlap={"tp": "sequential"})
    waits = [
        train(MODEL, NODE, plan, Framework(gathers_again=again), fidelity="estimate").exposed["tp"]
        for again in (True, False)
    ]
    assert waits[1] < waits[0]


def test_switches_that_add_halve_an_all_reduce_and_leave_its_gemm_alone():
    gemm, beyond = join(pair("all_reduce", 100e-6, 1.0), "in-network")
    assert gemm == 100e-6
    ring = float(weft.estimate(Collective("all_reduce", 32 << 20, 8), weft.System(gpu=NODE.gpu, gpus=8)).seconds)
    assert 0.4 * ring < beyond < 0.7 * ring


def test_switches_that_add_are_never_slower_than_the_library():
    _, beyond = join(pair("all_reduce", 100e-6, 1e-6), "in-network")
    assert beyond == pytest.approx(1e-6 + software.costs()["sequential.gap"])


def test_switches_that_add_have_nothing_to_add_with_sequence_parallelism():
    assert "leave sp out" in refused(overlap={"tp": "in-network"})
    waited = [step(sp=False, overlap={"tp": name}).exposed["tp"] for name in ("in-network", "sequential")]
    assert waited[0] < waited[1]
