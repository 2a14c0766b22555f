"""Megatron-LM's arguments (NVIDIA/Megatron-LM @d98e8a6, megatron/training/arguments.py) as a run.

The same names are overrides of Megatron-Bridge and NeMo, and settings of their YAML files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from weft.core.errors import ConfigError
from weft.core.files import packaged_toml
from weft.models import Transformer, load_model
from weft.models.load import named_model
from weft.plan.launch_training import MODULES, RECIPE_FLAGS
from weft.plan.launched import Launched
from weft.plan.read_layers import read_layers
from weft.plan.reading import ArgumentReader

_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "Llama3Tokenizer": 128256,
               "MistralTokenizer": 32000}  # fmt: skip
"""Rows that tokenizers of a known vocabulary need; the last one is that of forks (Mistral 7B and Mixtral)."""
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
_PLAIN = ("bf16_mixed", "bf16-mixed", "fp16_mixed", "fp16-mixed", "32", "32-true")
_ATTENTION = ("flash", "fused", "unfused", "local", "auto")
_BYTES = {"fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "fp8": 1, "uint8": 1}
_GRAPHED = ("attn", "mamba", "mlp", "moe", "moe_router", "moe_preprocess")

SHAPES = frozenset(("num-layers", "tensor-model-parallel-size", "micro-batch-size", "global-batch-size"))
"""Arguments that identify a run: at least one is present."""
_SECTIONS = frozenset((
    "model", "train", "optimizer", "ddp", "comm_overlap", "mixed_precision", "dataset", "data", "trainer", "strategy",
    "config", "cfg", "scheduler", "checkpoint", "logger", "dist", "rng", "tokenizer", "profiling", "recipe", "optim",
    "plugins", "callbacks", "resume", "log", "validation", "rerun_state_machine", "ft", "straggler", "peft",
    "tensor_model_parallel", "overrides", "modules", "pre_trainer", "megatron_cfg", "training_config", "engine",
    "override_transformer_config", "override_optimizer_config", "training", "policy",
    "distributed_data_parallel_config",
))  # fmt: skip
"""Parts of the names of overrides that belong to the run itself, not to a draft or a teacher beside it."""

# -- overrides


def read_overrides(
    overridden: Mapping[str, str], file: str, notes: tuple[str, ...], framework: str = "megatron-bridge"
) -> Launched:
    """Return the run of overrides or settings by their full names, `model.num_layers`.

    The last part of a name is one of Megatron-LM's arguments. Names of other sections than those of the run, such as
    of a draft model, are not understood; ConfigError for two sections that state an argument differently.
    """
    given: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    foreign: dict[str, str] = {}
    used: dict[str, str] = {}
    for name, written in overridden.items():
        section, _, last = name.rpartition(".")
        spelled, sections = _spellings()
        if name not in spelled and (reason := _reason(name, sections)):
            foreign[name] = reason
            continue
        if any(part not in _SECTIONS for part in section.split(".") if part):
            foreign[name] = ""
            continue
        key, value = _spell(name, last, written, spelled)
        if value.lower() in ("null", "none"):
            used[name] = "not stated"  # left to the recipe
            continue
        if key in given and given[key] != [value] and key in _STATED_ONCE:
            raise ConfigError(f"{names[key]} is {given[key][0]}, and {name} is {value}; state one of them", file)
        given[key], names[key] = [value], name if value == written else f"{name} {written}"
    read = ArgumentReader(given, file, "", names)
    read.used.update(used)
    read.left_out.extend(name for name, reason in foreign.items() if not reason)
    read.without_effect.update({name: reason for name, reason in foreign.items() if reason})
    if framework == "megatron-bridge" and given.keys() & _OF_2026:
        framework = "megatron-bridge-2026"
    return read_arguments(read, framework, notes)


@cache
def _spellings() -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return Megatron's arguments by the names that NeMo, verl and Primus have, and sections without effect."""
    table = packaged_toml("weft.plan", "arguments.toml")["spelled"]
    return table["arguments"], {name: reason for reason, names in table["sections"].items() for name in names}


def _reason(name: str, sections: Mapping[str, str]) -> str:
    """Return why a setting has no effect, by its section; "" if its section may have one."""
    parts = name.split(".")
    return next((sections[part] for end in range(len(parts), 0, -1) if (part := ".".join(parts[:end])) in sections), "")


