"""Layouts of replicas as the command lines that start them: vLLM, SGLang, TensorRT-LLM.

Flags are those of each engine's documentation: vLLM, docs.vllm.ai (serve arguments, NixlConnector); SGLang,
docs.sglang.io (server arguments, PD disaggregation) and the arguments of sglang_router; TensorRT-LLM,
nvidia.github.io/TensorRT-LLM (trtllm-serve, disaggregated serving).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from weft.errors import check_name

_PORT = 8000


class Started(NamedTuple):
    """What is started: GPUs and roles of the replicas, and limits of a step (None: the engine's own)."""

    tp: int
    ep: int
    replicas: int
    readers: int
    step_tokens: int | None
    sequences: int | None

    @property
    def addresses(self) -> list[str]:
        """Addresses of the replicas, readers first; each stands for that of its host."""
        return [f"http://HOST{at}:{_PORT}" for at in range(self.replicas)]


def launch(engine: str, started: Started) -> str:
    """The command lines that start replicas by an engine; UnknownNameError for an unknown one.

    One line for each role, to run once for each replica on its own GPUs, then what sends requests to them; $MODEL is
    the path of the weights.
    """
    check_name("serving engine", engine, ENGINES)
    return "\n".join(ENGINES[engine](started)) + "\n"


def _roles(started: Started) -> list[tuple[str, int]]:
    """Roles of replicas, and how many have them."""
    if not started.readers:
        return [("", started.replicas)]
    return [("prefill", started.readers), ("decode", started.replicas - started.readers)]


def _command(start: str, flags: Mapping[str, object], role: str, count: int, gpus: int) -> Iterator[str]:
    said = " ".join(f"{flag} {value}".strip() for flag, value in flags.items() if value is not None)
    what = f"{role} replica" if role else "replica"
    yield f"# {count} {what}{'s' * (count > 1)}, {gpus} GPU{'s' * (gpus > 1)} each"
    yield f"{start} {said}"


def _vllm(started: Started) -> Iterator[str]:
    for role, count in _roles(started):
        sends = """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
        flags = {
            "--tensor-parallel-size": started.tp, "--enable-expert-parallel": "" if started.ep > 1 else None,
            "--max-num-batched-tokens": started.step_tokens, "--max-num-seqs": started.sequences,
            "--kv-transfer-config": sends if role else None, "--port": _PORT,
        }  # fmt: skip
        yield from _command("vllm serve $MODEL", flags, role, count, started.tp)
    yield "# a router sends each request to the replica with the fewest; with prefill replicas, to one of each role"


def _sglang(started: Started) -> Iterator[str]:
    for role, count in _roles(started):
        flags = {
            "--model-path": "$MODEL", "--tp-size": started.tp, "--ep-size": started.ep if started.ep > 1 else None,
            "--chunked-prefill-size": started.step_tokens, "--max-running-requests": started.sequences,
            "--disaggregation-mode": role or None, "--host": "0.0.0.0", "--port": _PORT,
        }  # fmt: skip
        yield from _command("python -m sglang.launch_server", flags, role, count, started.tp)
    if started.readers:
        prefill, decode = started.addresses[: started.readers], started.addresses[started.readers :]
        each = [*(f"--prefill {one}" for one in prefill), *(f"--decode {one}" for one in decode)]
        yield f"python -m sglang_router.launch_router --pd-disaggregation {' '.join(each)}"
    elif started.replicas > 1:
        yield f"python -m sglang_router.launch_router --worker-urls {' '.join(started.addresses)}"


def _trtllm(started: Started) -> Iterator[str]:
    for role, count in _roles(started):
        flags = {
            "--tp_size": started.tp, "--ep_size": started.ep if started.ep > 1 else None,
            "--max_num_tokens": started.step_tokens, "--max_batch_size": started.sequences,
            "--host": "0.0.0.0", "--port": _PORT,
        }  # fmt: skip
        yield from _command("trtllm-serve $MODEL", flags, role, count, started.tp)
    if started.readers:
        pools = {"context_servers": started.addresses[: started.readers],
                 "generation_servers": started.addresses[started.readers :]}  # fmt: skip
        yield "cat > disagg.yaml <<EOF"
        yield f"hostname: 0.0.0.0\nport: {_PORT + 1}"
        for name, urls in pools.items():
            plain = ", ".join(f'"{url.removeprefix("http://")}"' for url in urls)
            yield f"{name}:\n  num_instances: {len(urls)}\n  urls: [{plain}]"
        yield "EOF\ntrtllm-serve disaggregated -c disagg.yaml"


ENGINES: Mapping[str, Callable[[Started], Iterator[str]]] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
"""Engines by name, those of `frameworks.toml`: the lines that start replicas."""
