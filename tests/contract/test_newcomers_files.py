"""Files that newcomers brought: charts, base files, names of releases, tokenizers."""

import pytest

import weft
from weft.core.errors import InputError
from weft.models.load import load_model, named_model
from weft.models.parallel.memory import shard_size
from weft.plan.read_launch import read_launch
from weft.plan.read_server import read_server
from weft.serving.load import Load

RECIPE = """defaults: [/base/llmft/default, /base/llmft/algorithm, _self_]
run: {name: mine}
trainer: {num_nodes: 2}
training_config:
  model_config: {model_name_or_path: deepseek-ai/DeepSeek-R1-Distill-Llama-70B}
  training_args: {train_batch_size: 32}
"""


def test_a_recipe_of_hyperpod_is_read_with_its_base_files(tmp_path):
    file = tmp_path / "recipes" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(RECIPE)
    alone = read_launch(file)
    assert alone.model.name == "llama-3-70b"
    assert {name: alone.fields[name] for name in ("batch", "micro_batch", "sequence", "recompute")} == {
        "batch": 32,
        "micro_batch": 1,
        "sequence": 4096,
        "recompute": "full",
    }
    assert alone.gpus == 16
    assert any("2 of 2 base files are not there" in note for note in alone.notes)
    base = tmp_path / "base" / "llmft"
    base.mkdir(parents=True)
    (base / "default.yaml").write_text("# @package recipes\ntrainer: {devices: 4, num_nodes: 1}\n")
    (base / "algorithm.yaml").write_text(
        "# @package recipes.training_config.training_args\nmax_len: 8192\ntrain_batch_size: 8\n"
        "micro_train_batch_size: 2\ngradient_checkpointing: false\n"
    )
    found = read_launch(file)
    assert found.gpus == 8
    assert (found.fields["batch"], found.fields["micro_batch"], found.fields["sequence"]) == (32, 2, 8192)
    assert found.fields["recompute"] == "none"
    assert not any("base files" in note for note in found.notes)


CHART = """servingEngineSpec:
  modelSpec:
  - name: a
    repository: vllm/vllm-openai
    tag: v0.8.5
    modelURL: Qwen/Qwen2.5-14B-Instruct
    replicaCount: 2
    requestGPU: 4
    vllmConfig:
      v0: "1"
      dtype: half
      tensorParallelSize: 4
      maxModelLen: 8192
      gpuMemoryUtilization: 0.9
      enableChunkedPrefill: false
      extraArgs: ["--enforce-eager", "--max-num-seqs=32"]
"""


def test_values_of_vllms_helm_chart_are_a_server(tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text(CHART)
    found = read_server(file)
    plan = found.plan()
    assert found.model.name == "qwen2.5-14b"
    assert (plan.tp, plan.replicas, plan.max_model_len, plan.max_num_seqs) == (4, 2, 8192, 32)
    assert (plan.dtype, plan.enforce_eager) == ("fp16", True)
    assert not found.not_understood


def test_roles_of_a_helm_chart_are_those_of_its_kv_connector(tmp_path):
    spec = """  - name: {0}
    modelURL: meta-llama/Llama-3.1-8B-Instruct
    replicaCount: {1}
    vllmConfig: {{tensorParallelSize: 1}}
    lmcacheConfig: {{enabled: true, kvRole: "kv_{2}"}}
"""
    file = tmp_path / "values.yaml"
    file.write_text(
        "servingEngineSpec:\n  modelSpec:\n" + spec.format("p", 2, "producer") + spec.format("d", 1, "consumer")
    )
    plan = read_server(file).plan()
    assert (plan.prefill_replicas, plan.replicas - (plan.prefill_replicas or 0)) in {(2, 1), (2, -1)}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
        ("/models/Llama-4-Maverick-17B-128E-Instruct-FP8", "llama-4-maverick"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
    ],
)
def test_releases_with_known_dimensions_are_known_by_name(name, model):
    assert named_model(name) == model


