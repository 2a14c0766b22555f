"""Options of a run: one class for the engine and for closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from weft.core.errors import InputError, is_whole, show_value
from weft.core.fields import check_fields, declare

Clock = Literal["short", "sustained", "boost"]
"""Clock of the compute units: that of a short run (boost where power allows), that of a long run at the power limit, or
the boost clock throughout."""
Mode = Literal["auto", "mirrored", "explicit"]
"""Whether one GPU represents all, or each is simulated; auto: one if all are alike."""

Memory = Literal["banks", "bandwidth"]
"""Detail of the DRAM: banks with rows, bank groups and refresh, or one server per channel at the rate of its bus, which
pays for turnarounds between reads and writes alone."""

Heatmap = Literal["channel", "bank"]
"""What a run records the load of over time: memory channels, or each of their banks."""

MOST_SPREAD = 0.5
"""Largest share by which clocks may differ: beyond it a GPU is broken, not late."""

Fidelity = Literal["estimate", "windows"]
"""Where a step's durations come from: closed forms, or also the engine where kernels and collectives run at once."""


class Arbiter(Protocol):
    """What a run asks of an arbiter, such as `weft.overlaps.arbiters.ArbiterPolicy`."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def compiled(self) -> Any:
        """Return the function that the engine calls."""


class ChannelWork(Protocol):
    """What a run asks of commands in memory, such as `weft.kernels.pim.MemoryWork`."""

    @property
    def stream(self) -> Any:
        """Return the commands of a channel."""

    @property
    def pim(self) -> Any:
        """Return the memory that carries them out."""

    @property
    def every(self) -> float:
        """Return the time from one group of commands to the next [s]."""

    @property
    def patience(self) -> float:
        """Return how long a group gives way to queued requests [s]."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    `clock` is the clock state of the compute units. `request_bytes` is the size of memory requests [bytes] (64 is
    exact, larger ones faster; None: as suits graph and GPU). `event_budget` ends a run that takes more events.
    `arbiter` replaces the overlap's memory arbitration: a policy, or the name of a built-in one. `progress(events,
    now_fs, end_fs)` is called about every million events with the simulated time [fs] and a function that returns the
    end that closed forms expect [fs] (0: unknown). `interference` records what compute and communication cost each
    other in memory: `Timeline.interference`. `memory` is the detail of the DRAM: "bandwidth" is faster and leaves out
    what rows, banks and refreshes cost. `memory_work` are commands that every memory channel carries out during the
    run: `Timeline.commands`. `heatmap` records what each memory channel, or each bank, does over time: `Timeline.heat`.
    `hashing` spreads addresses that lie a round of stripes over the channels apart over all channels, as GPUs do;
    without it, they lie in one.

    `updates` records when near-memory updates of each tile reached memory: `Timeline.updates`.

    `workgroup_spread` lets each workgroup of a GEMM compute at a clock of its own, anywhere between half of that share
    below the usual one and half of it above, equally likely, drawn from `workgroup_seed` (0: all alike).

    Raises UnknownNameError for an unknown clock, mode, memory or heatmap, InputError for an invalid size or budget, and
    for a heat map of banks where the memory has none.
    """

    clock: Clock = declare(
        "sustained", "Clock of the compute units: the boost clock of a short run, or the sustained clock of a long one."
    )
    request_bytes: int | None = declare(
        None, "Size of a memory request: 64 is exact, larger ones are faster.", default="as suits the graph and the GPU"
    )
    mode: Mode = declare("auto", "Simulate one GPU for all, or each of them.")
    event_budget: int | None = declare(None, "Most events of a run.", least=0, default="no limit")
    arbiter: Arbiter | str | None = None
    progress: Callable[[int, int, Callable[[], int]], None] | None = None
    interference: bool = declare(
        False, "Record what compute and communication cost each other in memory: latencies, queues, who delays whom."
    )
    memory: Memory = declare(
        "banks",
        "Detail of the DRAM: banks, rows and refreshes, or only the bandwidth of each channel, which is faster.",
        noun="detail of the memory",
    )
    memory_work: ChannelWork | None = None
    heatmap: Heatmap | None = declare(
        None,
        "Record what every memory channel, or every bank, does over time: load, efficiency, row hits, camping index.",
        noun="heat map",
    )
    hashing: bool = declare(
        True, "Spread addresses over the channels by a hash, as GPUs do, or plainly one stripe after the other."
    )
    updates: bool = declare(False, "Record when near-memory updates of each tile reached memory.")
    workgroup_spread: float = 0.0
    workgroup_seed: int = declare(0, "Seed of the clocks of workgroups.", least=0)

    def __post_init__(self) -> None:
        if self.request_bytes is not None and not (is_whole(self.request_bytes) and 0 < self.request_bytes < 2**40):
            raise InputError(f"request_bytes is {show_value(self.request_bytes)}; give a multiple of 64 B, such as 512")
        spread: object = self.workgroup_spread
        if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 <= spread <= MOST_SPREAD:
            raise InputError(
                f"workgroup_spread is {show_value(self.workgroup_spread)}; give a share from 0 to {MOST_SPREAD}, like "
                "0.02"
            )
        check_fields(self)
        if not (self.arbiter is None or isinstance(self.arbiter, str) or hasattr(self.arbiter, "compiled")):
            raise InputError(f"arbiter is {show_value(self.arbiter)}; give what weft.arbiter makes of a function")
        if not (self.memory_work is None or hasattr(self.memory_work, "stream")):
            raise InputError(
                f"memory_work is {show_value(self.memory_work)}; give weft.kernels.pim.MemoryWork(...) or None"
            )
        if self.heatmap == "bank" and self.memory == "bandwidth":
            raise InputError('heatmap is "bank", but memory="bandwidth" leaves out banks; choose memory="banks"')
        if self.workgroup_spread and self.updates:
            raise InputError(
                "updates record tiles by the parts of K that make them, not by workgroups whose clocks differ; leave "
                "out updates or workgroup_spread"
            )
        if self.progress is not None and not callable(self.progress):
            raise InputError(f"progress is {show_value(self.progress)}; give a function of events and time")


SUSTAINED = RunOptions()
"""The default run: long enough for the power limit."""
SHORT = RunOptions(clock="short")
"""A run too short to reach the power limit, like most published measurements of single kernels."""
RESERVE = 0.04
"""Share of a GPU's memory that a plan leaves free [assumed, 0 to 0.1: what the allocator, the driver and NCCL's buffers
take beyond what is counted differs among releases]."""
