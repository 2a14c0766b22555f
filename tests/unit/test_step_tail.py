"""What ends a training step: sums of gradients, the optimizer, and updated weights."""

from dataclasses import replace

import pytest

import weft
from weft.graph import Collective
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import train

MODEL = Transformer(name="1b", title="1B", hidden=2048, layers=8, heads=16, sequence_length=1024, vocabulary=32000)
SYSTEM = weft.system("dgx-a100")
PLAN = TrainingPlan(dp=8, batch=8, sequence=1024, zero=1)


def exposed(framework: Framework) -> float:
    """Seconds of a step that its replicas' collectives take, which nothing hides here."""
    return train(MODEL, SYSTEM, PLAN, framework, fidelity="estimate").tails[0]["exposed dp"]


@pytest.mark.parametrize(("scatters", "reduction"), [(True, "reduce_scatter"), (False, "all_reduce")])
def test_replicas_reduce_to_shards_unless_the_framework_sums_all_gradients(scatters, reduction):
    framework = Framework(scatters=scatters, gradients="bf16", dp_overlap=False, gather_overlap=False)
    count = train(MODEL, SYSTEM, PLAN, framework, fidelity="estimate").chunks[0].parameters
    moved = [Collective(kind, 2 * count, 8, "bf16") for kind in (reduction, "all_gather")]
    expected = sum(float(weft.estimate(op, SYSTEM).seconds) for op in moved)
    assert exposed(framework) == pytest.approx(expected, rel=0.02)
    assert exposed(framework) != pytest.approx(exposed(replace(framework, scatters=not scatters)), rel=0.1)
