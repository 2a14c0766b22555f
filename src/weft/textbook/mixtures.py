"""A mixture of parallelisms for each layer, the best for the memory (Galvatron, arXiv:2211.13878), and a random walk.

The walk is FlexFlow's (arXiv:1807.05358): what a search without structure finds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.errors import InputError, check_whole
from weft.graph import DTYPE_BYTES, Collective
from weft.hardware import System
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.options import SUSTAINED
from weft.parallel.check import divisors
from weft.parallel.framework import Framework, framework
from weft.parallel.memory import states
from weft.parallel.plan import Recompute, TrainingPlan
from weft.parallel.rank import RankPart
from weft.run.step.memory import COMMUNICATOR, CONTEXT
from weft.run.step.parts import rank_parts
from weft.run.step.prices import OperatorTimes

FloatArray = npt.NDArray[np.float64]
Kind = Literal["tp", "sdp", "dp"]
"""Ways to use a group of GPUs for a layer: cut it, share its weights among replicas (FSDP), or replicate it."""


@dataclass(frozen=True)
class Mixture:
    """A pipeline of `pp` stages, in each of which kinds of parallelism nest: (kind, degree) from the outermost."""

    pp: int
    levels: tuple[tuple[Kind, int], ...] = ()

    def degree(self, kind: Kind) -> int:
        """GPUs along a kind of parallelism; 1 if the mixture lacks it."""
        return dict(self.levels).get(kind, 1)

    @property
    def replicas(self) -> int:
        """Parts into which a micro-batch is split."""
        return self.degree("dp") * self.degree("sdp")

    def __str__(self) -> str:
        return "-".join(f"{kind}{degree}" for kind, degree in (("pp", self.pp), *self.levels))


def mixtures(gpus: int, *, takeaways: bool = True) -> tuple[Mixture, ...]:
    """The candidates for a layer: every number of stages, and every nesting of kinds of parallelism in a stage.

    Each kind is used at one level at most. With the `takeaways` none mixes plain and sharded data parallelism, of which
    sharded alone moves no more and holds less (arXiv:2211.13878, section 3.2).

    >>> len(mixtures(8, takeaways=False)), len(mixtures(8))
    (34, 22)
    """
    check_whole("gpus", gpus, 1, 8)
    every = (Mixture(pp, levels) for pp in divisors(gpus) for levels in _nestings(gpus // pp, get_args(Kind)))
    return tuple(one for one in every if not takeaways or min(one.degree("dp"), one.degree("sdp")) == 1)


def _nestings(gpus: int, kinds: Sequence[Kind]) -> Iterator[tuple[tuple[Kind, int], ...]]:
    if gpus == 1:
        yield ()
    for kind in kinds:
        others = [other for other in kinds if other != kind]
        for degree in (one for one in divisors(gpus) if one > 1):
            for inner in _nestings(gpus // degree, others):
                yield ((kind, degree), *inner)


@dataclass(frozen=True)
class LayerTables:
    """What each layer of a stage costs under each candidate: `seconds` and `bytes` as arrays [layer, candidate].

    `change` [candidate, candidate] is the time of passing activations from a layer to the next one's layout.
    """

    seconds: FloatArray
    bytes: FloatArray
    change: FloatArray
    capacity: float

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of candidates of each layer."""
        return (self.seconds.shape[1],) * len(self.seconds)

    def cost(self, chosen: Sequence[int]) -> float:
        """Seconds of a micro-batch with one candidate for each layer; infinite if the memory does not hold them."""
        rows, picked = np.arange(len(chosen)), np.asarray(chosen)
        if self.bytes[rows, picked].sum() > self.capacity:
            return math.inf
        return float(self.seconds[rows, picked].sum() + self.change[picked[:-1], picked[1:]].sum())


@dataclass(frozen=True)
class Layered:
    """One candidate for each layer, and the seconds of a micro-batch."""

    chosen: tuple[int, ...]
    seconds: float


