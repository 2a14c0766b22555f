"""Transformers from the `config.json` of a Hugging Face model, by its fields and without its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.catalog import Provenance
from weft.errors import ConfigError, UnknownNameError, check_name
from weft.files import read_json
from weft.models.transformer import Transformer

Config = Mapping[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """How the configurations of a `model_type` name a model's dimensions.

    `needed` and `optional` map dimensions to keys, or to several that mean the same; `fixed` are what all models of the
    family have in common. `tied` says whether embedding and head share weights if a file does not say it. `derive`
    returns what follows from several keys.
    """

    needed: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    derive: Callable[[Config], Values] = lambda config: {}


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


def _gated(config: Config) -> Values:
    """The gated activation: SwiGLU for SiLU, else GeGLU."""
    name = config.get("hidden_activation") or config.get("hidden_act", "silu")
    return {
        "activation": _known("hidden_act", name, {"silu": "swiglu", "swish": "swiglu"} | dict.fromkeys(_GELU, "geglu"))
    }


_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu")


def _plain(key: str) -> Callable[[Config], Values]:
    """The activation without a gate that a key names."""
    known = dict.fromkeys(_GELU, "gelu") | {"relu": "relu"}
    return lambda config: {"activation": _known(key, config.get(key, "gelu"), known)}


def _known(key: str, name: object, known: Mapping[str, str]) -> str:
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError(key, name, known)
    return known[name]


def _llama(config: Config) -> Values:
    """The activation, and biases: of all linear layers, or of attention (of which those of QKV are counted)."""
    attention, mlp = (
        config.get("attention_bias") or config.get("bias") or config.get("qkv_bias"),
        config.get("mlp_bias"),
    )
    return _gated(config) | {"biases": "all" if attention and mlp else "qkv" if attention else "none"}


def _qwen(config: Config) -> Values:
    """Windows of Qwen models count only if `use_sliding_window` says so."""
    return _gated(config) | (_windows(config) if config.get("use_sliding_window") else {})


def _windows(config: Config) -> Values:
    """The window of attention, and how often it comes: every layer, or as `layer_types` lists."""
    window = config.get("sliding_window")
    if not window:
        return {}
    types = config.get("layer_types")
    for name in types or ():
        _known("layer_types", name, dict.fromkeys(("full_attention", "sliding_attention"), ""))
    if types is None:
        every = config.get("sliding_window_pattern", 1)
        return {"window": window, "window_every": every}
    slides = [at for at, name in enumerate(types) if name == "sliding_attention"]
    if not slides:
        return {}
    every = slides[1] - slides[0] if len(slides) > 1 else len(types)
    if slides != list(range(0, len(types), every)):
        raise ConfigError(
            "windows in some layers only are modelled if they come at equal distances", None, "layer_types"
        )
    return {"window": window, "window_every": every}


def _alternating(config: Config) -> Values:
    """Windows in every other layer, the first one included, unless `layer_types` says otherwise."""
    return _windows({"sliding_window_pattern": 2, **config})


def _gpt_oss(config: Config) -> Values:
    return _alternating(config) | {"activation": "swiglu", "activation_clamped": True, "rotary_scaled": True}


def _qwen_moe(config: Config) -> Values:
    """Routed experts, and shared ones as a multiple of their width."""
    if config.get("mlp_only_layers"):
        raise ConfigError(
            "single layers without experts are not modelled; leave the list empty", None, "mlp_only_layers"
        )
    wide, shared = config.get("moe_intermediate_size", 1), config.get("shared_expert_intermediate_size", 0)
    if shared % wide:
        rule = f"{shared} is no multiple of moe_intermediate_size, {wide}; shared experts are modelled as whole ones"
        raise ConfigError(rule, None, "shared_expert_intermediate_size")
    return _qwen(config) | {"shared_experts": shared // wide}


def _deepseek(config: Config) -> Values:
    if config.get("moe_layer_freq", 1) != 1:
        raise ConfigError(
            "only mixtures in every layer after the first dense ones are modelled", None, "moe_layer_freq"
        )
    for key, names in _ROUTINGS.items():
        if config.get(key) is not None:
            _known(key, config[key], dict.fromkeys(names, ""))
    groups = config.get("n_group") or 1
    if groups == 1 or config.get("topk_method") == "greedy":
        return _gated(config)
    return _gated(config) | {"expert_groups": groups, "groups_per_token": config.get("topk_group") or groups}


_ROUTINGS = {
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
    "scoring_func": ("softmax", "sigmoid"),
}
"""How DeepSeek's models choose experts: the names that transformers knows."""


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
        "activation": _known("feed_forward_proj", act, known),
        "sequence_length": config.get("n_positions", 512),
    }


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
FAMILIES: Mapping[str, Family] = {
    "llama": _LIKE_LLAMA,
    "granite": _LIKE_LLAMA,
    "internlm": _LIKE_LLAMA,
    "internlm2": _LIKE_LLAMA,
    "mistral": Family(_DENSE, _GROUPED, _LLAMA, derive=lambda config: _gated(config) | _windows(config)),
    "mixtral": Family(
        _DENSE | _MIXTURE | _keys(experts="num_local_experts"),
        _GROUPED,
        _LLAMA,
        derive=lambda config: _gated(config) | _windows(config),
    ),
    "phi3": Family(_DENSE, _GROUPED, _LLAMA, derive=lambda config: _gated(config) | _windows(config)),
    "qwen2": Family(_DENSE, _GROUPED, _LLAMA | {"biases": "qkv"}, derive=_qwen),
    "qwen3": Family(_DENSE, _GROUPED, _LLAMA | {"qk_norm": True}, derive=_qwen),
    "qwen2_moe": Family(
        _QWEN_MOE, _GROUPED | _keys(moe_every="decoder_sparse_step"), _LLAMA | {"biases": "qkv"}, derive=_qwen_moe
    ),
    "qwen3_moe": Family(
        _QWEN_MOE, _GROUPED | _keys(moe_every="decoder_sparse_step"), _LLAMA | {"qk_norm": True}, derive=_qwen_moe
    ),
    "gpt_oss": Family(
        _DENSE | _MIXTURE | _keys(experts="num_local_experts num_experts"), _GROUPED, _LLAMA | {"biases": "all"},
        derive=_gpt_oss,
    ),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "gemma": Family(_DENSE, _GROUPED, _LLAMA | {"activation": "geglu"}, tied=True),
    "gemma2": Family(
        _DENSE, _GROUPED, _LLAMA | {"activation": "geglu", "norms": "both"}, tied=True, derive=_alternating
    ),
    "cohere": Family(_DENSE, _GROUPED, {"positions": "rotary", "biases": "none", "parallel": True}, True, _gated),
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
    "bert": _BERT,
    "roberta": _BERT,
    "t5": _T5,
    "mt5": _T5,
}  # fmt: skip
"""The known values of `model_type`; field names are those of Hugging Face's transformers 4 and 5."""


