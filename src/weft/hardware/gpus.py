"""One GPU and its parts: plain numbers in base units [bytes, bytes/s, seconds, hertz], each with its provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import model_validator

from weft.core.catalog import (
    Bytes,
    BytesOrNone,
    BytesPerSecond,
    BytesPerSecondOrNone,
    Count,
    CountOrNone,
    Cycles,
    Delay,
    Exponent,
    Flag,
    Hertz,
    HertzOrNone,
    Part,
    PeakRate,
    PerClock,
    Provenance,
    Seconds,
    Share,
    ShareOrNone,
    Sourced,
    Units,
    WattsOrNone,
    broken_rule,
)
from weft.core.errors import InputError
from weft.core.units import Dimension, format_bytes
from weft.core.units import format as format_quantity

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "mxfp8", "mxfp4", "nvfp4"]
"""Data types of a matrix product; the sums are kept in FP32 (FP64 for fp64, INT32 for int8)."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
"""Every data type of a matrix product."""
_BLOCKS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mxfp8": ("fp8", ("blackwell", "blackwell-rtx", "cdna4")),
    "mxfp4": ("fp4", ("blackwell", "blackwell-rtx", "cdna4")),
    "nvfp4": ("fp4", ("blackwell", "blackwell-rtx")),
}
"""Of data types with block scales, the one whose rate matrix units reach, and the architectures whose units scale."""


def rated_as(dtype: str) -> str:
    """Return the field of `Rates`, and of the shares of `Achieved`, that a data type's rate stands in."""
    return _BLOCKS[dtype][0] if dtype in _BLOCKS else dtype


ClockState = Literal["peak", "boost", "sustained"]
"""The clock that a rate assumes: the data sheet's, the boost clock, or that of a long run at the power limit."""
_ACCESS_BYTES = 64
"""The finest request to memory [bytes]."""
_QUEUE_ENTRY_BYTES = 32
"""The unit in which the command queues of memory channels are counted [bytes]."""


class Compute(Part):
    """The compute units (CUs): what each can hold and how fast it moves data; `clock` is the highest boost clock.

    With `stages_in_step` a GEMM's workgroups are dispatched stage by stage: as many as the GPU holds, once all of the
    stage before have ended. Without it, each is dispatched as soon as it fits. `shader_engines` of each die (XCD) get
    equally many workgroups of a kernel whose stream has a mask; compute unit i of a die lies in shader engine i modulo
    their number (1: the units of a die form no such groups, or none are known).
    """

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
    stages_in_step: Flag
    shader_engines: Units = 1

    def resident_workgroups(self, threads: int, registers: int, lds: int) -> int:
        """Return how many workgroups a compute unit holds at once, by their threads, registers and local memory
        [bytes].
        """
        return min(
            self.max_workgroups_per_cu,
            self.threads_per_cu // threads,
            self.registers_per_cu // registers,
            self.lds_per_cu // max(lds, 1),
        )


class Cache(Part):
    """The last-level cache of the compute units, in `partitions` that each serve a part of them.

    `efficiency` is the measured fraction of peak bandwidth, `far_latency` the latency of a hit in another partition.
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


class MemoryCache(Part):
    """A memory-side cache, such as AMD's Infinity Cache; a capacity of 0 means that there is none.

    `efficiency` is the measured fraction of peak bandwidth, `latency` that of a load that hits. `dirty_at_start` is the
    fraction of lines that hold dirty data of earlier work when a simulated run starts.
    """

    capacity: BytesOrNone
    bandwidth: BytesPerSecondOrNone
    latency: Delay
    ways: Count
    efficiency: Share
    dirty_at_start: ShareOrNone


class PackageFabric(Part):
    """The fabric of a package between its dies, the memory-side cache and the links; a bandwidth of 0: there is none.

    All requests to memory pass it before they reach the memory-side cache: loads and stores of compute units, of DMA
    engines, and what arrives from other GPUs. `exchange_efficiency` is the share of `bandwidth` that requests of
    communication reach, whose data both GPUs must see and which are therefore smaller and not cached.
    """

    bandwidth: BytesPerSecondOrNone
    exchange_efficiency: Share


class Timing(Part):
    """Delays between the commands of a DRAM bank, named as in JEDEC without the leading t [seconds].

    `faw` = 0: any number of activates may follow one another at `rrd`; `refi` = `rfc` = 0: no refresh.
    """

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
    faw: Delay
    refi: Delay
    rfc: Delay


class Memory(Part):
    """The DRAM: channels of banks in bank groups, behind one bounded queue per channel.

    `read_efficiency` and `copy_efficiency` are the fractions of peak that long reads and copies were measured
    to reach. A channel's command queue holds `queue_entries` accesses of 32 B. Refreshes take `refresh_banks` banks at
    a time, each bank once in `timing.refi`.
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
    refresh_banks: Count
    latency: Seconds
    ccd: Count
    ccd_long: Count
    ccd_update: Count
    timing: Timing

    @property
    def copy_rate(self) -> float:
        """Rate of copies within the memory [bytes copied/s]; each byte is read and written."""
        return self.bandwidth * self.copy_efficiency / 2

    @property
    def clock(self) -> float:
        """Memory clock at which the bus reaches `bandwidth` [hertz]; the delays in `timing` do not scale with it."""
        return self.bandwidth / (self.channels * self.bytes_per_clock)