def layerwise(tables: LayerTables, units: int = 512) -> Layered:
    """The fastest candidates whose bytes fit: a dynamic program over layers and memory, O(L E S^2).

    L layers, S candidates; the capacity is divided into E = `units`, to which the bytes of a layer are rounded up, so
    the answer always fits, and is exact if bytes are whole units. Raises InputError if nothing fits.
    """
    layers, candidates = tables.seconds.shape
    need = np.ceil(tables.bytes * units / tables.capacity - 1e-9).astype(int)
    best = np.full((units + 1, candidates), math.inf)
    for choice in range(candidates):
        best[need[0, choice] :, choice] = tables.seconds[0, choice]
    came = np.zeros((layers, units + 1, candidates), dtype=np.int16)
    for layer in range(1, layers):
        passed = best[:, :, None] + tables.change
        came[layer], least = passed.argmin(1), passed.min(1)
        best = np.full_like(best, math.inf)
        for choice in range(candidates):
            used = need[layer, choice]
            if used <= units:
                best[used:, choice] = least[: units + 1 - used, choice] + tables.seconds[layer, choice]
    last = int(best[units].argmin())
    if math.isinf(best[units, last]):
        raise InputError(f"no candidates for {layers} layers fit {tables.capacity:g} bytes; give more stages or GPUs")
    return _traced(tables, need, came, last, float(best[units, last]))


def _traced(
    tables: LayerTables, need: npt.NDArray[np.int_], came: npt.NDArray[np.int16], last: int, seconds: float
) -> Layered:
    left, chosen = came.shape[1] - 1, [last]
    for layer in range(len(need) - 1, 0, -1):
        left -= int(need[layer, chosen[-1]])
        chosen.append(int(came[layer, left, chosen[-1]]))
    return Layered(tuple(reversed(chosen)), seconds)


@dataclass(frozen=True)
class Mixed:
    """A pipeline whose layers each have a mixture, and its step's time: sum t_i + (m - 1) max t_i [s].

    `layers` are those of each stage, `mixtures` one for each layer in order; `tables` hold what the search chose from.
    """

    pp: int
    layers: tuple[int, ...]
    mixtures: tuple[Mixture, ...]
    stages: tuple[float, ...]
    seconds: float
    tables: tuple[LayerTables, ...]


