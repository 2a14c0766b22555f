"""Measured kernels of inference by the library that runs them: attention of prompts and next tokens, all-reduces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.options import SHORT
from weft.estimate.attention import served_attention
from weft.estimate.collective import collective
from weft.estimate.gemm import served_gemm
from weft.estimate.streaming import served_streaming
from weft.estimate.target import Harness
from weft.estimate.target import target as target_of
from weft.graph import Attention, Collective, Gemm, Streaming
from weft.hardware import Gpu
from weft.kernels.library.served import library, table_of
from weft.lab.closed_forms import ClosedForm, Columns
from weft.lab.experts import EXPERTS
from weft.lab.library_values import Changed, changed, on, start
from weft.lab.seen import YES
from weft.lab.subjects import Subject
from weft.lab.tables import FloatArray, Measurements

ATTENTION_KERNELS: Mapping[str, str] = {
    "vllm_flash_attn": "vllm-fa2",
    "vllm_flash_attn_fa2": "vllm-fa2",
    "vllm_flash_attn_fa3": "vllm-fa3",
    "vllm_flashinfer_fiprefill": "vllm-flashinfer",
    "vllm_flashinfer_fidecode": "vllm-flashinfer",
    "vllm_flashinfer_trtllmprefill": "vllm-trtllm",
    "vllm_flashinfer_trtllmdecode": "vllm-trtllm",
    "vllm_triton_attn": "vllm-triton",
    "flash_attention": "sglang-fa3",
    "fa3": "sglang-fa3",
    "flashinfer": "sglang-flashinfer",
    "triton": "sglang-triton",
    "trtllm_mha": "sglang-trtllm",
    "torch_flow": "trtllm",
}
"""The library that each kernel of the rows belongs to."""
_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class AttentionCase:
    """Rows of one library, phase and pair of data types."""

    library: str
    phase: str
    dtype: str
    kv_dtype: str

    def made(self, rows: Columns) -> Attention:
        """The attention, with an array for each dimension."""
        sizes: Any = [rows[name] for name in ("batch", "heads", "q_len", "kv_len", "head_dim", "kv_heads")]
        window: Any = np.nan_to_num(rows["window_size"])
        batch, heads, query, keys, head, shared = sizes
        types: Any = {"dtype": self.dtype, "kv_dtype": self.kv_dtype, "library": self.library}
        return Attention(batch, heads, query, keys, head, shared, causal=1, window=window, **types)

    def seconds(self, rows: Columns, target: Changed) -> FloatArray:
        """Times on a GPU [s]."""
        return np.asarray(served_attention(self.made(rows), target.machine, target.values).seconds)

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: products at the highest clock, half of them where keys are of 8 bits."""
        rate = max(gpu.matrix_rate(self.dtype, clock) for clock in ("peak", "boost"))
        return np.asarray(self.made(rows).flops / rate / (2 if self.kv_dtype != self.dtype else 1))

    def table(self, gpu: Gpu) -> str:
        """The path of the values that its rows depend on."""
        return table_of("attention", self.library, f"{self.phase}.{self.dtype}-{self.kv_dtype}", gpu.architecture)


def _attention_cases(rows: pd.DataFrame) -> Iterator[AttentionCase]:
    columns = (rows[name] for name in ("kernel", "phase", "dtype", "kv_cache_dtype"))
    for kernel, phase, dtype, kept in zip(*columns, strict=True):
        yield AttentionCase(ATTENTION_KERNELS[kernel], phase, _DTYPES.get(dtype, dtype), _DTYPES.get(kept, kept))


def _known(kernels: Mapping[str, Any], checked: Measurements) -> list[Any]:
    """Give rows their time, and name those of kernels that are not compared."""
    checked.rows = checked.rows.assign(time_us=checked.rows["time_s"] * 1e6)
    unknown = ~checked.rows["kernel"].isin([*kernels])
    return [checked.by_value(unknown, "kernel", "kernels of this name are not compared here")]


def _attention_checks(checked: Measurements) -> list[Any]:
    return _known(ATTENTION_KERNELS, checked)


SERVED_ATTENTION = ClosedForm(
    kind="attention",
    cases=_attention_cases,
    labels=lambda rows, gpu, target: {
        "library": rows["kernel"].map(ATTENTION_KERNELS),
        "phase": rows["phase"],
        "dtype": [f"{each.dtype}-{each.kv_dtype}" for each in _attention_cases(rows)],
        "seen": YES,
    },
    checks=_attention_checks,
    target=on,
    changed=changed,
    start=start,
    blamed="kernel",
)
"""Attention in context and generation by libraries of inference, on one GPU."""
ALL_REDUCES: Mapping[str, tuple[str, str]] = {
    "vLLM_custom_graph": ("vllm-custom", ""),
    "vLLM_custom_eager": ("vllm-custom", "eager"),
    "SGLang_CustomAllReduce_graph": ("sglang-custom", ""),
    "SGLang_CustomAllReduce_eager": ("sglang-custom", "eager"),
}
"""The library and the host of each kernel of the rows: in a graph the device launches it."""


