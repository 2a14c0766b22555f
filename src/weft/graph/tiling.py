"""How the kernel of a GEMM cuts its output into tiles."""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.errors import InputError, check_whole
from weft.engine import layout as y
from weft.graph.gemm import Gemm
from weft.hardware import Gpu


@dataclass(frozen=True)
class GemmTiling:
    """How a GEMM is cut: the tile of a workgroup, its step along K, its threads, and the steps in flight.

    128 x 128 with 256 threads (4 wavefronts) is the most common tile of tuned half-precision libraries on 100-CU-class
    GPUs. `slots` counts the K steps held at once: the one that computes and those prefetched. `band` is the number of
    tile lines walked together (Tensile's "workgroup mapping", usually 8). `stages` K steps are held in local memory.
    `resident` workgroups share a compute unit (0: as many as fit). A is fetched jointly by `share_columns` neighbouring
    workgroups in a row of tiles, B by `share_rows` in a column (multicast clusters, or pairs that compute together). K
    is cut into `splits` parts, each with workgroups of its own, whose sums a second kernel adds up (split-K). At most
    `persistent` workgroups run at once and take tiles in turn, as in a work-stealing kernel with a limited grid (0: a
    workgroup per tile).
    """

    rows: int = 128
    columns: int = 128
    step: int = 32
    threads: int = 256
    slots: int = 2
    band: int = 8
    stages: int = 2
    resident: int = 0
    share_rows: int = 1
    share_columns: int = 1
    splits: int = 1
    persistent: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_whole(f"{name} of a GEMM's tiling", value, int(name not in ("resident", "persistent")), 128)
        if self.slots > y.SLOTS:
            raise InputError(
                f"GEMM tiling: slots is {self.slots}; a workgroup has between 1 and {y.SLOTS} iterations in flight"
            )

    def __str__(self) -> str:
        tile = f"{self.rows} x {self.columns} x {self.step}"
        return tile if self.splits == 1 else f"{tile}, K in {self.splits} parts"

    def wavefronts(self, gpu: Gpu) -> int:
        """Wavefronts of a workgroup; each computes one wavefront tile."""
        return -(-self.threads // gpu.compute.wavefront_size)

    def grid(self, gemm: Gemm) -> tuple[int, int]:
        """Tile rows and tile columns of the output."""
        return -(-gemm.m // self.rows), -(-gemm.n // self.columns)

    def workgroups(self, gemm: Gemm) -> int:
        """Workgroups of the kernel: output tiles times parts of K, of every GEMM of a batch."""
        rows, columns = self.grid(gemm)
        return rows * columns * self.splits * gemm.batch

    def part_steps(self, gemm: Gemm) -> tuple[int, ...]:
        """K steps of each part, as even as possible, the longer parts first; InputError for an empty part."""
        steps = -(-gemm.k // self.step)
        if steps < self.splits:
            raise InputError(
                f"GEMM tiling: splits is {self.splits}, but the K of {gemm} has {steps} steps of {self.step}; "
                f"cut it into {steps} parts at most"
            )
        return tuple(steps // self.splits + (part < steps % self.splits) for part in range(self.splits))
