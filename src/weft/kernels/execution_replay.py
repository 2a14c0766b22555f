"""Replay of an execution plan on real numbers: is its result right, does every wait end, are all accesses ordered?

Workgroups run step by step, each as far as it can. Every piece of a buffer carries the number that a rank put there,
the ranks that are in its sum, and who wrote and read it last; vector clocks say what signals, packets, barriers order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.core.units import format_bytes
from weft.graph.execution_plan import Channel, ExecutionPlan
from weft.kernels.execution_steps import Action, ByteRange, ExpandedPlan, Motion

LARGEST = 1 << 20
"""Most pieces of a rank's buffer that are replayed one by one; more of them are replayed at a smaller size."""
_Place = tuple[int, int, int]
"""Rank, workgroup and number of an action."""


class _Cells(NamedTuple):
    """A memory: the number in each piece, how often each rank's data is in it, and who wrote and read it last."""

    value: npt.NDArray[np.int64]
    held: npt.NDArray[np.int16]
    writer: npt.NDArray[np.int64]
    reader: npt.NDArray[np.int64]


class _MotionEvent(NamedTuple):
    """A read (motion -1), or the write of a target of a motion, and what was known to have happened by then."""

    place: _Place
    motion: int
    target: int
    clock: npt.NDArray[np.int64]


@dataclass
class Order:
    """What a replay found: for each action, the counts that it waits for, and the packets that it reads.

    `signals[a]` is the number of signals on each of its channels with which action `a` goes on, `arrivals[a]` that of
    workgroups at its barrier, `releases[a]` that of releases of each of its semaphores, and `packets[a]` are
    the actions, with the number of the motion and target, that wrote packets that it reads.
    """

    signals: dict[_Place, tuple[int, ...]] = field(default_factory=dict)
    arrivals: dict[_Place, int] = field(default_factory=dict)
    releases: dict[_Place, tuple[int, ...]] = field(default_factory=dict)
    packets: dict[_Place, tuple[tuple[_Place, int, int], ...]] = field(default_factory=dict)


@lru_cache(maxsize=16)
def replay_plan(plan: ExecutionPlan, bytes_: int) -> Order:
    """Return the order of a plan's actions for a collective of `bytes_`, once its result is shown to be right.

    Raises InputError that names the step for a wait that never ends, for accesses that nothing orders, and for a result
    that is not the plan's collective.
    """
    whole = ExpandedPlan(plan, bytes_)
    if whole.bytes // _grain(whole) > LARGEST and not plan.pipelined:
        whole = ExpandedPlan(replace(plan, sizes=(0, bytes_)), min(plan.least_even, bytes_))
    return _Replay(whole).run()


