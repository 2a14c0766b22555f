"""Two sweeps, the second of a single run: prints where each process keeps machine code, and how often some was made."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.sweep import pool
from weft.sweep.tasks import run_tasks


@dataclass(frozen=True)
class Where:
    """Answers where its process keeps machine code, and whether it can."""

    number: int

    @property
    def title(self) -> str:
        return f"run {self.number}"

    @property
    def weight(self) -> float:
        return 1.0

    def inputs(self) -> Mapping[str, Any]:
        return {"number": self.number}

    def run(self) -> Mapping[str, Any]:
        from weft.engine.code import cache_directory, keeps_code

        return {
            "folder": str(cache_directory()),
            "keeps": keeps_code(),
            "made": len(list(cache_directory().glob("*.code"))),
            "here": os.getpid() == int(os.environ["SWEEPING"]),
        }


def compile_quickly() -> None:
    """In place of the engine's compiler: a file where its code would lie, unless there is one."""
    from weft.engine.code import cache_directory, is_compiled

    if not is_compiled():
        (cache_directory() / "loop.run.code").touch()


if __name__ == "__main__":
    os.environ["SWEEPING"] = str(os.getpid())
    pool.compile_here = compile_quickly
    for numbers in ((1, 2), (3,)):
        for _, record in run_tasks([Where(number) for number in numbers], jobs=2):
            sys.stdout.write(f"{record['folder']} {record['keeps']} {record['made']} {record['here']}\n")
    sys.stdout.write(os.environ["WEFT_CACHE"])
