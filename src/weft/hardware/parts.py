"""The parts of a GPU as frozen descriptions: plain numbers in base units [bytes, bytes/s, seconds, hertz]."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self, get_args

from pydantic import model_validator

from weft.catalog.fields import (
    Bytes,
    BytesOrNone,
    BytesPerSecond,
    BytesPerSecondOrNone,
    Count,
    CountOrNone,
    Cycles,
    Delay,
    Hertz,
    Seconds,
    Share,
    ShareOrNone,
    Units,
)
from weft.catalog.sourced import Part, broken_rule
from weft.units import format_bytes, format_time

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
"""Data types of a matrix product; the sums are kept in FP32 (FP64 for fp64, INT32 for int8)."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
"""Every data type of a matrix product."""
ClockState = Literal["peak", "boost", "sustained"]
"""Which clock a rate assumes: the data sheet's, the highest, or that of a long run at the power limit."""
ACCESS_BYTES = 64
"""The finest request to memory, and the unit in which queues are counted [bytes]."""


def _multiple(name: str, value: int, of_name: str, of: int) -> None:
    if value % of:
        raise broken_rule(f"{name} ({format_bytes(value)}) must be a multiple of {of_name} ({format_bytes(of)})")


def _ascending(names: tuple[str, ...], values: tuple[float, ...]) -> None:
    if any(low > high for low, high in pairwise(values)):
        shown = ", ".join(f"{value:g}" for value in values)
        raise broken_rule(f"{' <= '.join(names)} must hold, but they are {shown}")


class Compute(Part):
    """The compute units (CUs), what each can hold and how fast it moves data; `clock` is the highest boost."""

    compute_units: Units
    clock: Hertz
    vector_flops_per_clock: Count
    threads_per_cu: Count
    registers_per_cu: Bytes
    lds_per_cu: Bytes
    wavefront_size: Count
    max_workgroups_per_cu: Count
    port_bytes_per_clock: Count
    launch_latency: Seconds

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.threads_per_cu % self.wavefront_size:
            raise broken_rule(
                f"threads_per_cu ({self.threads_per_cu}) must be a multiple of wavefront_size ({self.wavefront_size})"
            )
        return self


class Cache(Part):
    """The last-level cache of the compute units, in `partitions` that each serve a part of them.

    `efficiency` is the measured fraction of peak bandwidth, `far_latency` that of a hit in another partition.
    """

    capacity: Bytes
    ways: Count
    banks: Count
    bytes_per_clock_per_bank: Count
    latency: Seconds
    clock: Hertz
    partitions: Count
    efficiency: Share
    far_latency: Seconds

    @property
    def bandwidth(self) -> float:
        """Peak rate of all banks together [bytes/s]."""
        return self.banks * self.bytes_per_clock_per_bank * self.clock

    @property
    def sets(self) -> int:
        """Number of sets of `ways` lines of 64 B."""
        return self.capacity // (self.ways * ACCESS_BYTES)

    @model_validator(mode="after")
    def _check(self) -> Self:
        _multiple("capacity", self.capacity, f"{self.ways} ways of {ACCESS_BYTES} B", self.ways * ACCESS_BYTES)
        return self


class MemoryCache(Part):
    """A cache on the memory's side, such as AMD's Infinity Cache; a capacity of 0 means that there is none.

    `efficiency` is the measured fraction of peak bandwidth, `latency` that of a load that hits there. `dirty_at_start`
    is the fraction of lines in which a simulated run finds what earlier work wrote, and has to write back.
    """

    capacity: BytesOrNone
    bandwidth: BytesPerSecondOrNone
    latency: Delay
    ways: Count
    efficiency: Share
    dirty_at_start: ShareOrNone


