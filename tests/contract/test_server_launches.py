"""Every engine and deployment whose launch is read: the same plan as by options, and each argument accounted for."""

import itertools
import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.cli.main import weft as cli
from weft.core.errors import ConfigError, InputError
from weft.models import load_model
from weft.plan.launch import ENGINES, launch
from weft.plan.read_server import read_server
from weft.serving.load import Load
from weft.step.serving_plan import ServingPlan

VLLM = (
    "vllm serve openai/gpt-oss-120b --tensor-parallel-size 4 --max-model-len 8192 --max-num-seqs 128 "
    "--gpu-memory-utilization 0.85 --no-enable-prefix-caching --port 8000 --kv-cache-dtype fp8"
)
WIDE_SGLANG = (
    "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention "
    "--ep-size 8 --moe-a2a-backend deepep --chunked-prefill-size 32768 --max-running-requests 1024 --host 0.0.0.0"
)
TRTLLM = """cat > options.yaml <<EOF
enable_attention_dp: false
kv_cache_config:
  dtype: fp8
EOF
TOKENS=$(( 4096 + 64 > 8192 ? 4160 : 8192 ))
trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP8 --tp_size 4 --max_batch_size 256 --max_num_tokens $TOKENS \\
    --extra_llm_api_options options.yaml
"""
COMPOSE = """services:
  engine:
    image: vllm/vllm-openai:v0.19.0
    command: --model Qwen/Qwen3-14B --tensor-parallel-size 2 --max-model-len 32768
"""
DOCKER = "docker run --gpus all --ipc=host -p 8000:8000 vllm/vllm-openai:latest Qwen/Qwen3-8B -tp 2 --enforce-eager"
DYNAMO = """kind: DynamoGraphDeployment
spec:
  services:
    Frontend:
      extraPodSpec:
        mainContainer: {command: [/bin/sh, -c], args: ["python3 -m dynamo.frontend --http-port 8000"]}
    Prefill:
      subComponentType: prefill
      replicas: 2
      extraPodSpec:
        mainContainer:
          env: [{name: MODEL, value: Qwen/Qwen3-32B}]
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.vllm --model $MODEL --tensor-parallel-size 2 --is-prefill-worker --block-size 128"]
    Decode:
      subComponentType: decode
      replicas: 1
      extraPodSpec:
        mainContainer:
          env: [{name: MODEL, value: Qwen/Qwen3-32B}]
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.vllm --model $MODEL --tensor-parallel-size 2 --block-size 128"]
"""
LLM_D = """modelArtifacts: {uri: "hf://openai/gpt-oss-120b", name: openai/gpt-oss-120b}
routing: {proxy: {image: x, args: ["-v=5"]}}
decode:
  parallelism: {tensor: 4}
  replicas: 1
  containers:
    - {name: vllm, image: ghcr.io/llm-d/llm-d-cuda:1, modelCommand: vllmServe, args: [--block-size, "128"]}
prefill:
  parallelism: {tensor: 1}
  replicas: 2
  containers:
    - {name: vllm, image: ghcr.io/llm-d/llm-d-cuda:1, modelCommand: vllmServe, args: [--block-size, "128"]}
"""
WORKER_SET = """kind: LeaderWorkerSet
metadata: {name: d, labels: {llm-d.ai/role: decode}}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        containers:
        - name: vllm
          image: ghcr.io/llm-d/llm-d-dev:1
          command: [/bin/bash, -c]
          args:
            - |-
              exec vllm serve deepseek-ai/DeepSeek-R1-0528 --port 8200 --enable-expert-parallel \\
                --data-parallel-size $((LWS_GROUP_SIZE * LOCAL)) --data-parallel-size-local $LOCAL
          env: [{name: LOCAL, value: "8"}, {name: VLLM_ALL2ALL_BACKEND, value: deepep_low_latency}]
"""
CASES = {
    "vllm": (VLLM, "gpt-oss-120b", {
        "tp": 4, "max_model_len": 8192, "max_num_seqs": 128, "gpu_memory_utilization": 0.85, "kv_dtype": "fp8",
        "replicas": 1}),
    "docker": (DOCKER, "qwen3-8b", {"tp": 2, "enforce_eager": True}),
    "compose": (COMPOSE, "qwen3-14b", {"tp": 2, "max_model_len": 32768, "framework": "vllm@0.19.0"}),
    "sglang": (WIDE_SGLANG, "deepseek-v3", {
        "tp": 1, "ep": 8, "dispatcher": "deepep", "max_num_batched_tokens": 4096, "max_num_seqs": 128, "replicas": 8}),
    "trtllm": (TRTLLM, "llama-3-70b", {
        "tp": 4, "dtype": "fp8", "kv_dtype": "fp8", "max_num_seqs": 256, "max_num_batched_tokens": 8192}),
    "dynamo": (DYNAMO, "qwen3-32b", {"tp": 2, "block_size": 128, "replicas": 3, "prefill_replicas": 2}),
    "llm-d": (LLM_D, "gpt-oss-120b", {
        "tp": 4, "block_size": 128, "replicas": 3, "prefill_replicas": 2, "prefill_tp": 1, "prefill_ep": None}),
    "worker set": (WORKER_SET, "deepseek-v3", {"tp": 1, "ep": 16, "dispatcher": "", "replicas": 16}),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_a_launch_is_the_plan_of_the_same_options(kind):
    text, model, fields = CASES[kind]
    found = read_server(text)
    plan = found.plan()
    assert (found.model.name, found.not_understood) == (model, ())
    assert {name: getattr(plan, name) for name in fields} == fields


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v3"])
def test_what_is_written_is_read_as_the_same_plan(engine, name):
    model, machine, count = load_model(name), weft.system("16xh200"), 0
    for tp, pp, ep, prefills, tokens in itertools.product((1, 4), (1, 2), (1, 4, 8), (0, 1), (None, 2048)):
        shared = ep if ep > tp else pp
        if (ep not in (1, tp) and tp > 1) or (ep > tp and pp > 1) or (ep > 1 and not model.experts):
            continue
        fields = {"tp": tp, "pp": pp, "ep": ep, "max_num_batched_tokens": tokens, "max_num_seqs": 64}
        plan = ServingPlan(replicas=shared * (1 + prefills), prefill_replicas=shared * prefills, **fields)
        found = read_server(launch(engine, model, machine, plan))
        assert found.not_understood == ()
        own = {field: getattr(found.plan(), field) for field in (*fields, "replicas", "prefill_replicas")}
        assert own == {field: getattr(plan, field) for field in own}
        count += 1
    assert count >= 6


def test_drafts_that_are_written_are_read():
    model, machine = load_model("deepseek-v3"), weft.system("8xh200")
    for engine in ("vllm", "sglang", "trtllm"):
        plan = ServingPlan(tp=8, replicas=1, num_speculative_tokens=2, acceptance_rate=0.8)
        found = read_server(launch(engine, model, machine, plan))
        assert found.plan(acceptance_rate=0.8).speculation == plan.speculation
        assert found.plan().num_speculative_tokens is None  # the share that is accepted is measured, not computed


def names_of(found):
    named = (*found.used, *found.without_effect, *found.not_modelled, *found.not_understood)
    return {each.split(" ")[0] for each in named}


@pytest.mark.parametrize("text", [VLLM, WIDE_SGLANG])
def test_every_argument_is_accounted_for_and_an_unknown_one_is_named(text):
    found = read_server(f"{text} --never-heard-of 3")
    assert {word for word in text.split() if word.startswith("--")} <= names_of(found)
    assert found.not_understood == ("--never-heard-of",)
    assert all(found.without_effect.values())


@given(name=st.from_regex(r"zz-[a-z]{1,8}", fullmatch=True), value=st.sampled_from(["", "1", "x", '{"a": 1}', "-1"]))
@settings(max_examples=40, deadline=None)
def test_no_argument_is_lost_whatever_its_value(name, value):
    found = read_server(f"{VLLM} --{name} '{value}'")
    assert any(each.startswith(f"--{name}") for each in names_of(found))


def test_formats_are_those_of_the_released_weights_and_of_the_arguments():
    def formats(command):
        plan = read_server(command).plan()
        return plan.dtype, plan.weights

    assert formats("vllm serve Qwen/Qwen3-32B") == (None, "")
    assert formats("vllm serve Qwen/Qwen3-32B-FP8") == ("fp8-block", "")
    assert formats("vllm serve RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic") == ("fp8", "")
    assert formats("vllm serve RedHatAI/Qwen3-32B-FP8-block") == ("fp8-block", "")
    assert formats("vllm serve Qwen/Qwen3-32B-AWQ") == (None, "int4-g128")
    assert formats("vllm serve Qwen/Qwen3-32B --quantization fp8") == ("fp8", "")
    assert formats("vllm serve nvidia/DeepSeek-R1-FP4 -tp 8") == ("nvfp4", "")
    assert formats("vllm serve openai/gpt-oss-120b --dtype bfloat16") == (None, "")
    assert formats("vllm serve deepseek-ai/DeepSeek-V3.1 -tp 8") == (None, "")


def test_what_options_state_must_not_contradict_the_launch():
    found = read_server(VLLM)
    assert found.plan(replicas=2).replicas == 2
    with pytest.raises(InputError, match="the launch has tp 4, not 8; change it there"):
        found.plan(tp=8)
    assert found.plan(instead={"tp": 8}).tp == 8
    with pytest.raises(InputError, match="the launch serves some/Model, which is no model of the catalogue; name one"):
        read_server("vllm serve some/Model").serve("8xh100", load=Load(rate=1))


def test_layouts_that_a_plan_has_not_are_named():
    wide = "vllm serve deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel"
    backends = {"": "allgather-reducescatter", "pplx": "pplx", "deepep_low_latency": ""}  # DeepEP's kernels by tokens
    for backend, library in backends.items():
        assert read_server(wide + f" --all2all-backend {backend}" * bool(backend)).plan().dispatcher == library
    split = read_server("vllm serve Qwen/Qwen3-235B-A22B -tp 4 -dp 2 --enable-expert-parallel")
    assert split.plan().replicas == 2
    assert split.not_modelled == {"--dp 2": "experts over all 8 ranks: timed as 2 replicas"}
    assert read_server("vllm serve Qwen/Qwen3-8B --enable-expert-parallel").without_effect == {
        "--enable-expert-parallel": "the model has no experts",
    }  # fmt: skip
    unlike = read_server(LLM_D.replace('"128"]}\n', '"64"]}\n', 1)).not_modelled
    assert unlike == {"prefill workers' block_size 128": "the decode workers' are taken for both"}
    assert read_server(LLM_D).not_modelled == {}


@pytest.mark.parametrize(
    ("text", "kind", "rule"),
    [
        ("echo hello", InputError, "'echo hello' starts no server that Weft knows; give a command like 'vllm serve"),
        ("vllm serve a/b -tp two", ConfigError, "--tp is 'two'; it takes a whole number of at least 1"),
        ("vllm serve a/b --gpu-memory-utilization 9", ConfigError, "is '9'; it takes a share above 0, of at most 1"),
        ("vllm serve a/b -tp $TP", ConfigError, r"--tp is \$TP; .* state it, like --define TP=8"),
        ("vllm serve a/b -tp $((TP * 2))", ConfigError, r"--tp is \$TP; .* state it, like --define TP=8"),
        ("N=$((2 + K))\nvllm serve a/b -tp $((N * 2))", ConfigError, r"--tp is \$K; .* --define K=8"),
        ("N=$(nproc)\nvllm serve a/b -tp $((N * 2))", ConfigError, r"--tp is \$N; .* --define N=8"),
        ("vllm serve a/b -tp $(( $(nproc) ))", ConfigError, "--tp is the output of a command, which is not run; set"),
        ("vllm serve a/b -tp $((2 ** 2))", ConfigError, "--tp is arithmetic that Weft does not follow; set a variable"),
        ("vllm serve a/b -tp 2\nvllm serve a/b -tp 4", InputError, "starts several engines that differ in tp; keep"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(text, kind, rule):
    with pytest.raises(kind, match=rule):
        read_server(text)


def test_a_definition_is_what_the_own_sums_of_a_script_start_from():
    script = "N=$((N > 8192 ? N : 8192))\nvllm serve Qwen/Qwen3-8B --max-model-len $N"
    for stated, length in (("2248", 8192), ("9000", 9000)):
        assert read_server(script, define={"N": stated}).plan().max_model_len == length
    for other in ("4096", "$(cat length)", "$((N + $(cat more)))"):  # which the definition replaces
        script = f"N={other}\nvllm serve Qwen/Qwen3-8B --max-model-len $N"
        assert read_server(script, define={"N": "2248"}).plan().max_model_len == 2248


def test_a_model_that_nothing_sets_is_asked_for_rather_than_a_served_name():
    script = 'MODEL="${MODEL:?set it}"\nvllm serve "$MODEL" --served-model-name mine'
    with pytest.raises(InputError, match=r"serves \$MODEL, which nothing sets; state it, like --define MODEL=Qwen"):
        read_server(script).serve("8xh100", load=Load(rate=1))
    assert read_server(script, define={"MODEL": "Qwen/Qwen3-8B"}).model.name == "qwen3-8b"
    with pytest.raises(InputError, match=r"serves \$1, which nothing sets; give it behind --, or name a model"):
        read_server("vllm serve ${1:?model} -tp 2").serve("8xh100", load=Load(rate=1))


def test_a_folder_of_the_hub_cache_is_called_by_its_name_on_the_hub():
    folder = "/opt/models/hub/models--{}/snapshots/95a723d08a94"
    found = read_server(f"vllm serve {folder.format('Some--New-35B-FP8')}")
    assert (found.serves, found.model) == ("Some/New-35B-FP8", None)
    assert read_server(f"sglang serve --model-path {folder.format('Qwen--Qwen3-8B')}").model.name == "qwen3-8b"


def test_events_and_logs_are_without_effect():
    for command in ("vllm serve Qwen/Qwen3-8B --enable-log-outputs", "sglang serve --model-path Qwen/Qwen3-8B"):
        found = read_server(command + ' --kv-events-config \'{"publisher": "zmq", "topic": "kv"}\'')
        assert "--kv-events-config.publisher" in found.without_effect
        assert found.not_understood == ()


def test_a_length_with_which_vllm_does_not_start_is_said(tmp_path):
    load = Load(concurrency=1, requests=2, input_len=64, output_len=2)
    most = weft.serve("llama-3-8b", "1xl4", ServingPlan(max_model_len=200_000), load)
    note = next(each for each in most.notes if "that the KV cache of a replica holds: vLLM refuses to start" in each)
    fits = int(note.split("more than the ")[1].split(" ")[0].replace(",", ""))
    for length, said in ((fits, False), (fits + 16, True)):
        notes = weft.serve("llama-3-8b", "1xl4", ServingPlan(max_model_len=length), load).notes
        assert any("max_model_len" in each for each in notes) is said
    config = {"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
              "intermediate_size": 2048, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for length, said in ((4096, False), (8192, True)):
        notes = weft.serve(tmp_path / "config.json", "1xl4", ServingPlan(max_model_len=length), load).notes
        assert any("4,096 of max_position_embeddings in" in each for each in notes) is said


def test_the_command_serves_a_launch_and_says_what_became_of_its_arguments(tmp_path):
    answer, script = tmp_path / "serve.json", tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B --tensor-parallel-size $1 --max-num-seqs ${SEQS:-64} --enable-eplb\n")
    load = ["--concurrency", "4", "--requests", "16", "--input-len", "128", "--output-len", "8"]
    command = ["serve", "--launch", str(script), "--system", "2xh100", *load, "--define", "SEQS=32"]
    ran = CliRunner().invoke(cli, [*command, "--json", str(answer), "--", "2"])
    assert ran.exit_code == 0, ran.output
    words = " ".join(ran.output.split())
    assert "Read from the launch file: 3 arguments used" in words
    assert "--enable-eplb (experts get more even loads: --expert-load)" in words
    plan = ServingPlan(framework="vllm", tp=2, replicas=1, max_num_seqs=32)
    same = weft.serve("qwen3-8b", "2xh100", plan, Load(concurrency=4, requests=16, input_len=128, output_len=8))
    assert json.dumps(same.requests[-1].done) in answer.read_text()
    refused = CliRunner().invoke(cli, [*command, "--tp", "4", "--", "2"])
    assert refused.exit_code != 0
    assert "the launch has tp 2, not 4" in str(refused.exception)
