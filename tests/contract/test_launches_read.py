"""What a launcher starts is read back: every plan that can be written, and files that users wrote."""

import itertools
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import ConfigError, InputError
from weft.models import load_model
from weft.models.parallel.check import problems
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.plan.launch import LAUNCHERS, lacking, launch
from weft.plan.script import read_script

MODELS = ("llama-3-8b", "gpt-3", "mixtral-8x7b", "deepseek-v3")
CHOICES = {
    "megatron": {
        "tp": (1, 4), "pp": (1, 4), "cp": (1, 2), "zero": (0, 1, 3), "recompute": ("none", "selective", "full"),
        "schedule": ("1f1b", "interleaved:2"), "precision": ("", "fp8-delayed"), "micro_batch": (1, 2), "ep": (1, 2),
    },
    "torchtitan": {
        "tp": (1, 4), "pp": (1, 2), "cp": (1, 2), "zero": (2, 3), "recompute": ("none", "operators", "full"),
        "precision": ("", "fp8-tensorwise"), "micro_batch": (1, 2), "overlap": ({}, {"tp": "async-tp"}),
    },
    "deepspeed": {"tp": (1, 4), "zero": (0, 1, 2, 3), "recompute": ("none", "full"), "micro_batch": (1, 2)},
}  # fmt: skip
LEFT = {"megatron": (), "torchtitan": (), "deepspeed": ("sequence", "recompute")}
"""Fields that the files of a launcher leave to the program."""
GPUS = 16


def plans(launcher, model):
    """Plans of the matrix that the model, the launcher and the machine allow."""
    names, values = zip(*CHOICES[launcher].items(), strict=True)
    for chosen in itertools.product(*values):
        fields = dict(zip(names, chosen, strict=True))
        each = fields["tp"] * fields.get("pp", 1) * fields.get("cp", 1)
        if GPUS % each or (fields.get("pp", 1) == 1 and fields.get("schedule", "1f1b") != "1f1b"):
            continue
        if fields.get("overlap") and fields["tp"] == 1:
            continue
        dp = GPUS // each
        batch = dp * fields["micro_batch"] * fields.get("pp", 1) * 2
        sp = fields["tp"] > 1 and launcher != "deepspeed"
        plan = TrainingPlan(dp=dp, batch=batch, sequence=2048, sp=sp, **fields)
        if not lacking(launcher, model, plan) and not any(problems(model, plan)):
            yield plan


CASES = [(launcher, name) for launcher in LAUNCHERS for name in MODELS]


@pytest.mark.parametrize(("launcher", "name"), CASES)
def test_what_is_written_is_read_as_the_same_plan(launcher, name, tmp_path):
    model, machine = load_model(name), weft.system(f"{GPUS}xh100")
    used, count = framework(LAUNCHERS[launcher].framework), 0
    for plan in plans(launcher, model):
        file = tmp_path / "launch"
        file.write_text(launch(launcher, model, machine, plan, used))
        launched = weft.read_launch(file)
        assert launched.not_understood == ()
        assert launched.framework == used.name
        fields = launched.plan(GPUS, {field: getattr(plan, field) for field in LEFT[launcher]})
        replicas = GPUS // (plan.tp * plan.pp * plan.cp)
        assert replace(TrainingPlan(**{"dp": replicas, **fields}), order=plan.order) == plan
        count += 1
    assert count >= 3 or (launcher == "deepspeed" and model.experts)


@pytest.mark.parametrize("name", [*MODELS, "nemotron-h-8b", "qwen3-next-80b-a3b"])
def test_the_model_that_megatron_is_told_takes_as_long(name, tmp_path):
    model, machine = load_model(name), weft.system(f"{GPUS}xh100")
    plan = TrainingPlan(tp=1, dp=GPUS, ep=2 if model.experts else 1, batch=GPUS, sequence=2048, zero=1)
    file = tmp_path / "launch.sh"
    file.write_text(launch("megatron", model, machine, plan, framework("megatron-core")))
    found = weft.read_launch(file).step(machine, fidelity="estimate")
    wanted = weft.step(model, machine, plan, framework="megatron-core", fidelity="estimate")
    assert found.seconds == pytest.approx(wanted.seconds, rel=1e-3)
    assert found.memory.peak == pytest.approx(wanted.memory.peak, rel=1e-3)


