"""A mixture's experts as a server runs them: one rank's slice, and the one call of a library for a layer of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from weft.core.options import RunOptions
from weft.estimate.experts import ExpertRows, GpuExperts, served_layer
from weft.estimate.target import target
from weft.graph import Graph, GroupedGemm, Routing
from weft.graph.op import Role
from weft.graph.routing import Loads
from weft.hardware import Gpu
from weft.kernels.library.kits import KernelBackend
from weft.kernels.library.served import Library, library
from weft.models import Transformer
from weft.step.durations import BETWEEN_OTHERS

SERVED_LOAD = 0.55
"""Exponent of the expert load distribution of a server [published: 0.5 to 0.6, densities of 1.01 to 1.2 in
ai-dynamo/aiconfigurator docs/POWER_LAW_DISTRIBUTION.md; 0 to 0.8]."""
_PARTS = ("permute", "experts_activation", "experts_fc2", "unpermute")
"""Operators that are part of the call, which counts as the first GEMM of the experts; some libraries route, too."""


@lru_cache(maxsize=1 << 12)
def visit_experts(top_k: int, experts: int, tokens: int, ranks: int, load: Loads | None) -> tuple[int, int, int]:
    """Return what `tokens` tokens bring to a GPU's experts: how many are visited, all rows, and those of the busiest.

    Without a `load` tokens choose experts by `SERVED_LOAD`, placed so that all `ranks` get as many rows, as load
    balancers place them (DeepSeek's EPLB), and each visited expert as many as the others (busiest 0). With one, the
    GPU that gets most rows is counted, as in a training step.

    >>> [visit_experts(8, 256, tokens, 1, None)[0] for tokens in (1, 64, 4096)]
    [8, 200, 256]
    """
    if load is None:
        visited = round(float(Routing.under(SERVED_LOAD, tokens, top_k, experts, 1).choice_probability(tokens).sum()))
        return max(round(max(visited, 1) / ranks), 1), max(round(tokens * top_k / ranks), 1), 0
    routing = Routing.under(load, tokens, top_k, experts, ranks)
    by_rank = routing.expected_rows.reshape(ranks, -1)
    fullest = int(by_rank.sum(axis=1).argmax())
    rows, busiest = max(round(float(by_rank[fullest].sum())), 1), float(by_rank[fullest].max())
    visited = round(float(routing.choice_probability(tokens).reshape(ranks, -1)[fullest].sum()))
    groups = min(max(visited, 1), rows)
    return groups, rows, round(busiest) if busiest > 1 + rows / groups else 0


def slice_experts(
    model: Transformer, op: GroupedGemm, tokens: int, tp: int, ep: int, load: Loads | None
) -> GroupedGemm:
    """Return one rank's slice of the experts for `tokens` tokens.

    The first GEMM is cut by columns, the second by rows of its weights: both along the width of an expert. With `ep`
    above `tp` attention is data parallel, and as many tokens come from other ranks as go to them. `load` is the expert
    load distribution, as of `visit_experts`.
    """
    every = tokens * (ep // tp if ep > tp else 1)
    groups, rows, busiest = visit_experts(model.experts_per_token, model.experts, every, ep, load)
    mine = replace(op, groups=groups, rows=rows, busiest=busiest)
    if ep > 1:
        return mine
    return replace(mine, k=-(-op.k // tp)) if op.n == model.routed_hidden else replace(mine, n=-(-op.n // tp))


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
    _known: dict[tuple[GroupedGemm, int], float] = field(default_factory=dict)

    @classmethod
    def by(
        cls, kit: KernelBackend | None, format: str, model: Transformer, gpu: Gpu, options: RunOptions, tp: int, ep: int
    ) -> ExpertCalls | None:
        """The calls of the library that a kit has for experts of a format on a GPU; None without one.

        There is none for experts that are shared by more ranks than attention: these are called after an exchange.
        """
        name, kind = kit.experts_on(gpu.architecture, format) if kit and model.experts and ep <= tp else ("", "")
        if not (kit and name):
            return None
        return cls(model, library("experts", name), kind, gpu, options, tp, ep, kit.pads_on(gpu.architecture, format))

    @property
    def has_shared(self) -> bool:
        """Whether the call has the shared experts, which see tokens of hidden size."""
        return self.ep == 1 and not self.model.expert_hidden

    def within(self, graph: Graph) -> Mapping[str, float]:
        """Return the seconds of the nodes of a graph that belong to the call, by name; none without experts."""
        first = next((node for node in graph if isinstance(node.op, GroupedGemm)), None)
        if first is None:
            return {}
        parts = (*_PARTS, "top_k") if self.of.how.get("routes") else _PARTS
        router = next(node.op for node in graph if node.role is Role.ROUTER)
        seconds = self.seconds(first.op, router.m)  # type: ignore[arg-type,attr-defined]
        return dict.fromkeys(parts, 0.0) | {first.name: seconds}

    def seconds(self, up: GroupedGemm, tokens: int) -> float:
        """Return the time of the call for `tokens` and experts whose first GEMM is given [s]."""
        key = up, tokens
        if key not in self._known:
            machine = target(self.gpu, self.options, BETWEEN_OTHERS)
            self._known[key] = float(served_layer(self.layer(up, tokens), self.of, machine).seconds)
        return self._known[key]

    def layer(self, up: GroupedGemm, tokens: int) -> GpuExperts:
        """The layer of experts whose first GEMM is given, as `weft.experts` times it."""
        model, each = self.model, self.model.experts_per_token
        load = ExpertRows.share_evenly(up.rows, up.groups, up.busiest)
        if self.has_shared and model.shared_experts:
            load = load.beside(ExpertRows.share_evenly(model.shared_experts * tokens, model.shared_experts))
            each += model.shared_experts
        hidden, wide = self.sizes
        return GpuExperts(load, tokens, each, hidden, wide, self.kind, model.is_gated)

    @property
    def sizes(self) -> tuple[int, int]:
        """Hidden and inner size of one rank's experts, padded as the library's kernel takes them."""
        wide = -(-self.model.expert_wide // (self.tp // self.ep))
        hidden, inner = (
            -(-size // each) * each for size, each in zip((self.model.routed_hidden, wide), self.pads, strict=True)
        )
        return hidden, inner

    @property
    def padding(self) -> float:
        """Elements of one rank's padded experts by those of the model: 1 without padding."""
        hidden, inner = self.sizes
        return hidden * inner * (self.tp // self.ep) / (self.model.routed_hidden * self.model.expert_wide)
