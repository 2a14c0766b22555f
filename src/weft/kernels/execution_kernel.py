"""The kernel of an execution plan: a script for each workgroup of each rank, and copies by DMA engines for its ports.

A put is a store to the peer, a get a load from its memory. A signal is a small store that the receiver counts, a wait
one for that count. Packets are waited for by the bytes that have arrived where they are read. A put through a port is
handed to a thread of the host by a small store, and copied by a DMA engine; its signal follows on the same engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

from weft.core.units import to_fs
from weft.engine.program import Buffer, ChunkLoad, ChunkRule, ChunkStore, Kernel, Phase, PlacedKernel, RemoteMap, Wait
from weft.engine.program.plan import DmaCommand, DmaMap, scripts
from weft.graph.execution_plan import Channel, ExecutionPlan
from weft.hardware import Gpu
from weft.kernels.channels import BYTE_ADDS_PER_CLOCK, ChannelTiling
from weft.kernels.execution_replay import Order, replay_plan
from weft.kernels.execution_steps import Action, ByteRange, ExpandedPlan, Motion

FLAG = 32
"""Bytes of a signal: one access."""
_Place = tuple[int, int, int]
_Key = tuple[object, ...]


class _ChunkNumbers:
    """Chunks of one buffer, numbered as they are first asked for."""

    def __init__(self) -> None:
        self.position: dict[_Key, int] = {}
        self.rule: list[ChunkRule] = []

    def __call__(self, key: _Key, rule: ChunkRule) -> int:
        """The position of a chunk; `rule` is that of a new one."""
        if key not in self.position:
            self.position[key] = len(self.rule)
            self.rule.append(rule)
        return self.position[key]


class _Command(NamedTuple):
    """What a step hands to the host's thread for one peer: chunks that a DMA engine sends, one after another.

    `at` is its place among the commands.
    """

    at: int
    block: int
    number: int
    distance: int
    chunks: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class PlanKernel:
    """The kernel of `plan` for `bytes_` (the whole buffer).

    `tiling` says what a workgroup keeps in flight, `wire` times as many bytes in packets, and what starts and waits
    cost; `fence` [s] passes before a signal, until earlier stores are seen everywhere; `proxy` [s] from the store of a
    command for a port until the host's thread has handed it to a DMA engine.
    """

    plan: ExecutionPlan
    bytes_: int
    tiling: ChannelTiling
    fence: float
    proxy: float
    element_bytes: int = 2
    algorithm: ClassVar[str] = "plan"

    @property
    def ranks(self) -> int:
        """Number of GPUs."""
        return self.plan.ranks

    @property
    def symmetric(self) -> bool:
        """Whether all ranks do the same, seen from each, so that one GPU can represent all."""
        return self._scripts_of.symmetric

    def buffers(self) -> tuple[Buffer, ...]:
        """Return a GPU's memories, and their names in the address map."""
        return self._scripts_of.buffers

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the kernel; `earlier` counts kernels that used the same buffers before it."""
        made = self._scripts_of if earlier == 0 else _Scripts(self, earlier)
        rate = gpu.compute.vector_flops_per_clock if self.element_bytes > 1 else BYTE_ADDS_PER_CLOCK
        by_gpu = made.scripts(rate * self.element_bytes)
        kernel = self.tiling.kernel(name or self.plan.collective, by_gpu[0], tuple(range(self.plan.workgroups)))
        return replace(kernel, by_gpu=() if self.symmetric else by_gpu)

    def aside(self, gpu: Gpu, name: str, earlier: int = 0) -> tuple[PlacedKernel, ...]:
        """Return the copies of its ports, each as a kernel that a workgroup's command starts."""
        return tuple(self._scripts_of.copies(name, earlier, gpu.dma.engines))

    @cached_property
    def _scripts_of(self) -> _Scripts:
        return _Scripts(self, 0)


