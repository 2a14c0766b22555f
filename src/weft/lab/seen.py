"""Whether the system and the method of a measured row were in sight of any fit or choice of its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources

import pandas as pd

from weft import hardware
from weft.core.catalog import read_toml
from weft.hardware import Gpu
from weft.kernels.library import software
from weft.kernels.library.profiles import Profile

YES = "yes"
"""Both were in sight."""


@cache
def _lists() -> Mapping[str, Mapping[str, Sequence[str]]]:
    return read_toml(resources.files("weft.lab") / "seen.toml")


def seen_overlap(system: str, method: str) -> str:
    """Return whether system and method were in-sample: "yes", "not the system", "not the method" or "neither"."""
    known = software.rows()
    here, so = hardware.system(system).name in known["systems"], method in known["methods"]
    return {(True, True): YES, (False, True): NO, (True, False): "not the method", (False, False): "neither"}[here, so]


def seen_systems(kind: str, systems: Iterable[str]) -> list[str]:
    """Return whether each row's system was in sight, for a kind whose systems are listed."""
    known = _lists()[kind]["systems"]
    return [_word(hardware.system(name).name in known) for name in systems]


def seen_gemms(gpu: Gpu, dtypes: pd.Series[str]) -> pd.Series[str]:
    """Return whether GEMMs of each row's data type on a GPU were fitted: its matrix rate is calibrated."""
    paths = {dtype: f"achieved.matrix_{dtype}" for dtype in dtypes.unique()}
    fitted = {path for path, value in gpu.provenance.items() if value.kind == "calibrated"}
    return dtypes.map({dtype: _word(path in fitted) for dtype, path in paths.items()})


def seen_collectives(gpu: Gpu, profile: Profile) -> str:
    """Return whether a library's profile was fitted on a GPU."""
    return _word(gpu.name in profile.gpus)


def _word(seen: bool) -> str:
    return YES if seen else NO


NO = "not the system"
