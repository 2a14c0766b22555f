"""Settings of a real machine that put a strategy into effect, in words, with their sources (`knobs.toml`)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from weft.hardware import Gpu


class Knob(NamedTuple):
    """A setting, and its public source."""

    text: str
    source: str


def knobs_for(gpu: Gpu, strategy: str, units: int | None, collective: str) -> tuple[Knob, ...]:
    """Settings for a strategy with `units` set apart; none for a vendor without a known library."""
    parts = gpu.dies
    apart = units or 0
    # Rings and trees have channels of their own, sends and receives others (NVIDIA/nccl issue 1598).
    channels = "NCCL_MAX_P2P_NCHANNELS" if collective == "all_to_all" else _CHANNELS.get(gpu.vendor, "")
    words = {
        "units": apart,
        "share": f"{apart / parts:g}",
        "rest": gpu.compute.compute_units - apart,
        "channels": channels,
    }
    found = _file().get(gpu.vendor, {}).get(strategy, ())
    return tuple(Knob(knob["text"].format(**words), knob["source"]) for knob in found)


_CHANNELS = {"amd": "NCCL_MAX_NCHANNELS", "nvidia": "NCCL_MAX_CTAS"}


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((resources.files("weft.search") / "knobs.toml").read_text(encoding="utf-8"))
