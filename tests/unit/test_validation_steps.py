"""Measured training steps: what a row means as model, plan, system and framework, and what it is compared with."""

import numpy as np
import pytest
from step_rows import table, validated

import weft
from weft.hardware import gpu
from weft.lab.run import validate
from weft.lab.steps import UNFITTED, predict_step, read_run
from weft.lab.tables import read_file
from weft.models.parallel.plan import TrainingPlan
from weft.step.memory import memory

VTRAIN = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
    "data parallelism,pipeline parallelism,iteration time (ms)"
)


def case(folder, **changes):
    found = read_file(table(folder, changes))
    assert not found.problems
    return ran(found)


def ran(read):
    row = read.rows.to_dict("records")[0]
    return read_run(row, gpu(row["gpu"]))


def reasons(done):
    return " ".join(done.complaints())


def test_a_row_that_names_a_released_model_without_dimensions_is_the_catalogues_with_its_recipe(tmp_path):
    unstated = dict.fromkeys(("layers", "hidden", "ffn", "heads", "kv_heads", "vocab"), "")
    run = {"model": "Nemotron_3_Nano", "framework": "Megatron-Bridge 26.06", "gpu": "GB300", "precision": "MXFP8"}
    sizes = {"tp": "1", "ep": "8", "dp": "8", "seq_len": "8192", "gbs_seq": "512", "recompute": ""}
    found = case(tmp_path, **unstated, **run, **sizes)
    assert found.model == weft.load_model("nemotron-3-nano-30b-a3b")
    assert (found.framework.dispatcher, found.plan.ep) == ("hybridep", 8)
    assert "mamba" in found.framework.graphs


def test_a_row_names_a_model_of_the_catalogue_a_plan_and_a_machine(tmp_path):
    found = case(tmp_path)
    assert (found.model.hidden, found.model.layers, found.model.vocabulary) == (6144, 48, 51200)
    assert found.plan == TrainingPlan(tp=8, batch=4, micro_batch=4, recompute="full", dtype="fp16")
    assert (found.system.name, found.system.gpus) == ("dgx-a100", 8)
    assert found.framework.name == "megatron-2022"


def test_a_row_of_another_size_takes_the_form_of_its_family(tmp_path):
    found = case(
        tmp_path, model="BLOOM-candidate-181B", layers="72", hidden="14336", ffn="57344", heads="", kv_heads=""
    )
    assert found.model.positions == "alibi"
    assert (found.model.layers, found.model.attention_heads) == (72, 112)


def test_heads_that_are_not_stated_divide_among_the_ranks(tmp_path):
    found = case(
        tmp_path, model="BLOOM-candidate-187B", layers="80", hidden="13824", ffn="55296", heads="", kv_heads=""
    )
    assert found.model.attention_heads % 8 == 0
    assert 13824 % found.model.attention_heads == 0


def test_a_padded_vocabulary_divides_among_the_ranks(tmp_path):
    assert case(tmp_path, vocab="50257").model.vocabulary == 51200


@pytest.mark.parametrize(
    ("network", "gigabits"), [("4 x 100 Gb/s RoCE per node", 50), ("1600 Gb/s per node RoCE", 200), ("", 200)]
)
def test_the_network_of_a_node_is_shared_by_its_gpus(tmp_path, network, gigabits):
    assert case(tmp_path, network=network).system.node.network.bandwidth == pytest.approx(gigabits * 1e9 / 8)


@pytest.mark.parametrize(
    ("precision", "dtype", "recipe"),
    [("BF16", "bf16", ""), ("TF32", "tf32", ""), ("MXFP8", "bf16", "mxfp8"), ("NVFP4", "bf16", "nvfp4"),
     ("FP8-CS", "bf16", "fp8-tensorwise")],
)  # fmt: skip
def test_the_precision_says_how_operators_compute_and_which_recipe_quantises_gemms(tmp_path, precision, dtype, recipe):
    plan = case(tmp_path, precision=precision, framework="Megatron-Bridge 26.06", gpu="GB200").plan
    assert (plan.dtype, plan.precision) == (dtype, recipe)


@pytest.mark.parametrize(
    ("named", "schedule"),
    [("1F1B", "1f1b"), ("ZB-1p", "zb-h1"), ("ZB-2p", "zb-h2"), ("1F1B interleaved", "interleaved:3")],
)
def test_the_schedule_of_a_row_has_our_name(tmp_path, named, schedule):
    row = {"layers": "22", "pp": "8", "tp": "1", "gbs_seq": "96", "overlap_or_schedule": named}
    plan = case(tmp_path, framework="Megatron-LM fork (zero bubble)", model="GPT 1.5B", **row).plan
    assert plan.schedule == schedule


def test_embedding_and_head_count_as_layers_where_only_that_divides(tmp_path):
    row = {"layers": "22", "pp": "8", "tp": "1", "gbs_seq": "96"}
    assert case(tmp_path, model="GPT 1.5B", **row).plan.layers == (2, 3, 3, 3, 3, 3, 3, 2)