def test_layers_that_differ_are_written_and_those_without_an_argument_are_named(tmp_path):
    machine, used, plan = weft.system("16xh100"), framework("megatron-core"), TrainingPlan(dp=16, batch=16)
    file = tmp_path / "launch.sh"
    file.write_text(launch("megatron", load_model("gpt-oss-20b"), machine, plan, used))
    assert "--window-size 128,0 --window-attn-skip-freq" in file.read_text()
    assert weft.read_launch(file).model.layer_kinds == load_model("gpt-oss-20b").layer_kinds
    granite, hybrid = load_model("granite-4.0-h-small"), load_model("nemotron-h-8b")
    assert "no flag puts mamba2 layers in the layers of granite-4.0-h-small" in lacking("megatron", granite, plan)
    assert "mamba2 layers are chosen in the program" in lacking("torchtitan", hybrid, replace(plan, zero=3))


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-8}
TP=4; PP=4   # as on the cluster
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS="--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \\
    --group-query-attention --num-query-groups 8 --max-position-embeddings 8192 --swiglu \\
    --normalization RMSNorm --disable-bias-linear --position-embedding-type rope \\
    --untie-embeddings-and-output-weights --tokenizer-type Llama3Tokenizer"
TRAINING_ARGS=(
    --seq-length 8192 --micro-batch-size 1
    --global-batch-size $((GPUS_PER_NODE * NNODES * 2))
    --lr 1e-4 --train-iters 1000 --bf16 --a-new-argument 3
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py $MODEL_ARGS "${TRAINING_ARGS[@]}" \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP --sequence-parallel \\
    --num-layers-per-virtual-pipeline-stage 4 --use-distributed-optimizer --overlap-grad-reduce
"""


def test_a_users_script_is_read_with_its_variables_and_arrays(tmp_path):
    (tmp_path / "pretrain.sh").write_text(SCRIPT)
    found = weft.read_launch(tmp_path / "pretrain.sh")
    assert found.gpus == 64
    wanted = {"tp": 4, "pp": 4, "schedule": "interleaved:5", "batch": 128, "micro_batch": 1, "sequence": 8192,
              "sp": True, "zero": 1, "dtype": "bf16", "recompute": "none"}  # fmt: skip
    assert {name: found.fields[name] for name in wanted} == wanted
    assert (found.model.layers, found.model.key_heads, found.model.vocabulary) == (80, 8, 128512)
    assert found.not_understood == ("--a-new-argument",)
    assert {"--lr", "--train-iters"} <= set(found.without_effect)
    assert found.settings == {"dp_overlap": True, "gather_overlap": False}
    step = found.step("64xh100", fidelity="estimate")
    same = weft.step("llama-3-70b", "64xh100", framework=replace(framework("megatron-core"), gather_overlap=False),
                     fidelity="estimate", **found.fields)  # fmt: skip
    assert step.seconds == pytest.approx(same.seconds, rel=0.01)
    assert "Not understood, and left out: --a-new-argument." in step.notes


def test_overrides_of_megatron_bridge_are_read(tmp_path):
    file = tmp_path / "overrides.txt"
    file.write_text(
        "model.tensor_model_parallel_size=4\nmodel.pipeline_model_parallel_size=2\nmodel.sequence_parallel=True\n"
        "model.virtual_pipeline_model_parallel_size=5\ntrain.global_batch_size=128\ntrain.micro_batch_size=1\n"
        "model.seq_length=4096\nmixed_precision=bf16_with_fp8_current_scaling_mixed\nmodel.expert_model_parallel_size=null\n"
    )
    found = weft.read_launch(file)
    assert found.framework == "megatron-bridge"
    assert (found.fields["schedule"], found.fields["precision"], found.fields["dtype"]) == (
        "interleaved:5", "fp8-tensorwise", "bf16",
    )  # fmt: skip
    with pytest.raises(InputError, match="does not say which model it trains; name one, like llama-3-8b"):
        found.step("64xh100")


def test_deepspeed_leaves_what_is_auto_to_the_program(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "overlap_comm": True}, "odd": 1,
    }))  # fmt: skip
    found = weft.read_launch(file)
    assert found.not_understood == ("odd",)
    step = found.step("8xh100", "llama-3-8b", sequence=4096, recompute="full", fidelity="estimate")
    assert (step.plan.batch, step.plan.micro_batch, step.plan.recompute, step.plan.zero) == (64, 2, "full", 3)
    assert any("auto" in note and "train_batch_size" in note for note in step.notes)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("--micro-batch-size 1", f"--micro-batch-size {'9' * 5000}"), "; it takes a whole number"),
        (
            ("--bf16", "--bf16 --pipeline-model-parallel-layout 'Et*x|tL'"),
            r"layout is 'Et\*x\|tL'; it takes stages like",
        ),
        (("--micro-batch-size 1", "--micro-batch-size one"), "--micro-batch-size is 'one'; it takes a whole number"),
        (
            ("--micro-batch-size 1", "--micro-batch-size $MBS"),
            r"--micro-batch-size is \$MBS; the script does not set its variable; state it, like --define MBS=8",
        ),
        (
            ("--bf16", "--bf16 --recompute-granularity some"),
            "recompute-granularity is 'some'; it takes one of full, se",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_file(change, rule, tmp_path):
    (tmp_path / "pretrain.sh").write_text(SCRIPT.replace(*change))
    with pytest.raises(ConfigError, match=f"pretrain.sh.*{rule}"):
        weft.read_launch(tmp_path / "pretrain.sh")


def test_what_contradicts_the_file_is_refused(tmp_path):
    (tmp_path / "pretrain.sh").write_text(SCRIPT)
    found = weft.read_launch(tmp_path / "pretrain.sh")
    with pytest.raises(InputError, match="the launch file has tp 4, not 8; change it there"):
        found.step("64xh100", tp=8)
    with pytest.raises(InputError, match="the launch file starts 64 GPUs, the system has 32"):
        found.step("32xh100")


@pytest.mark.parametrize(
    "text", ["", "hello world", "{}", "[a]\nb = 1\n", "echo --verbose", f"[training]\na = {'[' * 3000}"]
)
def test_a_file_that_starts_no_training_is_refused(text, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match="starts no training that Weft knows"):
        weft.read_launch(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("A=1\nA=('", "a quote"), ('X="', "a quote"), ("A=(\n", r"the array A=\("), ("\n${", r"\$\{"),
        ("cat <<EOF\nx", "the here-document 'EOF'"), ("if true; then\nx", "'if' has no 'fi'"), ("--x='", "a quote"),
        ("{ x", "'{' has no '}'"),
        ("case x in a)", "'case' has no 'esac'"), ("`x", "a `command`"), ("while true; do x", "'while' has no 'done'"),
    ],
)  # fmt: skip
def test_what_a_script_leaves_open_is_named_with_its_line(text, what):
    with pytest.raises(ConfigError, match=rf"run.sh: line \d: .*{what}.*; close it"):
        read_script(text, "run.sh")


@pytest.mark.parametrize("text", ["$((1/0)) --num-layers", "A=$((B)) --tp $A", "\\", "a ) b", "x=${!y}", "$", "fi"])
def test_odd_scripts_are_read_as_far_as_they_go(text):
    assert read_script(text).commands is not None


UNUSED = [
    ("--fp8-format hybrid --fp8-recipe custom", "--fp8-recipe custom"),
    ("--recompute-granularity selective --recompute-modules moe", "--recompute-modules moe"),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers 4", "--recompute-method block"),
    ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", "--recompute-num-layers 4"),
    ("--expert-tensor-parallel-size 2", "--expert-tensor-parallel-size 2"),
    ("--order tp-pp-dp", "--order"),
]


@pytest.mark.parametrize(("added", "named"), UNUSED)
def test_an_argument_of_megatron_without_a_model_of_it_is_named(added, named, tmp_path):
    (tmp_path / "pretrain.sh").write_text(SCRIPT.replace("--a-new-argument 3", added))
    found = weft.read_launch(tmp_path / "pretrain.sh")
    assert ", ".join([*found.not_modelled, *found.not_understood]) == named
    assert not {*found.not_modelled, *found.not_understood} & set(found.used)


def test_parameters_in_8_bits_are_gathered_in_8_bits(tmp_path):
    times = {}
    for added in ("", " --fp8-param-gather"):
        (tmp_path / "pretrain.sh").write_text(
            SCRIPT.replace("--a-new-argument 3", "--fp8-format hybrid --overlap-param-gather" + added)
        )
        found = weft.read_launch(tmp_path / "pretrain.sh")
        assert found.settings.get("keeps_low", False) is bool(added)
        times[added] = found.step("64xh100", fidelity="estimate").parts
    assert times[""] != times[" --fp8-param-gather"]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("embedding-type rope", "embedding-type mrope"), "position-embedding-type is 'mrope'; it takes one of"),
        (("--normalization RMSNorm", "--normalization Other"), "normalization is 'Other'; it takes one of LayerNorm"),
    ],
)
def test_an_architecture_that_weft_lacks_is_refused(change, rule, tmp_path):
    (tmp_path / "pretrain.sh").write_text(SCRIPT.replace(*change))
    with pytest.raises(ConfigError, match=rule):
        weft.read_launch(tmp_path / "pretrain.sh")


def test_what_overrides_turn_off_is_off_and_what_they_leave_is_the_frameworks(tmp_path):
    file = tmp_path / "overrides.txt"
    text = "model.tensor_model_parallel_size=4\ntrain.global_batch_size=128\ntrain.micro_batch_size=1\n"
    file.write_text(text)
    left = weft.read_launch(file)
    assert not {"sp", "zero"} & left.fields.keys()
    assert left.settings == {}
    assert any("recipe of the model" in note for note in left.notes)
    file.write_text(
        text + "model.sequence_parallel=False\nddp.use_distributed_optimizer=false\nddp.overlap_grad_reduce=False\n"
    )
    off = weft.read_launch(file)
    assert (off.fields["sp"], off.fields["zero"], off.settings) == (False, 0, {"dp_overlap": False})
    assert set(off.not_understood) == set()
    times = [each.step("64xh100", "llama-3-8b", sequence=4096, fidelity="estimate").seconds for each in (left, off)]
    assert times[1] > times[0]


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
"""


@pytest.mark.parametrize(
    ("added", "named"),
    [
        ('[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"\n', "selective_ac_option 2"),
        ("[parallelism]\nexpert_tensor_parallel_degree = 2\n", "expert_tensor_parallel_degree 2"),
        ('mixed_precision_reduce = "bfloat16"\n', "mixed_precision_reduce bfloat16"),
        ('dtype = "bfloat16"\n', "training.dtype"),
    ],
)
def test_a_setting_of_torchtitan_without_a_model_of_it_is_named(added, named, tmp_path):
    file = tmp_path / "train.toml"
    file.write_text(TITAN + added)
    found = weft.read_launch(file)
    assert [each for each in (*found.not_modelled, *found.not_understood) if named in each]


def test_torchtitan_without_compile_runs_more_kernels(tmp_path):
    file, times = tmp_path / "train.toml", []
    for enabled in ("true", "false"):
        file.write_text(f"{TITAN}[compile]\nenable = {enabled}\n")
        times.append(weft.read_launch(file).step("8xh100", fidelity="estimate").parts["element-wise"])
    assert times[1] > times[0]


def test_states_of_deepspeed_on_a_disk_are_named(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "torch_autocast": {"enabled": True},
        "zero_optimization": {
            "stage": 3, "offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "cpu"},
        },
    }))  # fmt: skip
    found = weft.read_launch(file)
    assert {
        "zero_optimization.offload_optimizer.device nvme", "zero_optimization.offload_param.device cpu",
        "torch_autocast.enabled true",
    } == set(found.not_modelled)  # fmt: skip
    assert found.not_modelled["zero_optimization.offload_param.device cpu"] == "less memory, longer"
    assert "offload" not in found.fields


def test_what_against_changes_replaces_what_the_file_states(tmp_path):
    file, answer = tmp_path / "pretrain.sh", tmp_path / "step.json"
    file.write_text(SCRIPT)
    command = ["step", "--launch", str(file), "--system", "64xh100", "--fidelity", "estimate", "--json", str(answer)]
    ran = CliRunner().invoke(cli, [*command, "--against", "tp=8", "--against", "recompute=full"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(answer.read_text())
    before, after = (weft.read_launch(file).step("64xh100", fidelity="estimate", instead=instead)
                     for instead in ({}, {"tp": 8, "recompute": "full"}))  # fmt: skip
    assert (after.plan.tp, after.plan.recompute, after.plan.batch) == (8, "full", before.plan.batch)
    assert before.seconds != after.seconds
    text = json.dumps(found)
    assert json.dumps(before.seconds) in text
    assert json.dumps(after.seconds) in text
