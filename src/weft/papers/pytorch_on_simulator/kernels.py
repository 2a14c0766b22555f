"""Kernels measured on V100 beside the engine: times of PyTorch's kernels, and sectors that streaming kernels move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.core.extensions import find_measured
from weft.core.files import read_records, read_text
from weft.core.options import SHORT
from weft.estimate import BenchmarkProtocol, estimate
from weft.estimate.target import seen_by_host
from weft.graph import Call, Graph, Node, Op, Tensor
from weft.hardware import Gpu, gpu
from weft.simulate.single import simulate

FILE = "v100_kernels.csv"
_MEASURED_ON = "v100-pcie-32gb"
LARGEST = 1.5e9
"""Most bytes of an operator that is simulated; larger ones take the engine seconds each."""
SECTOR = 32
"""Bytes of a sector of the DRAM."""


@dataclass(frozen=True)
class OperatorErrors:
    """The rows of one operator: how many, and the mean errors of the engine and of the closed form."""

    op: str
    rows: int
    engine: float
    bias: float
    closed: float


@dataclass(frozen=True)
class KernelTraffic:
    """A streaming kernel's DRAM sectors, measured and in the engine, and how much of the memory's rate it used."""

    kernel: str
    measured_read: float
    measured_written: float
    read: float
    written: float
    used: float

    @property
    def error(self) -> float:
        """Error of all sectors."""
        return (self.read + self.written) / (self.measured_read + self.measured_written) - 1


def time_operators(folder: Path, each: int, products: int, seed: int = 1) -> tuple[OperatorErrors, ...]:
    """Simulate rows of every operator, drawn with a `seed`: `each` of an element-wise one, `products` of a product."""
    measured_kernels = find_measured("measured_kernels")
    if measured_kernels is None:
        return ()
    machine, rng = gpu(_MEASURED_ON), np.random.default_rng(seed)
    found = []
    for op, places, row in measured_kernels(folder / FILE if folder.is_dir() else folder, machine):
        some = rng.permutation(places)[: products if op in ("linear", "bmm") else each]
        errors = [_errors(machine, op, *row(place)) for place in np.sort(some).tolist()]
        kept = np.array([one for one in errors if one is not None])
        if len(kept):
            engine, closed = kept.T
            means = abs(engine).mean(), engine.mean(), abs(closed).mean()
            found.append(OperatorErrors(op, len(kept), *map(float, means)))
    return tuple(found)


def _errors(machine: Gpu, name: str, work: Op, measured: float, closed: float) -> tuple[float, float] | None:
    """Errors of the engine and of the closed form on one row [s]; None for an operator that is too large."""
    op = _single(work)
    if op.least_bytes > LARGEST:
        return None
    ran = simulate(_alone(op), machine, "in-order", SHORT)
    launch = estimate(op, machine, harness=BenchmarkProtocol(timed="host")).parts["launch"]
    engine = seen_by_host(name, ran.seconds - machine.compute.launch_latency, launch)
    return float(engine / measured - 1), float(closed / measured - 1)


def _single(op: Op) -> Op:
    """Return an operator with whole numbers in place of arrays of one."""
    sizes = {name: int(np.ravel(value)[0]) for name, value in vars(op).items() if isinstance(value, np.ndarray)}
    return type(op)(**{**vars(op), **sizes})


def _alone(op: Op) -> Graph:
    return Graph((Node(op, "op"),))


def _words(*counts: int) -> tuple[Tensor, ...]:
    return tuple(Tensor((count,), "fp32") for count in counts)


_KERNELS: Mapping[str, tuple[Sequence[Tensor], Sequence[Tensor], bool]] = {
    "fwtBatch2Kernel": (_words(1 << 23), _words(1 << 23), True),
    "histogram64Kernel": (_words(1 << 24), _words(1 << 18), False),
    "mergeSortSharedKernel": (_words(1 << 22, 1 << 22), _words(1 << 22, 1 << 22), False),
    "mergeElementaryIntervalsKernel": (_words(1 << 22, 1 << 22), _words(1 << 22, 1 << 22), False),
    "calculate_temp": (_words(1 << 20, 1 << 20), _words(1 << 20), False),
    "CUDAkernel1DCT": (_words(1 << 18), _words(1 << 18), False),
}
"""What kernels of NVIDIA's CUDA samples and of Rodinia read and write, and whether in place: sizes of their sources."""


def measure_traffic(folder: Path, machine: Gpu) -> tuple[KernelTraffic, ...]:
    """DRAM sectors of streaming kernels of known sizes on a V100, measured and in the engine."""
    return tuple(
        _kernel_traffic(kernel, measured, machine)
        for kernel in _KERNELS
        for measured in _measured_sectors(folder, kernel)[:1]
    )


def _measured_sectors(folder: Path, kernel: str) -> list[tuple[float, float, float]]:
    return [row[1:] for row in _sectors(folder) if kernel in row[0]]


def _sectors(folder: Path) -> Iterator[tuple[str, float, float, float]]:
    """Kernel, cycles, and sectors read and written, of the rows that have them."""
    place = folder / FILE if folder.is_dir() else folder
    for row in read_records(read_text(place), place):
        if row.get("dram_read_sectors"):
            read, written = float(row["dram_read_sectors"]), float(row["dram_write_sectors"])
            yield row["kernel"], float(row["cycles"]), read, written


def _kernel_traffic(kernel: str, measured: tuple[float, float, float], machine: Gpu) -> KernelTraffic:
    reads, writes, in_place = _KERNELS[kernel]
    inputs = tuple(f"in {place}" for place in range(len(reads)))
    outputs = inputs if in_place else tuple(f"out {place}" for place in range(len(writes)))
    node = Node(Call(kernel, tuple(reads), tuple(writes)), "kernel", inputs=inputs, outputs=() if in_place else outputs)
    run = simulate(Graph((node,), tensors=dict(zip(inputs, reads, strict=True))), machine)
    read, written = (run.traffic.get(("kernel", way), 0) / SECTOR for way in ("read", "write"))
    cycles, measured_read, measured_written = measured
    rate = (measured_read + measured_written) * SECTOR / (cycles / _VALIDATION_CLOCK)
    return KernelTraffic(kernel, measured_read, measured_written, read, written, rate / machine.memory.bandwidth)


_VALIDATION_CLOCK = 1.132e9
"""Clock of the Quadro GV100 on which sectors and cycles were counted [hertz] (Accel-Sim, configuration SM7_QV100)."""
