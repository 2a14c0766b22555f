"""Tasks for the tests of sweeps, in a module of their own that other processes can import."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.models import SubLayer
from weft.models.parallel import split
from weft.simulate.single import simulate


@dataclass(frozen=True)
class SmallRun:
    """A small sub-layer, simulated; every run leaves a line in `log` when it begins and when it ends."""

    k: int
    log: str = os.devnull
    m: int = 512

    @property
    def title(self) -> str:
        return f"K {self.k}"

    @property
    def weight(self) -> float:
        return float(self.k)

    def inputs(self) -> Mapping[str, Any]:
        return {"m": self.m, "k": self.k}

    def run(self) -> Mapping[str, Any]:
        self._note("begin")
        result = simulate(split(SubLayer.custom(self.m, 512, self.k), 2), "t3-paper", "t3")
        self._note("end")
        return {"total_s": result.seconds, "bytes": result.total_bytes, "events": result.events}

    def _note(self, what: str) -> None:
        with Path(self.log).open("a") as log:
            log.write(f"{what} {self.k}\n")


@dataclass(frozen=True)
class Echo:
    """Answers what it is given, whatever that is."""

    value: Any
    asked: Any = 0

    @property
    def title(self) -> str:
        return f"echo {self.value}"

    @property
    def weight(self) -> float:
        return 1.0

    def inputs(self) -> Mapping[str, Any]:
        return {"asked": self.asked}

    def run(self) -> Mapping[str, Any]:
        return {"value": self.value}


@dataclass(frozen=True)
class Deadly:
    """Kills its process, unless that is `parent`: always, or only the first time if it may leave a `mark`."""

    value: int
    parent: int
    mark: str = ""

    @property
    def title(self) -> str:
        return f"deadly {self.value}"

    @property
    def weight(self) -> float:
        return 1.0

    def inputs(self) -> Mapping[str, Any]:
        return {"deadly": self.value}

    def run(self) -> Mapping[str, Any]:
        if os.getpid() != self.parent and not (self.mark and Path(self.mark).exists()):
            if self.mark:
                Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"value": self.value}
