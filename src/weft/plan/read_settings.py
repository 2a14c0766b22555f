"""Settings of files that start a training: of NeMo AutoModel, NeMo, Megatron-Bridge, Primus, SageMaker HyperPod.

NVIDIA-NeMo/Automodel examples, NVIDIA/NeMo examples/nlp/language_modeling/conf, AMD-AGI/Primus
examples/megatron/configs and examples/torchtitan/configs, aws/sagemaker-hyperpod-recipes recipes_collection. Of the
base files that a YAML names, those of HyperPod's recipes are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import InputError
from weft.models import Transformer
from weft.models.parallel.plan import TrainingPlan
from weft.plan.documents import (
    BY_OPTIONS,
    flat_settings,
    given_words,
    parse_json,
    parse_toml,
    parse_yaml,
    read_beside,
    resolve_references,
)
from weft.plan.launched import Launched, compiled_style, find_model
from weft.plan.read_deepspeed import read_deepspeed
from weft.plan.read_huggingface import is_huggingface, read_huggingface
from weft.plan.read_megatron import read_overrides
from weft.plan.read_nemo_rl import is_nemo_rl, read_nemo_rl
from weft.plan.read_torchtitan import read_torchtitan
from weft.plan.reading import ArgumentReader, known_arguments

_KEY = re.compile(
    r"(^|[\s{,\"'])(tensor_model_parallel_\w+|tensor_parallel_degree|tp_size|ep_size|shard_degree|\w*batch_size"
    r"|per_device_train_batch_size|distributed_type|max_context_width|megatron_cfg|dtensor_cfg|base_model|model_name_or_path)[\"']?\s*:",
    re.MULTILINE,
)
_BASE = "What the YAML leaves to the files that it names has Weft's defaults, such as TP 1."


def read_document(text: str, file: str) -> dict[str, Any] | None:
    """Return the settings of a JSON, TOML or YAML by their dotted names; None for a text that is none of these."""
    if text.lstrip().startswith("{") and (document := parse_json(text, file)) is not None:
        return flat_settings(document, file)
    if {"parallelism", "training"} & (tables := parse_toml(text)).keys():
        return flat_settings(tables, file)
    is_script = text.startswith("#!") or file.endswith((".sh", ".sbatch"))
    return flat_settings(parse_yaml(text, file), file) if _KEY.search(text) and not is_script else None


def read_flat(flat: Mapping[str, Any], file: str, defined: Mapping[str, str]) -> Launched | None:
    """Return the run that settings state, by the launcher that they are those of.

    None for settings of no launcher in JSON or TOML; raises InputError for a YAML that seems to be one, and for
    settings most of which are not understood: what is left open would be timed with defaults.
    """
    found = _read_known(flat, file, defined)
    strange = 0 if found is None else len(found.not_understood)
    if found and strange > len(found.used) + len(found.without_effect) + len(found.not_modelled):
        raise InputError(
            f"'{file}' seems to be settings of {found.launcher}, but {strange} of them are not understood, such as "
            f"{', '.join(found.not_understood[:3])}: the kind is unknown to Weft, and is not read; {BY_OPTIONS}"
        )
    return found


def _read_known(flat: Mapping[str, Any], file: str, defined: Mapping[str, str]) -> Launched | None:
    """Return the run that settings state; None for settings of no launcher in JSON or TOML."""
    stated, flat = flat, resolve_references(flat, defined)
    sections = {name.partition(".")[0] for name in flat}
    refuse_reinforcement(flat, file)
    if _DEEPSPEED & {*sections}:
        return read_deepspeed(flat, file)
    if sections & {"step_scheduler", "distributed"}:
        return _automodel(flat, file)
    if "modules" in sections:
        return _primus(flat, file)
    if is_huggingface(flat):
        return read_huggingface(flat, file)
    if sections & {"parallelism", "training"} and not any("parallel_size" in name for name in flat):
        return read_torchtitan(flat, file)
    if is_nemo_rl(flat):
        return read_nemo_rl(stated, file, defined)
    if any(name.endswith("tensor_model_parallel_size") for name in flat):
        return _nemo(flat, file)
    if _HYPERPOD & flat.keys():
        return _hyperpod(flat, file)
    if file.endswith(".json") or not any(re.search(_BATCHES, name) for name in flat):
        return None
    raise InputError(
        f"'{file}' is a YAML of a kind unknown to Weft, which is not read: Weft needs the model and the degrees of "
        f"tensor, pipeline, context, expert and data parallelism; {BY_OPTIONS}"
    )


def refuse_reinforcement(names: Iterable[str], file: str) -> None:
    """Raise InputError for settings of verl's reinforcement learning, whose parallelism is that of rollouts, too."""
    if any(name.partition("actor_rollout_ref.")[1] for name in names):
        raise InputError(
            f"'{file}' starts reinforcement learning by verl, whose steps are rollouts and updates; Weft times the "
            "update by options, weft step MODEL --tp --pp --zero --batch --micro-batch --sequence, and rollouts by "
            "weft serve"
        )