@dataclass(frozen=True)
class AllReduceCase:
    """Rows of one library, way of calling and number of ranks."""

    library: str
    host: str
    ranks: int

    def seconds(self, rows: Columns, target: Changed) -> FloatArray:
        """Times in one node [s]."""
        harness = Harness(library=self.library, host=self.host)
        size: Any = rows["bytes"]
        machine = replace(target.machine, harness=harness)
        return np.asarray(collective(Collective("all_reduce", size, self.ranks), machine, target.values).seconds)

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: each rank's links at their rate."""
        return np.asarray(2 * (self.ranks - 1) / self.ranks * rows["bytes"] / gpu.link.bandwidth)

    def table(self, gpu: Gpu) -> str:
        """The path of the values that its rows depend on."""
        return table_of("all_reduce", self.library, "nvlink" if gpu.link.links else "pcie", gpu.architecture)


def _all_reduce_cases(rows: pd.DataFrame) -> Iterator[AllReduceCase]:
    for kernel, ranks in zip(rows["kernel"], rows["ranks"], strict=True):
        yield AllReduceCase(*ALL_REDUCES[kernel], int(ranks))


SERVED_ALL_REDUCES = ClosedForm(
    kind="all_reduce",
    cases=_all_reduce_cases,
    labels=lambda rows, gpu, target: {
        "library": [ALL_REDUCES[kernel][0] for kernel in rows["kernel"]],
        "called": [ALL_REDUCES[kernel][1] or "graph" for kernel in rows["kernel"]],
        "ranks": rows["ranks"],
        "seen": YES,
    },
    checks=lambda checked: _known(ALL_REDUCES, checked),
    target=lambda gpu, machines: Changed(target_of(hardware.system(f"8x{gpu.name}"), SHORT), {}),
    changed=changed,
    start=start,
    blamed="kernel",
)
"""Custom all-reduces of servers, in one node."""
FORMATS: Mapping[str, tuple[str, str]] = {
    "fp8_block": ("fp8", ""),
    "nvfp4": ("nvfp4", ""),
    "sq": ("int8", ""),
    "int8_wo": ("bf16", "int8"),
    "int4_wo": ("bf16", "int4"),
}
"""The format of the products, and of weights narrower than that, by its name in the rows."""
GEMM_KERNELS: Mapping[str, str] = {
    "trt_flow_": "trtllm",
    "torch_flow": "trtllm",
    "deepgemm": "trtllm",
    "sglang_deepgemm": "sglang",
    "sglang_flashinfer": "sglang",
    "CutlassFp8": "vllm-cutlass",
    "DeepGemmFp8": "vllm-deepgemm",
    "FlashInferFp8": "vllm-flashinfer",
    "FlashInferCuteDslNvFp4": "vllm-flashinfer",
    "TritonFp8": "vllm-triton",
}
"""The library of kernels by how their names begin."""


def _gemm_library(kernel: str) -> str:
    return next((name for start, name in GEMM_KERNELS.items() if kernel.startswith(start)), "")