def galvatron(
    model: Transformer | str | Path,
    system: Described,
    batch: int,
    micro_batches: int,
    *,
    sequence: int | None = None,
    used: Framework | str = "megatron-core",
    recompute: Recompute = "none",
    dtype: str = "bf16",
) -> tuple[Mixed, ...]:
    """The best mixture for each layer, for every number of stages that fits, fastest first.

    Stages hold equal numbers of layers; each stage is a dynamic program over its layers and memory. Plain data
    parallelism reduces gradients once a step, sharded gathers weights twice and scatters gradients once a micro-batch.
    Sends between stages are left out. Raises InputError if nothing fits.
    """
    found = load_model(model)
    where = hardware.system(system)
    check_whole("micro_batches", micro_batches, 1, 8)
    if batch % micro_batches:
        raise InputError(f"batch {batch} does not divide into {micro_batches} micro-batches; give a divisor of it")
    how = framework(used) if isinstance(used, str) else used
    base = TrainingPlan(batch=batch // micro_batches, sequence=sequence or found.sequence_length, dtype=dtype)
    layered = _Layered(found, where, base, micro_batches, how, recompute)
    answers = [one for pp in divisors(where.gpus) if (one := layered.piped(pp)) is not None]
    if not answers:
        raise InputError(f"{found.title} does not fit {where.gpus} x {where.gpu.name} under any mixture; add GPUs")
    return tuple(sorted(answers, key=lambda one: one.seconds))


@dataclass(frozen=True)
class _Layered:
    """Tables of a model's layers under mixtures, from Weft's closed forms."""

    model: Transformer
    system: System
    base: TrainingPlan
    micro_batches: int
    framework: Framework
    recompute: Recompute

    def piped(self, pp: int) -> Mixed | None:
        """The best mixtures with so many stages; None if nothing fits, or stages cannot be equal."""
        kinds, each = self.model.layer_kinds, len(self.model.layer_kinds) // pp
        candidates = [one for one in mixtures(self.system.gpus) if one.pp == pp and self._divides(one)]
        if len(kinds) % pp or not candidates:
            return None
        costs = [_Candidate(self, one) for one in candidates]
        tables, chosen = [], []
        for stage in range(pp):
            names = [[name] for name in kinds[stage * each : (stage + 1) * each]]
            if stage == 0:
                names[0].insert(0, "embedding")
            if stage == pp - 1:
                names[-1].append("head")
            tables.append(self._tables(costs, names, pp - stage))
            try:
                chosen.append(layerwise(tables[-1]))
            except InputError:
                return None
        times = tuple(one.seconds for one in chosen)
        total = sum(times) + (self.micro_batches - 1) * max(times)
        picked = tuple(candidates[at] for one in chosen for at in one.chosen)
        return Mixed(pp, (each,) * pp, picked, times, total, tuple(tables))

    def _divides(self, one: Mixture) -> bool:
        heads = math.gcd(self.model.attention_heads, self.model.key_heads)
        return self.base.batch % one.replicas == 0 and heads % one.degree("tp") == 0

    def _tables(self, costs: Sequence[_Candidate], names: Sequence[Sequence[str]], flight: int) -> LayerTables:
        seconds = np.array([[sum(map(one.seconds, layer)) for one in costs] for layer in names])
        held = np.array([[sum(one.bytes(name, flight) for name in layer) for one in costs] for layer in names])
        change = np.array([[first.passing(second) for second in costs] for first in costs])
        working = max(one.parts[name].kept.backward for one in costs for layer in names for name in layer)
        capacity = self.system.gpu.memory.capacity - CONTEXT - 3 * COMMUNICATOR - working
        return LayerTables(seconds, held, change, max(capacity, 1.0))


class _Candidate:
    """One mixture for any part of a model: its time and memory on a rank."""

    def __init__(self, of: _Layered, mixture: Mixture) -> None:
        self.of, self.mixture = of, mixture
        tp, replicas = mixture.degree("tp"), mixture.replicas
        kinds = [kind for kind, _ in mixture.levels]
        inside = ("dp", "cp", "tp", "pp") if kinds and kinds[0] == "tp" and len(kinds) > 1 else ("tp", "cp", "dp", "pp")
        batch = of.base.batch
        zero = 3 if mixture.degree("sdp") > 1 else of.framework.zero
        self.plan = TrainingPlan(
            tp=tp,
            dp=replicas,
            batch=batch,
            micro_batch=batch // replicas,
            sequence=of.base.sequence,
            zero=zero,
            recompute=of.recompute,
            dtype=of.base.dtype,
            order=inside,  # type: ignore[arg-type]
        )
        self.prices = OperatorTimes(of.system, self.plan, SUSTAINED)
        self.parts = rank_parts(of.model, self.plan, of.framework)
        self._known: dict[str, float] = {}

    def seconds(self, name: str) -> float:
        """Seconds of a part in a micro-batch: its passes in sequence, and its share of collectives of weights."""
        if name not in self._known:
            part = self.parts[name]
            graphs = (part.forward, part.backward, part.recompute)
            passes = sum(sum(self.prices.graph(graph).values()) for graph in graphs if graph is not None)
            self._known[name] = passes + self._of_weights(part)
        return self._known[name]

    def _of_weights(self, part: RankPart) -> float:
        if self.mixture.replicas == 1 or not part.parameters:
            return 0.0
        weights, gradients = part.parameters * DTYPE_BYTES[self.plan.dtype], self.of.framework.reduced
        reduced = part.parameters * DTYPE_BYTES[gradients]
        if self.plan.shards_weights:
            return 2 * self._moved("all_gather", weights, self.plan.dtype) + self._moved(
                "reduce_scatter", reduced, gradients
            )
        return self._moved("all_reduce", reduced, gradients) / self.of.micro_batches

    def _moved(self, kind: str, size: int, dtype: str) -> float:
        ranks = self.mixture.replicas
        return self.prices.of(Collective(kind, max(size, ranks), ranks, dtype), "dp")

    def bytes(self, name: str, flight: int) -> float:
        """Bytes of a part on a rank with so many micro-batches in flight."""
        part = self.parts[name]
        held = sum(states(part.parameters, self.plan, self.of.framework, part.experts).values())
        return held + flight * part.kept.bytes

    def passing(self, after: _Candidate) -> float:
        """Seconds of gathering what the next layer's ranks see of a micro-batch; its gradient goes the other way.

        Ranks that see fewer sequences slice what they have.
        """
        first, second = self.mixture.replicas, after.mixture.replicas
        if first == second:
            return 0.0
        few, ranks = min(first, second), max(first, second) // min(first, second)
        plan, model = self.plan, self.of.model
        size = plan.batch // few * plan.sequence * model.hidden * DTYPE_BYTES[plan.dtype]
        more = self if first > second else after
        return more.prices.of(Collective("all_gather", size, ranks, plan.dtype), "dp")


@dataclass(frozen=True)
class Walk:
    """The best configuration that the walks found, its cost, and how they went.

    `accepted` is the share of proposals that were taken, `evaluations` counts costs, `ends` are the best costs of each
    start.
    """

    best: tuple[int, ...]
    cost: float
    accepted: float
    evaluations: int
    ends: tuple[float, ...]

    def distance(self, optimum: float) -> float:
        """How much more than the optimum the best costs, as a share of it."""
        return self.cost / optimum - 1


def metropolis(
    cost: Callable[[Sequence[int]], float],
    choices: Sequence[int],
    *,
    starts: int = 4,
    steps: int = 1000,
    temperature: float = 0.01,
    seed: int = 0,
) -> Walk:
    """Walk from several random configurations, taking worse ones with probability exp(-increase / temperature).

    A configuration picks one of so many `choices` at each place; a step proposes another choice at one place. The
    temperature is a share of the walk's present cost (assumed; 0.001 to 0.1 are sensible). An infinite cost marks what
    cannot be; walks that start there take anything. The same seed gives the same walks. O(starts x steps) costs. Raises
    InputError for places without a choice.

    >>> metropolis(lambda chosen: 1 + sum(chosen), [3, 3]).cost
    1
    """
    for name, value in (("starts", starts), ("steps", steps)):
        check_whole(name, value, 1, 4)
    if not choices or min(choices) < 1:
        raise InputError("a place has no choice; give at least one place, with at least one choice each")
    if temperature <= 0:
        raise InputError(f"temperature is {temperature:g}; give a share above 0, such as 0.01")
    walks = [_walk(cost, choices, steps, temperature, random.Random(seed + start)) for start in range(starts)]
    best = min(walks, key=lambda walk: walk[1])
    taken = sum(walk[2] for walk in walks)
    return Walk(best[0], best[1], taken / (starts * steps), starts * (steps + 1), tuple(walk[1] for walk in walks))


def _walk(
    cost: Callable[[Sequence[int]], float], choices: Sequence[int], steps: int, temperature: float, draw: random.Random
) -> tuple[tuple[int, ...], float, int]:
    """The best configuration of one walk, its cost, and how many proposals were taken."""
    now = [draw.randrange(count) for count in choices]
    here = cost(now)
    best, least, taken = tuple(now), here, 0
    for _ in range(steps):
        place = draw.randrange(len(choices))
        before, now[place] = now[place], draw.randrange(choices[place])
        there = cost(now)
        if there <= here or draw.random() < math.exp((here - there) / (temperature * here)):
            here, taken = there, taken + 1
            if here < least:
                best, least = tuple(now), here
        else:
            now[place] = before
    return best, least, taken
