"""Graphs whose GEMM and collectives share buffers, and what the kernels of methods that join them have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import numpy as np

from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkRule, DmaCommand, Kernel, PlacedKernel, Plan, Wait
from weft.engine.program.plan import CACHED_STORE, Work
from weft.graph import Collective, Gemm, Graph, Node
from weft.graph.choice import InSubLayer, OfRows, TiledGemm
from weft.graph.choice import Kernel as ChosenKernel
from weft.graph.graph import check_choice
from weft.hardware import Gpu
from weft.kernels import GemmTiling, gemm_kernel, operand_sizes, tile_table
from weft.overlaps.lower.fit import check_whole


class JoinedNodes(NamedTuple):
    """The nodes of a GEMM and of the collectives that share its buffers, as far as the graph has them."""

    gemm: Node | None
    reduce: Node | None
    gather: Node | None

    @property
    def kernel(self) -> ChosenKernel | None:
        """Return the kernel that joins the nodes: that of the reduce-scatter or, without one, of the all-gather."""
        return self.joining.choice.kernel

    @property
    def joining(self) -> Node:
        """Return the node whose kernel joins all."""
        node = self.reduce or self.gather
        assert node is not None
        return node

    @property
    def product(self) -> Gemm:
        """Return the GEMM; InputError if the graph lacks it."""
        if self.gemm is None:
            raise not_joined(self.joining)
        assert isinstance(self.gemm.op, Gemm)
        return self.gemm.op

    @property
    def tiling(self) -> GemmTiling | None:
        """Return the tiling that the graph states for the GEMM."""
        return None if self.gemm is None else self.gemm.choice.tiling


def find_joined(graph: Graph) -> JoinedNodes:
    """Return the nodes of a graph that tiles or steps of a ring join; InputError for a graph with others, or two alike.

    Raises InputError, too, for kernels and placements that no joined form uses.
    """
    kinds = ["gemm" if isinstance(node.op, Gemm) else getattr(node.op, "name", "") for node in graph]
    by_kind = dict(zip(kinds, graph, strict=True))
    nodes = JoinedNodes(*(by_kind.get(kind) for kind in ("gemm", "reduce_scatter", "all_gather")))
    consumes = nodes.gemm and nodes.gather and any(edge.node == nodes.gather.id for edge in nodes.gemm.edges)
    named = kinds == [node.id for node in graph]  # as the buffers and traffic of the plan are
    if not named or set(by_kind) - {"gemm", "reduce_scatter", "all_gather"} or (nodes.reduce is None and not consumes):
        raise InputError(
            "tiles and steps of a ring join one 'gemm', its 'reduce_scatter' and its 'all_gather', or an 'all_gather' "
            f"with the GEMM behind it; {', '.join(node.id for node in graph)} are others: leave the kernels of their "
            "collectives to the library"
        )
    for node in graph:
        moves = isinstance(node.op, Collective)
        check_choice(node, get_args(InSubLayer | OfRows) if moves else (TiledGemm,), (), "a joined GEMM and collective")
    return nodes


def not_joined(node: Node) -> InputError:
    """Return the error for a collective whose kernel shares no buffer with a GEMM, or whose GEMM is missing."""
    kernel = node.choice.kernel
    asks = "is left to the library" if kernel is None else f"is a {type(kernel).__name__}"
    return InputError(
        f"'{node.id}' shares buffers with a GEMM, but its kernel {asks}, which does not join it with one; choose "
        "PaperRing, FusedTiles or another kernel that does, or let nodes wait by kernel"
    )


def fit_rows(gemm: Gemm, tiling: GemmTiling, ranks: int) -> GemmTiling:
    """Return the tiling, transposed or halved in rows until whole tiles make up a GPU's share of the rows.

    Where no half does, the tile has the most rows that are a power of two and make up the share, if these are 16.
    """
    rows, columns, share = tiling.rows, tiling.columns, gemm.m // ranks
    if share % rows and share % columns == 0:
        rows, columns = columns, rows
    while share % rows and rows > 16:
        rows //= 2
    if share % rows and share % 16 == 0:
        rows = min(share & -share, 1 << max(tiling.rows.bit_length() - 1, 4))
    return replace(tiling, rows=rows, columns=columns)


@dataclass(frozen=True)
class JoinedPair:
    """A GEMM and a collective of its input or output among `ranks` GPUs; `gemm` is the whole work of one GPU."""

    gemm: Gemm
    tiling: GemmTiling
    ranks: int
    options: RunOptions = SUSTAINED

    @property
    def _peers(self) -> range:
        return range(self.ranks - 1)

    def _product(self, gpu: Gpu) -> Kernel:
        return gemm_kernel(self.gemm, gpu, self.tiling, self.options)

    def _plan(self, gpu: Gpu, kernels: Iterable[PlacedKernel], buffers: Iterable[Buffer], *work: Work) -> Plan:
        return Plan(tuple(kernels), tuple(buffers), work, self.tiling.wavefronts(gpu))

    def _check_chunks(self) -> None:
        """Raise InputError where the rows do not make `ranks` equal chunks of whole tiles, or K is cut."""
        check_whole(self.tiling)
        gemm, ranks, rows = self.gemm, self.ranks, self.tiling.rows
        if gemm.m % ranks or gemm.m // ranks % rows:
            raise InputError(
                f"{gemm.m} rows over {ranks} GPUs are not chunks of whole tiles of {rows} rows; "
                "choose a smaller tile or other dimensions"
            )

    def _chunked_tiles(self, pieces: int = 1) -> Work:
        """Return the output tiles, chunk of rows by chunk of rows, each in `pieces`; a tile's lane is its piece.

        Raises InputError where the rows do not make `ranks` equal chunks of whole tiles, or K is cut.
        """
        self._check_chunks()
        gemm, ranks = self.gemm, self.ranks
        work, piece = repeat_tiles(replace(gemm, m=gemm.m // ranks // pieces), self.tiling, ranks * pieces)
        work[:, y.WORK_LANE] = piece
        return work


def repeat_tiles(part: Gemm, tiling: GemmTiling, parts: int) -> tuple[Work, Work]:
    """Return the tiles of a GEMM in `parts` equal parts of rows, part by part, and the part of each tile."""
    tiles = tile_table(part, tiling, 1)
    work, of_part = np.concatenate([tiles] * parts), np.repeat(np.arange(parts), len(tiles))
    work[:, y.WORK_ROW] += of_part * tiling.grid(part)[0]
    work[:, y.WORK_TILE] = np.arange(len(work))
    return work, of_part


def copy_kernel(buffer: str, number: int, positions: Iterable[int]) -> Kernel:
    """Chunks sent one behind the other by a DMA engine, as an entry of a stream with a number."""
    return copying_kernel(number, [DmaCommand(tuple((buffer, position) for position in positions))])


def copying_kernel(number: int, commands: Iterable[DmaCommand]) -> Kernel:
    """Commands of DMA engines, as an entry of a stream with a number."""
    return Kernel(f"copy {number}", 0, 0, 0, 0, (), copies=tuple(commands))


class GatheredPair(JoinedPair):
    """C = gather(A) x B: every GPU starts with 1/`ranks` of A's rows and receives the others, its own rows first in A.

    A comes in pieces of equal size, `_pieces` of every GPU: whole chunks, if not cut further.
    """

    @property
    def _pieces(self) -> int:
        return 1

    def _tiles(self) -> Work:
        return store_in_order(self._chunked_tiles(self._pieces))

    def _product(self, gpu: Gpu, wait: Wait | None = None) -> Kernel:
        """Return the GEMM, whose operand A is all chunks of a buffer, and whose workgroups start after `wait`."""
        kernel = super()._product(gpu)
        main, *rest = kernel.phases
        load_a, load_b = main.loads
        main = replace(main, loads=(replace(load_a, position=None), load_b), wait=wait)
        return replace(kernel, phases=(main, *rest))

    def _data(self, rules: tuple[ChunkRule, ...] = ()) -> tuple[Buffer, ...]:
        size_a, size_b = operand_sizes(self.gemm, self.tiling)
        pieces = self.ranks * self._pieces
        return (
            Buffer("a", ((size_a // pieces,) * pieces,), rules),
            Buffer("b", ((size_b,),)),
            Buffer("output", ((self.gemm.output_bytes,),), (CACHED_STORE,)),
        )


def store_in_order(work: Work) -> Work:
    """Tiles that are stored one behind the other in the order of their rows."""
    work[:, y.WORK_TILE] = np.arange(len(work))
    work[:, y.WORK_OFFSET] = np.cumsum(work[:, y.WORK_BYTES]) - work[:, y.WORK_BYTES]
    return work
