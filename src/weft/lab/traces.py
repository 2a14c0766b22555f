"""A trace of training a mixture as a subject: the time of each kind of kernel, and the span of a pair of passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.options import RunOptions
from weft.graph import Attention, Gemm, GroupedGemm, Node, Streaming, TokenExchange
from weft.graph.op import Role
from weft.lab.machines import Machines
from weft.lab.seen import YES
from weft.lab.subjects import Subject
from weft.lab.tables import Measurements
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import is_narrow
from weft.step.paired import EXPERTS, paired
from weft.step.parts import rank_parts
from weft.step.prices import OperatorTimes
from weft.step.result.step import Pass

_GPU, _SYSTEM, _LAYERS = "h800", "64xh800", 4
_RECOMPUTED = (
    Role.ATTENTION_NORM, Role.QUERY_NORM, Role.QUERY_UP, Role.KV_NORM, Role.KV_UP, Role.ROTARY, Role.KEY_COPY,
    Role.MLP_NORM, Role.EXPERT_INNER,
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


def trace_subjects(checked: Measurements, machines: Machines) -> list[Subject]:
    """The kernels of a trace by kind, and the span from the first to the last.

    DeepSeek-V3's layers on one of 64 H800, a forward pass beside the backward pass of another micro-batch
    (deepseek-ai/profile-data @4496024).
    """
    if machines.chosen and hardware.gpu(_GPU) not in machines.chosen:
        return []
    unknown = ~checked.rows["kind"].isin([*KINDS])
    checked.drop(checked.by_value(unknown, "kind", "kernels of this kind are not compared here"))
    rows = checked.rows
    if not len(rows):
        return []
    measured = {str(kind): _covered(of) for kind, of in rows.groupby(rows["kind"].map(KINDS))}
    measured[SPAN] = (rows["start_s"] + rows["time_s"]).max() - rows["start_s"].min()
    lines = {KINDS[kind]: line for line, kind in reversed([*rows["kind"].items()])} | {SPAN: rows.index[0]}
    found = predicted_kinds()
    table = pd.DataFrame({"what": [*measured]}, index=[lines[name] for name in measured])
    labels = table.assign(gpu=_GPU, seen=YES)
    return [
        Subject(
            kind="expert_trace",
            machine=_GPU,
            file=checked.file,
            rows=table,
            measured=np.array([*measured.values()]),
            labels=labels[["gpu", "what", "seen"]],
            added=tuple(rows.index.tolist()),
            predict=lambda some, values: np.array([found[name] for name in some["what"]]),
        )
    ]


def _covered(rows: pd.DataFrame) -> float:
    """Seconds in which any of the kernels runs: those of two streams at once share the GPU, and take as much longer."""
    begin, end = rows["start_s"].to_numpy(), (rows["start_s"] + rows["time_s"]).to_numpy()
    order = begin.argsort()
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[-np.inf], reached[:-1]])
    return float(np.maximum(reached - np.maximum(begin, before), 0.0).sum())


@cache
def predicted_kinds() -> Mapping[str, float]:
    """Seconds of each kind of kernel and of the span, as `weft step` prices the layers of the trace.

    Computing takes longer by the compute units that exchanges hold, norms by the waves that a
    workgroup or three for each unit of the whole GPU then take (grids of 132 and 396 in the trace).
    """
    used, model, system = framework("deepseek"), load_model("deepseek-v3"), hardware.system(_SYSTEM)
    plan = TrainingPlan(dp=64, ep=64, batch=64, sequence=4096, precision="fp8-block", dispatcher="deepep")
    part = rank_parts(model, plan, used)["moe"]
    prices, kinds, passes = OperatorTimes(system, plan, RunOptions()), Counter[str](), list[Pass]()
    again = [node for node in part.forward if _runs_again(node)]
    for nodes in (part.forward, [*again, *part.backward]):
        own: Counter[str] = Counter()
        for node in nodes:
            own[_kind(node)] += prices.of(node.op, node.stream)  # type: ignore[assignment]
        moved, residual = own["dispatch"] + own["combine"], sum(prices.residual(node.op) for node in nodes)
        passes.append(Pass(sum(own.values()) + residual, {EXPERTS: moved}))
        kinds += own
    taken = prices.taken("deepep", used.dispatcher_units)
    both = paired(passes[0], passes[1], 1.0, taken, used.dispatcher_holds)
    computing = sum(one.seconds - one.parts[EXPERTS] for one in passes)
    slower = 1 + sum(one.parts.get("contention", 0.0) for one in both) / computing
    waves = math.ceil(1 / (1 - taken))
    times = {
        kind: _LAYERS * seconds * {"dispatch": 1.0, "combine": 1.0, "norms": waves}.get(kind, slower)
        for kind, seconds in kinds.items()
    }
    return {**times, SPAN: _LAYERS * sum(one.seconds for one in both)}


def _runs_again(node: Node) -> bool:
    """Whether the trace computes a node of the forward pass again: those of `_RECOMPUTED`, and SwiGLU."""
    shared = node.role is Role.SHARED_EXPERT and isinstance(node.op, Streaming) and node.op.name == "swiglu"
    return shared or node.role in _RECOMPUTED


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
