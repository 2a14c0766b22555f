"""What a step of inference answers: latency, throughput, where the time goes, and the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from weft.core.answer import Answer, to_plain
from weft.estimate.errors import Error, kernels_error
from weft.models.formats import BF16, ServedFormat

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer
    from weft.step.serving_plan import ServingPlan

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, repr=False)
class Inference(Answer):
    """A step of inference on the `plan.tp` GPUs of a replica; the `parts` [s] add up to it.

    Prefill computes all `tokens` of each of `batch` sequences; decode computes the next token of each, which attends to
    `tokens` of context. `weights` and `cache` are what a GPU holds [bytes]: the KV cache of all sequences. Prompts may
    follow `cached` tokens each; beside next tokens, the first `chunk` tokens of a prompt may be read, whose cache holds
    `chunk_cache` [bytes]; `state` bytes of each sequence are those of linear layers, of any length. A decode step
    writes `tokens_per_step` tokens of each sequence, more than one where drafts are accepted; parts are those of each
    token. `needs` says which hardware methods of overlap take that GPUs on sale, or the system, lack. `format` is that
    of products and weights.
    """

    kind = "inference"

    phase: Phase
    model: Transformer
    system: System
    plan: ServingPlan
    batch: int
    tokens: int
    parts: Mapping[str, float]
    weights: int
    cache: int
    notes: tuple[str, ...] = ()
    cached: int = 0
    chunk: int = 0
    chunk_cache: int = 0
    state: int = 0
    tokens_per_step: float = 1.0
    needs: tuple[str, ...] = ()
    format: ServedFormat = BF16

    def to_dict(self) -> dict[str, Any]:
        """Return the pass, its parts [s] and its memory [bytes] as plain data."""
        return to_plain(
            phase=self.phase, model=self.model.name, system=self.system.label, tp=self.plan.tp, replicas=self.replicas,
            dtype=self.format.dtype, weights=self.format.weights, overlap=self.plan.overlap, batch=self.batch,
            tokens=self.tokens, cached=self.cached, chunk=self.chunk, latency_s=self.seconds,
            interval_80_s=self.interval_s, evidence=self.error.why, step_s=self.step_s,
            tokens_per_step=self.tokens_per_step, tokens_per_s=self.tokens_per_s,
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu, parts=self.parts, weight_bytes_per_gpu=self.weights,
            kv_cache_bytes_per_gpu=self.cache, state_bytes_per_sequence=self.state, capacity_bytes=self.capacity,
            fits=self.fits, most_sequences=self.most_sequences, needs=self.needs, notes=self.notes,
        )  # fmt: skip

    @property
    def step_s(self) -> float:
        """Time of the step [s]: that of all tokens which it writes of a sequence."""
        return self.seconds * self.tokens_per_step

    @property
    def seconds(self) -> float:
        """Latency of the step [s]: to the first token in prefill, of each token in decode."""
        return float(sum(self.parts.values()))

    @property
    def error(self) -> Error:
        """The 80 % interval of the TPOT of servers, of the TTFT in prefill, relative to the kernels' time."""
        kernels = self.plan.operators.partition("@")[0]  # those of a version, without it
        return kernels_error(kernels, bool(self.model.experts), self.phase == "prefill", self.system.gpu)

    @property
    def interval_s(self) -> tuple[float, float]:
        """Both ends of the 80 % interval of the latency as a server has it [s]."""
        return self.error.around(self.seconds)

    @property
    def replicas(self) -> int:
        """Copies of the model that the system holds."""
        return self.system.gpus // self.plan.tp

    @property
    def tokens_per_s(self) -> float:
        """Throughput of a replica [tokens/s]: of the prompts in prefill, of the answers in decode."""
        return self.batch * (self.tokens if self.phase == "prefill" else 1) / self.seconds

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Throughput of each GPU [tokens/s]."""
        return self.tokens_per_s / self.plan.tp

    @property
    def length(self) -> int:
        """Tokens of each sequence in the cache."""
        return self.tokens + self.cached

    @property
    def cache_per_token(self) -> float:
        """KV-cache bytes of one token on one GPU, without what a sequence keeps whatever its length."""
        return (self.cache / self.batch - self.state) / self.length

    @property
    def capacity(self) -> int:
        """Memory of the GPU [bytes]."""
        return int(self.system.gpu.memory.capacity)

    @property
    def fits(self) -> bool:
        """Whether weights and cache fit into the GPU; activations and what else a server keeps are left out."""
        return self.weights + self.cache + self.chunk_cache <= self.capacity

    @property
    def most_sequences(self) -> int:
        """Sequences of this length whose cache fits beside the weights."""
        return max((self.capacity - self.weights - self.chunk_cache) * self.batch // self.cache, 0)
