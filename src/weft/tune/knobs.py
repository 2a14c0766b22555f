"""Settings of a real machine that put a strategy into effect, in words, with their sources (`knobs.toml`)."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from weft.catalog import read_toml
from weft.hardware import Gpu


class Knob(NamedTuple):
    """A setting, and its public source."""

    text: str
    source: str


def knobs_for(
    gpu: Gpu, strategy: str, units: int | None, collective: str, channels: int | None = None, own: int = 0
) -> tuple[Knob, ...]:
    """Settings for a strategy with `units` set apart; none for a vendor without a known library.

    The collective has `channels` where compute units drive it (None: one for each unit set apart, else the library's
    own number, `own`).
    """
    parts = gpu.dies
    apart = units or 0
    many = apart if channels is None else channels
    end = "MIN" if channels is not None and channels > own else "MAX"
    # Rings and trees have channels of their own, sends and receives others (NVIDIA/nccl issue 1598).
    variable = "NCCL_{}_P2P_NCHANNELS" if collective == "all_to_all" else _CHANNELS.get(gpu.vendor, "")
    words = {
        "units": apart,
        "share": f"{apart / parts:g}",
        "rest": gpu.compute.compute_units - apart,
        "channels": f"{variable.format(end)}={many}",
        "ctas": f"{end.lower()}CTAs = {many}",
    }
    found = list(_file().get(gpu.vendor, {}).get(strategy, ()))
    if channels is not None and strategy in ("streams", "priority"):
        found = [*_file()[gpu.vendor]["channels"], *(knob for knob in found if not knob["text"].startswith("nothing"))]
    return tuple(Knob(knob["text"].format(**words), knob["source"]) for knob in found)


_CHANNELS = {"amd": "NCCL_{}_NCHANNELS", "nvidia": "NCCL_{}_CTAS"}


@cache
def _file() -> dict[str, Any]:
    return read_toml(resources.files("weft.tune") / "knobs.toml")
