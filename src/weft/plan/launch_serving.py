"""Serving plans as the command lines that start them: vLLM, Dynamo, SGLang, TensorRT-LLM.

There is one line for each role, to run once for each replica on its own GPUs, then what sends requests to them; $MODEL
is the path of the weights, $DRAFT of those that draft. Where GPUs of several nodes share experts, each node runs the
line with its own $RANK.

Flags are those of each engine's documentation, read in 2026: vllm-project/vllm docs/features/nixl_connector_usage.md
and docs/serving/expert_parallel_deployment.md, of 0.19 features/speculative_decoding and design/dbo.md;
ai-dynamo/dynamo examples/backends/vllm/launch/disagg.sh; sgl-project/sglang docs/advanced_features:
pd_disaggregation.md, server_arguments.md, speculative_decoding.md; NVIDIA/TensorRT-LLM examples/disaggregated/README.md
and docs/source/features/speculative-decoding.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.core.files import to_json
from weft.step.serving_plan import ServingPlan

_PORT = 8000


TWO_BATCH = ("vllm", "sglang")
"""Engines that compute half of a batch while the other's tokens are exchanged; TensorRT-LLM names no option for it."""


def _gpus(plan: ServingPlan) -> int:
    """GPUs of an engine: of a replica, or of all replicas that share experts or a pipeline."""
    return max(plan.tp, plan.ep) * plan.pp


def _at_once(plan: ServingPlan) -> int | None:
    """Return most requests at once of all batches that a pipeline passes on."""
    return _times(plan.max_num_seqs, plan.pp)


