"""Launch files that users wrote, read as the plan that they start; `weft.plan.launch` writes such files.

Arguments of Megatron-LM and Megatron Core in a shell script (NVIDIA/Megatron-LM @d98e8a6,
megatron/training/arguments.py), the same as overrides of Megatron-Bridge and NeMo, torchtitan's TOML (v0.2.2,
torchtitan/config/job_config.py) and DeepSpeed's JSON (deepspeed/runtime/config.py). The content says which one it is.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft import hardware
from weft.answer import Record
from weft.errors import ConfigError, InputError, shown
from weft.files import packaged_toml, read_text
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.options import SUSTAINED, Fidelity, RunOptions
from weft.parallel.framework import Framework
from weft.parallel.framework import framework as framework_of
from weft.plan.launch import MODULES, PIPELINES, RECIPE_FLAGS
from weft.plan.script import OFF, Arguments, arguments, has_conditions, overrides
from weft.result.step import Step
from weft.run.step.named import step

_LARGEST = 1 << 20
"""Longest launch file [bytes]."""
_LISTED = 12
"""Most arguments that a note lists."""


@cache
def _without_effect() -> Mapping[str, list[str]]:
    """By launcher the arguments, or beginnings of settings, that change neither time nor memory as Weft counts them."""
    return packaged_toml("weft.plan", "without_effect.toml")


@dataclass(frozen=True)
class Launched(Record):
    """The run that a launch file starts: its model, if the file states one, and its plan.

    `fields` are those of `weft.Parallelism` that the file states, `settings` what it changes in the defaults of the
    `framework`. `used` says of each argument what it became, `without_effect` lists those that change neither time nor
    memory of a step, `not_understood` those that Weft leaves out. `gpus` is how many the file asks for, if it says.
    """

    launcher: str
    framework: str
    fields: Mapping[str, Any]
    model: Transformer | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    gpus: int | None = None
    notes: tuple[str, ...] = ()

    def step(
        self,
        system: Described,
        model: Transformer | str | Path | None = None,
        *,
        options: RunOptions = SUSTAINED,
        fidelity: Fidelity = "windows",
        measured: str | None = None,
        instead: Mapping[str, Any] = MappingProxyType({}),
        **stated: Any,
    ) -> Step:
        """A step of the run on a system, as `weft.step` times it.

        `model` is needed where the file states none; `stated` are fields of the plan that the file leaves to the
        program, such as recomputation under DeepSpeed. Fields in `instead` replace what the file states, to try a
        change. Raises InputError for `stated` fields that the file states otherwise, and for another number of GPUs.
        """
        machine = hardware.system(system)
        if self.gpus not in (None, machine.gpus):
            raise InputError(f"the launch file starts {self.gpus} GPUs, the system has {machine.gpus}; give as many")
        found = self.model if model is None else load_model(model)
        if found is None:
            raise InputError("the launch file does not say which model it trains; name one, like llama-3-8b")
        given = {name: value for name, value in stated.items() if value is not None}
        used: Framework | str = given.pop("framework", None) or self.framework
        if isinstance(used, str):
            used = replace(framework_of(used), **self.settings)
        used = instead.get("framework", used)
        plan = self.plan(machine.gpus, given, {name: instead[name] for name in instead if name != "framework"})
        answer = step(found, machine, framework=used, options=options, fidelity=fidelity, measured=measured, **plan)
        return replace(answer, notes=(*self._said(found), *answer.notes))

    def plan(
        self, gpus: int, stated: Mapping[str, Any], instead: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """The fields of `weft.Parallelism` on a number of GPUs, with those `stated` that the file leaves open, and with
        those in `instead` of the file's.

        Raises InputError for a `stated` field that the file states otherwise.
        """
        for name in stated:
            if name in self.fields and stated[name] != self.fields[name]:
                raise InputError(f"the launch file has {name} {self.fields[name]}, not {stated[name]}; change it there")
        fields = {**self.fields, **stated, **instead}
        replicas = max(gpus // (fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)), 1)
        for each in ("local_batch", "accumulated"):
            if each in fields:
                fields.setdefault("batch", fields[each] * replicas)
        if (instances := fields.pop("instances", 1)) > 1:
            fields["shard"] = replicas * fields.get("cp", 1) // instances
        return {name: value for name, value in fields.items() if name not in ("local_batch", "accumulated")}

    def _said(self, model: Transformer) -> Iterator[str]:
        """What a reader must know of how the file was read."""
        own = model if self.model is None else self.model
        if (model.layers, model.hidden) != (own.layers, own.hidden):
            yield f"The launch file describes another model than {model.title}, which was timed."
        yield f"Read from the launch file: {len(self.used)} arguments used, {len(self.without_effect)} without effect."
        if self.not_understood:
            more = len(self.not_understood) - _LISTED
            listed = ", ".join(self.not_understood[:_LISTED]) + (f" and {more} more" if more > 0 else "")
            yield f"Not understood, and left out: {listed}."
        yield from self.notes


def read_launch(path: str | Path) -> Launched:
    """The run that a launch file starts: a script with Megatron-LM's arguments, overrides, a TOML or a JSON.

    Raises InputError for a file that cannot be read or starts no training, ConfigError that names the file, the
    argument and its rule for a value that cannot be used.
    """
    text = read_text(path, _LARGEST)
    for read in (_json, _toml, _script, _overrides):
        found = read(text, str(path))
        if found is not None:
            return found
    raise InputError(
        f"'{path}' starts no training that Weft knows; give a script with Megatron-LM's arguments, overrides like "
        "model.tensor_model_parallel_size=4, torchtitan's TOML or DeepSpeed's JSON"
    )


def _whole(text: str) -> bool:
    """Whether a text is a whole number that some setting may have."""
    return text.isdecimal() and len(text) <= 15


class _Reading:
    """The arguments of a file: those that are read count as used, `rest` returns the others."""

    def __init__(self, given: Arguments, file: str, dash: str = "--") -> None:
        self.given, self.file, self.dash = given, file, dash
        self.used: dict[str, str] = {}
        self.left_out: list[str] = []

    def flag(self, name: str, became: str = "") -> bool:
        """Whether an argument is there, and not turned off."""
        return bool(self.switch(name, became))

    def switch(self, name: str, became: str = "") -> bool | None:
        """Whether an argument is turned on or off; None if it is not there."""
        if name not in self.given:
            return None
        on = self.given[name] != [OFF]
        self.used[self.dash + name] = became if on else "off"
        return on

    def leave_out(self, name: str, value: str = "") -> None:
        """Take an argument, or one value of it, as not understood."""
        self.used.pop(self.dash + name, None)
        self.left_out.append(f"{self.dash}{name} {value}".rstrip())

    def text(self, *names: str, known: Sequence[str] = ()) -> str | None:
        """The value of the first of some arguments that is there, and not turned off."""
        for name in names:
            if self.switch(name):
                value = " ".join(self.given[name][:1])
                self.used[self.dash + name] = value
                if known and value not in known:
                    raise self.wrong(name, value, f"one of {', '.join(known)}")
                return value
        return None

    def number(self, *names: str) -> int | None:
        """The value as a whole number; ConfigError for another one."""
        value = self.text(*names)
        if value is None:
            return None
        if not _whole(value):
            name = next(name for name in names if name in self.given)
            rule = "a whole number; the script does not set its variable" if "$" in value else "a whole number"
            raise self.wrong(name, value, rule)
        return int(value)

    def rest(self, without: Callable[[str], bool]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The other arguments: those without effect, and those that are not understood."""
        said = {*self.used, *(each.partition(" ")[0] for each in self.left_out)}
        left = [name for name in self.given if self.dash + name not in said]
        idle = [name for name in left if without(name)]
        unknown = [self.dash + name for name in left if name not in idle]
        return tuple(self.dash + name for name in idle), (*self.left_out, *unknown)

    def wrong(self, name: str, value: str, rule: str) -> ConfigError:
        """The error of a value that breaks a rule."""
        return ConfigError(f"{self.dash}{name} is {shown(value)}; it takes {rule}", self.file)


