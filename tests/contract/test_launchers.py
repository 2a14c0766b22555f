"""What every launcher is given of a plan, or a sentence on what it has no option for."""

import json
import re
import tomllib
from dataclasses import replace

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import RECIPES
from weft.plan.launch import LAUNCHERS, lacking, launch

LLAMA = load_model("llama-3-70b")
SHARDED = {"zero": 3, "recompute": "full", "sequence": 8192}
PLANS = {
    "megatron": TrainingPlan(
        tp=8, pp=4, dp=2, batch=128, sequence=8192, sp=True, zero=1, schedule="interleaved:5", recompute="selective"
    ),
    "torchtitan": TrainingPlan(tp=8, dp=8, batch=64, sp=True, **SHARDED),
    "deepspeed": TrainingPlan(dp=64, batch=128, **SHARDED),
}
FRAMEWORKS = {"megatron": "megatron-core", "torchtitan": "torchtitan", "deepspeed": "deepspeed-zero3"}


def written(name, plan=None, model=LLAMA):
    plan = plan or PLANS[name]
    return launch(name, model, weft.system(f"{plan.gpus}xh100"), plan, framework(FRAMEWORKS[name]))


def flags(text):
    """Flags of Megatron-LM with their values."""
    parts = re.split(r"\s+(?=--)", text.replace("\\\n", " ").strip())
    return {flag: value.strip("'") for flag, _, value in (part.partition(" ") for part in parts if part[:2] == "--")}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_its_own_plan_can_be_launched(name):
    assert not lacking(name, LLAMA, PLANS[name])
    assert written(name).endswith("\n")


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("precision", RECIPES)
def test_a_recipe_is_launched_or_named_as_missing(name, precision):
    plan = replace(PLANS[name], precision=precision)
    if missing := lacking(name, LLAMA, plan):
        assert precision in missing
        return
    low = {"fp8-format", "fp4-format", "quantize.linear.float8"}
    assert any(word in written(name, plan) for word in low) == bool(RECIPES[precision].operands)


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize(
    "changes",
    [
        {"recompute": "selective", "schedule": "zb-h1", "pp": 2},
        {"overlap": {"tp": "t3"}, "tp": 8, "sp": True},
        {"recompute": ("norm1", "fc1")},
        {"offload": "optimizer"},
    ],
    ids=["a schedule of zero bubble", "an overlap in hardware", "operators of no module", "states on the host"],
)
def test_what_has_no_option_is_refused_in_words(name, changes):
    plan = TrainingPlan(**{"dp": 8, "batch": 64, "zero": 3, **changes})
    assert lacking(name, LLAMA, plan)
    with pytest.raises(InputError, match=f"{name} cannot run this plan.*choose another plan or launcher"):
        written(name, plan)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_encoders_are_refused(name):
    with pytest.raises(InputError, match="only decoders"):
        written(name, TrainingPlan(dp=8, batch=64, zero=3), load_model("bert-large"))


def test_an_unknown_launcher_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="megatron"):
        lacking("megatorn", LLAMA, PLANS["megatron"])


def test_flags_of_megatron_say_the_whole_plan():
    found = flags(written("megatron"))
    wanted = {
        "--tensor-model-parallel-size": "8", "--pipeline-model-parallel-size": "4", "--sequence-parallel": "",
        "--num-virtual-stages-per-pipeline-rank": "5", "--global-batch-size": "128", "--micro-batch-size": "1",
        "--seq-length": "8192", "--use-distributed-optimizer": "", "--recompute-granularity": "selective",
        "--num-layers": "80", "--num-query-groups": "8", "--ffn-hidden-size": "28672",
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == wanted
    assert "--nproc-per-node 8 --nnodes 8" in written("megatron")


def test_megatron_pads_the_vocabulary_to_that_of_the_model():
    found = flags(written("megatron"))
    rows, multiple = int(found["--vocab-size"]) + 1, int(found["--make-vocab-size-divisible-by"]) * 8
    assert rows == LLAMA.vocabulary
    assert rows % multiple == 0


def test_operators_that_run_again_become_modules_of_megatron():
    plan = TrainingPlan(dp=8, batch=64, zero=1, sequence=8192, recompute=("norm1", "norm2", "attention"))
    found = flags(written("megatron", plan))
    assert found["--recompute-granularity"] == "selective"
    assert found["--recompute-modules"] == "layernorm core_attn"


def test_uneven_stages_become_a_layout_of_megatron():
    plan = TrainingPlan(pp=4, batch=8, layers=(19, 21, 21, 19), sequence=8192)
    layout = flags(written("megatron", plan))["--pipeline-model-parallel-layout"]
    assert [stage.count("t") for stage in layout.split("|")] == [19, 21, 21, 19]
    assert (layout[0], layout[-1]) == ("E", "L")


def test_a_mixture_names_its_dense_layers_and_experts():
    plan = TrainingPlan(tp=1, pp=1, ep=8, dp=8, batch=64, zero=1, sequence=4096)
    found = flags(written("megatron", plan, load_model("deepseek-v3")))
    assert (found["--moe-layer-freq"], found["--num-experts"]) == ("([0]*3+[1]*58)", "256")
    assert (found["--expert-model-parallel-size"], found["--kv-lora-rank"]) == ("8", "512")


@pytest.mark.parametrize(("shard", "degrees"), [(None, (1, 8)), (4, (2, 4))])
def test_torchtitan_shards_over_the_ranks_of_the_plan(shard, degrees):
    plan = TrainingPlan(tp=8, dp=8, batch=64, sp=True, shard=shard, **SHARDED)
    found = tomllib.loads(written("torchtitan", plan))["parallelism"]
    assert (found["data_parallel_replicate_degree"], found["data_parallel_shard_degree"]) == degrees
    assert found["tensor_parallel_degree"] == 8


def test_torchtitan_counts_context_ranks_beside_its_shards():
    plan = TrainingPlan(tp=8, cp=2, dp=4, batch=64, sp=True, **SHARDED)
    found = tomllib.loads(written("torchtitan", plan))["parallelism"]
    assert (found["data_parallel_shard_degree"], found["context_parallel_degree"]) == (4, 2)


def test_the_batch_of_deepspeed_is_micro_batches_of_all_replicas():
    found = json.loads(written("deepspeed"))
    parts = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"], PLANS["deepspeed"].dp
    assert found["train_batch_size"] == parts[0] * parts[1] * parts[2] == 128
    assert found["zero_optimization"]["stage"] == 3
