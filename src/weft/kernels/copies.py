"""Collectives by DMA engines: copies from GPU to GPU without compute units; engines cannot add.

A host thread drives the engines, as in the public implementation for MI300X (AMDResearch/AMD-DMA-Latte @e01a685
src/sdmaCollective.cpp, arXiv:2511.06605): it writes an engine's commands, rings its doorbell, continues with the next
engine and the next GPU, and finally waits for one completion per engine. The simulated GPU is the last one that its
thread serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import ClassVar, NamedTuple

from weft.core.errors import InputError
from weft.core.fields import check_fields, declare
from weft.core.units import to_fs
from weft.engine.program import Buffer, ChunkRule, DmaCommand, DmaMap, Kernel
from weft.hardware import Gpu

ALIGNMENT = 4096


class CopyPiece(NamedTuple):
    """Data that a command moves: `bytes_` to the GPU `distance` ranks below, and to the one `also` below unless 0.

    The data is read on this GPU or, with `source`, on the GPU `source` ranks below, from which distances then count.
    `part` numbers the pieces into which a peer's data is cut.
    """

    distance: int
    bytes_: int
    part: int = 0
    also: int = 0
    source: int = 0


@dataclass(frozen=True)
class DmaGather:
    """An all-gather of `bytes_` (the whole output), or an all-to-all of as much, by DMA over `ranks` GPUs.

    Every GPU pushes its share, or each peer's part of its data, directly to all peers in one step: a command per peer,
    each on an engine of its own. `engines_per_peer` splits a peer's data into this number of commands; `engines` limits
    the engines, which then take the commands in turn. With `broadcast` a command of an all-gather writes to two peers;
    with `swap` one of an all-to-all exchanges both directions' data with a peer. `prelaunched` commands were enqueued
    earlier and wait for a flag. `threads` host threads share the GPUs; by default NVIDIA's have one each, AMD's one for
    all.

    Over `nodes` nodes an all-gather's `ranks` are those of one node, and each GPU pushes as many shares as there are
    nodes: its own, and those that its adapter brings one after the other, `arriving` [s] each. What adapters read and
    write in memory is not simulated.

    Raises InputError for options that do not go together.
    """

    collective: str
    bytes_: int
    ranks: int
    engines: int | None = declare(None, "")
    engines_per_peer: int = declare(1, "")
    broadcast: bool = False
    swap: bool = False
    prelaunched: bool = False
    threads: int | None = declare(None, "")
    nodes: int = declare(1, "")
    arriving: float = 0.0
    algorithm: ClassVar[str] = "copies"

    def __post_init__(self) -> None:
        check_fields(self)
        for option, taken, only in (
            ("broadcast", self.broadcast, "all_gather"),
            ("swap", self.swap, "all_to_all"),
        ):
            if taken and self.collective != only:
                raise InputError(f"only an {only} has commands that {option}, not an {self.collective}")
            if taken and self.engines_per_peer > 1:
                raise InputError(f"with {option} a peer's data is not cut; leave engines_per_peer at 1")
        if self.nodes > 1 and (self.broadcast or self.engines_per_peer > 1):
            raise InputError(
                "copies between nodes have a command for each peer and share; leave broadcast and engines_per_peer out"
            )
        if self.share < self.parts * ALIGNMENT:
            raise InputError(
                f"{self.share} B for each peer cannot be cut for {self.parts} engines; a part has at least "
                f"{ALIGNMENT} B"
            )
        if self.threads is not None and self.ranks % self.threads:
            raise InputError(f"{self.threads} threads cannot share {self.ranks} GPUs evenly")

    @property
    def parts(self) -> int:
        """Pieces into which the data for a peer is cut."""
        return self.engines_per_peer * self.nodes

    @property
    def share(self) -> int:
        """Bytes sent to each peer."""
        return -(-self.bytes_ // (self.ranks * ALIGNMENT)) * ALIGNMENT

    @cached_property
    def commands(self) -> tuple[tuple[CopyPiece, ...], ...]:
        """The pieces that every command of a GPU moves, one after another."""
        if self.broadcast:
            return tuple(
                (CopyPiece(distance, self.share, also=distance + 1 if distance + 1 < self.ranks else 0),)
                for distance in range(1, self.ranks, 2)
            )
        if self.swap:
            return self._swaps()
        cut = [*enumerate(_cut(self.share, self.parts))]
        pieces = [CopyPiece(distance, bytes_, part) for distance in range(1, self.ranks) for part, bytes_ in cut]
        return tuple((piece,) for piece in (sorted(pieces, key=_part) if self.nodes > 1 else pieces))

    def _swaps(self) -> tuple[tuple[CopyPiece, ...], ...]:
        """One exchange per pair of GPUs; opposite GPUs do one half each, so that all GPUs have the same commands."""
        found: list[tuple[CopyPiece, ...]] = [
            (CopyPiece(distance, self.share), CopyPiece(self.ranks - distance, self.share, source=distance))
            for distance in range(1, (self.ranks + 1) // 2)
        ]
        if self.ranks % 2 == 0:
            opposite = self.ranks // 2
            sent, fetched = _cut(self.share, 2) if self.share > ALIGNMENT else (self.share, 0)
            legs = CopyPiece(opposite, sent), CopyPiece(opposite, fetched, 1, source=opposite)
            found.append(legs if fetched else legs[:1])
        return tuple(found)

    @cached_property
    def _parts(self) -> tuple[tuple[CopyPiece, ...], ...]:
        """The pieces grouped by their part of a peer's data."""
        pieces = [piece for legs in self.commands for piece in legs]
        return tuple(
            tuple(piece for piece in pieces if piece.part == part)
            for part in range(1 + max(piece.part for piece in pieces))
        )

    def buffers(self) -> tuple[Buffer, ...]:
        """A GPU's own data, under one name per peer, and the receive buffers; each part has a buffer of its own."""
        found: list[Buffer] = []
        gathers = self.collective == "all_gather"
        if gathers:
            found.append(Buffer("data", (tuple(pieces[0].bytes_ for pieces in self._parts),)))
        for part, pieces in enumerate(self._parts):
            arriving = [(to, piece.bytes_) for piece in pieces for to in (piece.distance, piece.also) if to]
            position = {to: at for at, (to, _) in enumerate(arriving)}
            collected = Buffer(_part_name("collected", part), (tuple(bytes_ for _, bytes_ in arriving),))
            rules = (
                DmaMap(
                    collected.name, position[piece.distance], False, self.collective, piece.distance, direct=True,
                    also=(position[piece.also], piece.also) if piece.also else None, source=piece.source,
                )
                for piece in pieces
            )  # fmt: skip
            sends = Buffer(
                _part_name("sends", part),
                (tuple(piece.bytes_ for piece in pieces),),
                tuple(ChunkRule(dma=rule) for rule in rules),
                within=("data", part) if gathers else None,
            )
            found += [sends, collected]
        return tuple(found)

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the copies, as one entry of a stream.

        Raises InputError for more engines than the GPU has.
        """
        ready = self.ready(gpu)
        copies = tuple(
            DmaCommand(self._chunks(together), to_fs(when + part * self.arriving), engine)
            for engine, (numbers, when) in enumerate(zip(self.dealt(gpu), ready, strict=True))
            for part, together in self._arriving_together(numbers)
        )
        completion = to_fs(self.completion(gpu))
        return Kernel(name or self.collective, 0, 0, 0, 0, (), copies=copies, completion_fs=completion)

    def _arriving_together(self, numbers: list[int]) -> list[tuple[int, list[int]]]:
        """Return an engine's commands by the share that they send, of as many as there are nodes."""
        if self.nodes == 1:
            return [(0, numbers)]
        return [(part, [*own]) for part, own in groupby(numbers, key=lambda number: self.commands[number][0].part)]

    def _chunks(self, numbers: list[int]) -> tuple[tuple[str, int], ...]:
        """Return the chunks that the commands of these numbers send, in order."""
        return tuple(
            (_part_name("sends", piece.part), self._parts[piece.part].index(piece))
            for number in numbers
            for piece in self.commands[number]
        )

    def dealt(self, gpu: Gpu) -> list[list[int]]:
        """Return the indices of the commands that each engine executes, in order."""
        if self.engines is not None and self.engines > gpu.dma.engines:
            raise InputError(f"{self.engines} engines are asked for, but {gpu.name} has {gpu.dma.engines}; take fewer")
        count = min(self.engines or gpu.dma.engines, len(self.commands))
        return [list(range(engine, len(self.commands), count)) for engine in range(count)]

    def ready(self, gpu: Gpu) -> list[float]:
        """Return when each engine starts its commands, from the start of the host's work or from the flag [s]."""
        dma, dealt = gpu.dma, self.dealt(gpu)
        if self.prelaunched:
            return [dma.trigger] * len(dealt)
        costs = [len(numbers) * dma.enqueue + dma.doorbell for numbers in dealt]
        others = (self._driven(gpu) - 1) * sum(costs)
        return [others + sum(costs[: engine + 1]) + dma.fetch for engine in range(len(dealt))]

    def completion(self, gpu: Gpu) -> float:
        """Return the time from the departure of a GPU's last byte until the host has seen all completions [s].

        Commands that start together end together, and the thread then polls all their signals; otherwise it has already
        seen those of the other GPUs.
        """
        signals = len(self.dealt(gpu)) * (self._driven(gpu) if self.prelaunched else 1)
        return gpu.dma.drain + gpu.dma.sync + signals * gpu.dma.signal

    def _driven(self, gpu: Gpu) -> int:
        """Return the number of GPUs that one host thread serves."""
        threads = self.threads or (self.ranks if gpu.vendor == "nvidia" else 1)
        return self.ranks // threads


def _part(piece: CopyPiece) -> int:
    return piece.part


def _part_name(buffer: str, part: int) -> str:
    return f"{buffer} {part}" if part else buffer


def _cut(bytes_: int, parts: int) -> tuple[int, ...]:
    """Sizes of `parts` parts of `bytes_`, in whole pages and as even as possible, the larger ones first [bytes]."""
    pages = bytes_ // ALIGNMENT
    counts = [pages // parts + (part < pages % parts) for part in range(parts)]
    return tuple(count * ALIGNMENT for count in counts)
