"""Which uniform plans there are on a number of GPUs, and why each of the others is left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from weft.core.errors import InputError, check_name, check_whole
from weft.hardware import System
from weft.models import Transformer
from weft.models.parallel.check import can_pair, check_graphs, divisors, drop_ep_overlap, problems
from weft.models.parallel.deployment import overlap_of
from weft.models.parallel.framework import Framework
from weft.models.parallel.layers import stage_layers
from weft.models.parallel.plan import ScheduleName, TrainingPlan, schedule_name
from weft.models.parallel.precision import check_trains
from weft.plan.launch import lacking
from weft.step.overlaps import check_methods, check_overlap

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Sequences of a micro-batch that are tried."""
LEAST_TOKENS = 1024
"""Least tokens of a sequence that context parallelism leaves a rank [assumed; published plans leave 4,096 or more]."""
STAGES_OF_ZERO: Mapping[str, tuple[int, ...]] = {
    "megatron-fsdp": (3,),
    "megatron": (0, 1),
    "torchtitan": (3,),
    "deepspeed": (0, 1, 2, 3),
}
"""Stages of ZeRO that a framework offers, by the beginning of its name: Megatron shards optimizer states alone
(NVIDIA/Megatron-LM, distributed optimizer), torchtitan everything (FSDP2)."""
RECOMPUTATIONS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("none", "selective", "full"),
    "torchtitan": ("none", "operators", "full"),
}
"""Kinds of recomputation that a framework offers, by the beginning of its name."""
DISPATCHERS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("nccl", "deepep", "hybridep"),
    "automodel": ("nccl", "deepep"),
}
"""Libraries that exchange a mixture's tokens in a framework, by the beginning of its name: Megatron Core's dispatchers
(--moe-token-dispatcher-type, --moe-flex-dispatcher-backend), and AutoModel's. They run on NVIDIA's GPUs alone."""
_ALL_RECOMPUTATIONS = "none", "selective", "operators", "full"
_AXES = "tp", "cp", "pp", "dp"
GRAPHS = "cuda_graph_impl", "cuda_graph_modules"
PAIRING = "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"
"""Fields of a plan on CUDA graphs, and on passes that run concurrently with another micro-batch's."""
_PAIRING = ("megatron-core", "megatron-bridge")
"""Frameworks whose fastest plans are also tried with EP overlap, which is off by default."""
_PLAIN = TrainingPlan()
_FREE = {"batch": "batch", "sequence": "sequence", "order": "", "layers": "", "expert_load": ""}
"""Fields of a plan that the search does not choose, with the argument that states each."""


