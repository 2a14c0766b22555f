"""Transformers from the `config.json` of a Hugging Face model, by its fields and without its code."""

from __future__ import annotations

import difflib
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from weft.core.catalog import Provenance
from weft.core.errors import ConfigError, WeftError, is_whole, join_or, show_value
from weft.core.files import read_json
from weft.models.block import LAYERS, compose_pattern
from weft.models.quantization import check_known, format_remarks, quantization_beside, weight_format
from weft.models.transformer import Transformer

Config = MutableMapping[str, Any]
"""The fields of a configuration; readers change none."""
Values = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """How the configurations of a `model_type` name a model's dimensions.

    `needed` and `optional` map dimensions to keys, or to several that mean the same; `fixed` are what all models of the
    family have in common. `tied` says whether embedding and head share weights if a file does not say it. `derive`
    returns what follows from several keys. `defaults` are those of the family's code for keys that a file leaves out,
    and `simplified` says what of the family is modelled as something simpler. `layer_types` are words for layers that
    this family has beyond full attention and windows.
    """

    needed: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    derive: Callable[[Config], Values] = lambda config: {}
    defaults: Mapping[str, Any] = field(default_factory=dict)
    simplified: str = ""
    layer_types: tuple[str, ...] = ()


def _keys(**names: str) -> dict[str, tuple[str, ...]]:
    return {dimension: tuple(keys.split()) for dimension, keys in names.items()}


_SHAPE = _keys(
    hidden="hidden_size", layers="num_hidden_layers", heads="num_attention_heads", vocabulary="vocab_size",
    sequence_length="max_position_embeddings",
)  # fmt: skip
_DENSE = _SHAPE | _keys(ffn="intermediate_size")
_GROUPED = _keys(kv_heads="num_key_value_heads", head="head_dim")
_LLAMA = {"norm": "rmsnorm", "positions": "rotary", "biases": "none"}
_GPT = _keys(
    hidden="n_embd", layers="n_layer", heads="n_head", vocabulary="vocab_size", sequence_length="n_positions n_ctx"
)


def _gated_values(config: Config) -> Values:
    """Return the gated activation: SwiGLU for SiLU, else GeGLU."""
    name = config.get("hidden_activation") or config.get("hidden_act", "silu")
    return {
        "activation": check_known(
            "hidden_act", name, {"silu": "swiglu", "swish": "swiglu"} | dict.fromkeys(_GELU, "geglu")
        )
    }


_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu")


def _plain(key: str) -> Callable[[Config], Values]:
    """Return the activation without a gate that a key names."""
    known = dict.fromkeys(_GELU, "gelu") | {"relu": "relu"}
    return lambda config: {"activation": check_known(key, config.get(key, "gelu"), known)}


def _llama(config: Config) -> Values:
    """Return the activation, and biases: of all linear layers, or of attention (only QKV biases are counted)."""
    attention, mlp = (
        config.get("attention_bias") or config.get("bias") or config.get("qkv_bias"),
        config.get("mlp_bias"),
    )
    return _gated_values(config) | {"biases": "all" if attention and mlp else "qkv" if attention else "none"}


def _qwen(config: Config) -> Values:
    """Windows of Qwen models count only if `use_sliding_window` says so."""
    return _gated_values(config) | (_windows(config) if config.get("use_sliding_window") else {})


def _windows(config: Config) -> Values:
    """Return the window of attention, and its layers: all, every n-th from the first, or as `layer_types` lists."""
    types, every = config.get("layer_types"), config.get("sliding_window_pattern", 1)
    if types is None:
        types = [_SLIDES if at % every == 0 else _FULL for at in range(config["num_hidden_layers"])]
    return _sliding(config.get("sliding_window"), [_MIXERS[name] for name in types])


def _sliding(window: int | None, mixers: Sequence[str]) -> Values:
    """Return a window and the layers that have it; nothing if none has, and no layers if all have."""
    if not window or "window" not in mixers:
        return {}
    return {"window": window} | ({"mixers": mixers} if "" in mixers else {})


_LONGEST = 1_000_000
"""Longest context of a model here [tokens]: longer ones that configurations state are cut (Llama 4: ten million)."""
_FULL, _SLIDES = "full_attention", "sliding_attention"
_WINDOWED = (_SLIDES, "chunked_attention")


def _cohere2(config: Config) -> Values:
    """Return sliding windows except in every fourth layer (`sliding_window_pattern`), unless `layer_types` says so."""
    return _gated_values(config) | _mostly_windows(ChainMap(config, {"sliding_window_pattern": 4}))


def _mostly_windows(config: Config) -> Values:
    """Return sliding windows except in every n-th layer (Gemma 3: five of six), unless `layer_types` says otherwise."""
    if config.get("layer_types") is not None or not config.get("sliding_window"):
        return _windows(config)
    every, layers = config["sliding_window_pattern"], range(config["num_hidden_layers"])
    return _sliding(config["sliding_window"], ["window" if (at + 1) % every else "" for at in layers])


def _gemma3(config: Config) -> Values:
    return {"activation": "geglu"} | _mostly_windows(config)


def _llama4(config: Config) -> Values:
    """Return experts in every n-th layer and a shared expert, MLPs of another width, full attention in one of four."""
    chunked = config.get("attention_chunk_size")
    own = {"sliding_window": chunked, "sliding_window_pattern": config["no_rope_layer_interval"]}
    listed = ChainMap(own, config)
    every = config["interleave_moe_layer_step"]
    layers = config.get("moe_layers") or range(every - 1, config["num_hidden_layers"], every)
    return _gated_values(config) | _mostly_windows(listed) | {
        "ffn": config.get("intermediate_size_mlp"),
        "networks": _networks(config, layers),
        "qk_norm": bool(config.get("use_qk_norm")),
        "shared_experts": 1,
    }  # fmt: skip


def _glm4_moe(config: Config) -> Values:
    return _deepseek(config) | {
        "qk_norm": bool(config.get("use_qk_norm")), "biases": "qkv" if config.get("attention_bias") else "none"
    }  # fmt: skip


