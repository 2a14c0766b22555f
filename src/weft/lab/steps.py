"""Measured training steps: the plan, the framework and the machine of each row, which `weft.step` is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.catalog import read_toml
from weft.core.errors import InputError
from weft.core.units import Dimension
from weft.core.units import format as format_quantity
from weft.hardware import Gpu, System
from weft.kernels.library.dispatchers import dispatcher
from weft.kernels.library.software import RESIDUAL_RULES, Residual
from weft.lab.checks import Unfit
from weft.lab.kinds import Columns, RowKind, RowMachine
from weft.lab.tables import Measurements
from weft.models import Transformer, load_model, model_names
from weft.models.parallel.framework import Framework, framework
from weft.models.parallel.plan import ScheduleName, TrainingPlan
from weft.step.result.step import Step

_RATE = re.compile(r"(?:(\d+) x )?[^0-9]*(\d+) Gb/s")
_FSDP = 3


class Trained(NamedTuple):
    """What one row ran: a model on a machine under a plan, in a framework."""

    model: Transformer
    system: System
    plan: TrainingPlan
    framework: Framework


@lru_cache(maxsize=4096)
def predict_step(of: Trained) -> Step:
    """Return the step of `weft.step`, in closed form; InputError for a plan that the model or machine does not fit."""
    from weft.step.queries import step

    return step(of.model, of.system, of.plan, framework=of.framework, fidelity="estimate", compare=False)


@lru_cache(maxsize=4096)
def _recalibrated_seconds(of: Trained, residual: Residual) -> float:
    """Seconds of the step with another calibration residual, which `weft.step` does not take."""
    from weft.step.clock import train

    return train(of.model, of.system, of.plan, of.framework, fidelity="estimate", calibration=residual).seconds


UNFITTED = "step, nothing fitted"
"""The kind of subjects that repeat rows of steps without what was fitted to them: launches and residual."""
CALIBRATION = tuple(RESIDUAL_RULES)
"""The values by which a subject of steps is predicted with another residual, and without what its own framework's rows
say of the host: those of `Residual`, by path."""


def _figures(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """The times [s] of rows, twice, and their peaks of memory [bytes]."""
    timed, held = (checked.rows[np.isfinite(checked.rows[name])] for name in ("step_time_s", "peak_mem_gb"))
    for kind in ("step", UNFITTED):
        yield kind, timed.assign(compared=kind, measured=timed["step_time_s"])
    yield "memory", held.assign(compared="memory", measured=held["peak_mem_gb"] * 1e9)


def _step(rows: Columns, machine: RowMachine, compared: str, quantity: str, ran: Trained) -> float:
    """The figure of one row: seconds, or the peak of memory [bytes]."""
    used = ran.framework
    if machine.values:
        used = used.launching(used.likely_launch, used.likely_launch_experts, used.likely_launch_each)
        return _recalibrated_seconds(
            ran._replace(framework=used), Residual(*(machine.values[name] for name in CALIBRATION))
        )
    if compared == "memory":
        return _peak(ran, quantity)
    if compared == UNFITTED:
        return _recalibrated_seconds(ran._replace(framework=used.launching(0.0, 0.0, 0.0)), Residual())
    return predict_step(ran).seconds


def _labels(rows: pd.DataFrame, machine: RowMachine, queries: Sequence[Any]) -> dict[str, Any]:
    named = rows["dispatcher"] != "" if "dispatcher" in rows else pd.Series(False, rows.index)
    ran = [of for _, _, of in queries]
    layers = ["hybrid" if of.model.linear else "mixture" if of.model.experts else "dense" for of in ran]
    return {
        "gpu": machine.gpu.name,
        "framework": [of.framework.name for of in ran],
        "layers": ["mixture-by-dispatcher" if by else name for by, name in zip(named, layers, strict=True)],
        **({"quantity": rows["mem_kind"]} if set(rows["compared"]) == {"memory"} else {}),
    }


STEPS = RowKind(
    kind="step",
    query=lambda row, machine: (row["compared"], row["mem_kind"], read_run(row, machine.gpu)),
    call=_step,
    checks=lambda checked: [
        checked.problem(
            checked.rows[["step_time_s", "peak_mem_gb"]].isna().all(axis=1),
            "this row states neither the time of a step nor its memory",
            "step_time_s",
        )
    ],
    expand=_figures,
    labels=_labels,
    blamed="model",
)
"""Training steps by GPU: times, and peaks of memory, by `weft.step` and `weft.memory`."""


def _peak(ran: Trained, quantity: str) -> float:
    """Return the predicted peak memory [bytes] comparable with a row: device, allocator or tensors, for its ranks."""
    from weft.step.queries import memory

    devices = memory(ran.model, ran.system, ran.plan, framework=ran.framework).devices
    if "first/last stage" in quantity:
        devices = (devices[0], devices[-1])
    elif "rank reported" in quantity:  # of the first rank
        devices = devices[:1]
    if "device total" in quantity:
        return float(max(device.peak for device in devices))
    if "reserved" in quantity:
        return float(max(device.peak_reserved for device in devices))
    return float(max(device.peak_allocated for device in devices))


@cache
def _known_recipes() -> Mapping[str, Mapping[str, Any]]:
    return read_toml(resources.files(__package__) / "steps.toml")


def _longest(table: str, text: str) -> Any:
    """The entry of a table whose word is the longest that a text begins with; None if there is none."""
    words = [word for word in _known_recipes()[table] if text.startswith(word)]
    return _known_recipes()[table][max(words, key=len)] if words else None


def read_run(row: Mapping[str, Any], gpu: Gpu) -> Trained:
    """Return what a row ran on a GPU; raise Unfit for missing values and for options without a model."""
    if row["task"] == "lora":
        raise Unfit("task", row["task"], "adapters on frozen weights have no model")
    if "binned by length" in row["notes"]:
        raise Unfit("seq_len", str(int(row["seq_len"])), "sequences are shorter than this, by an unknown amount")
    used = _framework(row)
    try:
        model = _model(row)
        plan = _plan(row, used, model)
        plan = replace(plan, layers=_layers(len(model.layer_kinds), plan, used))
        ran = Trained(model, _system(row, gpu), plan, used)
        if np.isfinite(row["mbs_seq"]):
            return ran
        return _with_micro_batch(ran, _one_for_each_stage(plan)) if used.name == "torchtitan" else _fastest(ran)
    except InputError as error:
        raise Unfit("model", row["model"], str(error)) from None


def _one_for_each_stage(plan: TrainingPlan) -> int:
    """The micro-batch by which a pipeline gets as many micro-batches as it has stages.

    Default of torchtitan (pytorch/torchtitan @0012eca, parallelisms/pipeline_llama.py).
    """
    return max(plan.batch // plan.dp // plan.pp, 1)


def _fastest(ran: Trained) -> Trained:
    """The same with the micro-batch, of powers of two, that fits and is fastest, where a row does not state it."""
    each = ran.plan.batch // ran.plan.dp
    every = [_with_micro_batch(ran, size) for size in (1, 2, 4, 8, 16, 32) if each % size == 0]
    fitting = [one for one in every if _fits(one)]
    return min(fitting or every[:1], key=lambda one: predict_step(one).seconds)


def _with_micro_batch(ran: Trained, size: int) -> Trained:
    return ran._replace(plan=replace(ran.plan, micro_batch=size))


def _fits(ran: Trained) -> bool:
    """Return whether a plan works and its memory suffices."""
    try:
        return _peak(ran, "device total") <= ran.system.gpu.memory.capacity and predict_step(ran).seconds > 0
    except InputError:
        return False


def _whole(row: Mapping[str, Any], column: str, default: int | None = None) -> int:
    """A number of a row, or its default if the cell is blank; Unfit if it has none."""
    value = row[column]
    if np.isfinite(value):
        return int(value)
    if default is None:
        raise Unfit(column, "", "this is needed to predict a step, and the row does not state it")
    return default


def _framework(row: Mapping[str, Any]) -> Framework:
    name = _longest("frameworks", row["framework"])
    if name is None:
        raise Unfit("framework", row["framework"], "the defaults of this framework are not known")
    if "MegaScale" in row["model"] and name == "megatron-core":  # the paper's own baseline
        name = "megascale-baseline"
    used = framework("megatron-fsdp" if name == "megatron-bridge" and row["zero_stage"] == _FSDP else name)
    used = _as_recipe(row, used)
    if "FP32 gradient accumulation" in row["precision"]:
        used = replace(used, gradients="fp32")
    if row["framework"] == "Megatron-LM mcore":  # the functional tests of the library, with its default of dropout
        used = replace(used, style=replace(used.style, dropout=True))
    eager = row["overlap_or_schedule"] == "eager"  # not compiled
    if eager:
        used = replace(used, style=replace(used.style, fused=False))
    if used.style.loss == "compiled_cross_entropy" and (eager or "2024" in row["framework"]):
        # torchtitan's train.py @9dec370 of 2024 does not compile its loss
        used = replace(used, style=replace(used.style, loss="eager_cross_entropy"))
    return replace(used, keeps_weights=used.keeps_weights or (used.zero == _FSDP and row["zero_stage"] < _FSDP))


def _as_recipe(row: Mapping[str, Any], used: Framework) -> Framework:
    """The framework with what its published recipe of a model on a GPU sets."""
    if row.get("dispatcher"):
        return replace(
            used, dispatcher=_dispatcher(row["dispatcher"]), paired=_is_paired(row), delay_wgrad=_is_paired(row)
        )
    recipe = _published_recipe(row)
    if "dispatcher" not in recipe:
        return used
    if "framework" in recipe and _recipe(row):
        named = framework(recipe["framework"])
        return replace(named, attention=recipe.get("attention", named.attention))
    units = framework("megatron-bridge-2026").dispatcher_units if recipe["dispatcher"] == "hybridep" else 0
    return replace(
        used,
        dispatcher=recipe["dispatcher"],
        dispatcher_units=units,
        paired=recipe.get("paired", False),
        delay_wgrad=recipe.get("paired", False),
        graphs=_GRAPHS[recipe.get("graphs", "")],
        pads=() if recipe.get("drops") else used.pads,
    )


_GRAPHS = {
    "": (),
    "router": ("moe_router", "moe_preprocess"),
    "attention": ("attn", "moe_router", "moe_preprocess"),
    "mamba": ("attn", "mamba", "moe_router", "moe_preprocess"),
    "mixers": ("attn", "mamba"),
    "step": ("full_iteration",),
}
"""Modules that CUDA graphs hold, by the `graphs` of a recipe."""


def _published_recipe(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the published recipe of a mixture on a GPU sets, in the release that ran a row; nothing if there is
    none.
    """
    if not (row.get("dispatcher") or _whole(row, "experts", 0) or row["model"] in _known_recipes()["released"]):
        return {}
    software, recipes = row["framework"], _known_recipes()["recipes"]
    release = software.removeprefix("Megatron-Bridge ")
    first = [one for one in recipes if software.startswith(one) or (release != software and one <= release)]
    families = recipes[max(first)] if first else {}
    fitting = [
        (len(family), len(gpu), recipe)
        for family, gpus in families.items()
        for gpu, recipe in gpus.items()
        if row["model"].startswith(family) and row["gpu"].startswith(gpu)
    ]
    return max(fitting, key=lambda one: one[:2])[2] if fitting else {}


