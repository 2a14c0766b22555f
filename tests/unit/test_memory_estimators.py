"""Formulas of frameworks' own memory estimators, against their numbers, and where they are shown."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from weft.cli.main import weft as cli
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.estimators import estimate_as_framework

GPT = load_model("gpt-3")
PLAN = TrainingPlan(tp=2, pp=8, dp=64, sp=True, batch=1536, sequence=2048, zero=1, recompute="selective")


def estimated(model=GPT, plan=PLAN, name="megatron-core"):
    return estimate_as_framework(model, plan, framework(name))


def test_megatron_counts_18_bytes_a_parameter_without_a_distributed_optimizer():
    shard = (96 * (12 * 12288**2 + 4 * 12288) + 2 * 12288) / 8 / 2 + GPT.vocabulary * 12288 / 2
    assert estimated(plan=replace(PLAN, zero=0)).states == pytest.approx(18 * shard, rel=1e-6)
    assert estimated().states == pytest.approx((6 + 12 / 64) * shard, rel=1e-6)


def test_megatron_keeps_34_bytes_a_token_and_element_with_selective_recomputation():
    kept = 2048 * 12288 * 34 * 96 + (8 + 12288) * 2048 * 8
    assert estimated().activations == pytest.approx(kept / 2)
    chunks = replace(PLAN, schedule="interleaved:3")
    assert estimated(plan=chunks).activations == pytest.approx(kept * (1 + 7 / 24) / 2)


def test_megatron_has_another_formula_without_sequence_parallelism():
    kept = 2048 * 12288 * (10 + 24 / 2) * 96 + (8 + 12288) * 2048 * 8
    assert estimated(plan=replace(PLAN, sp=False)).activations == pytest.approx(1.05 * kept)


def test_deepspeed_counts_18_bytes_a_parameter_on_all_gpus_and_the_largest_module():
    model, plan = load_model("llama-3-8b"), TrainingPlan(dp=8, batch=8, zero=3)
    found = estimated(model, plan, "deepspeed-zero3")
    assert found.states == pytest.approx(18 * model.parameters / 8 + 4 * 128256 * 4096)
    assert found.activations is None


@pytest.mark.parametrize("name", ["torchtitan", "internevo"])
def test_frameworks_without_formulas_have_no_estimate(name):
    assert estimated(name=name) is None
    assert estimated(load_model("deepseek-v3")) is None


def test_the_tensors_and_the_estimate_are_printed_where_they_are_asked_for():
    base = ["memory", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--batch", "8"]
    plain, told = (CliRunner().invoke(cli, [*base, *more]).output for more in ((), ("--explain",)))
    assert "--explain shows more: activations of one micro-batch" in plain
    assert "dense: attention" in told
    assert "theoretical_memory_usage.py" in told
    own = CliRunner().invoke(cli, [*base, "--framework", "internevo", "--explain"]).output
    assert "InternEvo has no formulas of its own for such a plan." in own
