"""torchtitan's TOML (v0.2.2, torchtitan/config/job_config.py) as a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.errors import ConfigError
from weft.models import Transformer, load_model
from weft.models.load import named_model
from weft.plan.documents import given_words
from weft.plan.launch_training import PIPELINES
from weft.plan.launched import Launched
from weft.plan.reading import ArgumentReader

_MODELS = {
    ("llama3", "8B"): "llama-3-8b",
    ("llama3", "70B"): "llama-3-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
}
"""Models of the catalogue by torchtitan's names and flavors."""
_FLOAT8, _MX = "quantize.linear.float8", "quantize.linear.mx"
_CONVERTERS = {"float8": _FLOAT8, "mx": _MX, _FLOAT8: _FLOAT8, _MX: _MX}
"""Sections of converters by the names that `model.converters` has for them, of today and of v0.1."""
_OF_V0_1 = {
    "training.compile": "compile.enable",
    "training.batch_size": "training.local_batch_size",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    **{f"{section}.{name}": f"parallelism.{name}" for section in ("training", "experimental") for name in (
        "tensor_parallel_degree", "data_parallel_replicate_degree", "data_parallel_shard_degree",
        "pipeline_parallel_degree", "pipeline_parallel_schedule", "context_parallel_degree",
        "context_parallel_rotate_method", "enable_async_tensor_parallel", "disable_loss_parallel")},
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
}  # fmt: skip
"""Today's names of settings by torchtitan's up to 0.1."""
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
_FLOAT8_RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


def read_torchtitan(flat: Mapping[str, Any], file: str) -> Launched:
    """Return the run that torchtitan's settings, by dotted names, state."""
    old = {new: name for name, new in _OF_V0_1.items() if name in flat and flat.get(new, flat[name]) == flat[name]}
    flat = {**{name: value for name, value in flat.items() if name not in old.values()},
            **{new: flat[name] for new, name in old.items()}}  # fmt: skip
    read = ArgumentReader(given_words(flat), file, "", old)
    for name in _FLAGS & flat.keys():
        if not isinstance(flat[name], bool):
            raise read.wrong(name, str(flat[name]), "true or false")
    fields = _degrees(read) | _precision(read) | _memory(read)
    replicas, shard = fields.pop("replicate"), fields.pop("shard_degree")
    kept = read.text("parallelism.fsdp_reshard_after_forward", known=("default", "always", "never")) or "default"
    if kept == "always" and fields["pp"] > 1:
        read.not_model("parallelism.fsdp_reshard_after_forward", "longer, less memory", kept)
    fields["zero"] = 0 if shard == 1 and fields["cp"] == 1 else 2 if kept == "never" else 3
    local, batch = read.number("training.local_batch_size"), _whole(read, "training.global_batch_size", -1)
    micro = read.number("parallelism.pipeline_parallel_microbatch_size")
    if length := read.number("training.seq_len", "training.max_context_length"):
        fields["sequence"] = length
    if (tokens := read.number(_TOKENS)) and length:  # as torchtitan has batches since 2026
        if tokens % length:
            raise read.wrong(_TOKENS, str(tokens), f"a multiple of the {length} tokens of training.max_context_length")
        micro = tokens // length
        local = micro * (read.number("parallelism.num_pp_microbatches") or 1)
        whole = _whole(read, "training.num_tokens_per_train_step", -1)
        batch = whole // length if whole else None
    if batch:
        fields["batch"] = batch
    fields["micro_batch"] = (micro or 1) if fields["pp"] > 1 else local or 1
    model, trains = _model(read)
    if fields["pp"] > 1:
        fields["schedule"] = _schedule(read, fields["pp"], model)
    else:
        for name in flat:
            if name.startswith("parallelism.pipeline_parallel_") and name != "parallelism.pipeline_parallel_degree":
                read.idle(name, "there are no pipeline stages")
    gpus = None if shard is None else replicas * shard * fields["cp"] * fields["tp"] * fields["pp"]
    settings, style = _settings(read)
    return Launched(
        "torchtitan", "torchtitan", fields, model, settings, style, gpus=gpus, trains=trains,
        local_batch=local or 1, replica_groups=replicas if fields["zero"] else 1, **read.account("torchtitan", True),
    )  # fmt: skip