def _hunyuan_moe(config: Config) -> Values:
    """Return experts in all layers; counts that a file lists for each layer must be equal."""
    shared = _alike(config, "num_shared_expert") if config.get("use_mixed_mlp_moe", True) else 0
    wide = _alike(config, "moe_intermediate_size") or config["intermediate_size"]
    return _llama(config) | {
        "experts_per_token": _alike(config, "moe_topk"), "shared_experts": shared, "expert_ffn": wide,
        "qk_norm": bool(config.get("use_qk_norm", True)),
    }  # fmt: skip


def _alike(config: Config, key: str) -> int:
    """Return a number that a file gives once or for each layer; 0 if it does not."""
    value = config.get(key)
    listed = value if isinstance(value, list) else [value or 0]
    if len(set(listed)) > 1:
        raise ConfigError("layers with different values are not modelled; give one value for all layers", None, key)
    return int(listed[0])


def _ernie_moe(config: Config) -> Values:
    """Return experts in every n-th layer from the first to the last that the configuration names."""
    layers = config["num_hidden_layers"]
    first, every = config.get("moe_layer_start_index") or 0, config.get("moe_layer_interval") or 1
    last = config.get("moe_layer_end_index")
    end = layers if last is None or last < 0 else last + 1
    routed = [at for at in range(first, end) if (at + 1) % every == 0]
    return _gated_values(config) | {
        "networks": _networks(config, routed), "biases": "all" if config.get("use_bias") else "none"
    }  # fmt: skip


def _alternating(config: Config) -> Values:
    """Windows in every other layer, the first one included, unless `layer_types` says otherwise."""
    return _windows(ChainMap(config, {"sliding_window_pattern": 2}))


def _gpt_oss(config: Config) -> Values:
    return _alternating(config) | {"activation": "swiglu", "activation_clamped": True, "rotary_scaled": True}


def _qwen_moe(config: Config) -> Values:
    """Routed experts, and shared ones as a multiple of their width."""
    plain, every = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step") or 1
    if not isinstance(plain, list) or not all(map(is_whole, plain)):
        raise ConfigError(
            f"it is {show_value(plain)}; give the numbers of layers, like [0, 1]", None, "mlp_only_layers"
        )
    routed: Values = {}
    if plain:
        layers = range(config["num_hidden_layers"])
        listed = tuple(at for at in layers if at not in plain and (at + 1) % every == 0)
        if not listed:
            raise ConfigError("it names every layer that has experts; leave experts out", None, "mlp_only_layers")
        routed = {"networks": _networks(config, listed)}
    wide, shared = config.get("moe_intermediate_size", 1), config.get("shared_expert_intermediate_size", 0)
    return _qwen(config) | {"shared_experts": _whole_experts(shared, wide, "shared_expert_intermediate_size")} | routed


def _deepseek(config: Config) -> Values:
    found, every = _gated_values(config), config.get("moe_layer_freq") or 1
    if every > 1:
        first = config.get("first_k_dense_replace") or 0
        layers = range(config["num_hidden_layers"])
        routed = tuple(at for at in layers if at >= first and at % every == 0)
        found |= {"networks": _networks(config, routed)}
    groups = config.get("n_group") or 1
    if groups == 1 or config.get("topk_method") == "greedy":
        return found
    return found | {"expert_groups": groups, "groups_per_token": config.get("topk_group") or groups}


def _falcon(config: Config) -> Values:
    """Falcon 7B has one head of keys and one norm in a layer, Falcon 40B and 180B several heads and two norms."""
    several = config.get("new_decoder_architecture", False)
    heads = config.get("num_kv_heads") or config.get("n_head_kv")
    one = config.get("multi_query", True) and not several
    return {
        "kv_heads": 1 if one else heads if several else None,
        "parallel": bool(several or config.get("parallel_attn", True)),
        "parallel_norms": 2 if several else 1,
        "positions": "alibi" if config.get("alibi") else "rotary",
        "biases": "all" if config.get("bias") else "none",
        "ffn": config.get("ffn_hidden_size"),
    }


def _neox(config: Config) -> Values:
    return _plain("hidden_act")(config) | {
        "parallel": bool(config.get("use_parallel_residual", True)),
        "parallel_norms": 2,
    }


def _opt(config: Config) -> Values:
    narrow = config.get("word_embed_proj_dim", config.get("hidden_size"))
    if narrow != config.get("hidden_size"):
        raise ConfigError(f"an embedding of another width, {narrow}, is not modelled", None, "word_embed_proj_dim")
    norms = "before" if config.get("do_layer_norm_before", True) else "after"
    biases = "all" if config.get("enable_bias", True) else "none"
    return _plain("activation_function")(config) | {"norms": norms, "biases": biases}


def _mpt(config: Config) -> Values:
    attention = config.get("attn_config") or {}
    alibi = attention.get("alibi", True)
    heads = attention.get("kv_n_heads")
    single = attention.get("attn_type") == "multiquery_attention"
    return {
        "positions": "alibi" if alibi else "learned",
        "biases": "none" if config.get("no_bias", True) else "all",
        "kv_heads": 1 if single else heads,
        "qk_norm": bool(attention.get("qk_ln")),
        "ffn_multiple": config.get("expansion_ratio", 4),
    }


def _t5(config: Config) -> Values:
    """As many encoder layers as `num_layers`, and as many decoder layers unless `num_decoder_layers` says otherwise."""
    act = config.get("feed_forward_proj", "relu")
    known = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}
    return {
        "layers": config.get("num_decoder_layers") or config.get("num_layers"),
        "activation": check_known("feed_forward_proj", act, known),
        "sequence_length": config.get("n_positions", 512),
    }


def _networks(config: Config, routed: Collection[int]) -> Sequence[str]:
    """Return the network of each layer, those with experts by number from 0."""
    return ["moe" if at in routed else "dense" for at in range(config["num_hidden_layers"])]


def _with_pattern(values: Values) -> Values:
    """Return dimensions with the pattern of the layers, where a reader lists the mixer or the network of each."""
    mixers, networks = (values.pop(name, None) for name in ("mixers", "networks"))
    if mixers is None and networks is None:
        return values
    count, first, every = values["layers"], values.pop("dense_layers", 0), values.pop("moe_every", 1)
    routed = [at for at in range(count) if values.get("experts") and at >= first and (at + 1) % every == 0]
    networks = networks or ["moe" if at in routed else "dense" for at in range(count)]
    return values | {"pattern": compose_pattern(mixers or ["window" if values.get("window") else ""] * count, networks)}


