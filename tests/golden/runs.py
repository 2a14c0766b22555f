"""Two small runs, and what they took to the last femtosecond, event and byte.

`make golden` writes golden.json beside this file anew; whoever changes it says in the commit why the figures moved.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import weft
from weft.models import SubLayer
from weft.models.parallel import split
from weft.simulate.result import Timeline

GOLDEN = Path(__file__).parent / "golden.json"


def t3() -> Timeline:
    """A sub-layer of 1024 x 1024 x 512 on four GPUs under T3-MCA."""
    return weft.simulate(split(SubLayer.custom(1024, 1024, 512), 4), "t3-paper", "t3-mca")


def shared() -> Timeline:
    """A GEMM co-run with an all-reduce of 8 MiB on four A100, on streams of one priority."""
    gemm, moved = weft.Gemm(2048, 1024, 1024, "bf16"), weft.Collective("all_reduce", 8 << 20, 4)
    return weft.simulate(weft.balance_loops(gemm, moved, "a100-sxm-80gb"), "a100-sxm-80gb")


RUNS = {"t3-mca": t3, "gemm beside all_reduce": shared}


def figures(run: Timeline) -> Mapping[str, Any]:
    """What a run took: ends of kernels and of all [fs], events, requests, and DRAM traffic by cause [bytes]."""
    return {
        "end_fs": max(span.end_fs for span in run.spans),
        "kernels": {f"{span.gpu}: {span.kernel}": span.end_fs for span in run.spans},
        "events": run.events,
        "requests": run.requests,
        "bytes": {" ".join(cause): amount for cause, amount in run.traffic.items()},
    }


if __name__ == "__main__":
    found = {name: figures(run()) for name, run in RUNS.items()}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