_HALF = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
"""The format in which servers load weights of a `torch_dtype`; they round those of 32 bits (vLLM's --dtype auto)."""
_QUANTIZED = ("fp8", "fbgemm_fp8", "mxfp4", "gptq", "awq", "modelopt", "modelopt_fp4", "compressed-tensors")


def _weight_format(config: Config) -> str:
    """Return the format in which the weights were released."""
    quantized = config.get("quantization_config")
    if quantized is None:
        name = config.get("torch_dtype", config.get("dtype")) or "bfloat16"
        return _HALF.get(str(name).removeprefix("torch."), "bf16")
    if not isinstance(quantized, Mapping):
        raise ConfigError(f"it is {quantized!r}; give a table with quant_method", None, "quantization_config")
    method = _known("quant_method", quantized.get("quant_method"), {name: name for name in _QUANTIZED})
    if method in ("gptq", "awq"):
        bits = quantized.get("bits", 4)
        return _stated_bits(bits, {4: "int4-g128", 8: "int8"})
    if method in ("modelopt", "modelopt_fp4"):
        return _known("quant_algo", quantized.get("quant_algo", "NVFP4"), {"NVFP4": "nvfp4", "FP8": "fp8"})
    if method == "compressed-tensors":
        return _compressed(quantized)
    if method == "mxfp4":
        return "mxfp4"
    return "fp8-block" if quantized.get("weight_block_size") else "fp8"