_FLAGS = frozenset((
    "compile.enable", "parallelism.enable_async_tensor_parallel", f"{_FLOAT8}.enable_fsdp_float8_all_gather",
    f"{_FLOAT8}.emulate", "activation_checkpoint.early_stop",
))  # fmt: skip
"""Settings that are true or false, and no text."""


def _whole(read: ArgumentReader, name: str, none: int) -> int | None:
    """Return a whole number of at least 1; None for the number that means that it is not stated."""
    if read.given.get(name) == [str(none)]:
        read.used[read.name(name)] = "not stated"
        return None
    return read.number(name)


def _degrees(read: ArgumentReader) -> dict[str, Any]:
    """Return how the GPUs share the work; `shard_degree` is None where the system decides it."""

    def degree(name: str) -> int:
        return read.number(f"parallelism.{name}_degree") or 1

    found: dict[str, Any] = {"tp": degree("tensor_parallel"), "pp": degree("pipeline_parallel")}
    found |= {"cp": degree("context_parallel"), "ep": degree("expert_parallel"), "sp": found["tp"] > 1}
    if read.switch("parallelism.enable_sequence_parallel", "sp") is False:
        found["sp"] = False
    found["replicate"] = degree("data_parallel_replicate")
    found["shard_degree"] = _whole(read, "parallelism.data_parallel_shard_degree", -1)
    if read.flag("parallelism.enable_async_tensor_parallel", "async-tp"):
        found["overlap"] = {"tp": "async-tp"}
    rotates = read.text("parallelism.context_parallel_rotate_method", known=("allgather", "alltoall"))
    if found["cp"] > 1:
        found["context"] = "ring" if rotates == "alltoall" else "all_gather"
    if (experts := read.number("parallelism.expert_tensor_parallel_degree")) not in (None, 1):
        read.leave_out("parallelism.expert_tensor_parallel_degree", str(experts))
    return found


def _precision(read: ArgumentReader) -> dict[str, Any]:
    """Return the formats of numbers: `model.converters` decides whether a recipe is in force."""
    found: dict[str, Any] = {}
    kinds = ("bfloat16", "float32")
    if read.text("training.mixed_precision_param", known=kinds) == "float32":
        found["dtype"] = "fp32"
    if (reduced := read.text("training.mixed_precision_reduce", known=kinds)) == "bfloat16":
        read.not_model("training.mixed_precision_reduce", "shorter where replicas are exposed", reduced)
    active = set()
    for name in read.texts("model.converters") or []:
        if name in _CONVERTERS:
            active.add(_CONVERTERS[name])
        else:
            read.not_model("model.converters", "another precision of some operators", name)
    if len(active) == 2:
        both = f"model.converters has {_FLOAT8} and {_MX}, which convert the same layers; keep one"
        raise ConfigError(both, read.file)
    for section in active:
        found["precision"] = _recipe(read, section)
        _read_filter(read, section)
    for section in {_FLOAT8, _MX} - active:
        for name in read.given:
            if name.startswith(f"{section}."):
                read.used[read.name(name)] = "off: model.converters does not name it"
    return found


def _recipe(read: ArgumentReader, section: str) -> str:
    """Return the recipe of a converter that is in force, by its section."""
    name = f"{section}.recipe_name"
    if section == _MX:
        blocks = read.text(name) or "mxfp8_cublas"
        if not blocks.startswith("mxfp8"):
            read.not_model(name, "another precision than the mxfp8 timed here", blocks)
        return "mxfp8"
    recipe = read.text(name, known=_FLOAT8_RECIPES) or "tensorwise"
    if recipe == "rowwise_with_gw_hp":
        read.not_model(name, "gradients of weights in 16 bits: longer", recipe)
    return f"fp8-{recipe.removesuffix('_with_gw_hp')}"


