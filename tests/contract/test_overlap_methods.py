"""What every overlap method of the table promises: accepted where it applies, refused elsewhere, and with an effect."""

from dataclasses import replace

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError, WeftError
from weft.core.options import SUSTAINED
from weft.estimate.errors import joined_error
from weft.graph import Gemm
from weft.kernels.library.software import costs
from weft.models import Transformer
from weft.models.parallel import dependent, share_of
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import (
    AXES,
    OVERLAPS,
    PLACES,
    SEQUENTIAL,
    STRATEGIES,
    applicable,
    find_overlap,
    find_simulated,
    simulated_methods,
)
from weft.overlaps.graphs import FORM_OF
from weft.overlaps.pairs import pair_of
from weft.plan.space import space
from weft.plan.tune import advise_fuse
from weft.simulate.single import simulate
from weft.step.clock import train
from weft.step.durations import OperatorTimes
from weft.step.overlaps import TimedPair, check_overlap, join
from weft.sweep.questions import StepQuestion

NODE = weft.system("8xa100")
MODEL = Transformer(
    name="small", title="small", hidden=4096, layers=2, heads=32, sequence_length=2048, vocabulary=32000
)  # fmt: skip
GEMM = Gemm(4096, 8192, 8192, "bf16")
PLANS = {
    "tp": {"tp": 8, "sp": True},
    "cp": {"cp": 8},
    "ep": {"dp": 8, "ep": 8, "batch": 8},
    "dp": {"dp": 8, "batch": 8, "zero": 3},
}
"""A plan for each axis, whose collectives are there."""
CLOSED = applicable("sub-layer", "closed form")
SIMULATED_ON_AN_AXIS = [name for name in STRATEGIES if not OVERLAPS[name].applies("dp", "closed form")]


def plan(axis: str, name: str, **options) -> TrainingPlan:
    sp = {"sp": False} if "ag_gemm" not in OVERLAPS[name].forms and OVERLAPS[name].forms == ("gemm_ar",) else {}
    return TrainingPlan(**{"batch": 4, "sequence": 2048, **PLANS[axis], **sp, "overlap": {axis: name}, **options})


def seconds(**options) -> float:
    made = TrainingPlan(**{"batch": 4, "sequence": 2048, **options})
    return train(MODEL, NODE, made, Framework(dp_overlap=True, async_tp=True), fidelity="estimate").seconds


@pytest.mark.parametrize("name", OVERLAPS)
def test_a_method_says_what_it_does_where_and_what_times_it(name):
    one = OVERLAPS[name]
    assert one.name == name
    assert one.summary
    assert one.joins
    assert one.places
    assert one.timed_by in ("engine", "closed form", "both")
    assert (name in simulated_methods()) is one.simulated


def test_a_method_has_a_formula_exactly_where_it_says_so():
    pair = pair_of(dependent("gemm_rs", GEMM, 8), NODE, SUSTAINED)
    assert {name for name, one in OVERLAPS.items() if one.estimate(pair, costs()) is not None} == set(CLOSED)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", OVERLAPS)
def test_a_method_is_taken_where_it_applies_and_refused_elsewhere_with_the_list(name, place):
    if place in OVERLAPS[name].places:
        assert find_overlap(name, place) is OVERLAPS[name]
        return
    with pytest.raises(InputError) as refused:
        find_overlap(name, place)
    assert name in str(refused.value)
    assert all(other in str(refused.value) for other in applicable(place))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", OVERLAPS)
def test_a_step_takes_a_method_on_the_axes_where_it_applies_and_refuses_it_elsewhere(name, axis):
    if axis in OVERLAPS[name].places:
        check_overlap(plan(axis, name), NODE, "windows")
        return
    with pytest.raises(InputError, match="choose one of"):
        check_overlap(plan(axis, name), NODE, "windows")


@pytest.mark.parametrize("ask", ["simulate", "advise", "step", "plan", "sweep"])
def test_an_unknown_method_is_refused_by_every_question_with_the_known_ones(ask):
    asked = {
        "simulate": lambda: find_simulated("fluxx"),
        "advise": lambda: advise_fuse("gemm_rs", GEMM, 8, NODE, methods=["fluxx"]),
        "step": lambda: weft.step("llama-3-8b", "8xh100", tp=8, overlap="tp=fluxx", fidelity="estimate"),
        "plan": lambda: space(MODEL, NODE, Framework(), 8, 2048, {"overlap": "tp=fluxx"}),
        "sweep": lambda: StepQuestion(
            system="8xh100", model="llama-3-8b", tp=8, overlap="tp=fluxx", fidelity="estimate"
        ).answer(),
    }
    with pytest.raises(UnknownNameError, match="did you mean 'flux'") as refused:
        asked[ask]()
    assert "userbuffers" in str(refused.value)


@pytest.mark.parametrize("name", sorted(set(OVERLAPS) - set(simulated_methods())))
def test_methods_in_closed_form_only_are_refused_by_the_engine_with_the_commands_that_time_them(name):
    with pytest.raises(InputError, match="ask 'weft advise fuse'") as refused:
        find_simulated(name)
    stated = f"'weft step --overlap tp={name}'" in str(refused.value)
    try:
        seconds(**PLANS["tp"], overlap={"tp": name})
    except InputError:
        assert not stated, "the message names a step that is refused"
    else:
        assert stated, "the message omits a step that is timed"


