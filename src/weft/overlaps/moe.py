"""An MoE layer on explicit GPUs: dispatch, grouped GEMMs and combine, and what all methods that run it have in common.

A GPU's list of rows, one for each token and expert, is cut into pieces: rows that one GPU sends to one expert, and that
lie in one line of that expert's tiles and in one pass over the tokens. Piece p is the same on every GPU as seen from
there: GPU g sends it `distance` ranks down, and receives its own piece p from the GPU `distance` ranks up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkRule, Kernel, Phase, PlacedKernel, Plan, RemoteMap
from weft.engine.program.plan import CACHED_STORE, PLAIN_STORE, Work, scripts
from weft.estimate.target import check_held
from weft.graph import Collective, Gemm, Graph, GroupedGemm, Node, TiledGemm
from weft.graph.choice import Exchange
from weft.graph.graph import check_choice
from weft.graph.routing import Routing
from weft.hardware import Gpu, System
from weft.kernels import GemmTiling, gemm_kernel, operand_sizes
from weft.kernels.channels import ChannelTiling
from weft.kernels.ring import RING
from weft.models.parallel.deployment import Deployment
from weft.overlaps.base import OverlapMethod
from weft.overlaps.graphs import find_moe_layer
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.fit import MOST_TILES, tiling_for
from weft.overlaps.lower.gpus import check_adjacent, count_simulated

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
class ExpertMethod(OverlapMethod):
    """A method that runs an MoE layer: its exchanges and grouped GEMMs are the kernels of `layer_class`."""

    @property
    @abstractmethod
    def layer_class(self) -> type[ExpertLayer]:
        """Return the class whose `plan` has the kernels of the layer."""

    def cut_exchanges(self, graph: Graph, system: System) -> tuple[tuple[ChannelTiling, ...], System]:
        """Return how exchanges are cut, as `layer_class` takes it, and the system as their stores see its links."""
        return (on_all_units(system.gpu),), system

    def check_plan(self, axis: str, plan: Deployment, system: System) -> None:
        """Raise InputError for experts in several nodes, and for a plan with uneven loads of experts."""
        if axis == "ep":
            how = "sends tokens straight to their experts, among"
            self.check_in_node(axis, how, plan, system, "priority or partition")
            if plan.expert_load:
                raise InputError(f"'{self.name}' is timed in a step with even loads of experts; leave loads out")

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of an MoE layer."""
        return self.lower_experts(graph, system, options)

    def lower_experts(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of an MoE layer; InputError for kernels that no exchange and no grouped GEMM has."""
        for node in graph:
            moves = isinstance(node.op, Collective)
            check_choice(node, get_args(Exchange) if moves else (TiledGemm,), (), "a layer of experts")
        layer, system = self.expert_layer(graph, system, options)

        def cut(node: Node) -> Node:
            grouped = isinstance(node.op, GroupedGemm)
            return replace(node, choice=node.choice.with_tiling(layer.tiling)) if grouped else node

        return Lowered(graph.map(cut), layer.plan(), system, layer.gpus)

    def expert_layer(self, graph: Graph, system: System, options: RunOptions) -> tuple[ExpertLayer, System]:
        """Return the kernels of an MoE layer, and the system as its exchanges see it."""
        layer = find_moe_layer(graph)
        routing = layer.routing
        if routing.ranks != graph.ranks:
            raise InputError(
                f"the routing is among {routing.ranks} GPUs, but the graph runs on {graph.ranks}; give both one number"
            )
        if layer.combine.choice.kernel != layer.dispatch.choice.kernel:
            raise InputError(
                "dispatch and combine of the layer of experts have different kernels; give both the same one"
            )
        check_adjacent(system, graph.ranks, "a layer of experts sends tokens straight to the GPU of each expert")
        up, down, moved = (node.op for node in (layer.up, layer.down, layer.dispatch))
        assert isinstance(up, GroupedGemm)
        assert isinstance(down, GroupedGemm)
        assert isinstance(moved, Collective)
        for op in (up, down, moved):
            check_held(op, system.gpu)
        uneven = "" if routing.even else "their experts get different numbers of tokens"
        gpus = count_simulated(graph, system, options, uneven=uneven)
        (channels, *others), system = self.cut_exchanges(graph, system)
        tiling = layer.up.choice.tiling or tiling_for(Gemm(up.rows, up.n, up.k, up.dtype), system.gpu, options)
        made = self.layer_class(routing, up, down, tiling, channels, system.gpu, gpus, options, *others)
        return made, system


def expert_layer(
    method: OverlapMethod, graph: Graph, system: System, options: RunOptions
) -> tuple[ExpertLayer, System]:
    """Return the kernels of an MoE layer under a method, and the system as its exchanges see it."""
    if not isinstance(method, ExpertMethod):
        raise InputError(f"'{method.name}' makes its own kernels of an MoE layer; choose 't3-all-to-all' or 'deepep'")
    return method.expert_layer(graph, system, options)


@dataclass(frozen=True)
class ExpertLayer(ABC):
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

    @abstractmethod
    def plan(self) -> Plan:
        """Return the kernels and buffers of the layer."""

    # -- pieces

    def _pieces_to(self, source: int, expert: int) -> list[Piece]:
        """Return the pieces that a GPU sends to an expert, in the order of its list."""
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
        """Return the first line of tiles of an expert on its GPU."""
        lines = -(-self.routing.received_rows(owner) // self.tiling.rows)
        return int(lines[: expert % self.routing.experts_per_rank].sum())

    def lines(self, rank: int) -> int:
        """Return the lines of tiles of all experts of a GPU."""
        return int((-(-self.routing.received_rows(rank) // self.tiling.rows)).sum())

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

    def sent_piece(self, g: int, slot: Slot) -> Piece | None:
        """Return the piece that GPU g sends at a place; None if it has none there."""
        pieces = self._cut[g if self.gpus > 1 else 0, slot.distance, slot.expert]
        return pieces[slot.number] if slot.number < len(pieces) else None

    def came(self, g: int, slot: Slot) -> Piece | None:
        """Return the piece that GPU g receives at a place."""
        return self.sent_piece((g + slot.distance) % self.routing.ranks, slot)

    # -- sizes

    @property
    def row_bytes(self) -> int:
        """Size of a token, and of a result [bytes]."""
        return self.up.k * Gemm(1, 1, 1, self.up.dtype).element_bytes

    @property
    def _most_lines(self) -> int:
        return max(map(self.lines, range(self.routing.ranks)))

    def _product(self, op: GroupedGemm) -> Gemm:
        """Return the GEMM that a grouped one is on a GPU, as if all lines belonged to one expert."""
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
        """Return the tiles of a grouped GEMM on a GPU in order: bands of lines of one expert, walked across.

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
        """Return the tiles of both GEMMs on every GPU, padded to equal numbers with empty ones, and both numbers."""
        first, second = max(map(len, ups)), max(map(len, downs))
        if first + second > MOST_TILES:
            raise InputError(
                f"the experts of a GPU have {first + second} tiles, more than the {MOST_TILES} that a run can hold; "
                "choose fewer tokens or larger tiles"
            )
        works = []
        for up, down in zip(ups, downs, strict=True):
            work = np.concatenate([self._pad_work(up, first), self._pad_work(down, second)])
            # Numbers go to the tiles with a chunk first.
            order = np.argsort(work[:, y.WORK_REGION] < 0, kind="stable")
            work[order, y.WORK_TILE] = np.arange(len(work))
            works.append(work)
        return tuple(works), first, second

    def _pad_work(self, work: Work, length: int) -> Work:
        empty = np.zeros((length - len(work), y.WORK_FIELDS), dtype=np.int64)
        empty[:, (y.WORK_REGION, y.WORK_LANE)] = y.NONE
        empty[:, y.WORK_SCRIPT] = self._most_lines
        return np.concatenate([work, empty])

    def _grouped_kernel(self, op: GroupedGemm, operator: str, a: tuple[str, int], tiles: int, first: int) -> Kernel:
        """The kernel of a grouped GEMM whose first script is that of a tile; A is the chunk `a`."""
        columns = -(-op.n // self.tiling.columns)
        across = self.tiling.share_columns if columns % self.tiling.share_columns == 0 else 1
        tiling = replace(self.tiling, share_rows=1, share_columns=across, splits=1)
        kernel = gemm_kernel(self._product(op), self.gpu, tiling, self.options, operator, f"{operator} ")
        main, store = kernel.phases
        load_a, load_b = main.loads
        main = replace(main, loads=(replace(load_a, buffer=a[0], position=a[1]), load_b))
        return replace(kernel, name=operator, workgroups=tiles, part=(first, first + tiles), phases=(main, store))

    def _script_lines(self, kernel: Kernel, by_line: list[dict[int, tuple[Phase, ...]]]) -> Kernel:
        """Return the kernel with a script for every line of each GPU, and an empty one for tiles that a GPU lacks."""
        lines = range(self._most_lines)
        each = [[of_gpu.get(line, ()) for line in lines] + [()] for of_gpu in by_line]
        longest = max(len(script) for of_gpu in each for script in of_gpu)
        padding = (Phase(0, 1, 0),) * longest
        by_gpu = tuple(scripts(padding, *of_gpu)[longest:] for of_gpu in each)
        return replace(kernel, phases=by_gpu[0], by_gpu=by_gpu, script_of=tuple(range(len(lines) + 1)))

    def _products(self) -> tuple[tuple[Work, ...], list[PlacedKernel]]:
        """Return the tiles of both GEMMs, whose results are stored in their GPU's memory, and their kernels."""
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
            kernel = self._grouped_kernel(op, operator, a, tiles, at)
            same = dict.fromkeys(lines, kernel.phases)
            # AMD's caches are written back at a kernel's end; NVIDIA's L2, which all SMs share, keeps its lines.
            products.append(
                PlacedKernel(
                    self._script_lines(kernel, [same] * self.gpus),
                    release=self.gpu.vendor != "nvidia",
                    operator=operator,
                )
            )
        return works, products

    def _of_scripts(self, name: str, by_gpu: list[list[tuple[Phase, ...]]], tiling: ChannelTiling) -> Kernel:
        """Return a kernel whose channels run a script each, on every GPU its own."""
        longest = (Phase(0, 1, 0),) * max(len(script) for each in by_gpu for script in each)
        padded = tuple(scripts(longest, *each)[len(longest) :] for each in by_gpu)
        channels = len(by_gpu[0])
        kernel = replace(tiling, channels=channels).kernel(name, padded[0], tuple(range(channels)))
        return replace(kernel, by_gpu=padded)

    # -- buffers

    def _inputs(self, rules: tuple[ChunkRule, ...]) -> tuple[Buffer, ...]:
        """Return the tokens, the rows that experts receive, both piece by piece, and the weights."""
        return (
            Buffer("tokens", ((self.routing.tokens * self.row_bytes,),)),
            Buffer("received", ((self._operand(self.up),),)),
            self._alias("sent", ("tokens", 0), rules, self._at_token),
            self._alias("arriving", ("received", 0), (), self._in_lines),
            *self._weights(),
        )

    def _weights(self) -> tuple[Buffer, ...]:
        """Return what the experts of a GPU multiply by."""
        return tuple(
            Buffer(f"{name} b", ((operand_sizes(self._product(op), self.tiling)[1] * op.groups,),))
            for name, op in (("up", self.up), ("down", self.down))
        )

    def _outputs(self) -> Buffer:
        """Return what both GEMMs store in their GPU's memory."""
        return Buffer("output", ((self._operand(self.down), self._room(self.row_bytes)),), (CACHED_STORE,) * 2)

    def _room(self, wide: int) -> int:
        """Return the size of as many rows of `wide` bytes as all lines have [bytes]."""
        return self._most_lines * self.tiling.rows * wide

    def _operand(self, op: GroupedGemm) -> int:
        """Return the size of the rows that a grouped GEMM reads, in whole lines and K steps [bytes]."""
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
        """Return the pieces as other names of parts of a chunk, where `place` says."""
        each = [[place(g, slot) for slot in slots or self.slots] for g in range(self.gpus)]
        sizes = tuple(tuple(size for size, _ in row) for row in each)
        offsets = tuple(tuple(offset for _, offset in row) for row in each)
        return Buffer(name, sizes, rules, within=within, offsets=offsets)

    def _at_token(self, g: int, slot: Slot) -> tuple[int, int]:
        """Return size and place of a piece that GPU g sends, among its tokens [bytes]."""
        piece = self.sent_piece(g, slot)
        return (piece.rows * self.row_bytes, piece.row % self.routing.tokens * self.row_bytes) if piece else (0, 0)

    def _in_passes(self, g: int, slot: Slot) -> tuple[int, int]:
        """Return size and place of the results of a piece that GPU g sent, pass by pass over its tokens [bytes]."""
        size, place = self._at_token(g, slot)
        piece, whole = self.sent_piece(g, slot), -(-self.routing.tokens * self.row_bytes // PAGE) * PAGE
        return size, place + (piece.row // self.routing.tokens * whole if piece else 0)

    def _in_lines(self, g: int, slot: Slot) -> tuple[int, int]:
        """Return size and place of a piece that GPU g receives, in the lines of its experts [bytes]."""
        piece = self.came(g, slot)
        return (
            (piece.rows * self.row_bytes, (piece.line * self.tiling.rows + piece.at) * self.row_bytes)
            if piece
            else (0, 0)
        )
