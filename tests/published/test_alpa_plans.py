"""Alpa's published plans of GPT on AWS p3.16xlarge, ranked by Weft's own cost (arXiv:2201.12023; alpa-projects/alpa,
benchmark/alpa/suite_auto_gpt.py): 1,024 sequences of 1,024 tokens, recomputation, fp16."""

from functools import cache
from typing import NamedTuple

import pytest

from weft.hardware import system
from weft.models.load import load_model
from weft.papers.textbook.alpa import alpa


class Published(NamedTuple):
    hidden: int
    layers: int
    heads: int
    gpus: int
    micro_batches: int
    groups: int
    meshes: tuple[int, ...]


PLANS = {
    "350M": Published(1024, 24, 16, 1, 512, 1, (1,)),
    "760M": Published(1536, 24, 16, 2, 128, 6, (1, 1)),
    "1.3B": Published(2048, 24, 32, 4, 128, 6, (2, 2)),
    "2.6B": Published(2560, 32, 32, 8, 128, 8, (2, 2, 4)),
    "6.7B": Published(4096, 32, 32, 16, 64, 8, (8, 8)),
    "15B": Published(5120, 48, 40, 32, 128, 16, (8,) * 4),
    "39B": Published(8192, 48, 64, 64, 1024, 16, (4,) * 16),
}
SLOW = ("6.7B", "15B", "39B")


@cache
def searched(name):
    plan = PLANS[name]
    sizes = {"hidden": plan.hidden, "layers": plan.layers, "heads": plan.heads, "sequence_length": 1024}
    model = load_model("gpt-3.6b").model_copy(update=sizes)
    return alpa(model, system(f"{plan.gpus}xv100-16gb"), 1024, plan.micro_batches, groups=plan.groups, best=4), plan


def cases(names):
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


@pytest.mark.parametrize("name", cases(name for name in PLANS if name != "39B"))
def test_the_published_meshes_are_among_the_three_best(name):
    found, plan = searched(name)
    assert found.rank(plan.meshes) <= 3


@pytest.mark.parametrize("name", cases(["6.7B", "15B"]))
def test_the_best_logical_meshes_are_the_published_ones(name):
    found, _ = searched(name)
    assert [found.ways[stage.choice].shape for stage in found.plans[0].stages] == [(2, 4)] * len(found.plans[0].stages)


@pytest.mark.slow
def test_the_plan_of_39b_is_tied_with_the_best_but_not_among_three():
    """A known gap, explained in docs/deviations.md."""
    found, plan = searched("39B")
    assert found.of(plan.meshes).seconds < 1.01 * found.plans[0].seconds
    assert found.rank(plan.meshes, within=0.01, most=16) == 1
    assert 3 < found.rank(plan.meshes, most=16) < 16
    cut = {way.roles[1] for name, way in found.ways[found.of(plan.meshes).stages[3].choice].unit.operators}
    assert cut == {"whole", "columns", "heads", "inner"}


def test_uneven_stages_of_the_published_meshes_hold_as_many_groups_as_published():
    found, plan = searched("2.6B")
    assert [stage.last - stage.first + 1 for stage in found.of(plan.meshes).stages] == [2, 2, 4]
