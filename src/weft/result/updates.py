"""When memory updated each tile of a GEMM whose stores start its reduce-scatter.

A run records this where its options say `updates=True`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.engine import layout as y
from weft.engine.state import Machine
from weft.program import Program

Ints = npt.NDArray[np.int64]
_TILE = (y.WORK_REGION, y.WORK_ROW, y.WORK_COLUMN, y.WORK_ROWS, y.WORK_COLUMNS)


@dataclass(frozen=True)
class TileUpdates:
    """Updates of every wavefront tile of every simulated GPU [fs]; -1 where there was none.

    `here_fs` is when a GPU's own part of a tile was in its memory, `peer_fs` that of the sum that came from a peer;
    arrays of the shape (gpus, tiles, wavefronts). `tiles` has the shape (gpus, tiles, 5): the position of a tile's
    chunk in the order in which the GPU makes chunks, the tile's row and column in the grid, and its rows and columns.
    """

    tiles: Ints
    here_fs: Ints
    peer_fs: Ints


def recorded_updates(program: Program, m: Machine) -> TileUpdates | None:
    """The updates that a run recorded; None if it recorded none, or has no tiles."""
    if len(m.update_log) == 0 or not program.plan.work:
        return None
    gpus, wavefronts = len(m.update_log), int(m.shape[y.SIZE_WAVEFRONTS])
    work = program.plan.work
    tiles = np.stack([work[g if len(work) > 1 else 0][:, _TILE] for g in range(gpus)])
    log = m.update_log.reshape(gpus, -1, wavefronts, y.UPDATE_COLUMNS)[:, : tiles.shape[1]]
    return TileUpdates(tiles, log[..., y.UPDATED_HERE].copy(), log[..., y.UPDATED_BY_PEER].copy())
