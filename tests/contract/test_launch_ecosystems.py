"""Every ecosystem whose launch files are read: the same run as by options, and each argument accounted for."""

import json
import tomllib
from importlib import resources

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft.core.errors import ConfigError, InputError
from weft.models.load import named_model
from weft.plan.documents import flatten
from weft.plan.read_launch import read_launch

AUTOMODEL = """recipe: SomeRecipe
step_scheduler: {global_batch_size: 64, local_batch_size: 2, max_steps: 30}
distributed: {strategy: fsdp2, dp_size: none, tp_size: 1, ep_size: 8, activation_checkpointing: true}
model:
  config: {pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B}
  backend: {attn: te, experts: gmm, dispatcher: deepep}
dataset: {seq_len: 2048}
"""
PRIMUS = """exp_name: ${EXP:first}
modules:
  pre_trainer:
    framework: megatron
    model: ${MODEL:llama3.1_8B}.yaml
    overrides: {micro_batch_size: 2, global_batch_size: 64, seq_length: "${LENGTH:4096}", lr: 1.0e-5,
                tensor_model_parallel_size: 2, add_bias_linear: false, save: null}
"""
PRIMUS_TITAN = """modules:
  pre_trainer:
    framework: torchtitan
    model: llama3.1_8B-fp8.yaml
    overrides:
      training: {local_batch_size: 2, seq_len: 4096, steps: 50}
      activation_checkpoint: {mode: full}
"""
NEMO = """run: {name: llama2_70b}
trainer: {num_nodes: 4, devices: 8, precision: bf16, max_steps: 10}
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  micro_batch_size: 1
  global_batch_size: 64
  encoder_seq_length: 4096
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
  activation: fast-swiglu
  normalization: rmsnorm
  bias: false
  optim: {name: distributed_fused_adam, lr: 1.0e-4}
"""
HYPERPOD = """run: {model_type: hf, name: mine}
trainer: {devices: 8, num_nodes: 2, precision: bf16, max_steps: 50}
model:
  model_type: llama_v3
  hf_model_name_or_path: meta-llama/Meta-Llama-3-8B
  train_batch_size: 2
  max_context_width: 4096
  activation_checkpointing: true
  shard_degree: 8
  sharding_strategy: hybrid_shard
  optim: {lr: 1.0e-4}
"""
HYPERPOD_TUNING = """run: {model_type: llm_finetuning_aws, name: mine}
trainer: {devices: 8, num_nodes: 1}
training_config:
  model_config: {model_name_or_path: meta-llama/Llama-3.1-8B-Instruct, attn_implementation: sdpa, peft_config: null}
  training_args:
    max_len: 4096
    micro_train_batch_size: 1
    train_batch_size: 8
    gradient_checkpointing: true
    learning_rate: 1.0e-4
    strategy: {fsdp_config: {sharding_strategy: FULL_SHARD, cpu_offload: false}}
"""
AXOLOTL = """base_model: Qwen/Qwen3-8B
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: auto
gradient_checkpointing: true
optimizer: adamw_torch_fused
learning_rate: 2e-5
fsdp_version: 2
fsdp_config: {reshard_after_forward: true, auto_wrap_policy: TRANSFORMER_BASED_WRAP}
attn_implementation: flash_attention_2
datasets: [{path: a, type: alpaca}]
"""
LLAMAFACTORY = """model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: full
deepspeed: zero3.json
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
learning_rate: 1.0e-5
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, fsdp_activation_checkpointing: true}
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
ZERO3 = json.dumps({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": True},
})  # fmt: skip
TRL = (
    "accelerate launch --config_file accelerate.yaml sft.py --model_name_or_path Qwen/Qwen3-8B --max_length 4096 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --learning_rate 2.0e-5 --packing\n"
)
TORCHRUN = (
    "torchrun --nproc_per_node=8 --master_port=1234 train.py --model_name_or_path Qwen/Qwen3-8B --bf16 True "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --model_max_length 4096 "
    '--gradient_checkpointing True --fsdp "full_shard auto_wrap" --save_steps 100\n'
)
RECIPE = (
    "./train.sh --nodes 2 --gpus-per-node 8 --recipe qwen3_8b_pretrain_16gpu_h100_bf16_config --mode pretrain "
    "--seq_length 4096 --max_steps 100 train.global_batch_size=512\n"
)
REGISTERED = (
    "MODULE=qwen3 CONFIG=qwen3_32b ./run_train.sh --parallelism.tensor_parallel_degree 2 "
    "--training.num_tokens_per_microbatch_per_dp_rank 16384 --compile.enable --training.steps 20\n"
)
TUNED = {"zero": 3, "micro_batch": 2, "sequence": 4096, "dtype": "bf16", "recompute": "full"}
CASES = {
    "automodel": (AUTOMODEL, "run.yaml", "8xh100", "qwen3-30b-a3b", {
        "ep": 8, "zero": 3, "batch": 64, "micro_batch": 2, "sequence": 2048, "recompute": "full"}),
    "primus": (PRIMUS, "run.yaml", "8xmi300x", "llama-3-8b", {
        "tp": 2, "batch": 64, "micro_batch": 2, "sequence": 4096}),
    "primus-torchtitan": (PRIMUS_TITAN, "run.yaml", "8xmi300x", "llama-3-8b", {
        "zero": 3, "batch": 16, "sequence": 4096, "recompute": "full", "precision": "fp8-tensorwise"}),
    "nemo": (NEMO, "run.yaml", "32xh100", "llama-2-70b", {
        "tp": 4, "pp": 2, "sp": True, "batch": 64, "micro_batch": 1, "sequence": 4096, "recompute": "full", "zero": 1}),
    "hyperpod": (HYPERPOD, "run.yaml", "16xh100", "llama-3-8b", {
        "zero": 3, "shard": 8, "batch": 32, "micro_batch": 2, "sequence": 4096, "recompute": "full", "dtype": "bf16"}),
    "hyperpod-tuning": (HYPERPOD_TUNING, "run.yaml", "8xh100", "llama-3-8b", {
        "zero": 3, "batch": 8, "micro_batch": 1, "sequence": 4096, "recompute": "full"}),
    "axolotl": (AXOLOTL, "run.yaml", "8xh100", "qwen3-8b", {**TUNED, "batch": 64}),
    "llamafactory": (LLAMAFACTORY, "run.yaml", "8xh100", "qwen3-8b", {**TUNED, "batch": 64}),
    "trl": (TRL, "run.sh", "8xh100", "qwen3-8b", {**TUNED, "batch": 64}),
    "trainer": (TORCHRUN, "run.sh", "8xh100", "qwen3-8b", {**TUNED, "batch": 64}),
    "torchtitan's registry": (REGISTERED, "run.sh", "8xh100", "qwen3-32b", {
        "zero": 3, "tp": 2, "sp": True, "micro_batch": 4, "batch": 16, "sequence": 4096, "recompute": "full",
        "loss_chunks": 8}),
    "megatron-bridge": (RECIPE, "run.sh", "16xh100", "qwen3-8b", {
        "tp": 1, "pp": 1, "zero": 1, "batch": 512, "micro_batch": 1, "sequence": 4096, "dtype": "bf16"}),
}  # fmt: skip
"""Files by ecosystem: text, name, machine, and the model and plan that they state."""
BESIDE = {"zero3.json": ZERO3, "accelerate.yaml": ACCELERATE}


@pytest.fixture
def write(tmp_path):
    def to(text, name):
        for other, content in BESIDE.items():
            (tmp_path / other).write_text(content)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return to


def names_of(found):
    """All names that a reading accounts for, without values."""
    named = (*found.used, *found.without_effect, *found.not_modelled, *found.not_understood)
    return {each.split(" ")[0].removeprefix("--") for each in named}


@pytest.mark.parametrize("kind", CASES)
def test_a_file_is_the_step_of_the_same_options(kind, write):
    text, name, machine, model, plan = CASES[kind]
    found = read_launch(write(text, name), system=machine)
    step = found.step(machine, fidelity="estimate")
    assert (step.model.name, found.not_understood) == (model, ())
    assert {field: getattr(step.plan, field) for field in plan} == plan
    assert step.seconds > 0


@pytest.mark.parametrize("kind", [kind for kind, case in CASES.items() if case[1] == "run.yaml"])
def test_every_setting_is_accounted_for_and_an_unknown_one_is_named(kind, write):
    import yaml

    text, name, machine, _, _ = CASES[kind]
    path = write(text, name)
    document = yaml.safe_load(text)
    stated = {each for each, _ in flatten(document, name)}
    if "modules" in document:
        stated = {each.partition("overrides.")[2] for each in stated if "overrides." in each}
    found = read_launch(path, system=machine)
    assert stated <= names_of(found)
    for reason in found.without_effect.values():
        assert reason
    target = document
    while kind.startswith("primus") and "overrides" not in target:
        target = next(value for value in target.values() if isinstance(value, dict))
    (target["overrides"] if kind.startswith("primus") else target)["never_heard_of"] = 3
    path.write_text(yaml.safe_dump(document))
    assert [each for each in read_launch(path, system=machine).not_understood if each.startswith("never_heard_of")]


@given(
    kind=st.sampled_from([kind for kind, case in CASES.items() if case[1] == "run.yaml" and "modules:" not in case[0]]),
    name=st.from_regex(r"zz_[a-z]{1,8}", fullmatch=True),
    value=st.one_of(st.integers(-5, 5), st.booleans(), st.none(), st.sampled_from(["auto", "none", "x y", ""])),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_setting_is_lost_whatever_its_value(kind, name, value, write):
    import yaml

    text, file, machine, _, _ = CASES[kind]
    document = {**yaml.safe_load(text), name: value}
    found = read_launch(write(yaml.safe_dump(document), file), system=machine)
    assert name in names_of(found)


def test_variables_of_a_yaml_have_their_defaults_and_are_defined(write):
    path = write(PRIMUS, "run.yaml")
    assert read_launch(path).fields["sequence"] == 4096
    assert read_launch(path, define={"LENGTH": "8192", "MODEL": "llama3_70B"}).model.name == "llama-3-70b"
    with pytest.raises(InputError, match="has no variable \\$\\{OTHER\\}; define one that it has"):
        read_launch(path, define={"OTHER": "1"})


def test_what_the_launcher_does_by_itself_is_said_and_options_state_it(write):
    found = read_launch(write(LLAMAFACTORY, "run.yaml"))
    assert found.defaults == {"recompute": "full"}
    step = found.step("8xh100", fidelity="estimate")
    assert step.plan.recompute == "full"
    assert any("llamafactory's default unless an option states it: recompute full" in note for note in step.notes)
    assert found.step("8xh100", recompute="none", fidelity="estimate").plan.recompute == "none"


def test_a_deepspeed_file_that_is_not_there_is_named(write):
    found = read_launch(write(LLAMAFACTORY.replace("zero3.json", "other/zero9.json"), "run.yaml"))
    assert "deepspeed other/zero9.json (no such file beside the launch file" in found.not_understood[0]
    assert found.step("8xh100", fidelity="estimate").plan.zero == 3


def test_settings_of_deepspeed_in_place_are_those_of_its_file(write):
    inline = LLAMAFACTORY.replace("deepspeed: zero3.json", f"deepspeed: {ZERO3}")
    inline, named = read_launch(write(inline, "run.yaml")), read_launch(write(LLAMAFACTORY, "named.yaml"))
    assert (inline.framework, inline.fields) == (named.framework, named.fields)


def test_values_that_contradict_or_that_nobody_knows_are_refused_with_their_names(write):
    with pytest.raises(ConfigError, match=r"cutoff_len is 4096, and max_length is 512; state one of them"):
        read_launch(write(LLAMAFACTORY + "max_length: 512\n", "run.yaml"))
    with pytest.raises(ConfigError, match=r"bf16 is 'perhaps'; it takes one of true, false, auto, full"):
        read_launch(write(LLAMAFACTORY.replace("bf16: true", "bf16: perhaps"), "run.yaml"))
    with pytest.raises(InputError, match=r"is not among the \d+ .*; like it are qwen3_8b_pretrain"):
        read_launch(write(RECIPE.replace("16gpu_h100_bf16", "16gpu_h100_bf17"), "run.sh"))


def test_a_trainers_megatron_arguments_are_those_of_its_plan(write):
    text = LLAMAFACTORY.replace(
        "deepspeed: zero3.json\n", "tensor_model_parallel_size: 4\nrecompute_granularity: full\n"
    )
    step = read_launch(write(text, "run.yaml")).step("8xh100", fidelity="estimate")
    assert (step.plan.tp, step.plan.batch, step.plan.micro_batch, step.plan.recompute) == (4, 16, 2, "full")


def test_arguments_beside_a_named_file_replace_its_settings(write):
    write(LLAMAFACTORY, "train.yaml")
    path = write("llamafactory-cli train train.yaml per_device_train_batch_size=1 cutoff_len=2048\n", "run.sh")
    assert {name: read_launch(path).fields[name] for name in ("micro_batch", "sequence", "zero")} == {
        "micro_batch": 1, "sequence": 2048, "zero": 3,
    }  # fmt: skip
    write(AUTOMODEL, "am.yaml")
    path = write("automodel finetune llm -c am.yaml --step_scheduler.local_batch_size 4\n", "run.sh")
    assert read_launch(path).fields["micro_batch"] == 4


def test_a_script_that_a_script_sources_is_followed(write):
    write("TP=2\n", "settings.sh")
    model = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 1024 --bf16"
    batch = "--micro-batch-size 1 --global-batch-size 8"
    run = f"torchrun pretrain_gpt.py {model} {batch} --tensor-model-parallel-size $TP\n"
    path = write('DIR="$(cd $(dirname $0) && pwd)"\nsource "${DIR}/settings.sh"\n' + run, "run.sh")
    assert read_launch(path).fields["tp"] == 2
    absent = read_launch(write("source other.sh\nTP=2\n" + run, "run.sh"))
    assert absent.notes[0].startswith("The script sources other.sh, not found beside it")


RECIPES = tomllib.loads(resources.files("weft.plan").joinpath("recipes.toml").read_text())["recipes"]


@pytest.mark.parametrize("name", [*RECIPES][::12])
def test_every_recipe_of_megatron_bridge_is_a_plan(name, write):
    found = read_launch(write(f"train.sh --recipe {name}\n", "run.sh"))
    assert found.not_understood == ()
    gpus = int(RECIPES[name].split()[1])
    if gpus:
        fields = found.plan(gpus, {})
        assert fields["batch"] % fields.get("micro_batch", 1) == 0
        assert gpus % (fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)) == 0
    assert found.model is not None
    assert weft.load_model(found.model).parameters > 0


def test_references_relative_names_and_products_of_a_yaml_are_resolved(write):
    text = (
        "model:\n  hidden_size: 4096\n  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n  seq_length: ${data.length}\n"
    )
    text += "  tensor_model_parallel_size: 2\n  micro_batch_size: 1\n  global_batch_size: 16\n  num_layers: 4\n"
    text += "  num_attention_heads: 32\n  vocab_size: 32000\ndata: {length: 1024}\n"
    found = read_launch(write(text, "run.yaml"))
    assert (found.model.ffn, found.fields["sequence"]) == (16384, 1024)


def test_reinforcement_learning_and_unknown_yaml_are_refused_with_what_to_do(write):
    with pytest.raises(InputError, match="starts reinforcement learning by verl, whose steps are rollouts and updates"):
        read_launch(write("a: {actor_rollout_ref: {actor: {ppo_mini_batch_size: 8}}}\n", "run.yaml"))


def test_what_turns_recomputation_or_a_format_on_suffices(write):
    both = AXOLOTL.replace("gradient_checkpointing: true", "gradient_checkpointing: false\nfloat16: false")
    path = write(both.replace("{reshard", "{activation_checkpointing: true, reshard"), "run.yaml")
    assert read_launch(path).fields["recompute"] == "full"
    with pytest.raises(ConfigError, match="bf16 and fp16 contradict each other"):
        read_launch(write(AXOLOTL + "float16: true\n", "run.yaml"))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b"), ("/data/Meta-Llama-3-70B", "llama-3-70b"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b"), ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"), ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3-70b"), ("llama3.1_8B.yaml", "llama-3-8b"),
        ("some/Model-9B", ""), ("Qwen/Qwen2.5-7B-Instruct-1M", ""),
    ],
)  # fmt: skip
def test_names_of_releases_are_those_of_models_with_the_same_dimensions(name, model):
    assert named_model(name) == model
