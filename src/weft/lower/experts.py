"""A layer of experts on explicit GPUs: dispatch, grouped GEMMs and combine, one after the other or joined by T3.

A GPU's list of rows, one for each token and expert, is cut into pieces: rows that one GPU sends to one expert, and that
lie in one line of that expert's tiles and in one pass over the tokens. Piece p is the same on every GPU as seen from
there: GPU g sends it `distance` ranks down, and receives its own piece p from the GPU `distance` ranks up.

In sequence, channels put the rows of each peer straight into its memory and signal; both GEMMs follow, the results go
back the same way, and a kernel adds up each token's results. Under T3 DMA engines send the pieces in the order in which
the GEMM takes them, a tile of the first GEMM starts when the pieces of its line have arrived, and a tile of the second
one is stored as updates of its tokens at their owners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.graph import Gemm, GroupedGemm
from weft.graph.routing import Routing
from weft.hardware import Gpu
from weft.kernels import GemmTiling, gemm_kernel, operand_sizes, sum_kernel
from weft.kernels.channels import ChannelTiling
from weft.kernels.ring import RING
from weft.lower.fit import MOST_TILES
from weft.options import RunOptions
from weft.program import (
    Buffer,
    ChunkRule,
    Command,
    DmaMap,
    Kernel,
    Load,
    Phase,
    PlacedKernel,
    Plan,
    RemoteMap,
    Store,
    Wait,
)
from weft.program.plan import CACHED_STORE, PLAIN_STORE, Work, scripts
from weft.units import to_fs

PAGE = 4096
"""Passes over the tokens begin on multiples of this [bytes]."""


def on_all_units(gpu: Gpu) -> ChannelTiling:
    """Channels like the paper's ring kernels: on every compute unit, without the costs of a library."""
    moved = {"threads": RING.threads, "registers_per_thread": RING.registers_per_thread, "slots": RING.slots}
    in_flight = RING.piece * RING.slots
    return ChannelTiling(gpu.compute.compute_units, **moved, lds=0, in_flight=in_flight, sync=0.0, start=0.0)


class Piece(NamedTuple):
    """Rows that one GPU sends to one line of an expert's tiles: where they begin in the list, and in the line."""

    row: int
    line: int
    at: int
    rows: int


class Slot(NamedTuple):
    """The place of a piece on every GPU: how many ranks down it is sent, to which expert there, its number."""

    distance: int
    expert: int
    number: int


Place = Callable[[int, Slot], tuple[int, int]]
"""Size of a GPU's piece and where it begins in a buffer [bytes]."""


