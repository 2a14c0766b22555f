"""What a device must do to be measured: prepare pieces of work, run them so many times, and say how long it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """Something that a device can do again and again: `enqueue` starts it once; `note` says how, for the table."""

    enqueue: Callable[[], object]
    note: str = ""


class Unsupported(Exception):
    """The device or its libraries cannot do a piece of work; the message says why."""


class Device(Protocol):
    """A GPU (or the CPU, for tests) and its libraries. Times are in seconds.

    What cannot be done raises `Unsupported`; a case that does so is left out and counted.
    """

    name: str
    """The catalogue's name of the GPU, or its own if the catalogue does not know it."""
    about: str
    """Device, library and driver versions."""

    def gemm(self, m: int, n: int, k: int, dtype: str, inputs: str = "random") -> Work:
        """C[m,n] = A[m,k] B[k,n] by the vendor's library, of "random" or "zero" operands."""

    def operator(self, name: str, dtype: str, shape: Mapping[str, int]) -> Work:
        """An operator that `weft.estimate` declares, as the library offers it."""

    def copy(self, kind: str, size: int) -> Work:
        """A copy of `size` bytes: by a "kernel", the library's "memcpy", or an engine ("to_host" and others)."""

    def stream(self, reads: int, writes: int, size: int) -> Work:
        """A kernel that reads `reads` and writes `writes` arrays of `size` bytes each."""

    def chase(self, size: int, steps: int) -> Work:
        """`steps` loads, each at the address that the one before it found, all over `size` bytes."""

    def seconds(self, work: Work, repeats: int, *, graph: bool = True) -> float:
        """The time of `repeats` runs one after the other, from a recorded graph unless `graph` is false."""

    def seconds_beside(self, first: Work, runs: int, second: Work, others: int) -> tuple[float, float]:
        """When `runs` of the first and `others` of the second had ended, both started at once on two streams."""

    def round_trip(self, work: Work) -> float:
        """From starting the work to knowing on the host that it has ended."""

    def state(self) -> Mapping[str, float]:
        """Clock [MHz] and power [W] since the last call, where the device tells them."""

    def kernels(self, work: Work) -> list[str]:
        """The names of the kernels that the work runs."""