def _spell(name: str, last: str, written: str, spelled: Mapping[str, Any]) -> tuple[str, str]:
    """Return a setting as Megatron's argument, and its value; "null" for a value that leaves it open."""
    rule = spelled.get(name) or spelled.get(last)
    if rule is None:
        return last.replace("_", "-"), written
    if isinstance(rule, str):
        return rule, written
    return rule["is"], str(rule.get(written.lower(), rule.get("*", written)))


_OF_2026 = frozenset((
    "moe-paged-stash", "use-transformer-engine-op-fuser", "moe-mlp-glu-interleave-size",
    "high-priority-a2a-comm-stream",
))  # fmt: skip
"""Settings that Megatron-Bridge has since 0.5, whose defaults are those of container 26.06."""


_STATED_ONCE = SHAPES | {"seq-length", "pipeline-model-parallel-size", "context-parallel-size", "hidden-size"}


# -- arguments


def read_arguments(read: ArgumentReader, framework: str, notes: tuple[str, ...]) -> Launched:
    """Return the run of Megatron-LM's arguments."""
    fields, settings = _degrees(read), _overlaps(read)
    fields |= {**_numbers(read), **_read_recompute(read), **_graphs(read)}
    groups = fields.pop("instances", 1)
    settings |= _optimizer(read, fields)
    style = _style(read)
    model, missing = _model(read, fields)
    each, nodes = read.of_machine("nproc-per-node", "devices"), read.of_machine("nnodes", "num-nodes")
    experts = read.number("expert-tensor-parallel-size")
    if experts not in (None, 1 if fields.get("sp", not read.dash) else fields.get("tp", 1)):
        read.leave_out("expert-tensor-parallel-size", str(experts))
    local = None if "batch" in fields else fields.get("micro_batch")
    if read.dash:
        notes = (*notes, *_defaults(read))
    if missing:
        notes = (*notes, missing)
    return Launched(
        "megatron", framework, fields, model, settings, style, gpus=each * (nodes or 1) if each and nodes else None,
        notes=notes, local_batch=local, replica_groups=groups, **read.account("megatron"),
    )  # fmt: skip


def _defaults(read: ArgumentReader) -> list[str]:
    """Return notes on defaults of Megatron-LM that Weft does not follow."""
    notes = []
    if not {"attention-dropout", "hidden-dropout"} & read.given.keys():
        notes.append("The arguments leave dropout at Megatron-LM's 0.1; none is counted here.")
    if "num-experts" in read.given and "moe-token-dispatcher-type" not in read.given:
        notes.append("The arguments leave the token dispatcher at Megatron-LM's allgather; all-to-all is timed.")
    if "num-experts" in read.given and "moe-grouped-gemm" not in read.given:
        notes.append("Without --moe-grouped-gemm experts run one after the other; likely longer than timed here.")
    return notes


def _degrees(read: ArgumentReader) -> dict[str, Any]:
    """Return how the GPUs share the work."""
    names = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context", "ep": "expert-model"}
    stated = {axis: read.number(f"{name}-parallel-size") for axis, name in names.items()}
    found: dict[str, Any] = {axis: degree or 1 for axis, degree in stated.items()}
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
    found |= _dispatcher(read, found["ep"])
    if read.flag("use-tp-pp-dp-mapping", "order"):
        found["order"] = ("tp", "cp", "pp", "dp")
    found |= _stages(read, found["pp"])
    return found if read.dash else {name: each for name, each in found.items() if stated.get(name, each) is not None}


def _dispatcher(read: ArgumentReader, ep: int) -> dict[str, Any]:
    """Return the library that brings tokens to their experts."""
    kind = read.text("moe-token-dispatcher-type", known=("allgather", "alltoall", "alltoall_seq", "flex"))
    backend = read.text("moe-flex-dispatcher-backend", known=("deepep", "hybridep"))
    older = read.flag("moe-enable-deepep", "dispatcher deepep")
    if kind == "allgather" and ep > 1:
        read.not_model("moe-token-dispatcher-type", "likely longer than the all-to-all timed here", "allgather")
    if kind == "flex" and ep > 1:
        return {"dispatcher": backend or "deepep"}
    if backend and kind != "flex":
        read.leave_out("moe-flex-dispatcher-backend", backend)
    if older and kind != "flex":
        read.leave_out("moe-enable-deepep")
    return {}


