"""Which operators of a layer to compute again under a memory budget: the cheapest sets, and what each costs in a step.

For one layer the choice is a knapsack whose items need each other: an operator that runs again needs its inputs, which
are kept or run again as well. `frontier` solves it as an integer program by SciPy's HiGHS: a binary unknown for each
operator and for each output that is kept only for operators that run again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.core.units import Dimension, parse
from weft.graph import Graph
from weft.hardware import System
from weft.hardware.resolve import Described
from weft.models import Transformer
from weft.models.block import LayerOp, Tokens, layer
from weft.models.parallel.cut import cut, local
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import saved_by_operator
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import narrow_ops
from weft.models.parallel.recompute import OperatorSaves, extra_sources, saved_bytes
from weft.plan.program import LinearProgram
from weft.step.clock import train
from weft.step.durations import OperatorTimes
from weft.step.memory import memory
from weft.step.queries import resolve_inputs
from weft.step.rank_parts import rank_parts


@dataclass(frozen=True)
class Layers:
    """`count` equal layers of a stage: what each operator leaves [bytes], and the seconds of its passes.

    Those of the forward pass are what it takes again, those of the `backward` pass its gradients. Operators outside
    `free` are kept: those that exchange tokens, and the last, whose output is the next layer's input.
    """

    saved: tuple[OperatorSaves, ...]
    seconds: Mapping[str, float]
    free: frozenset[str]
    count: int = 1
    backward: Mapping[str, float] = field(default_factory=dict)

    def bytes(self, again: Sequence[str]) -> int:
        """Return what one micro-batch leaves in all of these layers."""
        return self.count * sum(saved_bytes(self.saved, again).values())

    def added_seconds(self, again: Sequence[str]) -> float:
        """Return the seconds of the operators that run again in all of these layers."""
        return self.count * sum(self.seconds[one.name] for one in self.saved if one.name in again)


def cheapest(kinds: Sequence[Layers], budget: float) -> tuple[str, ...] | None:
    """Return the operators to run again that take the least time and leave at most `budget` bytes; None if none do.

    The same names run again in every kind of layer. HiGHS keeps to limits within about 1e-6 of the sizes: a set that
    exceeds the budget by as much is refused, and the budget lowered by what it exceeds.
    """
    fixed = {name for kind in kinds for name in kind.seconds if name not in kind.free}
    free = [name for name in _order(kinds) if name not in fixed]
    costs = np.array([sum(kind.added_seconds([name]) for kind in kinds) for name in free])
    program, limit = LinearProgram(), math.floor(budget)
    # A hair for each operator, so that none runs again for nothing.
    again = dict(zip(free, program.unknowns(costs / (costs.max(initial=0.0) or 1.0) + 1e-9).tolist(), strict=True))
    places = [(k, source) for k, kind in enumerate(kinds) for source in extra_sources(kind.saved)]
    extra = dict(zip(places, program.unknowns(np.zeros(len(places))).tolist(), strict=True))
    weights, least = _weights(kinds, again, extra)
    program.row(weights, high=limit - least)
    for (k, source), column in extra.items():  # an operator runs again only if what it reads is kept or runs again
        saved = kinds[k].saved
        for reader in (one for one in saved if source in dict(one.kept) and one.name in again):
            before = {again[saved[source].name]: -1.0} if saved[source].name in again else {}
            program.row({again[reader.name]: 1.0, column: -1.0, **before}, high=0.0)
    found = program.solve()
    if found is None:
        return None
    names = tuple(name for name in _order(kinds) if name in again and found[again[name]] > 0.5)
    over = sum(kind.bytes(names) for kind in kinds) - limit
    return names if over <= 0 else cheapest(kinds, limit - over)


def _weights(
    kinds: Sequence[Layers], again: Mapping[str, int], extra: Mapping[tuple[int, int], int]
) -> tuple[dict[int, float], float]:
    """Return the bytes that each unknown adds, by column, and those that are kept without any."""
    weights: Counter[int] = Counter()
    least = 0.0
    for k, kind in enumerate(kinds):
        for saved in kind.saved:
            own = [
                (saved.name, saved.own),
                *((kind.saved[at].name if at >= 0 else "", size) for at, size in saved.kept),
            ]
            least += kind.count * sum(size for _, size in own)
            for name, size in own:
                if name in again:
                    weights[again[name]] -= kind.count * size
        for (place, source), column in extra.items():
            if place == k:
                weights[column] = kind.count * kind.saved[source].output
    return {column: float(size) for column, size in weights.items()}, least


def _order(kinds: Sequence[Layers]) -> list[str]:
    return list(dict.fromkeys(one.name for kind in kinds for one in kind.saved))


def frontier(kinds: Sequence[Layers], least: float = 0.01) -> tuple[tuple[str, ...], ...]:
    """Return the Pareto-optimal sets of operators in time and memory, from all kept to the least memory.

    Each set leaves less than the one before it by at least the part `least` of what all layers keep.
    """
    whole = sum(kind.bytes(()) for kind in kinds)
    found: list[tuple[str, ...]] = [()]
    while True:
        left = sum(kind.bytes(found[-1]) for kind in kinds)
        names = cheapest(kinds, left - max(least * whole, 1))
        if names is None:
            return tuple(found)
        found.append(names)


def segments(layers: int, each: int | None = None) -> tuple[float, float]:
    """Textbook checkpointing: memory in units of a layer, and time in forward and backward passes of three, of both.

    Every `each`-th layer keeps its input, and the layers of one segment are recomputed at once (None: the best,
    sqrt(layers)): layers / each + each units, and 4/3 of the time with a backward pass of two forwards
    (arXiv:1604.06174).

    >>> [round(units, 1) for units in (segments(96)[0], segments(96, 10)[0], segments(96, 1)[0])]
    [19.6, 19.6, 97.0]
    """
    if each is not None and not 1 <= each <= layers:
        raise InputError(f"segments have {each} layers of {layers}; give 1 to {layers}, or leave it out")
    length = math.sqrt(layers) if each is None else each
    return layers / length + length, 4 / 3


@dataclass(frozen=True)
class Policy:
    """Recomputation of a plan: its `recompute`, the bytes that layers keep of a micro-batch, peak and step time.

    `saved` is on the fullest GPU [bytes], `peak` its memory [bytes], `seconds` the step's [s].
    """

    recompute: str | tuple[str, ...]
    saved: float
    peak: float
    seconds: float

    @property
    def words(self) -> str:
        """The operators that run again, or the name of the policy."""
        return self.recompute if isinstance(self.recompute, str) else ", ".join(self.recompute)


@dataclass(frozen=True, repr=False)
class Recomputation(Answer):
    """What to compute again so that a plan's peak stays within `budget` bytes.

    `policies` are the Pareto-optimal sets of operators in time and memory, from all kept to the least memory;
    `named` are the policies that frameworks offer. `chosen` is the fastest of all that fits, None if none does.
    """

    kind = "recomputation"

    model: Transformer
    system: System
    plan: TrainingPlan
    budget: float
    policies: tuple[Policy, ...]
    named: tuple[Policy, ...]

    @property
    def base(self) -> Policy:
        """Nothing recomputed."""
        return self.named[0]

    @property
    def chosen(self) -> Policy | None:
        """The fastest policy that fits."""
        fitting = (one for one in (*self.named, *self.policies) if one.peak <= self.budget)
        return min(fitting, key=lambda one: one.seconds, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return every policy with its memory [bytes] and step time [s], and the chosen one's place in the plan."""

        def record(one: Policy) -> dict[str, Any]:
            how = one.recompute if isinstance(one.recompute, str) else list(one.recompute)
            return {
                "recompute": how,
                "saved_bytes": one.saved,
                "peak_bytes": one.peak,
                "step_time_s": one.seconds,
                "fits": one.peak <= self.budget,
            }

        chosen = self.chosen
        return {
            "model": self.model.name,
            "system": self.system.label,
            "plan": self.plan.to_dict(),
            "budget_bytes": self.budget,
            "chosen": None if chosen is None else record(chosen),
            "policies": [record(one) for one in self.policies],
            "named": [record(one) for one in self.named],
        }


