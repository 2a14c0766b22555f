"""A mixture's experts as a server runs them: one rank's slice, and the one call of a library for a layer of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from weft.estimate.experts import Layer, Load, served_layer
from weft.estimate.target import target
from weft.graph import Graph, GroupedGemm
from weft.hardware import Gpu
from weft.library.kits import Kit
from weft.library.served import Library, library
from weft.models import Transformer
from weft.options import RunOptions
from weft.run.step.prices import BETWEEN_OTHERS

_LOADS = 0.55
"""Exponent of the loads of a model's experts by their place [published: 0.5 to 0.6, densities of 1.01 to 1.2 in
ai-dynamo/aiconfigurator docs/POWER_LAW_DISTRIBUTION.md; 0 to 0.8]."""
_PARTS = ("permute", "experts_activation", "experts_fc2", "unpermute")
"""Operators that are part of the call, which counts as the first GEMM of the experts; some libraries route, too."""


@cache
def visited(experts: int, each: int, tokens: int) -> int:
    """Experts that so many tokens are expected to visit, `each` of them as many, by loads of a power law.

    >>> visited(256, 8, 1), visited(256, 8, 64), visited(256, 8, 4096)
    (8, 200, 256)
    """
    loads = np.arange(1, experts + 1.0) ** -_LOADS
    chosen = np.minimum(each * loads / loads.sum(), 1.0)
    return max(round(float((1 - (1 - chosen) ** tokens).sum())), 1)


def sliced(model: Transformer, op: GroupedGemm, tokens: int, tp: int, ep: int) -> GroupedGemm:
    """One rank's slice of the experts that so many tokens visit.

    The first GEMM is cut by columns, the second by rows of its weights: both along the width of an expert. With `ep`
    above `tp` attention is data parallel, and as many tokens come from other ranks as go to them.
    """
    wide = ep > tp
    groups = visited(model.experts, model.experts_per_token, tokens * (ep // tp if wide else 1))
    if wide:
        return replace(op, groups=max(round(groups / ep), 1))
    if ep > 1:
        return replace(op, groups=max(round(groups / ep), 1), rows=max(round(op.rows / ep), 1))
    if op.n == model.hidden:
        return replace(op, groups=groups, k=-(-op.k // tp))
    return replace(op, groups=groups, n=-(-op.n // tp))


@dataclass(frozen=True)
class ExpertCalls:
    """The calls of a library for layers of experts, whose format it calls `kind`, on one of `tp` GPUs.

    Where ranks hold slices, the call has the shared experts, too: frameworks run them as further experts, or beside the
    others on a stream of their own.
    """

    model: Transformer
    of: Library
    kind: str
    gpu: Gpu
    options: RunOptions
    tp: int
    ep: int
    pads: tuple[int, int] = (1, 1)
    _known: dict[GroupedGemm, float] = field(default_factory=dict)

    @classmethod
    def by(
        cls, kit: Kit | None, format: str, model: Transformer, gpu: Gpu, options: RunOptions, tp: int, ep: int
    ) -> ExpertCalls | None:
        """The calls of the library that a kit has for experts of a format on a GPU; None without one.

        There is none for experts that are shared by more ranks than attention: these are called after an exchange.
        """
        name, kind = kit.experts_on(gpu.architecture, format) if kit and model.experts and ep <= tp else ("", "")
        if not (kit and name):
            return None
        return cls(model, library("experts", name), kind, gpu, options, tp, ep, kit.pads_on(gpu.architecture, format))

    @property
    def shared(self) -> bool:
        """Whether the call has the shared experts."""
        return self.ep == 1

    def within(self, graph: Graph) -> Mapping[str, float]:
        """Seconds of the nodes of a graph that belong to the call, by name; none without experts."""
        first = next((node for node in graph if isinstance(node.op, GroupedGemm)), None)
        if first is None:
            return {}
        parts = (*_PARTS, "top_k") if self.of.how.get("routes") else _PARTS
        return dict.fromkeys(parts, 0.0) | {first.name: self.seconds(first.op)}  # type: ignore[arg-type]

    def seconds(self, up: GroupedGemm) -> float:
        """Time of the call for experts whose first GEMM is given [s]."""
        if up not in self._known:
            machine = target(self.gpu, self.options, BETWEEN_OTHERS)
            self._known[up] = float(served_layer(self.layer(up), self.of, machine).seconds)
        return self._known[up]

    def layer(self, up: GroupedGemm) -> Layer:
        """The layer of experts whose first GEMM is given, as `weft.experts` times it."""
        model, each = self.model, self.model.experts_per_token
        tokens, load = up.rows * self.ep // each, Load.shared(up.rows, up.groups)
        if self.shared and model.shared_experts:
            load = load.beside(Load.shared(model.shared_experts * tokens, model.shared_experts))
            each += model.shared_experts
        hidden, wide = self.sizes
        return Layer(load, tokens, each, hidden, wide, self.kind, model.gated)

    @property
    def sizes(self) -> tuple[int, int]:
        """Hidden and inner size of one rank's experts, padded as the library's kernel takes them."""
        wide = -(-self.model.expert_wide // (self.tp // self.ep))
        hidden, inner = (
            -(-size // each) * each for size, each in zip((self.model.hidden, wide), self.pads, strict=True)
        )
        return hidden, inner

    @property
    def padding(self) -> float:
        """Elements of one rank's padded experts by those of the model: 1 without padding."""
        hidden, inner = self.sizes
        return hidden * inner * (self.tp // self.ep) / (self.model.hidden * self.model.expert_wide)
