"""What the kernel that is best on the whole GPU loses on a half and a quarter of its compute units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from weft.kernels import GemmTiling
from weft.tuning.batches import Batch, Bench, Runs
from weft.tuning.kernels import SHARES, candidates
from weft.workload import Gemm


@dataclass(frozen=True)
class ShareLoss:
    """One GEMM on one over `share` of the compute units: the whole GPU's best kernel against the best for the share."""

    gemm: Gemm
    share: int
    whole: GemmTiling
    best: GemmTiling
    whole_s: float
    best_s: float

    @property
    def loss(self) -> float:
        """How much longer the whole GPU's kernel takes: 0.09 is 9 %."""
        return self.whole_s / self.best_s - 1


@dataclass(frozen=True)
class ShareLosses:
    """The losses of a set of GEMMs."""

    rows: Sequence[ShareLoss]

    def median(self, share: int) -> float:
        """The median loss on one over `share` of the compute units."""
        return median(row.loss for row in self.rows if row.share == share)

    @property
    def changed(self) -> float:
        """Share of the GEMMs whose best tile is another one on a half or on a quarter."""
        moved = {row.gemm for row in self.rows if row.best != row.whole}
        return len(moved) / len({row.gemm for row in self.rows})


def share_runs(gemms: Sequence[Gemm], bench: Bench) -> Iterator[Batch]:
    """Every candidate of every GEMM on the whole GPU and on its parts."""
    for gemm in gemms:
        for tiling in candidates(gemm, bench.gpu, bench.clock):
            for share in SHARES:
                yield bench.copies(gemm, tiling, 1, units_of(bench, share))


def units_of(bench: Bench, share: int) -> int | None:
    """Compute units of one over `share` of the GPU (None: all)."""
    return None if share == 1 else max(bench.gpu.compute.compute_units // share, 1)


def share_losses(gemms: Sequence[Gemm], bench: Bench, runs: Runs) -> ShareLosses:
    """The losses, from the runs of `share_runs`."""
    rows = []
    for gemm in gemms:
        tilings = candidates(gemm, bench.gpu, bench.clock)
        took = {
            (share, tiling): runs[bench.copies(gemm, tiling, 1, units_of(bench, share))].makespan_s
            for share in SHARES
            for tiling in tilings
        }
        best = {share: min((took[share, one], at) for at, one in enumerate(tilings))[1] for share in SHARES}
        rows += [_loss(gemm, share, tilings[best[1]], tilings[best[share]], took) for share in SHARES[1:]]
    return ShareLosses(tuple(rows))


def _loss(
    gemm: Gemm,
    share: int,
    whole: GemmTiling,
    best: GemmTiling,
    took: Mapping[tuple[int, GemmTiling], float],
) -> ShareLoss:
    return ShareLoss(gemm, share, whole, best, took[share, whole], took[share, best])
