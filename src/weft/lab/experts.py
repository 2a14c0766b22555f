"""Measured experts of one layer on one GPU: by the libraries that run them, and grouped GEMMs of training alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import pandas as pd

from weft.core.options import SHORT
from weft.estimate.answer import Estimate
from weft.estimate.experts import (
    TILES,
    TRAINING,
    ExpertRows,
    Experts,
    GpuExperts,
    Grouped,
    experts,
    own_values,
    served_layer,
    table_for,
    time_grouped,
)
from weft.estimate.streaming import streaming
from weft.estimate.target import Target, target
from weft.graph import Streaming
from weft.graph.routing import Routing
from weft.hardware import Gpu
from weft.kernels.library.served import EXPERT_FORMATS, library
from weft.lab.kinds import Columns, RowKind, RowMachine
from weft.lab.operators import least_time
from weft.lab.seen import YES
from weft.lab.served import start
from weft.lab.tables import FloatArray, Measurements

_KINDS = (
    ("deepep", "deepgemm"),
    ("deepgemm", "deepgemm"),
    ("marlin", "marlin"),
    ("min_latency", "min-latency"),
    ("torch_flow_triton", ""),
    ("torch_flow", "cutlass"),
    ("wideep_compute_cutlass", "cutlass"),
    ("flashinfer_cutlass", "cutlass"),
    ("trtllm", "trtllm"),
    ("triton", "triton"),
    ("vllm_fused_moe", "triton"),
)
"""The kind of kernels by what their names contain, the first that fits."""
DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "bf16-mxfp4",
    "w4a8_mxfp4_mxfp8": "fp8-mxfp4",
    "int4_wo": "bf16-int4",
}
"""The format of experts by its name in the rows."""
_WITH_EXCHANGE = "megamoe_module_with_a2a"
_DRAWS = 3
"""Loads of a power law are drawn this often; the draw whose busiest GPU is the middle one counts."""


def library_of(fw: str, op: str, kernel: str) -> str:
    """The library of a kernel by its name in the rows; "" where none is known."""
    kind = "" if op == _WITH_EXCHANGE else next((kind for part, kind in _KINDS if part in kernel), "")
    if not kind:
        return ""
    masked = "-masked" if op == "moe_wideep_generation" else ""
    return "trtllm" if (fw, kind) == ("trtllm", "cutlass") else f"{fw}-{kind}{masked}"


@cache
def draw_load(tokens: int, top_k: int, experts: int, ranks: int, how: str, slots: int) -> ExpertRows:
    """The load of the measured GPU, drawn as the source of the rows draws it (its collector/helper.py).

    Experts' relative loads come from a density x ** -exponent, 1 to 0.8 x tokens (0.01 to 2 where there are fewer rows
    than experts); the GPU with the most rows is measured. With "eplb" the busiest experts have copies in further
    `slots`, and GPUs get slots in turn, back and forth.
    """
    each = experts // ranks
    if not how.startswith("power_law"):
        few = tokens * top_k < experts
        active = min(max(round(tokens * top_k / ranks), 1), each) if few else each
        return ExpertRows.of(np.where(np.arange(each) < active, 1.0 if few else tokens * top_k / experts, 0.0))
    exponent, shared = float(how.removesuffix("_eplb").rpartition("_")[2]), how.endswith("_eplb")
    found = []
    for seed in range(_DRAWS):
        rows = _rows(tokens, top_k, experts, ranks, exponent, np.random.default_rng(seed))
        found.append(_spread(rows.ravel(), ranks, slots) if shared else rows[rows.sum(axis=1).argmax()])
    return ExpertRows.of(sorted(found, key=lambda own: (own.sum(), own.max()))[_DRAWS // 2])


def _rows(
    tokens: int, top_k: int, experts: int, ranks: int, exponent: float, random: np.random.Generator
) -> FloatArray:
    """Rows of each expert by GPU: rounded, none above all tokens, and what is missing given to the emptiest in turn."""
    low, high = (1.0, max(0.8 * tokens, 1.001)) if tokens * top_k > experts else (0.01, 2.0)
    power = 1 - exponent
    loads = (random.random(experts) * (high**power - low**power) + low**power) ** (1 / power)
    rows: FloatArray = np.minimum(np.rint(loads / loads.sum() * tokens * top_k), tokens).reshape(ranks, -1)
    while left := int(tokens * top_k - rows.sum()):
        sign, wanted = np.sign(left), max(abs(left) // ranks, 1)
        open_ = rows < tokens if left > 0 else rows > 0
        order = np.where(open_, rows * sign, np.inf).argsort(axis=1)[:, :wanted].T.ravel()
        places = order + np.tile(np.arange(ranks) * rows.shape[1], len(order) // ranks)
        places = places[open_.ravel()[places]][: abs(left)]
        rows.ravel()[places] += sign * max(abs(left) // experts, 1)
        rows = rows.clip(0, tokens)
    return rows


def _spread(rows: FloatArray, ranks: int, slots: int) -> FloatArray:
    """The slots of the busiest GPU where the busiest experts have copies."""
    copies = np.ones(len(rows))
    for _ in range(slots - len(rows)):
        copies[np.argmax(rows / copies)] += 1
    own = np.sort(np.repeat(rows / copies, copies.astype(int)))[::-1].reshape(-1, ranks)
    own[1::2] = own[1::2, ::-1]
    return np.asarray(own[:, own.sum(axis=0).argmax()])


def _layer(rows: Columns, dtype: str) -> GpuExperts:
    """The layer on the measured GPU, with an array for each dimension."""
    load = ExpertRows(rows["rows"], rows["busiest"], rows["active"], np.stack([rows[f"blocks{h}"] for h in TILES]))
    wide = rows["inter"] / rows["moe_tp"]
    return GpuExperts(load, rows["tokens"], rows["topk"], rows["hidden"], wide, dtype, rows["gated"])


def _predict_layers(rows: Columns, machine: RowMachine, name: str, dtype: str) -> FloatArray:
    """Return what `weft predict experts` says of all rows at once: one call, repeated, so that weights stay in the
    cache.
    """
    where = target(machine.gpu, SHORT, machine.harness(rotation=1.0))
    return served_layer(_layer(rows, dtype), library("experts", name), where).seconds


def _share_floor(rows: Columns, gpu: Gpu, name: str, dtype: str) -> FloatArray:
    """Products of a GPU's even share at the highest clock [s]."""
    products = 2 * rows["tokens"] * rows["topk"] / rows["moe_ep"] * rows["hidden"] * rows["inter"] / rows["moe_tp"]
    return least_time(products * (2 + rows["gated"]), EXPERT_FORMATS[dtype].products, gpu)


