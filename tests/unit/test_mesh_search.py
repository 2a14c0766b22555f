"""Stages on meshes of a small model: what fits, what is refused, and how plans are ranked."""

import pytest

from weft.core.errors import InputError
from weft.hardware import system
from weft.models.load import load_model
from weft.papers.textbook.alpa import alpa, mesh_sizes

MODEL = load_model("mpt-125m")
GPUS = system("4xv100-16gb")


@pytest.fixture(scope="module")
def found():
    return alpa(MODEL, GPUS, 8, 4, sequence=128, groups=4)


def test_meshes_are_parts_of_a_node_or_whole_nodes():
    assert mesh_sizes(GPUS) == (1, 2, 4)
    assert mesh_sizes(system("32xv100-16gb")) == (1, 2, 4, 8, 16, 32)


def test_every_set_of_meshes_comes_once_fastest_first(found):
    assert sorted(sorted(plan.meshes) for plan in found.plans) == [[1, 1, 1, 1], [1, 1, 2], [2, 2], [4]]
    assert [plan.seconds for plan in found.plans] == sorted(plan.seconds for plan in found.plans)


def test_groups_hold_every_sub_layer_and_both_ends(found):
    assert sum(found.groups) == 2 * MODEL.layers + 2
    for plan in found.plans:
        assert sum(stage["sublayers"] for stage in found.stages(plan)) == sum(found.groups)


def test_a_plan_is_ranked_by_those_that_are_faster(found):
    places = [found.rank(plan.meshes) for plan in found.plans]
    assert places == [1, 2, 3, 4]
    assert found.rank(found.plans[-1].meshes, within=0.99) == 1
    assert found.of(found.plans[1].meshes).seconds == found.plans[1].seconds


def test_less_memory_never_makes_a_plan_faster(found):
    scarce = alpa(MODEL, GPUS, 8, 4, sequence=128, groups=4, usable=0.05)
    assert scarce.plans[0].seconds >= found.plans[0].seconds
    held = [stage["peak_bytes"] for plan in scarce.plans for stage in scarce.stages(plan)]
    assert max(held) <= 0.05 * GPUS.gpu.memory.capacity


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"usable": 0.001}, "hold the model"),
        ({"usable": 2.0}, "share of the memory"),
        ({"micro_batches": 3}, "does not divide"),
        ({"model": "deepseek-v3"}, "repeat only after"),
    ],
)
def test_what_cannot_be_planned_is_refused(values, words):
    model = values.pop("model", MODEL)
    with pytest.raises(InputError, match=words):
        alpa(model, GPUS, 8, values.pop("micro_batches", 4), sequence=128, groups=4, **values)
