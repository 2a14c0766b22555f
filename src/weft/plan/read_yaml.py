"""YAML files that start a training: of NeMo AutoModel, of NeMo and Megatron-Bridge, and of Primus.

NVIDIA-NeMo/Automodel docs/guides (recipes), NVIDIA/NeMo examples/nlp/language_modeling/conf, AMD-AGI/Primus
examples/megatron/configs and examples/torchtitan/configs. Base files that a YAML names are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import ConfigError, InputError
from weft.models import Transformer, load_model
from weft.models.load import model_names
from weft.plan.launched import Launched
from weft.plan.read_megatron import read_overrides
from weft.plan.read_torchtitan import flatten, read_torchtitan, to_words
from weft.plan.reading import ArgumentReader

_KEY = re.compile(
    r"(^|[\s{,])(tensor_model_parallel_\w+|tensor_parallel_degree|tp_size|ep_size|micro_batch_size|global_batch_size"
    r"|local_batch_size|train_batch_size)\s*:",
    re.MULTILINE,
)
_SETTINGS = 20_000
"""Most settings of a YAML: its anchors can repeat tables without end."""
_BASE = "What the YAML leaves to the files that it names has Weft's defaults, such as TP 1."


def is_yaml(text: str) -> bool:
    """Return whether a text is the YAML of a training, by its keys."""
    return _KEY.search(text) is not None


def read_yaml(text: str, file: str) -> Launched:
    """Return the run that a YAML starts; InputError for one of a format that Weft does not read."""
    document = _parse_yaml(text, file)
    flat: dict[str, Any] = {}
    for name, value in flatten(document, file):
        flat[name] = value
        if len(flat) > _SETTINGS:
            raise ConfigError(f"it has more than {_SETTINGS:,} settings; repeat less", file)
    if "step_scheduler" in document or any(name.endswith("tp_size") for name in flat):
        return _automodel(flat, file)
    if "modules" in document:
        return _primus(document, file)
    if any(name.endswith("tensor_model_parallel_size") for name in flat):
        return _nemo(flat, file)
    kind = "SageMaker HyperPod" if any(name.endswith("parallel_degree") for name in flat) else "a kind unknown to Weft"
    raise InputError(
        f"'{file}' is a YAML of {kind}, which is not read: Weft needs the model and the degrees of tensor, pipeline, "
        "context, expert and data parallelism; state them by options: weft step MODEL --tp --pp --cp --ep --zero "
        "--batch --micro-batch --sequence --recompute"
    )


def _parse_yaml(text: str, file: str) -> Mapping[str, Any]:
    import yaml  # imported for such a file only

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else None
        raise ConfigError("this is no YAML; mend it there", file, where) from None
    if not isinstance(document, dict):
        raise ConfigError("this is no table of settings", file)
    return {str(name): value for name, value in document.items()}


def _named_model(name: str) -> Transformer | None:
    """Return the model of the catalogue that a name on Hugging Face, or of a file, means; None if there is none."""
    wanted = _plain(name.rpartition("/")[2].removesuffix(".yaml"))
    known = {_plain(each): each for each in model_names()}
    wanted = {"llama318b": "llama38b", "llama3170b": "llama370b", "llama38binstruct": "llama38b"}.get(wanted, wanted)
    return load_model(known[wanted]) if wanted in known else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(?i)^meta-|-base$|-instruct$|-hf$", "", name).lower())


# -- NeMo AutoModel


def _automodel(flat: Mapping[str, Any], file: str) -> Launched:
    given = {name: to_words(value) for name, value in flat.items() if value is not None}
    read = ArgumentReader(given, file, "")
    fields: dict[str, Any] = {}
    strategy = read.text("distributed.strategy", known=("fsdp2", "megatron_fsdp", "ddp")) or "fsdp2"
    fields["zero"] = 0 if strategy == "ddp" else 3
    for axis in ("tp", "cp", "pp", "ep"):
        if degree := read.number(f"distributed.{axis}_size"):
            fields[axis] = degree
    if (shared := read.switch("distributed.sequence_parallel", "sp")) is not None:
        fields["sp"] = shared and fields.get("tp", 1) > 1
    if (again := read.switch("distributed.activation_checkpointing", "recompute")) is not None:
        fields["recompute"] = "full" if again else "none"
    groups = read.number("distributed.dp_replicate_size") or 1
    if batch := read.number("step_scheduler.global_batch_size"):
        fields["batch"] = batch
    if local := read.number("step_scheduler.local_batch_size"):
        fields["micro_batch"] = local
    length = read.number("packed_sequence.packed_sequence_size", least=0) or read.number(
        "dataset.seq_len", "dataset.seq_length", "dataset.sequence_length"
    )
    if length:
        fields["sequence"] = length
    backend = read.text("model.backend.dispatcher", known=("deepep", "hybridep", "torch", "uccl_ep"))
    if backend and fields.get("ep", 1) > 1:
        fields["dispatcher"] = {"torch": "nccl", "uccl_ep": "uccl"}.get(backend, backend)
    name = read.text("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path")
    if name is None:
        name = read.text("model.config.pretrained_model_name_or_path")
    model = _named_model(name) if name else None
    if groups > 1 and fields["zero"] != 3:
        groups = 1
    return Launched(
        "automodel", "automodel", fields, model, replica_groups=groups, trains=name or "",
        **read.account("automodel", True),
    )  # fmt: skip


# -- NeMo and Megatron-Bridge


def _nemo(flat: Mapping[str, Any], file: str) -> Launched:
    overridden = {name: " ".join(to_words(value)) for name, value in flat.items()}
    return read_overrides(overridden, file, (_BASE,))


# -- Primus


def _primus(document: Mapping[str, Any], file: str) -> Launched:
    modules = document["modules"] if isinstance(document["modules"], dict) else {}
    trainer = next((each for name, each in modules.items() if "trainer" in str(name) and isinstance(each, dict)), None)
    changed = trainer.get("overrides") if trainer else None
    if trainer is None or not isinstance(changed, dict):
        raise InputError(f"'{file}' is a YAML of Primus without a trainer; give one with modules.pre_trainer.overrides")
    named = str(trainer.get("model", ""))
    model = _named_model(named) if named else None
    if trainer.get("framework") == "torchtitan":
        found = read_torchtitan(changed, file)
    else:
        overridden = {name: " ".join(to_words(value)) for name, value in flatten(changed, file)}
        found = read_overrides(overridden, file, (_BASE,), "megatron-core")
    return replace(found, model=found.model or model, trains=found.trains or named)