NAMED = ("none", "selective", "operators", "full")
"""The policies of frameworks."""


def recompute(
    model: Transformer | str | Path,
    system: Described,
    budget: str | None = None,
    plan: TrainingPlan | None = None,
    *,
    framework: Framework | str | None = None,
    options: RunOptions = SUSTAINED,
    **stated: Any,
) -> Recomputation:
    """Return what to compute again in the backward pass so that no GPU needs more than `budget`, for the least time.

    The budget is a size such as "60 GB" (None: the memory of a GPU); other arguments are those of `weft.memory`. Times
    are those of whole steps in closed form. Raises what `weft.step` raises, and InputError for layers whose operators
    do not follow one another.

    >>> found = recompute("gpt-3", "64xa100", "65.3 GB", tp=8, pp=8, batch=64)
    >>> found.chosen.recompute
    ('norm1', 'norm2', 'activation')
    """
    found, where, plan, used, _, _ = resolve_inputs(model, system, plan, framework, stated)
    room = float(where.gpu.memory.capacity) if budget is None else parse(budget, Dimension.BYTES)

    def policy(how: Any, kinds: Sequence[Layers]) -> Policy:
        other = replace(plan, recompute=how)
        held = memory(found, where, other, used)
        fullest = held.devices[held.fullest]
        saved = sum(size for name, size in fullest.saved.items() if name.partition(":")[0] in found.layer_kinds)
        return Policy(how, saved, held.peak, train(found, where, other, used, options, "estimate").seconds)

    kinds = stage_layers(found, where, plan, used, options)
    sets = frontier(kinds)[1:]
    return Recomputation(
        found,
        where,
        plan,
        room,
        tuple(policy(names, kinds) for names in sets),
        tuple(policy(name, kinds) for name in NAMED),
    )


