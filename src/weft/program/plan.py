"""A plan: the kernels, buffers and address map of a run, still in Python objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.program.rules import PLAIN_STORE, ChunkRule
from weft.program.script import Kernel, Wait

Work = npt.NDArray[np.int64]
"""One row per workgroup: row, column, rows, columns, chunk position, offset in the chunk, bytes, tile number, lane."""


@dataclass(frozen=True)
class Buffer:
    """A buffer in chunks: `sizes[g][p]` bytes at GPU g and position p, each chunk with its rule.

    With `lanes`, what arrives is counted for every workgroup of the sending kernel on its own. With `within`, the
    chunks are other names of that chunk (buffer, position), so that it can be sent to several GPUs.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    rules: tuple[ChunkRule, ...] = ()
    lanes: int = 0
    within: tuple[str, int] | None = None

    def rule(self, position: int) -> ChunkRule:
        """The rule of a chunk; ordinary uncached stores where none is given."""
        return self.rules[position] if self.rules else PLAIN_STORE


@dataclass(frozen=True)
class PlacedKernel:
    """A kernel in a plan: what it follows (the ends of the kernels in the rows `after`, and chunks), its priority, and
    whether its results are released to other readers.

    Of kernels that wait for compute units, the higher priority is served first, then the earlier launch; those that run
    stay. The host launches it `delay_fs` [fs] after it might, as one thread launches streams one after another. It is a
    kernel of iteration `iteration` of the graph's node `operator`, in `stream` (for traces: order is in `after`).
    """

    kernel: Kernel
    after: tuple[int, ...] = ()
    after_chunks: tuple[Wait, ...] = ()
    priority: int = 0
    release: bool = False
    monitor: bool = False
    compute_units: tuple[int, ...] | None = None
    delay_fs: int = 0
    stream: int = 0
    operator: str = ""
    iteration: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything that one run does, for every simulated GPU.

    `work[g]` are the output tiles of GPU g in run order (empty if nothing is tiled); `block_tiles` of them make one
    DMA command; `wavefronts` is the number of wavefront tiles in a tile.
    """

    kernels: tuple[PlacedKernel, ...]
    buffers: tuple[Buffer, ...]
    work: tuple[Work, ...]
    wavefronts: int = 4
    block_tiles: int = 1
    tile_buffer: str = "output"
