"""Measured kernels of inference by the library that runs them: attention, all-reduces, GEMMs and small operators.

All are predicted by `weft.estimate` with the library that an operator or the harness names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft import hardware
from weft.core.options import SHORT
from weft.estimate import estimate
from weft.graph import Attention, Collective, Gemm, Streaming
from weft.hardware import Gpu
from weft.kernels.library.served import library, shipped_values, table_of
from weft.lab.kinds import Columns, Query, RowKind, RowMachine
from weft.lab.operators import least_time
from weft.lab.seen import YES
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


def _shape(rows: Columns, *names: str) -> list[Any]:
    """Columns as dimensions of operators, which may be arrays."""
    return [rows[name] for name in names]


def _query(kernel: str, phase: str, dtype: str, kept: str) -> Query:
    return ATTENTION_KERNELS[kernel], phase, _DTYPES.get(dtype, dtype), _DTYPES.get(kept, kept)


def _attention(rows: Columns, library: str, phase: str, dtype: str, kv_dtype: str) -> Attention:
    """The attention of rows, with an array for each dimension."""
    window: Any = np.nan_to_num(rows["window_size"])
    batch, heads, query, keys, head, shared = _shape(rows, "batch", "heads", "q_len", "kv_len", "head_dim", "kv_heads")
    types: Any = {"dtype": dtype, "kv_dtype": kv_dtype, "library": library}
    return Attention(batch, heads, query, keys, head, shared, causal=1, window=window, **types)


def _least_attention(work: Attention | Gemm, gpu: Gpu, dtype: str, kv_dtype: str) -> FloatArray:
    """Products at the highest clock, half of them where keys are of 8 bits [s]."""
    return least_time(work.flops, dtype, gpu, 2.0 if kv_dtype != dtype else 1.0)


def _attention_table(gpu: Gpu, library: str, phase: str, dtype: str, kv_dtype: str) -> str:
    return table_of("attention", library, f"{phase}.{dtype}-{kv_dtype}", gpu.architecture)


def start(machine: RowMachine, path: str) -> float:
    """A shipped value of a library."""
    return shipped_values()[path]


def _known_kernels(kernels: Mapping[str, Any], checked: Measurements) -> list[Any]:
    """Give rows their time, and name those of kernels that are not compared."""
    checked.rows = checked.rows.assign(time_us=checked.rows["time_s"] * 1e6)
    unknown = ~checked.rows["kernel"].isin([*kernels])
    return [checked.by_value(unknown, "kernel", "kernels of this name are not compared here")]


SERVED_ATTENTION = RowKind(
    kind="attention",
    by=("kernel", "phase", "dtype", "kv_cache_dtype"),
    query=_query,
    call=lambda rows, machine, *query: (
        estimate(_attention(rows, *query), machine.gpu, SHORT, machine.harness()).seconds
    ),
    floor=lambda rows, gpu, *query: _least_attention(_attention(rows, *query), gpu, *query[2:]),
    labels=lambda rows, machine, queries: {
        "library": rows["kernel"].map(ATTENTION_KERNELS),
        "phase": rows["phase"],
        "dtype": [f"{dtype}-{kv_dtype}" for _, _, dtype, kv_dtype in queries],
        "seen": YES,
    },
    checks=lambda checked: _known_kernels(ATTENTION_KERNELS, checked),
    start=start,
    table=_attention_table,
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


def _all_reduce(rows: Columns, machine: RowMachine, library: str, host: str, ranks: int) -> FloatArray:
    (size,), where = _shape(rows, "bytes"), hardware.system(f"8x{machine.gpu.name}")
    return estimate(
        Collective("all_reduce", size, ranks), where, SHORT, machine.harness(library=library, host=host)
    ).seconds


SERVED_ALL_REDUCES = RowKind(
    kind="all_reduce",
    by=("kernel", "ranks"),
    query=lambda kernel, ranks: (*ALL_REDUCES[kernel], int(ranks)),
    call=_all_reduce,
    floor=lambda rows, gpu, library, host, ranks: 2 * (ranks - 1) / ranks * rows["bytes"] / gpu.link.bandwidth,
    labels=lambda rows, machine, queries: {
        "library": [library for library, _, _ in queries],
        "called": [host or "graph" for _, host, _ in queries],
        "ranks": rows["ranks"],
        "seen": YES,
    },
    checks=lambda checked: _known_kernels(ALL_REDUCES, checked),
    start=start,
    table=lambda gpu, library, host, ranks: table_of(
        "all_reduce", library, "nvlink" if gpu.link.links else "pcie", gpu.architecture
    ),
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


def _product(rows: Columns, dtype: str) -> Gemm:
    m, n, k = _shape(rows, "m", "n", "k")
    return Gemm(m, n, k, dtype)


def _gemm(rows: Columns, machine: RowMachine, library: str, dtype: str, weights: str) -> FloatArray:
    return estimate(_product(rows, dtype), machine.gpu, SHORT, machine.harness(served=library, weights=weights)).seconds


def _format(dtype: str, weights: str) -> str:
    return f"{dtype}-{weights}" if weights else dtype


def _gemm_checks(checked: Measurements) -> list[Any]:
    checked.rows = checked.rows.assign(time_us=checked.rows["time_s"] * 1e6)
    unknown = checked.rows["kernel"].map(_gemm_library) == ""
    formats = ~checked.rows["dtype"].isin([*FORMATS]) & ~unknown
    return [
        checked.by_value(unknown, "kernel", "kernels of this name are not compared here"),
        checked.by_value(formats, "dtype", f"Weft knows {', '.join(FORMATS)} here"),
    ]


SERVED_GEMMS = RowKind(
    kind="gemm_lowbit",
    by=("kernel", "dtype"),
    query=lambda kernel, dtype: (_gemm_library(kernel), *FORMATS[dtype]),
    call=_gemm,
    floor=lambda rows, gpu, library, dtype, weights: least_time(_product(rows, dtype).flops, dtype, gpu),
    labels=lambda rows, machine, queries: {
        "library": [library for library, _, _ in queries],
        "dtype": [_format(dtype, weights) for _, dtype, weights in queries],
        "seen": YES,
    },
    checks=_gemm_checks,
    start=start,
    table=lambda gpu, library, *formats: table_of("gemm", library, _format(*formats), gpu.architecture),
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


def _latent_query(fw: str, kernel: str, op: str, phase: str, dtype: str, kept: str) -> Query:
    own = _DTYPES.get(dtype, dtype)
    name = LATENT_KERNELS.get((fw, kernel), "") if op == "mla_kernel" else f"{fw}-bmm"
    return name, op, phase, own, _DTYPES.get(kept, kept or own)


def _latent(rows: Columns, name: str, op: str, phase: str, dtype: str, kv_dtype: str) -> Attention | Gemm:
    """The attention, over the compressed cache where the library absorbs its up-projection; or the product."""
    batch, heads, query, keys = _shape(rows, "batch", "heads", "q_len", "kv_len")
    if op != "mla_kernel":
        n, k = (_LATENT, _PLAIN) if op == "mla_gen_pre" else (_PLAIN, _LATENT)
        return Gemm(batch, n, k, dtype, heads)
    types: Any = {"dtype": dtype, "kv_dtype": kv_dtype, "library": name, "causal": 1}
    if phase == "generation" or library("attention", name).how["context"].get("latent"):
        wide: Any = _LATENT + _ROTARY
        return Attention(batch, heads, query, keys, wide, 1, value=_LATENT, **types)
    return Attention(batch, heads, query, keys, _PLAIN + _ROTARY, value=_PLAIN, **types)


def _latent_seconds(rows: Columns, machine: RowMachine, name: str, *query: Any) -> FloatArray:
    work = _latent(rows, name, *query)
    harness = machine.harness(served=name) if isinstance(work, Gemm) else machine.harness()
    return estimate(work, machine.gpu, SHORT, harness).seconds


def _latent_table(gpu: Gpu, name: str, op: str, phase: str, dtype: str, kv_dtype: str) -> str:
    if op != "mla_kernel":
        return table_of("gemm", name, dtype, gpu.architecture)
    return _attention_table(gpu, name, phase, dtype, kv_dtype)


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


SERVED_LATENT = RowKind(
    kind="mla",
    by=("fw", "kernel", "op", "phase", "dtype", "kv_cache_dtype"),
    query=_latent_query,
    call=_latent_seconds,
    floor=lambda rows, gpu, *query: _least_attention(_latent(rows, *query), gpu, *query[3:]),
    labels=lambda rows, machine, queries: {
        "library": [name for name, *_ in queries],
        "op": rows["op"].map({"mla_kernel": "attention"}).fillna("absorbed"),
        "phase": rows["phase"],
        "seen": YES,
    },
    checks=_latent_checks,
    start=start,
    table=_latent_table,
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


def _small(rows: Columns, op: str) -> Streaming:
    """The operator of rows, with an array for each dimension."""
    tokens, hidden, tp = _shape(rows, "tokens", "hidden", "tp")
    name, sizes = SMALL_OPERATORS[op], (tokens, hidden)
    if name == "rotary":
        sizes = (np.ceil(tokens * hidden * (1 + rows["kv_heads"] / rows["heads"]) / tp), np.ones_like(tokens))
    elif name == "swiglu":
        sizes = (np.ceil(tokens * rows["expanded"] / tp), np.ones_like(tokens))
    elif name == "residual_add":
        sizes = (tokens * hidden, np.ones_like(tokens))
    return Streaming(name, *sizes, "fp16")


def _small_checks(checked: Measurements) -> list[Any]:
    checked.rows = checked.rows.assign(time_us=checked.rows["time_s"] * 1e6)
    unknown = ~checked.rows["op"].isin([*SMALL_OPERATORS])
    return [checked.by_value(unknown, "op", "operators of this name are not compared here")]


SERVED_SMALL = RowKind(
    kind="small_operators",
    by=("op",),
    query=lambda op: (op,),
    call=lambda rows, machine, op: (
        estimate(_small(rows, op), machine.gpu, SHORT, machine.harness(served=_VLLM)).seconds
    ),
    floor=lambda rows, gpu, op: np.zeros(len(rows["tokens"])),  # they are rounded to microseconds
    labels=lambda rows, machine, _: {"operator": rows["op"].map(SMALL_OPERATORS), "seen": YES},
    checks=_small_checks,
    start=start,
    table=lambda gpu, op: table_of("streaming", _VLLM, SMALL_OPERATORS[op], gpu.architecture),
    blamed="op",
)
"""Small operators of a layer beside its GEMMs and its attention, as vLLM ran them in vidur's profiles."""
