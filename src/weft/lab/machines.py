"""Resolve the machines that rows name: from the catalogue, or from the user's own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.hardware import Gpu, gpu_names
from weft.kernels.library.profiles import Profile, load_library, profile_for


def _library(name: str) -> Profile:
    """Load the profile of that name or file; the InputError says so if the file describes a GPU."""
    try:
        return load_library(name)
    except InputError:
        if not knows(hardware.gpu, name):
            raise
        raise InputError(
            f"'{name}' describes a GPU, not a library profile; name it with --gpu (weft calibrate --system "
            "writes library profiles)"
        ) from None


def knows(find: Callable[[str], object], name: str) -> bool:
    """Return whether a machine of that name is found."""
    try:
        find(name)
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class Machines:
    """The GPUs that rows may name: all of the catalogue, or only the `chosen` ones, by name or TOML file.

    A GPU from a file matches rows with its name or one of its aliases. `libraries` are profiles that replace the
    catalogue's for the GPUs that they name. `files` holds the file names of chosen GPUs, by GPU name.
    """

    chosen: tuple[Gpu, ...] = ()
    libraries: tuple[Profile, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, gpus: Sequence[str], libraries: Sequence[str] = ()) -> Machines:
        """Only these GPUs; all if no name is given. Raises UnknownNameError, InputError or ConfigError."""
        chosen = tuple(map(hardware.gpu, gpus))
        files = {gpu.name: Path(name).name for gpu, name in zip(chosen, gpus, strict=True) if name.endswith(".toml")}
        return cls(chosen, tuple(map(_library, libraries)), files)

    def labels(self, gpu: Gpu, texts: pd.Series[str]) -> pd.Series[str] | str:
        """Group names of a GPU's rows: the text of each row, or the GPU's name if it comes from a file."""
        if gpu.name not in self.files:
            return texts
        return f"{gpu.name} ({self.files[gpu.name]})" if gpu.name in gpu_names() else gpu.name

    def profile(self, gpu: Gpu) -> Profile:
        """The profile of the vendor's library on a GPU: the user's if one names the GPU, else the catalogue's."""
        library = "rccl" if gpu.vendor == "amd" else "nccl"
        own = [profile for profile in self.libraries if gpu.name in profile.gpus and profile.library == library]
        return own[0] if own else profile_for(gpu.name, gpu.architecture, library)

    def find(self, text: str) -> Gpu:
        """The GPU that a row's text means; UnknownNameError if it is unknown or not among the chosen."""
        for gpu in self.chosen:
            if text.lower() in (name.lower() for name in (gpu.name, *gpu.aliases)):
                return gpu
        return self._if_chosen(hardware.gpu(text))

    def _if_chosen(self, gpu: Gpu) -> Gpu:
        names = [one.name for one in self.chosen]
        if names and gpu.name not in names:
            raise UnknownNameError("GPU", gpu.name, names)
        return gpu

    def of_chosen(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows on chosen GPUs, and on systems of them; all rows if none was chosen."""
        if not self.chosen:
            return rows
        if not {"gpu", "system"} & {*rows}:  # a trace names none
            return rows
        column, find = ("gpu", self.find) if "gpu" in rows else ("system", self._of_system)
        return rows[rows[column].isin([name for name in rows[column].unique() if knows(find, name)])]

    def _of_system(self, text: str) -> Gpu:
        return self._if_chosen(hardware.system(text).gpu)