# -- Megatron-LM, and the same arguments as overrides of Megatron-Bridge and NeMo

_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "Llama3Tokenizer": 128256}
"""Rows that tokenizers of a known vocabulary need."""
_CONTEXTS = {"p2p": "ring", "allgather": "all_gather", "a2a": "all_to_all"}
_POSITIONS = {"learned_absolute": "learned", "rope": "rotary", "yarn": "rotary", "none": "none"}
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_MIXED = {
    "bf16_with_fp8_delayed_scaling_mixed": "fp8-delayed",
    "bf16_with_fp8_current_scaling_mixed": "fp8-tensorwise",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8-block",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
}


def _script(text: str, file: str) -> Launched | None:
    given = arguments(text)
    if not given.keys() & {"num-layers", "tensor-model-parallel-size", "micro-batch-size", "global-batch-size"}:
        return None
    branches = ("Branches and loops of the script are not followed: arguments in all of them count.",)
    return _megatron(_Reading(given, file), "megatron-core", branches * has_conditions(text))


def _overrides(text: str, file: str) -> Launched | None:
    given = overrides(text)
    if not given.keys() & {"tensor-model-parallel-size", "micro-batch-size", "global-batch-size", "seq-length"}:
        return None
    return _megatron(_Reading(given, file, ""), "megatron-bridge", (_RECIPE,))