@dataclass(frozen=True)
class GemmCase:
    """Rows of one library and format."""

    library: str
    dtype: str
    weights: str

    def made(self, rows: Columns) -> Gemm:
        """The GEMM, with an array for each dimension."""
        m, n, k = (cast("Any", rows[name]) for name in "mnk")
        return Gemm(m, n, k, self.dtype)

    def seconds(self, rows: Columns, target: Changed) -> FloatArray:
        """Times on a GPU [s]."""
        machine = replace(target.machine, harness=Harness(served=self.library, weights=self.weights))
        return np.asarray(served_gemm(self.made(rows), machine, target.values).seconds)

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: products at the highest clock."""
        rate = max(gpu.matrix_rate(self.dtype, clock) for clock in ("peak", "boost"))
        return np.asarray(self.made(rows).flops / rate)

    def table(self, gpu: Gpu) -> str:
        """The path of the values that its rows depend on."""
        what = f"{self.dtype}-{self.weights}" if self.weights else self.dtype
        return table_of("gemm", self.library, what, gpu.architecture)


def _gemm_cases(rows: pd.DataFrame) -> Iterator[GemmCase]:
    for kernel, dtype in zip(rows["kernel"], rows["dtype"], strict=True):
        yield GemmCase(_gemm_library(kernel), *FORMATS[dtype])


def _gemm_checks(checked: Measurements) -> list[Any]:
    checked.rows = checked.rows.assign(time_us=checked.rows["time_s"] * 1e6)
    unknown = checked.rows["kernel"].map(_gemm_library) == ""
    formats = ~checked.rows["dtype"].isin([*FORMATS]) & ~unknown
    return [
        checked.by_value(unknown, "kernel", "kernels of this name are not compared here"),
        checked.by_value(formats, "dtype", f"Weft knows {', '.join(FORMATS)} here"),
    ]


SERVED_GEMMS = ClosedForm(
    kind="gemm_lowbit",
    cases=_gemm_cases,
    labels=lambda rows, gpu, target: {
        "library": rows["kernel"].map(_gemm_library),
        "dtype": [f"{each.dtype}-{each.weights}" if each.weights else each.dtype for each in _gemm_cases(rows)],
        "seen": YES,
    },
    checks=_gemm_checks,
    target=on,
    changed=changed,
    start=start,
    blamed="kernel",
)
"""GEMMs of narrow formats by libraries of inference."""
LATENT_KERNELS: Mapping[tuple[str, str], str] = {
    ("trtllm", "default"): "trtllm-mla",
    ("sglang", "trtllm_mla"): "sglang-trtllm-mla",
    ("sglang", "flash_attention"): "sglang-fa3-mla",
    ("sglang", "triton"): "sglang-triton-mla",
    ("vllm", "vllm_flash_attn_mla"): "vllm-fa3-mla",
    ("vllm", "vllm_flashmla"): "vllm-flashmla",
    ("vllm", "vllm_triton_mla"): "vllm-triton-mla",
}
"""The library of latent attention's kernels by framework and name in the rows."""
_LATENT, _ROTARY, _PLAIN = 512, 64, 128
"""Elements of the compressed key, of its part with positions, and of a head without (DeepSeek-V3, arXiv:2412.19437)."""


@dataclass(frozen=True)
class LatentCase:
    """Rows of latent attention of one library, phase and pair of data types, or of its absorbed products."""

    library: str
    op: str
    phase: str
    dtype: str
    kv_dtype: str

    def made(self, rows: Columns) -> Attention | Gemm:
        """The attention, over the compressed cache where the library absorbs its up-projection; or the product."""
        batch, heads, query, keys = (cast("Any", rows[name]) for name in ("batch", "heads", "q_len", "kv_len"))
        if self.op != "mla_kernel":
            n, k = (_LATENT, _PLAIN) if self.op == "mla_gen_pre" else (_PLAIN, _LATENT)
            return Gemm(batch, n, k, self.dtype, heads)
        types: Any = {"dtype": self.dtype, "kv_dtype": self.kv_dtype, "library": self.library, "causal": 1}
        if self.absorbed:
            wide: Any = _LATENT + _ROTARY
            return Attention(batch, heads, query, keys, wide, 1, value=_LATENT, **types)
        return Attention(batch, heads, query, keys, _PLAIN + _ROTARY, value=_PLAIN, **types)

    @property
    def absorbed(self) -> bool:
        """Whether all heads look at the compressed cache."""
        return self.phase == "generation" or bool(library("attention", self.library).how["context"].get("latent"))

    def seconds(self, rows: Columns, target: Changed) -> FloatArray:
        """Times on a GPU [s]."""
        made = self.made(rows)
        if isinstance(made, Gemm):
            machine = replace(target.machine, harness=Harness(served=self.library))
            return np.asarray(served_gemm(made, machine, target.values).seconds)
        return np.asarray(served_attention(made, target.machine, target.values).seconds)

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: products at the highest clock, half of them where keys are of 8 bits."""
        rate = max(gpu.matrix_rate(self.dtype, clock) for clock in ("peak", "boost"))
        return np.asarray(self.made(rows).flops / rate / (2 if self.kv_dtype != self.dtype else 1))

    def table(self, gpu: Gpu) -> str:
        """The path of the values that its rows depend on."""
        if self.op != "mla_kernel":
            return table_of("gemm", self.library, self.dtype, gpu.architecture)
        return table_of("attention", self.library, f"{self.phase}.{self.dtype}-{self.kv_dtype}", gpu.architecture)


def _latent_cases(rows: pd.DataFrame) -> Iterator[LatentCase]:
    columns = (rows[name] for name in ("fw", "kernel", "op", "phase", "dtype", "kv_cache_dtype"))
    for fw, kernel, op, phase, dtype, kept in zip(*columns, strict=True):
        own = _DTYPES.get(dtype, dtype)
        name = LATENT_KERNELS.get((fw, kernel), "") if op == "mla_kernel" else f"{fw}-bmm"
        yield LatentCase(name, op, phase, own, _DTYPES.get(kept, kept or own))


def _latent_checks(checked: Measurements) -> list[Any]:
    rows = checked.rows
    checked.rows = rows.assign(time_us=rows["time_s"] * 1e6)
    whole = ~rows["op"].isin(["mla_kernel", "mla_gen_pre", "mla_gen_post"])
    kernels = [each not in LATENT_KERNELS for each in zip(rows["fw"], rows["kernel"], strict=True)]
    unknown = ~whole & (rows["op"] == "mla_kernel") & np.array(kernels, dtype=bool)
    early = ~whole & ~unknown & (rows["phase"] == "generation") & (rows["kv_len"] == 1)
    return [
        checked.by_value(whole, "op", "whole blocks with their projections are not compared here, only their kernels"),
        checked.by_value(unknown, "kernel", "kernels of this name are not compared here"),
        checked.problem(early, "a next token looks at two keys or more", "kv_len", "1"),
    ]


SERVED_LATENT = ClosedForm(
    kind="mla",
    cases=_latent_cases,
    labels=lambda rows, gpu, target: {
        "library": [each.library for each in _latent_cases(rows)],
        "op": rows["op"].map({"mla_kernel": "attention"}).fillna("absorbed"),
        "phase": rows["phase"],
        "seen": YES,
    },
    checks=_latent_checks,
    target=on,
    changed=changed,
    start=start,
    blamed="kernel",
)
"""Latent attention by libraries of inference, and the products that it absorbs in generation."""
SMALL_OPERATORS: Mapping[str, str] = {
    "emb": "embedding",
    "input_layernorm": "rmsnorm",
    "post_attention_layernorm": "rmsnorm",
    "attn_rope": "rotary",
    "mlp_act": "swiglu",
    "add": "residual_add",
}
"""The operator here that each of the rows' is."""
_VLLM = "vllm"