class Timing(Part):
    """Delays between the commands of a DRAM bank, in the JEDEC names without their t [seconds]."""

    rrd: Seconds
    rcd: Seconds
    ras: Seconds
    rp: Seconds
    rc: Seconds
    cl: Seconds
    wl: Seconds
    cdlr: Seconds
    wr: Seconds
    rtp: Seconds

    @model_validator(mode="after")
    def _check(self) -> Self:
        for small, large in (("rcd", "ras"), ("ras", "rc")):
            if getattr(self, small) > getattr(self, large):
                small_text, large_text = (format_time(getattr(self, name)) for name in (small, large))
                raise broken_rule(f"{small} ({small_text}) must be at most {large} ({large_text})")
        return self


class Memory(Part):
    """The DRAM: channels of banks in bank groups, behind one bounded queue per channel.

    `read_efficiency` and `copy_efficiency` are the fractions of peak that long reads and copies were measured
    to reach.
    """

    bandwidth: BytesPerSecond
    capacity: Bytes
    read_efficiency: Share
    copy_efficiency: Share
    channels: Units
    banks: Count
    bank_groups: Count
    row_bytes: Bytes
    interleave: Bytes
    burst_bytes: Bytes
    burst_clocks: Count
    bytes_per_clock: Count
    queue_entries: Count
    latency: Seconds
    ccd: Count
    ccd_long: Count
    ccd_update: Count
    timing: Timing

    @property
    def copy_rate(self) -> float:
        """What copies within the memory reach, which read and write every byte [bytes/s]."""
        return self.bandwidth * self.copy_efficiency / 2

    @property
    def clock(self) -> float:
        """Memory clock that gives `bandwidth` [hertz]; the delays in `timing` do not follow it."""
        return self.bandwidth / (self.channels * self.bytes_per_clock)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.banks % self.bank_groups:
            raise broken_rule(f"banks ({self.banks}) must be a multiple of bank_groups ({self.bank_groups})")
        _multiple("interleave", self.interleave, "one access", ACCESS_BYTES)
        _multiple("row_bytes", self.row_bytes, "one access", ACCESS_BYTES)
        small, large = sorted((self.row_bytes, self.interleave))
        if large % small:
            raise broken_rule(
                f"row_bytes ({format_bytes(self.row_bytes)}) must be a multiple of interleave "
                f"({format_bytes(self.interleave)}), or the other way round"
            )
        self._check_burst()
        return self

    def _check_burst(self) -> None:
        if self.burst_bytes != self.burst_clocks * self.bytes_per_clock:
            raise broken_rule(
                f"burst_bytes ({format_bytes(self.burst_bytes)}) must be burst_clocks x bytes_per_clock "
                f"({self.burst_clocks} x {self.bytes_per_clock} B); change them together"
            )
        if ACCESS_BYTES % self.burst_bytes:
            raise broken_rule(
                f"burst_bytes ({format_bytes(self.burst_bytes)}) must divide one access of {ACCESS_BYTES} B"
            )
        columns = (self.burst_clocks, self.ccd, self.ccd_long)
        _ascending(("burst_clocks", "ccd", "ccd_long"), columns)
        _ascending(("ccd", "ccd_update"), (self.ccd, self.ccd_update))


class Arbiter(Part):
    """Communication-aware arbitration: how full a queue may be for communication to enter it.

    Beside a kernel of at least `intensity_high` [fraction of peak bandwidth] the limit is `threshold_high`
    [64-B accesses]; from `intensity_medium` on `threshold_medium`, from `intensity_low` on `threshold_low`;
    below that there is none. The scheme is T3's (ASPLOS 2024); its numbers are not published.
    """

    threshold_high: Count
    threshold_medium: Count
    threshold_low: Count
    intensity_high: Share
    intensity_medium: Share
    intensity_low: Share
    starvation_limit: Seconds

    @model_validator(mode="after")
    def _check(self) -> Self:
        thresholds = ("threshold_high", "threshold_medium", "threshold_low")
        intensities = ("intensity_low", "intensity_medium", "intensity_high")
        for names in (thresholds, intensities):
            _ascending(names, tuple(getattr(self, name) for name in names))
        return self