class ArbiterThresholds(Part):
    """Communication-aware arbitration: the queue occupancy up to which communication may enter.

    Beside a kernel of at least `intensity_high` [fraction of peak bandwidth] the limit is `threshold_high` [32-B
    accesses]; from `intensity_medium` on `threshold_medium`, from `intensity_low` on `threshold_low`; below that there
    is no limit. The scheme is T3's (ASPLOS 2024); its numbers are not published.
    """

    threshold_high: Count
    threshold_medium: Count
    threshold_low: Count
    intensity_high: Share
    intensity_medium: Share
    intensity_low: Share
    starvation_limit: Seconds


class Tracker(Part):
    """The table beside the memory controller that counts the updates of each output tile."""

    sets: Count
    ways: Count
    spill_bytes: Bytes


class Dma(Part):
    """The engines that move blocks between GPUs without compute units, and the costs of the host that drives them.

    An engine moves at most `bandwidth` (0: the link's rate), keeps `window` bytes in flight, and needs `setup` for
    every command. A host thread spends `enqueue` on a command and `doorbell` on submitting an engine's commands; the
    engine begins `fetch` later, or, for prelaunched commands, `trigger` after their flag is set. The last byte sent is
    acknowledged after `drain`; the host sees that after another `sync`, and spends `signal` on each completion that it
    polls. Commands that a tracker triggers have none of the host's costs.
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


class GpuLink(Part):
    """The connection to other GPUs; `bandwidth` is what the whole GPU can send, in one direction.

    With `links` = 0 there are none of its own: peers are reached over PCIe. `kernel_efficiency` is the payload share of
    stores by compute units, `dma_efficiency` that of copy engines, with all links busy. A store to a peer leaves its
    workgroup when a buffer of `store_buffer` took it, at the latest when the link has sent it.
    """

    bandwidth: BytesPerSecond
    latency: Seconds
    links: CountOrNone
    kernel_efficiency: Share
    dma_efficiency: Share
    store_buffer: BytesOrNone


class Host(Part):
    """The connection to the host, in one direction."""

    bandwidth: BytesPerSecond


class Launch(Part):
    """Launch intervals besides `compute.launch_latency`: within a graph, and launch plus synchronise."""

    graph: Seconds
    sync: Seconds


class Rates(Part):
    """Dense matrix operations per clock and compute unit [FLOP]; 0 where a data type is not supported.

    A data sheet's peak of the whole GPU, such as "989 TFLOP/s", is divided by its units and the clock of that peak.

    `fp32` and `fp64` are those of a plain product: vector units for fp32 on NVIDIA, matrix units elsewhere. `fp4` is
    that of 4-bit formats with block scales.
    """

    fp64: PerClock
    fp32: PerClock
    tf32: PerClock
    fp16: PerClock
    bf16: PerClock
    fp8: PerClock
    int8: PerClock
    fp4: PerClock = 0


class Clocks(Part):
    """Clocks besides the highest boost clock: that of the data sheet's matrix peak, and those at the power limit.

    `sustained` is the clock that matrix products hold in long runs. `sustained_fp16`, `sustained_fp32` (0: the same)
    and `sustained_fp8` are those of fp16, of fp32 and of 8-bit numbers. At the power limit the power of a compute unit
    grows with its clock to `power_exponent`, so fewer units run at a higher clock (0: not known, the clock stays).
    """

    matrix_peak: Hertz
    sustained: Hertz
    sustained_fp8: Hertz
    sustained_fp16: HertzOrNone = 0
    sustained_fp32: HertzOrNone = 0
    power_exponent: Exponent = 0.0


class Achieved(Part):
    """What tuned GEMM kernels reach on the machine.

    `matrix_*` is the share of the matrix rate in the main loop of a product of that type, in short runs near the boost
    clock. `gemm_cache` and `gemm_memory` are the shares of the peak bandwidths of the last-level cache and the DRAM,
    `gemm_resident` the share of the cache that holds operands between uses. `gemm_issue` is the cost of a K step
    besides its matrix instructions [cycles]. Times [s]: `gemm_latency` from requesting a K step's operands to their
    arrival under load; `gemm_fill` to begin and end a workgroup; `gemm_split` to add up the partial sums of a split K;
    `gemm_launch` from one kernel to the next back to back; `gemm_host` the same where the host launches each kernel and
    waits for it. Where `gemm_fill` or `gemm_launch` is 0, closed forms take what the engine simulates: the first loads
    of a workgroup, and `compute.launch_latency`. Beside a collective on compute units a GEMM's main loop reaches the
    share `gemm_corun` of its rate back to back, and stores to peers are acknowledged as much later.
    """

    matrix_fp16: Share
    matrix_bf16: Share
    matrix_fp8: Share
    matrix_int8: Share
    matrix_tf32: Share
    matrix_fp32: Share
    matrix_fp4: Share = 1.0
    gemm_cache: Share
    gemm_memory: Share
    gemm_resident: Share
    gemm_issue: Cycles
    gemm_latency: Delay
    gemm_fill: Delay
    gemm_split: Delay
    gemm_launch: Delay
    gemm_host: Delay
    gemm_corun: Share


class Power(Part):
    """What a GPU draws by what it does: its limit `tdp` [W] (0: not known), and shares of that.

    `idle`: no kernel runs, but a model lies in memory and clocks are up. `busy` is added while kernels run, `memory`
    at the peak bandwidth of the DRAM, `links` while they send. Matrix units add the rest in a long GEMM.
    """

    tdp: WattsOrNone = 0.0
    idle: ShareOrNone = 0.0
    busy: ShareOrNone = 0.0
    memory: ShareOrNone = 0.0
    links: ShareOrNone = 0.0


def _check_timing(t: Timing, shown: Callable[[str, str], str]) -> None:
    """Raise the rule that the timing of a DRAM contradicts, if any; `shown` writes a value of a part with its name."""
    ras, rp, rc, refi, rfc = (shown("memory.timing", name) for name in ("ras", "rp", "rc", "refi", "rfc"))
    if t.rc < t.ras + t.rp - _ROUNDING:
        raise broken_rule(f"memory.timing: {rc} must be at least {ras} + {rp}; a row must close to open again")
    if bool(t.refi) != bool(t.rfc):
        raise broken_rule(f"memory.timing: {refi} and {rfc} need each other; give both, or 0 s for no refresh")
    if t.refi and t.rfc >= t.refi:
        raise broken_rule(f"memory.timing: {rfc} must be below {refi}; else refreshes leave no time for anything else")


_ROUNDING = 1e-15
"""What sums of delays may be off by in floating point [s]."""

Vendor = Literal["nvidia", "amd", "none"]
"""The GPU's vendor, whose libraries run on it."""
Architecture = Literal[
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "blackwell-rtx",
    "vega",
    "cdna1",
    "cdna2",
    "cdna3",
    "cdna4",
    "t3",
]
"""The GPU's generation, which decides the kernels that its libraries have.

"blackwell-rtx" is compute capability 12.x (RTX PRO, GeForce RTX 50, GB10): it multiplies 4-bit blocks, but has no
tensor memory, and runs kernels of the kind of Ada's (`weft.kernels.library.served.kernels_of`).
"""