_MIXERS = {
    "full_attention": "", "attention": "", "linear_attention": "linear", "mamba": "linear",
    "sliding_attention": "window", "chunked_attention": "window",
}  # fmt: skip
"""What mixes tokens in a layer, by the words of `layer_types`."""
_HYBRID = ("linear_attention", "mamba", "attention")


def _delta(config: Config) -> Values:
    """Return gated DeltaNet in all layers but every fourth (`full_attention_interval`), or as `layer_types` lists."""
    every, layers = config.get("full_attention_interval") or 4, range(config["num_hidden_layers"])
    stated = config.get("layer_types")
    mixers = [_MIXERS[name] for name in stated] if stated else ["linear" if (at + 1) % every else "" for at in layers]
    return (_qwen_moe(config) if config.get("num_experts") else _gated_values(config)) | {"mixers": mixers}


def _kimi_linear(config: Config) -> Values:
    """Return Kimi delta attention, and latent attention in the layers that the configuration numbers from 1."""
    own, layers = config.get("linear_attn_config") or {}, range(config["num_hidden_layers"])
    full = own.get("full_attn_layers")
    if full is not None:
        mixers = ["" if at + 1 in full else "linear" for at in layers]
    else:
        mixers = [_MIXERS[name] for name in config["layer_types"]]
    dense, sparse = config.get("first_k_dense_replace") or 0, config.get("mlp_layer_types")
    networks = ["dense" if at < dense else "moe" for at in layers]
    if sparse:
        networks = ["moe" if name == "sparse" else "dense" for name in sparse]
    heads = own.get("num_heads") or config.get("linear_num_heads")
    head = own.get("head_dim") or config.get("linear_head_dim")
    conv = own.get("short_conv_kernel_size") or config.get("linear_conv_kernel_dim")
    return _gated_values(config) | {
        "mixers": mixers, "networks": networks, "linear_heads": heads, "linear_head": head, "linear_state": head,
        "linear_rank": head, "linear_conv": conv,
    }  # fmt: skip


_BLOCKS = {
    "M": "linear", "-": "mlp", "*": "attention", "E": "experts", "mamba": "linear", "linear_attention": "linear",
    "mlp": "mlp", "attention": "attention", "full_attention": "attention", "moe": "experts",
}  # fmt: skip
"""The one sub-layer of a Nemotron-H layer, by its letter in `hybrid_override_pattern` or its word."""


def _nemotron_h(config: Config) -> Values:
    stated = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    key = "layers_block_type" if config.get("layers_block_type") else "hybrid_override_pattern"
    if not stated:
        raise ConfigError("'hybrid_override_pattern' is missing; a nemotron_h model needs it")
    unknown = [letter for letter in stated if letter not in _BLOCKS]
    if unknown:
        raise ConfigError(f"{show_value(unknown[0])} is no layer; known: {', '.join(_BLOCKS)}", None, key)
    kinds = tuple(_BLOCKS[letter] for letter in stated)
    layers = config.get("num_hidden_layers", len(kinds))
    if layers != len(kinds):
        raise ConfigError(f"it has {len(kinds)} layers, and num_hidden_layers is {layers}", None, key)
    if config.get("use_bias"):
        raise ConfigError("biases of state-space layers are not modelled", None, "use_bias")
    name = config.get("mlp_hidden_act", "relu2")
    found: Values = {
        "pattern": kinds, "layers": len(kinds), "head": config.get("attention_head_dim") or config.get("head_dim"),
        "activation": check_known("mlp_hidden_act", name, {"relu2": "relu2", "relu": "relu"}),
    }  # fmt: skip
    if "experts" in kinds:
        wide, shared = config["moe_intermediate_size"], config.get("moe_shared_expert_intermediate_size") or 0
        found |= {
            "experts": config["n_routed_experts"], "experts_per_token": config["num_experts_per_tok"],
            "expert_hidden": config.get("moe_latent_size"),
            "expert_ffn": wide, "shared_experts": _whole_experts(shared, wide, "moe_shared_expert_intermediate_size"),
        }  # fmt: skip
    return found


def _whole_experts(shared: int, wide: int, key: str) -> int:
    """Return the shared experts of a layer as a multiple of the width of a routed one."""
    if shared % wide:
        rule = f"{shared} is no multiple of the width of an expert, {wide}; shared experts are modelled as whole ones"
        raise ConfigError(rule, None, key)
    return shared // wide


def _mamba2_sizes(config: Config) -> Values:
    """Return the sizes of Mamba-2 layers, of which "auto" means that heads together span `mamba_expand` x hidden."""
    inner = config["mamba_expand"] * config["hidden_size"]
    heads, head = config["mamba_n_heads"], config["mamba_d_head"]
    head = inner // heads if head == "auto" else head
    if config.get("mamba_proj_bias"):
        raise ConfigError("biases of state-space layers are not modelled", None, "mamba_proj_bias")
    return {"linear_heads": heads, "linear_head": head}


def _granite_hybrid(config: Config) -> Values:
    """Return Mamba-2 but where `layer_types` lists attention; without routed experts the shared one is the MLP."""
    mixers = [_MIXERS[name] for name in config["layer_types"]]
    shared, wide = config["shared_intermediate_size"], config["intermediate_size"]
    routed = config.get("num_local_experts") or 0
    experts = {
        "experts": routed, "experts_per_token": config["num_experts_per_tok"], "expert_ffn": wide, "ffn": wide,
        "shared_experts": _whole_experts(shared, wide, "shared_intermediate_size"),
    }  # fmt: skip
    return _gated_values(config) | _mamba2_sizes(config) | {
        "mixers": mixers,
        "positions": "rotary" if config.get("position_embedding_type") == "rope" else "none",
    } | (experts if routed else {"ffn": shared})  # fmt: skip


def _falcon_h1(config: Config) -> Values:
    """Return attention and Mamba-2 on the same input in every layer."""
    if config.get("mamba_proj_bias") or config.get("projectors_bias"):
        raise ConfigError("biases of state-space layers are not modelled", None, "mamba_proj_bias")
    return _gated_values(config) | {"mixers": ["both"] * config["num_hidden_layers"]}


