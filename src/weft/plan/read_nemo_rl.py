"""YAML of NeMo-RL's supervised fine-tuning (NVIDIA-NeMo/RL examples/configs) as a run, by Megatron Core or DTensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import InputError
from weft.core.files import read_text
from weft.models.parallel.plan import TrainingPlan
from weft.plan.documents import (
    BY_OPTIONS,
    LARGEST,
    find_beside,
    flat_settings,
    given_words,
    parse_yaml,
    resolve_references,
)
from weft.plan.launched import Launched, find_model
from weft.plan.read_megatron import read_overrides
from weft.plan.reading import ArgumentReader, known_arguments

_MEGATRON, _DTENSOR = "policy.megatron_cfg.", "policy.dtensor_cfg."
_IDLE = {
    "sft": "length of the run", "checkpointing": "checkpoints", "data": "data", "logger": "what is logged",
    "cluster": "starts processes", "defaults": "starts processes",
}  # fmt: skip
"""Sections that change no step, by the reason."""
_DEEPEST = 10
"""Most files that name each other as their base."""


def is_nemo_rl(flat: Mapping[str, Any]) -> bool:
    """Return whether settings belong to NeMo-RL."""
    return "policy.model_name" in flat or any(name.startswith((_MEGATRON, _DTENSOR)) for name in flat)


def read_nemo_rl(flat: Mapping[str, Any], file: str, defined: Mapping[str, str]) -> Launched:
    """Return the run that NeMo-RL's settings state, over the files that `defaults` names.

    Raises InputError for another algorithm than supervised fine-tuning: its steps have parts that are no training.
    """
    merged, absent = _with_base(flat, file)
    merged = resolve_references(merged, defined)
    algorithm = next(
        (name.partition(".")[0] for name in merged if name.partition(".")[0] not in ("policy", *_IDLE)), ""
    )
    if algorithm or not any(name.startswith("sft.") for name in merged):
        lacks = f" (not found beside it: {', '.join(absent)})" if absent else ""
        raise InputError(
            f"'{file}' starts {algorithm or 'a training'} of NeMo-RL{lacks}, of which Weft reads supervised "
            f"fine-tuning (sft) alone; for the update of a policy {BY_OPTIONS}, for its rollouts weft serve"
        )
    megatron = merged.get(f"{_MEGATRON}enabled") is True
    off, which = (_DTENSOR, "DTensor") if megatron else (_MEGATRON, "Megatron Core")
    idle = {name: _IDLE[section] for name in merged if (section := name.partition(".")[0]) in _IDLE}
    idle |= {name: f"of {which}, which is off" for name in merged if name.startswith(off)}
    if megatron:
        idle |= {name: f"of {which}, which is off" for name in merged if name.startswith("policy.optimizer.")}
    rest = {name: value for name, value in merged.items() if name not in idle}
    parallel = {name: rest.pop(name) for name in [*rest] if megatron and name.startswith(_MEGATRON)}
    read = ArgumentReader(given_words(rest), file, "")
    found = read.table(known_arguments("nemo_rl").reads)
    fields = {name: value for name, value in found.items() if name in TrainingPlan.__dataclass_fields__}
    model, trains = find_model(found.get("model", ""), file)
    nodes, each = (merged.get(f"cluster.{name}") for name in ("num_nodes", "gpus_per_node"))
    account = read.account("nemo_rl", True)
    account["without_effect"] |= idle
    notes = (f"Not found beside the YAML, so that Weft's defaults count: {', '.join(absent)}.",) if absent else ()
    own = Launched(
        "nemo-rl", "automodel", {} if megatron else {"zero": 3, "sp": False}, model, trains=trains,
        gpus=nodes * each if isinstance(nodes, int) and isinstance(each, int) else None,
        replica_groups=found.get("groups", 1), notes=notes, **account,
    )  # fmt: skip
    own = replace(own, fields={**own.fields, **fields})
    return _with_megatron(own, parallel, file) if megatron else own


def _with_megatron(own: Launched, parallel: Mapping[str, Any], file: str) -> Launched:
    """Return a run with the settings of Megatron Core; a part that is off has no effect."""
    parallel = dict(parallel)
    idle = {
        each: "timed so here" for name in ("enabled", "pipeline_dtype") if (each := f"{_MEGATRON}{name}") in parallel
    }
    recomputes = parallel.pop(f"{_MEGATRON}activation_checkpointing", False) is True
    granularity = parallel.get(f"{_MEGATRON}recompute_granularity", "full")
    for part in ("fp8_cfg", "peft"):
        if parallel.get(f"{_MEGATRON}{part}.enabled") is not True:
            idle |= {name: "off" for name in parallel if name.startswith(f"{_MEGATRON}{part}.")}
    if not recomputes:
        idle |= {name: "nothing is recomputed" for name in parallel if name.startswith(f"{_MEGATRON}recompute_")}
    if parallel.get(f"{_MEGATRON}distributed_data_parallel_config.use_custom_fsdp") is not True:
        name = f"{_MEGATRON}distributed_data_parallel_config.data_parallel_sharding_strategy"
        idle |= {name: "of Megatron's FSDP, which is off"} if name in parallel else {}
    rest = {name.replace("fp8_cfg.", ""): value for name, value in parallel.items() if name not in idle}
    if recomputes:
        rest[f"{_MEGATRON}recompute_granularity"] = granularity
        if granularity == "full":
            rest |= {f"{_MEGATRON}recompute_method": "uniform", f"{_MEGATRON}recompute_num_layers": 1}
    found = read_overrides({name: " ".join(words) for name, words in given_words(rest).items()}, file, ())
    return replace(
        own, framework=found.framework, fields={**found.fields, **own.fields}, settings=found.settings,
        style=found.style, used={**own.used, **found.used}, not_modelled={**own.not_modelled, **found.not_modelled},
        without_effect={**own.without_effect, **idle, **found.without_effect},
        not_understood=(*own.not_understood, *found.not_understood),
    )  # fmt: skip


def _with_base(flat: Mapping[str, Any], file: str, depth: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Return settings over the files that `defaults` names, and the files that are not there."""
    named = flat.get("defaults") or []
    base: dict[str, Any] = {}
    absent: list[str] = []
    for name in [named] if isinstance(named, str) else named if isinstance(named, list) else []:
        path = find_beside(str(name), file) if depth < _DEEPEST else None
        if path is None:
            absent.append(str(name))
            continue
        own = flat_settings(parse_yaml(read_text(path, LARGEST), str(path)), str(path))
        merged, more = _with_base(own, str(path), depth + 1)
        base |= merged
        absent.extend(more)
    return {**base, **flat}, absent