_HYPERPOD = frozenset((
    "model.train_batch_size", "training_config.training_args.micro_train_batch_size",
    "training_config.data.micro_batch_size_per_gpu", "training_config.training_args.train_batch_size",
))  # fmt: skip
_DEEPSPEED = frozenset(("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"))
_BATCHES = "batch_size|parallel"


def _by_table(launcher: str, flat: Mapping[str, Any], file: str) -> tuple[ArgumentReader, dict[str, Any]]:
    """Return what a launcher's table says of some settings, by what of a run they are."""
    read = ArgumentReader(given_words(flat), file, "")
    return read, read.table(known_arguments(launcher).reads)


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is a field of a plan."""
    return {name: value for name, value in found.items() if name in TrainingPlan.__dataclass_fields__}


# -- NeMo AutoModel


def _automodel(flat: Mapping[str, Any], file: str) -> Launched:
    read, found = _by_table("automodel", flat, file)
    fields = {"zero": 3, **_fields(found)}
    fields |= {"sp": False} if fields.get("tp", 1) == 1 and "sp" in fields else {}
    if length := found.get("packed"):
        fields["sequence"] = length
    if fields.get("ep", 1) == 1:
        fields.pop("dispatcher", None)
    if found.get("fp8") and "precision" not in fields:
        fields["precision"] = found.get("torchao", "fp8-tensorwise")
    model, trains = find_model(found.get("model", ""), file)
    stages, groups = fields.get("pp", 1), found.get("groups", 1)
    if stages > 1:
        fields["micro_batch"] = found.get("pp_micro_batch", 1)
        fields["schedule"] = _schedule(found, stages, model)
    else:
        fields.pop("schedule", None)
    return Launched(
        "automodel", "automodel", fields, model, replica_groups=groups if fields["zero"] == 3 else 1, trains=trains,
        **read.account("automodel", True),
    )  # fmt: skip


def _schedule(found: Mapping[str, Any], stages: int, model: Transformer | None) -> str:
    """Return the order of micro-batches, with the virtual stages of the layers that each has."""
    kind, each = str(found.get("schedule", "1f1b")), str(found.get("layers_per_stage", ""))
    if kind != "interleaved":
        return kind
    layers = int(each) if each.isdecimal() and int(each) else 0
    return f"interleaved:{max(-(-model.layers // (stages * layers)), 2) if layers and model else 2}"


# -- SageMaker HyperPod


def _hyperpod(flat: Mapping[str, Any], file: str) -> Launched:
    flat, notes = _with_base_files(flat, file)
    read, found = _by_table("hyperpod", flat, file)
    fields = {"zero": 3, **_fields(found)}
    if fields.get("shard") and found.get("nodes") and found.get("devices"):
        fields["shard"] = min(fields["shard"], found["nodes"] * found["devices"] // fields.get("cp", 1))
    gpus = found["nodes"] * found["devices"] if "nodes" in found and "devices" in found else None
    model, trains = find_model(found.get("model", ""), file)
    style = {name.removeprefix("style."): value for name, value in found.items() if name.startswith("style.")}
    return Launched(
        "hyperpod", "torchtitan", fields, model, style=compiled_style(bool(found.get("compiled"))) | style, gpus=gpus,
        local_batch=None if "batch" in fields else fields.get("micro_batch"), trains=trains, notes=notes,
        **read.account("hyperpod", True),
    )  # fmt: skip


_PACKAGE = re.compile(r"^#\s*@package\s+recipes\.?([\w.]*)", re.MULTILINE)
"""The head of a base file, which says where its settings belong."""
_OF_BASE_FILES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "llmft": ({
        "trainer.devices": 8, "training_config.training_args.max_len": 4096,
        "training_config.training_args.micro_train_batch_size": 1,
        "training_config.training_args.gradient_checkpointing": True,
    }, "sequence 4096, micro-batch 1, full recomputation and 8 GPUs of a node are those of the recipes' base files"),
    "verl": ({"trainer.devices": 8, "training_config.model.enable_gradient_checkpointing": True},
             "full recomputation and 8 GPUs of a node are those of the recipes' base files"),
}  # fmt: skip
"""What base files state, by a word of their names (aws/sagemaker-hyperpod-recipes @2631995 hydra_config), in words."""


def _with_base_files(flat: Mapping[str, Any], file: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return settings with those of the base files that `defaults` names, and a note for files that are not there."""
    named = flat.get("defaults")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    names = [name for name in names if name != "_self_"]
    base: dict[str, Any] = {}
    absent = []
    for name in names:
        text = read_beside(f"{name.lstrip('/')}.yaml", file)
        if text is None:
            absent.append(name)
            continue
        place = _PACKAGE.search(text)
        inside = f"{place[1]}." if place and place[1] else ""
        base |= {f"{inside}{key}": value for key, value in flat_settings(parse_yaml(text, name), name).items()}
    if not absent:
        return {**base, **flat}, ()
    for word, (settings, known) in _OF_BASE_FILES.items():
        if any(word in name for name in absent):
            return {**settings, **base, **flat}, (f"{len(absent)} of {len(names)} base files are not there: {known}.",)
    return {**base, **flat}, (f"{len(absent)} of {len(names)} base files are not there: {', '.join(absent[:3])}.",)


