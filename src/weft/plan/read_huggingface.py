"""Runs of Hugging Face's trainers: their YAML files and arguments, with files of Accelerate, DeepSpeed and FSDP.

huggingface/transformers TrainingArguments, huggingface/trl, huggingface/accelerate, hiyouga/LLaMA-Factory and
axolotl-ai-cloud/axolotl share most names of settings; one table has them all (`arguments.toml`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from weft.core.errors import ConfigError
from weft.models.parallel.plan import TrainingPlan
from weft.plan.documents import flat_settings, given_words, parse_json, read_beside
from weft.plan.launched import Launched, combine, compiled_style, find_model
from weft.plan.read_deepspeed import read_deepspeed
from weft.plan.read_megatron import read_overrides
from weft.plan.reading import ArgumentReader, known_arguments
from weft.plan.script import Arguments, is_unknown

_KERNELS = {"flash": True, "dropout": False}
"""Attention of the models of transformers: PyTorch's fused kernel."""
_OF_DEEPSPEED = "deepspeed-zero3"
_STAGE = 2
"""DeepSpeed's stage where neither a JSON nor an argument of Accelerate states one (accelerate/utils/dataclasses.py)."""
_FORMAT = "The launch states no number format; bf16 is taken, the trainer by itself computes in fp32 (--dtype fp32)."
_VARIANTS = {
    "axolotl": {"base_model"},
    "llamafactory": {"finetuning_type", "stage", "cutoff_len", "template"},
    "trl": {"max_length", "dataset_text_field", "use_peft", "completion_only_loss", "assistant_only_loss", "packing"},
    "trainer": {"model_name_or_path", "output_dir", "per_device_train_batch_size", "gradient_accumulation_steps"},
    "accelerate": {"distributed_type"},
}
"""Settings by which a trainer is known: the first that has one."""
TOOLS = {"llamafactory-cli": "llamafactory", "lmf": "llamafactory", "axolotl": "axolotl", "trl": "trl"}
"""Trainers by the command that starts them."""
_NAMES = frozenset((
    "base_model", "model_name_or_path", "per_device_train_batch_size", "distributed_type", "dist_config.name",
))  # fmt: skip


_ON_ACCELERATE = re.compile(
    r"(?P<deepspeed>deepspeed_(?!multinode)\w+|zero\w+|offload_\w+|gradient_clipping)|(?P<fsdp>fsdp_\w+)"
    r"|(?P<parallelism>parallelism_config_\w+)"
)
"""Arguments of accelerate launch by the section of its YAML that has the same settings."""
_SHARDINGS = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}


def is_huggingface(names: Mapping[str, Any]) -> bool:
    """Return whether settings are those of one of Hugging Face's trainers, or of Accelerate."""
    return bool(_NAMES & names.keys())


def read_huggingface(flat: Mapping[str, Any], file: str) -> Launched:
    """Return the run that settings of a trainer state, with those of the files that they name."""
    nested = {name.partition(".")[2]: value for name, value in flat.items() if name.startswith("deepspeed.")}
    plain = {name: value for name, value in flat.items() if not name.startswith("deepspeed.")}
    found = read_trainer(given_words(plain), file)
    if not nested:
        return found
    return replace(combine(read_deepspeed(nested, file), found), framework=_OF_DEEPSPEED)


def accelerate_settings(
    given: Arguments, launcher: Arguments, sharding: str
) -> tuple[dict[str, list[str]], dict[str, str], dict[str, str]]:
    """Return the arguments of a command of accelerate by the names that its YAML has for its `launcher`'s.

    Also returns the argument as the command has it for each of these names, and the reason why others are idle.
    `sharding` is the `distributed_type` of the YAML that the command names.
    """
    kind = next((kind for name, kind in _SHARDINGS.items() if name in launcher), sharding.upper())
    found = {name: words for name, words in given.items() if name not in launcher}
    names, idle = {}, {}
    for name, words in launcher.items():
        section = _ON_ACCELERATE.fullmatch(name)
        of = section.lastgroup if section else ""
        if name in _SHARDINGS:
            found["distributed_type"] = [kind]
            names["distributed_type"] = f"--{name}"
        elif of in ("deepspeed", "fsdp") and kind != of.upper():
            idle[name] = f"of --use_{of}, which is not chosen"
            found[name] = words
        else:
            key = f"{of}_config.{name}" if of else name
            found[key] = given[name] if key == name else words or ["true"]
            names |= {key: f"--{name}"} if of else {}
    return found, names, idle


