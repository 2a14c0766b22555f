"""Model types of Hugging Face, each in its default sizes with two layers: forward, backward and AdamW are captured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make test-capture runs this")
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import weft

DECODERS = (
    "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "codegen", "llama", "mistral", "mixtral", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "phimoe", "falcon",
    "mpt", "stablelm", "starcoder2", "olmo", "olmo2", "olmoe", "cohere", "granite", "granitemoe", "glm", "glm4",
    "deepseek_v3", "mamba", "gpt_oss", "smollm3", "ernie4_5", "helium",
)  # fmt: skip
ENCODERS = (
    "bert", "roberta", "distilbert", "electra", "albert", "deberta", "deberta-v2", "mpnet", "xlm-roberta",
    "modernbert", "vit", "deit", "swin", "convnext", "resnet", "clip_vision_model", "wav2vec2", "t5",
)  # fmt: skip
"""Not here: dbrx, deepseek_v2 and nemotron, whose default sizes transformers itself refuses, and recurrent_gemma, two
layers of which hold no attention."""
PICTURES = ("vit", "deit", "swin", "convnext", "resnet", "clip_vision_model")
GIVEN = {
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "wav2vec2": {"apply_spec_augment": False, "layerdrop": 0.0},  # both drop what floating-point numbers say
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")


def configuration(name):
    config = AutoConfig.for_model(name, **GIVEN.get(name, {}))
    for field in LAYERS if name not in ("swin", "convnext") else ():
        if hasattr(config, field):
            setattr(config, field, 2)
    if getattr(config, "layer_types", None) and name != "mamba":
        config.layer_types = config.layer_types[:2]
    return config


def inputs(name):
    if name in PICTURES:
        return {"pixel_values": torch.empty(2, 3, 224, 224)}
    if name == "wav2vec2":
        return {"input_values": torch.empty(2, 16000)}
    tokens = {"input_ids": torch.randint(0, 100, (2, 32))}
    return {**tokens, "decoder_input_ids": tokens["input_ids"]} if name == "t5" else tokens


def loss(output):
    """The mean of the first output that has a gradient."""
    return next(
        one.float().mean()
        for one in output.to_tuple()
        if isinstance(one, torch.Tensor) and one.is_floating_point() and one.requires_grad
    )


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_a_model_type_is_captured_with_every_operator_known(name):
    maker = AutoModelForCausalLM if name in DECODERS else AutoModel
    with torch.device("meta"):
        model = maker.from_config(configuration(name))
    if name in DECODERS:
        model = model.to(torch.bfloat16)
    graph = weft.capture(model, keywords=inputs(name), loss=loss, optimizer=torch.optim.AdamW)
    phases = {node.phase for node in graph}
    assert {"forward", "optimizer"} < phases
    forward, backward = (
        sum(node.op.flops for node in graph if (node.phase == "forward") == first and node.op.matrix_dtype)
        for first in (True, False)
    )
    assert 1.5 * forward < backward < 3 * forward