def _libraries(rows: pd.DataFrame) -> list[str]:
    return [library_of(*each) for each in zip(rows["fw"], rows["op"], rows["kernel"], strict=True)]


def _checks(checked: Measurements) -> list[Any]:
    """Give rows their time and load; the problems of those with an exchange or of unknown kernels and formats."""
    rows = checked.rows
    exchanged = rows["op"] == _WITH_EXCHANGE
    unknown = ~exchanged & (np.array(_libraries(rows), dtype=np.str_) == "")
    formats = ~exchanged & ~unknown & ~rows["dtype"].isin([*DTYPES])
    problems = [
        checked.by_value(exchanged, "op", "one kernel that also exchanges tokens is not compared here"),
        checked.by_value(unknown, "kernel", "kernels of this name are not compared here"),
        checked.by_value(formats, "dtype", f"Weft knows {', '.join(DTYPES)} here"),
    ]
    names = ("tokens", "topk", "experts", "moe_ep", "distribution", "num_slots")
    loads = [
        draw_load(*map(int, sizes), how, int(slots) if np.isfinite(slots) else int(sizes[2]))
        for *sizes, how, slots in zip(*(rows[name] for name in names), strict=True)
    ]
    checked.rows = rows.assign(
        time_us=rows["time_s"] * 1e6,
        gated=~rows["kernel"].str.contains("nongated"),
        rows=[float(load.rows) for load in loads],
        busiest=[float(load.busiest) for load in loads],
        active=[float(load.active) for load in loads],
        **{f"blocks{height}": [float(load.blocks[at]) for load in loads] for at, height in enumerate(TILES)},
    )
    return problems


EXPERTS = RowKind(
    kind="experts",
    by=("fw", "op", "kernel", "dtype"),
    query=lambda fw, op, kernel, dtype: (library_of(fw, op, kernel), DTYPES[dtype]),
    call=_predict_layers,
    floor=_share_floor,
    labels=lambda rows, machine, queries: {
        "library": [name for name, _ in queries],
        "dtype": [dtype for _, dtype in queries],
        "load": np.where(rows["distribution"].str.startswith("power_law"), "power law", "even"),
        "seen": YES,
    },
    checks=_checks,
    start=start,
    table=lambda gpu, name, dtype: table_for(library("experts", name), dtype, gpu.architecture),
    blamed="kernel",
)
"""Experts of a layer by libraries of inference, on one GPU."""


_LAYERS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("grouped_gemm_contiguous", "DeepGEMM"): ("sglang-deepgemm", "fp8-block"),
    ("grouped_gemm_masked", "DeepGEMM"): ("sglang-deepgemm-masked", "fp8-block"),
    ("moe_layer_local", "torch._grouped_mm"): (TRAINING, "bf16"),
    ("moe_layer_local", "Triton"): ("sglang-triton", "bf16"),
}
"""The library and format that rows of whole layers and of grouped GEMMs alone are compared with, by kind and name."""