@pytest.mark.parametrize(
    ("name", "billion", "active"), [("llama-4-scout", 107.8, 17.2), ("llama-4-maverick", 400.7, 17.2)]
)
def test_llama_4_has_its_published_parameters(name, billion, active):
    model = load_model(name)
    assert model.parameters / 1e9 == pytest.approx(billion, rel=0.005)
    assert weft.load_model(name).experts in (16, 128)


def test_flavors_of_torchtitan_are_names_of_models_and_its_old_compile_switch_is_read(tmp_path):
    text = """[model]
name = "llama4"
flavor = "17bx16e"
[training]
local_batch_size = 1
seq_len = 4096
compile = {0}
[parallelism]
tensor_parallel_degree = 8
"""
    file = tmp_path / "run.toml"
    steps = []
    for compiled in ("true", "false"):
        file.write_text(text.format(compiled))
        found = read_launch(file)
        assert found.model.name == "llama-4-scout"
        assert not found.not_understood
        steps.append(found.step("64xh100", fidelity="estimate").seconds)
    assert steps[0] < steps[1]


def test_a_tokenizer_of_known_vocabulary_completes_the_model(tmp_path):
    words = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    )
    assert read_launch(f"{words} --tokenizer-type MistralTokenizer").model.vocabulary == 32000
    named = read_launch(f"{words} --tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-8B")
    assert named.model.vocabulary == 151936
    assert read_launch(f"{words} --tokenizer-type HuggingFaceTokenizer --tokenizer-model /mine").model is None


def test_states_of_8_bits_are_a_quarter_of_the_memory_of_states(tmp_path):
    text = """base_model: Qwen/Qwen3-8B
sequence_len: 2048
micro_batch_size: 1
gradient_checkpointing: true
bf16: true
fsdp_config: {{fsdp_version: 2, reshard_after_forward: true}}
fsdp_version: 2
optimizer: {0}
"""
    file = tmp_path / "axolotl.yaml"
    peaks = []
    for optimizer in ("adamw_torch", "adamw_torch_8bit"):
        file.write_text(text.format(optimizer))
        found = read_launch(file)
        assert not found.not_modelled
        peaks.append(found.step("8xh100", fidelity="estimate").memory.peak)
    states = load_model("qwen3-8b").parameters * 8 / 8  # of 8 GPUs
    assert peaks[0] - peaks[1] >= 0.75 * states


def test_a_comment_behind_a_line_that_goes_on_ends_the_command(tmp_path):
    file = tmp_path / "serve.sh"
    file.write_text(
        "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 \\\n"
        "# --disable-cuda-graph \\\n--disable-radix-cache \\\n--tp 4\n"
    )
    found = read_server(file)
    assert found.plan().tp == 2
    assert not {*found.used, *found.not_understood} & {"--disable-cuda-graph", "--disable-radix-cache"}


def test_reinforcement_learning_of_a_script_is_refused_with_what_to_do(tmp_path):
    file = tmp_path / "grpo.sh"
    file.write_text(
        "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_batch_size=64 "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4\n"
    )
    with pytest.raises(InputError, match="rollouts by weft serve"):
        read_launch(file)


def test_a_stated_static_share_of_sglang_is_weights_and_cache_alone():
    load = Load(concurrency=2, input_len=128, output_len=8, requests=4)
    command = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --mem-fraction-static 0.9"
    served = read_server(command).serve("8xh20", load=load)
    assert served.plan.framework.startswith("sglang")


def test_a_gpu_without_bf16_serves_in_fp16():
    load = Load(concurrency=2, input_len=128, output_len=8, requests=4)
    served = read_server("vllm serve Qwen/Qwen2.5-14B-Instruct --dtype half -tp 4").serve("4xv100", load=load)
    assert served.plan.dtype == "fp16"


def test_experts_that_no_rank_shares_are_sharded_over_all_their_replicas():
    plan = weft.TrainingPlan(tp=8, dp=8, batch=64, zero=3, sp=True)
    assert shard_size(6400, 6400, plan) == 100  # 64 ranks hold the same experts
    assert shard_size(6400, 0, plan) == 800
    assert shard_size(6400, 6400, weft.TrainingPlan(tp=8, dp=8, ep=8, batch=64, zero=3, sp=True)) == 800