def _engines(plan: ServingPlan) -> list[tuple[str, int, ServingPlan]]:
    """Roles of engines, how many have them, and the plan of each."""
    replicas, prefill = plan.replicas or 1, plan.prefill_replicas
    if not prefill:
        return [("", replicas // plan.together, plan)]
    before = plan.of_prefill
    return [
        ("prefill", prefill // before.together, before), ("decode", (replicas - prefill) // plan.together, plan.alone)
    ]  # fmt: skip


def _addresses(plan: ServingPlan) -> list[list[str]]:
    """Addresses of the engines of each role; each stands for that of its (first) host."""
    places = iter(range(plan.replicas or 1))
    return [[f"HOST{next(places)}:{_PORT}" for _ in range(count)] for _, count, _ in _engines(plan)]


def _command(start: str, flags: Mapping[str, object], role: str, count: int, gpus: int) -> Iterator[str]:
    said = " ".join(f"{flag} {value}".strip() for flag, value in flags.items() if value is not None)
    what = f"{role} replica" if role else "replica"
    yield f"# {count} {what}{'s' * (count > 1)}, {gpus} GPU{'s' * (gpus > 1)} each"
    yield f"{start} {said}"


def _of_vllm(plan: ServingPlan, role: str) -> dict[str, object]:
    """Flags of vLLM's engine."""
    wide, nodes = plan.wide, -(-_gpus(plan) // _NODE)
    sends = """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
    return {
        "--tensor-parallel-size": plan.tp, "--pipeline-parallel-size": plan.pp if plan.pp > 1 else None,
        "--distributed-executor-backend": "ray" if nodes > 1 and not wide else None,
        "--data-parallel-size": plan.ep if wide else None,
        "--data-parallel-size-local": _NODE if nodes > 1 and wide else None,
        "--data-parallel-address": "$FIRST_HOST" if nodes > 1 and wide else None,
        "--data-parallel-start-rank": f"$(({_NODE} * RANK))" if nodes > 1 and wide else None,
        "--enable-expert-parallel": "" if plan.ep > 1 else None,
        "--all2all-backend": _ALL_TO_ALL[role] if wide else None,
        "--enable-dbo": "" if plan.two_batch_overlap else None,
        "--speculative-config": _vllm_drafts(plan),
        "--max-num-batched-tokens": plan.max_num_batched_tokens, "--max-num-seqs": _at_once(plan),
        "--kv-transfer-config": sends if role else None,
    }  # fmt: skip


def _vllm_drafts(plan: ServingPlan) -> str | None:
    """Return what vLLM drafts, as JSON; $DRAFT is the path of the drafter's weights."""
    if not plan.num_speculative_tokens:
        return None
    name = plan.speculation.draft
    own: dict[str, object] = {"method": _METHODS.get(name, "draft_model")}
    own |= {"prompt_lookup_max": 4} if name == "none" else {} if name == "mtp" else {"model": "$DRAFT"}
    own["num_speculative_tokens"] = plan.num_speculative_tokens
    return f"'{to_json(own)}'".replace("$DRAFT", "'$DRAFT'")


_METHODS = {"mtp": "mtp", "eagle": "eagle", "none": "ngram"}
_PROXY = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
_NODE = 8
"""GPUs of a node that runs one line."""
_ALL_TO_ALL = {
    "": "deepep_high_throughput", "prefill": "deepep_high_throughput", "decode": "deepep_low_latency",
}  # fmt: skip


def vllm(plan: ServingPlan) -> Iterator[str]:
    """Yield the lines that start vLLM's engines."""
    for role, count, own in _engines(plan):
        host = "VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST " if role else ""
        flags = {**_of_vllm(own, role), "--port": _PORT}
        yield from _command(f"{host}vllm serve $MODEL", flags, role, count, _gpus(own))
    if any(own.wide and own.ep > _NODE for *_, own in _engines(plan)):
        yield "# each node after the first: with --headless"
    if not plan.prefill_replicas:
        yield "# a router sends each request to the replica with the fewest"
        return
    named = zip(("prefiller", "decoder"), _addresses(plan), strict=True)
    hosts = [(name, [one.partition(":")[0] for one in some]) for name, some in named]
    each = " ".join(f"--{name}-hosts {' '.join(some)} --{name}-ports{f' {_PORT}' * len(some)}" for name, some in hosts)
    yield "# the proxy of vLLM's repository is an example; Dynamo's lines, in place of all of these, follow"
    yield f"python {_PROXY} --port {_PORT + 1} {each}"
    yield from dynamo(plan)


def dynamo(plan: ServingPlan) -> Iterator[str]:
    """Dynamo's front end, and vLLM's engines behind it."""
    yield "# Dynamo, which routes"
    yield f"python -m dynamo.frontend --http-port {_PORT}"
    for role, count, own in _engines(plan):
        flags = {"--model": "$MODEL", "--disaggregation-mode": role or None, **_of_vllm(own, role)}
        host = "VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST " if role else ""
        yield from _command(f"{host}python -m dynamo.vllm", flags, role, count, _gpus(own))


_ROUTER = "python -m sglang_router.launch_router"


def sglang(plan: ServingPlan) -> Iterator[str]:
    """Yield the lines that start SGLang's engines."""
    for role, count, own in _engines(plan):
        wide, nodes = own.wide, -(-_gpus(own) // _NODE)
        flags = {
            "--model-path": "$MODEL", "--tp-size": _gpus(own) // own.pp,
            "--pp-size": own.pp if own.pp > 1 else None, "--dp-size": own.ep if wide else None,
            "--enable-dp-attention": "" if wide else None, "--ep-size": own.ep if own.ep > 1 else None,
            "--moe-a2a-backend": "deepep" if wide else None,
            "--enable-two-batch-overlap": "" if own.two_batch_overlap else None, **_sglang_drafts(own),
            "--nnodes": nodes if nodes > 1 else None,
            "--node-rank": "$RANK" if nodes > 1 else None,
            "--dist-init-addr": "$FIRST_HOST:5000" if nodes > 1 else None,
            "--chunked-prefill-size": _times(own.max_num_batched_tokens, own.ep if wide else 1),
            "--max-running-requests": _times(_at_once(own), own.ep if wide else 1),
            "--disaggregation-mode": role or None, "--host": "0.0.0.0", "--port": _PORT,
        }  # fmt: skip
        yield from _command("python -m sglang.launch_server", flags, role, count, _gpus(own))
    if plan.prefill_replicas:
        prefill, decode = _addresses(plan)
        each = [*(f"--prefill http://{one}" for one in prefill), *(f"--decode http://{one}" for one in decode)]
        yield f"{_ROUTER} --pd-disaggregation {' '.join(each)} --host 0.0.0.0 --port {_PORT + 1}"
    elif len(_addresses(plan)[0]) > 1:
        urls = " ".join(f"http://{one}" for one in _addresses(plan)[0])
        yield f"{_ROUTER} --worker-urls {urls} --host 0.0.0.0 --port {_PORT + 1}"


def _sglang_drafts(plan: ServingPlan) -> dict[str, object]:
    """Return what SGLang drafts: one sequence of tokens, which counts with the next one."""
    if not plan.num_speculative_tokens:
        return {}
    name = {"mtp": "EAGLE", "eagle": "EAGLE", "none": "NGRAM"}.get(plan.speculation.draft, "STANDALONE")
    steps = {"--speculative-num-steps": plan.num_speculative_tokens, "--speculative-eagle-topk": 1}
    return {
        "--speculative-algorithm": name, **({} if plan.speculation.draft == "none" else steps),
        "--speculative-draft-model-path": None if plan.speculation.draft in ("mtp", "none") else "$DRAFT",
        "--speculative-num-draft-tokens": plan.num_speculative_tokens + 1,
    }  # fmt: skip


def _times(value: int | None, count: int) -> int | None:
    """Return a limit of all ranks or batches, which an engine divides among them."""
    return None if value is None else value * count


def trtllm(plan: ServingPlan) -> Iterator[str]:
    """Yield the lines that start TensorRT-LLM's engines."""
    for role, count, own in _engines(plan):
        options = ["enable_attention_dp: true"] if own.wide else []
        options += ["disable_overlap_scheduler: true"] if role == "prefill" else []
        options += ["cache_transceiver_config:", "  backend: DEFAULT"] if role else []
        options += _trtllm_drafts(own)
        file = f"{role or 'options'}.yaml"
        if options:
            yield f"cat > {file} <<EOF"
            yield from options
            yield "EOF"
        flags = {
            "--tp_size": _gpus(own) // own.pp, "--pp_size": own.pp if own.pp > 1 else None,
            "--ep_size": own.ep if own.ep > 1 else None,
            "--max_num_tokens": own.max_num_batched_tokens, "--max_batch_size": own.max_num_seqs,
            "--extra_llm_api_options": file if options else None, "--host": "0.0.0.0", "--port": _PORT,
        }  # fmt: skip
        yield from _command("trtllm-serve $MODEL", flags, role, count, _gpus(own))
    if plan.prefill_replicas:
        yield "cat > disagg.yaml <<EOF"
        yield f"hostname: 0.0.0.0\nport: {_PORT + 1}"
        for name, urls in zip(("context_servers", "generation_servers"), _addresses(plan), strict=True):
            plain = ", ".join(f'"{one}"' for one in urls)
            yield f"{name}:\n  num_instances: {len(urls)}\n  urls: [{plain}]"
        yield "EOF\ntrtllm-serve disaggregated -c disagg.yaml"


def _trtllm_drafts(plan: ServingPlan) -> list[str]:
    """Return what TensorRT-LLM drafts, as lines of YAML."""
    if not plan.num_speculative_tokens:
        return []
    what = plan.speculation
    name = {"mtp": "MTP", "eagle": "Eagle3", "none": "NGram"}.get(what.draft, "DraftTarget")
    model = [] if what.draft in ("mtp", "none") else ["  speculative_model: $DRAFT"]
    return ["speculative_config:", f"  decoding_type: {name}", f"  max_draft_len: {what.tokens}", *model]