@dataclass(frozen=True)
class ExpertLayer:
    """The kernels of a layer of experts on `gpus` simulated GPUs: one that represents all, or each.

    `up` and `down` are the grouped GEMMs, cut by one tiling; `channels` is how the library's all-to-all is cut.
    """

    routing: Routing
    up: GroupedGemm
    down: GroupedGemm
    tiling: GemmTiling
    channels: ChannelTiling
    gpu: Gpu
    gpus: int
    options: RunOptions

    # -- pieces

    def _pieces_to(self, source: int, expert: int) -> list[Piece]:
        """The pieces that a GPU sends to an expert, in the order of its list."""
        routing, high = self.routing, self.tiling.rows
        owner = expert // routing.experts_per_rank
        count, row = int(routing.counts[expert]), int(routing.first_rows(source)[expert])
        # An expert's rows lie in the order of distances, those of its own GPU first.
        at, end = count * ((source - owner) % routing.ranks), row + count
        found = []
        while row < end:
            rows = min(high - at % high, routing.tokens - row % routing.tokens, end - row)
            found.append(Piece(row, self._first_line(owner, expert) + at // high, at % high, rows))
            row, at = row + rows, at + rows
        return found

    def _first_line(self, owner: int, expert: int) -> int:
        """The first line of tiles of an expert on its GPU."""
        lines = -(-self.routing.received(owner) // self.tiling.rows)
        return int(lines[: expert % self.routing.experts_per_rank].sum())

    def lines(self, rank: int) -> int:
        """The lines of tiles of all experts of a GPU."""
        return int((-(-self.routing.received(rank) // self.tiling.rows)).sum())

    @cached_property
    def _cut(self) -> dict[tuple[int, int, int], list[Piece]]:
        """The pieces of each GPU by distance and expert there, as (GPU, distance, expert)."""
        ranks, each = self.routing.ranks, self.routing.experts_per_rank
        return {
            (g, distance, e): self._pieces_to(g, (g - distance) % ranks * each + e)
            for g in (range(ranks) if self.gpus > 1 else range(1))
            for distance in range(ranks)
            for e in range(each)
        }

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The places of all pieces, in the order in which they are sent: expert by expert, to all GPUs in turn."""
        most: dict[tuple[int, int], int] = defaultdict(int)
        for (_, distance, e), pieces in self._cut.items():
            most[distance, e] = max(most[distance, e], len(pieces))
        return tuple(
            sorted(
                (Slot(d, e, number) for (d, e), count in most.items() for number in range(count)),
                key=lambda slot: (slot.expert, slot.number, slot.distance),
            )
        )

    def sent(self, g: int, slot: Slot) -> Piece | None:
        """The piece that GPU g sends at a place; None if it has none there."""
        pieces = self._cut[g if self.gpus > 1 else 0, slot.distance, slot.expert]
        return pieces[slot.number] if slot.number < len(pieces) else None

    def came(self, g: int, slot: Slot) -> Piece | None:
        """The piece that GPU g receives at a place."""
        return self.sent((g + slot.distance) % self.routing.ranks, slot)

    # -- sizes

    @property
    def row_bytes(self) -> int:
        """Size of a token, and of a result [bytes]."""
        return self.up.k * Gemm(1, 1, 1, self.up.dtype).element_bytes

    @property
    def _most_lines(self) -> int:
        return max(map(self.lines, range(self.routing.ranks)))

    def _product(self, op: GroupedGemm) -> Gemm:
        """The GEMM that a grouped one is on a GPU, as if all lines belonged to one expert."""
        return Gemm(self._most_lines * self.tiling.rows, op.n, op.k, op.dtype)

    @property
    def _inner(self) -> int:
        """Size of a row between the GEMMs [bytes]."""
        return self.down.k * self._product(self.down).element_bytes

    # -- tiles

    def _lines_in_order(self, g: int) -> list[tuple[int, int, int]]:
        """Line, expert and rows of every line of a GPU, in the order in which their last pieces are sent."""
        last: dict[int, tuple[int, int]] = {}
        rows: dict[int, int] = defaultdict(int)
        for slot in self.slots:
            if piece := self.came(g, slot):
                last[piece.line] = max(last.get(piece.line, (0, 0)), (slot.expert, slot.number))
                rows[piece.line] += piece.rows
        return [(line, last[line][0], rows[line]) for line in sorted(rows, key=lambda line: (*last[line], line))]

    def _tiles(self, g: int, op: GroupedGemm, stored: int | None, wide: int) -> Work:
        """The tiles of a grouped GEMM on a GPU in order: bands of lines of one expert, walked across.

        They fill the chunk `stored` of "output" (None: no chunk) with rows of `wide` bytes.
        """
        high, columns = self.tiling.rows, -(-op.n // self.tiling.columns)
        bands: list[list[tuple[int, int, int]]] = []
        for one in self._lines_in_order(g):
            if not bands or len(bands[-1]) == self.tiling.band or bands[-1][0][1] != one[1]:
                bands.append([])
            bands[-1].append(one)
        rows = []
        for band in bands:
            for c in range(columns):
                width = min(self.tiling.columns, op.n - c * self.tiling.columns)
                for line, expert, count in band:
                    size, at = width * wide // op.n, c * self.tiling.columns * wide // op.n
                    tile = [line, expert * columns + c, count, width, y.NONE, 0, 0, 0, y.NONE, line]
                    if stored is not None:
                        tile[4:7] = stored, line * high * wide + at * count, size * count
                    rows.append(tile)
        return np.array(rows, dtype=np.int64).reshape(-1, y.WORK_FIELDS)

    def _work(self, ups: list[Work], downs: list[Work]) -> tuple[tuple[Work, ...], int, int]:
        """The tiles of both GEMMs on every GPU, padded to equal numbers with empty ones, and both numbers."""
        first, second = max(map(len, ups)), max(map(len, downs))
        if first + second > MOST_TILES:
            raise InputError(
                f"the experts of a GPU have {first + second} tiles, more than the {MOST_TILES} that a run can hold; "
                "choose fewer tokens or larger tiles"
            )
        works = []
        for up, down in zip(ups, downs, strict=True):
            work = np.concatenate([self._padded(up, first), self._padded(down, second)])
            # Numbers go to the tiles with a chunk first.
            order = np.argsort(work[:, y.WORK_REGION] < 0, kind="stable")
            work[order, y.WORK_TILE] = np.arange(len(work))
            works.append(work)
        return tuple(works), first, second

    def _padded(self, work: Work, length: int) -> Work:
        empty = np.zeros((length - len(work), y.WORK_FIELDS), dtype=np.int64)
        empty[:, (y.WORK_REGION, y.WORK_LANE)] = y.NONE
        empty[:, y.WORK_SCRIPT] = self._most_lines
        return np.concatenate([work, empty])

    def _grouped(self, op: GroupedGemm, operator: str, a: tuple[str, int], tiles: int, first: int) -> Kernel:
        """The kernel of a grouped GEMM whose first script is that of a tile; A is the chunk `a`."""
        columns = -(-op.n // self.tiling.columns)
        across = self.tiling.share_columns if columns % self.tiling.share_columns == 0 else 1
        tiling = replace(self.tiling, share_rows=1, share_columns=across, splits=1)
        kernel = gemm_kernel(self._product(op), self.gpu, tiling, self.options, operator, f"{operator} ")
        main, store = kernel.phases
        load_a, load_b = main.loads
        main = replace(main, loads=(replace(load_a, buffer=a[0], position=a[1]), load_b))
        return replace(kernel, name=operator, workgroups=tiles, part=(first, first + tiles), phases=(main, store))

    def _scripted(self, kernel: Kernel, by_line: list[dict[int, tuple[Phase, ...]]]) -> Kernel:
        """The kernel with a script for every line of each GPU, and an empty one for tiles that a GPU lacks."""
        lines = range(self._most_lines)
        each = [[of_gpu.get(line, ()) for line in lines] + [()] for of_gpu in by_line]
        longest = max(len(script) for of_gpu in each for script in of_gpu)
        padding = (Phase(0, 1, 0),) * longest
        by_gpu = tuple(scripts(padding, *of_gpu)[longest:] for of_gpu in each)
        return replace(kernel, phases=by_gpu[0], by_gpu=by_gpu, script_of=tuple(range(len(lines) + 1)))

    # -- plans

    def sequential(self) -> Plan:
        """Channels put and signal, both GEMMs, channels put and signal, and a kernel that adds."""
        works, products = self._products()
        passes = tuple(("returned", p) for p in range(self.routing.top_k))
        add = sum_kernel("sum", passes, self.gpu, RING, self.row_bytes // self.up.k, "combine")
        kernels = (
            PlacedKernel(self._exchange("dispatch", "sent", "arriving", back=False), operator="dispatch"),
            *products,
            PlacedKernel(self._exchange("combine", "leaving", "coming", back=True), operator="combine"),
            PlacedKernel(add, operator="combine", iteration=0),
        )
        placed = tuple(replace(one, after=(k - 1,) if k else ()) for k, one in enumerate(kernels))
        size = self.routing.tokens * self.row_bytes
        buffers = (
            *self._inputs(self._rules("arriving", "dispatch", back=False)),
            self._outputs(),
            self._alias("leaving", ("output", 1), self._rules("coming", "combine", back=True), self._in_lines),
            Buffer("returned", ((size,) * self.routing.top_k,)),
            self._alias("coming", ("returned", 0), (), self._in_passes),
            Buffer("result", ((size,),)),
        )
        return Plan(placed, buffers, works, self.tiling.wavefronts(self.gpu))

    def _products(self) -> tuple[tuple[Work, ...], list[PlacedKernel]]:
        """The tiles of both GEMMs, whose results are stored in their GPU's memory, and their kernels."""
        works, first, second = self._work(
            [self._tiles(g, self.up, 0, self._inner) for g in range(self.gpus)],
            [self._tiles(g, self.down, 1, self.row_bytes) for g in range(self.gpus)],
        )
        lines = range(self._most_lines)
        products = []
        for op, operator, a, tiles, at in (
            (self.up, "up", ("received", 0), first, 0),
            (self.down, "down", ("output", 0), second, first),
        ):
            kernel = self._grouped(op, operator, a, tiles, at)
            same = dict.fromkeys(lines, kernel.phases)
            # AMD's caches are written back at a kernel's end; NVIDIA's L2, which all SMs share, keeps its lines.
            products.append(
                PlacedKernel(
                    self._scripted(kernel, [same] * self.gpus), release=self.gpu.vendor != "nvidia", operator=operator
                )
            )
        return works, products

    def track_and_trigger(self) -> Plan:
        """T3: copies by DMA engines, GEMMs whose tiles start on arrival, and whose stores update tokens at owners."""
        works, first, second = self._work(
            [self._tiles(g, self.up, 0, self._inner) for g in range(self.gpus)],
            [self._tiles(g, self.down, None, self.row_bytes) for g in range(self.gpus)],
        )
        up = self._grouped(self.up, "up", ("received", 0), first, 0)
        down = self._grouped(self.down, "down", ("output", 0), second, first)
        copies = [self._copies(g) for g in range(self.gpus)]
        products = (
            PlacedKernel(
                self._scripted(up, [self._after_arrival(g, up) for g in range(self.gpus)]),
                release=self.gpu.vendor != "nvidia",
                monitor=True,
                stream=1,
                operator="up",
            ),
            PlacedKernel(
                self._scripted(down, [self._to_owners(g, down) for g in range(self.gpus)]),
                after=(len(copies),),
                stream=1,
                operator="down",
            ),
        )
        pushes = tuple(
            ChunkRule(dma=DmaMap("arriving", p, False, "dispatch", distance, direct=True)) if distance else PLAIN_STORE
            for p, (distance, _, _) in enumerate(self.slots)
        )
        updates = self._rules("summed", "combine", back=True, update=True)
        update = ChunkRule(update=True, counted=True)
        buffers = (
            *self._inputs(pushes),
            Buffer("output", ((self._operand(self.down),),), (CACHED_STORE,)),
            Buffer("sums", ((self.routing.tokens * self.row_bytes,),)),
            self._alias("summed", ("sums", 0), (update,) * len(self.slots), self._at_token),
            self._alias("leaving", ("received", 0), updates, self._in_lines),
        )
        return Plan((*copies, *products), buffers, works, self.tiling.wavefronts(self.gpu))

    def _copies(self, g: int) -> PlacedKernel:
        """The DMA commands of GPU g, piece by piece."""
        sent = (p for p, slot in enumerate(self.slots) if slot.distance and self.sent(g, slot))
        commands = tuple(Command((("sent", p),)) for p in sent)
        kernel = Kernel("dispatch", 0, 0, 0, 0, (), copies=commands)
        return PlacedKernel(kernel, operator="dispatch", gpus=(g,) if self.gpus > 1 else None)

    def _of_lines(self, g: int) -> dict[int, list[tuple[int, Slot, Piece]]]:
        found: dict[int, list[tuple[int, Slot, Piece]]] = defaultdict(list)
        for p, slot in enumerate(self.slots):
            if piece := self.came(g, slot):
                found[piece.line].append((p, slot, piece))
        return found

    def _after_arrival(self, g: int, kernel: Kernel) -> dict[int, tuple[Phase, ...]]:
        """The script of each line of GPU g: wait for its pieces, then compute."""
        return {
            line: (
                *(Phase(0, 1, 0, wait=Wait("arriving", p)) for p, slot, _ in pieces if slot.distance),
                *kernel.phases,
            )
            for line, pieces in self._of_lines(g).items()
        }

    def _to_owners(self, g: int, kernel: Kernel) -> dict[int, tuple[Phase, ...]]:
        """The script of each line of GPU g: compute, then update the tokens of each piece at their owner."""
        main, _ = kernel.phases
        columns, element = -(-self.down.n // self.tiling.columns), self.row_bytes // self.down.n
        found: dict[int, tuple[Phase, ...]] = {}
        for line, pieces in self._of_lines(g).items():
            stores = []
            for p, slot, piece in pieces:
                wide = piece.rows * self.tiling.columns * element
                first = -slot.expert * columns * wide
                buffer = "leaving" if slot.distance else "summed"
                stores.append(Store(buffer, p, "combine", wide, offset=first, column_stride=wide))
            found[line] = (main, Phase(1, 1, 0, stores=tuple(stores)))
        return found

    def _exchange(self, operator: str, source: str, target: str, *, back: bool) -> Kernel:
        """All pieces from `source` to `target`: channels for each peer put its pieces there and signal.

        A channel then waits for what the peer on the other side puts; `back`: results go to where tokens came from.
        """
        ranks, tiling = self.routing.ranks, self.channels
        parts = max(tiling.channels // ranks, 1)
        by_gpu: list[list[tuple[Phase, ...]]] = []
        for g in range(self.gpus):
            each = []
            for distance in range(ranks):
                slots = [(p, slot) for p, slot in enumerate(self.slots) if slot.distance == distance]
                sizes = {
                    p: piece.rows * self.row_bytes for p, slot in slots if (piece := self._of(g, slot, sent=not back))
                }
                waits = [p for p, slot in slots if distance and self._of(g, slot, sent=back)]
                ways = operator, source, target if not distance else source, target
                each += [self._channel(*ways, sizes, waits, parts, part) for part in range(parts)]
            by_gpu.append(each)
        return self._of_scripts(operator, by_gpu, tiling)

    def _of_scripts(self, name: str, by_gpu: list[list[tuple[Phase, ...]]], tiling: ChannelTiling) -> Kernel:
        """A kernel whose channels run a script each, on every GPU its own."""
        longest = (Phase(0, 1, 0),) * max(len(script) for each in by_gpu for script in each)
        padded = tuple(scripts(longest, *each)[len(longest) :] for each in by_gpu)
        channels = len(by_gpu[0])
        kernel = replace(tiling, channels=channels).kernel(name, padded[0], tuple(range(channels)))
        return replace(kernel, by_gpu=padded)

    def _of(self, g: int, slot: Slot, *, sent: bool) -> Piece | None:
        return self.sent(g, slot) if sent else self.came(g, slot)

    def _channel(
        self, operator: str, source: str, stored: str, awaited: str, sizes: dict[int, int], waits: Iterable[int],
        parts: int, part: int,
    ) -> tuple[Phase, ...]:  # fmt: skip
        """The script of one of `parts` channels of a peer: its part of each piece of `sizes`, then the wait for others.

        Pieces are stored under the name `stored`, which the address map sends away, and come under that of `awaited`.
        """
        found, delay = [], self.channels.start
        for p, size in sizes.items():
            each = -(-size // (parts * 128)) * 128
            begin = min(part * each, size)
            if move := min(each, size - begin):
                loop = self.channels.move(move)
                load = loop.access(Load, source, p, operator, offset=begin)
                store = loop.access(Store, stored, p, operator, offset=begin)
                found.append(loop.phase([load], [store], None, delay))
                delay = 0.0
        signals = [Phase(0, 1, 0, wait=Wait(awaited, p)) for p in waits]
        if signals:
            signals[-1] = replace(signals[-1], delay_fs=to_fs(self.channels.sync))
        return (*found, *signals)

    # -- buffers

    def _inputs(self, rules: tuple[ChunkRule, ...]) -> tuple[Buffer, ...]:
        """The tokens, the rows that experts receive, both piece by piece, and the weights."""
        return (
            Buffer("tokens", ((self.routing.tokens * self.row_bytes,),)),
            Buffer("received", ((self._operand(self.up),),)),
            self._alias("sent", ("tokens", 0), rules, self._at_token),
            self._alias("arriving", ("received", 0), (), self._in_lines),
            *self._weights(),
        )

    def _weights(self) -> tuple[Buffer, ...]:
        """What the experts of a GPU multiply by."""
        return tuple(
            Buffer(f"{name} b", ((operand_sizes(self._product(op), self.tiling)[1] * op.groups,),))
            for name, op in (("up", self.up), ("down", self.down))
        )

    def _outputs(self) -> Buffer:
        """What both GEMMs store in their GPU's memory."""
        return Buffer("output", ((self._operand(self.down), self._room(self.row_bytes)),), (CACHED_STORE,) * 2)

    def _room(self, wide: int) -> int:
        """Size of as many rows of `wide` bytes as all lines have [bytes]."""
        return self._most_lines * self.tiling.rows * wide

    def _operand(self, op: GroupedGemm) -> int:
        """Size of the rows that a grouped GEMM reads, in whole lines and K steps [bytes]."""
        return operand_sizes(self._product(op), self.tiling)[0]

    def _rules(
        self, target: str, operator: str, *, back: bool, update: bool = False, slots: tuple[Slot, ...] | None = None
    ) -> tuple[ChunkRule, ...]:
        """Stores go to a piece of the same number, down or, if `back`, up as many ranks."""
        ranks = self.routing.ranks
        away = (-slot.distance % ranks if back else slot.distance for slot in slots or self.slots)
        return tuple(
            ChunkRule(remote=RemoteMap(target, p, update, operator, distance, direct=True)) if distance else PLAIN_STORE
            for p, distance in enumerate(away)
        )

    def _alias(
        self,
        name: str,
        within: tuple[str, int],
        rules: tuple[ChunkRule, ...],
        place: Place,
        slots: tuple[Slot, ...] | None = None,
    ) -> Buffer:
        """The pieces as other names of parts of a chunk, where `place` says."""
        each = [[place(g, slot) for slot in slots or self.slots] for g in range(self.gpus)]
        sizes = tuple(tuple(size for size, _ in row) for row in each)
        offsets = tuple(tuple(offset for _, offset in row) for row in each)
        return Buffer(name, sizes, rules, within=within, offsets=offsets)

    def _at_token(self, g: int, slot: Slot) -> tuple[int, int]:
        """Size and place of a piece that GPU g sends, among its tokens [bytes]."""
        piece = self.sent(g, slot)
        return (piece.rows * self.row_bytes, piece.row % self.routing.tokens * self.row_bytes) if piece else (0, 0)

    def _in_passes(self, g: int, slot: Slot) -> tuple[int, int]:
        """Size and place of the results of a piece that GPU g sent, pass by pass over its tokens [bytes]."""
        size, place = self._at_token(g, slot)
        piece, whole = self.sent(g, slot), -(-self.routing.tokens * self.row_bytes // PAGE) * PAGE
        return size, place + (piece.row // self.routing.tokens * whole if piece else 0)

    def _in_lines(self, g: int, slot: Slot) -> tuple[int, int]:
        """Size and place of a piece that GPU g receives, in the lines of its experts [bytes]."""
        piece = self.came(g, slot)
        return (
            (piece.rows * self.row_bytes, (piece.line * self.tiling.rows + piece.at) * self.row_bytes)
            if piece
            else (0, 0)
        )
