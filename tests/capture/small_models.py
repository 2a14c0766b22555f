"""Small models whose steps are captured, run for real, and replayed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    """LeNet-5 on images of 28 x 28."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.classify = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    def forward(self, images: Any) -> Any:
        x = F.max_pool2d(F.relu(self.first(images)), 2)
        return self.classify(F.max_pool2d(F.relu(self.second(x)), 2).flatten(1))


def lenet() -> tuple[Any, dict[str, Any], Any]:
    labels = torch.randint(0, 10, (64,))
    return LeNet(), {"images": torch.randn(64, 1, 28, 28)}, lambda out: F.cross_entropy(out, labels)


def llama(**given: Any) -> tuple[Any, dict[str, Any], Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 256,
    }  # fmt: skip
    return _language(LlamaForCausalLM(LlamaConfig(**{**sizes, **given}, use_cache=False)))


def gpt2(attention: str = "sdpa") -> tuple[Any, dict[str, Any], Any]:
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=256, use_cache=False)
    return _language(AutoModelForCausalLM.from_config(config, attn_implementation=attention))


def bert() -> tuple[Any, dict[str, Any], Any]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=256
    )
    return _language(BertForMaskedLM(config))


def mixtral(experts: str = "eager", dtype: Any = None) -> tuple[Any, dict[str, Any], Any]:
    from transformers import AutoModelForCausalLM, MixtralConfig

    config = MixtralConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        vocab_size=256, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    config._experts_implementation = experts
    return _language(AutoModelForCausalLM.from_config(config, dtype=dtype))


def _language(model: Any) -> tuple[Any, dict[str, Any], Any]:
    tokens = torch.randint(0, 256, (2, 32))
    return model.train(), {"input_ids": tokens, "labels": tokens}, lambda out: out.loss