def _compressed(quantized: Mapping[str, Any]) -> str:
    """Return the format of the first group of weights that compressed-tensors describes."""
    groups = quantized.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        rule = "no group says how many bits its weights have; give config_groups with weights"
        raise ConfigError(rule, None, "quantization_config")
    if weights.get("type", "int") == "float":
        eight = "fp8-block" if weights.get("strategy") == "block" else "fp8"
        return _stated_bits(weights.get("num_bits"), {8: eight, 4: "nvfp4"})
    return _stated_bits(weights.get("num_bits"), {8: "int8", 4: "int4-g128"})


def _stated_bits(bits: object, known: Mapping[int, str]) -> str:
    if not isinstance(bits, int) or bits not in known:
        rule = f"weights of {bits!r} bits are not modelled; give {' or '.join(map(str, sorted(known)))}"
        raise ConfigError(rule, None, "quantization_config")
    return known[bits]


def from_config(file: Path) -> Transformer:
    """The model that a `config.json` describes.

    What has no operators in Weft is left out: soft caps of logits, a gate before shared experts, the bias of an output
    projection without others; all elements of a head rotate. Raises ConfigError for a missing or unusable field,
    UnknownNameError for a `model_type` that is not known.
    """
    label = str(file)
    config = read_json(file, "model's configuration", "give the config.json of a Hugging Face model")
    kind = config.get("model_type")
    if kind is None:
        raise ConfigError("'model_type' is missing; is this the config.json of a Hugging Face model?", label)
    check_name("model_type", kind, FAMILIES)
    try:
        return _read(config, FAMILIES[kind], label, _name(file))
    except ConfigError as error:
        raise ConfigError(error.message, label, error.key) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        key = next((key for key, value in config.items() if key in _NUMBERS and not _is_count(value)), "")
        raise ConfigError("this value is no number that the model's family has; write it again", label, key) from None


_NUMBERS = (
    "moe_intermediate_size", "shared_expert_intermediate_size", "sliding_window", "sliding_window_pattern", "n_group",
    "topk_group", "moe_layer_freq", "num_key_value_heads", "num_kv_heads", "n_head_kv", "expansion_ratio",
)  # fmt: skip
"""Keys whose numbers a family computes with."""


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and value > 0)


def _name(file: Path) -> str:
    """A model's name: that of the file, or of its folder if all such files are called alike."""
    return file.resolve().parent.name if file.name == "config.json" else file.stem


def _read(config: Config, family: Family, label: str, name: str) -> Transformer:
    values: Values = {**family.fixed, "tied": config.get("tie_word_embeddings", family.tied)}
    sources = dict.fromkeys(values, f"{label}: model_type {config['model_type']}")
    for dimension, keys in {**family.needed, **family.optional}.items():
        key = next((key for key in keys if config.get(key) is not None), None)
        if key is not None:
            values[dimension], sources[dimension] = config[key], f"{label}: {key}"
        elif dimension in family.needed:
            raise ConfigError(f"'{keys[0]}' is missing; a {config['model_type']} model needs it", label)
    values["weight_format"] = _weight_format(config)
    quantized = config.get("quantization_config") is not None
    sources["weight_format"] = f"{label}: {'quantization_config' if quantized else 'torch_dtype'}"
    derived = {dimension: value for dimension, value in family.derive(config).items() if value is not None}
    values |= derived
    sources |= dict.fromkeys(derived, f"{label}: model_type {config['model_type']} and its fields")
    known = {
        path: Provenance(text=str(values[path]), kind="published", source=source) for path, source in sources.items()
    }
    return Transformer(name=name, title=name, provenance=known, **values)