class Tracker(Part):
    """The table beside the memory controller that counts the updates of every output tile."""

    sets: Count
    ways: Count
    spill_bytes: Bytes


class Dma(Part):
    """The engines that move blocks between GPUs without compute units, and what a host that drives them pays.

    An engine moves `bandwidth` at most (0: whatever the link takes), keeps `window` bytes in flight, and needs `setup`
    for every command. A host thread spends `enqueue` on a command and `doorbell` on handing an engine's commands over;
    `fetch` later the engine begins, or `trigger` after a flag is set for which commands lie waiting. Bytes sent are
    acknowledged `drain` after the last one has left; the host knows another `sync` later, and spends `signal` on each
    completion that it looks for. Commands that a tracker triggers pay none of the host's costs.
    """

    engines: Count
    setup: Seconds
    window: Bytes
    bandwidth: BytesPerSecondOrNone
    enqueue: Delay
    doorbell: Delay
    fetch: Delay
    trigger: Delay
    drain: Delay
    sync: Delay
    signal: Delay

    @model_validator(mode="after")
    def _check(self) -> Self:
        _multiple("window", self.window, "one access", ACCESS_BYTES)
        return self


class Link(Part):
    """The connection to other GPUs: `bandwidth` is what the whole GPU can send, in one direction.

    With `links` = 0 there are none of its own: peers are reached over PCIe. `kernel_efficiency` is the payload
    share when compute units store to peers, `dma_efficiency` that of copy engines, with all links busy.
    """

    bandwidth: BytesPerSecond
    latency: Seconds
    links: CountOrNone
    kernel_efficiency: Share
    dma_efficiency: Share


class Host(Part):
    """The connection to the host, in one direction."""

    bandwidth: BytesPerSecond


class Launch(Part):
    """Launch periods beside `compute.launch_latency`: within a graph, and launch plus synchronise."""

    graph: Seconds
    sync: Seconds


class Rates(Part):
    """Dense matrix operations per clock and compute unit [FLOP]; 0 where a data type is not supported.

    `fp32` and `fp64` are what a plain product uses: the vector units for fp32 on NVIDIA, matrix units
    elsewhere.
    """

    fp64: CountOrNone
    fp32: CountOrNone
    tf32: CountOrNone
    fp16: CountOrNone
    bf16: CountOrNone
    fp8: CountOrNone
    int8: CountOrNone


class Clocks(Part):
    """Clocks beside the highest boost clock: behind the data sheet's matrix peak, and at the power limit."""

    matrix_peak: Hertz
    sustained: Hertz


class Achieved(Part):
    """What tuned GEMM kernels reach on the machine.

    `matrix_*` is the share of the matrix rate in the main loop of a product of that type, in short runs near
    the boost clock. `gemm_cache` and `gemm_memory` are the shares of the peak bandwidths of the last-level cache
    and the DRAM, `gemm_resident` the share of the cache that holds operands between uses. `gemm_issue` is what a
    K step costs beside the matrix instructions [cycles]. Times [s]: `gemm_latency` from asking for a K step's
    operands to having them, loaded; `gemm_fill` to begin and end a workgroup; `gemm_split` to add up the partial
    sums of a split K; `gemm_launch` from one kernel to the next where nothing else is done; `gemm_host` the same
    where the host issues each kernel and waits for it.
    """

    matrix_fp16: Share
    matrix_bf16: Share
    matrix_fp8: Share
    matrix_int8: Share
    matrix_tf32: Share
    matrix_fp32: Share
    gemm_cache: Share
    gemm_memory: Share
    gemm_resident: Share
    gemm_issue: Cycles
    gemm_latency: Delay
    gemm_fill: Delay
    gemm_split: Delay
    gemm_launch: Delay
    gemm_host: Delay