def _dispatcher(text: str) -> str:
    """The library that a row names, such as "deepep (UCCL over EFA)"."""
    word = next((name for name in ("UCCL", "deepep", "hybridep", "alltoall") if name in text), None)
    if word is None:
        raise Unfit("dispatcher", text, "this library is not known")
    return dispatcher(word).name


def _model(row: Mapping[str, Any]) -> Transformer:
    """Return the model of the catalogue that a row names, or of its family with the dimensions that the row states."""
    if row["model"] in _known_recipes()["released"] and not row["layers"]:
        return load_model(_known_recipes()["released"][row["model"]])
    name = _longest("models", row["model"])
    own = next((known for known in model_names() if _plain(known) == _plain(row["model"])), name)
    if own is None or not (row["layers"].isdigit() or (row.get("dispatcher") and own != name)):
        raise Unfit("model", row["model"], "Weft has no operators of this model, or the row no dimensions")
    known = load_model(own)
    stated = {ours: _whole(row, theirs, 0) for theirs, ours in _DIMENSIONS.items()}
    stated["kv_heads"] = int(row["kv_heads"]) if row["kv_heads"].isdigit() else 0
    if known.experts:
        stated["expert_ffn"] = stated.pop("ffn")
    elif _whole(row, "experts", 0):
        raise Unfit("model", row["model"], "Weft has no operators of this model")
    values: dict[str, Any] = {field: value for field, value in stated.items() if value}
    if own == name and "heads" not in values:
        values["heads"] = _heads(values["hidden"], known.head_size, _whole(row, "tp", 1))
    rows, ranks = values.get("vocabulary", known.vocabulary), _whole(row, "tp", 1)
    if rows % ranks:  # frameworks pad the embedding
        values["vocabulary"] = -(-rows // (128 * ranks)) * 128 * ranks
    if "w/o MTP" in row["notes"]:
        values["predict_layers"] = 0
    if known.parallel and not row["framework"].startswith("MegaScale"):
        values["parallel"] = False
    if "GQA" in row["model"]:  # Megatron Core's tests give grouped queries rotary positions and a head of its own
        values |= {"positions": "rotary", "tied": False}
    stated_there = {field: getattr(known, field) for field in known.model_fields_set - {"provenance"}}
    layers = int(row["layers"] or known.layers)
    if _is_paired(row) and _published_recipe(row).get("even"):
        layers += -layers % (2 * _whole(row, "pp"))
    return Transformer(**{**stated_there, "name": row["model"], **values, "layers": layers})


def _heads(hidden: int, size: int, ranks: int) -> int:
    """Number of attention heads that share `hidden` elements, of at least `size` each, and that ranks share."""
    fitting = (count for count in range(hidden // size, 0, -1) if hidden % count == 0 and count % ranks == 0)
    return next(fitting, max(hidden // size, 1))


_DIMENSIONS = {
    "hidden": "hidden",
    "heads": "heads",
    "ffn": "ffn",
    "vocab": "vocabulary",
    "experts": "experts",
    "topk": "experts_per_token",
}
"""Columns of rows, with the fields of models."""


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.lower())


def _system(row: Mapping[str, Any], gpu: Gpu) -> System:
    """The GPUs of a row in their usual node, joined by the network that the row states."""
    found = hardware.system(gpu, gpus=_whole(row, "gpus"))
    rate = _RATE.search(row["network"])
    if rate is None or found.node is None:
        return found
    each = int(rate[1] or 1) * int(rate[2]) * 1e9 / 8 / found.node.gpus_per_node
    return found.replace({"network.bandwidth": format_quantity(each, Dimension.BYTES_PER_SECOND)})


def _plan(row: Mapping[str, Any], used: Framework, model: Transformer) -> TrainingPlan:
    tp, pp, cp = (_whole(row, name, 1) for name in ("tp", "pp", "cp"))
    dp = _whole(row, "dp", _whole(row, "gpus") // (tp * pp * cp))
    zero = used.zero if used.zero == _FSDP else _whole(row, "zero_stage", used.zero)
    return TrainingPlan(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=_published_recipe(row).get("ep", _whole(row, "ep", 1)),
        batch=_whole(row, "gbs_seq"),
        micro_batch=_whole(row, "mbs_seq", 1),
        sequence=_whole(row, "seq_len"),
        sp=tp > 1 and _sequence_parallel(row, used),
        zero=zero,
        schedule=_schedule(row, pp),
        recompute=_recompute(row, model),
        dtype=_dtype(row),
        precision=_recipe(row),
        overlap={"tp": "async-tp"} if "async TP" in row["overlap_or_schedule"] else {},
    )


def _layers(layers: int, plan: TrainingPlan, used: Framework) -> tuple[int, ...]:
    """The layers of each stage where they do not divide: embedding and head count as one each if that divides.

    Otherwise Megatron-DeepSpeed (its partition by type) and Megatron-Bridge (its recipes' layouts) fill all stages but
    the last, and others differ by one layer.
    """
    stages = plan.pp * plan.chunks
    if layers % stages == 0:
        return ()
    each = -(-layers // stages)
    if (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        return (each - 1, *(each,) * (stages - 2), each - 1)
    if used.name.startswith(("megatron-deepspeed", "megatron-bridge")):
        return tuple(min(max(layers - each * place, 0), each) for place in range(stages))
    return tuple(layers // stages + (place < layers % stages) for place in range(stages))


def _sequence_parallel(row: Mapping[str, Any], used: Framework) -> bool:
    """Return whether a row runs sequence parallelism: as stated, else by default in newer frameworks."""
    if used.name == "megatron-2022":
        return "sequence parallel" in row["recompute"]
    sharing = "megatron-fsdp", "torchtitan", "llama-3", "megascale", "automodel"
    return used.name.startswith("megatron-bridge") or used.name in sharing


def _is_paired(row: Mapping[str, Any]) -> bool:
    """Return whether a row that names its dispatcher says that passes are paired, for which Megatron Core needs a
    pipeline.

    Megatron Core requires chunks of stages and no recomputation (transformer_config.py,
    overlap_moe_expert_parallel_comm).
    """
    return bool(row.get("overlap_ep") == "on" and _whole(row, "pp", 1) > 1)


def _schedule(row: Mapping[str, Any], pp: int) -> str:
    named = row["overlap_or_schedule"]
    if named.startswith("ZB-"):
        return "zb-h1" if named == "ZB-1p" else "zb-h2"
    chunks = _whole(row, "vp", 2 if named.startswith("interleaved 1F1B, ") or _is_paired(row) else 1)
    if named == "1F1B interleaved":  # one layer a chunk, none in the first and in the last
        chunks = (int(row["layers"]) + 2) // pp
    if chunks == 1 or pp == 1:
        return "1f1b"
    replicas = _whole(row, "dp", _whole(row, "gpus") // (pp * _whole(row, "tp", 1) * _whole(row, "cp", 1)))
    batches = _whole(row, "gbs_seq") // (replicas * _whole(row, "mbs_seq", 1))
    group = (max(batches, pp),) if batches % pp else ()  # as many at once as there are
    return str(ScheduleName("interleaved", (chunks, *group)))


def _recompute(row: Mapping[str, Any], model: Transformer) -> Any:
    if "per op" in row["recompute"]:
        return "operators"
    if _is_paired(row):
        return "none"
    modules = (
        _published_recipe(row).get("recompute", "")
        if row["recompute"] in ("", "off", "on (recipe)")
        else row["recompute"]
    )
    if not isinstance(modules, str):
        names = [name for module in modules for name in _known_recipes()["recomputed"][module]]
        return tuple(name for name in names if model.activation_clamped or name != "experts_clamp")
    return "full" if modules == "full" else "selective" if "selective" in modules else "none"


_RECIPES = {
    "NVFP4": "nvfp4",
    "MXFP8": "mxfp8",
    "FP8-MX": "mxfp8",
    "TENSORWISE": "fp8-tensorwise",
    "ROWWISE": "fp8-rowwise",
    "FP8-CS": "fp8-tensorwise",
    "FP8": "fp8-delayed",
}
"""Recipes by words in the column of precision, the more exact first. Megatron-Bridge calls that with a scale for each
tensor from its largest element FP8, too."""


def _recipe(row: Mapping[str, Any]) -> str:
    found = next((name for word, name in _RECIPES.items() if word in row["precision"].upper()), "")
    return "fp8-tensorwise" if found == "fp8-delayed" and row["framework"].startswith("Megatron-Bridge") else found


def _dtype(row: Mapping[str, Any]) -> str:
    """The number format in which operators compute, but for quantised GEMMs."""
    text = row["precision"].upper()
    if "TF32" in text:
        return "tf32"
    if text.startswith("FP32"):
        return "fp32"
    return "fp16" if "FP16" in text or not text else "bf16"
