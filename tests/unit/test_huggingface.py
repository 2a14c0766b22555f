"""Models from the config.json of Hugging Face, by its fields."""

import json

import pytest

from weft.core.errors import ConfigError, InputError, WeftError
from weft.models import load_model
from weft.models import sublayer as unsplit
from weft.models.huggingface import FAMILIES
from weft.models.parallel import legal_degrees, sublayer

DENSE = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
}
QWEN_MOE = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "hidden_act": "silu"}
LATENT = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
}
GEMMA3 = {
    "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "vocab_size": 262_208,
}  # fmt: skip
LLAMA4 = {
    "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202_048,
    "max_position_embeddings": 10_485_760, "num_local_experts": 16, "num_experts_per_tok": 1,
}  # fmt: skip
CONFIGS = {
    "gemma3": (GEMMA3, 27.009),
    "gemma3_text": (GEMMA3, 27.009),
    "llama4": (LLAMA4, 107.77),
    "llama4_text": (LLAMA4, 107.77),
    "glm4_moe": (
        DENSE
        | {"hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 92, "num_attention_heads": 96}
        | {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_552, "moe_intermediate_size": 1536}
        | {"n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3}
        | {"use_qk_norm": True, "attention_bias": True, "n_group": 1, "topk_group": 1},
        352.8,
    ),
    "llama": (DENSE | {"num_key_value_heads": 32}, 6.738),
    "internlm": (DENSE | {"vocab_size": 103168, "bias": True}, 7.322),
    "internlm2": (DENSE | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 92544}, 7.738),
    "granite": (DENSE | {"tie_word_embeddings": True}, 6.607),
    "mistral": (DENSE | {"num_key_value_heads": 8, "intermediate_size": 14336, "sliding_window": 4096}, 7.242),
    "mixtral": (
        DENSE
        | {"num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2},
        46.703,
    ),
    "phi3": (DENSE | {"hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32064}, 3.821),
    "qwen2": (
        DENSE
        | {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
        | {"intermediate_size": 18944, "vocab_size": 152064},
        7.616,
    ),
    "qwen3": (
        DENSE
        | {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
        | {"intermediate_size": 3072, "vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": True},
        0.596,
    ),
    "qwen3_moe": (
        DENSE
        | QWEN_MOE
        | {"hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128}
        | {"vocab_size": 151936},
        30.532,
    ),
    "qwen2_moe": (
        DENSE
        | {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 151936}
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60}
        | {"num_experts_per_tok": 4},
        14.316,
    ),
    "gpt_oss": (
        DENSE
        | {"hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8}
        | {"intermediate_size": 2880, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4}
        | {"vocab_size": 201088, "sliding_window": 128},
        20.915,
    ),
    "deepseek_v3": (
        DENSE
        | LATENT
        | {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "intermediate_size": 18432}
        | {"vocab_size": 129280, "q_lora_rank": 1536, "n_routed_experts": 256, "first_k_dense_replace": 3}
        | {"num_nextn_predict_layers": 1},
        671.026,
    ),
    "deepseek_v32": (
        DENSE
        | LATENT
        | {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "intermediate_size": 18432}
        | {"vocab_size": 129280, "q_lora_rank": 1536, "n_routed_experts": 256, "first_k_dense_replace": 3}
        | {"num_nextn_predict_layers": 1},
        671.026,
    ),
    "kimi_k2": (
        DENSE
        | LATENT
        | {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "intermediate_size": 18432}
        | {"vocab_size": 163840, "q_lora_rank": 1536, "n_routed_experts": 384, "first_k_dense_replace": 1},
        1026.408,
    ),
    "deepseek_v2": (
        DENSE
        | LATENT
        | {"hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "intermediate_size": 10944}
        | {"vocab_size": 102400, "q_lora_rank": None, "n_routed_experts": 64, "first_k_dense_replace": 1}
        | {"moe_intermediate_size": 1408, "num_experts_per_tok": 6, "n_shared_experts": 2},
        15.706,
    ),
    "gemma": (
        DENSE
        | {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 24576}
        | {"head_dim": 256, "vocab_size": 256000, "hidden_act": "gelu_pytorch_tanh"},
        8.538,
    ),
    "gemma2": (
        DENSE
        | {"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4}
        | {"intermediate_size": 9216, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096},
        2.614,
    ),
    "cohere": (
        DENSE
        | {"hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64, "intermediate_size": 22528}
        | {"vocab_size": 256000, "tie_word_embeddings": True},
        34.981,
    ),
    "phi": (
        DENSE | {"hidden_size": 2560, "intermediate_size": 10240, "vocab_size": 51200, "hidden_act": "gelu_new"},
        2.780,
    ),
    "gpt_neox": (
        DENSE
        | {"hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64, "intermediate_size": 24576}
        | {"vocab_size": 50432, "hidden_act": "gelu_fast"},
        20.555,
    ),
    "falcon": (
        {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024}
        | {"multi_query": True, "parallel_attn": True, "bias": False},
        6.922,
    ),
    "gpt2": ({"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}, 0.1244),
    "opt": (
        {key: value for key, value in DENSE.items() if key not in ("intermediate_size", "hidden_act")}
        | {"ffn_dim": 16384, "vocab_size": 50272, "max_position_embeddings": 2048, "activation_function": "relu"},
        6.658,
    ),
    "bloom": ({"hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880}, 176.247),
    "mpt": (
        {"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432, "max_seq_len": 2048, "no_bias": True},
        6.649,
    ),
    "bert": (
        DENSE
        | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        | {"vocab_size": 30522, "max_position_embeddings": 512, "hidden_act": "gelu"},
        0.336,
    ),
    "roberta": (
        DENSE
        | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        | {"vocab_size": 50265, "max_position_embeddings": 514, "hidden_act": "gelu"},
        0.356,
    ),
    "t5": (
        {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "vocab_size": 32128}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        11.135,
    ),
    "mt5": (
        {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "vocab_size": 250112}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        0.300,
    ),
}
"""Configurations of released models by their type, with their billions of parameters."""


def written(tmp_path, kind, **changes):
    fields = {"model_type": kind} | CONFIGS[kind][0] | changes
    path = tmp_path / kind / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in fields.items() if value != "left out"}), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_gives_the_models_published_parameters(tmp_path, kind):
    model = load_model(written(tmp_path, kind))
    assert model.parameters / 1e9 == pytest.approx(CONFIGS[kind][1], rel=3e-3)
    assert model.name == kind
    assert all("config.json: " in known.source for known in model.provenance.values())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_missing_field_is_named_in_one_sentence(tmp_path, kind):
    key = next(iter(FAMILIES[kind].needed.values()))[0]
    path = written(tmp_path, kind, **{key: "left out"})
    with pytest.raises(ConfigError, match=rf"config\.json: '{key}' is missing; a {kind} model needs it"):
        load_model(path)


def test_a_configuration_is_read_by_its_name_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(written(tmp_path, "llama").parent)
    assert load_model("config.json").hidden == 4096
    assert load_model("./config.json").name == "llama"


def test_the_same_model_from_catalogue_and_configuration_is_equal(tmp_path):
    kinds = {"llama": "llama-2-7b", "qwen3_moe": "qwen3-30b-a3b", "deepseek_v3": "deepseek-v3", "t5": "t5-11b",
             "gpt_oss": "gpt-oss-20b", "qwen2": "qwen2.5-7b",
             "mixtral": "mixtral-8x7b", "bloom": "bloom-176b"}  # fmt: skip
    for kind, name in kinds.items():
        found, known = load_model(written(tmp_path, kind)), load_model(name)
        assert found.parameters == known.parameters
        assert found.layer_kinds == known.layer_kinds
        assert (found.activation, found.positions, found.norms) == (known.activation, known.positions, known.norms)


def test_a_type_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": ["llama"]}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown model_type a list\. State the dimensions .* Known types: llama"):
        load_model(path)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (
            "recurrent_gemma",
            r"have recurrent layers \(RG-LRU\), which Weft does not model; no other type stands for it",
        ),
        ("zamba2", "have attention layers that share their weights, with adapters, which Weft does not model"),
        ("qwen4_moe", r"unknown model_type 'qwen4_moe'\. State the dimensions of another model .* Known types: llama"),
    ],
)
def test_a_type_without_operators_is_not_taken_for_one_that_looks_alike(tmp_path, kind, rule):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    with pytest.raises(ConfigError, match=rule) as raised:
        load_model(path)
    assert "did you mean" not in str(raised.value)


def test_layers_with_experts_are_those_that_the_configuration_says(tmp_path):
    plain = load_model(written(tmp_path, "qwen3_moe", mlp_only_layers=[0, 5]))
    assert [at for at, kind in enumerate(plain.layer_kinds) if kind == "dense"] == [0, 5]
    second = load_model(written(tmp_path, "deepseek_v3", moe_layer_freq=2))
    assert [at for at, kind in enumerate(second.layer_kinds) if kind == "moe"] == list(range(4, 61, 2))
    maverick = load_model(written(tmp_path, "llama4", interleave_moe_layer_step=2))
    assert maverick.layer_kinds[:4] == ("dense-window", "moe-window", "dense-window", "moe")


def test_of_a_multimodal_model_the_language_model_is_read(tmp_path):
    vision = {"hidden_size": 1152, "num_hidden_layers": 27}
    outer = {"model_type": "gemma3", "text_config": GEMMA3, "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    model = load_model(tmp_path / "config.json")
    assert (model.parameters, model.hidden) == (load_model(written(tmp_path, "gemma3")).parameters, 5376)


def test_a_multimodal_model_of_an_unknown_type_is_read_by_the_type_of_its_language_model(tmp_path):
    text = {"model_type": "deepseek_v3"} | CONFIGS["deepseek_v3"][0]
    outer = {"model_type": "novel_vl", "text_config": text, "vision_config": {"hidden_size": 1152}}
    folder = tmp_path / "models--some--Novel" / "snapshots" / "95a7"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    model = load_model(folder / "config.json")
    assert model.parameters == load_model(written(tmp_path, "deepseek_v3")).parameters
    assert model.title == "Novel (without its vision tower)"
    outer["text_config"] = text | {"latent_moe_rank": 8}
    (folder / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    with pytest.raises(ConfigError, match="'novel_vl'; its text_config is a deepseek_v3 with fields or values that"):
        load_model(folder / "config.json")
    outer["text_config"] = text | {"model_type": "novel_text"}
    (folder / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown model_type 'novel_vl'"):
        load_model(folder / "config.json")


def beside(tmp_path, quantization):
    path = written(tmp_path, "llama")
    config = json.loads(path.read_text())
    config.pop("quantization_config", None)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}), encoding="utf-8")
    return load_model(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("algorithm", "format"),
    [("NVFP4", "nvfp4"), ("FP8", "fp8"), ("FP8_PB_WO", "fp8-block"), ("W4A16_AWQ", "int4-g128")],
)
def test_a_quantization_of_modelopt_beside_the_configuration_counts(tmp_path, algorithm, format):
    assert beside(tmp_path, {"quant_algo": algorithm}).weight_format == format


def test_mixed_precision_is_that_of_most_weights_and_says_so(tmp_path):
    layers = {f"layers.{at}.mlp": {"quant_algo": "NVFP4"} for at in range(3)} | {"layers.0.o": {"quant_algo": "FP8"}}
    mixed = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}
    found = beside(tmp_path, mixed)
    assert found.weight_format == "nvfp4"
    assert "mixed precision taken as NVFP4, as most layers are; others have FP8" in found.title
    assert "its KV cache of FP8 by --kv-dtype" in found.title
    with pytest.raises(WeftError, match="unknown quant_algo 'INT3'"):
        beside(tmp_path, {"quant_algo": "INT3"})


@pytest.mark.parametrize("name", ["Some-8B-NVFP4_config", "some-8b-awq", "Some-FP8"])
def test_a_name_with_a_format_that_the_configuration_lacks_is_said(tmp_path, name):
    file = tmp_path / f"{name}.json"
    file.write_text(written(tmp_path, "llama").read_text(), encoding="utf-8")
    model = load_model(file)
    assert "config.json does not: taken as 16 bits" in model.title
    assert model.weight_format == "bf16"


def test_indexers_that_layers_share_are_named_as_counted_in_each(tmp_path):
    types = ["full", "shared", "shared"] * 20 + ["full"]
    shared = load_model(written(tmp_path, "deepseek_v32", indexer_types=types)).title
    assert "40 layers that share the indexer of another one counted with their own" in shared
    by_interval = load_model(written(tmp_path, "deepseek_v32", index_topk_freq=4)).title
    assert "layers that share the indexer of another one counted with their own" in by_interval
    assert "share" not in load_model(written(tmp_path, "deepseek_v32", index_topk_freq=1)).title


def test_the_nearest_type_is_alike_in_attention_and_experts_or_none_is_named(tmp_path):
    def said(kind, own, **changed):
        config = {key: value for key, value in (CONFIGS[kind][0] | changed).items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": own}), encoding="utf-8")
        with pytest.raises(ConfigError) as raised:
            load_model(tmp_path / "config.json")
        return raised.value.message

    lacking = said("deepseek_v32", "deepseek_v9", kv_lora_rank=None, index_n_heads=64, index_topk=512, o_lora_rank=8)
    assert "The closest known type is deepseek_v32, which needs kv_lora_rank as well. State" in lacking
    strange = {f"{word}_expert_{part}": 4 for word in ("in", "out", "up") for part in ("size", "rank", "heads")}
    assert "closest" not in said("llama", "novel", **strange)


def test_what_is_simplified_stands_in_the_models_title(tmp_path):
    known = "deepseek_v32 (sparse attention taken as dense in training)"
    assert load_model(written(tmp_path, "deepseek_v32", index_n_heads=64, index_head_dim=128)).title == known
    assert load_model(written(tmp_path, "deepseek_v3")).title == "deepseek_v3"


def test_most_layers_may_have_windows(tmp_path):
    sixth = ("dense-window",) * 5 + ("dense",)
    assert load_model(written(tmp_path, "gemma3")).layer_kinds[:12] == sixth * 2
    types = (["sliding_attention"] * 2 + ["full_attention"]) * 20 + ["sliding_attention"] * 2
    third = load_model(written(tmp_path, "gemma3_text", layer_types=types))
    assert third.layer_kinds[:6] == ("dense-window", "dense-window", "dense") * 2


@pytest.mark.parametrize("name", ["model", "model.txt", "model.toml"])
def test_a_configuration_of_any_name_is_read(tmp_path, name):
    path = tmp_path / name
    path.write_text(json.dumps({"model_type": "llama"} | CONFIGS["llama"][0]), encoding="utf-8")
    assert load_model(path).hidden == CONFIGS["llama"][0]["hidden_size"]


def test_an_unknown_type_lists_the_known_and_names_the_nearest(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mixtrall"}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown model_type 'mixtrall'\. Did you mean 'mixtral'\? .*Known types: "):
        load_model(path)


@pytest.mark.parametrize(
    ("content", "rule"),
    [("{", "no JSON"), ("[]", "no model's configuration"), ("{}", "'model_type' is missing")],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, rule):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=rule):
        load_model(path)
    with pytest.raises(InputError):
        load_model(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("kind", "changes", "rule"),
    [
        ("llama", {"hidden_size": "wide"}, r"config\.json: hidden: "),
        ("llama", {"hidden_act": "tanh"}, "unknown hidden_act 'tanh'; known: silu"),
        ("qwen3_moe", {"mlp_only_layers": ["x"]}, r"config\.json: mlp_only_layers: it is a list; give the numbers"),
        (
            "qwen3_moe",
            {"moe_intermediate_size": [[1]]},
            r"config\.json: moe_intermediate_size: it is a list; give a wh",
        ),
        ("qwen3_moe", {"moe_intermediate_size": "x"}, r"config\.json: moe_intermediate_size: it is 'x'; give a whole"),
        ("qwen3_moe", {"decoder_sparse_step": 99}, "experts are in no layer: moe_every is 99, dense_layers 0 of 48"),
        ("qwen3_moe", {"mlp_only_layers": list(range(48))}, "mlp_only_layers: it names every layer that has experts"),
        ("deepseek_v3", {"topk_method": "typo"}, "topk_method: it is 'typo', which is not modelled; known: greedy"),
        ("deepseek_v3", {"scoring_func": "typo"}, "scoring_func: it is 'typo', which is not modelled; known: softmax"),
        ("llama", {"rope_scaling": {"rope_type": "typo"}}, "rope_scaling: it is 'typo', which is not modelled"),
        (
            "qwen3",
            {"layer_types": ["linear_attention"] * 28},
            "layer_types: it is 'linear_attention', which is not mod",
        ),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types: it has 1 layers, and num_hidden_layers is 28"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 1000}, "1000 is no multiple of the width of an expert, 1408"),
        ("deepseek_v2", {"moe_layer_freq": "all"}, "moe_layer_freq: it is 'all'; give a whole number"),
        ("opt", {"word_embed_proj_dim": 512}, "word_embed_proj_dim: an embedding of another width, 512"),
        ("t5", {"feed_forward_proj": "gated-relu"}, "unknown feed_forward_proj 'gated-relu'"),
        ("mistral", {"num_key_value_heads": 5}, "kv_heads is 5; it must divide the 32 heads"),
    ],
)
def test_what_has_no_operators_is_refused_with_its_key(tmp_path, kind, changes, rule):
    with pytest.raises(InputError, match=rule):
        load_model(written(tmp_path, kind, **changes))


def test_windows_come_as_the_configuration_lists_them(tmp_path):
    alternating = load_model(written(tmp_path, "gemma2"))
    assert alternating.layer_kinds[:3] == ("dense-window", "dense", "dense-window")
    assert set(load_model(written(tmp_path, "mistral")).layer_kinds) == {"dense-window"}
    assert set(load_model(written(tmp_path, "mistral", sliding_window=None)).layer_kinds) == {"dense"}
    listed = ["sliding_attention"] + ["full_attention"] * 5 + ["sliding_attention"] + ["full_attention"] * 19
    kinds = ("dense-window", *("dense",) * 5, "dense-window", *("dense",) * 19)
    assert load_model(written(tmp_path, "gemma2", layer_types=listed)).layer_kinds == kinds
    second = load_model(written(tmp_path, "gpt_oss", layer_types=["full_attention", "sliding_attention"] * 12))
    assert second.layer_kinds[:3] == ("moe", "moe-window", "moe")
    assert set(second.replace({"window": 0}).layer_kinds) == {"moe"}
    full = load_model(written(tmp_path, "gpt_oss", layer_types=["full_attention"] * 24))
    assert set(full.layer_kinds) == {"moe"}
    assert set(load_model(written(tmp_path, "qwen2", sliding_window=4096)).layer_kinds) == {"dense"}
    slid = load_model(written(tmp_path, "qwen2", sliding_window=4096, use_sliding_window=True))
    assert slid.window == 4096


def test_variants_of_a_family_follow_their_flags(tmp_path):
    assert load_model(written(tmp_path, "gpt_neox")).parallel_norms == 2
    assert not load_model(written(tmp_path, "gpt_neox", use_parallel_residual=False)).parallel
    large = load_model(written(tmp_path, "falcon", new_decoder_architecture=True, num_kv_heads=71, bias=True))
    assert (large.key_heads, large.parallel_norms, large.biases) == (71, 2, "all")
    assert load_model(written(tmp_path, "falcon", alibi=True)).positions == "alibi"
    assert load_model(written(tmp_path, "opt", do_layer_norm_before=False)).norms == "after"
    assert load_model(written(tmp_path, "mpt", attn_config={"alibi": False})).positions == "learned"
    assert load_model(written(tmp_path, "llama", attention_bias=True)).biases == "qkv"
    assert load_model(written(tmp_path, "llama", attention_bias=True, mlp_bias=True)).biases == "all"
    assert load_model(written(tmp_path, "deepseek_v2")).query_rank == 0
    assert load_model(written(tmp_path, "deepseek_v3")).predict_layers == 1
    assert load_model(written(tmp_path, "t5", num_decoder_layers=12)).layers == 12


def test_sub_layers_of_a_configuration_are_split_like_those_of_the_catalogue(tmp_path):
    model = load_model(written(tmp_path, "llama"))
    assert sublayer(model, "fc2", 8)["gemm"].op.k == 11008 // 8
    assert 8 in legal_degrees(unsplit(model, "ip"))


@pytest.mark.parametrize("value", [[[1]], "x", 0, {}])
def test_a_number_of_another_type_is_named(tmp_path, value):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen3_moe", **CONFIGS["qwen3_moe"][0], "moe_intermediate_size": value}))
    with pytest.raises(ConfigError, match=r"moe_intermediate_size|expert_ffn|another type"):
        load_model(file)
