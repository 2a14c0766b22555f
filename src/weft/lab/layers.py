"""A measured Transformer layer: each operator's time in prefill and in decode, and their sum."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import Clock, RunOptions
from weft.estimate import estimate
from weft.graph import Gemm, Node, Streaming
from weft.graph.op import Role
from weft.lab.kinds import RowKind
from weft.lab.problems import Problem
from weft.lab.seen import seen_systems
from weft.lab.tables import Measurements, layer_times
from weft.models import model_names
from weft.models.parallel.inference import layer

TOTAL = "total"
_FILE = re.compile(r"(.+?)_layer_tp(\d+)(?:_.*)?\.csv")


def _model(text: str) -> str | None:
    """The model whose name has the same letters and digits as the text."""
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((name for name in model_names() if re.sub(r"[^a-z0-9]", "", name) == plain), None)


def _columns(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """The operators of each column of times on each system, and their sum as a last row, at the first one's line.

    The file's name gives model and degree: "gpt3_layer_tp4.csv" holds GPT-3 split over four GPUs; every row names the
    system.
    """
    found = _FILE.fullmatch(checked.file)
    model = _model(found[1]) if found else None
    if found is None or model is None:
        models = ", ".join(model_names())
        rule = f"a layer's file is named after its model and degree, like gpt3_layer_tp4.csv; models: {models}"
        checked.problems.append(Problem(checked.file, (), "name", checked.file, rule))
        return
    for text, rows in checked.rows.groupby("system"):
        for phase, batch, length, seconds in layer_times(rows):
            where = (model, int(found[2]), phase, batch, length)
            known = rows["op"].isin([*_nodes(*where)]).to_numpy()
            rule = f"the layer has no such operator; it has {', '.join(_nodes(*where))}"
            unknown = rows["op"][~known].items()
            checked.problems += [Problem(checked.file, (line,), "op", op, rule) for line, op in unknown]
            if known.any():
                each = rows[known].assign(measured=seconds[known], ops=rows["op"][known])
                whole = {"op": TOTAL, "ops": " ".join(each["op"]), "measured": seconds[known].sum()}
                both = pd.concat([each, each[:1].assign(**whole)])
                names = dict(zip(_LAYER, (*where, any("LLMCompass" in one for one in rows["source"])), strict=True))
                yield "layer", both.assign(**names, machine=hardware.system(str(text)).name)


_LAYER = ("model", "tp", "phase", "batch", "length", "by_llmcompass")


@lru_cache(maxsize=64)
def _nodes(model: str, tp: int, phase: Any, batch: int, length: int) -> Mapping[str, Node]:
    """The operators of a layer by name; none if it cannot be split so."""
    try:
        work = layer(model, tp=tp, batch=batch, sequence=length, phase=phase, attention="batched", dtype="fp16")
    except InputError:
        return {}
    return {node.name: node for node in work}


_LAUNCHES = {"gemm": 21e-6, "softmax": 12e-6, "layernorm": 45e-6, "gelu": 45e-6}
"""What LLMCompass's A100 spends on a call of PyTorch that waits for its end [s], measured on tiny operators
(PrincetonUniversity/LLMCompass hardware_model/compute_module.py @b95c6c9)."""


def _seconds(node: Node, system: str, phase: str, by_llmcompass: bool) -> float:
    """Predicted seconds of an operator of `weft.layer`, as its source called it.

    LLMCompass's A100s held the boost clock (293 of 312 TFLOP/s in fp16). Its layer times operator by operator, the
    projections of queries, keys and values apart, and subtracts the call from LayerNorm's time in prefill
    (software_model/transformer.py @b95c6c9). What a call costs its host replaces the device's own launch.
    """
    op, times = node.op, 3 if by_llmcompass and node.role is Role.QKV else 1
    clock: Clock = "boost" if by_llmcompass else "short"
    if isinstance(op, Gemm):
        op = replace(op, n=op.n // times)
    found = estimate(op, system, RunOptions(clock))
    kind = op.name if isinstance(op, Streaming) else op.kind
    subtracted = phase == "prefill" and kind == "layernorm"
    launch = _LAUNCHES.get(kind) if by_llmcompass and not subtracted else None
    return times * float(found.seconds if launch is None else found.seconds - found.parts["launch"] + launch)


def _layer_seconds(rows: Any, machine: Any, system: str, ops: str, by_llmcompass: bool, *where: Any) -> float:
    nodes = _nodes(*where)
    return sum(_seconds(nodes[name], system, where[2], by_llmcompass) for name in ops.split())


LAYER = RowKind(
    kind="layer",
    by=("system", "ops", "by_llmcompass", "model", "tp", "phase", "batch", "length"),
    query=lambda *cells: cells,
    call=_layer_seconds,
    expand=_columns,
    column="machine",
    labels=lambda rows, machine, _: {
        "system": rows["system"],
        "phase": rows["phase"],
        "op": np.where(rows["op"] == TOTAL, TOTAL, "each"),
        "seen": seen_systems("layer", rows["system"]),
    },
    ranges=lambda rows: {"each operator": (rows["op"] != TOTAL).to_numpy(), TOTAL: (rows["op"] == TOTAL).to_numpy()},
    blamed="system",
)
"""The operators of a layer by phase, and their sum, by `weft.layer` and `weft.estimate`."""
