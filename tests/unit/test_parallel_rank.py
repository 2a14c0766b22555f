"""One rank's share of a layer: what is computed again for the backward pass."""

import pytest

from weft.models import load_model
from weft.models.block import FusionStyle
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.rank_parts import rank_parts


@pytest.mark.parametrize(
    ("stops", "dropout", "last"),
    [(False, False, "residual2"), (True, False, "activation"), (True, True, "residual2")],
)
def test_early_stop_ends_recomputation_with_the_last_tensor_that_a_gradient_needs(stops, dropout, last):
    """That is the input of the last GEMM; with dropout, the mask behind it."""
    framework = Framework(stops_early=stops, style=FusionStyle(dropout=dropout))
    found = rank_parts(load_model("gpt-3"), TrainingPlan(recompute="full"), framework)["dense"].recompute
    assert found is not None
    assert found.nodes[-1].name == last


def test_early_stop_leaves_forward_and_backward_passes_alone():
    plan, model = TrainingPlan(recompute="full"), load_model("llama-3-8b")
    whole, short = (rank_parts(model, plan, Framework(stops_early=stops))["dense"] for stops in (False, True))
    assert (short.forward, short.backward, short.kept) == (whole.forward, whole.backward, whole.kept)
