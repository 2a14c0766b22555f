"""Parts of a model in a row on one rank, each after its weights were gathered where they are sharded (FSDP)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft.graph import Collective, Edge
from weft.result.step import Chunk, PartTimes, Pass, added
from weft.run.step.spans import COMPUTE, CONTENTION, shared

DATA = "dp"
"""The stream of the collectives among replicas."""
PassSlowdown = Callable[[Sequence[Pass], Collective], tuple[float, float]]
"""How many times longer passes of operators and a collective take while they run at once."""


@dataclass(frozen=True)
class Moved:
    """A collective among replicas, and its time alone [s]; None and 0 where nothing is moved."""

    op: Collective | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Gathering:
    """How the weights of each part are gathered, and its gradients reduced and scattered.

    The last part keeps its weights from the forward to the backward pass if `keep_last`; with `keep` all do.
    `slowdown` says what the passes and these collectives cost each other (None: nothing). They run `ahead`, beside the
    pass before, or in sequence with all passes.
    """

    gather: Sequence[Moved]
    scatter: Sequence[Moved]
    keep: bool = False
    keep_last: bool = True
    slowdown: PassSlowdown | None = None
    ahead: bool = True


@dataclass(frozen=True)
class _Task:
    """Passes over a part, or a collective for it."""

    id: str
    stream: str
    after: tuple[str, ...]
    passes: tuple[Pass, ...] = ()
    moved: Moved = Moved()

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(map(Edge, self.after))

    @property
    def seconds(self) -> float:
        return self.moved.seconds + sum(one.seconds for one in self.passes)


def chunk(
    parts: Sequence[PartTimes], gathering: Gathering | None = None, launch: float = 0.0, synchronous: bool = False
) -> Chunk:
    """The passes over parts in their order, the backward ones in reverse.

    The host spends `launch` on each kernel [s]; it runs ahead of the GPU as far as the pass allows, or, `synchronous`,
    waits for each kernel before it launches the next.
    """
    alike = Counter(map(id, parts))
    each = [(part, alike[key]) for key, part in {id(part): part for part in parts}.items()]
    forward = sum((part.forward * count for part, count in each), Pass())
    backward = sum(((part.recompute + part.backward) * count for part, count in each), Pass())
    weight = sum((part.weight * count for part, count in each), Pass())
    if gathering is not None:
        forward = _beside(forward, _forward(parts, gathering), gathering.slowdown)
        backward = _beside(backward, _backward(parts, gathering), gathering.slowdown, weight.seconds)
    return Chunk(tuple(parts), *(_launched(one, launch, synchronous) for one in (forward, backward, weight)))


def _launched(alone: Pass, launch: float, synchronous: bool) -> Pass:
    """A pass that takes no less than the host needs to launch its kernels, or both in turn."""
    gap = alone.launches * launch - (0.0 if synchronous else alone.seconds)
    return alone if gap <= 0 else alone + Pass(gap, {"launch gaps": gap})


def _beside(alone: Pass, tasks: Sequence[_Task], slowdown: PassSlowdown | None, weight: float = 0.0) -> Pass:
    """A pass whose tasks wait for weights or gradients of other ranks, and share the GPU with their collectives.

    `weight` is the time of the passes over gradients of weights among the tasks, which `alone` leaves out [s].
    """
    known: dict[tuple[int, ...], tuple[float, float]] = {}

    def slowed(computing: _Task, moving: _Task) -> tuple[float, float]:
        if slowdown is None or moving.moved.op is None or not computing.passes:
            return 1.0, 1.0
        key = id(moving.moved.op), *map(id, computing.passes)
        if key not in known:
            known[key] = slowdown(computing.passes, moving.moved.op) if computing.seconds else (1.0, 1.0)
        return known[key]

    times = shared(tasks, {task.id: task.seconds for task in tasks}, slowed)
    end = max(stop for _, stop in times.values())
    busy = {stream: sum(times[t.id][1] - times[t.id][0] for t in tasks if t.stream == stream) for stream in _STREAMS}
    contention = busy[COMPUTE] - alone.seconds - weight
    exposed = end - busy[COMPUTE]
    more = {"exposed dp": exposed, CONTENTION: contention}
    parts = added(alone.parts, {name: value for name, value in more.items() if value > 1e-12})
    hidden = added(alone.hidden, {DATA: busy[DATA] - exposed})
    return replace(alone, seconds=end - weight, parts=parts, hidden=hidden, times=times)


_STREAMS = COMPUTE, DATA


def _forward(parts: Sequence[PartTimes], gathering: Gathering) -> list[_Task]:
    """The forward passes and what gathers their weights.

    While a part runs, the next one's weights are gathered: two parts are whole at once (FSDP's rate limiter).
    """
    tasks = []
    for at, (part, moved) in enumerate(zip(parts, gathering.gather, strict=True)):
        last = at - 2 if gathering.ahead else at - 1
        before = (f"pass {last}",) if last >= 0 else ()
        tasks.append(_Task(f"gather {at}", DATA, before, moved=moved))
        tasks.append(_Task(f"pass {at}", COMPUTE, (f"gather {at}",), (part.forward,)))
    return tasks


def _backward(parts: Sequence[PartTimes], gathering: Gathering) -> list[_Task]:
    """The backward passes and their collectives.

    When the backward pass of a part begins, the weights of the next one are gathered; when it ends, its gradients are
    scattered, before the gather that follows: one communicator runs them in this order.
    """
    gather = [Moved() if gathering.keep else moved for moved in gathering.gather]
    if gathering.keep_last:
        gather[-1] = Moved()
    last = len(parts) - 1
    tasks = [_Task(f"gather {last}", DATA, (), moved=gather[last])]
    for at in range(last, -1, -1):
        part = parts[at]
        before: tuple[str, ...] = (f"gather {at}",)
        moves = [_Task(f"scatter {at}", DATA, (f"pass {at}",), moved=gathering.scatter[at])]
        if at:
            after = f"begin {at}" if gathering.ahead else f"pass {at}"
            moves.insert(0, _Task(f"gather {at - 1}", DATA, (after,), moved=gather[at - 1]))
        if at < last and not gathering.ahead:
            before = (*before, f"scatter {at + 1}")
        tasks += [
            _Task(f"begin {at}", COMPUTE, before),
            _Task(f"pass {at}", COMPUTE, (), (part.recompute, part.backward, part.weight)),
            *moves,
        ]
    return tasks
