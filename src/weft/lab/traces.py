"""A trace of training a mixture: the time of each kind of kernel, and the span of a pair of passes, by `weft.step`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pandas as pd

from weft import hardware
from weft.graph import Attention, Gemm, GroupedGemm, Node, Streaming, TokenExchange
from weft.lab.kinds import RowKind
from weft.lab.seen import YES
from weft.lab.tables import Measurements
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import is_narrow

_GPU, _SYSTEM, _LAYERS, _PAIRS = "h800", "64xh800", 4, 4096
_RECOMPUTED = (
    "norm1", "q_norm", "q_up", "kv_norm", "kv_up", "rotary", "keys", "norm2", "experts_activation", "shared_activation",
)  # fmt: skip
"""What the trace computes again: four more norms a layer than forward, two more GEMMs and what follows, and SwiGLU."""
KINDS: Mapping[str, str] = {
    "attention_forward": "attention, forward",
    "attention_backward": "attention, backward",
    "expert_gemm_grouped": "grouped GEMMs of experts",
    "gemm_fp8": "GEMMs",
    "gemm_fp8_accumulate": "gradients of weights",
    "gemm_other": "small kernels",
    "other": "small kernels",
    "cast_transpose": "casts and transposes",
    "norm": "norms",
    "ep_dispatch": "dispatch",
    "ep_combine": "combine",
}
"""The kinds that are compared by the kinds of the trace; of notifications most is waiting for other ranks."""
SPAN = "span of the pair"
_CASTS = ("quantize", "amax")


def _kernels(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """The kernels of a trace by kind, and the span from the first to the last [s]."""
    rows = checked.rows
    if not len(rows):
        return
    measured = {str(kind): _covered_seconds(of) for kind, of in rows.groupby(rows["kind"].map(KINDS))}
    measured[SPAN] = (rows["start_s"] + rows["time_s"]).max() - rows["start_s"].min()
    lines = {KINDS[kind]: line for line, kind in reversed([*rows["kind"].items()])} | {SPAN: rows.index[0]}
    table = pd.DataFrame({"what": [*measured], "measured": [*measured.values()]}, [lines[name] for name in measured])
    yield "expert_trace", table.assign(gpu=_GPU, _lines=[tuple(rows.index.tolist())] * len(table))


def _covered_seconds(rows: pd.DataFrame) -> float:
    """Seconds in which any of the kernels runs: those of two streams at once share the GPU, and take as much longer."""
    begin, end = rows["start_s"].to_numpy(), (rows["start_s"] + rows["time_s"]).to_numpy()
    order = begin.argsort()
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[-np.inf], reached[:-1]])
    return float(np.maximum(reached - np.maximum(begin, before), 0.0).sum())


@cache
def predicted_kinds() -> Mapping[str, float]:
    """Seconds of each kind of kernel and of the span, as `weft.step` gives for the layers of the trace.

    DeepSeek-V3's layers on one of 64 H800, each forward pass during the backward pass of another micro-batch
    (deepseek-ai/profile-data @4496024). Computing takes longer by the compute units that exchanges hold, norms by the
    waves that a workgroup or three for each unit of the whole GPU then take (grids of 132 and 396 in the trace).
    """
    from weft.step.queries import step

    plan = TrainingPlan(
        dp=64, ep=64, batch=64 * _PAIRS, micro_batch=1, sequence=4096, precision="fp8-block", dispatcher="deepep",
        recompute=_RECOMPUTED,
    )  # fmt: skip
    found = step("deepseek-v3", _SYSTEM, plan, framework="deepseek", fidelity="estimate", compare=False)
    part = next(part for part in found.chunks[0].parts if part.name == "moe")
    passes, kinds = (part.forward, part.recompute, part.backward), Counter[str]()
    for one in passes:
        for node in one.graph or ():
            begin, end = one.times[node.id]
            kinds[_kind(node)] += end - begin  # type: ignore[assignment]
    span = sum(one.seconds for one in passes)
    waits = sum(one.parts.get(name, 0.0) for one in passes for name in ("contention", "exposed ep"))
    slower = 1 + sum(one.parts.get("contention", 0.0) for one in passes) / (span - waits)
    units = found.framework.dispatcher_units / hardware.gpu(_GPU).compute.compute_units
    own = {"dispatch": 1.0, "combine": 1.0, "norms": math.ceil(1 / (1 - units))}
    times = {kind: _LAYERS * seconds * own.get(kind, slower) for kind, seconds in kinds.items()}
    return {**times, SPAN: _LAYERS * span}


def _kind(node: Node) -> str:
    """The kind of a node's kernels."""
    op = node.op
    if isinstance(op, TokenExchange):
        return op.operation
    if isinstance(op, Attention):
        return f"attention, {'forward' if node.phase == 'forward' else 'backward'}"
    if isinstance(op, Gemm | GroupedGemm) and is_narrow(op):
        if node.phase == "weight":
            return KINDS["gemm_fp8_accumulate"]
        return KINDS["gemm_fp8" if isinstance(op, Gemm) else "expert_gemm_grouped"]
    turned = isinstance(op, Streaming) and op.name == "transpose" and op.dtype == "fp8"
    if turned or (isinstance(op, Streaming) and op.name.startswith(_CASTS)):
        return KINDS["cast_transpose"]
    return KINDS["norm" if isinstance(op, Streaming) and "norm" in op.name else "other"]


EXPERT_TRACE = RowKind(
    kind="expert_trace",
    by=("what",),
    query=lambda what: (what,),
    call=lambda rows, machine, what: predicted_kinds()[what],
    checks=lambda checked: [
        checked.by_value(~checked.rows["kind"].isin([*KINDS]), "kind", "kernels of this kind are not compared here")
    ],
    expand=_kernels,
    labels=lambda rows, machine, _: {"what": rows["what"], "seen": YES},
    more=lambda machine, rows, labels: {"added": rows["_lines"].iloc[0]},
    blamed="what",
)
"""The kernels of a pair of passes by kind, and their span."""
