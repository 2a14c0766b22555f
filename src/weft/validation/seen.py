"""Whether the system and the method of a measured row were in sight of any fit or choice of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.catalog import read_toml
from weft.hardware import Gpu
from weft.library import software
from weft.library.profiles import Profile

YES = "yes"
"""Both were in sight."""


@cache
def _lists() -> Mapping[str, Mapping[str, Sequence[str]]]:
    return read_toml(resources.files("weft.validation") / "seen.toml")


def seen_overlap(system: str, method: str) -> str:
    """Whether a pair's system and method were in sight: "yes", "not the system", "not the method" or "neither"."""
    known = software.rows()
    here, so = hardware.system(system).name in known["systems"], method in known["methods"]
    return {(True, True): YES, (False, True): NO, (True, False): "not the method", (False, False): "neither"}[here, so]


def seen_systems(kind: str, systems: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    """Whether each row's system was in sight, for a kind whose systems are listed."""
    known = _lists()[kind]["systems"]
    return np.array([_word(hardware.system(name).name in known) for name in systems.tolist()], dtype=np.str_)


def seen_gemms(gpu: Gpu, dtypes: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    """Whether GEMMs of each row's data type on a GPU were fitted: its matrix rate is calibrated."""
    sources = gpu.provenance
    paths = (f"achieved.matrix_{dtype}" for dtype in dtypes.tolist())
    return np.array([_word(path in sources and sources[path].kind == "calibrated") for path in paths], dtype=np.str_)


def seen_collectives(gpu: Gpu, profile: Profile, rows: int) -> npt.NDArray[np.str_]:
    """Whether a library's profile was fitted on a GPU, for each of `rows` rows."""
    return np.full(rows, _word(gpu.name in profile.gpus))


def _word(seen: bool) -> str:
    return YES if seen else NO


NO = "not the system"