@pytest.mark.parametrize("axis", AXES)
def test_a_method_is_refused_on_an_axis_of_one_rank(axis):
    made = TrainingPlan(batch=4, sequence=2048, overlap={axis: "priority"})
    with pytest.raises(InputError, match=f"{axis} is 1"):
        check_overlap(made, weft.system("a100"), "windows")


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", SIMULATED_ON_AN_AXIS)
def test_closed_forms_refuse_what_they_cannot_tell_from_the_default(axis, name):
    with pytest.raises(InputError, match="cannot tell"):
        check_overlap(plan(axis, name), NODE, "estimate")


def test_choices_without_effect_on_one_rank_are_refused():
    one = {"batch": 4, "sequence": 2048, "fidelity": "estimate"}
    with pytest.raises(InputError, match="cp is 1"):
        weft.step("llama-3-8b", "8xh100", tp=8, context="all_gather", **one)
    with pytest.raises(InputError, match="tp is 1"):
        weft.step("llama-3-8b", "8xh100", sp=True, batch=8, sequence=2048, fidelity="estimate")


@pytest.mark.parametrize("name", [name for name in CLOSED if name != SEQUENTIAL and OVERLAPS[name].applies("tp")])
def test_a_closed_form_changes_a_step(name):
    same = {"tp": 8, "sp": name != "in-network"}
    times = [seconds(**same, overlap={"tp": one}) for one in (SEQUENTIAL, name)]
    assert times[1] != pytest.approx(times[0], rel=1e-6)


@pytest.mark.parametrize("name", ["sequential", "dma", "dma-partition"])
def test_a_way_to_share_changes_a_step_whose_replicas_overlap(name):
    same = {"dp": 8, "batch": 8, "zero": 3}
    assert abs(seconds(**same, overlap={"dp": name}) / seconds(**same) - 1) > 1e-4
    assert seconds(**same, overlap={"dp": "priority"}) == seconds(**same)


def test_a_way_to_share_that_meets_no_kernel_says_so():
    made = TrainingPlan(tp=8, batch=4, sequence=2048, overlap={"tp": "priority"})
    (note,) = train(MODEL, NODE, made, Framework(async_tp=False), fidelity="estimate").notes
    assert "changes nothing here" in note


@pytest.mark.parametrize("form", ["ag_gemm", "gemm_rs", "gemm_ar"])
@pytest.mark.parametrize("name", CLOSED)
def test_a_step_and_advice_give_a_pair_the_same_time(name, form):
    how = {"methods": None if name == SEQUENTIAL else [name], "fidelity": "estimate"}
    if form not in OVERLAPS[name].forms:
        with pytest.raises(InputError, match="choose one of"):
            advise_fuse(form, GEMM, 8, NODE, **how)
        return
    work = dependent(form, share_of(form, GEMM, 8), 8)
    (gemm,), (moved,) = (tuple(node.op for node in nodes) for nodes in (work.gemms, work.collectives))
    assert FORM_OF[moved.name] == form
    prices = OperatorTimes(NODE, TrainingPlan(batch=8, tp=8), SUSTAINED)
    stepped = join(TimedPair(gemm, moved, prices.of(gemm), prices.of(moved, "tp"), 0.0, NODE, SUSTAINED), name)
    assert sum(stepped) == pytest.approx(advise_fuse(form, GEMM, 8, NODE, **how).option(name).seconds, rel=1e-9)


@pytest.mark.parametrize("form", ["ag_gemm", "gemm_rs"])
@pytest.mark.parametrize("name", ["sequential", "flux", "userbuffers"])
def test_the_engine_and_the_closed_form_agree_within_the_error_of_the_class(name, form):
    """Of the hardware's part, without the starts and calls of a framework, which the engine does not run."""
    system = weft.system("8xh100-sxm")
    work = dependent(form, share_of(form, GEMM, 8), 8)
    if not OVERLAPS[name].accepts(work):
        return
    closed = float(OVERLAPS[name].seconds(replace(pair_of(work, system, SUSTAINED), framework=False)))
    # In closed form the collective is the library's; by default `sequential` runs the ring of T3's paper.
    way = replace(OVERLAPS[name], algorithm="ring") if name == "sequential" else name
    assert simulate(work, system, way).makespan == pytest.approx(
        closed, rel=joined_error(name, closed, seen=True).value
    )


@pytest.mark.parametrize("ask", ["text", "mapping"])
def test_python_takes_what_the_command_line_takes(ask):
    overlap = "tp=flux" if ask == "text" else {"tp": "flux"}
    assert TrainingPlan(tp=8, overlap=overlap).overlap == {"tp": "flux"}
    question = StepQuestion(system="8xh100", model="llama-3-8b", overlap=overlap)
    assert question.stated_values()["overlap"] == {"tp": "flux"}


@pytest.mark.parametrize("overlap", ["flux", "tp=", "tp=flux,tp=t3", 3])
def test_a_malformed_overlap_is_refused_with_an_example(overlap):
    with pytest.raises(WeftError, match="overlap"):
        TrainingPlan(tp=8, overlap=overlap)
