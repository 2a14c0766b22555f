"""Measured iterations of MLPerf: how well buckets of lengths carry over to other machines, and what intervals hold."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.core.files import read_records, read_text
from weft.papers.sample import allocate, draw, strata
from weft.papers.sample.estimators import estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
GNMT, RNNT = "sqnn_gnmt.csv", "sqnn_rnnt.csv"
BUCKETS = 5
"""Buckets of lengths of GNMT's batches (mlcommons/training_results)."""
UTTERANCES = 1024
"""Utterances of an iteration of RNN-T, over all GPUs (mlcommons/training_results_v1.0)."""
MIXED = ("v0.5",)
"""Rounds in which a batch mixes all lengths, so that there are no buckets."""
WARM_UP = 50
"""Iterations at the start of an epoch that run slow where a program warms up."""


@dataclass(frozen=True, eq=False)
class Log:
    """Measured iterations of one machine: `lengths` (tokens of each; none for RNN-T: all 1), and `seconds`, (n,) each.

    `epochs` are the mean times of whole epochs [s], of all iterations, logged or not.
    """

    system: str
    network: str
    lengths: Floats
    seconds: Floats
    epochs: Floats

    @property
    def spread(self) -> float:
        """How much epochs differ, as a fraction of their mean."""
        return float(self.epochs.std(ddof=1) / self.epochs.mean())

    @property
    def buckets(self) -> tuple[Ints, Floats, Floats]:
        """The bucket of each iteration, and each bucket's share of the iterations and mean time [s]."""
        center = np.linspace(self.lengths.min(), self.lengths.max(), 2 * BUCKETS + 1)[1::2]
        for _ in range(_ROUNDS):
            own = np.abs(self.lengths[:, None] - center).argmin(axis=1)
            count = np.bincount(own, minlength=BUCKETS)
            center = np.where(count, np.bincount(own, self.lengths, BUCKETS) / np.maximum(count, 1), center)
        mean = np.bincount(own, self.seconds, BUCKETS) / np.maximum(count, 1)
        return own, count / len(own), mean


_ROUNDS = 100


def read_logs(data: Path) -> tuple[Log, ...]:
    """Return the logs of GNMT and RNN-T in a folder of measurements; empty where it has none."""
    found: list[Log] = []
    for name, read in ((GNMT, _gnmt), (RNNT, _rnnt)):
        if (data / name).is_file():
            rows: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
            for row in read_records(read_text(data / name), data / name):
                rows[row["system"]].append(row)
            found += [read(system, mine) for system, mine in rows.items()]
    return tuple(found)


def _gnmt(system: str, rows: list[Mapping[str, str]]) -> Log:
    """Every tenth iteration; the first of an epoch waits for data. The last running mean is that of the whole epoch."""
    ends: dict[tuple[str, str], tuple[int, float]] = {}
    for row in rows:
        key, place = (row["run"], row["epoch"]), int(row["iteration"])
        if place >= ends.get(key, (0, 0.0))[0]:
            ends[key] = place, float(row["mean_so_far_ms"]) * 1e-3
    used = [row for row in rows if int(row["iteration"]) >= WARM_UP]
    seconds = np.array([float(row["time_ms"]) for row in used]) * 1e-3
    tokens = np.round(seconds * np.array([float(row["tokens_per_s"]) for row in used]))
    return Log(system, "GNMT", tokens, seconds, np.array([mean for _, mean in ends.values()]))


def _rnnt(system: str, rows: list[Mapping[str, str]]) -> Log:
    """Return every iteration; lengths are not logged."""
    seconds = UTTERANCES / np.array([float(row["utterances_per_s"]) for row in rows])
    epochs: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row, time in zip(rows, seconds.tolist(), strict=True):
        epochs[row["run"], row["epoch"]].append(time)
    return Log(system, "RNN-T", np.ones(len(seconds)), seconds, np.array([np.mean(one) for one in epochs.values()]))


@dataclass(frozen=True)
class Carried:
    """A speedup between two machines from the mean times of buckets: its error, and that of the commonest bucket's."""

    before: str
    after: str
    speedup: float
    error: float
    one_bucket: float


def carry_over(logs: tuple[Log, ...]) -> tuple[Carried, ...]:
    """Speedups between machines with the same buckets; shares of the buckets are those of all logs together."""
    alike = [one for one in logs if one.network == "GNMT" and not one.system.endswith((*MIXED, *_OTHER))]
    parts = {one.system: one.buckets for one in alike}
    if len(alike) < 2:
        return ()
    share = np.average([part[1] for part in parts.values()], axis=0, weights=[len(one.seconds) for one in alike])
    common = int(share.argmax())
    found = []
    for before, after in itertools.combinations(alike, 2):
        first, second = parts[before.system][2], parts[after.system][2]
        real = before.epochs.mean() / after.epochs.mean()
        found.append(
            Carried(
                before.system, after.system, float(real), float(share @ first / (share @ second) / real - 1),
                float(first[common] / second[common] / real - 1),
            )
        )  # fmt: skip
    return tuple(found)


_OTHER = ("fujitsu-gx-v0.7",)
"""Systems whose longest pair differs, and with it the buckets."""


@dataclass(frozen=True)
class Held:
    """Coverage of 95 % intervals of redrawn samples of `iterations`, and their half width, against the true total."""

    system: str
    network: str
    iterations: int
    covered: float
    half_width: float


def check_intervals(log: Log, iterations: int, redraws: int, seed: int = 0, again: float = 0.0) -> Held:
    """Redraw samples of a log, and count how often the interval of each holds the total of all its iterations.

    With `again`, the spread of epochs, intervals are those of a claim about another epoch.
    """
    rng = np.random.default_rng(seed)
    alike = np.unique(log.lengths).size == 1
    own = np.zeros(len(log.lengths), dtype=np.int64) if alike else strata(log.lengths, BUCKETS)
    sizes = np.bincount(own)
    spread = np.bincount(own, log.lengths) / sizes if not alike else np.ones(1)
    given = allocate(sizes, spread, iterations)
    total, inside, half = float(log.seconds.sum()), 0, 0.0
    for _ in range(redraws):
        chosen = draw(own, given, rng)
        one = estimate(log.lengths, own, chosen, log.seconds[chosen], "stratified" if alike else "automatic", again)
        inside += one.low <= total <= one.high
        half += one.half_width
    return Held(log.system, log.network, int(given.sum()), inside / redraws, half / redraws)
