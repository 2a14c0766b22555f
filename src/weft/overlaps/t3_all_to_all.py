"""T3 around an MoE layer: arriving tokens start tiles of the first GEMM, finished tiles update tokens at their owner.

DMA engines send the pieces in the order in which the first GEMM takes them. A tile of that GEMM starts when the pieces
of its line have arrived; a tile of the second GEMM is stored as updates of its tokens in the memory of their owners.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import ClassVar

from weft.core.errors import InputError
from weft.engine.program import (
    Buffer,
    ChunkRule,
    ChunkStore,
    DmaCommand,
    DmaMap,
    Kernel,
    Phase,
    PlacedKernel,
    Plan,
    Wait,
)
from weft.engine.program.plan import CACHED_STORE, PLAIN_STORE
from weft.graph import Edge, Graph, KernelChoice, MoEExchange, TrackedMoEExchange
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu
from weft.overlaps.graphs import Pattern, find_moe_layer
from weft.overlaps.moe import ExpertLayer, ExpertMethod, Piece, Slot
from weft.overlaps.t3 import TRACKED


@dataclass(frozen=True)
class T3AllToAll(ExpertMethod):
    """T3's mechanisms around an MoE layer: arriving tokens start tiles, and finished tiles update their tokens.

    DMA engines send the tokens, expert by expert; the memory of each token's owner adds up what its experts answer.
    """

    name: str = "t3-all-to-all"
    title: str = "T3-all-to-all"
    summary: str = "experts: tiles start as their tokens arrive, and finished tiles update their tokens at the owner"
    hardware_needs: tuple[str, ...] = TRACKED

    joins: ClassVar[str] = "tiles of a layer of experts and the exchanges around it"
    patterns: ClassVar[tuple[Pattern, ...]] = ("moe_layer", "ep")
    kernels: ClassVar[tuple[type[ChosenKernel], ...]] = (TrackedMoEExchange,)

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the layer with copies that the first GEMM awaits by tile, and tiles of the second as the combine."""
        layer = find_moe_layer(graph)
        for node in (layer.dispatch, layer.combine):
            if node.choice.kernel not in (MoEExchange(layer.routing), TrackedMoEExchange(layer.routing)):
                raise InputError(
                    f"'{self.name}' sends tokens by DMA engines that T3's tracker triggers, but the kernel of "
                    f"'{node.id}' states a dispatcher, channels or another routing; leave them out"
                )
        tracked = KernelChoice(TrackedMoEExchange(layer.routing))
        copied = replace(layer.dispatch, choice=tracked, stream="communication")
        up = replace(layer.up, after=(Edge(layer.dispatch.id, "tile"),))
        combine = replace(layer.combine, after=(Edge(layer.down.id, "tile"),), choice=tracked)
        return replace(graph, nodes=(copied, up, layer.down, combine))

    @property
    def layer_class(self) -> type[ExpertLayer]:
        """Return the kernels of an MoE layer under T3."""
        return TrackedExperts


@dataclass(frozen=True)
class TrackedExperts(ExpertLayer):
    """Copies by DMA engines, GEMMs whose tiles start on arrival, and stores that update tokens at their owners."""

    def plan(self) -> Plan:
        """T3: copies by DMA engines, GEMMs whose tiles start on arrival, and whose stores update tokens at owners."""
        works, first, second = self._work(
            [self._tiles(g, self.up, 0, self._inner) for g in range(self.gpus)],
            [self._tiles(g, self.down, None, self.row_bytes) for g in range(self.gpus)],
        )
        up = self._grouped_kernel(self.up, "up", ("received", 0), first, 0)
        down = self._grouped_kernel(self.down, "down", ("output", 0), second, first)
        copies = [self._copies(g) for g in range(self.gpus)]
        products = (
            PlacedKernel(
                self._script_lines(up, [self._after_arrival(g, up) for g in range(self.gpus)]),
                release=self.gpu.vendor != "nvidia",
                monitor=True,
                stream=1,
                operator="up",
            ),
            PlacedKernel(
                self._script_lines(down, [self._to_owners(g, down) for g in range(self.gpus)]),
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
        """Return the DMA commands of GPU g, piece by piece."""
        sent = (p for p, slot in enumerate(self.slots) if slot.distance and self.sent_piece(g, slot))
        commands = tuple(DmaCommand((("sent", p),)) for p in sent)
        kernel = Kernel("dispatch", 0, 0, 0, 0, (), copies=commands)
        return PlacedKernel(kernel, operator="dispatch", gpus=(g,) if self.gpus > 1 else None)

    def _of_lines(self, g: int) -> dict[int, list[tuple[int, Slot, Piece]]]:
        found: dict[int, list[tuple[int, Slot, Piece]]] = defaultdict(list)
        for p, slot in enumerate(self.slots):
            if piece := self.came(g, slot):
                found[piece.line].append((p, slot, piece))
        return found

    def _after_arrival(self, g: int, kernel: Kernel) -> dict[int, tuple[Phase, ...]]:
        """Return the script of each line of GPU g: wait for its pieces, then compute."""
        return {
            line: (
                *(Phase(0, 1, 0, wait=Wait("arriving", p)) for p, slot, _ in pieces if slot.distance),
                *kernel.phases,
            )
            for line, pieces in self._of_lines(g).items()
        }

    def _to_owners(self, g: int, kernel: Kernel) -> dict[int, tuple[Phase, ...]]:
        """Return the script of each line of GPU g: compute, then update the tokens of each piece at their owner."""
        main, _ = kernel.phases
        columns, element = -(-self.down.n // self.tiling.columns), self.row_bytes // self.down.n
        found: dict[int, tuple[Phase, ...]] = {}
        for line, pieces in self._of_lines(g).items():
            stores = []
            for p, slot, piece in pieces:
                wide = piece.rows * self.tiling.columns * element
                first = -slot.expert * columns * wide
                buffer = "leaving" if slot.distance else "summed"
                stores.append(ChunkStore(buffer, p, "combine", wide, offset=first, column_stride=wide))
            found[line] = (main, Phase(1, 1, 0, stores=tuple(stores)))
        return found