_RECIPE = "What the overrides leave to the recipe of the model has Weft's defaults, such as TP 1."


def _megatron(read: _Reading, framework: str, notes: tuple[str, ...]) -> Launched:
    fields, settings = _degrees(read), _overlaps(read)
    fields |= {**_numbers(read), **_recomputed(read)}
    model = _model(read, fields)
    each, nodes = read.number("nproc-per-node", "devices"), read.number("nnodes", "num-nodes")
    experts = read.number("expert-tensor-parallel-size")
    if experts not in (None, 1 if fields.get("sp") else fields["tp"]):
        read.leave_out("expert-tensor-parallel-size", str(experts))
    idle, unknown = read.rest(lambda name: name in _without_effect()["megatron"])
    used, gpus = read.used, each * (nodes or 1) if each else None
    return Launched("megatron", framework, fields, model, settings, used, idle, unknown, gpus, notes)


def _degrees(read: _Reading) -> dict[str, Any]:
    """How the GPUs share the work."""
    found: dict[str, Any] = {
        "tp": read.number("tensor-model-parallel-size") or 1,
        "pp": read.number("pipeline-model-parallel-size") or 1,
        "cp": read.number("context-parallel-size") or 1,
        "ep": read.number("expert-model-parallel-size") or 1,
    }
    shared, optimizer = read.switch("sequence-parallel", "sp"), read.switch("use-distributed-optimizer", "zero 1")
    # Arguments of a script are off unless given; what overrides do not state is as in the framework.
    if read.dash or shared is not None:
        found["sp"] = bool(shared) and found["tp"] > 1
    if read.dash or optimizer is not None:
        found["zero"] = int(bool(optimizer))
    if read.flag("use-megatron-fsdp") or read.flag("use-custom-fsdp"):
        found["zero"] = _SHARDING[read.text("data-parallel-sharding-strategy", known=tuple(_SHARDING)) or "no_shard"]
    if read.flag("use-torch-fsdp2", "zero 3"):
        found["zero"] = 3
    if instances := read.number("num-distributed-optimizer-instances"):
        found["instances"] = instances
    ring = read.text("cp-comm-type", known=tuple(_CONTEXTS))
    if ring and found["cp"] > 1:
        found["context"] = _CONTEXTS[ring]
    if read.given.get("moe-token-dispatcher-type") == ["flex"]:
        found["dispatcher"] = read.text("moe-flex-dispatcher-backend", known=("deepep", "hybridep")) or "deepep"
    if read.flag("use-tp-pp-dp-mapping", "order"):
        found["order"] = ("tp", "cp", "pp", "dp")
    return {**found, **_stages(read, found["pp"])}


