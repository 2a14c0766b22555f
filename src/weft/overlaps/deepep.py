"""A layer of experts whose tokens are sent once to each GPU that they reach, as DeepEP's normal kernels do.

Half of an exchange's channels send, block of tokens after block, the other half receive. Dispatch puts a token's row
into the memory of each GPU on which one of its experts lies; a kernel on all compute units then copies it into the
lines of these experts. Behind the GEMMs a kernel adds up, for each token, what the GPU's own experts answer; combine
puts that one row back, and its receivers add up, block by block, what came from all GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

from weft.core.units import to_fs
from weft.engine.program import Buffer, ChunkLoad, ChunkRule, ChunkStore, Kernel, Phase, PlacedKernel, Plan, Wait
from weft.graph import Graph, KernelChoice, MoEExchange
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu, System
from weft.kernels.channels import ChannelTiling
from weft.kernels.library.dispatchers import dispatcher, shipped_values, table_of
from weft.overlaps.graphs import Pattern, find_moe_layer, with_exchanges
from weft.overlaps.lower.gpus import slow_links
from weft.overlaps.moe import PAGE, ExpertLayer, ExpertMethod, Piece, Slot, on_all_units

BLOCKS = 4
"""Blocks of tokens that each sending channel handles serially [assumed, 2 to 16]: the grain at which a
receiver begins to add up."""
_GRAIN = 128
"""Workgroups share data in multiples of this [bytes]."""


@dataclass(frozen=True)
class DeepEP(ExpertMethod):
    """An MoE layer in sequence, whose exchanges a library carries out that sends a token once to each GPU.

    The exchanges take the compute units of the `library`; results of experts on one GPU are added up there.
    """

    name: str = "deepep"
    title: str = "DeepEP"
    summary: str = (
        "experts: each token is sent once to each GPU that it reaches, and comes back as one sum, by DeepEP's channels"
    )
    library: str = "deepep"

    joins: ClassVar[str] = "nothing: shorter exchanges around experts"
    patterns: ClassVar[tuple[Pattern, ...]] = ("moe_layer",)

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the layer with the library's exchanges."""
        return with_exchanges(graph, KernelChoice(MoEExchange(find_moe_layer(graph).routing, self.library)))

    def lowers(self, kernel: ChosenKernel | None) -> bool:
        """Return whether a kernel is an MoE dispatch or combine that sends each token once per GPU."""
        return isinstance(kernel, MoEExchange) and kernel.dispatcher is not None

    @property
    def layer_class(self) -> type[ExpertLayer]:
        """Return the kernels of an MoE layer whose tokens are sent once to each GPU."""
        return PerRankLayer

    def cut_exchanges(self, graph: Graph, system: System) -> tuple[tuple[ChannelTiling, ...], System]:
        """Return the channels of dispatch and combine, and the system whose links have the lower rate of both."""
        kernel = find_moe_layer(graph).dispatch.choice.kernel
        assert isinstance(kernel, MoEExchange)
        assert kernel.dispatcher is not None
        dispatch, combine = (_channels_of(kernel.dispatcher, name, system.gpu) for name in ("dispatch", "combine"))
        return (dispatch, combine), slow_links(system, min(dispatch.link, combine.link))


def _channels_of(library: str, operation: str, gpu: Gpu) -> ChannelTiling:
    """The channels of a library's exchange: its compute units, share of the rate of kernels' stores, time to begin.

    The share is that of `weft predict exchange`, fitted to measured exchanges. On a machine without a vendor channels
    cost what the paper's ring kernels cost.
    """
    of = dispatcher(library)
    if gpu.vendor == "none":
        return replace(on_all_units(gpu), channels=min(of.compute_units, gpu.compute.compute_units))
    place = table_of(of, operation, 1, gpu.architecture)
    share = min(shipped_values()[f"{place}.link"] / gpu.link.kernel_efficiency, 1.0)
    return ChannelTiling(of.compute_units, start=shipped_values()[f"{place}.start"], link=share)


At = tuple[str, int, int]
"""A place in memory: buffer, position and offset [bytes]."""


class SumPart(NamedTuple):
    """`size` bytes that a kernel reads at each of `sources`, adds up, and stores at each of `targets`."""

    sources: tuple[At, ...]
    targets: tuple[At, ...]
    size: int


