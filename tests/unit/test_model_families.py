"""Families of 2024 to 2026 from configurations written here: total and active parameters beside independent counts."""

import json
import math
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest

import weft
from weft.core.errors import ConfigError, InputError
from weft.models import load_model
from weft.models.block import FusionStyle, Tokens, compose_pattern, head, layer
from weft.models.counts import kv_bytes, state_bytes
from weft.models.huggingface import FAMILIES
from weft.models.parallel.check import check_plan
from weft.models.parallel.framework import Framework
from weft.step.forward import Forward, Group
from weft.step.launches import in_graphs
from weft.step.rank_parts import rank_parts
from weft.step.serving_plan import ServingPlan
from weft.step.sparse import index_ops

GATED = {"hidden_act": "silu"}
OLDER = (
    "bert", "bloom", "cohere", "deepseek_v2", "falcon", "gemma", "gemma3", "gpt2", "gpt_neox", "granite", "internlm",
    "internlm2", "llama4", "mpt", "mt5", "opt", "phi", "qwen2", "qwen2_moe", "roberta", "t5",
)  # fmt: skip
"""Types of `test_huggingface`."""


class Case(NamedTuple):
    """A configuration, its parameters, and what its makers say.

    `counted` sums the shapes of transformers' own modules (5.24.0, on the meta device: embeddings, no vision tower, no
    layers that predict further tokens). Of these, the weights of experts that a token does not visit follow from the
    shapes. `published` are billions of parameters in all and for each token as the model card says, as exactly as it
    says it; makers count with or without embeddings.
    """

    config: dict
    counted: int
    published: str
    active: str = ""


def dense(hidden, layers, heads, kv_heads, ffn, vocabulary, **more):
    found = GATED | {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocabulary,
        "max_position_embeddings": 32768, "tie_word_embeddings": False,
    } | more  # fmt: skip
    return {key: value for key, value in found.items() if key != "intermediate_size" or value}


def deepseek(hidden, layers, heads, ffn, vocabulary, experts, each, wide, **more):
    return dense(hidden, layers, heads, heads, ffn, vocabulary) | {
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": experts, "num_experts_per_tok": each, "moe_intermediate_size": wide, "n_shared_experts": 1,
    } | more  # fmt: skip


