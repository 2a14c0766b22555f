"""Commands of processing in memory as data: runs of equal commands that a channel carries out in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.engine.layout import (
    PIM_COLUMNS,
    PIM_COMPUTE,
    PIM_COUNT,
    PIM_GAP,
    PIM_KIND,
    PIM_TOGETHER,
    READ,
    UPDATE,
    WRITE,
)

KINDS = {"compute": PIM_COMPUTE, "read": READ, "write": WRITE, "update": UPDATE}
"""What a command does, by name: computes in registers, reads a word of every open row, writes one, or adds to one."""


@dataclass(frozen=True, eq=False)
class PimStream:
    """Runs of commands for all units of a channel, a row of `runs` each (columns: `weft.engine.layout`, PIM_*).

    `words` is the number of words of the tensor that each unit works through, `title` what is done to them. Runs up to
    a barrier belong together: no request of the GPU comes between them.
    """

    title: str
    words: int
    runs: npt.NDArray[np.int64]

    @classmethod
    def of(cls, title: str, words: int, runs: Iterable[tuple[int, ...]]) -> PimStream:
        """A stream of runs, given as tuples of the columns."""
        return cls(title, words, np.array(list(runs), dtype=np.int64).reshape(-1, PIM_COLUMNS))

    def count(self, *kinds: str) -> int:
        """Number of commands of some kinds (none given: of all)."""
        counts = self.runs[:, PIM_COUNT]
        wanted = [KINDS[kind] for kind in kinds]
        return int(counts[np.isin(self.runs[:, PIM_KIND], wanted)].sum() if kinds else counts.sum())

    @property
    def commands_per_word(self) -> float:
        """Commands for each word of the tensor: c of JIT-Q's cost."""
        return self.count() / self.words

    @property
    def busy_fs(self) -> int:
        """Time that the commands take where no row is opened [fs]."""
        return int((self.runs[:, PIM_COUNT] * self.runs[:, PIM_GAP]).sum())

    @property
    def blocks(self) -> int:
        """Number of groups of runs that end in a barrier."""
        return int((self.runs[:, PIM_TOGETHER] == 0).sum())
