"""Loss of the whole GPU's best kernel on a half and a quarter of the compute units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from weft.graph import Gemm
from weft.kernels import GemmTiling
from weft.plan.tune.queues import SHARES, candidates
from weft.sweep.simulations import Bench, Runs, Simulation, Tiled, drain_seconds


@dataclass(frozen=True)
class ShareLoss:
    """One GEMM on 1 / `share` of the compute units: the whole GPU's best kernel against the best for the share."""

    gemm: Gemm
    share: int
    whole: GemmTiling
    best: GemmTiling
    whole_s: float
    best_s: float

    @property
    def loss(self) -> float:
        """Relative extra time of the whole GPU's kernel: 0.09 is 9 %."""
        return self.whole_s / self.best_s - 1


@dataclass(frozen=True)
class ShareLosses:
    """The losses of a set of GEMMs."""

    rows: Sequence[ShareLoss]

    def median(self, share: int) -> float:
        """Return the median loss on 1 / `share` of the compute units."""
        return median(row.loss for row in self.rows if row.share == share)

    @property
    def changed(self) -> float:
        """Share of the GEMMs whose best tile differs on a half or a quarter of the units."""
        moved = {row.gemm for row in self.rows if row.best != row.whole}
        return len(moved) / len({row.gemm for row in self.rows})


def share_runs(gemms: Sequence[Gemm], bench: Bench) -> Iterator[Simulation]:
    """Yield every candidate of every GEMM on the whole GPU and on its parts."""
    for gemm in gemms:
        yield from _tasks(gemm, bench).values()


def _tasks(gemm: Gemm, bench: Bench) -> dict[tuple[int, GemmTiling], Simulation]:
    """Return every candidate of a GEMM alone, by share (1 / `share` of the units) and tile."""
    have = bench.gpu.compute.compute_units
    return {
        (share, tiling): bench.queue((Tiled(gemm, tiling),), None if share == 1 else max(have // share, 1))
        for tiling in candidates(gemm, bench.gpu, bench.options)
        for share in SHARES
    }


def share_losses(gemms: Sequence[Gemm], bench: Bench, runs: Runs) -> ShareLosses:
    """Return the losses, from the runs of `share_runs`."""
    return ShareLosses(tuple(loss for gemm in gemms for loss in _losses(gemm, bench, runs)))


def _losses(gemm: Gemm, bench: Bench, runs: Runs) -> Iterator[ShareLoss]:
    took = {key: drain_seconds(runs[task]) for key, task in _tasks(gemm, bench).items()}
    best = {share: min((key for key in took if key[0] == share), key=took.__getitem__)[1] for share in SHARES}
    for share in SHARES[1:]:
        whole, own = best[1], best[share]
        yield ShareLoss(gemm, share, whole, own, took[share, whole], took[share, own])
