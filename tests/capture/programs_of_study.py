"""The programs of the study of PyTorch on a simulator, as unmodified PyTorch; run to write their graphs again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

import weft
from weft.graph import Graph


class LeNet(torch.nn.Module):
    """LeNet-5 on images of MNIST."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def _classified(logits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


def lenet() -> Graph:
    with torch.device("meta"):
        model, images = LeNet(), torch.zeros(64, 1, 28, 28)
    return weft.capture(model, images, loss=_classified, optimizer=torch.optim.SGD)


def resnet50() -> Graph:
    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
        images = torch.zeros(8, 3, 224, 224)
    return weft.capture(model, images, loss=lambda made: _classified(made.logits), optimizer=torch.optim.SGD)


def layer() -> Graph:
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 1}
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).encoder.layer[0]
        tokens = torch.zeros(8, 512, 1024)
    return weft.capture(model, tokens, loss=lambda made: (made[0] if isinstance(made, tuple) else made).sum())


PROGRAMS: dict[str, Callable[[], Graph]] = {"lenet": lenet, "resnet50": resnet50, "layer": layer}

if __name__ == "__main__":
    for name, capture in PROGRAMS.items():
        weft.write_graph(capture(), Path(sys.argv[1]) / f"{name}.graph.jsonl.gz")
