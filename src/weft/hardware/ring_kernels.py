"""What the kernels of a vendor's collective library cost, by GPU generation, every value with its source.

The libraries' sources say how a kernel cuts its data; how long it takes to start, how long from slice to slice, how
many bytes it keeps in flight and what share of the link its stores reach, they do not.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import ClassVar

from weft.catalog.fields import Bytes, Delay, Share
from weft.catalog.sourced import Part, Sourced, read_leaves, read_toml
from weft.errors import InputError

GENERATIONS = ("ampere", "hopper", "blackwell", "cdna")
_FILE = "ring_kernels.toml"


class KernelCost(Part):
    """What a kernel of one protocol costs.

    `start` [s] passes from its launch to its first load, `sync` [s] from a slice's arrival to the receiver's next load;
    a workgroup keeps `in_flight` bytes in flight; its stores reach the share `link` of the link's payload rate.
    """

    start: Delay
    sync: Delay
    in_flight: Bytes
    link: Share


class RingKernels(Sourced):
    """The costs of a library's ring kernels by protocol, of those that push to all peers in one step, and of `pairs`.

    `pairs` is what a workgroup of large sends and receives keeps in flight in either direction [bytes].
    """

    _optional: ClassVar[tuple[str, ...]] = ("direct_",)
    ll: KernelCost
    ll128: KernelCost
    simple: KernelCost
    direct_ll: KernelCost | None = None
    direct_simple: KernelCost | None = None
    pairs: Bytes

    def __hash__(self) -> int:
        return hash((self.name, self.ll, self.ll128, self.simple, self.direct_ll, self.direct_simple, self.pairs))

    def cost(self, kernel: str) -> KernelCost:
        """The costs of "ll", "ll128", "simple", "direct_ll" or "direct_simple"; InputError if the library lacks it."""
        found: KernelCost | None = getattr(self, kernel)
        if found is None:
            raise InputError(
                f"no '{self.name}.{kernel}' kernel is known: libraries push to all peers in one step on AMD's GPUs "
                "alone; take another algorithm, such as 'ring'"
            )
        return found


def ring_kernels(vendor: str, architecture: str) -> RingKernels:
    """What the library costs on a generation of GPUs: "cdna" serves all of AMD's, "ampere" also unknown ones."""
    return _of_generation("cdna" if vendor == "amd" else architecture if architecture in GENERATIONS else "ampere")


@cache
def _of_generation(name: str) -> RingKernels:
    table = read_toml(resources.files("weft.hardware") / "catalog" / _FILE)[name]
    label = f"{_FILE}: {name}"
    return RingKernels.from_leaves({"name": name}, read_leaves(table, RingKernels.rules(), label), label)