class TokenRows(NamedTuple):
    """Rows of `tokens` tokens from `first` on, which lie at `place`."""

    first: int
    tokens: int
    place: At


def _together(rows: list[TokenRows], row: int) -> Iterator[tuple[int, int, tuple[At, ...]]]:
    """Tokens whose rows lie in the same lists: the first one, how many, and the places; a row takes `row` bytes."""
    edges = sorted({edge for one in rows for edge in (one.first, one.first + one.tokens)})
    for begin, end in pairwise(edges):
        places = tuple(
            (*place[:2], place[2] + (begin - first) * row)
            for first, tokens, place in rows
            if first <= begin < first + tokens
        )
        if places:
            yield begin, end - begin, places


@dataclass(frozen=True)
class PerRankLayer(ExpertLayer):
    """The kernels of a layer of experts, its tokens sent once to each GPU; `combining` is how combine is cut."""

    combining: ChannelTiling

    # -- runs of tokens

    @property
    def _senders(self) -> int:
        return max(self.channels.channels // 2, 1)

    @cached_property
    def _block(self) -> int:
        """Tokens of a block."""
        return -(-self.routing.tokens // (BLOCKS * self._senders))

    @cached_property
    def _runs(self) -> dict[tuple[int, int], list[Piece]]:
        """The tokens that GPU g sends `distance` ranks down, as (g, distance), cut at blocks.

        `row` is the first token, `line` the block, `at` the place among all tokens that go there.
        """
        ranks, found = self.routing.ranks, {}
        for g in range(ranks if self.gpus > 1 else 1):
            for distance in range(ranks):
                pieces, at = [], 0
                for first, count in self.routing.sent_tokens(g, (g - distance) % ranks):
                    token = first
                    while token < first + count:
                        rows = min(self._block - token % self._block, first + count - token)
                        pieces.append(Piece(token, token // self._block, at, rows))
                        token, at = token + rows, at + rows
                found[g, distance] = pieces
        return found

    @cached_property
    def places(self) -> tuple[Slot, ...]:
        """The places of all runs, block by block."""
        most: dict[int, int] = defaultdict(int)
        for (_, distance), runs in self._runs.items():
            most[distance] = max(most[distance], len(runs))
        return tuple(Slot(distance, 0, number) for distance, count in most.items() for number in range(count))

    def leaving(self, g: int, place: Slot) -> Piece | None:
        """Return the run that GPU g sends at a place; None if it has none there."""
        runs = self._runs[g if self.gpus > 1 else 0, place.distance]
        return runs[place.number] if place.number < len(runs) else None

    def landing(self, g: int, place: Slot) -> Piece | None:
        """Return the run that GPU g receives at a place."""
        return self.leaving((g + place.distance) % self.routing.ranks, place)

    def copies(self, g: int, distance: int) -> int:
        """Return how many tokens GPU g sends `distance` ranks down."""
        return sum(run.rows for run in self._runs[g if self.gpus > 1 else 0, distance])

    def _first_landed(self, g: int, distance: int) -> int:
        """Return the row at which the tokens of the GPU `distance` ranks up begin among those that GPU g received."""
        ranks = self.routing.ranks
        return sum(self.copies((g + d) % ranks, d) for d in range(distance))

    def landed_row(self, g: int, distance: int, token: int) -> int:
        """Return the row of a token of the GPU `distance` ranks up among those that GPU g received."""
        runs = self._runs[(g + distance) % self.routing.ranks if self.gpus > 1 else 0, distance]
        run = next(one for one in runs if one.row <= token < one.row + one.rows)
        return self._first_landed(g, distance) + run.at + token - run.row

    # -- what the kernels on all compute units do

    def expand_parts(self, g: int) -> list[SumPart]:
        """Return the copies of what GPU g received into the lines of its experts."""
        return [SumPart((at,), rows, size) for at, rows, size in self._of_tokens(g, "received", 0, "landed")]

    def fold_parts(self, g: int) -> list[SumPart]:
        """Return the sums of what the experts of GPU g answer to a token, for every token that it received."""
        return [SumPart(rows, (at,), size) for at, rows, size in self._of_tokens(g, "output", 1, "partial")]

    def _of_tokens(self, g: int, lines: str, position: int, landed: str) -> Iterator[tuple[At, tuple[At, ...], int]]:
        """Tokens that GPU g received: their place in `landed`, those in its experts' lines, and their size [bytes]."""
        for distance in range(self.routing.ranks):
            rows = [
                TokenRows(piece.row % self.routing.tokens, piece.rows, (lines, position, self._in_lines(g, slot)[1]))
                for slot in self.slots
                if slot.distance == distance and (piece := self.came(g, slot))
            ]
            for token, count, places in _together(rows, self.row_bytes):
                at = self.landed_row(g, distance, token) * self.row_bytes
                yield (landed, 0, at), places, count * self.row_bytes

    def sum_parts(self, g: int, block: int) -> list[SumPart]:
        """Return the sums of what came back to GPU g for the tokens of a block."""
        rows = [
            TokenRows(run.row, run.rows, ("returned", distance, run.row * self.row_bytes))
            for distance in range(self.routing.ranks)
            for run in self._runs[g if self.gpus > 1 else 0, distance]
            if run.line == block
        ]
        together = _together(rows, self.row_bytes)
        return [
            SumPart(places, (("result", 0, token * self.row_bytes),), count * self.row_bytes)
            for token, count, places in together
        ]

    # -- kernels

    def plan(self) -> Plan:
        """Put tokens, spread them to experts, both GEMMs, add up by GPU, put results back and add these up."""
        works, products = self._products()
        everywhere = range(self.gpus)
        kernels = (
            PlacedKernel(self._put("dispatch", "sent", "arriving", self.channels, back=False), operator="dispatch"),
            PlacedKernel(
                self._local("expand", "dispatch", [self.expand_parts(g) for g in everywhere]), operator="dispatch"
            ),
            *products,
            PlacedKernel(self._local("fold", "combine", [self.fold_parts(g) for g in everywhere]), operator="combine"),
            PlacedKernel(self._put("combine", "leaving", "coming", self.combining, back=True), operator="combine"),
        )
        placed = tuple(replace(one, after=(k - 1,) if k else ()) for k, one in enumerate(kernels))
        size, ranks = self.routing.tokens * self.row_bytes, self.routing.ranks
        landed = ((max(self._first_landed(g, ranks) for g in everywhere) * self.row_bytes,),)
        own = (ChunkRule(counted=True),) * len(self.places)
        there = self._rules("arriving", "dispatch", back=False, slots=self.places)
        back = self._rules("coming", "combine", back=True, slots=self.places)
        return Plan(
            placed,
            (
                Buffer("tokens", ((size,),)),
                Buffer("landed", landed),
                Buffer("received", ((self._operand(self.up),),)),
                self._alias("sent", ("tokens", 0), there, self._at_first, self.places),
                self._alias("arriving", ("landed", 0), own, self._at_landing, self.places),
                *self._weights(),
                self._outputs(),
                Buffer("partial", landed),
                self._alias("leaving", ("partial", 0), back, self._at_landing, self.places),
                Buffer("returned", ((size,) * ranks,)),
                self._alias("coming", ("returned", 0), own, self._at_return, self.places),
                Buffer("result", ((size,),)),
            ),
            works,
            self.tiling.wavefronts(self.gpu),
        )

    def _put(self, operator: str, source: str, target: str, tiling: ChannelTiling, *, back: bool) -> Kernel:
        """All runs from `source` to `target`: half of the channels send, the others wait for what comes, and add it up.

        Channel c takes every block whose number is c modulo the number of senders; `back`: results go to where tokens
        came from.
        """
        by_gpu: list[list[tuple[Phase, ...]]] = []
        for g in range(self.gpus):
            sending = [self._sender(g, c, operator, source, target, tiling, back) for c in range(self._senders)]
            receiving = [self._receiver(g, c, operator, target, tiling, back) for c in range(self._senders)]
            by_gpu.append([script for pair in zip(sending, receiving, strict=True) for script in pair])
        return self._of_scripts(operator, by_gpu, tiling)

    def blocks(self, channel: int) -> range:
        """Return the blocks of a channel, in order."""
        return range(channel, -(-self.routing.tokens // self._block), self._senders)

    def _sender(
        self, g: int, channel: int, operator: str, source: str, target: str, tiling: ChannelTiling, back: bool
    ) -> tuple[Phase, ...]:
        """Return the script of a channel that sends: run by run of its blocks, to all GPUs in turn."""
        of, ranks = self.landing if back else self.leaving, self.routing.ranks
        found: list[Phase] = []
        for block in self.blocks(channel):
            runs = [
                (p, place, run) for p, place in enumerate(self.places) if (run := of(g, place)) and run.line == block
            ]
            for p, place, run in sorted(runs, key=lambda one: (one[1].distance - channel) % ranks):
                loop = tiling.move(run.rows * self.row_bytes)
                stored = source if place.distance else target
                load, store = loop.access(ChunkLoad, source, p, operator), loop.access(ChunkStore, stored, p, operator)
                found.append(loop.phase([load], [store], None, 0.0 if found else tiling.start))
        return tuple(found)

    def _receiver(
        self, g: int, channel: int, operator: str, target: str, tiling: ChannelTiling, back: bool
    ) -> tuple[Phase, ...]:
        """The script of a channel that receives: wait for a block's runs and, if they are results, add them up."""
        of = self.leaving if back else self.landing
        found: list[Phase] = []
        for block in self.blocks(channel):
            waits = [p for p, place in enumerate(self.places) if (run := of(g, place)) and run.line == block]
            signals = [Phase(0, 1, 0, wait=Wait(target, p)) for p in waits]
            if signals:
                signals[-1] = replace(signals[-1], delay_fs=to_fs(tiling.sync))
            sums = self.sum_parts(g, block) if back else []
            found += [*signals, *(self._part(tiling, operator, part) for part in sums)]
        return tuple(found)

    def _part(
        self, tiling: ChannelTiling, operator: str, part: SumPart, begin: int = 0, end: int | None = None
    ) -> Phase:
        """Return the loop that adds up a part, or its bytes from `begin` to `end`."""
        most = max(len(part.sources), len(part.targets))
        each = max(tiling.in_flight // tiling.slots // most // _GRAIN, 1) * _GRAIN
        loop = tiling.move((part.size if end is None else end) - begin, each)
        loads = [loop.access(ChunkLoad, name, p, operator, offset=at + begin) for name, p, at in part.sources]
        stores = [loop.access(ChunkStore, name, p, operator, offset=at + begin) for name, p, at in part.targets]
        adds = (len(loads) - 1) * loop.piece // (self.row_bytes // self.up.k)
        return loop.phase(loads, stores, None, 0.0, adds / self.gpu.compute.vector_flops_per_clock)

    def _local(self, name: str, operator: str, parts: list[list[SumPart]]) -> Kernel:
        """Return a kernel on all compute units that shares the bytes of each GPU's parts evenly."""
        tiling = on_all_units(self.gpu)
        by_gpu: list[list[tuple[Phase, ...]]] = []
        for mine in parts:
            each = -(-sum(part.size for part in mine) // (tiling.channels * _GRAIN)) * _GRAIN
            scripts_of: list[list[Phase]] = [[] for _ in range(tiling.channels)]
            at = 0
            for part in mine:
                done = 0
                while done < part.size:
                    channel = at // each
                    end = min(part.size, done + (channel + 1) * each - at)
                    scripts_of[channel].append(self._part(tiling, operator, part, done, end))
                    at, done = at + end - done, end
            by_gpu.append([tuple(script) for script in scripts_of])
        return self._of_scripts(name, by_gpu, tiling)

    # -- places

    def _at_first(self, g: int, place: Slot) -> tuple[int, int]:
        """Return size and place of a run that GPU g sends, among its tokens [bytes]."""
        run = self.leaving(g, place)
        return (run.rows * self.row_bytes, run.row * self.row_bytes) if run else (0, 0)

    def _at_landing(self, g: int, place: Slot) -> tuple[int, int]:
        """Return size and place of a run that GPU g receives, among what it received [bytes]."""
        run = self.landing(g, place)
        row = self._first_landed(g, place.distance) + run.at if run else 0
        return (run.rows * self.row_bytes, row * self.row_bytes) if run else (0, 0)

    def _at_return(self, g: int, place: Slot) -> tuple[int, int]:
        """Return size and place of the results of a run that GPU g sent, after those of nearer GPUs [bytes]."""
        size, at = self._at_first(g, place)
        whole = -(-self.routing.tokens * self.row_bytes // PAGE) * PAGE
        return size, at + place.distance * whole if size else 0
