"""Which machine a row means: the catalogue's, or the user's own where one is named for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.errors import UnknownNameError
from weft.hardware import Gpu, find_gpu
from weft.hardware.libraries import Profile, load_library, profile_for
from weft.validation.data import Rows


@dataclass(frozen=True)
class Machines:
    """The GPUs that rows may mean: those of the catalogue, or only the `chosen` ones, by name or TOML file.

    A file's GPU stands for rows that give its name or one of its aliases. `libraries` are profiles that take the
    place of the catalogue's for the GPUs that they name.
    """

    chosen: tuple[Gpu, ...] = ()
    libraries: tuple[Profile, ...] = ()
    _known: dict[str, Gpu] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, names: Sequence[str], libraries: Sequence[str] = ()) -> Machines:
        """Only these GPUs; all of them if there is no name. Raises UnknownNameError, InputError or ConfigError."""
        return cls(tuple(map(find_gpu, names)), tuple(map(load_library, libraries)))

    def profile(self, gpu: Gpu) -> Profile:
        """How the vendor's collective library performs on a GPU, by the user's profile if one names it."""
        library = "rccl" if gpu.vendor == "amd" else "nccl"
        own = [
            profile for profile in self.libraries if gpu.name in profile.gpus and profile.library == library
        ]
        return own[0] if own else profile_for(gpu.name, gpu.architecture, library)

    def find(self, text: str) -> Gpu:
        """The GPU that a row's text means; UnknownNameError if there is none, or it is not among the chosen."""
        if text not in self._known:
            self._known[text] = self._find(text)
        return self._known[text]

    def _find(self, text: str) -> Gpu:
        for gpu in self.chosen:
            if text.lower() in (name.lower() for name in (gpu.name, *gpu.aliases)):
                return gpu
        found = find_gpu(text)
        if not self.chosen or found.name in (gpu.name for gpu in self.chosen):
            return found
        raise UnknownNameError("GPU", text, [gpu.name for gpu in self.chosen])

    def of_chosen(self, rows: Rows, column: str) -> Rows:
        """The rows of chosen GPUs; all rows if none was chosen."""
        if not self.chosen:
            return rows
        names = rows.texts[column]
        mine = [name for name in np.unique(names).tolist() if self._covers(name)]
        return rows.take(np.isin(names, mine))

    def _covers(self, text: str) -> bool:
        try:
            self.find(text)
        except UnknownNameError:
            return False
        return True
