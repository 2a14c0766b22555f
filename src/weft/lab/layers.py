"""A measured Transformer layer as a subject: each operator's time in prefill and in decode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import Clock, RunOptions
from weft.estimate import estimate
from weft.graph import Gemm, Node, Streaming
from weft.graph.op import Role
from weft.hardware import System
from weft.lab.machines import Machines
from weft.lab.problems import Problem
from weft.lab.seen import seen_systems
from weft.lab.subjects import Subject
from weft.lab.tables import FloatArray, Measurements, layer_times
from weft.models import model_names
from weft.models.parallel.inference import Phase, layer

TOTAL = "total"
_FILE = re.compile(r"(.+?)_layer_tp(\d+)(?:_.*)?\.csv")


def layer_subjects(checked: Measurements, machines: Machines) -> list[Subject]:
    """The operators of a layer's file by phase, with their sum as an extra row.

    The file's name gives model and degree: "gpt3_layer_tp4.csv" holds GPT-3 split over four GPUs; every row names the
    system.
    """
    subjects = []
    found = _FILE.fullmatch(checked.file)
    model = _model(found[1]) if found else None
    if found is None or model is None:
        models = ", ".join(model_names())
        rule = f"a layer's file is named after its model and degree, like gpt3_layer_tp4.csv; models: {models}"
        checked.problems.append(Problem(checked.file, (), "name", checked.file, rule))
        return []
    for name, rows in checked.rows.groupby("system"):
        system, sources = hardware.system(name), rows["source"].tolist()
        for phase, batch, length, seconds in layer_times(rows):
            times = _operators(model, system, int(found[2]), phase, batch, length, _called(sources, phase))
            known = rows["op"].isin(times)
            rule = f"the layer has no such operator; it has {', '.join(times)}"
            unknown = rows["op"][~known].items()
            checked.problems += [Problem(checked.file, (line,), "op", op, rule) for line, op in unknown]
            if known.any():
                mine = checked.some(rows[known])
                subjects.append(_subject(mine, seconds[known], phase, system, times))
    return subjects


def _model(text: str) -> str | None:
    """The model whose name has the same letters and digits as the text."""
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((name for name in model_names() if re.sub(r"[^a-z0-9]", "", name) == plain), None)


@dataclass(frozen=True)
class Called:
    """How the operators of a measured layer were called: the clock, and what a call of each kind costs the host [s].

    The projections of queries, keys and values were timed in `separate` GEMMs. `launches` replace the device's own.
    """

    clock: Clock = "short"
    separate: int = 1
    launches: Mapping[str, float] = field(default_factory=dict)


_LAUNCHES = {"gemm": 21e-6, "softmax": 12e-6, "layernorm": 45e-6, "gelu": 45e-6}
"""What LLMCompass's A100 spends on a call of PyTorch that waits for its end [s], measured on tiny operators
(PrincetonUniversity/LLMCompass hardware_model/compute_module.py @b95c6c9)."""


def _called(sources: Sequence[str], phase: str) -> Called:
    """How a measured layer was called, by the source of its rows.

    LLMCompass's A100s held the boost clock (293 of 312 TFLOP/s in fp16). Its layer times operator by operator, the
    projections apart, and subtracts the call from LayerNorm's time in prefill (software_model/transformer.py @b95c6c9).
    """
    if not any("LLMCompass" in source for source in sources):
        return Called()
    subtracted = "layernorm" if phase == "prefill" else ""
    return Called("boost", 3, {kind: cost for kind, cost in _LAUNCHES.items() if kind != subtracted})


def _operators(
    model: str, system: System, tp: int, phase: str, batch: int, length: int, called: Called
) -> Mapping[str, float]:
    """Predicted seconds of each operator; empty if the layer cannot be split so."""
    which: Phase = "prefill" if phase == "prefill" else "decode"
    try:
        work = layer(model, tp=tp, batch=batch, sequence=length, phase=which, attention="batched", dtype="fp16")
        return {node.name: _seconds(node, system, called) for node in work}
    except InputError:
        return {}


def _seconds(node: Node, system: System, called: Called) -> float:
    """Predicted seconds of an operator as it was called."""
    op, times = node.op, called.separate if node.role is Role.QKV else 1
    if isinstance(op, Gemm):
        op = replace(op, n=op.n // times)
    found = estimate(op, system, RunOptions(called.clock))
    launch = called.launches.get(op.name if isinstance(op, Streaming) else op.kind)
    return times * float(found.seconds if launch is None else found.seconds - found.parts["launch"] + launch)


def _subject(
    known: Measurements, seconds: FloatArray, phase: str, system: System, times: Mapping[str, float]
) -> Subject:
    """Operators that both sides know, and their sum as a last row, at the first one's line number."""
    each = known.rows
    predicted = np.array([times[name] for name in each["op"]])
    rows = pd.concat([each, each[:1].assign(op=TOTAL)])
    total = (rows["op"] == TOTAL).to_numpy()
    by_name = dict(zip(rows["op"], [*predicted.tolist(), float(predicted.sum())], strict=True))
    labels = {
        "system": rows["system"],
        "phase": phase,
        "op": np.where(total, TOTAL, "each"),
        "seen": seen_systems("layer", rows["system"]),
    }
    return Subject(
        kind="layer",
        machine=system.name,
        file=known.file,
        rows=rows,
        measured=np.append(seconds, seconds.sum()),
        labels=pd.DataFrame(labels, rows.index),
        ranges={"each operator": ~total, TOTAL: total},
        predict=lambda some, values: np.array([by_name[name] for name in some["op"]]),
    )