def test_deepspeed_fills_every_stage_but_the_last(tmp_path):
    row = {"framework": "Megatron-DeepSpeed (1F1B)", "layers": "78", "pp": "12", "gpus": "96", "gbs_seq": "96"}
    assert case(tmp_path, model="BLOOM-candidate-196B", hidden="14336", heads="", kv_heads="", **row).plan.layers == (
        7,
    ) * 11 + (1,)


def test_operators_that_torchtitan_keeps_are_not_computed_again(tmp_path):
    row = {"framework": "torchtitan 2025-06 (FSDP2)", "model": "Llama-3-8B", "gpu": "H100-SXM-96GB-HBM2e", "tp": "1"}
    row |= {"layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32", "kv_heads": "8", "vocab": "128256"}
    row |= {"dp": "8", "gbs_seq": "32", "zero_stage": "3", "precision": "BF16"}
    times = {
        how: predict_step(case(tmp_path, **row, recompute=how)).seconds
        for how in ("none", "selective (per op)", "full")
    }
    assert times["none"] < times["selective (per op)"] < times["full"]


def test_fsdp_that_keeps_its_weights_is_sharded_all_the_same(tmp_path):
    row = {"framework": "Composer + FSDP (PyTorch 1.13-2.x)", "model": "MPT-7b", "tp": "1", "dp": "8", "gbs_seq": "32"}
    row |= {"layers": "32", "hidden": "4096", "ffn": "16384", "heads": "32", "kv_heads": "32", "zero_stage": "2"}
    found = case(tmp_path, **row)
    assert found.plan.zero == 3
    assert found.framework.keeps_weights


@pytest.mark.parametrize(
    ("framework", "gpu", "ep", "recompute"),
    [
        ("Megatron-Bridge 26.02", "GB200", 8, ("norm1", "norm2", "experts_clamp", "experts_activation")),
        ("Megatron-Bridge 26.02", "GB300", 8, "none"),
        ("NeMo AutoModel (PyTorch FSDP2)", "H100-SXM", 16, "none"),
        ("Megatron-LM mcore", "H100-SXM", 8, "none"),
    ],
)
def test_a_row_of_a_published_recipe_recomputes_and_spreads_experts_as_it_does(tmp_path, framework, gpu, ep, recompute):
    mixture = {"experts": "128", "topk": "4", "hidden": "2880", "ffn": "2880", "layers": "36", "heads": "64", "tp": "1"}
    at = {"gpu": gpu, "gpus": "64", "dp": "64", "ep": "8", "gbs_seq": "1280", "recompute": "", "precision": "BF16"}
    plan = case(tmp_path, model="GPT-OSS-120B", framework=framework, kv_heads="8", **mixture, **at).plan
    assert (plan.ep, plan.recompute) == (ep, recompute)


def test_a_micro_batch_that_is_not_stated_is_the_fastest_that_fits(tmp_path):
    row = {"mbs_seq": "", "gbs_seq": "8", "recompute": "full"}
    found = case(tmp_path, **row)
    others = [case(tmp_path, **{**row, "mbs_seq": str(size)}) for size in (1, 2, 4, 8)]
    fitting = [one for one in others if memory(one.model, one.system, one.plan, one.framework).fits]
    assert predict_step(found).seconds == min(predict_step(one).seconds for one in fitting)


def test_torchtitan_splits_a_batch_into_as_many_micro_batches_as_stages(tmp_path):
    row = {"framework": "torchtitan 2024-12 (FSDP2)", "model": "Llama-3-8B", "gpu": "H100-SXM", "gpus": "16", "tp": "1"}
    row |= {"layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32", "kv_heads": "8", "zero_stage": "3"}
    found = case(tmp_path, **row, pp="4", dp="4", mbs_seq="", gbs_seq="64", recompute="full")
    assert (found.plan.micro_batch, found.plan.micro_batches) == (4, 4)


def test_a_prediction_is_the_time_of_the_step(tmp_path):
    done = validated(tmp_path, {})
    found = case(tmp_path)
    part, _ = done.predictions
    asked = weft.step(found.model, found.system, found.plan, framework=found.framework, fidelity="estimate")
    assert part.seconds[0] == asked.seconds
    assert part.subject.measured[0] == 1.5


def test_dense_models_and_mixtures_are_groups_of_their_own(tmp_path):
    mixture = {"framework": "Megatron-Bridge 26.06", "model": "Qwen3-30B-A3B", "gpu": "H100-SXM", "tp": "1", "dp": "8"}
    mixture |= {"ep": "8", "precision": "BF16", "layers": "48", "hidden": "2048", "ffn": "768", "heads": "32"}
    mixture |= {"kv_heads": "4", "vocab": "151936", "experts": "128", "topk": "8", "gbs_seq": "32", "recompute": ""}
    groups = [group.keys for group in validated(tmp_path, {}, mixture).groups() if group.keys["kind"] == "step"]
    assert [(keys["framework"], keys["layers"]) for keys in groups] == [
        ("megatron-2022", "dense"), ("megatron-bridge", "mixture"),
    ]  # fmt: skip


