"""Training launches that newcomers brought: launchers' own arguments, several trainings, settings of older releases."""

import pytest

import weft
from weft.core.errors import InputError
from weft.plan.read_launch import read_launch

PROGRAM = (
    "sft.py --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096 --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 2 --gradient_checkpointing"
)


def read(tmp_path, text, **files):
    for name, content in files.items():
        (tmp_path / name.replace("__", ".")).write_text(content)
    file = tmp_path / "run.sh"
    file.write_text(text)
    return read_launch(file)


# -- accelerate


@pytest.mark.parametrize(
    ("arguments", "yaml"),
    [
        ("--use_deepspeed --zero_stage 3", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n"),
        (
            "--use_deepspeed --deepspeed_config_file ds.json",
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n",
        ),
        (
            "--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP",
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
        ),
        ("--use_deepspeed", "distributed_type: DEEPSPEED\n"),
        ("--multi_gpu", "distributed_type: MULTI_GPU\n"),
        (
            "--use_deepspeed --zero_stage=2 --offload_optimizer_device cpu",
            "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}\n",
        ),
    ],
)
def test_arguments_of_accelerate_are_the_settings_of_its_yaml(tmp_path, arguments, yaml):
    ds = '{"zero_optimization": {"stage": 3, "overlap_comm": true}, "bf16": {"enabled": true}}'
    typed = read(tmp_path, f"accelerate launch --num_processes 8 {arguments} {PROGRAM}\n", ds__json=ds)
    filed = read(
        tmp_path, f"accelerate launch --config_file acc.yaml {PROGRAM}\n", acc__yaml=f"{yaml}num_processes: 8\n"
    )
    for name in ("framework", "fields", "defaults", "settings", "style", "gpus", "accumulation", "not_understood"):
        assert getattr(typed, name) == getattr(filed, name), name
    assert not typed.not_understood


def test_deepspeed_by_accelerate_shards_by_stage_2_unless_it_says_another(tmp_path):
    found = read(tmp_path, f"accelerate launch --use_deepspeed {PROGRAM}\n")
    assert (found.framework, found.defaults["zero"]) == ("deepspeed-zero3", 2)


def test_settings_of_a_sharding_that_accelerate_does_not_choose_have_no_effect(tmp_path):
    found = read(tmp_path, f"accelerate launch --zero_stage 3 --num_processes 8 {PROGRAM}\n")
    assert "zero" not in found.fields
    assert found.defaults["zero"] == 0
    assert found.without_effect["zero_stage"] == "of --use_deepspeed, which is not chosen"


def test_messages_name_an_argument_of_accelerate_as_the_command_has_it(tmp_path):
    with pytest.raises(InputError, match="--zero_stage is 'three'"):
        read(tmp_path, f"accelerate launch --use_deepspeed --zero_stage three {PROGRAM}\n")


def test_a_sharding_of_accelerate_is_read_before_a_module_too(tmp_path):
    program = PROGRAM.replace("sft.py", "-m mine.sft")
    for launcher in ("accelerate launch", "python -m accelerate.commands.launch", "srun /opt/bin/accelerate launch"):
        assert read(tmp_path, f"{launcher} --use_deepspeed --zero_stage 3 {program}\n").fields["zero"] == 3


def test_a_command_that_a_scheduler_starts_behind_two_dashes_is_read(tmp_path):
    own = f"accelerate launch --use_deepspeed --zero_stage 3 --num_processes 8 {PROGRAM}"
    found = read(tmp_path, f"python submit.py --cluster a/b --num_nodes 2 -- {own}\n")
    assert (found.framework, found.fields["zero"], found.gpus) == ("deepspeed-zero3", 3, 8)
    assert not found.not_understood
    note = "Line 1 hands on its command behind --; arguments before it do not count: --cluster a/b, --num-nodes 2."
    assert note in found.notes


# -- torchtitan

TITAN = """[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[training]
batch_size = 21
seq_len = 8192
warmup_steps = 500
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 32
tensor_parallel_degree = 8
compile = true
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""


@pytest.mark.parametrize(
    "script",
    [
        "torchrun --nproc_per_node 8 train.py --job.config_file x.toml --training.seq_len 4096",
        "C=./x.toml\ntorchrun --nproc_per_node 8 train.py --job.config_file $C --training.seq_len=4096",
        'C=${C:-"x.toml"}\nsrun torchrun -m torchtitan.train --job.config_file ${C} --training.seq_len 4096',
    ],
)
def test_overrides_of_torchtitan_count_however_the_script_names_its_toml(tmp_path, script):
    assert read(tmp_path, script, x__toml=TITAN).fields["sequence"] == 4096


def test_overrides_behind_a_script_of_torchtitan_count(tmp_path):
    (tmp_path / "x.toml").write_text(TITAN)
    file = tmp_path / "run.sh"
    file.write_text('C=x.toml\ntorchrun train.py --job.config_file $C "$@"\n')
    found = read_launch(file, arguments=("--training.seq_len", "2048", "--training.strange", "3", "--compile.enable"))
    assert found.fields["sequence"] == 2048
    assert found.not_understood == ("training.strange",)


def test_degrees_and_batches_of_torchtitan_of_2024_are_read(tmp_path):
    found = read(tmp_path, "torchrun train.py --job.config_file x.toml", x__toml=TITAN)
    assert (found.gpus, found.fields["tp"], found.fields["pp"], found.replica_groups) == (512, 8, 1, 2)
    plan = found.plan(512, {})
    assert (plan["batch"], plan["shard"], plan["micro_batch"]) == (1344, 32, 21)
    assert not found.not_understood
    assert found.used["training.tensor_parallel_degree"] == "8"


def test_an_old_setting_of_torchtitan_beside_another_value_of_todays_is_named(tmp_path):
    script = "torchrun train.py --job.config_file x.toml --parallelism.tensor_parallel_degree 4"
    found = read(tmp_path, script, x__toml=TITAN)
    assert found.fields["tp"] == 4
    assert found.not_understood == ("training.tensor_parallel_degree",)


# -- several commands

FACTORY = "llamafactory-cli train --model_name_or_path Qwen/Qwen3-8B --stage sft --finetuning_type full --bf16"


def test_a_chat_is_no_training(tmp_path):
    chat = "llamafactory-cli chat --model_name_or_path Qwen/Qwen3-8B --template qwen\n"
    found = read(tmp_path, f"{chat}{FACTORY} --cutoff_len 512 --per_device_train_batch_size 4\n")
    assert (found.fields["micro_batch"], found.fields["sequence"]) == (4, 512)
    with pytest.raises(InputError, match="starts no training"):
        read(tmp_path, chat)


@pytest.mark.parametrize("program", ["train_chat.py", "serve/run.py", "tools/eval/sft.py"])
def test_a_program_that_trains_is_one_whatever_its_name_has_beside_that(tmp_path, program):
    assert read(tmp_path, f"torchrun {PROGRAM.replace('sft.py', program)}\n").fields["sequence"] == 4096


@pytest.mark.parametrize("program", ["eval.py", "scripts/generate_answers.py", "-m mine.evaluate"])
def test_a_program_that_uses_a_model_does_not_count_beside_its_training(tmp_path, program):
    use = f"python {program} --model_name_or_path a/b --max_length 64 --per_device_train_batch_size 7\n"
    assert read(tmp_path, f"{use}torchrun {PROGRAM}\n").fields["micro_batch"] == 1


def test_several_trainings_of_a_trainer_that_differ_are_refused_with_their_lines(tmp_path):
    first, second = (f"{FACTORY} --cutoff_len {length} --per_device_train_batch_size 4\n" for length in (512, 8192))
    with pytest.raises(InputError, match=r"in lines 1 and 3, which differ in cutoff_len; keep one.*--launch 'llama"):
        read(tmp_path, f"{first}echo done\n{second}")


def test_trainings_of_all_weights_and_of_adapters_differ(tmp_path):
    train = f"{FACTORY} --per_device_train_batch_size 4\n"
    with pytest.raises(InputError, match="in lines 1 and 2, which differ in finetuning_type"):
        read(tmp_path, f"{train}{train.replace('full', 'lora')}")


def test_trainings_whose_steps_are_the_same_count_once(tmp_path):
    rates = (
        "for rate in 1e-5 2e-5; do\n"
        f"{FACTORY} --per_device_train_batch_size 2 --cutoff_len 512 --learning_rate $rate\ndone\n"
    )
    found = read(tmp_path, rates)
    assert found.fields["sequence"] == 512
    assert "The training command is that in line 2; the others do not count." in found.notes


def test_a_loop_over_trainings_that_differ_is_refused_by_its_line(tmp_path):
    with pytest.raises(InputError, match="in line 2, which differ in cutoff_len"):
        read(
            tmp_path,
            "for length in 512 1024; do\n" + f"{FACTORY} --per_device_train_batch_size 2 --cutoff_len $length\ndone\n",
        )


# -- memory


def test_changes_that_give_no_valid_plan_are_no_remedies():
    plan = {"shard": 8, "zero": 3, "batch": 8, "sequence": 8192}
    found = weft.memory("llama-3-70b", "8xh100", **plan)
    assert found.peak > found.capacity
    assert not any("dp 4" in words for words in found.remedies)


# -- models, losses and frameworks by other names


def test_a_model_name_that_a_trainers_own_program_takes_is_the_model(tmp_path):
    script = (
        'base_model="Qwen/Qwen2.5-32B-Instruct"\ntorchrun --nproc-per-node 8 sft.py --block_size=32768 '
        '--per_device_train_batch_size=1 --model_name=${base_model} --fsdp="full_shard auto_wrap" '
        '--fsdp_config="fsdp.json" --bf16=True\n'
    )
    found = read(tmp_path, script, fsdp__json='{"activation_checkpointing": true}')
    assert found.model.name == "qwen2.5-32b"
    assert (found.fields["sequence"], found.fields["zero"], found.fields["recompute"]) == (32768, 3, "full")
    assert not found.not_understood


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n", "fused_cross_entropy"),
        ("cut_cross_entropy: true\n", "fused_cross_entropy"),
        ("plugins: [a.CutPlugin]\n", "eager_cross_entropy"),
        (
            "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\ncut_cross_entropy: false\n",
            "eager_cross_entropy",
        ),
    ],
)
def test_axolotls_cut_cross_entropy_is_a_loss_fused_with_the_output_layer(tmp_path, settings, loss):
    file = tmp_path / "a.yaml"
    file.write_text(f"base_model: Qwen/Qwen3-8B\nsequence_len: 8192\nmicro_batch_size: 4\n{settings}")
    found = read_launch(file)
    assert found.style["loss"] == loss
    assert not found.not_understood


def test_a_refusal_of_openrlhf_gives_the_command_that_times_its_updates(tmp_path):
    script = (
        "deepspeed --module openrlhf.cli.train_sft --train_batch_size 128 --micro_train_batch_size 1 "
        "--pretrain Qwen/Qwen2.5-72B-Instruct --max_len 12288 --zero_stage 3 --gradient_checkpointing --adam_offload\n"
    )
    with pytest.raises(InputError) as caught:
        read(tmp_path, script)
    command = (
        "weft step qwen2.5-72b --framework deepspeed-zero3 --zero 3 --batch 128 --micro-batch 1 --sequence 12288 "
        "--recompute full --offload optimizer"
    )
    assert command in str(caught.value)


def test_refusals_of_unknown_kinds_give_a_command_with_options(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("tokens: {micro_batch_size: 4}\nparallelism_of_mine: {tp: 2}\n")
    with pytest.raises(InputError, match=r"kind unknown.*weft step llama-3-8b --system"):
        read_launch(file)


# -- what a shell knows

TRAINS = (
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50304 "
    "--seq-length 1024 --micro-batch-size 1 --global-batch-size 8 --bf16\n"
)


@pytest.mark.parametrize("test", ['[ -n "${!name+x}" ]', '[ -n "${!name}" ]', "[[ -v TP ]]"])
def test_a_variable_that_another_names_is_unset_until_somebody_sets_it(tmp_path, test):
    check = f'check() {{\n  local name="$1"\n  if {test}; then exit 1; fi\n}}\n'
    assert read(tmp_path, f"{check}check TP\n{TRAINS}").fields["sequence"] == 1024
    with pytest.raises(InputError, match="exits in line 3"):
        read(tmp_path, f"{check}TP=2\ncheck TP\n{TRAINS}")


def test_a_variable_that_another_names_has_its_value(tmp_path):
    found = read(tmp_path, f"LONG=2048\nwhich=LONG\n{TRAINS.replace('1024 --micro', '${!which} --micro')}")
    assert found.fields["sequence"] == 2048


@pytest.mark.parametrize(
    "condition",
    [
        'if [ -z "$SPACE" ]; then\n  exit 1\nfi',
        '[ -n "$SPACE" ] || exit 1',
        'if [ -n "$SPACE" ]; then\n  echo good\nelse\n  exit 1\nfi',
        'need() {\n  local what="$1"\n  if [ -z "${!what}" ]; then exit 1; fi\n}\nneed SPACE',
    ],
)
def test_a_script_that_exits_names_the_variables_that_decide_it(tmp_path, condition):
    with pytest.raises(InputError, match=r"state what decides it: --define SPACE=VALUE$"):
        read(tmp_path, f"{condition}\n{TRAINS}")
    assert read_launch(tmp_path / "run.sh", define={"SPACE": "/a"}).fields["sequence"] == 1024


def test_a_script_with_slurms_lines_is_a_job(tmp_path):
    guard = 'if [ -z "$SLURM_JOB_ID" ]; then\n  sbatch "$0"\n  exit\nfi\n'
    assert read(tmp_path, f"#!/bin/bash\n#SBATCH --nodes=4\n{guard}{TRAINS}").fields["sequence"] == 1024
    with pytest.raises(InputError, match="--define SLURM_JOB_ID=VALUE"):
        read(tmp_path, f"{guard}{TRAINS}")


@pytest.mark.parametrize(
    "count",
    [
        "$(nvidia-smi -L | wc -l)",
        "`nvidia-smi --query-gpu=name --format=csv,noheader | wc -l`",
        '$(python -c "import torch; print(torch.cuda.device_count())")',
    ],
)
def test_a_script_counts_the_gpus_of_a_node_of_the_system(tmp_path, count):
    file = tmp_path / "run.sh"
    file.write_text(f"n={count}\n{TRAINS.replace('size 8 ', 'size $((n * 3)) ')}")
    assert read_launch(file, system="16xh100").fields["batch"] == 24
    with pytest.raises(InputError, match="global-batch-size is"):
        read_launch(file)


# -- NeMo-RL

SFT = """sft: {max_num_steps: 60}
policy:
  model_name: meta-llama/Llama-3.2-1B
  train_global_batch_size: 32
  train_micro_batch_size: 1
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, context_parallel_size: 1, sequence_parallel: false,
                activation_checkpointing: true, dp_replicate_size: 2}
  megatron_cfg:
    enabled: false
    activation_checkpointing: false
    recompute_granularity: full
    tensor_model_parallel_size: 1
    pipeline_model_parallel_size: 1
    optimizer: {optimizer: adam, lr: 5.0e-6, use_distributed_optimizer: true}
    distributed_data_parallel_config: {overlap_grad_reduce: true, data_parallel_sharding_strategy: optim_grads_params}
    peft: {enabled: false, dim: 8}
    fp8_cfg: {enabled: false, fp8: e4m3}
