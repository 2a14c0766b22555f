"""A Transformer layer, operator by operator: what one GPU of a tensor-parallel group does, and how long it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, SystemMatch, find_system
from weft.predict.attention import scores_gemm, values_gemm
from weft.predict.collective import collective
from weft.predict.gemm import Clock, Timed, gemm
from weft.predict.memory_bound import softmax_time
from weft.predict.operators import operator
from weft.predict.prediction import Bound, Prediction
from weft.units import LARGEST_COUNT, format_bytes
from weft.workload import DTYPE_BYTES, Transformer, load_model

Phase = Literal["prefill", "decode"]
Attention = Literal["batched", "fused"]
LayerClock = Literal["short", "sustained", "boost"]
"""As for GEMMs, or with the boost clock held throughout, where power allows it."""
UNTHROTTLED = 0.94
"""Share of the matrix rate at the running clock that a tuned main loop reaches (ROCm/rocm-blogs, maximum achievable
FLOPs: 0.942 on MI300X and 0.936 on MI325X, in bf16)."""
PHASES: tuple[Phase, ...] = ("prefill", "decode")
ATTENTIONS: tuple[Attention, ...] = ("batched", "fused")


@dataclass(frozen=True)
class LayerOperator:
    """One operator of a layer: its name, what it is in words (with its shape), and its predicted time."""

    name: str
    about: str
    prediction: Prediction

    @property
    def seconds(self) -> float:
        """Its time [s]."""
        return float(self.prediction.seconds)


@dataclass(frozen=True)
class LayerPrediction:
    """The operators of a layer in the order in which they run, each after the other; `notes` say what was assumed."""

    title: str
    operators: tuple[LayerOperator, ...]
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Time of the layer [s]."""
        return sum(entry.seconds for entry in self.operators)

    def record(self) -> dict[str, Any]:
        """The table as plain data."""
        rows = [
            {
                "name": entry.name,
                "about": entry.about,
                "time_us": 1e6 * entry.seconds,
                "bound": str(entry.prediction.bound_names()),
                **{f"{name}_us": 1e6 * float(value) for name, value in entry.prediction.parts.items()},
            }
            for entry in self.operators
        ]
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"title": self.title, "time_us": 1e6 * self.seconds, "operators": rows, **notes}