def delta(values, keys):
    return {
        "linear_num_value_heads": values, "linear_num_key_heads": keys, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip


def every(period, count, usual, other, first=None):
    first = period - 1 if first is None else first
    return [other if at % period == first else usual for at in range(count)]


SLIDING, FULL = "sliding_attention", "full_attention"
MAMBA2 = {"mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
          "mamba_chunk_size": 256}  # fmt: skip
NEMOTRON = {
    "attention_bias": False, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    "chunk_size": 128, "mlp_hidden_act": "relu2",
}  # fmt: skip
GRANITE_LAYERS = [FULL if at in (5, 15, 25, 35) else "mamba" for at in range(40)]

CASES = {
    "qwen3-next-80b-a3b": Case(
        dense(2048, 48, 16, 2, 5120, 151936, head_dim=256, full_attention_interval=4)
        | delta(32, 16)
        | {"model_type": "qwen3_next", "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
        | {"shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "mlp_only_layers": []},
        79_674_391_296, "80", "3",
    ),
    "qwen3.5-397b-a17b": Case(
        dense(4096, 60, 32, 2, 0, 248320, head_dim=256)
        | delta(64, 16)
        | {"model_type": "qwen3_5_moe_text", "num_experts": 512, "num_experts_per_tok": 10}
        | {"moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024}
        | {"layer_types": every(4, 60, "linear_attention", FULL)},
        396_346_350_336, "397", "17",
    ),
    "qwen3.5-27b": Case(
        dense(5120, 64, 24, 4, 17408, 248320, head_dim=256)
        | delta(48, 16)
        | {"model_type": "qwen3_5_text", "layer_types": every(4, 64, "linear_attention", FULL)},
        26_895_998_464, "27",
    ),
    "kimi-linear-48b-a3b": Case(
        dense(2304, 27, 32, 32, 9216, 163840)
        | {"model_type": "kimi_linear", "model_max_length": 1048576, "num_experts": 256, "num_experts_per_token": 8}
        | {"moe_intermediate_size": 1024, "num_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 512}
        | {"q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        | {"linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128,
                                  "short_conv_kernel_size": 4}},
        49_122_675_072, "48", "3",
    ),
    "minimax-text-01": Case(
        dense(6144, 80, 64, 8, 9216, 200064, head_dim=128)
        | {"model_type": "minimax_text_01", "num_local_experts": 32, "num_experts_per_tok": 2}
        | {"attn_type_list": every(8, 80, 0, 1)},
        456_089_655_296, "456", "45.9",
    ),
    "nemotron-h-8b": Case(
        dense(4096, 52, 32, 8, 21504, 131072)
        | NEMOTRON
        | {"model_type": "nemotron_h", "attention_head_dim": 128, "mamba_num_heads": 128}
        | {"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
        8_100_852_736, "8.1",
    ),
    "nemotron-3-nano-30b-a3b": Case(
        dense(2688, 52, 32, 2, 1856, 131072)
        | NEMOTRON
        | {"model_type": "nemotron_h", "head_dim": 128, "mamba_num_heads": 64, "n_routed_experts": 128}
        | {"num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712}
        | {"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"},
        31_577_937_344, "31.6", "3.6",
    ),
    "nemotron-3-super-120b-a12b": Case(
        dense(4096, 88, 32, 2, 2688, 131072)
        | NEMOTRON
        | {"model_type": "nemotron_h", "head_dim": 128, "mamba_num_heads": 128, "n_routed_experts": 512}
        | {"num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376}
        | {"moe_latent_size": 1024, "hybrid_override_pattern": "MEMEMEM*E" * 8 + "ME" * 8},
        120_668_687_360, "120.6", "12.7",
    ),
    "granite-4.0-h-small": Case(
        dense(4096, 40, 32, 8, 768, 100352, tie_word_embeddings=True)
        | MAMBA2
        | {"model_type": "granitemoehybrid", "mamba_n_heads": 128, "layer_types": GRANITE_LAYERS}
        | {"num_local_experts": 72, "num_experts_per_tok": 10, "shared_intermediate_size": 1536},
        32_207_337_984, "32", "9",
    ),
    "granite-4.0-h-tiny": Case(
        dense(1536, 40, 12, 4, 512, 100352, tie_word_embeddings=True)
        | MAMBA2
        | {"model_type": "granitemoehybrid", "mamba_n_heads": 48, "layer_types": GRANITE_LAYERS}
        | {"num_local_experts": 64, "num_experts_per_tok": 6, "shared_intermediate_size": 1024},
        6_939_037_248, "7", "1",
    ),
    "granite-4.0-h-micro": Case(
        dense(2048, 40, 32, 8, 8192, 100352, tie_word_embeddings=True)
        | MAMBA2
        | {"model_type": "granitemoehybrid", "mamba_n_heads": 64, "layer_types": GRANITE_LAYERS}
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 8192},
        3_191_396_096, "3",
    ),
    "granite-4.0-micro": Case(
        dense(2560, 40, 40, 8, 8192, 100352, tie_word_embeddings=True, position_embedding_type="rope")
        | MAMBA2
        | {"model_type": "granitemoehybrid", "mamba_n_heads": 128, "layer_types": ["attention"] * 40}
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 8192, "mamba_d_head": 40},
        3_402_836_480, "3",
    ),
    "bamba-9b": Case(
        dense(4096, 32, 32, 8, 14336, 128256)
        | MAMBA2
        | {"model_type": "bamba", "mamba_n_heads": 128, "attn_layer_indices": [9, 18, 27]},
        9_780_235_392, "9",
    ),
    "falcon-h1-34b": Case(
        dense(5120, 72, 20, 4, 21504, 261120, head_dim=128)
        | {"model_type": "falcon_h1", "mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128}
        | {"mamba_n_groups": 2, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_chunk_size": 256},
        33_642_221_312, "34",
    ),
    "olmo-hybrid-7b": Case(
        dense(3840, 32, 30, 30, 11008, 100352)
        | delta(30, 30)
        | {"model_type": "olmo_hybrid", "linear_key_head_dim": 96, "linear_value_head_dim": 192}
        | {"layer_types": every(4, 32, "linear_attention", FULL)},
        7_430_870_688, "7",
    ),
    "jamba-v0.1": Case(
        dense(4096, 32, 32, 8, 14336, 65536) | {"model_type": "jamba", "mamba_dt_rank": 256}, 51_570_323_328, "52", "12"
    ),
    "jamba-1.5-large": Case(
        dense(8192, 72, 64, 8, 24576, 65536) | {"model_type": "jamba", "mamba_dt_rank": 512},
        398_555_145_696, "398", "94",
    ),
    "mamba-2.8b": Case(
        {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50280, "expand": 2,
         "state_size": 16, "conv_kernel": 4, "time_step_rank": 160},
        2_768_345_600, "2.8",
    ),
    "codestral-mamba-7b": Case(
        {"model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 32768, "num_heads": 128,
         "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 256,
         "tie_word_embeddings": False},
        7_285_403_648, "7.3",
    ),
    "glm-4.5": Case(
        dense(5120, 92, 96, 8, 12288, 151552, head_dim=128, use_qk_norm=True, attention_bias=True)
        | {"model_type": "glm4_moe", "n_routed_experts": 160, "num_experts_per_tok": 8, "n_shared_experts": 1}
        | {"moe_intermediate_size": 1536, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1},
        352_797_814_784, "355", "32",
    ),
    "glm-4.5-air": Case(
        dense(4096, 46, 96, 8, 10944, 151552, head_dim=128, attention_bias=True)
        | {"model_type": "glm4_moe", "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1}
        | {"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
        106_852_245_504, "106", "12",
    ),
    "glm-5": Case(
        deepseek(6144, 78, 64, 12288, 154880, 256, 8, 2048, q_lora_rank=2048, qk_nope_head_dim=192, v_head_dim=256)
        | {"model_type": "glm_moe_dsa", "first_k_dense_replace": 3, "index_n_heads": 32, "index_head_dim": 128},
        743_911_199_232, "744", "40",
    ),
    "qwen3-8b": Case(
        dense(4096, 36, 32, 8, 12288, 151936, head_dim=128) | {"model_type": "qwen3"},
        8_190_735_360, "8.2",
    ),
    "qwen3-32b": Case(
        dense(5120, 64, 64, 8, 25600, 151936, head_dim=128) | {"model_type": "qwen3"},
        32_762_123_264, "32.8",
    ),
    "qwen3-235b-a22b": Case(
        dense(4096, 94, 64, 4, 12288, 151936, head_dim=128)
        | {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536},
        235_093_634_560, "235", "22",
    ),
    "qwen3-vl-30b-a3b": Case(
        {"model_type": "qwen3_vl_moe", "vision_config": {"hidden_size": 1152, "depth": 27}, "text_config":
         dense(2048, 48, 32, 4, 6144, 151936, head_dim=128)
         | {"model_type": "qwen3_vl_moe_text", "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768}},
        30_532_122_624, "30.5", "3.3",
    ),
    "kimi-k2": Case(
        deepseek(7168, 61, 64, 18432, 163840, 384, 8, 2048) | {"model_type": "kimi_k2", "first_k_dense_replace": 1},
        1_026_408_209_408, "1000", "32",
    ),
    "minimax-m2": Case(
        dense(3072, 62, 48, 8, 1536, 200064, head_dim=128)
        | {"model_type": "minimax_m2", "num_local_experts": 256, "num_experts_per_tok": 8},
        228_689_748_992, "230", "10",
    ),
    "gpt-oss-120b": Case(
        dense(2880, 36, 64, 8, 2880, 201088, head_dim=64, sliding_window=128)
        | {"model_type": "gpt_oss", "num_local_experts": 128, "num_experts_per_tok": 4},
        116_829_156_672, "117", "5.1",
    ),
    "deepseek-v2": Case(
        deepseek(5120, 60, 128, 12288, 102400, 160, 6, 1536, n_shared_experts=2)
        | {"model_type": "deepseek_v2", "first_k_dense_replace": 1, "topk_method": "group_limited_greedy"}
        | {"n_group": 8, "topk_group": 3},
        235_741_434_880, "236", "21",
    ),
    "deepseek-v3": Case(
        deepseek(7168, 61, 128, 18432, 129280, 256, 8, 2048)
        | {"model_type": "deepseek_v3", "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4},
        671_026_404_352, "671", "37",
    ),
    "deepseek-v3.2": Case(
        deepseek(7168, 61, 128, 18432, 129280, 256, 8, 2048)
        | {"model_type": "deepseek_v32", "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4}
        | {"index_n_heads": 64, "index_head_dim": 128},
        671_877_929_216, "671", "37",
    ),
    "llama-3-70b": Case(dense(8192, 80, 64, 8, 28672, 128256) | {"model_type": "llama"}, 70_553_706_496, "70.6"),
    "llama-4-scout": Case(
        dense(5120, 48, 40, 8, 8192, 202048, head_dim=128, intermediate_size_mlp=16384)
        | {"model_type": "llama4_text", "num_local_experts": 16, "num_experts_per_tok": 1, "use_qk_norm": True},
        107_769_861_120, "108", "17",
    ),
    "llama-4-maverick": Case(
        dense(5120, 48, 40, 8, 8192, 202048, head_dim=128, intermediate_size_mlp=16384, interleave_moe_layer_step=2)
        | {"model_type": "llama4_text", "num_local_experts": 128, "num_experts_per_tok": 1},
        400_711_848_960, "400", "17",
    ),
    "gemma-2-27b": Case(
        dense(4608, 46, 32, 16, 36864, 256000, head_dim=128, sliding_window=4096, tie_word_embeddings=True)
        | {"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh"},
        27_227_128_320, "27",
    ),
    "gemma-3-27b": Case(
        dense(5376, 62, 32, 16, 21504, 262208, head_dim=128, sliding_window=1024, tie_word_embeddings=True)
        | {"model_type": "gemma3_text", "hidden_act": "gelu_pytorch_tanh"},
        27_009_346_304, "27",
    ),
    "mistral-small-3-24b": Case(
        dense(5120, 40, 32, 8, 32768, 131072, head_dim=128) | {"model_type": "mistral"}, 23_572_403_200, "24"
    ),
    "mixtral-8x22b": Case(
        dense(6144, 56, 48, 8, 16384, 32768)
        | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        140_630_071_296, "141", "39",
    ),
    "phi-4": Case(dense(5120, 40, 40, 10, 17920, 100352) | {"model_type": "phi3"}, 14_659_507_200, "14.7"),
    "olmo-2-32b": Case(dense(5120, 64, 40, 8, 27648, 100352) | {"model_type": "olmo2"}, 32_234_279_936, "32"),
    "olmo-3-32b": Case(
        dense(5120, 64, 40, 8, 27648, 100278, sliding_window=4096, layer_types=every(4, 64, SLIDING, FULL))
        | {"model_type": "olmo3"},
        32_233_522_176, "32",
    ),
    "command-a": Case(
        dense(12288, 64, 96, 8, 36864, 256000, head_dim=128, sliding_window=4096, tie_word_embeddings=True)
        | {"model_type": "cohere2", "layer_types": every(4, 64, SLIDING, FULL)},
        111_057_580_032, "111",
    ),
    "hunyuan-a13b": Case(
        dense(4096, 32, 32, 8, 3072, 128167, head_dim=128, tie_word_embeddings=True)
        | {"model_type": "hunyuan_v1_moe", "num_experts": 64, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32}
        | {"moe_intermediate_size": [3072] * 32, "use_mixed_mlp_moe": True, "use_qk_norm": True},
        80_393_183_232, "80", "13",
    ),
    "hunyuan-7b": Case(
        dense(4096, 32, 32, 8, 14336, 128167, head_dim=128, tie_word_embeddings=True)
        | {"model_type": "hunyuan_v1_dense"},
        7_504_568_320, "7.5",
    ),
    "ernie-4.5-21b-a3b": Case(
        dense(2560, 28, 20, 4, 12288, 103424, tie_word_embeddings=True)
        | {"model_type": "ernie4_5_moe", "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536}
        | {"moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 27, "head_dim": 128},
        21_825_437_888, "21", "3",
    ),
    "ernie-4.5-0.3b": Case(
        dense(1024, 18, 16, 2, 3072, 103424, head_dim=128, tie_word_embeddings=True) | {"model_type": "ernie4_5"},
        360_748_032, "0.36",
    ),
    "glm-4-32b": Case(
        dense(6144, 61, 48, 2, 23040, 151552, head_dim=128, attention_bias=False) | {"model_type": "glm4"},
        32_566_081_536, "32"
    ),
    "seed-oss-36b": Case(
        dense(5120, 64, 80, 8, 27648, 155136, head_dim=128, attention_bias=True) | {"model_type": "seed_oss"},
        36_151_104_512, "36",
    ),
    "smollm3-3b": Case(
        dense(2048, 36, 16, 4, 11008, 128256, tie_word_embeddings=True) | {"model_type": "smollm3"},
        3_075_098_624, "3.08"
    ),
    "exaone-4.0-32b": Case(
        dense(5120, 64, 40, 8, 27392, 102400, head_dim=128, sliding_window=4096)
        | {"model_type": "exaone4", "layer_types": every(4, 64, SLIDING, FULL)},
        32_003_216_384, "32",
    ),
    "granite-3.1-3b-a800m": Case(
        dense(1536, 32, 24, 8, 512, 49155, tie_word_embeddings=True)
        | {"model_type": "granitemoe", "num_local_experts": 40, "num_experts_per_tok": 8},
        3_298_793_472, "3.3", "0.8",
    ),
    "ministral-3-8b": Case(
        dense(4096, 34, 32, 8, 14336, 131072, head_dim=128) | {"model_type": "ministral3"}, 8_489_553_920, "8.4"
    ),
    "ministral-8b": Case(
        dense(4096, 36, 32, 8, 12288, 131072, head_dim=128, sliding_window=32768)
        | {"model_type": "ministral", "layer_types": every(4, 36, SLIDING, FULL, 0)},
        8_019_808_256, "8.0",
    ),
    "qwen3-vl-8b": Case(
        dense(4096, 36, 32, 8, 12288, 151936, head_dim=128) | {"model_type": "qwen3_vl_text"}, 8_190_735_360, "8.2"
    ),
    "falcon-mamba-7b": Case(
        {"model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 65024, "expand": 2,
         "state_size": 16, "conv_kernel": 4, "time_step_rank": 256, "tie_word_embeddings": False},
        7_272_665_088, "7.3",
    ),
    "ernie-4.5-300b-a47b": Case(
        dense(8192, 54, 64, 8, 28672, 103424)
        | {"model_type": "ernie4_5_moe", "moe_num_experts": 64, "moe_k": 8, "moe_intermediate_size": 3584}
        | {"moe_num_shared_experts": 0, "moe_layer_start_index": 3, "moe_layer_end_index": 53},
        299_484_163_264, "300", "47",
    ),
}  # fmt: skip


def written(tmp_path, case):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(case.config), encoding="utf-8")
    return load_model(path)


ALIKE = {
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "minimax": "minimax_text_01",
    "minimax_m1": "minimax_text_01", "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe_text": "qwen3_vl_moe",
    "mistral3": "mistral",
}  # fmt: skip
"""Types whose configurations have the fields of another."""


def test_every_family_has_an_example_here_or_among_the_older_ones():
    here = {case.config["model_type"] for case in CASES.values()}
    assert set(FAMILIES) == set(OLDER) | here | {kind for kind, like in ALIKE.items() if like in here}
    assert all(FAMILIES[kind] is FAMILIES[like] for kind, like in ALIKE.items())


each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each
def test_a_family_has_as_many_parameters_as_its_own_modules(tmp_path, case):
    assert written(tmp_path, case).parameters == pytest.approx(case.counted, rel=5e-3)


def unvisited(model):
    """Weights of routed experts that one token does not visit, from the shapes of its GEMMs."""
    matrices = 3 if model.is_gated else 2
    layers = sum(kind.startswith(("moe", "experts")) for kind in model.layer_kinds)
    each_layer = (model.experts - model.experts_per_token) * matrices * model.routed_hidden * model.expert_wide
    return layers * each_layer


@each
def test_parameters_of_one_token_are_all_but_those_of_experts_that_it_does_not_visit(tmp_path, case):
    model = written(tmp_path, case)
    assert model.active_parameters == pytest.approx(case.counted - unvisited(model), rel=1e-2)


@each
def test_what_makers_publish_is_a_rounding_of_these_counts(tmp_path, case):
    """With the embeddings, or without the embedding, or without embedding and head, as makers count differently."""
    model = written(tmp_path, case)
    table = model.vocabulary * model.hidden
    for said, found in ((case.published, model.parameters), (case.active, model.active_parameters)):
        if said:
            digits = 10.0 ** -len(said.partition(".")[2])
            counts = [(found - without * table) / 1e9 for without in (0, 1, 2)]
            near = min(counts, key=lambda count: abs(count - float(said)))
            assert abs(near - float(said)) <= digits or math.isclose(near, float(said), rel_tol=0.03), counts


def model(tmp_path, name):
    return written(tmp_path, CASES[name])


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("qwen3-next-80b-a3b", {"moe-linear": 36, "moe": 12}),
        ("kimi-linear-48b-a3b", {"dense-linear": 1, "moe-linear": 19, "moe": 7}),
        ("nemotron-h-8b", {"linear": 24, "mlp": 24, "attention": 4}),
        ("nemotron-3-nano-30b-a3b", {"linear": 23, "experts": 23, "attention": 6}),
        ("granite-4.0-h-small", {"moe-linear": 36, "moe": 4}),
        ("granite-4.0-micro", {"dense": 40}),
        ("jamba-v0.1", {"dense-linear": 12, "moe-linear": 16, "dense": 4}),
        ("minimax-text-01", {"moe-linear": 70, "moe": 10}),
        ("mamba-2.8b", {"linear": 64}),
        ("olmo-3-32b", {"dense-window": 48, "dense": 16}),
        ("falcon-h1-34b", {"dense-both": 72}),
    ],
)
def test_layers_are_of_the_kinds_that_the_configuration_lists(tmp_path, name, counts):
    found = Counter(model(tmp_path, name).layer_kinds)
    assert found == Counter(counts)


@pytest.mark.parametrize(
    ("name", "per_token", "state"),
    [
        ("qwen3-next-80b-a3b", 12 * 2 * 2 * 256, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)),
        ("kimi-linear-48b-a3b", 7 * (512 + 64), 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2)),
        ("nemotron-h-8b", 4 * 2 * 8 * 128, 24 * (128 * 64 * 128 * 4 + (8192 + 2 * 8 * 128) * 3 * 2)),
        ("granite-4.0-h-small", 4 * 2 * 8 * 128, 36 * (128 * 64 * 128 * 4 + (8192 + 2 * 128) * 3 * 2)),
        ("jamba-v0.1", 4 * 2 * 8 * 128, 28 * (8192 * 16 * 4 + 8192 * 3 * 2)),
        ("minimax-text-01", 10 * 2 * 8 * 128, 70 * 64 * 128 * 128 * 4),
        ("mamba-2.8b", 0, 64 * (5120 * 16 * 4 + 5120 * 3 * 2)),
        ("falcon-h1-34b", 72 * 2 * 4 * 128, 72 * (4096 * 256 * 4 + (4096 + 2 * 2 * 256) * 3 * 2)),
    ],
)
def test_a_sequence_keeps_keys_and_values_per_token_and_states_of_constant_size(tmp_path, name, per_token, state):
    """Bytes from the shapes of vLLM's MambaStateShapeCalculator: states in fp32, tokens of convolutions in bf16."""
    found = model(tmp_path, name)
    forward = Forward(found, weft.system("8xh200"))
    assert (kv_bytes(found, 1), state_bytes(found)) == (2 * per_token, state)
    assert forward.cache(1) == state + 2 * per_token
    assert forward.cache(4096) == state + 4096 * 2 * per_token
    sharded = Forward(model(tmp_path, name), weft.system("8xh200"), ServingPlan(tp=8)).states
    assert state / 8 <= sharded < 1.01 * state / 8  # keys of fewer groups than ranks are copied


@pytest.mark.parametrize(
    "name", ["qwen3-next-80b-a3b", "nemotron-h-8b", "granite-4.0-h-tiny", "jamba-v0.1", "falcon-h1-34b"]
)
def test_decode_at_a_long_context_reads_states_once_and_a_prompt_scans_its_tokens(tmp_path, name):
    found = model(tmp_path, name)
    plan = weft.ServingPlan(tp=4)
    short, long = (weft.decode(found, "4xh200", plan, batch=32, context=at) for at in (1024, 32768))
    assert long.parts["scan"] == pytest.approx(short.parts["scan"])
    assert long.parts["attention"] > 4 * short.parts["attention"]
    moved = 2 * 32 * Forward(found, weft.system("4xh200"), plan).states
    launches = 1e-5 * sum("linear" in kind for kind in found.layer_kinds)
    assert moved / 4.8e12 < long.parts["scan"] < 1.5 * moved / 4.8e12 + launches
    one, two = (weft.prefill(found, "4xh200", plan, sequence=size) for size in (8192, 16384))
    assert two.parts["scan"] == pytest.approx(2 * one.parts["scan"], rel=0.1)
    assert "states" in " ".join(long.notes)


def test_a_step_trains_hybrid_layers_with_tensor_parallelism_and_recomputation(tmp_path):
    found = model(tmp_path, "nemotron-h-8b")
    plan = weft.TrainingPlan(tp=2, dp=4, sp=True, batch=16, sequence=8192)
    kept, again = (weft.step(found, "8xh100", replace(plan, recompute=how)) for how in ("none", "full"))
    assert kept.parts["scan"] > 0.02 * kept.seconds
    assert "no kernel of which is measured" in kept.error.why
    peaks = [weft.memory(found, "8xh100", replace(plan, recompute=how)).peak for how in ("none", "full")]
    assert peaks[1] < peaks[0]
    assert again.parts["recompute"] > kept.parts.get("recompute", 0.0)
    parts = rank_parts(found, weft.TrainingPlan(dp=8, batch=8, sequence=2048), Framework())
    counted = Counter(found.layer_kinds) | Counter(("embedding", "head"))
    assert sum(count * parts[name].parameters for name, count in counted.items()) == found.parameters


def test_what_is_not_modelled_of_linear_layers_is_refused_with_its_reason(tmp_path):
    found = model(tmp_path, "granite-4.0-h-tiny")
    with pytest.raises(
        InputError, match=r"cp 2 splits sequences, and the state of .* passes from each token to the next"
    ):
        weft.step(found, "8xh100", weft.TrainingPlan(cp=2, dp=4, batch=8, sequence=8192))
    with pytest.raises(InputError, match="tp 4 does not divide the 50 linear heads"):
        check_plan(found.replace({"linear_heads": 50}), weft.TrainingPlan(tp=4, batch=8, sequence=8192))
    with pytest.raises(ConfigError, match="linear layers need linear_state; give whole numbers above zero"):
        found.replace({"linear_state": 0})
    with pytest.raises(ConfigError, match="'mamba' is no kind of layer; give a list like"):
        found.replace({"pattern": ("mamba", "attention")})
    with pytest.raises(InputError, match="shared_prefix is 512, and prefix caching is not modelled for the states"):
        weft.serve(found, "8xh100", ServingPlan(), weft.Load(rate=1, requests=10, shared_prefix=512))


def test_an_unknown_family_says_which_fields_the_nearest_known_one_would_leave_out(tmp_path):
    own = CASES["qwen3-235b-a22b"].config | {"kv_sharing_layers": 3, "rms_norm_eps": 1e-6, "model_type": "novel_moe"}
    with pytest.raises(ConfigError) as raised:
        written(tmp_path, Case(own, 0, ""))
    message = raised.value.message
    assert "unknown model_type 'novel_moe'" in message
    assert "The closest known type is qwen2_moe, which would leave out kv_sharing_layers (3)." in message
    del own["kv_sharing_layers"]
    with pytest.raises(ConfigError, match="All its fields are known to qwen2_moe: set model_type to 'qwen2_moe'"):
        written(tmp_path, Case(own, 0, ""))


def test_experts_in_a_latent_space_get_narrower_tokens_and_shared_ones_do_not(tmp_path):
    found = model(tmp_path, "nemotron-3-super-120b-a12b")
    pieces = {piece.name: piece.op for piece in layer(found, "experts", Tokens(1, 64), FusionStyle(), "bf16")}
    assert (pieces["latent_down"].n, pieces["latent_up"].k) == (1024, 1024)
    assert (pieces["permute"].columns, pieces["experts_fc1"].k, pieces["experts_fc2"].n) == (1024, 1024, 1024)
    assert (pieces["shared_fc1"].k, pieces["router"].k) == (4096, 4096)


@pytest.mark.parametrize(
    ("name", "like"),
    [("qwen3-next-80b-a3b", "qwen3-next-80b-a3b"), ("nemotron-h-8b", "nemotron-h-8b"),
     ("granite-4.0-h-small", "granite-4.0-h-small")],
)  # fmt: skip
def test_a_hybrid_model_of_the_catalogue_is_that_of_its_configuration(tmp_path, name, like):
    found, known = model(tmp_path, name), load_model(like)
    assert (known.parameters, known.active_parameters) == (found.parameters, found.active_parameters)
    assert (known.layer_kinds, known.mixer) == (found.layer_kinds, found.mixer)


def test_cuda_graphs_hold_mamba_layers_by_their_own_module(tmp_path):
    found = model(tmp_path, "nemotron-3-nano-30b-a3b")
    plan = weft.TrainingPlan(
        dp=8, ep=8, batch=64, sequence=4096, dispatcher="hybridep", cuda_graph_impl="transformer_engine",
        cuda_graph_modules=("attn", "moe_router"),
    )  # fmt: skip
    both = replace(plan, cuda_graph_modules=("attn", "mamba", "moe_router"))
    nodes = rank_parts(found, plan, Framework())["linear"].forward.nodes
    held = [sum(in_graphs(node, one.cuda_graph_modules) for node in nodes) for one in (plan, both)]
    assert held == [0, len(nodes)]
    with pytest.raises(InputError, match=r"cuda_graph_modules names mamba, and .* has no such layers"):
        check_plan(model(tmp_path, "qwen3-next-80b-a3b"), both)


def test_sparse_attention_reads_the_indexers_keys_and_the_best_tokens_instead_of_all(tmp_path):
    """DeepSeek-V3.2 beside V3: 132 bytes of each token and 2,048 compressed tokens, instead of 1,152 bytes of each."""
    sparse, dense = (model(tmp_path, name) for name in ("deepseek-v3.2", "deepseek-v3"))
    on, plan = weft.system("8xh200"), ServingPlan(tp=8)
    one, other = (Forward(each, on, plan) for each in (sparse, dense))
    assert one.cache(4096) == other.cache(4096) + 61 * 4096 * (128 + 4)

    def attention(of, context):
        return of.attention(Group(32, 1, context - 1, writes=True)).seconds

    assert attention(one, 2048) == pytest.approx(attention(other, 2048))
    assert attention(one, 131072) < 0.5 * attention(other, 131072)
    ends = [attention(one, context) for context in (32768, 65536, 131072)]
    assert ends[2] - ends[1] == pytest.approx(2 * (ends[1] - ends[0]), rel=0.1)  # the indexer alone grows
    scores, chosen = index_ops(sparse, 1, 100, 900, on.gpu)
    assert scores.flops == 2 * 64 * 128 * (100 * 900 + 5050)
    assert chosen.written == 4 * 100 * 2048


def test_more_layers_than_any_model_has_are_refused_before_they_are_listed(tmp_path):
    own = CASES["olmo-3-32b"].config | {"num_hidden_layers": 10**9}
    with pytest.raises(ConfigError, match="num_hidden_layers: it is 1000000000; give at most 100,000 layers"):
        written(tmp_path, Case(own, 0, ""))


@pytest.mark.parametrize(
    ("mixers", "pattern"),
    [
        (["", "", ""], ("dense",)),
        (["linear", "", "linear"], ("dense-linear", "dense")),
        (["linear", "linear", ""], ("dense-linear", "dense-linear", "dense")),
        (["", "window", "", "window", ""], ("dense", "dense-window")),
        (["", "", "window", "", "", "window", "window"], None),
    ],
)
def test_the_shortest_beginning_that_repeats_stands_for_all_layers(mixers, pattern):
    found = compose_pattern(mixers, ["dense"] * len(mixers))
    whole = tuple(f"dense-{mixer}" if mixer else "dense" for mixer in mixers)
    assert found == (pattern or whole)
    assert tuple(found[at % len(found)] for at in range(len(mixers))) == whole


def test_layers_that_predict_further_tokens_have_attention_where_the_last_layer_has_none(tmp_path):
    own = CASES["nemotron-3-super-120b-a12b"].config | {"num_nextn_predict_layers": 1}
    found = written(tmp_path, Case(own, 0, ""))
    ends = {piece.name for piece in head(found, Tokens(1, 64), FusionStyle(), "bf16")}
    assert found.layer_kinds[-1] == "experts"
    assert {"predict1_attention", "predict1_experts_fc1"} <= ends
    assert found.parameters == model(tmp_path, "nemotron-3-super-120b-a12b").parameters