def _read_filter(read: ArgumentReader, section: str) -> None:
    """Account for the layers that a converter leaves in 16 bits; the output layer is in 16 bits here."""
    name = f"{section}.filter_fqns"
    kept = read.texts(name) or []
    if "output" not in kept:
        read.not_model(name, "the output layer is converted, too: shorter", " ".join(kept))
    elif others := [each for each in kept if each not in ("output", "router.gate")]:
        read.not_model(name, "some layers stay in 16 bits: longer", " ".join(others))
    if read.flag(f"{section}.emulate"):
        read.not_model(f"{section}.emulate", "8 bits are emulated in 16: longer")


def _memory(read: ArgumentReader) -> dict[str, Any]:
    """Return what the backward pass recomputes."""
    mode = read.text("activation_checkpoint.mode", known=("none", "selective", "full")) or "selective"
    each = read.text("activation_checkpoint.selective_ac_option")
    if mode == "selective" and each not in (None, "op"):
        if not (each or "").isdecimal() or int(each or 0) < 1:
            raise read.wrong("activation_checkpoint.selective_ac_option", str(each), "op, or a whole number of layers")
        if each == "1":
            return {"recompute": "full"}
        effect = "only every n-th layer is recomputed, in full: shorter, more memory than timed here"
        read.not_model("activation_checkpoint.selective_ac_option", effect, str(each))
        return {"recompute": "full"}
    return {"recompute": "operators" if mode == "selective" else mode}


def _model(read: ArgumentReader) -> tuple[Transformer | None, str]:
    name, flavor = read.text("model.name") or "", read.text("model.flavor") or ""
    known = _MODELS.get((name, flavor)) or (
        named_model(flavor if "/" in flavor else f"{name}-{flavor}") if name and flavor else ""
    )
    return (load_model(known), "") if known else (None, f"{name} {flavor}".strip())


def _settings(read: ArgumentReader) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the file changes in the framework's defaults, and in the operators that it writes."""
    settings: dict[str, Any] = {}
    style: dict[str, Any] = {}
    low = f"{_FLOAT8}.enable_fsdp_float8_all_gather"
    if read.used.get(low, "").startswith("off"):
        pass  # its converter is not in force
    elif (gathered := read.switch(low, "keeps_low")) is not None:
        settings["keeps_low"] = gathered
    compiled = read.switch("compile.enable", "kernels of several operators")
    parts = read.texts("compile.components")
    if parts and (strange := [part for part in parts if part not in ("model", "loss")]):
        raise read.wrong("compile.components", " ".join(strange), "some of model, loss")
    if compiled is not None:  # without, PyTorch runs every operator by itself
        fused, loss = (compiled and (not parts or part in parts) for part in ("model", "loss"))
        style |= {"fused": fused, "eager": not fused}
        style["loss"] = "compiled_cross_entropy" if loss else "eager_cross_entropy"
    if (early := read.switch("activation_checkpoint.early_stop", "stops_early")) is not None:
        settings["stops_early"] = early
    update = read.text("optimizer.implementation", known=("for-loop", "foreach", "fused"))
    if update is not None:
        settings["fused_optimizer"] = update == "fused"
    return settings, style


def _schedule(read: ArgumentReader, pp: int, model: Transformer | None) -> str:
    named = {name: kind for kind, name in PIPELINES.items()}
    kind = named[read.text("parallelism.pipeline_parallel_schedule", known=tuple(named)) or "1F1B"]
    each = read.number("parallelism.pipeline_parallel_layers_per_stage")
    if kind != "interleaved":
        return kind
    return f"interleaved:{max(-(-model.layers // (pp * each)), 2) if each and model else 2}"