@dataclass(frozen=True)
class _Case:
    """What a layer is computed for; `queries` tokens of each sequence ask, `keys` are looked at."""

    model: Transformer
    gpu: Gpu
    tp: int
    batch: int
    queries: int
    keys: int
    dtype: str
    clock: Clock

    @property
    def tokens(self) -> int:
        return self.batch * self.queries

    @property
    def heads(self) -> int:
        """Heads of the GPU that has most of them."""
        return -(-self.model.attention_heads // self.tp)

    @property
    def head(self) -> int:
        return self.model.hidden // self.model.attention_heads


def layer(
    model: Transformer | str | Path,
    system: str | SystemMatch,
    tp: int,
    *,
    batch: int,
    sequence: int,
    phase: Phase = "prefill",
    dtype: str = "fp16",
    attention: Attention = "batched",
    clock: LayerClock = "short",
    timed: Timed = "device",
) -> LayerPrediction:
    """The time of one layer's forward pass on each of `tp` GPUs of a system, operator by operator.

    `prefill` computes all `sequence` tokens of `batch` sequences; `decode` computes one token of each and looks back
    at `sequence` of them. Biases and residual additions are taken as fused into their neighbours. `timed` says whether
    kernels follow each other on the device, or the host issues each and waits for it, as a benchmark of single
    operators does; `clock` "boost" says that power never limits the clock (`held_at_boost`). Raises UnknownNameError
    for an unknown model, system, dtype or other name, InputError for sizes that do not fit.
    """
    transformer = model if isinstance(model, Transformer) else load_model(model)
    found = system if isinstance(system, SystemMatch) else find_system(system)
    _check_names(
        ("phase", phase, PHASES), ("attention", attention, ATTENTIONS), ("dtype", dtype, DTYPE_BYTES),
        ("clock", clock, get_args(LayerClock)), ("way of timing", timed, get_args(Timed)),
    )  # fmt: skip
    _check_sizes(transformer, {"TP": tp, "batch": batch, "sequence": sequence})
    group = found.with_ranks(tp)
    queries = sequence if phase == "prefill" else 1
    gpu = held_at_boost(found.gpu, dtype) if clock == "boost" else found.gpu
    case = _Case(
        transformer, gpu, tp, batch, queries, sequence, dtype, "short" if clock == "boost" else clock
    )
    operators = _operators(case, group, attention)
    if timed == "host":
        operators = (_waited_for(entry, found.gpu) for entry in operators)
    return LayerPrediction(_title(case, found.name, phase, clock), tuple(operators), tuple(_notes(case)))


def held_at_boost(gpu: Gpu, dtype: str) -> Gpu:
    """The GPU where power never limits its matrix units, which then lose only what a main loop loses by itself.

    So run parts with a higher power limit, and others on operands that toggle few bits: on A100, 293 to 302 TFLOP/s of
    fp16 and bf16 are measured that way (LLMCompass, arXiv:2312.03134; openfabric-systems/simllm @9c2672c, clock held at
    1410 MHz), where other public rigs reach 236 to 271.
    """
    return gpu.with_values({f"achieved.matrix_{dtype}": UNTHROTTLED})


def _waited_for(entry: LayerOperator, gpu: Gpu) -> LayerOperator:
    """The operator with the host's start and wait instead of a launch; collectives have their own."""
    if entry.name.startswith("AllReduce"):
        return entry
    found = entry.prediction
    parts = {**found.parts, "launch": np.maximum(found.parts["launch"], gpu.achieved.gemm_host)}
    seconds = found.seconds + parts["launch"] - found.parts["launch"]
    bound = np.where(parts["launch"] > seconds / 2, int(Bound.LAUNCH), found.bound)
    return replace(entry, prediction=Prediction(seconds, bound, parts))


def _notes(case: _Case) -> Iterator[str]:
    """What does not divide by the degree of tensor parallelism, so that one GPU has more of it than others."""
    heads, wide = case.model.attention_heads, case.model.ffn_multiple * case.model.hidden
    if heads % case.tp:
        yield (
            f"{heads} heads do not divide by TP {case.tp}: the times are those of a GPU with {case.heads}, "
            f"others have fewer"
        )
    if wide % case.tp:
        yield f"{wide} feed-forward columns do not divide by TP {case.tp}: a GPU with {-(-wide // case.tp)} counts"


def _title(case: _Case, system: str, phase: str, clock: str) -> str:
    what = "tokens" if phase == "prefill" else "tokens of context"
    return (
        f"{case.model.name}, one layer, {phase}, TP {case.tp}, batch {case.batch} x {case.keys} {what}, "
        f"{case.dtype} on {system}, {clock} clock"
    )


def _check_names(*given: tuple[str, str, Collection[str]]) -> None:
    for kind, name, known in given:
        if name not in known:
            raise UnknownNameError(kind, name, known)


def _check_sizes(model: Transformer, sizes: Mapping[str, int]) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")
    if sizes["batch"] * sizes["sequence"] > LARGEST_COUNT:
        raise InputError(
            f"batch {sizes['batch']} x sequence {sizes['sequence']} are too many tokens; "
            f"give at most {LARGEST_COUNT}"
        )
    tp = sizes["TP"]
    most = min(model.attention_heads, model.hidden)
    if tp > most:
        raise InputError(
            f"TP {tp} cannot split {model.name}: it has {most} attention heads; choose at most {most}"
        )


def _operators(case: _Case, system: SystemMatch, attention: Attention) -> Iterator[LayerOperator]:
    model, tp, tokens = case.model, case.tp, case.tokens
    hidden, wide = model.hidden, -(-model.ffn_multiple * model.hidden // case.tp)
    inner = case.heads * case.head
    yield _norm(case, "LayerNorm_MHA")
    yield _gemm(case, "Q_K_V", 3 * inner, hidden)
    yield from _attention(case, attention)
    yield _gemm(case, "Wo_proj", hidden, inner)
    if tp > 1:
        yield _all_reduce(case, system, "AllReduce_MHA")
    yield _norm(case, "LayerNorm_FFN")
    yield _gemm(case, "W1_proj", wide, hidden)
    gelu = operator("gelu", case.gpu, dtype=case.dtype, elements=tokens * wide)
    yield LayerOperator("GeLU", f"{tokens} x {wide} elements", gelu)
    yield _gemm(case, "W2_proj", hidden, wide)
    if tp > 1:
        yield _all_reduce(case, system, "AllReduce_FFN")


def _norm(case: _Case, name: str) -> LayerOperator:
    rows, columns = case.tokens, case.model.hidden
    found = operator("layernorm", case.gpu, dtype=case.dtype, rows=rows, columns=columns)
    return LayerOperator(name, f"{rows} rows of {columns}", found)


def _gemm(case: _Case, name: str, n: int, k: int) -> LayerOperator:
    found = gemm(case.tokens, n, k, case.dtype, case.gpu, clock=case.clock)
    return LayerOperator(name, f"GEMM {case.tokens} x {n} x {k}", found)


def _attention(case: _Case, attention: Attention) -> Iterator[LayerOperator]:
    count, query, keys, head = case.batch * case.heads, case.queries, case.keys, case.head
    if attention == "fused":
        shape = {"batch": case.batch, "heads": case.heads, "query": query, "keys": keys, "head": head}
        shape["causal"] = int(query > 1)
        found = operator("attention_fused", case.gpu, dtype=case.dtype, clock=case.clock, **shape)
        yield LayerOperator("Attention", f"fused, {count} heads, {query} x {keys} x {head}", found)
        return
    scores = scores_gemm(count, query, keys, head, case.dtype, case.gpu, case.clock)
    yield LayerOperator("Q_mul_K", f"{count} GEMMs {query} x {keys} x {head}", scores)
    softmax = softmax_time(count * query, keys, case.gpu, case.dtype)
    yield LayerOperator("Softmax", f"{count * query} rows of {keys}", softmax)
    values = values_gemm(count, query, keys, head, case.dtype, case.gpu, case.clock)
    yield LayerOperator("A_mul_V", f"{count} GEMMs {query} x {head} x {keys}", values)


def _all_reduce(case: _Case, system: SystemMatch, name: str) -> LayerOperator:
    size = case.tokens * case.model.hidden * DTYPE_BYTES[case.dtype]
    found = collective("all_reduce", size, case.tp, system, dtype=case.dtype)
    return LayerOperator(name, f"all-reduce of {format_bytes(size, digits=4)} over {case.tp} GPUs", found)
