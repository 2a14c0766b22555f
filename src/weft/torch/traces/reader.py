"""What reads a recorded run: one reader for each tool that records, and a trace for each GPU of the run."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.torch.traces.trace import Trace

_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)


class Meeting(NamedTuple):
    """What the kernels of one collective have in common on all ranks.

    With a `group` of ranks, `name` is the collective and `sizes` are its buffers; "": only the kernel's name is known.
    """

    name: str
    group: str = ""
    sizes: str = ""


@dataclass(frozen=True, eq=False)
class RankTrace:
    """The trace of one GPU of a run: its `rank` among `world` ranks, and the numbers of its `steps`, where recorded.

    `origin` is the time at which the trace starts [s], by the clock of its file. `meeting` indexes `meetings` for each
    piece of work (-1: no collective). `remark` is what a reader of the answer must know about this part.
    """

    trace: Trace
    rank: int | None
    world: int | None
    steps: tuple[int, ...]
    origin: float
    meetings: tuple[Meeting, ...]
    meeting: NDArray[np.int64]
    remark: str = ""


class TraceReader(ABC):
    """A tool's format. `recognizes` is asked first, then `read` is called once for each file.

    `tool` names the tool. With `numbered`, ranks without a number are numbered in the order of files and GPUs;
    otherwise a rank that states no number is refused.
    """

    tool: ClassVar[str]
    numbered: ClassVar[bool]

    @abstractmethod
    def recognizes(self, path: Path, start: bytes) -> bool:
        """Return whether a file, which begins with `start` (64 KiB, unpacked), is of this format."""

    @abstractmethod
    def read(self, path: str | Path) -> Iterator[RankTrace]:
        """Yield a trace for each GPU of the file.

        Raises ConfigError for a damaged file, InputError for one without work on a GPU.
        """


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file's name, such as "rank3" or "worker-3"; None if it states none, or several."""
    found = {int(number) for number in _RANK.findall(path.name)}
    return found.pop() if len(found) == 1 else None
