"""Configurations of Hugging Face against captures of the models that they describe: products and parameters."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make test-capture runs this")
import torch
import transformers

import weft
from weft.graph import Attention
from weft.models import Transformer
from weft.models.counts import forward_flops

BATCH, TOKENS = 2, 128
SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
}
WIDE = {**SHAPE, "intermediate_size": 512}
SHARED = {**WIDE, "num_key_value_heads": 4}
HEADS = {**SHARED, "head_dim": 32}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "num_experts": 4}
SHORT = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1024}
FAMILIES = {
    "llama": ("LlamaForCausalLM", SHARED),
    "mistral": ("MistralForCausalLM", SHARED),
    "mixtral": ("MixtralForCausalLM", {**SHARED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2ForCausalLM", SHARED),
    "qwen3": ("Qwen3ForCausalLM", HEADS),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**HEADS, **EXPERTS}),
    "gemma": ("GemmaForCausalLM", HEADS),
    "gemma2": ("Gemma2ForCausalLM", HEADS),
    "phi3": ("Phi3ForCausalLM", {**SHARED, "pad_token_id": 0}),
    "granite": ("GraniteForCausalLM", SHARED),
    "gpt_neox": ("GPTNeoXForCausalLM", WIDE),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 256, "n_layer": 2, "n_head": 8, "vocab_size": 1024, "n_positions": 512},
    ),
    "bloom": ("BloomForCausalLM", {"hidden_size": 256, "n_layer": 2, "n_head": 8, "vocab_size": 1024}),
    "falcon": ("FalconForCausalLM", SHORT),
    "bert": ("BertForPreTraining", WIDE),
}
"""Families whose every parameter is stated, with a small configuration of each."""
PRODUCTS_ALONE = {
    "phi": ("PhiForCausalLM", WIDE),
    "cohere": ("CohereForCausalLM", SHARED),
    "opt": ("OPTForCausalLM", {**SHAPE, "ffn_dim": 512, "word_embed_proj_dim": 256}),
    "gpt_oss": ("GptOssForCausalLM", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""Families whose model leaves out some vectors: a head's bias, norms that share one, positions of padding, sinks."""


def model_of(family: str, name: str, sizes: dict[str, object], folder) -> tuple[Transformer, torch.nn.Module]:
    """The model that Weft reads from the configuration, and the one that transformers makes of it."""
    made = transformers.AutoConfig.for_model(family, **sizes)
    made.save_pretrained(folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "architectures": [name]}))
    with torch.device("meta"):
        network = getattr(transformers, name)(made).to(torch.bfloat16)
    return weft.load_model(folder / "config.json"), network


def products(network: torch.nn.Module) -> int:
    """FLOPs of the matrix products of a captured forward pass, attention as its two products without a mask."""
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    flops = 0
    for node in weft.capture(network, ids, backward=False):
        op = node.op
        if isinstance(op, Attention):
            flops += 2 * op.batch * op.heads * (op.head + op.value_head) * op.query * op.keys
        elif op.matrix_dtype is not None:
            flops += op.flops
    return flops


@pytest.mark.parametrize("family", [*FAMILIES, *PRODUCTS_ALONE])
def test_a_configuration_has_the_products_of_its_captured_model(family, tmp_path):
    model, network = model_of(family, *(FAMILIES | PRODUCTS_ALONE)[family], tmp_path)
    assert products(network) == BATCH * sum(forward_flops(model, TOKENS, "full").values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_has_the_parameters_of_its_model(family, tmp_path):
    model, network = model_of(family, *FAMILIES[family], tmp_path)
    assert model.parameters == sum(one.numel() for one in dict.fromkeys(network.parameters()))
