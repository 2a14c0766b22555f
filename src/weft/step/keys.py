"""Keys of the one cache of durations: by each, what decides a value, out of a plan and a framework."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple, Self

from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import casting_ranks
from weft.models.parallel.plan import ORDER, TrainingPlan
from weft.step.exchange_overlap import paired_share


class RankKey(NamedTuple):
    """What decides the parts of a model on a rank. None in place of a field: whatever it is."""

    recompute: Any
    ep: int | None
    dispatcher: str | None
    tp: int
    sp: bool
    cp: int
    context: str
    micro_batch: int
    sequence: int
    dtype: str | None
    precision: str
    expert_load: Any
    adds: bool
    casting: int
    async_tp: bool
    ordered_tp: bool | str

    @classmethod
    def of(cls, plan: TrainingPlan, framework: Framework) -> Self:
        """Return the key of a plan."""
        adds = not framework.accumulates and plan.micro_batches > 1 and not plan.gathers_each_pass
        ordered = framework.orders_tokens and framework.tp
        more = adds, casting_ranks(plan, framework), framework.async_tp, ordered
        return cls._make((*_RANK_FIELDS(plan), *more))

    @property
    def any_recompute(self) -> Self:
        """The key of plans that may only recompute otherwise."""
        return self._replace(recompute=None)

    @property
    def dense(self) -> Self:
        """The key of plans that may only spread their experts otherwise."""
        return self._replace(ep=None, dispatcher=None)


_RANK_FIELDS = attrgetter(*RankKey._fields[:12])


class PassKey(NamedTuple):
    """What decides the passes over the parts of a rank: these, methods of overlap, the place of the ranks, whether the
    schedule `splits` the backward pass, CUDA graphs, and how many passes have one of another micro-batch beside them.
    """

    rank: RankKey
    methods: tuple[tuple[str, str], ...]
    placed: tuple[Any, ...] | None
    splits: bool
    graphs: tuple[str, ...]
    beside: tuple[float, bool] | None

    @classmethod
    def of(cls, plan: TrainingPlan, framework: Framework, rank: RankKey, splits: bool) -> Self:
        """Return the key of a plan."""
        overlap = plan.overlap
        methods = tuple((axis, overlap[axis]) for axis in sorted(overlap) if axis != "dp") if overlap else ()
        placed = None if plan.order == ORDER else (plan.order, plan.dp, plan.pp)
        beside = (paired_share(plan), framework.delay_wgrad) if framework.paired and plan.ep > 1 else None
        return cls(rank, methods, placed, splits, framework.graphs, beside)

    @property
    def any_recompute(self) -> Self:
        """The key of plans that may only recompute otherwise."""
        return self._replace(rank=self.rank.any_recompute)

    @property
    def dense(self) -> Self:
        """The key of passes over parts without experts."""
        return self._replace(rank=self.rank.any_recompute.dense, beside=None)


class LeastKey(NamedTuple):
    """What decides lower bounds of the passes over the parts of a rank."""

    passes: PassKey


class FrameworkKey(NamedTuple):
    """The identity of a framework, whose bounds hold it."""

    framework: int


class OrderKey(NamedTuple):
    """What decides the order of a pipeline's tasks."""

    schedule: str
    pp: int
    micro_batches: int


class StageKey(NamedTuple):
    """What decides which stages have which parts; `order` is the identity of the order of tasks."""

    pp: int
    chunks: int
    layers: tuple[int, ...]
    order: int


class WindowKey(NamedTuple):
    """What decides the windows of replicas: their `group`, number format and method of overlap."""

    group: tuple[int, ...]
    dtype: str | None
    method: str | None


class GatherKey(NamedTuple):
    """What decides a forward pass that gathers weights; windows and passes by their identities."""

    windows: int
    shard: int | None
    ep: int
    sp: bool
    order: tuple[str, ...]
    passes: tuple[int, ...]


class EpilogueKey(NamedTuple):
    """What decides all that surrounds the passes of a plan: overlaps of replicas, and `fields` of the plan."""

    dp_overlap: bool
    gather_overlap: bool
    method: str | None
    fields: tuple[Any, ...]