# -- NeMo and Megatron-Bridge


def _nemo(flat: Mapping[str, Any], file: str) -> Launched:
    overridden = {name: " ".join(words) for name, words in given_words(flat).items()}
    found = read_overrides(overridden, file, (_BASE,))
    model, trains = find_model(str(flat.get("run.name") or ""), file)
    return found if found.model else replace(found, model=model, trains=trains if model else "")


# -- Primus

_TITAN = {"activation_checkpoint.mode": "none", "compile.enable": True, "training.local_batch_size": 8}
"""What Primus' own settings of torchtitan state (AMD-AGI/Primus @fd1eeab primus/configs/modules/torchtitan)."""
_FLOAT8 = "quantize.linear.float8"
"""What the models whose files end in -fp8 convert (primus/configs/models/torchtitan)."""


_TRAINER = re.compile(r"modules\.(\w*trainer\w*)\.overrides\.")


def _primus(flat: Mapping[str, Any], file: str) -> Launched:
    trainer = next((part[1] for name in flat if (part := _TRAINER.match(name))), "")
    prefix = f"modules.{trainer}."
    changed = {name.removeprefix(f"{prefix}overrides."): value for name, value in flat.items()
               if name.startswith(f"{prefix}overrides.")}  # fmt: skip
    if not changed:
        raise InputError(f"'{file}' is a YAML of Primus without a trainer; give one with modules.pre_trainer.overrides")
    named = str(flat.get(f"{prefix}model") or "")
    if flat.get(f"{prefix}framework") == "torchtitan":
        converters = [_FLOAT8] if "fp8" in named.lower() else []
        found = read_torchtitan({**_TITAN, "model.converters": converters, **changed}, file)
    else:
        overridden = {name: " ".join(words) for name, words in given_words(changed).items()}
        found = read_overrides(overridden, file, (_BASE,), "megatron-core")
    model, trains = find_model(named, file)
    return replace(found, model=found.model or model, trains=found.trains or trains)