def read_trainer(
    given: Arguments, file: str, launching: Mapping[str, str] = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}), tool: str = "",
) -> Launched:  # fmt: skip
    """Return the run that a trainer's settings, or arguments of its command, state.

    Some are of its launcher, `launching`, by the reason why they change nothing; `names` are names that messages have.
    `tool` is the command that starts a trainer of its own, if one does.
    """
    read = ArgumentReader(_with_fsdp(given, file), file, "", names, launching)
    table = known_arguments("huggingface")
    found = read.table(table.reads)
    variant = TOOLS.get(tool) or next((name for name, names in _VARIANTS.items() if names & given.keys()), "trainer")
    fields = {name: value for name, value in found.items() if name in TrainingPlan.__dataclass_fields__}
    _put_format(read, found, fields)
    if "ulysses" in found:
        fields |= {"cp": found["ulysses"], "context": "all_to_all"}
    if fields.get("cp", 1) == 1:
        fields.pop("context", None)
    sharding = found.get("sharding", "deepspeed" if "deepspeed" in found else "")
    if fields.get("zero", 3) < 2 or "zero" not in fields:
        fields.pop("shard", None)
    style = _KERNELS | compiled_style(bool(found.get("compiled")))
    style |= {name.removeprefix("style."): value for name, value in found.items() if name.startswith("style.")}
    if found.get("cut", found.get("cuts")):  # Axolotl's plugin is on unless cut_cross_entropy turns it off
        style["loss"] = "fused_cross_entropy"
    settings = {name.removeprefix("settings."): value for name, value in found.items() if name.startswith("settings.")}
    settings |= _update(str(found.get("update", "")), sharding == "deepspeed")
    account = read.account("huggingface")
    parallel = {name: words for name, words in given.items() if read.name(name) in account["not_understood"]}
    usual = {**table.defaults[variant], **({"zero": 0} if sharding in ("", "ddp") else {})}
    if sharding == "deepspeed" and "deepspeed" not in found:
        usual["zero"] = _STAGE
    defaults = {name: value for name, value in usual.items() if name not in fields}
    model, trains = find_model(found.get("model") or found.get("also_model", ""), file)
    framework = _OF_DEEPSPEED if sharding == "deepspeed" else "torchtitan"
    launched = Launched(
        variant, framework, fields, model, settings,
        style, gpus=found.get("gpus"), trains=trains, defaults=defaults, replica_groups=found.get("groups", 1),
        accumulation=found.get("accumulation") or (1 if "micro_batch" in fields and "batch" not in fields else None),
        notes=() if "dtype" in {**fields, **defaults} else (_FORMAT,), **account,
    )  # fmt: skip
    if any(name.endswith("_model_parallel_size") for name in parallel):
        launched = _with_megatron(launched, parallel, file)
    return _with_deepspeed(launched, str(found.get("deepspeed", "")), file)


def _with_fsdp(given: Arguments, file: str) -> Arguments:
    """Return arguments with the settings of the JSON that `fsdp_config` names, if it is beside the launch file."""
    named = " ".join(given.get("fsdp_config", ()))
    text = read_beside(named, file) if named.endswith(".json") and not is_unknown(named) else None
    document = None if text is None else parse_json(text, named)
    if document is None:
        return given
    rest = {name: words for name, words in given.items() if name != "fsdp_config"}
    stated = given_words(flat_settings({"fsdp_config": document}, named))
    return {**{name.replace("fsdp_config.fsdp_", "fsdp_config."): words for name, words in stated.items()}, **rest}


def _update(kind: str, has_main_weights: bool) -> dict[str, Any]:
    """Return what an optimizer changes in its framework: its kernel, or the bytes of its states.

    AdamW of 8 bits (bitsandbytes, torchao) holds two states of a byte; their scales, a block's, are left out. DeepSpeed
    holds main weights in fp32 with them.
    """
    if kind == "8-bit":
        return {"optimizer_bytes": 2 + 4 * has_main_weights}
    return {"fused_optimizer": kind == "fused"} if kind else {}


def _put_format(read: ArgumentReader, found: dict[str, Any], fields: dict[str, Any]) -> None:
    """Put the number format, and the recomputation, that a trainer's several switches mean into the fields."""
    for name in ("bf16", "fp16"):  # of several switches for one format one suffices
        on = [value for key, value in found.items() if key in (name, f"also_{name}")]
        if on:
            found[name] = any(on)
    if found.get("also_recompute"):
        fields["recompute"] = "full"
    if found.get("bf16") and found.get("fp16"):
        raise ConfigError(f"{read.name('bf16')} and {read.name('fp16')} contradict each other; give one", read.file)
    low = "bf16" if found.get("bf16") else "fp16" if found.get("fp16") else ""
    if not low and found.get("bf16") is False and "dtype" not in fields:
        low = "fp32"
    if low:
        fields["dtype"] = low


def _with_megatron(launched: Launched, parallel: Arguments, file: str) -> Launched:
    """Return a run whose trainer hands its parallelism to Megatron (LLaMA-Factory's use_mca and megatron_bridge)."""
    overridden = {name: " ".join(words) for name, words in parallel.items()}
    megatron = read_overrides(overridden, file, (), "megatron-core")
    own = replace(launched, not_understood=(), defaults={}, style={}, framework=megatron.framework)
    return replace(combine(own, megatron), launcher=launched.launcher)


def _with_deepspeed(launched: Launched, named: str, file: str) -> Launched:
    """Return a run with the settings of the DeepSpeed JSON that it names."""
    if not named:
        return launched
    text = read_beside(named, file)
    document = parse_json(text, named) if text is not None else None
    if document is None:
        left = f"deepspeed {named} (no such file beside the launch file; ZeRO 3 is timed, --zero states another)"
        used = {name: value for name, value in launched.used.items() if value != named}
        return replace(launched, used=used, not_understood=(*launched.not_understood, left))
    return combine(read_deepspeed(flat_settings(document, named), named), launched)