_MULTIPLES: tuple[tuple[str, str, *tuple[str | int, ...]], ...] = (
    ("compute", "threads_per_cu", "wavefront_size"),
    ("cache", "capacity", "ways", _ACCESS_BYTES),
    ("memory", "banks", "bank_groups"),
    ("memory", "banks", "refresh_banks"),
    ("memory", "interleave", _ACCESS_BYTES),
    ("memory", "row_bytes", _ACCESS_BYTES),
    ("dma", "window", _ACCESS_BYTES),
)
"""Values of a part that must be multiples of the product of other values and bytes."""
_ASCENDING = (
    ("memory", "burst_clocks", "ccd", "ccd_long"),
    ("memory", "ccd", "ccd_update"),
    ("memory.timing", "rcd", "ras", "rc"),
    ("arbiter", "threshold_high", "threshold_medium", "threshold_low"),
    ("arbiter", "intensity_low", "intensity_medium", "intensity_high"),
)
"""Values of a part that must not decrease in this order."""


_BOOSTED = ("fp32", "fp64")
"""Data types whose data-sheet peak is at the boost clock."""
_FASTEST_MEMORY = 3e9
"""Fastest command clock of a memory channel [hertz], assumed: HBM4 at 11 Gb/s per pin has 2.75 GHz, GDDR6 2.25 GHz."""
_FINE = 64
"""Rates of matrix units above this many FLOP per clock are multiples of it, on every GPU of the catalogue."""
_LEAST_CACHE = 2.0
"""Least rate of the last-level cache, as a multiple of the memory's; the catalogue's GPUs have 2.5 and more."""
_MOST_PER_BYTE = 128
"""Most 16-bit matrix operations for each byte of the last-level cache's rate; the catalogue's GPUs have up to 99."""
_ROUNDED = 0.01
"""How far a data sheet's peak may lie from the product of whole numbers that it rounds, as a fraction."""


