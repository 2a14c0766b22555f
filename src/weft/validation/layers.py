"""A measured Transformer layer as a subject: each operator's time in prefill and in decode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.errors import InputError
from weft.estimate import estimate
from weft.hardware import System
from weft.models import load_model, model_names
from weft.models.layer import Phase
from weft.options import Clock, RunOptions
from weft.validation.checks import duplicates, unknown_names
from weft.validation.data import Rows, layer_times
from weft.validation.machines import Machines
from weft.validation.problems import Problem, left_out
from weft.validation.subjects import Subject

FloatArray = npt.NDArray[np.float64]

TOTAL = "total"
_FILE = re.compile(r"(.+?)_layer_tp(\d+)(?:_.*)?\.csv")


def layer_subjects(rows: Rows, machines: Machines) -> tuple[list[Subject], list[Problem]]:
    """The operators of a layer's file by phase, with the sum as one more row; its name says model and degree.

    "gpt3_layer_tp4.csv" holds GPT-3 split over four GPUs; every row names the system.
    """
    found = _FILE.fullmatch(rows.file)
    model = _model(found[1]) if found else None
    if found is None or model is None:
        known = ", ".join(model_names())
        rule = f"a layer's file is named after its model and degree, like gpt3_layer_tp4.csv; models: {known}"
        return [], [Problem(rows.file, (), "name", rows.file, rule)]
    problems = [*duplicates(rows), *unknown_names(rows, "system", hardware.system)]
    kept = rows.take(left_out(problems, rows.line))
    subjects = []
    for system in np.unique(kept.texts["system"]).tolist():
        place = hardware.system(system)
        if machines.chosen and place.gpu.name not in {gpu.name for gpu in machines.chosen}:
            continue
        of = kept.take(kept.texts["system"] == system)
        for phase, batch, length, seconds in layer_times(of):
            options = RunOptions(_clock(of.texts["source"].tolist()))
            predicted = _operators(model, place, int(found[2]), phase, batch, length, options)
            unknown = [name for name in of.texts["op"].tolist() if name not in predicted]
            problems += [_unknown(of, name, predicted) for name in unknown]
            subjects.append(_subject(of, seconds, phase, place, predicted))
    return [subject for subject in subjects if len(subject)], problems


def _model(text: str) -> str | None:
    """The model whose name has the same letters and digits."""
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((name for name in model_names() if re.sub(r"[^a-z0-9]", "", name) == plain), None)


def _clock(sources: Sequence[str]) -> Clock:
    """LLMCompass's A100s held their highest clock: their best fp16 GEMM reaches 293 of 312 TFLOP/s."""
    return "boost" if any("LLMCompass" in source for source in sources) else "short"


def _operators(
    model: str, system: System, tp: int, phase: str, batch: int, length: int, options: RunOptions
) -> Mapping[str, float]:
    """Predicted seconds of each operator; empty if the layer cannot be split so."""
    which: Phase = "prefill" if phase == "prefill" else "decode"
    try:
        work = load_model(model).layer(tp=tp, batch=batch, sequence=length, phase=which)
        found = estimate(work, system, options)
    except InputError:
        return {}
    return {name: float(one.seconds) for name, one in found.operators.items()}


def _unknown(rows: Rows, name: str, known: Mapping[str, float]) -> Problem:
    lines = tuple(rows.line[rows.texts["op"] == name].tolist())
    return Problem(rows.file, lines, "op", name, f"the layer has no such operator; it has {', '.join(known)}")


def _subject(rows: Rows, seconds: FloatArray, phase: str, system: System, predicted: Mapping[str, float]) -> Subject:
    """The operators that both sides know, and their sum as a last row at the first one's line."""
    known = np.array([name in predicted for name in rows.texts["op"].tolist()], dtype=np.bool_)
    positions = np.flatnonzero(known)
    if not len(positions):
        return _of(rows.take(positions), np.zeros(0), np.zeros(0), phase, system, {})
    names = rows.texts["op"][positions].tolist()
    times = np.array([predicted[name] for name in names])
    measured = seconds[positions]
    taken = rows.take(np.append(positions, positions[0]))
    named = {**taken.texts, "op": np.array([*names, TOTAL], dtype=np.str_)}
    total = np.append(np.zeros(len(names), dtype=np.bool_), True)
    whole = Rows(rows.kind, rows.file, taken.line, taken.numbers, named)
    ranges = {"each operator": ~total, TOTAL: total}
    return _of(whole, np.append(times, times.sum()), np.append(measured, measured.sum()), phase, system, ranges)


def _of(
    rows: Rows,
    times: FloatArray,
    measured: FloatArray,
    phase: str,
    system: System,
    ranges: Mapping[str, npt.NDArray[np.bool_]],
) -> Subject:
    by_name = dict(zip(rows.texts["op"].tolist(), times.tolist(), strict=True))
    return Subject(
        kind="layer",
        machine=system.name,
        rows=rows,
        measured=measured,
        labels={
            "system": rows.texts["system"],
            "phase": np.full(len(rows), phase),
            "op": np.where(rows.texts["op"] == TOTAL, TOTAL, "each"),
        },
        ranges=ranges,
        predict=lambda some, values: np.array([by_name[name] for name in some.texts["op"].tolist()]),
    )
