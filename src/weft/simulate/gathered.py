"""An all-gather before a GEMM on real numbers: every tile multiplies the rows that its GPU has when it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.answer import to_plain
from weft.core.errors import SimulationError
from weft.graph import Gemm
from weft.kernels import GemmTiling
from weft.simulate.result import Timeline
from weft.simulate.result.timeline import ChunkSpan, TileUpdates

Floats = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class GatherReplay:
    """What GEMMs behind an all-gather computed: `products[g]` is that of GPU g, of the shape (ranks, m, n).

    `operand` is the gathered one (m, k), `weights` what each GPU multiplies it by (ranks, k, n). `pieces` counts the
    pieces of rows that arrived at GPUs, `tiles` those of all products. `same` is the share of elements whose bits are
    those of the same tiles of a whole operand, `error` the root mean square of their errors relative to that
    of exact products.
    """

    run: Timeline
    dtype: str
    operand: Floats
    weights: Floats
    products: Floats
    pieces: int
    tiles: int
    same: float
    error: float

    def to_dict(self) -> dict[str, Any]:
        """Counts and errors as plain data."""
        return to_plain(
            overlap=self.run.overlap, arbiter=self.run.arbiter, gpus=len(self.products), dtype=self.dtype,
            pieces=self.pieces, tiles=self.tiles, same=self.same, error=self.error, seconds=self.run.seconds,
        )  # fmt: skip


def replay_gather(run: Timeline, dtype: str, seed: int, rounded: Callable[[Floats], Floats]) -> GatherReplay:
    """Perform the copies and tiles of a run, in their order, on normal numbers rounded to a format.

    The run must have recorded its tiles (`RunOptions.updates`). Raises SimulationError for a tile that began, or a
    piece that was sent on, before its rows were there.
    """
    node, ranks = run.graph.gemms[0], run.graph.ranks
    gemm = node.op
    tiling = node.choice.tiling
    assert isinstance(gemm, Gemm)
    assert tiling is not None
    assert run.updates is not None
    rng = np.random.default_rng(seed)

    def operand(*shape: int) -> Floats:
        return rounded(rng.standard_normal(shape)).astype(np.float32)

    whole, weights = operand(gemm.m, gemm.k), operand(ranks, gemm.k, gemm.n)
    products, pieces = perform_tiles(run.updates, run.chunks, whole, weights, tiling)
    same = np.array([products[g] == _tile_product(run.updates, g, whole, weights[g], tiling) for g in range(ranks)])
    exact = np.stack([whole.astype(np.float64) @ each for each in weights])
    error = float(np.sqrt(np.mean((rounded(products).astype(np.float64) - exact) ** 2) / np.mean(exact**2)))
    tiles = int(run.updates.begun_fs.size)
    return GatherReplay(run, dtype, whole, weights, products, pieces, tiles, float(same.mean()), error)


def perform_tiles(
    updates: TileUpdates, chunks: tuple[ChunkSpan, ...], whole: Floats, weights: Floats, tiling: GemmTiling
) -> tuple[Floats, int]:
    """Return the product of every GPU, in the order of `whole`'s rows, and the number of pieces that arrived.

    `chunks` are those of all buffers. A GPU's own rows come first in its operand, then those of the GPU above, and so
    on; nothing else is in the operand at first. Raises as `replay_gather` does.
    """
    ranks, m = len(weights), len(whole)
    share = m // ranks
    held = {(one.gpu, one.position): one for one in chunks if one.buffer == "a"}
    size = m // (1 + max(position for _, position in held))
    memory = np.full((ranks, m, whole.shape[1]), np.nan, dtype=np.float32)
    found = np.full((ranks, m, weights.shape[2]), np.nan, dtype=np.float32)
    for g in range(ranks):
        memory[g, :share] = whole[g * share : (g + 1) * share]
    events: list[tuple[int, int, int, int]] = []
    for (g, position), one in held.items():
        if position >= share // size:
            if one.last_remote_fs is None:
                raise SimulationError(f"rows {position * size} of the operand never came to GPU {g}; report this run")
            events.append((one.last_remote_fs, 0, g, position))
    for g, t in np.ndindex(updates.begun_fs.shape):
        events.append((int(updates.begun_fs[g, t]), 1, g, t))
    for at, kind, g, number in sorted(events):
        if kind == 0:
            rows = slice(number * size, (number + 1) * size)
            memory[g, rows] = _sent_rows(memory, held, g, number, share // size, size, at)
        else:
            rows, columns = _place(updates, g, number, tiling)
            if np.isnan(memory[g, rows]).any():
                raise SimulationError(f"tile {number} of GPU {g} began before its rows were there; report this run")
            found[g, _global(rows, g, share, m), columns] = memory[g, rows] @ weights[g][:, columns]
    if np.isnan(found).any():
        raise SimulationError("the log lacks tiles of the output; report this run")
    return found, sum(1 for event in events if event[1] == 0)


def _sent_rows(
    memory: Floats, held: dict[tuple[int, int], ChunkSpan], g: int, position: int, own: int, size: int, at: int
) -> Floats:
    """The rows of a piece that arrives at GPU g: of its owner's memory or, where it was passed on, of the GPU above."""
    ranks = len(memory)
    distance, piece = divmod(position, own)
    above = held.get(((g + 1) % ranks, position - own))
    if distance == 1 or above is None or above.first_sent_fs is None:
        source, there = (g + distance) % ranks, piece
    else:
        source, there = (g + 1) % ranks, position - own
        if above.last_remote_fs is None or not above.last_remote_fs <= above.first_sent_fs <= at:
            raise SimulationError(f"GPU {source} passed rows on before it had them; report this run")
    found: Floats = memory[source, there * size : (there + 1) * size]
    return found


def _place(updates: TileUpdates, g: int, tile: int, tiling: GemmTiling) -> tuple[slice, slice]:
    """Return the rows of a GPU's operand, and the columns, that a tile multiplies."""
    _, row, column, high, wide = updates.tiles[g, tile].tolist()
    first, left = row * tiling.rows, column * tiling.columns
    return slice(first, first + high), slice(left, left + wide)


def _global(rows: slice, g: int, share: int, m: int) -> slice:
    """Return the rows of the whole operand that lie at `rows` of GPU g's."""
    first = (rows.start + g * share) % m
    return slice(first, first + rows.stop - rows.start)


def _tile_product(updates: TileUpdates, g: int, whole: Floats, weights: Floats, tiling: GemmTiling) -> Floats:
    """Return the product of a GPU, tile by tile, of an operand that is all there."""
    m, share = len(whole), len(whole) // len(updates.tiles)
    found = np.full((m, weights.shape[1]), np.nan, dtype=np.float32)
    for rows, columns in (_place(updates, g, t, tiling) for t in range(updates.tiles.shape[1])):
        there = _global(rows, g, share, m)
        found[there, columns] = whole[there] @ weights[:, columns]
    return found
