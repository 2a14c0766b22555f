"""Lower bounds of step times from operators alone never exceed the times that they stand for."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from weft.hardware import system
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.plan.space import space
from weft.step.batch import StepComposer
from weft.step.clock import many
from weft.step.durations import DurationCache
from weft.step.overlaps import framework_fields, resolve_framework

SAMPLES = 60
CASES = [
    ("qwen3-30b-a3b", "16xh200", "megatron-bridge", {}),
    ("qwen3-30b-a3b", "16xb200", "megatron-bridge-2026", {"precision": "mxfp8"}),
    ("mixtral-8x7b", "16xmi300x", "torchtitan", {}),
    ("qwen3-30b-a3b", "16xh200", "automodel", {"dispatcher": "deepep"}),
    ("llama-3-8b", "16xh100", "torchtitan", {"overlap": "tp=async-tp"}),
    ("llama-3-8b", "16xh100", "megatron-core", {"recompute": ["none", "selective", "full"]}),
]


@pytest.mark.parametrize(("model", "machine", "name", "fix"), CASES)
def test_bounds_of_operators_are_below_the_step_times(model, machine, name, fix):
    found, where, defaults = load_model(model), system(machine), framework(name)
    plans = list(space(found, where, defaults, 64, 4096, fix).candidates(Counter()))
    plans = plans[:: max(len(plans) // SAMPLES, 1)]
    alike = defaultdict(list)
    for plan in plans:
        alike[framework_fields(plan)].append(plan)
    for some in alike.values():
        own = resolve_framework(defaults, some[0])
        cache = DurationCache(where)
        batch = StepComposer(found, own, cache)
        bounds = batch._least_of_operators([batch._job(plan) for plan in some])
        seconds = many(found, where, some, defaults).seconds
        assert (bounds > 0).all()
        assert (bounds <= seconds * (1 + 1e-9)).all(), [some[at] for at in np.flatnonzero(bounds > seconds)][:1]
