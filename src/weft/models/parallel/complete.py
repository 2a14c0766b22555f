"""Plans from what a user states: what is left out follows from the model and from the number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import InputError, check_name, check_whole
from weft.models import Transformer
from weft.models.parallel.check import divisors
from weft.models.parallel.layers import stage_layers
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.plan_text import layers_words

_FULL = 4
"""Micro-batches for each pipeline stage, if the batch is left out: with 1F1B, at most a fifth of the time is bubble."""
_SHARED = ("tp", "pp", "cp")
_CHUNKED = ("1f1b", "gpipe", "interleaved")
"""Schedules whose stages are those of the plan's chunks; others fold them (see `chunks_of`)."""


def complete(model: Transformer, gpus: int, stated: Mapping[str, Any]) -> tuple[TrainingPlan, tuple[str, ...]]:
    """The plan of `gpus` GPUs with the `stated` fields of `TrainingPlan`, and a note on each one that was chosen.

    Replicas take the GPUs that are left, the sequence is the model's context, tensor-parallel ranks share the tokens
    between their GEMMs, and the batch has four micro-batches for each pipeline stage. Raises InputError for a field
    that no plan has, and for degrees that do not multiply to the GPUs, with the nearest plan that does.
    """
    values = dict.fromkeys((*_SHARED, "micro_batch"), 1) | check_stated(stated)
    values["dp"] = _replicas(gpus, values)
    values.setdefault("sp", values["tp"] > 1)
    notes = []
    if "sequence" not in values:
        values["sequence"] = model.sequence_length
        notes.append(f"Sequences have the model's context of {model.sequence_length:,} tokens.")
    if "batch" not in values:
        count = _FULL * values["pp"]
        values["batch"] = values["dp"] * values["micro_batch"] * count
        notes.append(
            f"No batch was stated; {values['batch']} sequences are {count} micro-batches in each of {values['dp']} "
            "pipelines."
        )
    plan = TrainingPlan(**values)
    chunked = plan.order_of_pipeline.kind in _CHUNKED and not plan.layers
    layers = stage_layers(model, plan.pp, plan.chunks) if chunked else ()
    if layers:
        plan = replace(plan, layers=layers)
        notes.append(
            f"{model.title} has {len(model.layer_kinds)} layers, so stages have {layers_words(layers)}: less where "
            "embedding or head compute, too."
        )
    return plan, tuple(notes)


def check_stated(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stated fields of a plan, without those that are None.

    Raises UnknownNameError for a field that no plan has, InputError for a degree or a batch that is no whole number.
    """
    for name in stated:
        check_name("field of a plan", name, list(TrainingPlan.__dataclass_fields__))
    values = {name: value for name, value in stated.items() if value is not None}
    for name in (*_SHARED, "dp", "micro_batch", "batch"):
        if name in values:
            check_whole(name, values[name], 1, 8)
    return values


def _replicas(gpus: int, values: Mapping[str, Any]) -> int:
    """Return the replicas that a number of GPUs holds; InputError if they do not fill it, or are not those stated."""
    each: int = math.prod(values[name] for name in _SHARED)
    stated: int | None = values.get("dp")
    if gpus % each == 0 and stated in (None, gpus // each):
        return gpus // each
    tp, pp, cp = nearest(gpus, *(values[name] for name in _SHARED))
    found = " x ".join(f"{name} {values[name]}" for name in (*_SHARED, "dp") if values.get(name, 1) > 1 or name == "tp")
    better = f"tp {tp}, pp {pp}, " + (f"cp {cp}, " if cp > 1 else "") + f"dp {gpus // (tp * pp * cp)}"
    used = each * (stated or 1)
    rule = f"takes {used} GPUs" if stated else f"takes {each} GPUs a replica"
    raise InputError(
        f"the plan {found} {rule}, and the system has {gpus}; the nearest plan that fills it is {better}"
        + (f", or ask for a system of {used} GPUs" if stated else "")
    )


def nearest(gpus: int, tp: int, pp: int, cp: int) -> tuple[int, int, int]:
    """Return the degrees nearest to those given, by their ratios, whose product divides the number of GPUs."""

    def distance(found: tuple[int, int, int]) -> float:
        return sum(abs(math.log(new / old)) for new, old in zip(found, (tp, pp, cp), strict=True))

    return min(_divisions(gpus), key=distance)


def _divisions(gpus: int) -> Iterator[tuple[int, int, int]]:
    for tp in divisors(gpus):
        for pp in divisors(gpus // tp):
            for cp in divisors(gpus // (tp * pp)):
                yield tp, pp, cp