class _Replay:
    """The state of a replay: memories, signals, semaphores, barriers, clocks."""

    def __init__(self, whole: ExpandedPlan) -> None:
        self.whole, self.plan = whole, whole.plan
        self.grain = _grain(whole)
        if whole.bytes // self.grain > LARGEST:
            raise InputError(
                f"{format_bytes(whole.bytes)} in pieces of {self.grain} B are too many to replay the plan "
                f"'{whole.plan.name}'; choose a size that all its chunks divide, such as a power of two"
            )
        plan = self.plan
        self.blocks = [(rank, block) for rank, blocks in enumerate(whole.actions) for block in range(len(blocks))]
        self.number = {block: number for number, block in enumerate(self.blocks)}
        self.clock = np.zeros((len(self.blocks), len(self.blocks)), dtype=np.int64)
        self.memory = {
            (rank, name, packets): self._cells(size)
            for rank in range(plan.ranks)
            for name, size in whole.memories(rank).items()
            for packets in (False, True)
            if not packets or name == "scratch" or plan.packets
        }
        self.events: list[_MotionEvent] = []
        self.sent: dict[tuple[int, Channel], list[Any]] = defaultdict(list)
        self.taken: dict[tuple[int, Channel], int] = defaultdict(int)
        self.freed: dict[tuple[int, int], list[Any]] = defaultdict(list)
        self.held: dict[tuple[int, int], int] = defaultdict(int)
        self.came: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.at = dict.fromkeys(self.blocks, 0)
        self.order = Order()
        self.given: dict[int, npt.NDArray[np.int64]] = {}

    def _cells(self, size: int) -> _Cells:
        count = -(-size // self.grain)
        never = np.full(count, -1, dtype=np.int64)
        return _Cells(np.zeros(count, np.int64), np.zeros((count, self.plan.ranks), np.int16), never, never.copy())

    def run(self) -> Order:
        self._fill()
        going = True
        while going:
            going = False
            for block in self.blocks:
                while self.at[block] < len(self._actions(block)) and self._act(block):
                    going = True
        self._check_ends()
        self._check_result()
        return self.order

    def _actions(self, block: tuple[int, int]) -> tuple[Action, ...]:
        return self.whole.actions[block[0]][block[1]]

    # -- one action

    def _act(self, block: tuple[int, int]) -> bool:
        """Carry out a workgroup's next action, if nothing is missing; returns whether it did."""
        rank, number = block[0], self.at[block]
        action, place = self._actions(block)[number], (*block, number)
        if self._missing(rank, action.step, block) or not self._packets_here(rank, action):
            return False
        me = self.number[block]
        self._take(rank, action, place, me)
        self.clock[me, me] += 1
        for index, motion in enumerate(action.motions):
            self._move(rank, action, motion, place, index, me)
        for channel in action.step.signals:
            self.sent[channel.peer, Channel(channel.kind, rank, channel.number)].append(self.clock[me].copy())
        for one in action.step.releases:
            self.freed[rank, one].append(self.clock[me].copy())
        self.at[block] += 1
        return True

    def _missing(self, rank: int, step: Any, block: tuple[int, int]) -> str:
        """Return what a step waits for and has not got, in words; empty if nothing."""
        for channel, times in Counter(step.waits).items():
            if self.taken[rank, channel] + times > len(self.sent[rank, channel]):
                count, number = self.taken[rank, channel] + times, channel.number
                return f"signal {count} of rank {channel.peer} over {channel.kind} channel {number} between the two"
        for one, times in Counter(step.acquires).items():
            if self.held[rank, one] + times > len(self.freed[rank, one]) + self._initial(rank, one):
                return f"a release of semaphore {one}"
        if step.barrier is not None:
            number, width = step.barrier
            came, me = self.came[rank, number], self.number[block]
            mine = [turn for turn, who in enumerate(came) if who == me]
            if not mine or mine[-1] // width < self._turns(block, number):
                came.append(me)
                mine.append(len(came) - 1)
            if len(came) < (mine[-1] // width + 1) * width:
                here = len(came) - mine[-1] // width * width
                return f"barrier {number}, where {here} of {width} threadblocks are"
        return ""

    def _turns(self, block: tuple[int, int], barrier: int) -> int:
        """Return how often a workgroup has passed a barrier."""
        before = self._actions(block)[: self.at[block]]
        return sum(action.step.barrier is not None and action.step.barrier[0] == barrier for action in before)

    def _initial(self, rank: int, semaphore: int) -> int:
        values = self.plan.semaphores[rank] if rank < len(self.plan.semaphores) else ()
        return values[semaphore] if 0 <= semaphore < len(values) else 0

    def _take(self, rank: int, action: Action, place: _Place, me: int) -> None:
        """Note with which counts a step goes on, and what it is ordered after."""
        step = action.step
        if step.waits:
            for channel in step.waits:
                np.maximum(self.clock[me], self.sent[rank, channel][self.taken[rank, channel]], out=self.clock[me])
                self.taken[rank, channel] += 1
            self.order.signals[place] = tuple(self.taken[rank, channel] for channel in step.waits)
        if step.acquires:
            for one in step.acquires:
                self.held[rank, one] += 1
                before = self.held[rank, one] - self._initial(rank, one)
                if before > 0:
                    np.maximum(self.clock[me], self.freed[rank, one][before - 1], out=self.clock[me])
            counts = (self.held[rank, one] - self._initial(rank, one) for one in step.acquires)
            self.order.releases[place] = tuple(max(count, 0) for count in counts)
        if step.barrier is not None:
            number, width = step.barrier
            came = self.came[rank, number]
            turn = max(at for at, who in enumerate(came) if who == me) // width
            for who in came[turn * width : (turn + 1) * width]:
                np.maximum(self.clock[me], self.clock[who], out=self.clock[me])
            self.order.arrivals[place] = (turn + 1) * width

    # -- data

    def _slice(self, span: ByteRange) -> slice:
        return slice(span.begin // self.grain, -(-(span.begin + span.size) // self.grain))

    def _at(self, rank: int, span: ByteRange) -> Iterator[tuple[int, _Cells]]:
        """Yield the memory of a span, or of all ranks."""
        for one in range(self.plan.ranks) if span.rank is None else (span.rank,):
            yield one, self.memory[one, span.memory, span.packets]

    def _packets_here(self, rank: int, action: Action) -> bool:
        """Return whether all packets that an action reads have been written."""
        read = (span for motion in action.motions for span in motion.sources if span.packets)
        return all((cells.writer[self._slice(s)] >= 0).all() for s in read for _, cells in self._at(rank, s))

    def _move(self, rank: int, action: Action, motion: Motion, place: _Place, index: int, me: int) -> None:
        total = held = None
        for span in motion.sources:
            part = self._slice(span)
            for of, cells in self._at(rank, span):
                self._read(cells, part, action, place, span, of, me)
                total = cells.value[part].copy() if total is None else total + cells.value[part]
                held = cells.held[part].copy() if held is None else held + cells.held[part]
        assert total is not None
        assert held is not None
        for at, span in enumerate(motion.targets):
            part = self._slice(span)
            for of, cells in self._at(rank, span):
                self._check_order(cells.writer[part], action, "writes", "wrote", of, span, me)
                self._check_order(cells.reader[part], action, "writes", "read", of, span, me)
                cells.value[part], cells.held[part] = total, held
                cells.writer[part] = len(self.events)
            self.events.append(_MotionEvent(place, index, at, self.clock[me].copy()))

    def _read(
        self, cells: _Cells, part: slice, action: Action, place: _Place, span: ByteRange, of: int, me: int
    ) -> None:
        if span.packets:  # each packet says by itself that it is there
            writers = [self.events[one] for one in np.unique(cells.writer[part]).tolist()]
            for one in writers:  # what the sender did before made the packet, or is in it
                np.maximum(self.clock[me], one.clock, out=self.clock[me])
            known = self.order.packets.get(place, ())
            made = tuple((one.place, one.motion, one.target) for one in writers)
            self.order.packets[place] = known + tuple(one for one in made if one not in known)
        else:
            self._check_order(cells.writer[part], action, "reads", "wrote", of, span, me)
        cells.reader[part] = len(self.events)
        self.events.append(_MotionEvent(place, -1, -1, self.clock[me].copy()))

    def _check_order(
        self, last: npt.NDArray[np.int64], action: Action, does: str, did: str, of: int, span: ByteRange, me: int
    ) -> None:
        """Raise InputError if an action touches bytes that another workgroup wrote or read, and nothing orders them."""
        if self.plan.trusted:
            return
        for event in np.unique(last).tolist():
            if event < 0:
                continue
            before = self.events[event]
            number = self.number[before.place[:2]]
            if self.clock[me, number] < before.clock[number]:
                other = self._name(before.place)
                memory = "output" if span.memory == "collected" else span.memory
                raise InputError(
                    f"the plan '{self.plan.name}' is wrong at {action.place}: it {does} bytes of rank {of}'s {memory} "
                    f"that {other} {did}, but no signal, barrier or packet orders the two; let the one wait for the "
                    "other, or read the plan with trusted=True if the machine orders them"
                )

    # -- beginning and end

    def _fill(self) -> None:
        """Give every rank's input numbers of its own."""
        random = np.random.default_rng(0)
        for rank in range(self.plan.ranks):
            memory, base = self.whole.base(rank, "input")
            cells = self.memory[rank, memory, False]
            part = slice(base // self.grain, (base + self.whole.input) // self.grain)
            self.given[rank] = random.integers(-(1 << 40), 1 << 40, part.stop - part.start)
            cells.value[part] = self.given[rank]
            cells.held[part, rank] = 1

    def _check_ends(self) -> None:
        """Raise InputError for a workgroup that waits for ever: the one whose wait no other waiting one would end."""
        waiting = [block for block in self.blocks if self.at[block] < len(self._actions(block))]
        if not waiting:
            return
        reasons = {}
        for block in waiting:
            action = self._actions(block)[self.at[block]]
            missing = self._missing(block[0], action.step, block) or "packets that no step has sent"
            reasons[block] = f"{action.place} waits for {missing}"
        first = next((block for block in waiting if not self._could_end(block, waiting)), None)
        shown = reasons[waiting[0] if first is None else first]
        why = "no step left to run sends it" if first is not None else "the step that would send it waits, too"
        others = f" ({len(waiting)} threadblocks wait in all)" if len(waiting) > 1 else ""
        raise InputError(
            f"the plan '{self.plan.name}' never ends: {shown}, and {why}{others}; add what is missing, or remove "
            "the wait"
        )

    def _could_end(self, block: tuple[int, int], waiting: list[tuple[int, int]]) -> bool:
        """Return whether a step behind the waits of other workgroups would signal what a workgroup waits for."""
        rank, step = block[0], self._actions(block)[self.at[block]].step
        behind = [(one, action) for one in waiting for action in self._actions(one)[self.at[one] :]]
        for channel in step.waits:
            if self.taken[rank, channel] < len(self.sent[rank, channel]):
                continue
            back = Channel(channel.kind, rank, channel.number)
            if not any(one[0] == channel.peer and back in action.step.signals for one, action in behind):
                return False
        for semaphore in step.acquires:
            if not any(one[0] == rank and semaphore in action.step.releases for one, action in behind):
                return False
        return not (step.barrier is None and not step.waits and not step.acquires and not self._sends(block, behind))

    def _sends(self, block: tuple[int, int], behind: list[tuple[tuple[int, int], Action]]) -> bool:
        """Return whether a step that has not run would write packets into what a workgroup reads."""
        action = self._actions(block)[self.at[block]]
        for span in (one for motion in action.motions for one in motion.sources if one.packets):
            empty = self.memory[span.rank or 0, span.memory, True].writer[self._slice(span)] < 0
            targets = [t for _, other in behind for motion in other.motions for t in motion.targets if t.packets]
            if empty.any() and not any(t.rank in (span.rank, None) and t.memory == span.memory for t in targets):
                return False
        return True

    def _check_result(self) -> None:
        """Raise InputError for an output that is not that of the collective, with the step that made it."""
        ranks, name = self.plan.ranks, self.plan.collective
        share = self.whole.bytes // ranks // self.grain
        for rank in range(ranks):
            for begin, end, source, among in self._expected_pieces(rank, share):
                memory, base = self.whole.base(rank, "output")
                cells = self.memory[rank, memory, False]
                part = slice(base // self.grain + begin, base // self.grain + end)
                right = sum(self.given[one][source : source + end - begin] for one in among)
                wanted = np.isin(np.arange(ranks), list(among))
                wrong = (cells.value[part] != right) | (cells.held[part] != wanted).any(axis=1)
                if wrong.any():
                    at = int(wrong.argmax())
                    told = self._explain_piece(cells, part.start + at, wanted)
                    chunk = self._chunk(rank, begin + at)
                    raise InputError(
                        f"the plan '{self.plan.name}' is no {name}: chunk {chunk} of rank {rank}'s output {told}; "
                        "correct that step, or what it reads"
                    )

    def _expected_pieces(self, rank: int, share: int) -> list[tuple[int, int, int, range | list[int]]]:
        """Pieces of a rank's output: begin, end, where they come from in the inputs, and of which ranks."""
        everyone, name = range(self.plan.ranks), self.plan.collective
        whole = self.whole.output // self.grain
        if name == "all_reduce":
            return [(0, whole, 0, everyone)]
        if name == "reduce_scatter":
            return [(0, whole, rank * share, everyone)]
        if name == "all_gather":
            return [(one * share, (one + 1) * share, 0, [one]) for one in everyone]
        if name == "all_to_all":
            return [(one * share, (one + 1) * share, rank * share, [one]) for one in everyone]
        if name == "broadcast":
            return [(0, whole, 0, [0])]
        return [(0, whole, 0, [(rank - 1) % self.plan.ranks])]

    def _chunk(self, rank: int, piece: int) -> int:
        chunks = self.plan.chunks[rank]
        count = chunks.output or chunks.input
        return piece * self.grain * count // self.whole.output

    def _explain_piece(self, cells: _Cells, at: int, wanted: npt.NDArray[np.bool_]) -> str:
        """Return what is wrong with a piece, and which step left it."""
        held, parts = cells.held[at], []
        lacks = [rank for rank in range(self.plan.ranks) if wanted[rank] and held[rank] == 0]
        twice = [rank for rank in range(self.plan.ranks) if held[rank] > 1]
        strange = [rank for rank in range(self.plan.ranks) if held[rank] and not wanted[rank]]
        parts += [f"lacks the data of rank {_list_ranks(lacks)}"] if lacks else []
        parts += [f"has the data of rank {_list_ranks(twice)} more than once"] if twice else []
        parts += [f"has the data of rank {_list_ranks(strange)}"] if strange else []
        found = " and ".join(parts) or "has data of another chunk"
        writer = int(cells.writer[at])
        if writer < 0:
            return f"{found}: no step writes it"
        return f"{found}, as {self._name(self.events[writer].place)} left it"

    def _name(self, place: _Place) -> str:
        """Return an action as messages name it."""
        rank, block, number = place
        return self.whole.actions[rank][block][number].place


def _list_ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _grain(whole: ExpandedPlan) -> int:
    """Return the largest piece that all bounds of spans and buffers are multiples of [bytes]."""
    sizes = [whole.input, whole.output]
    for blocks in whole.actions:
        for block in blocks:
            for action in block:
                for motion in action.motions:
                    for span in (*motion.sources, *motion.targets):
                        sizes += [span.begin, span.size]
    sizes += [whole.base(rank, name)[1] for rank in range(whole.plan.ranks) for name in ("input", "output")]
    return gcd(*sizes)