class _Scripts:
    """The scripts of all ranks, with the chunks that they name."""

    def __init__(self, kernel: PlanKernel, earlier: int) -> None:
        self.kernel, self.plan, self.earlier, self.tiling = kernel, kernel.plan, earlier, kernel.tiling
        self.whole = ExpandedPlan(kernel.plan, kernel.bytes_)
        self.order: Order = replay_plan(kernel.plan, kernel.bytes_)
        self.memories = [self.whole.memories(rank) for rank in range(self.plan.ranks)]
        self.names: dict[str, _ChunkNumbers] = defaultdict(_ChunkNumbers)
        self.totals = self._totals()
        self.sends: dict[tuple[str, int], list[ByteRange | None]] = defaultdict(lambda: [None] * self.plan.ranks)
        self.lands: dict[tuple[str, int], list[ByteRange | None]] = defaultdict(lambda: [None] * self.plan.ranks)
        self.commands: dict[_Command, list[int]] = defaultdict(list)
        self.operator = self.plan.collective
        self.phases = [
            [list(self._workgroup(rank, block)) for block in range(len(self.plan.steps[rank]))]
            for rank in range(self.plan.ranks)
        ]

    # -- names

    def _distance(self, rank: int, peer: int) -> int:
        return (rank - peer) % self.plan.ranks

    def _away(self, buffer: str, key: _Key, distance: int) -> int:
        """Return the position of a chunk whose stores go to the same one of the GPU `distance` ranks below."""
        names = self.names[buffer]
        rule = ChunkRule(remote=RemoteMap(buffer, len(names.rule), False, self.operator, distance, direct=True))
        return names((distance, *key), rule)

    def _store_position(self, buffer: str, key: _Key) -> int:
        """The position of a chunk in which a GPU's own stores are counted."""
        return self.names[buffer](key, ChunkRule(counted=True))

    def _everywhere(self, buffer: str) -> int:
        """Return the position of a chunk whose stores the switch copies to all GPUs."""
        route = RemoteMap(buffer, len(self.names[buffer].rule), False, self.operator, 0, members=self.plan.ranks)
        return self.names[buffer](("all",), ChunkRule(remote=route))

    def _signal(self, rank: int, channel: Channel) -> int:
        """Return the position that a rank signals over a channel; its peer waits for the same one."""
        return self._away("signals", (channel.kind, channel.number), self._distance(rank, channel.peer))

    def _signal_position(self, rank: int, channel: Channel) -> int:
        """Return the position where the signals of a channel's peer arrive."""
        return self._signal(channel.peer, Channel(channel.kind, rank, channel.number))

    def _totals(self) -> dict[_Key, int]:
        """Return how often each rank gets each signal, comes to each barrier and frees each semaphore, in one run."""
        totals: dict[_Key, int] = defaultdict(int)
        for rank, blocks in enumerate(self.whole.actions):
            for action in (action for block in blocks for action in block):
                for channel in action.step.signals:
                    totals[channel.peer, channel.kind, rank, channel.number] += 1
                for one in action.step.releases:
                    totals[rank, "semaphores", one] += 1
                if action.step.barrier is not None:
                    totals[rank, "barriers", action.step.barrier[0]] += 1
        return totals

    # -- scripts

    def scripts(self, adds: float) -> tuple[tuple[Phase, ...], ...]:
        """The scripts of each rank, padded to one length; `adds` is what a compute unit adds up [bytes/cycle]."""
        longest = max(len(script) for rank in self.phases for script in rank)
        empty = (Phase(0, 1, 0),) * longest
        found = []
        for rank in self.phases:
            padded = [*rank, *[[]] * (self.plan.workgroups - len(rank))]
            each = (tuple(replace(one, cycles=one.cycles / adds) for one in script) for script in padded)
            found.append(scripts(*each, empty)[:-longest] if longest else ())
        return tuple(found)

    @cached_property
    def symmetric(self) -> bool:
        """Whether the scripts of all ranks are equal but for the places of data."""
        first = self._shape(0)
        return all(self._shape(rank) == first for rank in range(1, self.plan.ranks))

    def _shape(self, rank: int) -> list[list[object]]:
        sent = {at: None if spans[rank] is None else spans[rank].size for at, spans in self.sends.items()}  # type: ignore[union-attr]
        waits = [[phase.wait and (phase.wait, phase.wait.bytes) for phase in script] for script in self.phases[rank]]
        plain = [
            [
                replace(
                    phase,
                    loads=tuple(replace(load, offset=0) for load in phase.loads),
                    stores=tuple(replace(store, offset=0) for store in phase.stores),
                )
                for phase in script
            ]
            for script in self.phases[rank]
        ]
        return [[self.memories[rank], sent], waits, plain]  # type: ignore[list-item]

    def _workgroup(self, rank: int, block: int) -> Iterator[Phase]:
        delay = self.tiling.start
        for number, action in enumerate(self.whole.actions[rank][block]):
            for phase in self._action(rank, block, number, action):
                late = delay if phase.iterations else 0.0
                delay -= late
                yield replace(phase, delay_fs=phase.delay_fs + to_fs(late)) if late else phase

    def _action(self, rank: int, block: int, number: int, action: Action) -> Iterator[Phase]:
        place, step = (rank, block, number), action.step
        if step.barrier is not None:
            at = self._store_position("barriers", (step.barrier[0],))
            yield self._small(("barriers", at), 0.0)
        waits = list(self._waits(place, action))
        yield from (Phase(0, 1, 0, wait=wait) for wait in waits)
        yield from [Phase(1, 1, 0, delay_fs=to_fs(self.tiling.sync))] if waits else []
        if step.port:
            yield from self._port(rank, block, number, action)
        else:
            yield from (self._motion(rank, block, number, at, one) for at, one in enumerate(action.motions))
            if step.signals:
                kinds = {channel.kind for channel in step.signals}
                if "port" in kinds:
                    yield from self._port(rank, block, number, action)
                else:
                    places = [("signals", self._signal(rank, channel)) for channel in step.signals]
                    yield self._small(*places, delay=self.kernel.fence)
        for one in step.releases:
            yield self._small(("semaphores", self._store_position("semaphores", (one,))), 0.0)
        yield from self._flush_phases(rank, block, number, step.flushes)

    def _small(self, *places: tuple[str, int] | float, delay: float = 0.0) -> Phase:
        """Small stores, one to each place."""
        stores = tuple(ChunkStore(one[0], one[1], self.operator, FLAG) for one in places if isinstance(one, tuple))
        return Phase(1, 1, 0, stores=stores, delay_fs=to_fs(delay))

    def _waits(self, place: _Place, action: Action) -> Iterator[Wait]:
        """Yield what an action waits for: counts of signals, of workgroups at a barrier, of releases, and packets."""
        rank, step, before = place[0], action.step, self.earlier
        for channel, count in zip(step.waits, self.order.signals.get(place, ()), strict=True):
            total = before * self.totals[rank, channel.kind, channel.peer, channel.number]
            yield Wait("signals", self._signal_position(rank, channel), bytes=(total + count) * FLAG)
        if step.barrier is not None:
            total = before * self.totals[rank, "barriers", step.barrier[0]]
            at = self._store_position("barriers", (step.barrier[0],))
            yield Wait("barriers", at, bytes=(total + self.order.arrivals[place]) * FLAG)
        for one, count in zip(step.acquires, self.order.releases.get(place, ()), strict=True):
            total = before * self.totals[rank, "semaphores", one]
            if count + total > 0:
                yield Wait("semaphores", self._store_position("semaphores", (one,)), bytes=(total + count) * FLAG)
        for who, motion, target in self.order.packets.get(place, ()):
            sender = self.whole.actions[who[0]][who[1]][who[2]]
            span = sender.motions[motion].targets[target]
            buffer, at = self._packets(who, sender, motion, target, rank)
            yield Wait(buffer, at, bytes=(before + 1) * self.tiling.on_wire(span.size))

    def _packets(self, who: _Place, sender: Action, motion: int, target: int, at: int) -> tuple[str, int]:
        """Buffer and position where the packets of a step arrive at rank `at`, which counts them."""
        span, key = sender.motions[motion].targets[target], (who[1], who[2], motion, target)
        if sender.step.port:
            return self._landing(who[0], who[1], who[2], motion, span)
        if span.rank is None:
            return f"{span.memory} of all", self._everywhere_packets(span.memory, key)
        if span.rank == who[0]:
            return f"packets in {span.memory}", self._store_position(f"packets in {span.memory}", key)
        distance = self._distance(who[0], span.rank)
        return f"packets in {span.memory}", self._away(f"packets in {span.memory}", key, distance)

    def _everywhere_packets(self, memory: str, key: _Key) -> int:
        names = self.names[f"{memory} of all"]
        route = RemoteMap(f"{memory} of all", len(names.rule), False, self.operator, 0, members=self.plan.ranks)
        return names(("all", *key), ChunkRule(remote=route))

    def _motion(self, rank: int, block: int, number: int, index: int, motion: Motion) -> Phase:
        """Return the loop that loads a motion's sources, adds them up and stores them at its targets."""
        size, loads = motion.targets[0].size, len(motion.sources)
        piece = max(self.tiling.in_flight // (self.tiling.slots * loads), 64)
        move = self.tiling.move(size, piece)
        sources = []
        for span in motion.sources:
            begin = self.tiling.on_wire(span.begin) if span.packets else span.begin
            load = move.access(ChunkLoad, span.memory, 0, self.operator, offset=begin, wired=span.packets)
            if span.rank is None:
                load = replace(load, members=self.plan.ranks)
            elif span.rank != rank:
                load = replace(load, distance=self._distance(rank, span.rank), direct=True)
            sources.append(load)
        stores = []
        action = self.whole.actions[rank][block][number]
        for target, span in enumerate(motion.targets):
            begin = self.tiling.on_wire(span.begin) if span.packets else span.begin
            if span.packets:
                buffer, at = self._packets((rank, block, number), action, index, target, rank)
            elif span.rank is None:
                buffer, at = f"{span.memory} of all", self._everywhere(f"{span.memory} of all")
            elif span.rank == rank:
                buffer, at = span.memory, 0
            else:
                buffer = f"{span.memory} elsewhere"
                at = self._away(buffer, (), self._distance(rank, span.rank))
            stores.append(move.access(ChunkStore, buffer, at, self.operator, offset=begin, wired=span.packets))
        return move.phase(sources, stores, None, 0.0, (loads - 1) * move.piece)

    # -- ports

    def _landing(self, rank: int, block: int, number: int, index: int, span: ByteRange) -> tuple[str, int]:
        """Buffer and position of the bytes that a rank's put through a port fills at its peer."""
        assert span.rank is not None
        buffer = f"{span.memory} by ports"
        at = self.names[buffer]((self._distance(rank, span.rank), block, number, index), ChunkRule())
        size, begin = self._sizes(span)
        self.lands[buffer, at][span.rank] = span._replace(begin=begin, size=size)
        return buffer, at

    def _sizes(self, span: ByteRange) -> tuple[int, int]:
        wire = self.tiling.on_wire if span.packets else int
        return wire(span.size), wire(span.begin)

    def _put_source(self, rank: int, block: int, number: int, index: int, motion: Motion) -> tuple[str, int]:
        """Buffer and position of the bytes that a DMA engine reads for a put through a port."""
        source, target = motion.sources[0], motion.targets[0]
        assert target.rank is not None
        landing, there = self._landing(rank, block, number, index, target)
        distance, buffer = self._distance(rank, target.rank), f"{source.memory} to ports"
        rule = ChunkRule(dma=DmaMap(landing, there, False, self.operator, distance, direct=True))
        at = self.names[buffer]((distance, block, number, index, landing), rule)
        size, begin = self._sizes(source)
        self.sends[buffer, at][rank] = source._replace(begin=begin, size=size)
        return buffer, at

    def _port(self, rank: int, block: int, number: int, action: Action) -> Iterator[Phase]:
        """Hand puts and signals to the host's thread: a small store each starts a copy."""
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for index, motion in enumerate(action.motions if action.step.port else ()):
            assert motion.targets[0].rank is not None
            distance = self._distance(rank, motion.targets[0].rank)
            found[distance].append(self._put_source(rank, block, number, index, motion))
        for channel in action.step.signals:
            distance, there = self._distance(rank, channel.peer), self._signal(rank, channel)
            rule = ChunkRule(dma=DmaMap("signals", there, False, self.operator, distance, direct=True))
            key = (distance, block, number, channel.kind, channel.number)
            found[distance].append(("flags", self.names["flags"](key, rule)))
        places: list[tuple[str, int]] = []
        for distance, chunks in found.items():
            at = self._store_position("commands", (block, number, distance))
            self.commands[_Command(at, block, number, distance, tuple(chunks))].append(rank)
            places.append(("commands", at))
        if places:
            yield self._small(*places)

    def _flush_phases(self, rank: int, block: int, number: int, channels: tuple[Channel, ...]) -> Iterator[Phase]:
        """Wait until everything that the workgroup has put through channels has left."""
        peers = {self._distance(rank, channel.peer) for channel in channels}
        for one in self.commands:
            if one.distance in peers and rank in self.commands[one] and one.block == block and one.number <= number:
                buffer, at = one.chunks[0]
                sizes = (FLAG if name == "flags" else self.sends[name, place][rank].size for name, place in one.chunks)  # type: ignore[union-attr]
                yield Phase(0, 1, 0, wait=Wait(buffer, at, sent=True, bytes=(self.earlier + 1) * sum(sizes)))

    def copies(self, name: str, earlier: int, engines: int) -> Iterator[PlacedKernel]:
        """The kernels of the host's thread, which hand commands to DMA engines, those for one peer to the same one."""
        for one, ranks in self.commands.items():
            command = DmaCommand(one.chunks, engine=(one.distance - 1) % engines)
            kernel = Kernel(f"{name} port {one.at}", 0, 0, 0, 0, (), copies=(command,), completion_fs=0)
            gpus = None if len(ranks) == self.plan.ranks else tuple(ranks)
            started = Wait("commands", one.at, bytes=(earlier + 1) * FLAG)
            yield PlacedKernel(
                kernel, after_chunks=(started,), delay_fs=to_fs(self.kernel.proxy), gpus=gpus, aside=True
            )

    # -- buffers

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The memories of each rank, other names of them by where stores go, and what counts signals and commands."""
        found = [
            Buffer(memory, self._per_gpu([(max(each[memory], FLAG),) for each in self.memories]))
            for memory in self.memories[0]
        ]
        for buffer, names in self.names.items():
            count = len(names.rule)
            if buffer in ("signals", "barriers", "semaphores", "commands", "flags"):
                found.append(Buffer(buffer, ((FLAG,) * count,), tuple(names.rule)))
            elif buffer.endswith(("to ports", "by ports")):
                spans = self.sends if buffer.endswith("to ports") else self.lands
                memory = buffer.removesuffix(" to ports").removesuffix(" by ports")
                found.append(self._cut(buffer, memory, [spans[buffer, at] for at in range(count)], tuple(names.rule)))
            else:
                memory = buffer.removeprefix("packets in ").removesuffix(" elsewhere").removesuffix(" of all")
                sizes = self._per_gpu([(max(each[memory], FLAG),) * count for each in self.memories])
                found.append(Buffer(buffer, sizes, tuple(names.rule), within=(memory, 0)))
        return tuple(found)

    def _cut(
        self, buffer: str, memory: str, spans: list[list[ByteRange | None]], rules: tuple[ChunkRule, ...]
    ) -> Buffer:
        """Return the names of parts of a memory, each of its own size and place on each GPU."""
        each = [
            [one[rank] or ByteRange(rank, memory, 0, FLAG, False) for one in spans] for rank in range(self.plan.ranks)
        ]
        sizes = self._per_gpu([tuple(span.size for span in row) for row in each])
        offsets = self._per_gpu([tuple(span.begin for span in row) for row in each])
        return Buffer(buffer, sizes, rules, within=(memory, 0), offsets=offsets)

    def _per_gpu(self, rows: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Return rows of each GPU, or the first one's alone where one GPU represents all."""
        return tuple(rows[:1]) if self.symmetric or all(row == rows[0] for row in rows) else tuple(rows)