@dataclass(frozen=True)
class SmallCase:
    """Rows of one small operator of a layer."""

    op: str

    def made(self, rows: Columns) -> Streaming:
        """The operator, with an array for each dimension."""
        tokens, hidden, tp = rows["tokens"], rows["hidden"], rows["tp"]
        name, sizes = SMALL_OPERATORS[self.op], (tokens, hidden)
        if name == "rotary":
            sizes = (np.ceil(tokens * hidden * (1 + rows["kv_heads"] / rows["heads"]) / tp), np.ones_like(tokens))
        elif name == "swiglu":
            sizes = (np.ceil(tokens * rows["expanded"] / tp), np.ones_like(tokens))
        elif name == "residual_add":
            sizes = (tokens * hidden, np.ones_like(tokens))
        first, second = (cast("Any", size) for size in sizes)
        return Streaming(name, first, second, "fp16")

    def seconds(self, rows: Columns, target: Changed) -> FloatArray:
        """Times on a GPU [s]."""
        machine = replace(target.machine, harness=Harness(served=_VLLM))
        return np.asarray(served_streaming(self.made(rows), machine, target.values).seconds)

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: none, as they are rounded to microseconds."""
        return np.zeros(len(rows["tokens"]))

    def table(self, gpu: Gpu) -> str:
        """The path of the values that its rows depend on."""
        return table_of("streaming", _VLLM, SMALL_OPERATORS[self.op], gpu.architecture)


def _small_checks(checked: Measurements) -> list[Any]:
    checked.rows = checked.rows.assign(time_us=checked.rows["time_s"] * 1e6)
    unknown = ~checked.rows["op"].isin([*SMALL_OPERATORS])
    return [checked.by_value(unknown, "op", "operators of this name are not compared here")]


SERVED_SMALL = ClosedForm(
    kind="small_operators",
    cases=lambda rows: map(SmallCase, rows["op"]),
    labels=lambda rows, gpu, target: {"operator": rows["op"].map(SMALL_OPERATORS), "seen": YES},
    checks=_small_checks,
    target=on,
    changed=changed,
    start=start,
    blamed="op",
)
"""Small operators of a layer beside its GEMMs and its attention, as vLLM ran them in vidur's profiles."""
_FORMS = (SERVED_ATTENTION, SERVED_LATENT, SERVED_ALL_REDUCES, SERVED_GEMMS, SERVED_SMALL, EXPERTS)
SERVED: Mapping[str, ClosedForm] = {form.kind: form for form in _FORMS}
"""Every kind of kernels that are predicted by values of libraries."""


def tables_of(subject: Subject) -> list[str]:
    """The table of values that each row of a subject depends on."""
    gpu: Gpu = subject.predict.target.machine.gpu  # type: ignore[attr-defined]
    return [case.table(gpu) for case in SERVED[subject.kind].cases(subject.rows)]