def _stages(read: _Reading, pp: int) -> dict[str, Any]:
    """The schedule of the pipeline, and the layers of its stages where they differ."""
    chunks = read.number("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size") or 1
    layers = read.number("num-layers") or 0
    if held := read.number("num-layers-per-virtual-pipeline-stage"):
        chunks = max(layers // (pp * held), 1)
    found: dict[str, Any] = {}
    if layout := read.text("pipeline-model-parallel-layout"):
        name, stages = "pipeline-model-parallel-layout", layout.split("|")
        if not all(_whole(part.partition("*")[2] or "1") for stage in stages for part in stage.split(",")):
            raise read.wrong(name, layout, "stages like Ettt|t*3|tL")
        found["layers"] = tuple(map(_counted, stages))
        chunks = len(found["layers"]) // pp
    first, last = (read.number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    if pp > 1 and layers and (first or last):
        inner = layers - (first or 0) - (last or 0)
        among = pp - bool(first) - bool(last)
        rest = [inner // among] * among if among else []
        found["layers"] = (*([first] if first else []), *rest, *([last] if last else []))
    ends = [read.flag(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    if pp > 1 and layers and any(ends):
        each = (layers + sum(ends)) // pp
        found["layers"] = (each - ends[0], *[each] * (pp - 2), each - ends[1])
    group = read.number("microbatch-group-size-per-virtual-pipeline-stage")
    if pp > 1 and chunks > 1:
        found["schedule"] = f"interleaved:{chunks}" + (f":{group}" if group else "")
    return found


def _counted(stage: str) -> int:
    """Layers of a stage in Megatron's layout: "Ettt", "t*3"."""
    return sum(int(part.partition("*")[2] or part.count("t")) if "t" in part else 0 for part in stage.split(","))


def _numbers(read: _Reading) -> dict[str, Any]:
    """The batch, the sequence and the formats of numbers."""
    found: dict[str, Any] = {}
    for name, argument in (
        ("micro_batch", "micro-batch-size"),
        ("batch", "global-batch-size"),
        ("sequence", "seq-length"),
    ):
        if number := read.number(argument):
            found[name] = number
    if "batch" not in found and "micro_batch" in found:
        found["local_batch"] = found["micro_batch"]
    mixed = read.text("mixed-precision") or ""
    found["dtype"] = "fp32" if read.dash else "bf16"
    if read.flag("fp16", "dtype") or mixed.startswith("fp16"):
        found["dtype"] = "fp16"
    if read.flag("bf16", "dtype") or mixed.startswith("bf16"):
        found["dtype"] = "bf16"
    if mixed in _MIXED:
        found["precision"] = _MIXED[mixed]
    elif mixed not in ("", "bf16_mixed", "bf16-mixed", "fp16_mixed", "fp16-mixed"):
        read.leave_out("mixed-precision", mixed)
    named = {text.rpartition("--")[2]: name for name, text in RECIPE_FLAGS.items() if text}
    for low, usual in (("fp8", "delayed"), ("fp4", "nvfp4")):
        if read.text(f"{low}-format", low):
            recipe = read.text(f"{low}-recipe") or usual
            if precision := named.get(f"{low}-recipe {recipe}"):
                found["precision"] = precision
            else:
                read.leave_out(f"{low}-recipe", recipe)
    return found


def _recomputed(read: _Reading) -> dict[str, Any]:
    """What the backward pass computes again."""
    grain = read.text("recompute-granularity", known=("full", "selective"))
    if read.flag("recompute-activations", "recompute"):
        grain = grain or "selective"
    method, count = read.text("recompute-method"), read.number("recompute-num-layers")
    modules = read.given.get("recompute-modules", ["core_attn"])
    read.flag("recompute-modules", " ".join(modules))
    if grain is None:
        return {"recompute": "none"}
    if grain == "full":
        if method == "block":
            read.leave_out("recompute-method", "block")
        if (count or 1) > 1:
            read.leave_out("recompute-num-layers", str(count))
        return {"recompute": "full"}
    if modules == ["core_attn"]:
        return {"recompute": "selective"}
    for module in modules:
        if module not in MODULES:
            read.leave_out("recompute-modules", module)
    again = tuple(sorted(name for module in modules for name in MODULES.get(module, ())))
    return {"recompute": again or "none"}


def _overlaps(read: _Reading) -> dict[str, Any]:
    """What overlaps, and what stays in 8 bits: off in a script unless given, in overrides as in the framework."""
    names = {"dp_overlap": "overlap-grad-reduce", "gather_overlap": "overlap-param-gather"}
    stated = {name: read.switch(argument) for name, argument in names.items()}
    if read.dash:
        stated = {name: bool(on) for name, on in stated.items()}
    fused, low = read.switch("tp-comm-overlap", "userbuffers"), read.switch("fp8-param-gather", "keeps_low")
    stated["keeps_low"] = read.switch("fp8-param", "keeps_low") if low is None else low
    found: dict[str, Any] = {name: on for name, on in stated.items() if on is not None}
    return found if fused is None else {**found, "tp": "userbuffers" if fused else ""}


def _model(read: _Reading, fields: Mapping[str, Any]) -> Transformer | None:
    """The model that the arguments describe; None where they leave out layers, hidden size or vocabulary."""
    layers, hidden = read.number("num-layers"), read.number("hidden-size")
    heads, context = read.number("num-attention-heads"), read.number("max-position-embeddings")
    words = read.number("vocab-size")
    tokenizer = read.given.get("tokenizer-type", [""])[0]
    if words:
        words += tokenizer == "NullTokenizer"  # which adds a token for the end of a document
    elif tokenizer in _TOKENIZERS:
        words = _TOKENIZERS[tokenizer]
        read.flag("tokenizer-type", f"vocabulary {words}")
    gated = read.flag("swiglu", "activation")
    shape = {
        "kv_heads": read.number("num-query-groups"),
        "head": read.number("kv-channels"),
        "ffn": read.number("ffn-hidden-size") or (hidden and gated and int(4 * hidden * 2 / 3) // 64 * 64) or None,
        "experts": read.number("num-experts"),
        "experts_per_token": read.number("moe-router-topk"),
        "expert_groups": read.number("moe-router-num-groups"),
        "groups_per_token": read.number("moe-router-group-topk"),
        "expert_ffn": read.number("moe-ffn-hidden-size"),
        "predict_layers": read.number("mtp-num-layers"),
    }
    read.flag("group-query-attention")
    shape |= {**_mixture(read, shape["expert_ffn"]), **_latent(read)}
    rotary = read.flag("use-rotary-position-embeddings", "positions")
    positions = read.text("position-embedding-type", known=tuple(_POSITIONS)) or (
        "rope" if rotary else "learned_absolute"
    )
    norm = read.text("normalization", known=("LayerNorm", "RMSNorm"))
    squared = read.flag("squared-relu", "activation")
    biases = "none" if read.flag("disable-bias-linear", "biases") else "all"
    biases = "qkv" if read.flag("add-qkv-bias", "biases") else biases
    tied, normed = not read.flag("untie-embeddings-and-output-weights", "tied"), read.flag("qk-layernorm")
    if not (layers and hidden and words):
        return None
    each = (read.number("make-vocab-size-divisible-by") or 128) * int(fields.get("tp", 1))
    return Transformer(
        name="launched",
        title="The launched model",
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence_length=context or int(fields.get("sequence", 2048)),
        vocabulary=-(-words // each) * each,
        activation="swiglu" if gated else "relu" if squared else "gelu",
        norm="rmsnorm" if norm == "RMSNorm" else "layernorm",
        positions=_POSITIONS[positions],
        biases=biases,
        tied=tied,
        qk_norm=normed,
        **{name: value for name, value in shape.items() if value},
    )


def _mixture(read: _Reading, wide: int | None) -> dict[str, Any]:
    shared, often = read.number("moe-shared-expert-intermediate-size"), read.text("moe-layer-freq") or ""
    if read.given.get("moe-token-dispatcher-type") == ["alltoall"]:
        read.flag("moe-token-dispatcher-type", "all-to-all by the collective library")
    if read.given.get("moe-token-dispatcher-type") == ["flex"]:
        read.flag("moe-token-dispatcher-type", "tokens by the library of moe-flex-dispatcher-backend")
    found = {"shared_experts": shared // wide if shared and wide else None}
    if _whole(often):
        return {**found, "moe_every": int(often)}
    first = often.strip("()[]' ").partition("+")[0]
    dense = first.rpartition("*")[2] if first.startswith("0]") else ""
    return {**found, "dense_layers": int(dense) if _whole(dense) else None}


def _latent(read: _Reading) -> dict[str, Any]:
    names = {
        "query_rank": "q-lora-rank",
        "kv_rank": "kv-lora-rank",
        "head": "qk-head-dim",
        "rotary_head": "qk-pos-emb-head-dim",
        "value_head": "v-head-dim",
    }
    found = {name: read.number(argument) for name, argument in names.items()}
    return found if read.flag("multi-latent-attention") else {}


# -- torchtitan

_TITAN_MODELS = {
    ("llama3", "8B"): "llama-3-8b",
    ("llama3", "70B"): "llama-3-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
}


_FLOAT8 = "quantize.linear.float8"


def _toml(text: str, file: str) -> Launched | None:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        return None
    if not {"parallelism", "training"} & document.keys():
        return None
    read = _Reading({name: [str(value)] for name, value in _flat(document)}, file, "")

    def degree(name: str) -> int:
        return read.number(f"parallelism.{name}_degree") or 1

    local, batch = read.number("training.local_batch_size"), read.text("training.global_batch_size")
    fields: dict[str, Any] = {"tp": degree("tensor_parallel"), "pp": degree("pipeline_parallel")}
    fields |= {"cp": degree("context_parallel"), "ep": degree("expert_parallel"), "sp": fields["tp"] > 1}
    if length := read.number("training.seq_len"):
        fields["sequence"] = length
    if batch and _whole(batch):
        fields["batch"] = int(batch)
    elif local:
        fields["local_batch"] = local
    micro = read.number("parallelism.pipeline_parallel_microbatch_size")
    fields["micro_batch"] = (micro or 1) if fields["pp"] > 1 else local or 1
    replicate, shard = degree("data_parallel_replicate"), read.text("parallelism.data_parallel_shard_degree") or "-1"
    kept = read.text("parallelism.fsdp_reshard_after_forward") == "never"
    fields["zero"] = 0 if shard == "1" and fields["cp"] == 1 else 2 if kept else 3
    if fields["zero"] and replicate > 1:
        fields["instances"] = replicate
    if read.text("parallelism.enable_async_tensor_parallel") == "True":
        fields["overlap"] = {"tp": "async-tp"}
    rotates = read.text("parallelism.context_parallel_rotate_method")
    if fields["cp"] > 1 and rotates == "allgather":
        fields["context"] = "all_gather"
    if fields["pp"] > 1:
        fields["schedule"] = _titan_schedule(read, fields["pp"])
    mode = read.text("activation_checkpoint.mode", known=("none", "selective", "full")) or "selective"
    fields["recompute"] = "operators" if mode == "selective" else mode
    for usual, setting in (
        ("op", "activation_checkpoint.selective_ac_option"),
        ("1", "parallelism.expert_tensor_parallel_degree"),
        ("bfloat16", "training.mixed_precision_param"),
        ("float32", "training.mixed_precision_reduce"),
    ):
        if (value := read.text(setting)) not in (None, usual):
            read.leave_out(setting, str(value))
    if recipe := read.text(f"{_FLOAT8}.recipe_name"):
        fields["precision"] = f"fp8-{recipe}"
    name, flavor = read.text("model.name"), read.text("model.flavor")
    known = _TITAN_MODELS.get((name or "", flavor or ""))
    compiled, low = (read.text(name) for name in ("compile.enable", f"{_FLOAT8}.enable_fsdp_float8_all_gather"))
    settings: dict[str, Any] = {} if low is None else {"keeps_low": low == "True"}
    if compiled is not None:  # without, PyTorch runs every operator by itself
        fused = compiled == "True"
        settings["style"] = replace(framework_of("torchtitan").style, fused=fused, eager=not fused)
    idle, unknown = read.rest(lambda name: name.startswith(tuple(_without_effect()["torchtitan"])))
    model = None if known is None else load_model(known)
    return Launched("torchtitan", "torchtitan", fields, model, settings, read.used, idle, unknown)


def _titan_schedule(read: _Reading, pp: int) -> str:
    named = {name: kind for kind, name in PIPELINES.items()}
    kind = named[read.text("parallelism.pipeline_parallel_schedule", known=tuple(named)) or "1F1B"]
    each = read.number("parallelism.pipeline_parallel_layers_per_stage")
    flavor = read.given.get("model.flavor", [""])[0], read.given.get("model.name", [""])[0]
    known = _TITAN_MODELS.get((flavor[1], flavor[0]))
    if kind != "interleaved":
        return kind
    return f"interleaved:{max(load_model(known).layers // (pp * each), 2) if each and known else 2}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# -- DeepSpeed


def _json(text: str, file: str) -> Launched | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not {"zero_optimization", "train_batch_size"} & document.keys():
        return None
    flat = {name: [str(value)] for name, value in _flat(document) if value != "auto"}
    read = _Reading(flat, file, "")
    zero = read.number("zero_optimization.stage") or 0
    fields: dict[str, Any] = {"zero": zero, "tp": read.number("tensor_parallel.autotp_size") or 1, "sp": False}
    micro, steps = read.number("train_micro_batch_size_per_gpu") or 1, read.number("gradient_accumulation_steps") or 1
    fields |= {"micro_batch": micro, "accumulated": micro * steps}
    if batch := read.number("train_batch_size"):
        fields["batch"] = batch
    fields["dtype"] = next((low for low in ("bf16", "fp16") if read.text(f"{low}.enabled") == "True"), "fp32")
    if (each := read.number("zero_optimization.zero_hpz_partition_size")) and each > 1:
        fields["shard"] = each
    for what, host in (("optimizer", "cpu"), ("param", "")):
        setting = f"zero_optimization.offload_{what}.device"
        place = read.text(setting)
        if place == host:
            fields["offload"] = what
        elif place not in (None, "none"):
            read.leave_out(setting, place)
    overlapped = read.text("zero_optimization.overlap_comm")
    settings = {} if overlapped is None else {"dp_overlap": overlapped == "True"}
    left = tuple(name for name, value in _flat(document) if value == "auto")
    notes = (f"Left to the program (auto): {', '.join(left)}.",) * bool(left)
    idle, unknown = read.rest(lambda name: name.startswith(tuple(_without_effect()["deepspeed"])))
    return Launched(
        "deepspeed", "deepspeed-zero3", fields, None, settings, read.used, idle, unknown, None, (*notes, _PROGRAM)
    )


_PROGRAM = "The JSON leaves recomputation and the length of sequences to the program: --recompute, --sequence."
