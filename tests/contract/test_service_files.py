"""Services of KServe and Ray in YAML: what each of their parts states reaches the plan, or is refused by name."""

import pytest

from weft.core.errors import InputError
from weft.plan.read_server import read_server

RUNTIME = """apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: mine}
spec:
  supportedModelFormats: [{name: vLLM, autoSelect: true}]
  containers:
  - name: kserve-container
    image: vllm/vllm-openai:v0.19.0
    command: [python, -m, vllm.entrypoints.openai.api_server]
    args: [--port=8080, --model=/mnt/models, --max-model-len=4096, --gpu-memory-utilization=0.8]
---
"""
SERVICE = """kind: InferenceService
metadata: {{name: llama}}
spec:
  predictor:
    minReplicas: 2
    model:
      modelFormat: {{name: {format}}}
      {more}
"""


def read(tmp_path, text):
    file = tmp_path / "service.yaml"
    file.write_text(text)
    return read_server(file)


def test_args_of_an_inference_service_stand_behind_those_of_its_runtime(tmp_path):
    more = "{runtime}\n      args: [--model=Qwen/Qwen3-32B, --tensor-parallel-size=4, --max-model-len=16384]"
    for runtime in ("runtime: mine", "name: chosen-by-format"):
        found = read(tmp_path, RUNTIME + SERVICE.format(format="vLLM", more=more.format(runtime=runtime)))
        plan = found.plan()
        assert (found.model.name, found.not_understood) == ("qwen3-32b", ())
        assert (plan.tp, plan.replicas, plan.max_model_len, plan.gpu_memory_utilization) == (4, 2, 16384, 0.8)


@pytest.mark.parametrize("uri", ["hf://Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B:main", "pvc://weights/Qwen3-8B"])
def test_the_model_of_a_runtime_is_that_of_the_storage_uri(tmp_path, uri):
    text = RUNTIME + SERVICE.format(format="vLLM", more=f"storageUri: {uri}")
    assert read(tmp_path, text).model.name == "qwen3-8b"
    text = SERVICE.format(format="huggingface", more=f"storageUri: {uri}")
    assert read(tmp_path, text).model.name == "qwen3-8b"


def test_the_hugging_face_server_of_kserve_is_vllm_with_its_own_names(tmp_path):
    workers = "\n    workerSpec: {tensorParallelSize: 2, pipelineParallelSize: 2}"
    more = "args: [--model_name=small, --model_id=Qwen/Qwen3-8B, --max_model_len=8192]" + workers
    found = read(tmp_path, SERVICE.format(format="huggingface", more=more))
    plan = found.plan()
    assert (found.model.name, plan.tp, plan.pp, plan.max_model_len) == ("qwen3-8b", 2, 2, 8192)
    assert "--model-id" in found.used
    assert found.not_understood == ()


def test_a_runtime_that_is_not_in_the_file_is_refused_by_name(tmp_path):
    with pytest.raises(
        InputError, match=r"llama runs on the runtime cuda in the cluster, .* append that ServingRuntime"
    ):
        read(tmp_path, SERVICE.format(format="vLLM", more="runtime: cuda"))


LLM = """kind: LLMInferenceService
metadata: {name: r1}
spec:
  model: {uri: hf://deepseek-ai/DeepSeek-R1-0528, name: r1}
  replicas: 1
  parallelism: {data: 16, dataLocal: 8, expert: true, tensor: 1}
  template:
    containers:
    - name: main
      env:
      - name: VLLM_ADDITIONAL_ARGS
        value: "--max-model-len 4096 --kv_transfer_config '{\\"kv_role\\":\\"kv_consumer\\"}'"
      - {name: VLLM_ALL2ALL_BACKEND, value: pplx}
"""
PREFILL = """  prefill:
    replicas: 2
    parallelism: {data: 16, dataLocal: 8, expert: true, tensor: 1}
    template: {containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 4096"}]}]}
"""


