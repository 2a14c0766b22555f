"""Speculative decoding: tokens that a small model drafts, and a step of the model verifies together."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from pathlib import Path

from weft.models import Transformer, load_model

OWN = ("mtp", "eagle", "none")
"""Drafters that are no whole models: the model's layer of multi-token prediction (its last kind of layer behind a
product that joins hidden state and embedding; DeepSeek-V3, arXiv:2412.19437, section 2.2), a dense layer behind the
same product (EAGLE, arXiv:2401.15077), or a lookup that takes no time (n-grams of the prompt)."""


@dataclass(frozen=True)
class Speculation:
    """`tokens` drafted for each step, each accepted with probability `accept` if those before it are, by `draft`.

    A step writes the accepted ones and one more: (1 - accept^(tokens + 1)) / (1 - accept) in the mean (Leviathan et
    al., arXiv:2211.17192).
    """

    tokens: int = 0
    accept: float = 0.0
    draft: str = "mtp"

    @property
    def expected_tokens(self) -> float:
        """Tokens that a step writes, in the mean."""
        return sum(self.accept**one for one in range(self.tokens + 1))

    def written_tokens(self, steps: int) -> int:
        """Return the mean number of tokens that a sequence has after `steps` steps."""
        return floor(steps * self.expected_tokens + 1e-9) if self.tokens else steps


NONE = Speculation()
"""Nothing is drafted: a step writes one token."""


def drafter(model: Transformer, name: str) -> Transformer | None:
    """The model that drafts for a model; None for one that takes no time. UnknownNameError for an unknown one."""
    if name == "none":
        return None
    if name not in OWN:
        return load_model(Path(name) if name.endswith((".toml", ".json")) else name)
    one = {"title": f"{model.title}, {name}", "layers": 1, "dense_layers": 0, "moe_every": 1}
    one |= {"predict_layers": 0, "pattern": (), "linear": ""}
    dense = {"experts": 0, "experts_per_token": 0, "shared_experts": 0} if name == "eagle" else {}
    return Transformer(**{**model.model_dump(), **one, **dense})