def test_a_peak_of_memory_is_in_gb_whatever_unit_the_source_printed(tmp_path):
    row = {"step_time_s": "", "peak_mem_gb": "40", "mem_kind": "max reserved (GiB in source)"}
    (part,) = validated(tmp_path, row).predictions
    assert (part.subject.kind, part.subject.measured[0]) == ("memory", 40e9)
    found = case(tmp_path)
    held = memory(found.model, found.system, found.plan, found.framework)
    assert part.seconds[0] == max(one.peak_reserved for one in held.devices)


def test_only_the_kinds_asked_for_are_compared(tmp_path):
    table(tmp_path, {"peak_mem_gb": "40", "mem_kind": "device total"})
    assert {part.subject.kind for part in validate(tmp_path, kinds=["memory"]).predictions} == {"memory"}
    assert {part.subject.kind for part in validate(tmp_path).predictions} == {"memory", "step", UNFITTED}


def test_rows_with_a_fitted_clock_are_also_predicted_without_it(tmp_path):
    row = {"framework": "InternEvo", "model": "InternLM-7B", "tp": "1", "dp": "8", "gbs_seq": "64", "kv_heads": "32"}
    row |= {
        "layers": "32",
        "hidden": "4096",
        "ffn": "11008",
        "heads": "32",
        "vocab": "103168",
        "zero_stage": "1",
        "precision": "BF16",
    }
    fitted, plain = validated(tmp_path, row).predictions
    assert (fitted.subject.kind, plain.subject.kind) == ("step", UNFITTED)
    assert fitted.seconds[0] > plain.seconds[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "lora"}, "adapters on frozen weights have no model"),
        ({"model": "Nemotron_3_Ultra", "layers": ""}, "no operators of this model"),
        ({"gbs_seq": ""}, "gbs_seq '': this is needed to predict a step"),
        ({"framework": "Paddle"}, "the defaults of this framework are not known"),
        ({"step_time_s": ""}, "neither the time of a step nor its memory"),
        ({"precision": "FP8"}, "a100-sxm-80gb does not compute in fp8"),
        ({"notes": "data binned by length (bin 64)"}, "sequences are shorter than this"),
        ({"dp": "2", "mbs_seq": "2"}, "the plan uses 16 GPUs"),
    ],
)
def test_a_row_that_cannot_be_modelled_is_named_with_its_reason(tmp_path, changes, reason):
    done = validated(tmp_path, {}, changes)
    assert reason in reasons(done)
    assert (done.rows_used, done.rows_read) == (1, 2)


def test_vtrains_files_are_read_by_their_own_headings_in_milliseconds(tmp_path):
    (tmp_path / "mine.csv").write_text(f"{VTRAIN}\n8,32,4,1024,16,24,1024,2,2,2,219.5\n")
    read = read_file(tmp_path / "mine.csv")
    assert not read.problems
    found = ran(read)
    assert read.rows["step_time_s"].tolist() == [pytest.approx(0.2195)]
    assert (found.plan.tp, found.plan.dp, found.plan.pp, found.plan.micro_batches) == (2, 2, 2, 4)
    assert (found.model.hidden, found.plan.recompute, found.framework.name) == (1024, "full", "vtrain")


def test_a_blank_time_reads_as_not_stated(tmp_path):
    rows = read_file(table(tmp_path, {"step_time_s": ""})).rows
    assert np.isnan(rows["step_time_s"].iloc[0])


@pytest.mark.parametrize(
    ("model", "paired", "recompute", "schedule", "layers"),
    [
        ("DeepSeek-V3", "off", "full", "1f1b", 61),
        ("DeepSeek-V3", "on", "none", "interleaved:2", 61),
        ("Qwen3-30B-A3B", "off", "full", "1f1b", 48),
        ("Qwen3-235B-A22B", "on", "none", "interleaved:2", 96),
    ],
)
def test_a_row_that_names_its_dispatcher_runs_as_its_script_does(tmp_path, model, paired, recompute, schedule, layers):
    values = {
        "model": model, "gpu": "b300", "gpus": 256, "network": "16 EFA a node (6.4 Tb/s)", "tp": 8, "pp": 8, "ep": 32,
        "framework": "Megatron-Bridge 0.4.2, core 0.17.1", "dispatcher": "alltoall (NCCL)", "precision": "bf16",
        "dp": 4, "vpp": "", "etp": 1, "cp": 1, "mbs_seq": 4, "gbs_seq": 256, "seq_len": 4096, "overlap_ep": paired,
        "notes": "", "recompute": "off", "routing": "balanced", "step_time_s": 9.0, "tflops_per_gpu": 100,
        "tokens_per_s": "", "source": "x", "licence": "x",
    }  # fmt: skip
    file = tmp_path / "moe_steps.csv"
    file.write_text("\n".join(",".join(f'"{one}"' for one in line) for line in (values, values.values())) + "\n")
    found = ran(read_file(file))
    assert (found.plan.recompute, found.plan.schedule, found.model.layers) == (recompute, schedule, layers)
    assert found.framework.paired == (paired == "on")
    assert not found.framework.tp
