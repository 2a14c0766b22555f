"""Mixtures of parallelism for each layer: how many there are, and which the memory asks for."""

import math

import pytest

from weft.errors import InputError
from weft.hardware import system
from weft.models.load import load_model
from weft.textbook.mixtures import galvatron, metropolis, mixtures

MODEL = load_model("mpt-1b")
ROOMY = system("4xa100")


def test_eight_gpus_have_34_candidates_and_22_without_mixed_data_parallelism():
    """arXiv:2211.13878, section 3.2."""
    assert len(mixtures(8, takeaways=False)) == 34
    assert len(mixtures(8)) == 22
    assert len(set(mixtures(8, takeaways=False))) == 34


@pytest.mark.parametrize("gpus", [1, 2, 6, 16])
def test_degrees_multiply_to_the_gpus(gpus):
    for one in mixtures(gpus, takeaways=False):
        assert one.pp * math.prod(degree for _, degree in one.levels) == gpus
        assert len({kind for kind, _ in one.levels}) == len(one.levels)


def test_with_much_memory_layers_are_replicated_and_with_little_they_are_shared():
    roomy = galvatron(MODEL, ROOMY, 64, 2, sequence=512)
    assert {str(one) for one in roomy[0].mixtures} == {"pp1-dp4"}
    scarce = galvatron(MODEL, ROOMY.replace({"memory.capacity": "24 GB"}), 64, 2, sequence=512)
    best = scarce[0]
    assert best.seconds > roomy[0].seconds
    assert {str(one) for one in best.mixtures} != {"pp1-dp4"}
    assert [plan.seconds for plan in scarce] == sorted(plan.seconds for plan in scarce)


def test_a_random_walk_never_beats_the_dynamic_program():
    best = galvatron(MODEL, ROOMY.replace({"memory.capacity": "14 GB"}), 16, 2, sequence=512)[0]
    tables = best.tables[0]
    walk = metropolis(tables.cost, tables.choices, steps=300)
    rounded = 0.002  # memory in units of 1/512 of the capacity
    assert walk.distance(best.stages[0]) > -rounded


def test_what_fits_nowhere_is_refused():
    with pytest.raises(InputError, match="add GPUs"):
        galvatron(MODEL, ROOMY.replace({"memory.capacity": "4 GB"}), 16, 2, sequence=512)
    with pytest.raises(InputError, match="micro-batches"):
        galvatron(MODEL, ROOMY, 16, 3)
