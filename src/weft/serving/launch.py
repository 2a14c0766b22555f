"""Layouts of replicas as the command lines that start them: vLLM, Dynamo, SGLang, TensorRT-LLM.

Flags are those of each engine's documentation, read in 2026: vllm-project/vllm docs/features/nixl_connector_usage.md
and docs/serving/expert_parallel_deployment.md, of 0.19 features/speculative_decoding and design/dbo.md;
ai-dynamo/dynamo examples/backends/vllm/launch/disagg.sh; sgl-project/sglang docs/advanced_features:
pd_disaggregation.md, server_arguments.md, speculative_decoding.md; NVIDIA/TensorRT-LLM examples/disaggregated/README.md
and docs/source/features/speculative-decoding.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from weft.errors import check_name

_PORT = 8000


TWO_BATCH = ("vllm", "sglang")
"""Engines that compute half of a batch while the other's tokens are exchanged; TensorRT-LLM names no option for it."""


class Started(NamedTuple):
    """What is started: GPUs and roles of the replicas, limits of a step (None: the engine's own), and what drafts."""

    tp: int
    ep: int
    replicas: int
    readers: int
    step_tokens: int | None = None
    sequences: int | None = None
    pp: int = 1
    two_batch: bool = False
    speculate: int | None = None
    draft: str | None = None

    @property
    def wide(self) -> bool:
        """Whether attention is data parallel, and `ep` GPUs share the experts."""
        return self.ep > self.tp

    @property
    def together(self) -> int:
        """GPUs of an engine: of a replica, or of all replicas that share experts or a pipeline."""
        return max(self.tp, self.ep) * self.pp

    @property
    def at_once(self) -> int | None:
        """Most requests at once of all batches that a pipeline passes on."""
        return _times(self.sequences, self.pp)

    @property
    def engines(self) -> list[tuple[str, int]]:
        """Roles of engines, and how many have them."""
        each = self.ep if self.wide else self.pp
        if not self.readers:
            return [("", self.replicas // each)]
        return [("prefill", self.readers // each), ("decode", (self.replicas - self.readers) // each)]

    @property
    def addresses(self) -> list[list[str]]:
        """Addresses of the engines of each role; each stands for that of its (first) host."""
        places = iter(range(self.replicas))
        return [[f"HOST{next(places)}:{_PORT}" for _ in range(count)] for _, count in self.engines]


def launch(engine: str, started: Started) -> str:
    """The command lines that start replicas by an engine; UnknownNameError for an unknown one.

    One line for each role, to run once for each replica on its own GPUs, then what sends requests to them; $MODEL is
    the path of the weights, $DRAFT of those that draft. Where GPUs of several nodes share experts, each node runs the
    line with its own $RANK.
    """
    check_name("serving engine", engine, ENGINES)
    return "\n".join(ENGINES[engine](started)) + "\n"


def _command(start: str, flags: Mapping[str, object], role: str, count: int, gpus: int) -> Iterator[str]:
    said = " ".join(f"{flag} {value}".strip() for flag, value in flags.items() if value is not None)
    what = f"{role} replica" if role else "replica"
    yield f"# {count} {what}{'s' * (count > 1)}, {gpus} GPU{'s' * (gpus > 1)} each"
    yield f"{start} {said}"


def _of_vllm(started: Started, role: str) -> dict[str, object]:
    """Flags of vLLM's engine."""
    wide, nodes = started.wide, -(-started.together // _NODE)
    sends = """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
    return {
        "--tensor-parallel-size": started.tp, "--pipeline-parallel-size": started.pp if started.pp > 1 else None,
        "--distributed-executor-backend": "ray" if nodes > 1 and not wide else None,
        "--data-parallel-size": started.ep if wide else None,
        "--data-parallel-size-local": _NODE if nodes > 1 and wide else None,
        "--data-parallel-address": "$FIRST_HOST" if nodes > 1 and wide else None,
        "--data-parallel-start-rank": f"$(({_NODE} * RANK))" if nodes > 1 and wide else None,
        "--enable-expert-parallel": "" if started.ep > 1 else None,
        "--all2all-backend": _ALL_TO_ALL[role] if wide else None, "--enable-dbo": "" if started.two_batch else None,
        "--speculative-config": _vllm_drafts(started),
        "--max-num-batched-tokens": started.step_tokens, "--max-num-seqs": started.at_once,
        "--kv-transfer-config": sends if role else None,
    }  # fmt: skip


def _vllm_drafts(started: Started) -> str | None:
    """What vLLM drafts, as JSON; $DRAFT is the path of the drafter's weights."""
    if not started.speculate:
        return None
    own: dict[str, object] = {"method": _METHODS.get(started.draft or "", "draft_model")}
    own |= (
        {"prompt_lookup_max": 4} if started.draft == "none" else {} if started.draft == "mtp" else {"model": "$DRAFT"}
    )
    return f"'{json.dumps(own | {'num_speculative_tokens': started.speculate})}'".replace("$DRAFT", "'$DRAFT'")


_METHODS = {"mtp": "mtp", "eagle": "eagle", "none": "ngram"}
_PROXY = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
_NODE = 8
"""GPUs of a node that runs one line."""
_ALL_TO_ALL = {
    "": "deepep_high_throughput", "prefill": "deepep_high_throughput", "decode": "deepep_low_latency",
}  # fmt: skip


def _vllm(started: Started) -> Iterator[str]:
    for role, count in started.engines:
        host = "VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST " if role else ""
        flags = {**_of_vllm(started, role), "--port": _PORT}
        yield from _command(f"{host}vllm serve $MODEL", flags, role, count, started.together)
    if started.wide and started.ep > _NODE:
        yield "# each node after the first: with --headless"
    if not started.readers:
        yield "# a router sends each request to the replica with the fewest"
        return
    named = zip(("prefiller", "decoder"), started.addresses, strict=True)
    hosts = [(name, [one.partition(":")[0] for one in some]) for name, some in named]
    each = " ".join(f"--{name}-hosts {' '.join(some)} --{name}-ports{f' {_PORT}' * len(some)}" for name, some in hosts)
    yield "# the proxy of vLLM's repository is an example; Dynamo's lines, in place of all of these, follow"
    yield f"python {_PROXY} --port {_PORT + 1} {each}"
    yield from _dynamo(started)


def _dynamo(started: Started) -> Iterator[str]:
    """Dynamo's front end, and vLLM's engines behind it."""
    yield "# Dynamo, which routes"
    yield f"python -m dynamo.frontend --http-port {_PORT}"
    for role, count in started.engines:
        flags = {"--model": "$MODEL", "--disaggregation-mode": role or None, **_of_vllm(started, role)}
        host = "VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST " if role else ""
        yield from _command(f"{host}python -m dynamo.vllm", flags, role, count, started.together)


_ROUTER = "python -m sglang_router.launch_router"


def _sglang(started: Started) -> Iterator[str]:
    wide, nodes = started.wide, -(-started.together // _NODE)
    for role, count in started.engines:
        flags = {
            "--model-path": "$MODEL", "--tp-size": started.together // started.pp,
            "--pp-size": started.pp if started.pp > 1 else None, "--dp-size": started.ep if wide else None,
            "--enable-dp-attention": "" if wide else None, "--ep-size": started.ep if started.ep > 1 else None,
            "--moe-a2a-backend": "deepep" if wide else None,
            "--enable-two-batch-overlap": "" if started.two_batch else None, **_sglang_drafts(started),
            "--nnodes": nodes if nodes > 1 else None,
            "--node-rank": "$RANK" if nodes > 1 else None,
            "--dist-init-addr": "$FIRST_HOST:5000" if nodes > 1 else None,
            "--chunked-prefill-size": _times(started.step_tokens, started.ep if wide else 1),
            "--max-running-requests": _times(started.at_once, started.ep if wide else 1),
            "--disaggregation-mode": role or None, "--host": "0.0.0.0", "--port": _PORT,
        }  # fmt: skip
        yield from _command("python -m sglang.launch_server", flags, role, count, started.together)
    if started.readers:
        prefill, decode = started.addresses
        each = [*(f"--prefill http://{one}" for one in prefill), *(f"--decode http://{one}" for one in decode)]
        yield f"{_ROUTER} --pd-disaggregation {' '.join(each)} --host 0.0.0.0 --port {_PORT + 1}"
    elif len(started.addresses[0]) > 1:
        urls = " ".join(f"http://{one}" for one in started.addresses[0])
        yield f"{_ROUTER} --worker-urls {urls} --host 0.0.0.0 --port {_PORT + 1}"


def _sglang_drafts(started: Started) -> dict[str, object]:
    """What SGLang drafts: one sequence of tokens, which counts with the next one."""
    if not started.speculate:
        return {}
    name = {"mtp": "EAGLE", "eagle": "EAGLE", "none": "NGRAM"}.get(started.draft or "", "STANDALONE")
    steps = {"--speculative-num-steps": started.speculate, "--speculative-eagle-topk": 1}
    return {
        "--speculative-algorithm": name, **({} if started.draft == "none" else steps),
        "--speculative-draft-model-path": None if started.draft in ("mtp", "none") else "$DRAFT",
        "--speculative-num-draft-tokens": started.speculate + 1,
    }  # fmt: skip


def _times(value: int | None, count: int) -> int | None:
    """A limit of all ranks or batches, which an engine divides among them."""
    return None if value is None else value * count


def _trtllm(started: Started) -> Iterator[str]:
    for role, count in started.engines:
        options = ["enable_attention_dp: true"] if started.wide else []
        options += ["disable_overlap_scheduler: true"] if role == "prefill" else []
        options += ["cache_transceiver_config:", "  backend: DEFAULT"] if role else []
        options += _trtllm_drafts(started)
        file = f"{role or 'options'}.yaml"
        if options:
            yield f"cat > {file} <<EOF"
            yield from options
            yield "EOF"
        flags = {
            "--tp_size": started.together // started.pp, "--pp_size": started.pp if started.pp > 1 else None,
            "--ep_size": started.ep if started.ep > 1 else None,
            "--max_num_tokens": started.step_tokens, "--max_batch_size": started.sequences,
            "--extra_llm_api_options": file if options else None, "--host": "0.0.0.0", "--port": _PORT,
        }  # fmt: skip
        yield from _command("trtllm-serve $MODEL", flags, role, count, started.together)
    if started.readers:
        yield "cat > disagg.yaml <<EOF"
        yield f"hostname: 0.0.0.0\nport: {_PORT + 1}"
        for name, urls in zip(("context_servers", "generation_servers"), started.addresses, strict=True):
            plain = ", ".join(f'"{one}"' for one in urls)
            yield f"{name}:\n  num_instances: {len(urls)}\n  urls: [{plain}]"
        yield "EOF\ntrtllm-serve disaggregated -c disagg.yaml"


def _trtllm_drafts(started: Started) -> list[str]:
    """What TensorRT-LLM drafts, as lines of YAML."""
    if not started.speculate:
        return []
    name = {"mtp": "MTP", "eagle": "Eagle3", "none": "NGram"}.get(started.draft or "", "DraftTarget")
    model = [] if started.draft in ("mtp", "none") else ["  speculative_model: $DRAFT"]
    return ["speculative_config:", f"  decoding_type: {name}", f"  max_draft_len: {started.speculate}", *model]


ENGINES: Mapping[str, Callable[[Started], Iterator[str]]] = {
    "vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "dynamo": _dynamo,
}  # fmt: skip
"""Engines by name, those of `serving_frameworks.toml` and Dynamo over vLLM: the lines that start replicas."""
