"""From the names that people write, such as "A100-SXM4-80GB" or "16xH100 (2 nodes)", to the catalogue."""

from __future__ import annotations

import re
from functools import cache

from weft.errors import UnknownNameError
from weft.hardware.gpu import Gpu
from weft.hardware.loading import load, names

# Words beside a GPU's name that do not tell it from another one.
_NOISE = {"nvidia", "amd", "instinct", "tesla", "gpu", "gpus", "accelerator", "oam", "tensor", "core"}
_MEMORY = re.compile(r"hbm\w*|gddr\w*|\d+gi?b")
_SOCKET = re.compile(r"sxm\d*")


def words(text: str) -> list[str]:
    """The lower-case words of a name; hyphens, underscores and spaces part them alike."""
    return re.findall(r"[a-z0-9.]+", text.lower())


def gpu_key(text: str, capacity: bool = True) -> frozenset[str]:
    """What tells one GPU's name from another's; the memory's size only if `capacity` is asked for."""
    kept = {_SOCKET.sub("sxm", word) for word in words(text) if word not in _NOISE}
    sizes = {word for word in kept if re.fullmatch(r"\d+gi?b", word)}
    return frozenset({word for word in kept if not _MEMORY.fullmatch(word)} | (sizes if capacity else set()))


@cache
def _gpu_names() -> dict[frozenset[str], str]:
    """Name by key, of every name, title and alias in the catalogue; keys without a size point there too."""
    found: dict[frozenset[str], str] = {}
    gpus = [load(name) for name in names()]
    for capacity in (True, False):
        for gpu in gpus:
            for text in (gpu.name, *gpu.aliases, gpu.title):
                found.setdefault(gpu_key(text, capacity), gpu.name)
    return found


def find_gpu(text: str) -> Gpu:
    """The GPU that a name means, such as "A100-SXM4-80GB", "gfx90a-104cu", "b200_sxm" or "my-gpu.toml".

    Raises UnknownNameError, which names the nearest, for a GPU that the catalogue does not have.
    """
    if text.endswith(".toml"):
        return load(text)
    name = _gpu_names().get(gpu_key(text))
    if name is None:
        raise UnknownNameError("GPU", text, names())
    return load(name)
