"""How InferenceMAX started the servers that it measured, where that is not the framework's default and changes times.

Source: SemiAnalysisAI/InferenceX, benchmarks/ (single_node/ from 19 February 2026), at the dates of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.lab.serving import ClosedLoop


@dataclass(frozen=True)
class ServerRecipe:
    """A step takes at most `tokens` (0: the default); steps of up to `graphed` tokens are replayed from graphs
    (None: the default); and the scheduler sees a request `waits` steps after it came.
    """

    tokens: int = 0
    graphed: int | None = None
    waits: float = 0.0


DEFAULTS = ServerRecipe()


def recipe(of: ClosedLoop, architecture: str) -> ServerRecipe:
    """The recipe of a measured server."""
    make = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}.get(of.framework)
    return make(of, architecture) if make else DEFAULTS


def _vllm(of: ClosedLoop, architecture: str) -> ServerRecipe:
    """`max-cudagraph-capture-size` and `max-num-batched-tokens`; `FULL_DECODE_ONLY` graphs nothing with a prompt."""
    if of.model == "gpt-oss-120b":
        return ServerRecipe(tokens=8192, graphed=2048)
    if of.model == "minimax-m2" and architecture == "blackwell" and of.version.startswith("0.19"):
        return ServerRecipe(tokens=2 * of.prompt, graphed=2048)
    if of.model == "llama-3-70b":
        return ServerRecipe(tokens=8192, graphed=0 if architecture == "blackwell" else None)
    return DEFAULTS


def _sglang(of: ClosedLoop, architecture: str) -> ServerRecipe:
    """`--chunked-prefill-size`, and `--scheduler-recv-interval`: steps between looks, each of next tokens counts once.

    Source: sgl-project/sglang python/sglang/srt/managers/scheduler_recv_skipper.py.
    """
    if of.model != "deepseek-v3":
        return DEFAULTS
    if architecture == "hopper":
        return ServerRecipe(tokens=32768)
    return ServerRecipe(tokens=16384 if of.dtype == "nvfp4" else 32768, waits=(10 if of.clients < 16 else 30) / 2)


def _trtllm(of: ClosedLoop, _: str) -> ServerRecipe:
    """`--max_num_tokens`, and `batch_wait_timeout_iters`: steps for which prompts wait until they fill most of one.

    Source: NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/py_executor.py, _waiting_requests.
    """
    short = of.prompt == of.answer == 1024
    if of.model == "llama-3-70b":
        return ServerRecipe(tokens=16384, waits=20.0 if short and of.gpus < 8 else 0.0)
    if of.model == "gpt-oss-120b":
        return ServerRecipe(tokens=20000)
    if of.model == "deepseek-v3":
        return ServerRecipe(tokens=max(of.clients + of.prompt + 128, 8192))
    return DEFAULTS
