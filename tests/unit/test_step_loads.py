"""Steps of mixtures whose experts get uneven loads: what the busiest GPU does, holds and waits for."""

import pytest

import weft
from weft.core.errors import InputError
from weft.estimate.experts import Experts, experts
from weft.graph import Routing
from weft.models import load_model

MODEL = load_model("qwen3-30b-a3b")
PLAN = {"ep": 8, "batch": 64, "micro_batch": 1, "sequence": 4096, "fidelity": "estimate"}
ROUTED = 4096, 8, 128, 8


def step(**more):
    return weft.step(MODEL, "16xh200", **(PLAN | more))


def forward(answer):
    """Seconds of the forward pass of a layer by operator."""
    layer = answer.chunks[0].parts[1]
    return {name: end - begin for name, (begin, end) in layer.forward.times.items()}


@pytest.fixture(scope="module")
def even():
    return step()


@pytest.fixture(scope="module")
def uneven():
    return step(expert_load="power:0.6")


def test_loads_that_are_all_equal_change_nothing(even):
    for loads in ((1.0,) * 128, "power:0"):
        same = step(expert_load=loads)
        assert same.seconds == pytest.approx(even.seconds, rel=1e-3)
        assert same.memory.peak == pytest.approx(even.memory.peak, rel=1e-3)


@pytest.mark.parametrize("loads", ["power:0.3", "power:0.6", "power:1.1"])
def test_experts_grow_by_what_weft_predict_experts_says(even, loads):
    of = Routing.by_power_law(*ROUTED, float(loads.split(":")[1]))
    before, after = (
        experts(Experts(routing, MODEL.hidden, MODEL.expert_wide), "h200-sxm").operators
        for routing in (Routing(*ROUTED), of)
    )
    mine, longer = forward(even), forward(step(expert_load=loads))
    for name in ("fc1", "activation", "fc2"):
        said = float(after[name].seconds / before[name].seconds)
        # two closed forms, each with its own last wave of tiles: a wave is 6 % of the even load of fc2
        assert longer[f"experts_{name}"] / mine[f"experts_{name}"] == pytest.approx(said, rel=0.04)


def test_the_note_names_the_busiest_expert_and_what_it_costs(even, uneven):
    (said,) = [note for note in uneven.notes if "mean load" in note]
    of = Routing.by_power_law(*ROUTED, 0.6)
    assert said.startswith(f"The slowest expert has {of.imbalance:.1f}x the mean load, the fullest of 8 GPUs ")
    assert f"({uneven.seconds / even.seconds - 1:.1%}) longer than with even loads" in said
    assert not any("mean load" in note for note in even.notes)


def test_the_fullest_gpu_holds_the_rows_that_it_gets(even, uneven):
    assert uneven.memory.peak > even.memory.peak


@pytest.mark.parametrize("dispatcher", ["nccl", "deepep", "hybridep"])
def test_a_dispatch_is_as_long_as_its_busiest_receiver_takes(dispatcher):
    even, uneven = (forward(step(dispatcher=dispatcher, expert_load=loads)) for loads in ("even", "power:0.6"))
    crowding = Routing.by_power_law(*ROUTED, 0.6).fullest.sum() / (4096 * 8)
    assert 1.1 < uneven["permute.exchange"] / even["permute.exchange"] < 1.01 * crowding
    assert uneven["router"] == pytest.approx(even["router"])


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("gpt-3", {"ep": 1, "expert_load": "power:0.6"}, "loads are of experts, and gpt-3 has none"),
        ("qwen3-30b-a3b", {"expert_load": (1, 2)}, "there are 2 loads for the 128 experts of qwen3-30b-a3b"),
        ("qwen3-30b-a3b", {"expert_load": "steep"}, "'steep' are no loads; write even, power:1.1 or a number for each"),
        (
            "qwen3-30b-a3b",
            {"expert_load": "power:0.6", "overlap": "ep=t3-all-to-all"},
            "timed in a step with even loads",
        ),
    ],
)
def test_loads_that_cannot_be_are_refused_in_a_sentence(model, more, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        weft.step(model, "16xh200", **(PLAN | more))


def test_the_planner_does_not_choose_loads():
    with pytest.raises(InputError, match="fix names 'expert_load'"):
        weft.plan(MODEL, "16xh200", batch=64, fix={"expert_load": "power:0.6"})