logger: {log_dir: logs}
cluster: {gpus_per_node: 4, num_nodes: 2}
"""


def test_fine_tuning_by_nemo_rl_is_read_by_its_part_that_is_on(tmp_path):
    (tmp_path / "sft.yaml").write_text(SFT)
    found = read_launch(tmp_path / "sft.yaml")
    assert (found.framework, found.model.name, found.gpus) == ("automodel", "llama-3.2-1b", 8)
    plan = found.plan(8, {})
    expected = {"tp": 2, "zero": 3, "batch": 32, "micro_batch": 1, "sequence": 1024, "recompute": "full", "shard": 2}
    assert {name: plan[name] for name in expected} == expected
    assert not found.not_understood


@pytest.mark.parametrize(("again", "recompute"), [("true", "full"), ("false", "none")])
def test_a_recipe_of_nemo_rl_changes_what_its_base_file_states(tmp_path, again, recompute):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "sft.yaml").write_text(SFT)
    file = tmp_path / "recipes" / "mine.yaml"
    file.write_text(
        "defaults: ../sft.yaml\npolicy:\n  model_name: meta-llama/Llama-3.1-70B\n  train_global_batch_size: 512\n"
        "  dtensor_cfg: {enabled: false}\n  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, "
        f"pipeline_model_parallel_size: 2, activation_checkpointing: {again}}}\ncluster: {{num_nodes: 16}}\n"
    )
    found = read_launch(file)
    assert (found.framework, found.model.name, found.gpus) == ("megatron-bridge", "llama-3-70b", 64)
    expected = {"tp": 4, "pp": 2, "zero": 1, "batch": 512, "micro_batch": 1, "sequence": 1024}
    assert {name: found.fields[name] for name in expected} == expected
    assert found.fields.get("recompute", "none") == recompute
    assert not found.not_understood
    (tmp_path / "sft.yaml").unlink()
    with pytest.raises(InputError, match=r"not found beside it: \.\./sft\.yaml"):
        read_launch(file)


def test_other_algorithms_of_nemo_rl_are_refused(tmp_path):
    file = tmp_path / "grpo.yaml"
    file.write_text(SFT.replace("sft: {max_num_steps: 60}", "grpo: {num_prompts_per_step: 32}"))
    with pytest.raises(InputError, match="starts grpo of NeMo-RL"):
        read_launch(file)


def test_settings_most_of_which_are_not_understood_are_refused(tmp_path):
    strange = "".join(f"  setting_{place}: {place}\n" for place in range(20))
    file = tmp_path / "a.yaml"
    file.write_text(f"mine:\n  tensor_model_parallel_size: 4\n  global_batch_size: 8\n{strange}")
    with pytest.raises(InputError, match=r"22 of them are not understood, such as mine.tensor.*weft step"):
        read_launch(file)


TRAINER = "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen3-8B --bf16 true --max_seq_length 4096"


@pytest.mark.parametrize(
    ("line", "batch", "micro_batch", "sequence"),
    [
        (TRAINER, 64, 8, 4096),
        (f"{TRAINER} --gradient_accumulation_steps 4", 256, 8, 4096),
        (f"{TRAINER} --per_device_train_batch_size 1", 8, 1, 4096),
        ("trl sft --model_name_or_path Qwen/Qwen3-8B --dataset_name some/data", 64, 8, 1024),
        ("llamafactory-cli train --model_name_or_path Qwen/Qwen3-8B --stage sft", 64, 8, 2048),
    ],
)
def test_what_a_trainer_is_not_told_is_its_own_default(tmp_path, line, batch, micro_batch, sequence):
    plan = read(tmp_path, line).plan(8, {})
    assert (plan["batch"], plan["micro_batch"], plan["sequence"]) == (batch, micro_batch, sequence)


def test_a_stated_batch_takes_the_place_of_a_trainers_default(tmp_path):
    assert "micro_batch" not in read(tmp_path, TRAINER).plan(8, {"batch": 16})