def test_an_llm_inference_service_is_its_parallelism_and_additional_args(tmp_path):
    found = read(tmp_path, LLM)
    plan = found.plan()
    assert (found.model.name, plan.ep, plan.replicas, plan.dispatcher, plan.max_model_len) == (
        "deepseek-v3", 16, 16, "pplx", 4096,
    )  # fmt: skip
    both = read(tmp_path, LLM + PREFILL).plan()
    assert (both.replicas, both.prefill_replicas) == (48, 32)


def test_an_llm_inference_service_builds_on_the_configs_that_it_names(tmp_path):
    service = "kind: LLMInferenceService\nmetadata: {name: mine}\nspec:\n  baseRefs: [{name: r1}]\n  model: {uri: hf://Qwen/Qwen3-235B-A22B}\n"
    found = read(tmp_path, LLM.replace("LLMInferenceService", "LLMInferenceServiceConfig") + "---\n" + service)
    assert (found.model.name, found.plan().ep, found.plan().max_model_len) == ("qwen3-235b-a22b", 16, 4096)
    with pytest.raises(InputError, match="mine builds on r1, which is not in the file; append"):
        read(tmp_path, service)


def test_templates_of_a_container_get_the_degrees_of_its_service(tmp_path):
    command = (
        "vllm serve /mnt/models {{- if .Spec.Parallelism }}{{- if .Spec.Parallelism.Tensor }} "
        "--tensor-parallel-size {{ .Spec.Parallelism.Tensor }}{{- end }}{{- if .Spec.Parallelism.Pipeline }} "
        "--pipeline-parallel-size 9{{- end }}{{- end }} --data-parallel-size {{ or .Spec.Parallelism.Data 1 }}"
    )
    service = (
        "kind: LLMInferenceService\nmetadata: {name: mine}\nspec:\n  model: {uri: hf://Qwen/Qwen3-8B}\n"
        "  parallelism: {tensor: 2}\n  template:\n    containers:\n"
        "    - {name: main, command: [/bin/sh, -c], args: ['%s']}\n"
    )
    plan = read(tmp_path, service % command).plan()
    assert (plan.tp, plan.pp, plan.replicas) == (2, 1, 1)
    with pytest.raises(InputError, match=r"have the template \{\{ if .Spec.Other \}\}; write what it becomes"):
        read(tmp_path, service % (command + " {{ if .Spec.Other }} -tp 4 {{ end }}"))


RAY = """applications:
- name: llm
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: mine, model_source: Qwen/Qwen3-32B}
      engine_kwargs:
        {tensor_parallel_size: 4, max_model_len: 8192, enforce_eager: true, trust_remote_code: false, never_heard_of: 3}
      deployment_config: {autoscaling_config: {min_replicas: 2, max_replicas: 4}}
"""


def test_engines_of_ray_serve_are_read_from_their_configurations(tmp_path):
    inside = "".join(f"    {line}\n" for line in RAY.splitlines())
    for text in (RAY, "kind: RayService\nmetadata: {name: s}\nspec:\n  serveConfigV2: |\n" + inside):
        found = read(tmp_path, text)
        plan = found.plan()
        assert (found.model.name, plan.tp, plan.replicas, plan.max_model_len) == ("qwen3-32b", 4, 2, 8192)
        assert plan.enforce_eager
        assert found.not_understood == ("--never-heard-of",)


def test_a_ray_service_without_engines_is_refused(tmp_path):
    with pytest.raises(InputError, match="the RayService s has no llm_configs"):
        read(
            tmp_path, "kind: RayService\nmetadata: {name: s}\nspec:\n  serveConfigV2: 'applications: []'\n  image: x\n"
        )


def test_an_argument_that_is_turned_off_counts_as_off():
    found = read_server("vllm serve Qwen/Qwen3-8B --no-enforce-eager --no-enable-eplb --no-trust-remote-code")
    assert found.plan().enforce_eager is not True
    assert found.not_understood == ()
    assert found.not_modelled == {}
