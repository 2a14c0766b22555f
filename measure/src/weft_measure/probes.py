"""Six questions to a machine that its data sheet leaves open: each probe yields named quantities to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft_measure.device import Device
from weft_measure.timing import time_work

KiB, MiB, GiB = 2**10, 2**20, 2**30
Quantity = tuple[str, str, Callable[[], tuple[Any, str]]]
"""Its name, its unit, and what measures its value and says how."""
Probe = Callable[..., Iterator[Quantity]]

_CHASED = 100_000
_LONG_RUN = 3.0
"""How long a GEMM runs until clock and power have settled [s]."""
_SHAPES = ((8192, 8192, 8192), (4096, 12288, 3072), (16, 8192, 8192), (1024, 1024, 1024))


def latency(device: Device, *, quick: bool = False) -> Iterator[Quantity]:
    """Load latency over working sets that fit the near cache, the whole cache, and neither."""
    for size in (MiB,) if quick else (MiB, 8 * MiB, 16 * MiB, 24 * MiB, 32 * MiB, 48 * MiB, 64 * MiB, 256 * MiB, GiB):

        def run(size: int = size) -> tuple[float, str]:
            steps = 1000 if quick else _CHASED
            work = device.chase(size, steps)
            return time_work(device, work, graph=False).seconds / steps * 1e9, work.note

        yield f"latency_{size // MiB}MiB", "ns", run


def streams(device: Device, *, quick: bool = False) -> Iterator[Quantity]:
    """Memory bandwidth of reads, writes, copies and mixes of both."""
    size = MiB if quick else GiB
    for reads, writes in ((1, 0), (0, 1), (1, 1), (2, 1), (3, 1)):

        def run(reads: int = reads, writes: int = writes) -> tuple[float, str]:
            work = device.stream(reads, writes, size)
            seconds = time_work(device, work).seconds
            return (reads + writes) * size / seconds / 1e9, f"{work.note}; {size} B each"

        yield f"reads_{reads}_writes_{writes}", "GB/s", run


def sustained(device: Device, *, quick: bool = False) -> Iterator[Quantity]:
    """Rate, clock and power of a long GEMM, of random numbers and of zeros."""
    size = 256 if quick else 8192
    for dtype in ("bf16", "fp16", "fp8"):
        for inputs in ("random", "zero"):
            said: dict[str, float] = {}

            def rate(dtype: str = dtype, inputs: str = inputs, said: dict[str, float] = said) -> tuple[float, str]:
                work = device.gemm(size, size, size, dtype, inputs)
                seconds = time_work(device, work).seconds
                runs = max(1, round((0.01 if quick else _LONG_RUN) / seconds))
                device.seconds(work, runs, graph=False)  # until clock and power have settled
                device.state()
                settled = device.seconds(work, runs, graph=False) / runs
                said.update(device.state())
                return 2 * size**3 / settled / 1e12, f"{size}^3, {runs} runs after as many; {_told(said)}"

            yield f"gemm_{dtype}_{inputs}", "TFLOP/s", rate


def _told(state: Mapping[str, float]) -> str:
    return "; ".join(f"{name}={value:.0f}" for name, value in state.items()) or "clock and power not told"


def engines(device: Device, *, quick: bool = False) -> Iterator[Quantity]:
    """Bandwidth of the copy engines to and from the host, alone and both at once."""
    for size in (64 * KiB, MiB) if quick else (64 * KiB, MiB, 16 * MiB, 256 * MiB):
        for kind in ("to_host", "from_host"):

            def one(kind: str = kind, size: int = size) -> tuple[float, str]:
                work = device.copy(kind, size)
                return size / time_work(device, work).seconds / 1e9, work.note

            yield f"{kind}_{size // KiB}KiB", "GB/s", one

        def both(size: int = size) -> tuple[float, str]:
            there, back = device.copy("to_host", size), device.copy("from_host", size)
            runs = max(1, (16 if quick else 256) * MiB // size)
            seconds = max(device.seconds_beside(there, runs, back, runs))
            return 2 * runs * size / seconds / 1e9, "both directions on two streams, added up"

        yield f"both_ways_{size // KiB}KiB", "GB/s", both


def launches(device: Device, *, quick: bool = False) -> Iterator[Quantity]:
    """Period of small kernels in a stream and in a graph, and a launch with its synchronisation."""

    def period(graph: bool) -> tuple[float, str]:
        work = device.copy("kernel", 64 * KiB)
        return time_work(device, work, graph=graph).seconds * 1e6, "copy of 64 KiB by a kernel"

    yield "stream_period", "us", lambda: period(graph=False)
    yield "graph_period", "us", lambda: period(graph=True)

    def round_trip() -> tuple[float, str]:
        work = device.copy("kernel", 64 * KiB)
        times = sorted(device.round_trip(work) for _ in range(20 if quick else 500))
        return times[len(times) // 2] * 1e6, f"median of {len(times)}"

    yield "launch_and_synchronise", "us", round_trip


def kernels(device: Device, *, quick: bool = False) -> Iterator[Quantity]:
    """Which kernel the library runs for a few GEMMs: its name tells tile, stages and cluster."""
    for m, n, k in _SHAPES[-1:] if quick else _SHAPES:
        for dtype in ("bf16", "fp8", "fp32"):

            def run(m: int = m, n: int = n, k: int = k, dtype: str = dtype) -> tuple[str, str]:
                work = device.gemm(m, n, k, dtype)
                return " | ".join(device.kernels(work)), work.note

            yield f"gemm_{m}x{n}x{k}_{dtype}", "name", run


PROBES: Mapping[str, Probe] = {
    "latency": latency,
    "streams": streams,
    "sustained": sustained,
    "engines": engines,
    "launches": launches,
    "kernels": kernels,
}
"""The probes by name."""