@dataclass(frozen=True)
class Space:
    """The uniform plans of a model on `system` that fill its GPUs, for `batch` sequences of `sequence` tokens.

    `choices` are the values of every field of a plan that are tried, `fixed` the names of those that the user stated.
    With a `launcher`, plans that it has no options for are left out.
    """

    model: Transformer
    system: System
    framework: Framework
    batch: int
    sequence: int
    choices: Mapping[str, tuple[Any, ...]]
    fixed: frozenset[str] = frozenset()
    launcher: str = ""

    def candidates(self, rejected: Counter[str]) -> Iterator[TrainingPlan]:
        """Yield the plans that the launcher, if there is one, can start; `rejected` counts all others by reason."""
        for plan in self._dividing(rejected):
            missing = lacking(self.launcher, self.model, plan) if self.launcher else ""
            if missing:
                rejected[f"{self.launcher} cannot run it: {missing}"] += 1
            else:
                yield plan

    def _dividing(self, rejected: Counter[str]) -> Iterator[TrainingPlan]:
        """Yield the plans whose degrees divide what they split; `rejected` counts the others by reason."""
        for tp, cp, pp in product(*(self._degrees(axis) for axis in ("tp", "cp", "pp"))):
            if self.system.gpus % (tp * cp * pp):
                continue
            dp = self.system.gpus // (tp * cp * pp)
            if "dp" in self.fixed and dp not in self.choices["dp"]:
                continue
            for ep, sp, context in product(self._experts(tp * cp * dp), self._sp_choices(tp), self._contexts(cp)):
                yield from self._plans_of(
                    {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "sp": sp, "context": context}, rejected
                )

    def exchanged_otherwise(self, plans: Iterable[TrainingPlan]) -> Iterator[TrainingPlan]:
        """The same plans with each other library that may exchange their tokens, and with EP overlap, unless the user
        stated these.
        """
        names = () if "dispatcher" in self.fixed else _other_dispatchers(self.model, self.system, self.framework)
        pairs = not self.framework.paired and self.framework.name in _PAIRING and not self.fixed & {*PAIRING}
        for plan in (one for one in plans if one.ep > 1):
            ways = [plan, *(plan.alter(dispatcher=name) for name in names)]
            if pairs and can_pair(plan):
                ways += [one.alter(**dict.fromkeys(PAIRING, True)) for one in ways]
            for other in ways[1:]:
                if not (self.launcher and lacking(self.launcher, self.model, other)):
                    yield other

    @property
    def exchanges_otherwise(self) -> bool:
        """Whether there are other libraries of exchange, or EP overlap, to try."""
        return bool(_other_dispatchers(self.model, self.system, self.framework)) or self.framework.name in _PAIRING

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """The libraries of exchange that the framework offers."""
        return _offered_values(DISPATCHERS, self.framework, ())

    def adopt(self, plans: Iterable[TrainingPlan]) -> Iterator[TrainingPlan]:
        """Return those of another framework's plans that this one can run, as it runs them."""
        for plan in plans:
            other = plan.alter(overlap_moe_expert_parallel_comm=None) if self._lacks_overlap(plan) else plan
            other = self._as_paired(other)
            fields = ("zero", "recompute", *(["dispatcher"] if other.dispatcher else []))
            offered = {**self.choices, "dispatcher": ("", *self.dispatchers)}
            if all(getattr(other, name) in offered[name] or name in self.fixed for name in fields):
                yield other

    def _lacks_overlap(self, plan: TrainingPlan) -> bool:
        """Return whether a search, and not the user, left a plan's exchanges without overlap."""
        return plan.overlap_moe_expert_parallel_comm is False and not self.fixed & {*PAIRING}

    def _as_paired(self, plan: TrainingPlan) -> TrainingPlan:
        """Return a plan without the EP overlap of its framework where Megatron Core has none."""
        return plan if self.fixed & {*PAIRING} else drop_ep_overlap(plan, self.framework.paired)

    def fits_on(self, gpus: int) -> bool:
        """Return whether the degrees that the user stated fit fewer or more GPUs."""
        stated = [self.choices[axis] for axis in _AXES if axis in self.fixed]
        products = (math.prod(values) for values in product(*stated))
        return any(gpus % used == 0 and (len(stated) < len(_AXES) or used == gpus) for used in products)

    def _plans_of(self, degrees: Mapping[str, Any], rejected: Counter[str]) -> Iterator[TrainingPlan]:
        """Yield the plans of the same degrees."""
        orders, leaves = list(self._orders(degrees["pp"])), list(self._leaves(degrees))
        reason = self._rule(degrees)
        if reason:
            rejected[reason] += len(orders) * len(self.choices["micro_batch"]) * len(leaves)
            return
        checked = [self._make_plan(degrees, leaf) for leaf in leaves]
        leaves = [{name: getattr(one, name) for name in leaf} for leaf, one in zip(leaves, checked, strict=True)]
        for name, layers in orders:
            order = TrainingPlan(**degrees, schedule=name, layers=layers, batch=self.batch, sequence=self.sequence)
            problem = next(problems(self.model, order), "")
            for micro_batch in self.choices["micro_batch"]:
                reason = self._order_rule(order, micro_batch) or problem
                if reason:
                    rejected[reason] += len(leaves)
                    continue
                for leaf in leaves:
                    yield self._as_paired(order.alter(micro_batch=micro_batch, **leaf))

    def _make_plan(self, degrees: Mapping[str, Any], leaf: Mapping[str, Any]) -> TrainingPlan:
        """A plan of these degrees with the choices of a leaf; InputError for choices that contradict each other."""
        return TrainingPlan(**degrees, **leaf, batch=degrees["dp"], sequence=self.sequence)

    def _degrees(self, axis: str) -> Sequence[int]:
        return self.choices[axis]

    def _experts(self, ranks: int) -> list[int]:
        if not self.model.experts:
            return [1] if "ep" not in self.fixed else list(self.choices["ep"])
        return [ep for ep in self.choices["ep"] if "ep" in self.fixed or ranks % ep == 0]

    def _sp_choices(self, tp: int) -> tuple[bool, ...]:
        return self.choices["sp"] if tp > 1 or "sp" in self.fixed else (False,)

    def _contexts(self, cp: int) -> tuple[str, ...]:
        return self.choices["context"] if cp > 1 else self.choices["context"][:1]

    def _rule(self, degrees: Mapping[str, Any]) -> str:
        """Return why degrees do not fit the model or the machine; empty if they do."""
        tp, dp, each = degrees["tp"], degrees["dp"], self.system.gpus_per_node
        if tp > each and "tp" not in self.fixed:
            return f"tp {tp} leaves the {each} GPUs of a node"
        if self.sequence < degrees["cp"] * LEAST_TOKENS and degrees["cp"] > 1 and "cp" not in self.fixed:
            return f"cp leaves a rank less than {LEAST_TOKENS:,} of the {self.sequence:,} tokens of a sequence"
        if self.sequence % degrees["cp"]:
            return f"cp {degrees['cp']} does not divide the sequence of {self.sequence:,} tokens"
        if self.batch % dp:
            return f"dp {dp} does not divide the batch of {self.batch:,} sequences"
        layers = self.borders(degrees["pp"]) or ()
        probe = TrainingPlan(**degrees, layers=layers, batch=self.batch, sequence=self.sequence)
        return next(problems(self.model, probe), "")

    def _order_rule(self, plan: TrainingPlan, micro_batch: int) -> str:
        """Return why the schedule of a plan does not run such micro-batches; empty if it does."""
        dp, pp, name = plan.dp, plan.pp, plan.order_of_pipeline
        if self.batch % (dp * micro_batch):
            return f"micro-batches of {micro_batch} do not divide the {self.batch // dp:,} sequences of a replica"
        count = self.batch // (dp * micro_batch)
        if name.kind == "interleaved" and name.group is None and count % pp:
            return f"interleaving takes a multiple of {pp} micro-batches, and there are {count:,}"
        return ""

    def _orders(self, pp: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The schedules of `pp` stages, with the layers of each: 1F1B, and interleaved with every number of chunks."""
        if "schedule" in self.fixed:
            yield from ((name, self.borders(pp, schedule_name(name).chunks) or ()) for name in self.choices["schedule"])
            return
        yield "1f1b", self.borders(pp) or ()
        for chunks in range(2, -(-len(self.model.layer_kinds) // pp) + 1) if pp > 1 else ():
            layers = self.borders(pp, chunks)
            if layers is not None:
                yield str(ScheduleName("interleaved", (chunks,))), layers

    def borders(self, pp: int, chunks: int = 1) -> tuple[int, ...] | None:
        """The layers of each stage: empty if all stages are equal; None if they may not differ (`stage_layers`)."""
        layers = len(self.model.layer_kinds)
        return stage_layers(self.model, pp, chunks) if layers % pp or layers % (pp * chunks) == 0 else None

    def _leaves(self, degrees: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what else a plan states: sharding, recomputation, number formats and overlaps."""
        replicas = degrees["dp"] * degrees["cp"]
        names = "recompute", "offload", "dtype", "precision", "overlap", "dispatcher", *GRAPHS, *PAIRING
        choices = dict(self.choices)
        if degrees["ep"] == 1:  # nothing is exchanged
            choices |= {"dispatcher": ("",), **dict.fromkeys(PAIRING, (None,))}
        for zero, shard in self._sharding(replicas, degrees["tp"]):
            for values in product(*(choices[name] for name in names)):
                leaf = {"zero": zero, "shard": shard, **dict(zip(names, values, strict=True))}
                if self._has_overlap(degrees, leaf):
                    yield leaf

    def _sharding(self, replicas: int, tp: int) -> Iterator[tuple[int, int | None]]:
        """Stages of ZeRO, and the groups that share: all replicas or, of whole weights, those of one node."""
        stages = self.choices["zero"]
        if replicas == 1 and "zero" not in self.fixed:
            stages = stages[:1]
        inside = max(self.system.gpus_per_node // tp, 1)
        for zero in stages:
            if "shard" in self.fixed:
                shards = self.choices["shard"]
                yield from ((zero, one) for one in shards if one is None or (zero and replicas % one == 0))
                continue
            yield zero, None
            if zero == 3 and 1 < inside < replicas and replicas % inside == 0:
                yield zero, inside

    def _has_overlap(self, degrees: Mapping[str, Any], leaf: Mapping[str, Any]) -> bool:
        """Return whether the methods of overlap that a plan names apply to it."""
        if not leaf["overlap"]:
            return True
        try:
            check_overlap(self._make_plan(degrees, leaf), self.system)
        except InputError:
            return False
        return True


def space(
    model: Transformer, system: System, framework: Framework, batch: int, sequence: int, fix: Mapping[str, Any]
) -> Space:
    """The plans of a framework on all GPUs of a system; `fix` gives fields of a plan a value, or a list of values.

    Raises UnknownNameError for a field that no plan has, InputError for degrees or number formats that contradict each
    other or the machine.
    """
    stated = {name: _values(name, value) for name, value in fix.items()}
    choices = {**_usual(model, system, framework), **stated}
    found = Space(model, system, framework, batch, sequence, choices, frozenset(stated))
    _check_fixed(found)
    for graphs, modules in product(*(choices[name] for name in GRAPHS)):
        check_graphs(model, TrainingPlan(cuda_graph_impl=graphs, cuda_graph_modules=modules))
    for dtype, precision in product(choices["dtype"], choices["precision"]):
        TrainingPlan(dtype=dtype, precision=precision)  # raises the InputError of those that contradict each other
        check_trains(dtype, precision, system.gpu)
    return found


def smaller(space: Space, gpus: int) -> Space:
    """Return the same space on fewer or more GPUs like those of the system."""
    system = space.system.with_gpus(gpus)
    usual = _usual(space.model, system, space.framework)
    return replace(space, system=system, choices={**usual, **{name: space.choices[name] for name in space.fixed}})


def _usual(model: Transformer, system: System, framework: Framework) -> dict[str, tuple[Any, ...]]:
    """The values of every field that are tried unless the user states others."""
    all_gpus = tuple(divisors(system.gpus))
    heads = model.attention_heads
    recomputations = _offered_values(RECOMPUTATIONS, framework, _ALL_RECOMPUTATIONS)
    if framework.style.flash:  # which keeps no scores that selective recomputation could drop
        recomputations = tuple(name for name in recomputations if name != "selective")
    return {
        "tp": tuple(tp for tp in all_gpus if tp <= heads),
        "cp": all_gpus,
        "pp": tuple(pp for pp in all_gpus if pp <= len(model.layer_kinds)),
        "dp": all_gpus,
        "ep": tuple(divisors(model.experts)) if model.experts else (1,),
        "sp": (False, True),
        "context": ("ring",),
        "schedule": (),
        "micro_batch": MICRO_BATCHES,
        "zero": _offered_values(STAGES_OF_ZERO, framework, (0, 1, 2, 3)),
        "shard": (None,),
        "recompute": recomputations,
        "offload": ("none",),
        "dtype": ("bf16" if system.gpu.supports("bf16") else "fp16",),
        "precision": ("",),
        "overlap": ({},),
        "dispatcher": ("",),
        **{name: (getattr(_PLAIN, name),) for name in (*GRAPHS, *PAIRING)},
    }


def _other_dispatchers(model: Transformer, system: System, framework: Framework) -> tuple[str, ...]:
    """Return other MoE dispatch libraries than the framework's own choice."""
    if not model.experts or system.gpu.vendor != "nvidia":
        return ()
    return tuple(name for name in _offered_values(DISPATCHERS, framework, ()) if name != framework.dispatcher)


def _offered_values(
    by_name: Mapping[str, tuple[Any, ...]], framework: Framework, otherwise: tuple[Any, ...]
) -> tuple[Any, ...]:
    return next((each for name, each in by_name.items() if framework.name.startswith(name)), otherwise)


def _values(name: str, value: Any) -> tuple[Any, ...]:
    known = [field for field in TrainingPlan.__dataclass_fields__ if field not in _FREE]
    if name in _FREE:
        how = f"give it as the argument {_FREE[name]}" if _FREE[name] else "the planner does not choose it"
        raise InputError(f"fix names '{name}', which is no choice of the search; {how}")
    check_name("field of a plan", name, known)
    # a tuple names the operators that run again, or the modules that graphs hold
    several = list if name in ("recompute", "cuda_graph_modules") else (list, tuple)
    values = tuple(value) if isinstance(value, several) else (value,)
    if not values:
        raise InputError(f"fix gives '{name}' no value; state one, or a list of several")
    if name == "overlap":
        values = tuple(overlap_of(one) if isinstance(one, str) else one for one in values)
        for one in values:
            check_methods(one, "estimate")
    for one in values:
        if name in ("tp", "cp", "pp", "dp", "ep", "micro_batch"):
            check_whole(f"'{name}' of fix", one, 1, 8)
        if name == "shard" and one is not None:
            check_whole("'shard' of fix", one, 1, 8)
        if name in ("sp", *PAIRING) and not isinstance(one, bool):
            raise InputError(f"'{name}' of fix is {one!r}; it must be yes or no, in Python True or False")
    return tuple(map(int, values)) if name == "micro_batch" else values  # numpy's integers overflow


def _check_fixed(space: Space) -> None:
    """Raise InputError for degrees whose product cannot divide, or be, the number of GPUs."""
    named = [axis for axis in _AXES if axis in space.fixed]
    if space.fits_on(space.system.gpus):
        return
    first = [space.choices[axis][0] for axis in named]
    words = " x ".join(f"{axis} {degree}" for axis, degree in zip(named, first, strict=True))
    raise InputError(
        f"fix asks for {words}, which takes {math.prod(first)} GPUs, and the system has {space.system.gpus}; let the "
        f"degrees divide {space.system.gpus}, or give a system of {math.prod(first)} GPUs"
    )