def _bamba(config: Config) -> Values:
    full = config.get("attn_layer_indices") or ()
    mixers = ["" if at in full else "linear" for at in range(config["num_hidden_layers"])]
    return _gated_values(config) | _mamba2_sizes(config) | {"mixers": mixers}


def _jamba(config: Config) -> Values:
    layers, routed = range(config["num_hidden_layers"]), config["num_experts"] > 1
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    every, first = config["expert_layer_period"], config["expert_layer_offset"]
    mixers = ["" if at % period == offset else "linear" for at in layers]
    networks = ["moe" if routed and at % every == first else "dense" for at in layers]
    experts = {"experts": config["num_experts"], "experts_per_token": config["num_experts_per_tok"]} if routed else {}
    return _gated_values(config) | experts | {"mixers": mixers, "networks": networks} | _mamba_sizes(config, "mamba_")


def _mamba_sizes(config: Config, prefix: str = "") -> Values:
    """Return the sizes of Mamba layers: channels of one element, and step sizes of a rank of a 16th of hidden."""
    rank = config.get("mamba_dt_rank" if prefix else "time_step_rank", "auto")
    state, conv = (prefix + "d_state", prefix + "d_conv") if prefix else ("state_size", "conv_kernel")
    return {
        "linear_heads": config[prefix + "expand"] * config["hidden_size"], "linear_head": 1, "linear_groups": 1,
        "linear_state": config[state], "linear_conv": config[conv],
        "linear_rank": -(-config["hidden_size"] // 16) if rank == "auto" else rank,
    }  # fmt: skip


def _pure_mamba(config: Config) -> Values:
    return {"pattern": ("linear",), **_mamba_sizes(config)}


def _lightning(config: Config) -> Values:
    """Return lightning attention where `attn_type_list` has 0, or as `layer_types` lists, with a state of a head's size
    squared.
    """
    stated, types = config.get("attn_type_list"), config.get("layer_types")
    if stated is None and types is None:
        raise ConfigError("'attn_type_list' is missing; a MiniMax model with lightning attention needs it")
    mixers = ["" if full else "linear" for full in stated] if stated else [_MIXERS[one] for one in types or ()]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    sizes = dict.fromkeys(("linear_head", "linear_state"), head) | {"linear_heads": config["num_attention_heads"]}
    return _gated_values(config) | sizes | {"mixers": mixers}


_MIXTURE = _keys(experts_per_token="num_experts_per_tok")
_MLA = {
    **_DENSE,
    **_MIXTURE,
    **_keys(
        experts="n_routed_experts", expert_ffn="moe_intermediate_size", kv_rank="kv_lora_rank", head="qk_nope_head_dim",
        rotary_head="qk_rope_head_dim", value_head="v_head_dim",
    ),
}  # fmt: skip
_LATENT = Family(
    _MLA,
    _keys(
        query_rank="q_lora_rank", shared_experts="n_shared_experts", dense_layers="first_k_dense_replace",
        predict_layers="num_nextn_predict_layers",
    ),
    _LLAMA,
    derive=_deepseek,
)  # fmt: skip
_INDEXER = _keys(index_heads="index_n_heads", index_head="index_head_dim", index_topk="index_topk")
_SPARSE = replace(
    _LATENT, optional={**_LATENT.optional, **_INDEXER}, layer_types=("indexed_attention",),
    defaults={"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048},
    simplified="sparse attention taken as dense in training",
)  # fmt: skip
_LLAMA4 = Family(
    _SHAPE | _MIXTURE | _keys(experts="num_local_experts", expert_ffn="intermediate_size"),
    _GROUPED,
    _LLAMA,
    derive=_llama4,
    defaults={"no_rope_layer_interval": 4, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192},
    simplified="chunked attention taken as sliding windows",
)
_GEMMA3 = Family(
    _DENSE,
    _GROUPED,
    _LLAMA | {"norms": "both", "qk_norm": True},
    tied=True,
    derive=_gemma3,
    defaults={
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131_072, "sliding_window": 4096, "sliding_window_pattern": 6,
    },
)  # fmt: skip
_LIKE_LLAMA = Family(_DENSE, _GROUPED, _LLAMA, derive=_llama)
_QWEN_MOE = {
    **_DENSE,
    **_MIXTURE,
    **_keys(experts="num_experts num_local_experts", expert_ffn="moe_intermediate_size"),
}
_BERT = Family(
    _DENSE,
    fixed={"norms": "after", "embedding_norm": True, "causal": False, "masked": True},
    tied=True,
    derive=_plain("hidden_act"),
)
_T5 = Family(
    _keys(
        hidden="d_model",
        encoder_layers="num_layers",
        heads="num_heads",
        head="d_kv",
        ffn="d_ff",
        vocabulary="vocab_size",
    ),
    fixed={"norm": "rmsnorm", "positions": "relative", "biases": "none"},
    tied=True,
    derive=_t5,
)
_MISTRAL = Family(_DENSE, _GROUPED, _LLAMA, derive=lambda config: _gated_values(config) | _windows(config))
_QWEN3 = Family(_DENSE, _GROUPED, _LLAMA | {"qk_norm": True}, derive=_qwen)
_QWEN3_MOE = Family(
    _QWEN_MOE, _GROUPED | _keys(moe_every="decoder_sparse_step"), _LLAMA | {"qk_norm": True}, derive=_qwen_moe
)
_BEHIND = "norms behind sub-layers counted before them"
_FURTHER = _keys(predict_layers="num_nextn_predict_layers mtp_num_hidden_layers")
_DELTA_KEYS = _keys(
    linear_heads="linear_num_value_heads", linear_groups="linear_num_key_heads", linear_head="linear_value_head_dim",
    linear_state="linear_key_head_dim", linear_conv="linear_conv_kernel_dim",
)  # fmt: skip
_GATED_DELTA = {
    **_LLAMA, "qk_norm": True, "attention_gate": True, "linear": "gated_delta", "linear_chunk": 64
}  # fmt: skip
_NEXT = Family(
    {**_SHAPE, **_MIXTURE, **_keys(experts="num_experts", expert_ffn="moe_intermediate_size"), **_DELTA_KEYS},
    _GROUPED | _keys(ffn="intermediate_size", moe_every="decoder_sparse_step") | _FURTHER,
    _GATED_DELTA, derive=_delta, layer_types=_HYBRID,
)  # fmt: skip
_QWEN3_5 = Family({**_DENSE, **_DELTA_KEYS}, _GROUPED | _FURTHER, _GATED_DELTA, derive=_delta, layer_types=_HYBRID)
_MAMBA2 = _keys(
    linear_state="mamba_d_state", linear_groups="mamba_n_groups", linear_conv="mamba_d_conv",
    linear_chunk="mamba_chunk_size",
)  # fmt: skip
_LIGHTNING = Family(
    {**_DENSE, **_MIXTURE, **_keys(experts="num_local_experts")},
    _GROUPED | _keys(linear_chunk="block_size"), {**_LLAMA, "linear": "lightning", "linear_chunk": 256},
    derive=_lightning, layer_types=_HYBRID,
)  # fmt: skip
_MAMBA1 = Family(
    _keys(hidden="hidden_size", layers="num_hidden_layers", vocabulary="vocab_size"),
    fixed={**_LLAMA, "positions": "none", "linear": "mamba", "sequence_length": 2048}, tied=True,
    derive=_pure_mamba, defaults={"expand": 2, "state_size": 16, "conv_kernel": 4},
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    "llama": _LIKE_LLAMA,
    "granite": _LIKE_LLAMA,
    "internlm": _LIKE_LLAMA,
    "internlm2": _LIKE_LLAMA,
    "mistral": _MISTRAL,
    "mixtral": Family(
        _DENSE | _MIXTURE | _keys(experts="num_local_experts"),
        _GROUPED,
        _LLAMA,
        derive=lambda config: _gated_values(config) | _windows(config),
    ),
    "phi3": Family(_DENSE, _GROUPED, _LLAMA, derive=lambda config: _gated_values(config) | _windows(config)),
    "qwen2": Family(_DENSE, _GROUPED, _LLAMA | {"biases": "qkv"}, derive=_qwen),
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "mistral3": _MISTRAL,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "seed_oss": Family(_DENSE, _GROUPED, _LLAMA, derive=_llama),
    "smollm3": Family(_DENSE, _GROUPED, _LLAMA, tied=True, derive=_llama),
    "olmo2": Family(_DENSE, _GROUPED, _LLAMA | {"qk_norm": True}, derive=_llama, simplified=_BEHIND),
    "olmo3": Family(
        _DENSE, _GROUPED, _LLAMA | {"qk_norm": True}, derive=lambda config: _gated_values(config) | _windows(config),
        simplified=_BEHIND, defaults={"sliding_window_pattern": 1},
    ),
    "exaone4": Family(
        _DENSE, _GROUPED, _LLAMA | {"qk_norm": True}, derive=lambda config: _gated_values(config) | _windows(config),
        simplified=_BEHIND,
    ),
    "glm4": Family(_DENSE, _GROUPED, _LLAMA | {"norms": "both"}, derive=_llama),
    "cohere2": Family(
        _DENSE, _GROUPED, {"positions": "rotary", "biases": "none", "parallel": True}, True, _cohere2
    ),
    "hunyuan_v1_dense": Family(_DENSE, _GROUPED, _LLAMA | {"qk_norm": True}, tied=True, derive=_llama),
    "hunyuan_v1_moe": Family(_DENSE | _keys(experts="num_experts"), _GROUPED, _LLAMA, True, _hunyuan_moe),
    "ernie4_5": Family(_DENSE, _GROUPED, _LLAMA, True, _llama),
    "ernie4_5_moe": Family(
        _DENSE | _keys(
            experts="moe_num_experts", experts_per_token="moe_k moe_topk", expert_ffn="moe_intermediate_size"
        ),
        _GROUPED | _keys(shared_experts="moe_num_shared_experts"), _LLAMA, True, _ernie_moe,
    ),
    "granitemoe": Family(
        _DENSE | _MIXTURE | _keys(experts="num_local_experts"), _GROUPED, _LLAMA, True, _gated_values
    ),
    "minimax_m2": Family(
        _DENSE | _MIXTURE | _keys(experts="num_local_experts"), _GROUPED, _LLAMA | {"qk_norm": True},
        derive=_gated_values,
    ),
    "qwen3": _QWEN3,
    "qwen2_moe": Family(
        _QWEN_MOE, _GROUPED | _keys(moe_every="decoder_sparse_step"), _LLAMA | {"biases": "qkv"}, derive=_qwen_moe
    ),
    "qwen3_moe": _QWEN3_MOE,
    "gpt_oss": Family(
        _DENSE | _MIXTURE | _keys(experts="num_local_experts num_experts"), _GROUPED, _LLAMA | {"biases": "all"},
        derive=_gpt_oss,
    ),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": replace(_SPARSE, defaults={**_SPARSE.defaults, "index_n_heads": 32}),
    "kimi_k2": _LATENT,
    "glm4_moe": Family(
        {**_DENSE, **_MIXTURE, **_keys(experts="n_routed_experts", expert_ffn="moe_intermediate_size")},
        _GROUPED
        | _keys(
            shared_experts="n_shared_experts", dense_layers="first_k_dense_replace",
            predict_layers="num_nextn_predict_layers",
        ),
        _LLAMA,
        derive=_glm4_moe,
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma": Family(_DENSE, _GROUPED, _LLAMA | {"activation": "geglu"}, tied=True),
    "gemma2": Family(
        _DENSE, _GROUPED, _LLAMA | {"activation": "geglu", "norms": "both"}, tied=True, derive=_alternating
    ),
    "cohere": Family(
        _DENSE, _GROUPED, {"positions": "rotary", "biases": "none", "parallel": True}, True, _gated_values
    ),
    "phi": Family(
        _DENSE, _keys(kv_heads="num_key_value_heads"), {"positions": "rotary", "parallel": True},
        derive=_plain("hidden_act"),
    ),
    "gpt_neox": Family(_DENSE, fixed={"positions": "rotary"}, derive=_neox),
    "falcon": Family(
        _keys(
            hidden="hidden_size n_embed", layers="num_hidden_layers n_layer", heads="num_attention_heads n_head",
            vocabulary="vocab_size",
        ),
        _keys(sequence_length="max_position_embeddings"),
        {"sequence_length": 2048},
        tied=True,
        derive=_falcon,
    ),
    "gpt2": Family(_GPT, _keys(ffn="n_inner"), tied=True, derive=_plain("activation_function")),
    "opt": Family(_SHAPE | _keys(ffn="ffn_dim"), tied=True, derive=_opt),
    "bloom": Family(
        _keys(
            hidden="hidden_size n_embed", layers="n_layer num_hidden_layers", heads="n_head num_attention_heads",
            vocabulary="vocab_size",
        ),
        _keys(sequence_length="seq_length"),
        {"positions": "alibi", "embedding_norm": True, "sequence_length": 2048},
        tied=True,
    ),
    "mpt": Family(
        _keys(
            hidden="d_model", layers="n_layers", heads="n_heads", vocabulary="vocab_size", sequence_length="max_seq_len"
        ),
        tied=True,
        derive=_mpt,
    ),
    "qwen3_next": _NEXT,
    "qwen3_5_moe": _NEXT,
    "qwen3_5_moe_text": _NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "kimi_linear": Family(
        {
            **_SHAPE, **_keys(
                experts="num_experts", experts_per_token="num_experts_per_token", expert_ffn="moe_intermediate_size",
                kv_rank="kv_lora_rank", head="qk_nope_head_dim", rotary_head="qk_rope_head_dim",
                value_head="v_head_dim", sequence_length="model_max_length max_position_embeddings",
            ),
        },
        _keys(ffn="intermediate_size", query_rank="q_lora_rank", shared_experts="num_shared_experts"),
        {**_LLAMA, "positions": "none", "linear": "kimi_delta", "linear_chunk": 64},
        derive=_kimi_linear, layer_types=_HYBRID,
    ),
    "nemotron_h": Family(
        {
            **_keys(hidden="hidden_size", heads="num_attention_heads", vocabulary="vocab_size"),
            **_keys(
                ffn="intermediate_size", sequence_length="max_position_embeddings", linear_heads="mamba_num_heads",
                linear_head="mamba_head_dim", linear_state="ssm_state_size",
            ),
        },
        _keys(
            kv_heads="num_key_value_heads", linear_groups="n_groups mamba_n_groups",
            linear_conv="conv_kernel mamba_d_conv", linear_chunk="chunk_size mamba_chunk_size",
        ) | _FURTHER,
        {**_LLAMA, "positions": "none", "linear": "mamba2"},
        derive=_nemotron_h, defaults={"n_groups": 8, "conv_kernel": 4, "chunk_size": 128},
    ),
    "granitemoehybrid": Family(
        {**_SHAPE, **_MAMBA2}, _keys(kv_heads="num_key_value_heads"), {**_LLAMA, "linear": "mamba2"}, tied=True,
        derive=_granite_hybrid, defaults={"mamba_expand": 2, "mamba_chunk_size": 256}, layer_types=_HYBRID,
    ),
    "falcon_h1": Family(
        {**_DENSE, **_MAMBA2, **_keys(linear_heads="mamba_n_heads", linear_head="mamba_d_head")}, _GROUPED,
        {**_LLAMA, "linear": "mamba2"}, derive=_falcon_h1, defaults={"mamba_chunk_size": 256},
    ),
    "olmo_hybrid": Family(
        {**_DENSE, **_DELTA_KEYS}, _GROUPED,
        {**_LLAMA, "qk_norm": True, "linear": "gated_delta", "linear_chunk": 64},
        derive=_delta, layer_types=_HYBRID, simplified=_BEHIND,
    ),
    "bamba": Family(
        {**_DENSE, **_MAMBA2}, _keys(kv_heads="num_key_value_heads"), {**_LLAMA, "linear": "mamba2"},
        derive=_bamba, defaults={"mamba_expand": 2, "mamba_chunk_size": 256}, layer_types=_HYBRID,
    ),
    "jamba": Family(
        _DENSE, _keys(kv_heads="num_key_value_heads"), {**_LLAMA, "positions": "none", "linear": "mamba"},
        derive=_jamba, layer_types=_HYBRID, defaults={
            "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1,
            "num_experts": 16, "num_experts_per_tok": 2, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
        },
    ),
    "minimax": _LIGHTNING,
    "minimax_text_01": _LIGHTNING,
    "minimax_m1": _LIGHTNING,
    "mamba": _MAMBA1,
    "falcon_mamba": _MAMBA1,
    "mamba2": Family(
        _keys(
            hidden="hidden_size", layers="num_hidden_layers", vocabulary="vocab_size", linear_heads="num_heads",
            linear_head="head_dim", linear_state="state_size", linear_groups="n_groups", linear_conv="conv_kernel",
            linear_chunk="chunk_size",
        ),
        fixed={**_LLAMA, "positions": "none", "linear": "mamba2", "sequence_length": 2048},
        derive=lambda config: {"pattern": ("linear",)}, defaults={"conv_kernel": 4, "chunk_size": 256},
    ),
    "bert": _BERT,
    "roberta": _BERT,
    "t5": _T5,
    "mt5": _T5,
}  # fmt: skip
"""The known values of `model_type`; field names are those of Hugging Face's transformers 4 and 5."""

_LACKING = {
    "recurrent_gemma": "recurrent layers (RG-LRU)",
    "zamba2": "attention layers that share their weights, with adapters",
    "zamba": "attention layers that share their weights",
}
"""What models of a type have that no operator in Weft stands for."""
_MOST_LAYERS = 100_000
"""Layers of the deepest model that is read."""
_WORDS: Mapping[str, tuple[str, ...]] = {
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
    "scoring_func": ("softmax", "sigmoid"),
    "layer_types": ("full_attention", *_WINDOWED),
    "rope_scaling": ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "mrope", "proportional"),
}
"""Words of a configuration that decide what is computed, where a file has them."""
_COUNTS = (
    "moe_intermediate_size", "shared_expert_intermediate_size", "n_group", "topk_group", "moe_layer_freq",
    "sliding_window", "sliding_window_pattern", "decoder_sparse_step", "first_k_dense_replace",
    "interleave_moe_layer_step", "attention_chunk_size", "no_rope_layer_interval", "intermediate_size_mlp",
    "num_kv_heads", "n_head_kv", "full_attention_interval", "attn_layer_period", "attn_layer_offset",
    "expert_layer_period", "expert_layer_offset", "mamba_expand", "shared_intermediate_size",
    "moe_shared_expert_intermediate_size", "linear_head_dim", "linear_num_heads",
)  # fmt: skip
"""Keys from which more than one dimension follows."""


def _check_values(config: Config, family: Family) -> None:
    """Raise ConfigError for words and numbers of a configuration that decide what is computed, and are none."""
    for key in _COUNTS:
        value = config.get(key)
        for one in value if isinstance(value, list) else [value]:
            if one is None or (is_whole(one) and one >= 0):
                continue
            raise ConfigError(f"it is {show_value(config[key])}; give a whole number", None, key)
    for key, known in _WORDS.items():
        value = config.get(key)
        if isinstance(value, Mapping):
            value = value.get("rope_type", value.get("type"))
        words = (*known, *family.layer_types) if key == "layer_types" else known
        for word in value if isinstance(value, list) else [value]:
            if word is not None and word not in words:
                rule = f"it is {show_value(word)}, which is not modelled; known: {', '.join(words)}"
                raise ConfigError(rule, None, key)
    types, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if is_whole(layers) and int(layers or 0) > _MOST_LAYERS:
        raise ConfigError(f"it is {layers}; give at most {_MOST_LAYERS:,} layers", None, "num_hidden_layers")
    if isinstance(types, list) and is_whole(layers) and len(types) != layers:
        raise ConfigError(f"it has {len(types)} layers, and num_hidden_layers is {layers}", None, "layer_types")


class _Fields(dict[str, Any]):
    """A configuration that remembers the fields that were asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default."""
        self.asked.add(key)
        return super().get(key, default)


_OF_NO_ACCOUNT = re.compile(
    r"_name|architectures|auto_map|transformers_version|model_type|.*token_id|.*dropout|.*_eps|.*epsilon|initializer.*|"
    r"rope.*|partial_rotary_factor|rotary_.*|.*_coef|.*_scaling.*|.*_factor|.*multiplier|norm_topk_prob|output_.*|use_cache|"
    r"pretraining_tp|tie_word_embeddings|.*dtype|quantization_config|vision_config|audio_config|scoring_func|time_step_.*|"
    r"max_position_embeddings|hidden_act|num_logits_to_keep|bos.*|eos.*|pad.*|rescale.*|residual_in_fp32|.*_kernels"
)
"""Fields that decide no dimension: what is trained, the values of constants, words of a tokenizer."""


_DISTINCTIVE = re.compile(
    r".*(expert|moe|_lora_|_nope_|_rope_head|v_head_dim|index_|linear_|mamba|ssm_|_conv|d_conv|state_size).*"
)
"""Fields of experts, of attention other than by groups of heads, and of layers without attention."""
_LEAST_ALIKE = 0.5
"""Smallest share of distinctive fields that a type has in common with a configuration to be called close."""


def _likeness(kind: str, config: Mapping[str, Any], name: str, family: Family) -> float:
    """Return how alike a configuration and a type are by distinctive fields; a common stem of their names adds some."""
    known = {key for keys in (*family.needed.values(), *family.optional.values()) for key in keys} | {*family.defaults}
    own = {key for key in known if _DISTINCTIVE.fullmatch(key)}
    has = {key for key, value in config.items() if value and _DISTINCTIVE.fullmatch(key)}
    lacking = {
        keys[0] for keys in family.needed.values() if not has.intersection(keys) and _DISTINCTIVE.fullmatch(keys[0])
    }
    either = len(has | lacking)
    stems = [re.match("[a-z]*", text) for text in (kind, name)]
    same = stems[0] and stems[1] and stems[0][0] == stems[1][0] != ""
    return (len(has & own) / either if either else 1.0) + 0.25 * bool(same)


def _nearest_family(kind: str, config: Mapping[str, Any]) -> str:
    """Return a sentence on the known type nearest to a configuration, and what it would leave out; "" if none is near.

    Of types that are alike by fields of attention and experts, the one that leaves out fewest fields is nearest.
    """
    stated = [key for key, value in config.items() if value and not _OF_NO_ACCOUNT.fullmatch(key)]
    found: list[tuple[float, int, int, int, str, list[str]]] = []
    for place, (name, family) in enumerate(FAMILIES.items()):
        alike = _likeness(kind, config, name, family)
        if alike < _LEAST_ALIKE or len(config) < _SHOWN:
            continue
        fields = _Fields(_with_defaults(config, family))
        try:
            _read(fields, family, "", "")
        except (WeftError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
        left = [key for key in stated if key not in fields.asked]
        found.append((-alike, len(left), name.count("_"), place, name, left))
    if not found:
        return _unreadable_family(kind, config)
    *_, name, left = min(found)
    if not left:
        return f" All its fields are known to {name}: set model_type to '{name}' if the layers are the same."
    shown = ", ".join(f"{key} ({show_value(config[key])})" for key in left[:_SHOWN])
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return f" The closest known type is {name}, which would leave out {shown}{more}."


def _unreadable_family(kind: str, config: Mapping[str, Any]) -> str:
    """Return a sentence on the nearest of the types that need more fields than a configuration has; "" for none."""
    *_, name = max((_likeness(kind, config, name, family), name) for name, family in FAMILIES.items())
    needs = [keys[0] for keys in FAMILIES[name].needed.values() if all(config.get(key) is None for key in keys)]
    if not needs or len(config) < _SHOWN or _likeness(kind, config, name, FAMILIES[name]) < _LEAST_ALIKE:
        return ""
    return f" The closest known type is {name}, which needs {', '.join(needs[:_SHOWN])} as well."


_SHOWN = 6
"""Fields that a message names."""


def _with_defaults(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    return {**family.defaults, **{key: value for key, value in config.items() if value is not None}}


def _check_kind(kind: object, label: str, config: Mapping[str, Any]) -> None:
    """Raise an error for a `model_type` that is not known; a name is offered only for a slip of the pen.

    Models of names that look alike, such as of two generations, are different models. The message says which fields
    the nearest known type would leave out.
    """
    if isinstance(kind, str) and kind in FAMILIES:
        return
    if isinstance(kind, str) and kind in _LACKING:
        raise ConfigError(
            f"models of the type {kind} have {_LACKING[kind]}, which Weft does not model; no other type stands for it",
            label,
            "model_type",
        )
    inner = config.get("text_config")
    own = inner.get("model_type") if isinstance(inner, Mapping) else None
    if isinstance(own, str) and own in FAMILIES:
        rule = f"its text_config is a {own} with fields or values that Weft does not know of that type"
        raise ConfigError(f"unknown model_type {show_value(kind)}; {rule}; state its dimensions in a TOML file", label)
    slips = [name for name in FAMILIES if _is_slip(str(kind), name)]
    meant = f" Did you mean {join_or(slips)}?" if slips else ""
    raise ConfigError(
        f"unknown model_type {show_value(kind)}.{meant}{_nearest_family(str(kind), config)} State the dimensions of "
        f"another model in a TOML file, as weft models lists them. Known types: {', '.join(FAMILIES)}",
        label,
    )


def _is_slip(typed: str, name: str) -> bool:
    """Return whether a text is a known name but for a letter or two; other digits are another generation."""
    digits = [[each for each in text if each.isdecimal()] for text in (typed, name)]
    return digits[0] == digits[1] and difflib.SequenceMatcher(None, typed, name).ratio() > 0.85


def from_config(file: Path) -> Transformer:
    """Return the model that a `config.json` describes.

    Of a multimodal model the language model is read, by its own type where that of the whole is not known. A
    quantization in hf_quant_config.json beside the file counts. What has no operators in Weft is left out: soft caps of
    logits, a gate before shared experts, the bias of an output projection without others; all elements of a head
    rotate. Raises ConfigError for a missing or unusable field, and for a `model_type` that is not known.
    """
    label = str(file)
    config = read_json(file, "model's configuration", "give the config.json of a Hugging Face model")
    kind = config.get("model_type")
    if kind is None:
        raise ConfigError("'model_type' is missing; is this the config.json of a Hugging Face model?", label)
    inner = config.get("text_config")
    if isinstance(inner, Mapping):  # the language model of a multimodal one
        config = {**config, **{key: value for key, value in inner.items() if value is not None}, "model_type": kind}
        if kind not in [*FAMILIES, *_LACKING] and _reads_all(inner.get("model_type"), config):
            kind = config["model_type"] = inner["model_type"]
    if config.get("quantization_config") is None and (beside := quantization_beside(file)) is not None:
        config["quantization_config"] = beside
    _check_kind(kind, label, config)
    family = FAMILIES[kind]
    config = _with_defaults(config, family)
    try:
        _check_values(config, family)
        return _read(config, family, label, _name(file))
    except ConfigError as error:
        raise ConfigError(error.message, label, error.key) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise ConfigError("a value has another type than in a model of this family", label) from None


def _reads_all(kind: object, config: Mapping[str, Any]) -> bool:
    """Return whether a type is known and reads every distinctive field of a configuration."""
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        return False
    fields = _Fields(_with_defaults({**config, "model_type": kind}, family))
    try:
        _read(fields, family, "", "")
    except (WeftError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False
    return all(key in fields.asked or not value for key, value in config.items() if _DISTINCTIVE.fullmatch(key))


def hub_name(path: str) -> str:
    """Return the name of the model in a folder of Hugging Face's cache, like "Qwen/Qwen3-8B"; "" for another path."""
    found = re.search(r"(?:^|/)models--([^/]+?)--([^/]+?)(?:/|$)", path)
    return f"{found[1]}/{found[2]}" if found else ""


def _name(file: Path) -> str:
    """Return a model's name: that of the file, or of its folder if all such files are called alike."""
    if file.name == "config.json" and (cached := hub_name(str(file.absolute()))):
        return cached.partition("/")[2]
    return file.resolve().parent.name if file.name == "config.json" else file.stem


def _text(value: Any) -> str:
    """Return a value as a file of dimensions shows it; of a list of words, runs of equal ones."""
    if not isinstance(value, tuple):
        return str(value)
    runs = [(word, len(list(same))) for word, same in groupby(value)]
    return ", ".join(f"{count} x {word}" if count > 1 else str(word) for word, count in runs)


def _simplifications(config: Config, family: Family, name: str) -> list[str]:
    """Return what of a model is left out, or taken as something simpler."""
    said = [family.simplified] if family.simplified else []
    towers = [tower for tower in ("vision", "audio") if isinstance(config.get(f"{tower}_config"), Mapping)]
    if towers:
        said.append(f"without its {' and '.join(towers)} tower{'s' * (len(towers) > 1)}")
    listed = config.get("indexer_types")
    shared = listed.count("shared") if isinstance(listed, list) else 0
    if shared or (listed is None and (config.get("index_topk_freq") or 1) != 1):
        layers = f"{shared} layers" if shared else "layers"
        said.append(f"{layers} that share the indexer of another one counted with their own")
    return said + format_remarks(config, name)


def _read(config: Config, family: Family, label: str, name: str) -> Transformer:
    values: Values = {**family.fixed, "tied": config.get("tie_word_embeddings", family.tied)}
    sources = dict.fromkeys(values, f"{label}: model_type {config['model_type']}")
    for dimension, keys in {**family.needed, **family.optional}.items():
        key = next((key for key in keys if config.get(key) is not None), None)
        if key is not None:
            values[dimension], sources[dimension] = config[key], f"{label}: {key}"
        elif dimension in family.needed:
            raise ConfigError(f"'{keys[0]}' is missing; a {config['model_type']} model needs it", label)
    values["weight_format"] = weight_format(config)
    quantized = config.get("quantization_config") is not None
    sources["weight_format"] = f"{label}: {'quantization_config' if quantized else 'torch_dtype'}"
    derived = {dimension: value for dimension, value in family.derive(config).items() if value is not None}
    values = _with_pattern(values | derived)
    if is_whole(values.get("sequence_length")):
        values["sequence_length"] = min(values["sequence_length"], _LONGEST)
    if values.get("pattern") and not any(LAYERS[kind].linear for kind in values["pattern"]):
        values = {name: value for name, value in values.items() if not name.startswith("linear")}
    sources |= dict.fromkeys((*derived, "pattern"), f"{label}: model_type {config['model_type']} and its fields")
    known = {
        path: Provenance(text=_text(values[path]), kind="published", source=source)
        for path, source in sources.items()
        if path in values
    }
    said = "; ".join(_simplifications(config, family, name))
    title = f"{name} ({said})" if said else name
    return Transformer(name=name, title=title, provenance=known, **values)