def per_clock(operations: float) -> int:
    """Whole operations per clock and unit: the power of two that a data sheet rounds, else the nearest number."""
    power = 2 ** round(math.log2(operations)) if operations >= 1 else 0
    return power if abs(operations - power) <= _ROUNDED * operations else round(operations)


class Gpu(Sourced):
    """A GPU: compute units, caches, memory, arbiter, tracker, DMA engines and links, and its achieved rates."""

    _remedy: ClassVar[str] = "add them, or take them from a relative: 'weft hardware new --like h100-sxm' writes a form"
    title: str
    description: str
    vendor: Vendor
    architecture: Architecture
    aliases: tuple[str, ...] = ()
    compute: Compute
    rates: Rates
    clocks: Clocks
    cache: Cache
    memory_cache: MemoryCache
    package: PackageFabric
    memory: Memory
    arbiter: ArbiterThresholds
    tracker: Tracker
    dma: Dma
    link: GpuLink
    host: Host
    launch: Launch
    achieved: Achieved
    power: Power = Power()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for part, name, *factors in _MULTIPLES:
            least = math.prod(of if isinstance(of, int) else self.value(f"{part}.{of}") for of in factors)
            if self.value(f"{part}.{name}") % least:
                of = " x ".join(f"{one} B" if isinstance(one, int) else one for one in factors)
                shown = format_bytes(least) if _ACCESS_BYTES in factors else least
                raise broken_rule(f"{part}: {self._value_words(part, name)} must be a multiple of {of} ({shown})")
        for part, *names in _ASCENDING:
            for low, high in pairwise(names):
                if self.value(f"{part}.{low}") > self.value(f"{part}.{high}"):
                    raise broken_rule(
                        f"{part}: {self._value_words(part, low)} must be at most {self._value_words(part, high)}"
                    )
        m = self.memory
        _check_timing(m.timing, self._value_words)
        if m.queue_entries * _QUEUE_ENTRY_BYTES < _ACCESS_BYTES:
            queue = self._value_words("memory", "queue_entries")
            raise broken_rule(
                f"memory: {queue} of {_QUEUE_ENTRY_BYTES} B cannot hold one request of {_ACCESS_BYTES} B; "
                f"give it at least {_ACCESS_BYTES // _QUEUE_ENTRY_BYTES}"
            )
        if m.row_bytes % m.interleave and m.interleave % m.row_bytes:
            row, interleave = self._value_words("memory", "row_bytes"), self._value_words("memory", "interleave")
            raise broken_rule(f"memory: {row} must be a multiple of {interleave}, or the other way round")
        if m.burst_bytes != m.burst_clocks * m.bytes_per_clock:
            raise broken_rule(
                f"memory: {self._value_words('memory', 'burst_bytes')} must be burst_clocks x bytes_per_clock "
                f"({m.burst_clocks} x {m.bytes_per_clock} B); change them together"
            )
        if _ACCESS_BYTES % m.burst_bytes:
            burst = self._value_words("memory", "burst_bytes")
            raise broken_rule(f"memory: {burst} must divide one access of {_ACCESS_BYTES} B")
        return self

    @classmethod
    def _derive_values(cls, fields: dict[str, Any], sources: Mapping[str, Provenance]) -> dict[str, Provenance]:
        """Divide the rates that are peaks of the whole GPU by its units and the clock of the peak."""
        tables = {name: dict(fields[name]) for name in ("compute", "clocks", "rates")}
        units, known = tables["compute"]["compute_units"], {}
        for dtype, rate in tables["rates"].items():
            if isinstance(rate, PeakRate):
                clock = tables["compute"]["clock"] if dtype in _BOOSTED else tables["clocks"]["matrix_peak"]
                each = per_clock(rate / (units * clock))
                fields["rates"] = {**dict(fields["rates"]), dtype: each}
                at = f"{each} FLOP per clock and unit of {units} at {format_quantity(clock, Dimension.HERTZ, 4)}"
                stated = sources[f"rates.{dtype}"]
                known[f"rates.{dtype}"] = stated.model_copy(update={"source": f"{stated.source}: {at}"})
        return known

    @property
    def doubts(self) -> tuple[str, ...]:
        """Values that hardly fit each other, each as a sentence that says what to check."""
        return tuple(self._doubts())

    def _doubts(self) -> Iterator[str]:
        m = self.memory
        if m.clock > _FASTEST_MEMORY:
            rate, clock = format_quantity(m.bandwidth / m.channels, Dimension.BYTES_PER_SECOND, 3), m.clock / 1e9
            yield (
                f"memory.bandwidth ({self.text('memory.bandwidth')}) over memory.channels ({m.channels}) is {rate} a "
                f"channel, {clock:.2f} GHz; no memory is faster than {_FASTEST_MEMORY / 1e9:g} GHz, so check "
                "memory.channels, 32 for each stack of HBM3 and 64 of HBM4"
            )
        yield from self._doubts_of_rates()
        for dtype, each_clock in self.rates:
            origin = self.provenance.get(f"rates.{dtype}")
            if each_clock > _FINE and each_clock % _FINE and (origin is None or origin.kind != "derived"):
                stated = origin.text if origin else ""
                each = f"rates.{dtype} ({stated or each_clock}) is {each_clock} FLOP per clock and unit"
                if stated.isdecimal():
                    check = f"for {stated} TFLOP/s of the whole GPU write '{stated} TFLOP/s'"
                else:
                    check = "check compute.compute_units and the clock of the peak"
                yield f"{each}, no multiple of {_FINE}; {check}"

    def _doubts_of_rates(self) -> Iterator[str]:
        """Rates that do not fit each other, as where a value was changed and another left as it was."""
        for narrow, wide in (("fp16", "bf16"), ("fp8", "fp16"), ("fp4", "fp8")):
            slower, faster = getattr(self.rates, narrow), getattr(self.rates, wide)
            if 0 < slower < faster:
                yield (
                    f"rates.{narrow} ({slower}) is below rates.{wide} ({faster}), and no GPU multiplies {narrow} more "
                    f"slowly; check rates.{narrow}"
                )
        matrix = max((self.matrix_rate(dtype) for dtype in ("bf16", "fp16") if self.supports(dtype)), default=0.0)
        rate = format_quantity(self.cache.bandwidth, Dimension.BYTES_PER_SECOND, 3)
        which = "check cache.banks, cache.bytes_per_clock_per_bank and cache.clock"
        if self.cache.bandwidth < _LEAST_CACHE * self.memory.bandwidth:
            memory = format_quantity(self.memory.bandwidth, Dimension.BYTES_PER_SECOND, 3)
            yield f"the cache's rate ({rate}) hardly exceeds the memory's ({memory}) and would limit GEMMs; {which}"
        elif matrix > _MOST_PER_BYTE * self.cache.bandwidth:
            most = (
                f"{matrix / 1e12:,.4g} TFLOP/s of 16-bit products are {matrix / self.cache.bandwidth:.0f} for each byte"
            )
            yield f"{most} of the cache's rate ({rate}), which would limit them; {which}"

    def _value_words(self, part: str, name: str) -> str:
        """Return a part's value with its name, for messages."""
        return f"{name} ({self.text(f'{part}.{name}')})"

    @property
    def dies(self) -> int:
        """Number of compute-unit groups with a cache of their own (the XCDs of AMD GPUs); 1 if all share one cache.

        Compute unit u lies in group u * dies // compute_units.
        """
        return self.cache.partitions if self.vendor == "amd" else 1

    @property
    def units_word(self) -> str:
        """What the vendor calls compute units: SMs, or CUs."""
        return "SMs" if self.vendor == "nvidia" else "CUs"

    @property
    def vector_lanes(self) -> float:
        """Lanes of a compute unit that each do an fp32 multiply-add, or an addition, per clock.

        NVIDIA's fp32 rate counts them directly; AMD's vector rate is that of packed fp16, two multiply-adds per lane.
        """
        return self.rates.fp32 / 2 if self.vendor == "nvidia" else self.compute.vector_flops_per_clock / 4

    @property
    def power_limit(self) -> float:
        """Its power limit [W]; InputError where it is not known."""
        self.check_power()
        return self.power.tdp

    def check_power(self) -> None:
        """Raise InputError where the power of the GPU is not known."""
        if not self.power.tdp:
            raise InputError(
                f"the power of {self.name} is not known; state its limit, and what it draws as shares of that, like "
                "--set power.tdp='700 W' --set power.idle=0.2 --set power.busy=0.2 --set power.memory=0.5"
            )

    def supports(self, dtype: str) -> bool:
        """Return whether the GPU multiplies matrices of that data type."""
        if dtype in _BLOCKS and self.architecture not in _BLOCKS[dtype][1]:
            return False
        return dtype in DTYPES and bool(getattr(self.rates, rated_as(dtype)))

    def peak_clock(self, dtype: str) -> float:
        """Return the clock of the data sheet's peak of a data type: the boost clock for fp32 and fp64 [hertz]."""
        return self.compute.clock if dtype in _BOOSTED else self.clocks.matrix_peak

    def matrix_rate(self, dtype: str, clock: ClockState = "peak") -> float:
        """Dense rate of a matrix product at a clock [FLOP/s]; InputError lists the supported data types.

        The data sheet's "peak" uses `clocks.matrix_peak` for the types of the matrix units, and the boost clock
        for fp32 and fp64.
        """
        if not self.supports(dtype):
            known = ", ".join(name for name in DTYPES if self.supports(name))
            raise InputError(f"{self.name} has no matrix rate for '{dtype}'; it has {known}")
        hertz = {"peak": self.peak_clock(dtype), "sustained": self.clocks.sustained}.get(clock, self.compute.clock)
        return self.compute.compute_units * int(getattr(self.rates, rated_as(dtype))) * hertz


def parse_assignment(text: str) -> tuple[str, str]:
    """Return the path and the value of 'memory.bandwidth="2 TB/s"', quotes or not; InputError if malformed."""
    path, equals, value = (part.strip() for part in text.partition("="))
    bare = value.strip("\"'").strip()
    if not (path and equals and bare):
        raise InputError(f"'{text}' does not assign a value to a path; write it like 'memory.bandwidth=\"2 TB/s\"'")
    return path, bare
