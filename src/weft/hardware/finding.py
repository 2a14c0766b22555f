"""From the names that people write, such as "A100-SXM4-80GB" or "16xH100 (2 nodes)", to the catalogue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from weft.errors import InputError, UnknownNameError
from weft.hardware.gpu import Gpu
from weft.hardware.loading import load, load_system, names, system_names
from weft.hardware.machine import Machine, Network

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


def gpu_named(text: str) -> str | None:
    """The name in the catalogue of the GPU that a text means, if it means one."""
    return _gpu_names().get(gpu_key(text))


def find_gpu(text: str) -> Gpu:
    """The GPU that a name means, such as "A100-SXM4-80GB", "gfx90a-104cu", "b200_sxm" or "my-gpu.toml".

    Raises UnknownNameError, which names the nearest, for a GPU that the catalogue does not have.
    """
    return load(text)


@dataclass(frozen=True)
class SystemMatch:
    """A machine and how much of it is meant: `gpus` GPUs in all, spread evenly over `nodes` nodes."""

    machine: Machine
    gpus: int
    nodes: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 1 or self.gpus % self.nodes:
            raise InputError(
                f"{self.gpus} GPUs cannot be spread evenly over {self.nodes} nodes; choose a multiple of the nodes"
            )
        if self.gpus_per_node > self.machine.gpus_per_node:
            raise InputError(
                f"{self.machine.name} has {self.machine.gpus_per_node} GPUs in a node, not {self.gpus_per_node}; "
                f"ask for at least {-(-self.gpus // self.machine.gpus_per_node)} nodes"
            )

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.machine.name

    @property
    def gpu(self) -> Gpu:
        """The GPU of the machine."""
        return self.machine.gpu

    @property
    def gpus_per_node(self) -> int:
        """How many GPUs of each node take part."""
        return self.gpus // self.nodes

    @property
    def network(self) -> Network:
        """The network between nodes."""
        return self.machine.network

    def with_ranks(self, ranks: int, nodes: int | None = None) -> Self:
        """The same machine with another number of GPUs, on as few nodes as hold them unless `nodes` says."""
        return type(self)(self.machine, ranks, nodes or _nodes_for(ranks, self.machine))


def find_system(text: str) -> SystemMatch:
    """The machine that a text means, and how many of its GPUs: "dgx-h100", "16xH100 (2 nodes)", "2x p5.48xlarge".

    A bare GPU name means the usual machine of that GPU. Raises UnknownNameError for a machine or GPU that the
    catalogue does not have, InputError for GPUs that cannot be spread as said.
    """
    if text.endswith(".toml"):
        machine = load_system(text)
        return SystemMatch(machine, machine.gpus_per_node, 1)
    count, rest = _counted(text)
    if named := _named(rest):
        return _counted_match(named, count, rest)
    hints = [part.strip() for inner in re.findall(r"\(([^)]*)\)", rest) for part in inner.split(",")]
    gpu = _gpu_of(re.sub(r"\([^)]*\)", " ", rest), hints)
    if gpu is None:
        raise UnknownNameError("system", text, system_names())
    nodes, hinted = _hinted(hints, gpu)
    return _placed(hinted, gpu, count, nodes, text)


def _counted_match(machine: Machine, count: int | None, rest: str) -> SystemMatch:
    """The count is of GPUs in "72xGB200 NVL72", which names the GPU first, but of machines in "2x dgx-h100"."""
    of_gpus = rest.strip().lower() != machine.name and gpu_key(words(rest)[0]) in _gpu_names()
    if count is None or not of_gpus:
        return SystemMatch(machine, (count or 1) * machine.gpus_per_node, count or 1)
    return SystemMatch(machine, count, _nodes_for(count, machine))


def _placed(hinted: Machine | None, gpu: str, count: int | None, nodes: int | None, text: str) -> SystemMatch:
    """The hinted machine, or the smallest usual one of the GPU that holds the count; else the largest, often."""
    usual = sorted((m for m in _machines() if m.usual and m.gpu.name == gpu), key=lambda m: m.gpus_per_node)
    if hinted is None and not usual:
        raise UnknownNameError("system", text, system_names())
    each = (count or 1) // (nodes or 1)
    machine = hinted or next((m for m in usual if m.gpus_per_node >= each), usual[-1])
    gpus = count or machine.gpus_per_node * (nodes or 1)
    return SystemMatch(machine, gpus, nodes or _nodes_for(gpus, machine))


def _nodes_for(gpus: int, machine: Machine) -> int:
    return -(-gpus // machine.gpus_per_node)


def _counted(text: str) -> tuple[int | None, str]:
    """The number before a name, as in "8xH100", "16 GCDs of MI250X" or "2 x dgx-h100", and the rest."""
    found = re.fullmatch(
        r"\s*(\d+)\s*(?:[x×*]\s*|\s)(?:(?:gpus?|gcds?)\s+(?:of\s+)?)?(.+)", text, re.IGNORECASE | re.DOTALL
    )
    return (int(found[1]), found[2]) if found else (None, text)


@cache
def _machines() -> tuple[Machine, ...]:
    return tuple(load_system(name) for name in system_names())


def _named(text: str) -> Machine | None:
    """The machine of that name or alias, whatever parts the words; "Azure" or "NVIDIA" before it do not matter."""
    wanted = _machine_key(text)
    for machine in _machines():
        if wanted in {_machine_key(name) for name in (machine.name, machine.title, *machine.aliases)}:
            return machine
    return None


def _machine_key(text: str) -> str:
    vendors = {"nvidia", "amd", "aws", "azure", "systems", "system"}
    return "-".join(word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in vendors)


# Words around a GPU's name that say how it is built in.
_BUILT_IN = {"dgx", "hgx", "nvl72", "nvl", "nvlink", "nvswitch", "node", "nodes", "gcds", "platform"}


def _gpu_of(text: str, hints: Sequence[str]) -> str | None:
    """The name of the GPU that is meant; "PCIe" in brackets tells the card from the module."""
    bare = " ".join(word for word in words(text) if word not in _BUILT_IN)
    tries = [f"{bare} {hint}" for hint in hints if "pcie" in words(hint)] or [bare]
    return next((name for one in tries if (name := gpu_named(one))), None)


def _hinted(hints: Sequence[str], gpu: str) -> tuple[int | None, Machine | None]:
    """The number of nodes and the machine that the brackets state, as far as they do."""
    nodes: int | None = None
    for hint in hints:
        if found := re.fullmatch(r"(\d+)\s*nodes?", hint, re.IGNORECASE):
            nodes = int(found[1])
        count, rest = _counted(hint)
        machine = _named(rest)
        if machine is not None and machine.gpu.name == gpu:
            return count or nodes, machine
    return nodes, None
