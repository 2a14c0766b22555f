"""Memory that computes: the channel, its processing units and what their commands cost; each value with its source.

A processing unit serves `banks_per_unit` banks of its channel. A command is broadcast to all units of the channel: each
reads, writes or computes one word, in the bank of its group whose row is open. Delays are JEDEC's, without the leading
t, and as in `Gpu.memory.timing`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Self

from pydantic import model_validator

from weft.core.catalog import (
    Bytes,
    BytesPerSecond,
    Count,
    CountOrNone,
    Delay,
    Part,
    Quantity,
    Seconds,
    Shelf,
    Sourced,
    broken_rule,
)
from weft.core.units import Dimension
from weft.hardware.gpus import Gpu

_TEXTS = ("name", "title", "description")


class PimChannel(Part):
    """The memory channel: the rate of its interface, its banks and their rows, and its delays [s].

    `faw` = 0: rows of any number of banks may be opened together. Refreshes take all banks at once: a bank that lags
    behind the others would hold up every command.
    """

    bandwidth: BytesPerSecond
    banks: Count
    row_bytes: Bytes
    rcd: Seconds
    rp: Seconds
    ras: Seconds
    rtp: Seconds
    rtw: Seconds
    wtr: Seconds
    wr: Seconds
    faw: Delay
    refi: Seconds
    rfc: Seconds


class PimUnits(Part):
    """The processing units: words of `word_bytes`, a command every `period`, so many registers of one word each.

    Rows of `activate_banks` banks are opened together; more of them wait `faw` for each further group.
    """

    banks_per_unit: Count
    word_bytes: Bytes
    period: Seconds
    registers: Count
    command_file: Count
    activate_banks: Count


class PimModes(Part):
    """What it costs to change between the modes of a channel, in writes over its bus, and to wait at a barrier [s].

    `program` writes load the command file: one holds `instructions_per_write` instructions.
    """

    enter_writes: CountOrNone
    leave_writes: CountOrNone
    instructions_per_write: Count
    barrier: Delay


class Pim(Sourced):
    """Processing in memory: a channel, the units at its banks and their modes.

    Raises ConfigError for values that contradict each other.
    """

    title: str
    description: str
    channel: PimChannel
    units: PimUnits
    modes: PimModes

    @model_validator(mode="after")
    def _check(self) -> Self:
        banks, units, row = self.channel.banks, self.units, self.channel.row_bytes
        for name, part, whole in (
            ("units.banks_per_unit", units.banks_per_unit, banks),
            ("units.activate_banks", units.activate_banks, self.together),
            ("units.word_bytes", units.word_bytes, row),
        ):
            if part > whole or whole % part:
                raise broken_rule(f"units: {name.partition('.')[2]} ({part}) must divide {whole}; change one of them")
        if self.channel.rfc >= self.channel.refi:
            raise broken_rule("channel: rfc must be shorter than refi; a channel that only refreshes serves nothing")
        return self

    @property
    def together(self) -> int:
        """Number of units in a channel, which is that of the banks that work at once."""
        return max(self.channel.banks // self.units.banks_per_unit, 1)

    @property
    def words_per_row(self) -> int:
        """Number of words in a row of one bank."""
        return self.channel.row_bytes // self.units.word_bytes

    @property
    def word_seconds(self) -> float:
        """Time of a word on the channel's data bus [s]."""
        return self.units.word_bytes / self.channel.bandwidth

    @property
    def update_period(self) -> float:
        """Time of a near-memory update of a word [s]: a command that reads it and one that writes the sum.

        T3 (arXiv:2401.16677) publishes the same: a column delay of an update of twice CCDL.
        """
        return 2 * self.units.period

    @property
    def peak_gain(self) -> float:
        """Peak rate of all units over that of the channel's interface."""
        return self.together * self.units.word_bytes / self.units.period / self.channel.bandwidth

    def on(self, gpu: Gpu) -> Self:
        """These units at the banks of a GPU's memory: its rate, banks, rows and delays, a command every `ccd_long`.

        The refresh of all banks at once and the number of banks of a unit stay as they are here.
        """
        memory, t = gpu.memory, gpu.memory.timing
        burst, clock = memory.burst_clocks / memory.clock, 1 / memory.clock
        delays = {
            "rcd": t.rcd, "rp": t.rp, "ras": t.ras, "rtp": t.rtp, "wr": t.wl + burst + t.wr,
            "rtw": max(t.cl + burst + 2 * clock - t.wl, burst), "wtr": t.wl + burst + t.cdlr,
        }  # fmt: skip
        all_together = self.units.activate_banks == self.together
        changed = {
            "channel.bandwidth": memory.bandwidth / memory.channels,
            "channel.banks": memory.banks,
            "channel.row_bytes": memory.row_bytes,
            **{f"channel.{name}": delay for name, delay in delays.items()},
            "units.period": memory.ccd_long * clock,
            "units.activate_banks": memory.banks // self.units.banks_per_unit
            if all_together
            else self.units.activate_banks,
        }
        rules = self.rules()
        made = self.replace({path: _text(rules[path], value) for path, value in changed.items()})
        return made.model_copy(update={"name": f"{self.name} on {gpu.name}"})


_SUFFIX = {Dimension.BYTES: " B", Dimension.BYTES_PER_SECOND: " B/s", Dimension.SECONDS: " s", Dimension.COUNT: ""}


def _text(rule: Quantity | None, value: float) -> str:
    """Return a number with its unit, in full precision."""
    return f"{value!r}{_SUFFIX[rule.dimension]}" if rule else str(value)


@cache
def _shelf() -> Shelf:
    return Shelf("PIM configuration", "weft.hardware", "catalog/pim", _TEXTS, Pim.rules())


def pim(name_or_path: str | Path | Pim) -> Pim:
    """Return the PIM configuration of that name, or the one that a TOML file describes; a file may extend another one.

    Raises UnknownNameError, InputError or ConfigError.

    >>> [round(pim(name).peak_gain, 2) for name in ("hbm2", "hbm2-shared")]
    [8.0, 4.0]
    """
    if isinstance(name_or_path, Pim):
        return name_or_path
    found = _shelf().read(name_or_path)
    return Pim.from_leaves(found.about, found.leaves, found.file)