def stage_layers(
    model: Transformer, system: System, plan: TrainingPlan, framework: Framework, options: RunOptions = SUSTAINED
) -> list[Layers]:
    """Return the kinds of layers of the first stage, each with its number: what its operators leave, and take again."""
    plain = replace(plan, recompute="none")
    prices = OperatorTimes(system, plain, options)
    source = model.sequence_length if model.encoder_layers else 0
    tokens = Tokens(plan.micro_batch, plan.sequence, plan.cp, source)
    parts = rank_parts(model, plain, framework)
    stages = plan.pp * plan.chunks
    counts = Counter(model.layer_kinds[: -(-len(model.layer_kinds) // stages)] if stages > 1 else model.layer_kinds)
    found = []
    for kind, count in counts.items():
        pieces = narrow_ops(layer(model, kind, tokens, framework.style, plan.dtype), plan.recipe, framework.attention)
        saved = saved_by_operator(pieces, [local(cut(piece, plan), plan) for piece in pieces], plain)
        seconds, gradients = (
            _by_operator(graph, pieces, prices) for graph in (parts[kind].forward, parts[kind].backward)
        )
        fixed = {piece.name for piece in pieces if piece.cut in ("dispatch", "combine") or piece.beside}
        free = frozenset(seconds) - fixed - {pieces[-1].name}
        found.append(Layers(tuple(saved), seconds, free, count, gradients))
    return found


def _by_operator(graph: Graph, pieces: Sequence[LayerOp], prices: OperatorTimes) -> dict[str, float]:
    """Return the seconds of each operator of a pass with its collectives, by name."""
    seconds = dict.fromkeys((piece.name for piece in pieces), 0.0)
    for node in graph:
        seconds[node.operator] += prices.of(node.op, node.stream) + prices.residual(node.op)
    return seconds