def _stages(read: ArgumentReader, pp: int) -> dict[str, Any]:
    """Return the schedule of the pipeline, and the layers of its stages where they differ."""
    chunks = read.number("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size") or 1
    layers = read.number("num-layers") or 0
    if (held := read.number("num-layers-per-virtual-pipeline-stage")) and layers:
        if layers % (pp * held):
            rule = f"a number that divides the {layers} layers over {pp} pipeline stages"
            raise read.wrong("num-layers-per-virtual-pipeline-stage", str(held), rule)
        chunks = layers // (pp * held)
    found: dict[str, Any] = {}
    if layout := read.text("pipeline-model-parallel-layout"):
        found["layers"] = _laid_out(read, layout, pp, layers)
        chunks = len(found["layers"]) // pp
    found |= _uneven(read, pp, layers, chunks)
    group = read.number("microbatch-group-size-per-virtual-pipeline-stage")
    if pp > 1 and chunks > 1:
        found["schedule"] = f"interleaved:{chunks}" + (f":{group}" if group else "")
    return found


def _uneven(read: ArgumentReader, pp: int, layers: int, chunks: int) -> dict[str, Any]:
    """Return the layers of stages whose first and last ones differ."""
    ends = {end: f"decoder-{end}-pipeline-num-layers" for end in ("first", "last")}
    first, last = (read.number(name) for name in ends.values())
    counted = [read.flag(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    if pp == 1 or not layers or not (first or last or any(counted)):
        return {}
    if any(counted):
        each, left = divmod(layers + sum(counted), pp)
        if left:
            name = f"account-for-{'embedding' if counted[0] else 'loss'}-in-pipeline-split"
            raise ConfigError(
                f"{read.name(name)} makes {layers + sum(counted)} of {layers} layers, which {pp} pipeline stages do "
                "not share evenly; state layers that they do",
                read.file,
            )
        stages = [each - counted[0], *[each] * (pp - 2), each - counted[1]]
    else:
        inner, among = layers - (first or 0) - (last or 0), pp - bool(first) - bool(last)
        if inner < 0 or (among and (inner % among or not inner)) or (not among and inner):
            end = "first" if first else "last"
            rule = f"a number that leaves equal layers of {layers} to the other {among} of {pp} pipeline stages"
            raise read.wrong(ends[end], str(first or last), rule)
        stages = [*([first] if first else []), *[inner // max(among, 1)] * among, *([last] if last else [])]
    if any(each % chunks for each in stages):
        raise ConfigError(
            f"stages of {', '.join(map(str, stages))} layers do not divide into {chunks} virtual stages each; state "
            "layers that do",
            read.file,
        )
    return {"layers": tuple(each // chunks for each in stages * chunks)}


_LONGEST_LAYOUT = 10_000
_LAYOUT = "stages like Ettt|t*3|(tt|)*4tL, with embedding E, layers t, MTP layers m and loss L"


def _laid_out(read: ArgumentReader, layout: str, pp: int, layers: int) -> tuple[int, ...]:
    """Return the layers of each stage in Megatron Core's layout: "Ettt|t*3|(tt|)*2tL"."""
    name = "pipeline-model-parallel-layout"
    text = re.sub(r"[\s,]", "", layout)
    for pattern in (r"([A-Za-z|])\*([0-9]{1,3})", r"\(([^()*]*)\)\*([0-9]{1,3})"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text[:_LONGEST_LAYOUT])
    if len(text) > _LONGEST_LAYOUT or not re.fullmatch(r"E[tm|]*L", text):
        raise read.wrong(name, layout, _LAYOUT)
    found = tuple(stage.count("t") for stage in text.split("|"))
    if len(found) % pp:
        raise read.wrong(name, layout, f"as many stages, or a multiple, as the {pp} of the pipeline, not {len(found)}")
    if layers and sum(found) != layers:
        raise read.wrong(name, layout, f"the {layers} layers of the model, not {sum(found)}")
    return found


def _numbers(read: ArgumentReader) -> dict[str, Any]:
    """Return the batch, the sequence and the formats of numbers."""
    found: dict[str, Any] = {}
    for name, arguments in (
        ("micro_batch", ("micro-batch-size",)),
        ("batch", ("global-batch-size",)),
        ("sequence", ("seq-length", "encoder-seq-length", "sequence-length")),
    ):
        if number := read.number(*arguments):
            found[name] = number
    mixed = read.text("mixed-precision") or ""
    if mixed and mixed not in (*_MIXED, *_PLAIN):
        raise read.wrong("mixed-precision", mixed, f"one of {', '.join((*_PLAIN, *_MIXED))}")
    half, brain = read.flag("fp16", "dtype"), read.flag("bf16", "dtype")
    if half and brain:
        raise ConfigError(f"{read.name('fp16')} and {read.name('bf16')} contradict each other; give one", read.file)
    if half or brain or read.dash or mixed:
        low = "fp16" if half or mixed.startswith("fp16") else "bf16" if brain or mixed.startswith("bf16") else "fp32"
        found["dtype"] = low
    if mixed in _MIXED:
        found["precision"] = _MIXED[mixed]
    named = {text.rpartition("--")[2]: name for name, text in RECIPE_FLAGS.items() if text}
    for low, usual, formats in (("fp8", "delayed", ("e4m3", "hybrid")), ("fp4", "nvfp4", ("e2m1",))):
        if read.text(f"{low}-format", low, known=formats):
            recipe = read.text(f"{low}-recipe") or usual
            if precision := named.get(f"{low}-recipe {recipe}"):
                found["precision"] = precision
            elif recipe == "custom":
                read.not_model(f"{low}-recipe", "a recipe of the script's own", recipe)
            else:
                known = [name.rpartition(" ")[2] for name in named if name.startswith(low)]
                raise read.wrong(f"{low}-recipe", recipe, f"one of {', '.join(known)}, custom")
    return found


def _read_recompute(read: ArgumentReader) -> dict[str, Any]:
    """Return what the backward pass recomputes."""
    grain = read.text("recompute-granularity", known=("full", "selective"))
    if read.flag("recompute-activations", "recompute"):
        grain = grain or "selective"
    method = read.text("recompute-method", known=("uniform", "block"))
    count, modules = read.number("recompute-num-layers", least=0), read.texts("recompute-modules") or ["core_attn"]
    if grain is None:
        return {"recompute": "none"} if read.dash or "recompute-granularity" in read.given else {}
    if grain == "full":
        if method == "block":
            read.not_model("recompute-method", "shorter, more memory: only some layers recompute", "block")
        elif (count or 1) > 1:
            read.not_model("recompute-num-layers", "less memory between, more at the peak", str(count))
        return {"recompute": "full"}
    if modules == ["core_attn"]:
        return {"recompute": "selective"}
    for module in modules:
        if module in ("moe", "routed_experts") or module.startswith("a2a_overlap"):
            read.not_model("recompute-modules", "less memory, longer", module)
        elif module not in MODULES:
            rule = f"some of {', '.join(MODULES)}, moe, routed_experts"
            raise read.wrong("recompute-modules", module, rule)
    again = tuple(sorted({name for module in modules for name in MODULES.get(module, ())}))
    return {"recompute": again or "none"}


def _graphs(read: ArgumentReader) -> dict[str, Any]:
    """Return what CUDA graphs hold, and whether passes overlap the dispatch or combine."""
    found: dict[str, Any] = {}
    known = ("none", "local", "transformer_engine", "full_iteration")
    impl = read.text("cuda-graph-impl", known=known)
    if read.flag("enable-cuda-graph", "CUDA graphs of layers"):
        impl = impl or "local"
    if read.flag("external-cuda-graph", "CUDA graphs of layers"):
        impl = impl or "transformer_engine"
    scopes = read.texts("cuda-graph-modules") or read.texts("cuda-graph-scope") or []
    if scopes in (["full_iteration"], ["full-iteration"]):
        impl, scopes = impl and "full_iteration", []
    if impl:
        found["cuda_graph_impl"] = impl
    for scope in scopes:
        if scope not in _GRAPHED and scope != "full":
            read.leave_out("cuda-graph-modules" if "cuda-graph-modules" in read.given else "cuda-graph-scope", scope)
    held = tuple(scope for scope in scopes if scope in _GRAPHED)
    if held and impl in ("local", "transformer_engine"):
        found["cuda_graph_modules"] = held
    for name in ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
        on = read.switch(name.replace("_", "-"), name)
        if on is not None:
            found[name] = on
    return found


def _overlaps(read: ArgumentReader) -> dict[str, Any]:
    """Return what overlaps, and what stays in 8 bits: off in a script unless given, else as in the framework."""
    names = {"dp_overlap": "overlap-grad-reduce", "gather_overlap": "overlap-param-gather"}
    stated = {name: read.switch(argument) for name, argument in names.items()}
    if read.dash:
        stated = {name: bool(on) for name, on in stated.items()}
    low = read.switch("fp8-param-gather", "keeps_low")
    stated["keeps_low"] = read.switch("fp8-param", "keeps_low") if low is None else low
    found: dict[str, Any] = {name: on for name, on in stated.items() if on is not None}
    fused = read.switch("tp-comm-overlap", "userbuffers")
    if fused is not None:
        found["tp"] = "userbuffers" if fused else ""
    if read.switch("no-overlap-p2p-communication", "sends") or read.switch("overlap-p2p-comm", "sends") is False:
        found["sends"] = "blocking"
    units = read.number("moe-hybridep-num-sms", "moe-deepep-num-sms")
    if units:
        found["dispatcher_units"] = units
    if (fused := read.switch("use-transformer-engine-op-fuser", "fused_experts")) is not None:
        found["fused_experts"] = fused
    if (pages := read.switch("moe-paged-stash", "pages")) is not None:
        found["pages"] = pages
    attention = read.switch("fp8-dot-product-attention", "attention in FP8")
    if attention is not None:
        found["attention"] = "fp8" if attention else ""
    if read.switch("no-gradient-accumulation-fusion", "accumulates") or (
        read.switch("gradient-accumulation-fusion", "accumulates") is False
    ):
        found["accumulates"] = False
    return found


def _optimizer(read: ArgumentReader, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the number formats of gradients and optimizer states; put states in the host's memory into the fields."""
    found: dict[str, Any] = {}
    narrow, wide = read.switch("grad-reduce-in-bf16", "gradients"), read.switch("grad-reduce-in-fp32", "gradients")
    summed = read.switch("accumulate-allreduce-grads-in-fp32", "gradients")
    if narrow or wide is False:
        found["gradients"] = "bf16"
    elif wide or summed:
        found["gradients"] = "fp32"
    elif read.dash and fields.get("dtype") == "fp16":
        found["gradients"] = "fp16"  # bf16 implies fp32 (validate_args), fp16 does not
    aware = read.flag("use-precision-aware-optimizer", "optimizer states")
    dtypes = {}
    for name in ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype", "main-grads-dtype"):
        text = (read.text(name) or "fp32").removeprefix("torch.")
        if text not in _BYTES:
            raise read.wrong(name, text, "one of fp32, bf16, fp16, fp8")
        dtypes[name] = text
        if not aware and text not in ("fp32", "float32"):
            read.leave_out(name, f"{text} without {read.name('use-precision-aware-optimizer')}")
    if aware:
        # TE's FusedAdam keeps of fp32 master weights what the weights in bf16 lack (store_param_remainders).
        each = [_BYTES[dtypes[name]] for name in ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")]
        remainders = read.switch("store-param-remainders", "optimizer states") is not False
        if remainders and each[0] == _BYTES["fp32"] and fields.get("dtype", "bf16") == "bf16":
            each[0] = _BYTES["bf16"]
        found["optimizer_bytes"] = sum(each)
        if dtypes["main-grads-dtype"] in ("bf16", "bfloat16"):
            found["gradients"] = "bf16"
    if read.flag("optimizer-cpu-offload", "offload optimizer"):
        fraction = read.text("optimizer-offload-fraction") or "1.0"
        if fraction in ("1", "1.0"):
            fields["offload"] = "optimizer"
            read.used[read.name("optimizer-cpu-offload")] = "offload optimizer: streamed here, updated on the CPU there"
        else:
            read.not_model("optimizer-offload-fraction", "less memory, longer", fraction)
    return found


def _style(read: ArgumentReader) -> dict[str, Any]:
    """Return what the arguments change in the operators that the framework writes."""
    found: dict[str, Any] = {}
    backend = (read.text("attention-backend") or "").removeprefix("AttnBackend.")
    if backend and backend not in _ATTENTION:
        raise read.wrong("attention-backend", backend, f"one of {', '.join(_ATTENTION)}")
    if backend in ("unfused", "local"):
        found["flash"] = False
    rates = [read.text(f"{where}-dropout") for where in ("attention", "hidden")]
    for where, rate in zip(("attention", "hidden"), rates, strict=True):
        if rate is not None and not re.fullmatch(r"0?\.\d+|0|0\.|1e-\d+", rate, re.ASCII):
            raise read.wrong(f"{where}-dropout", rate, "a share below 1")
    stated = [float(rate) for rate in rates if rate is not None]
    if stated:
        found["dropout"] = any(stated)
    if read.flag("cross-entropy-loss-fusion", "loss"):
        found["loss"] = "fused_cross_entropy"
    if read.flag("moe-shared-expert-overlap", "shared experts beside dispatch and combine"):
        found["beside"] = True
    if read.flag("moe-router-force-load-balancing", "even loads"):
        pass  # loads are even unless stated
    return found


def _model(read: ArgumentReader, fields: Mapping[str, Any]) -> tuple[Transformer | None, str]:
    """Return the model that the arguments describe, or None with what they leave out."""
    layers, hidden = read.number("num-layers"), read.number("hidden-size")
    heads, context = read.number("num-attention-heads"), read.number("max-position-embeddings")
    words, padded = read.number("vocab-size"), read.number("padded-vocab-size")
    tokenizer = " ".join(read.given.get("tokenizer-type", [""]))
    if words:
        words += tokenizer == "NullTokenizer"  # which adds a token for the end of a document
    elif tokenizer in _TOKENIZERS:
        words = _TOKENIZERS[tokenizer]
        read.used[read.name("tokenizer-type")] = f"vocabulary {words}"
    elif named := named_model(" ".join(read.given.get("tokenizer-model", [""]))):
        words = load_model(named).vocabulary
        read.used[read.name("tokenizer-model")] = f"vocabulary {words}"
    words = padded or words
    gated, grouped = read.flag("swiglu", "activation"), read.flag("group-query-attention")
    shape = {
        "kv_heads": read.number("num-query-groups") if grouped or not read.dash else None,
        "head": read.number("kv-channels"),
        "ffn": read.number("ffn-hidden-size") or (hidden and gated and int(4 * hidden * 2 / 3) // 64 * 64) or None,
        "experts": read.number("num-experts", "num-moe-experts"),
        "experts_per_token": read.number("moe-router-topk"),
        "expert_groups": read.number("moe-router-num-groups"),
        "groups_per_token": read.number("moe-router-group-topk"),
        "expert_ffn": read.number("moe-ffn-hidden-size"),
        "predict_layers": read.number("mtp-num-layers", least=0),
    }
    shape |= {**read_layers(read, shape, layers, hidden), **_latent(read)}
    layers = shape.pop("layers", layers)
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
        names = {"--num-layers": layers, "--hidden-size": hidden, "--vocab-size": words}
        lacks = [name for name, value in names.items() if not value]
        return None, f"The arguments leave {', '.join(lacks)} open, so the model is the one that was named."
    each = (read.number("make-vocab-size-divisible-by") or 128) * int(fields.get("tp", 1))
    return Transformer(
        name="launched",
        title="The launched model",
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence_length=context or int(fields.get("sequence", 2048)),
        vocabulary=-(-words // each) * each,
        activation="swiglu" if gated else "relu2" if squared else "gelu",
        norm="rmsnorm" if norm == "RMSNorm" else "layernorm",
        positions=_POSITIONS[positions],
        biases=biases,
        tied=tied,
        qk_norm=normed,
        **{name: value for name, value in shape.items() if value},
    ), ""


def _latent(read: ArgumentReader) -> dict[str, Any]:
    names = {
        "query_rank": "q-lora-rank",
        "kv_rank": "kv-lora-rank",
        "head": "qk-head-dim",
        "rotary_head": "qk-pos-emb-head-dim",
        "value_head": "v-head-dim",
    }
    found = {name: read.number(argument) for name, argument in names.items()}
    return found if read.flag("multi-latent-attention") else {}