_TILE = 128
"""Rows and columns of a workgroup of VeOmni's Triton kernels; one is launched in each cycle [assumed, 0.5 to 2]."""


def _predict_training(rows: Columns, machine: RowMachine, kind: str, name: str, dtype: str) -> FloatArray:
    """Whole layers by `weft predict experts`, and grouped GEMMs by the form below it."""
    gpu = machine.gpu
    sizes = [rows[column] for column in ("tokens", "hidden", "inter", "topk", "experts")]
    if kind == "moe_layer_local":
        whole = np.stack(sizes, axis=1).astype(int).tolist()
        made = [Experts(Routing(row[0], row[3], row[4], 1), row[1], row[2], dtype) for row in whole]
        found = [experts(each, gpu, name, options=SHORT) for each in made]
        return np.array([one.seconds for one in found]) + _apart(rows, target(gpu, SHORT), name, dtype, found)
    tokens, hidden, columns, _, count = sizes
    own = own_values(table_for(library("experts", name), dtype, gpu.architecture))
    what = Grouped(ExpertRows.share_evenly(tokens, count), columns, hidden, EXPERT_FORMATS[dtype])
    parts = time_grouped(what, target(gpu, SHORT), own).values()
    return sum(parts, np.full(len(tokens), gpu.compute.launch_latency))


def _apart(rows: Columns, machine: Target, name: str, dtype: str, of: Sequence[Estimate]) -> FloatArray:
    """Return what VeOmni's layers do beyond those of the library that stands for them [s].

    By its source (ByteDance-Seed/VeOmni @3227dbe): gate and up are GEMMs of their own, which each read the rows;
    SiLU, product and weight of a row are three kernels. Around torch._grouped_mm all rows are joined with an empty
    one, padded by expert, put back, and scattered into zeros.
    Triton's GEMMs (gate, up and down) launch, for each expert, workgroups for all rows, which end at once if they
    have none, beside those that multiply.
    """
    routed, wide = rows["tokens"] * rows["topk"], rows["inter"]
    passes = [Streaming("elementwise", cast("Any", routed * wide), 1, "bf16")] * 2
    if name == TRAINING:
        passes += [Streaming("elementwise", cast("Any", routed * rows["hidden"]), 1, "bf16")] * 4
    moved = np.asarray(sum((streaming(one, machine).seconds for one in passes), np.zeros(len(wide))))
    own = own_values(table_for(library("experts", name), dtype, machine.gpu.architecture))
    load, launch = ExpertRows.share_evenly(routed, rows["experts"]), machine.gpu.compute.launch_latency
    gate, both = (
        sum(time_grouped(Grouped(load, each, rows["hidden"], EXPERT_FORMATS[dtype]), machine, own).values(), 0.0 * wide)
        for each in (wide, 2 * wide)
    )
    moved = moved + 2 * gate + launch - both
    if name == TRAINING:
        return moved
    columns = 2 * np.ceil(wide / _TILE) + np.ceil(rows["hidden"] / _TILE)
    launched = rows["experts"] * np.ceil(routed / _TILE) * columns / machine.gpu.compute.clock
    products = np.array([sum(one.parts[name] for name in ("compute", "tail", "fill", "memory")) for one in of])
    return np.asarray(moved + np.maximum(launched - products, 0.0))


def _implementation_names(rows: pd.DataFrame) -> list[str]:
    """The first word of each row's implementation."""
    return [text.partition(" ")[0] for text in rows["implementation"]]


def _layer_checks(checked: Measurements) -> list[Any]:
    checked.rows = checked.rows.assign(time_us=checked.rows["time_s"] * 1e6)
    known = [each in _LAYERS for each in zip(checked.rows["kind"], _implementation_names(checked.rows), strict=True)]
    return [checked.by_value(np.logical_not(known), "kind", "layers of this kind and library are not compared here")]


EXPERT_LAYERS = RowKind(
    kind="expert_layers",
    by=("kind", "implementation"),
    query=lambda kind, text: (kind, *_LAYERS[kind, text.partition(" ")[0]]),
    call=_predict_training,
    floor=lambda rows, gpu, kind, name, dtype: least_time(
        2 * rows["tokens"] * rows["hidden"] * rows["inter"], EXPERT_FORMATS[dtype].products, gpu
    ),
    labels=lambda rows, machine, _: {"what": rows["kind"], "library": _implementation_names(rows), "seen": YES},
    checks=_layer_checks,
    blamed="kind",
)
"""Layers of experts and grouped GEMMs that their libraries' authors report; two rows are fitted, those of torch."""
