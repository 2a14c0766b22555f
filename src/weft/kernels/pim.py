"""Compile work on a tensor for processing in memory: encode it in a block format, or stream through it.

Layout rule: a tile of 16 x 16 values of fp32 is 1 KiB, so that the blocks of either direction lie in one open row. The
16 values of a block along the one direction are the same lane of 16 words; along the other they are two words, whose
lanes have to be exchanged. Units at two banks read in one and write in the other, first from the even banks to the odd
ones and then back; units at one bank keep results in registers and change the row when these are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.core.errors import InputError, check_name, check_whole
from weft.core.fields import check_fields, declare
from weft.core.units import to_fs
from weft.engine.layout import PIM_COMPUTE, READ, WRITE
from weft.engine.program.plan import PimStream
from weft.hardware.pim import Pim
from weft.kernels.formats import FORMATS, SharedMicroexponents

GROUP = 16
"""Words of a group: in each of their 8 lanes, the 16 values of a block."""
VALUE_BITS = 32
EXCHANGES = 6
"""Exchanges of lanes for a block across lanes: three to find its largest exponent, three to spread the shift."""
_RESULT_ROW = 1 << 20
"""Rows of results begin here, far from those of the tensor."""


@dataclass(frozen=True)
class InstructionSet:
    """Commands that encode a group of 16 words, in turn; reading ones take a word of the open row each.

    `working` registers hold intermediate values, the others results. The largest exponent is found while reading
    (`first` commands), then come `between` commands in registers; the group is read again (`second`), each word with
    `converting` further commands, and results are packed (`packing`).
    """

    about: str
    between: int
    converting: int
    packing: int
    working: int
    first: int = GROUP
    second: int = GROUP

    @property
    def after(self) -> int:
        """Commands of a group after the last read, before results are written."""
        return self.converting * GROUP + self.packing

    @property
    def computing(self) -> int:
        """Commands of a group that write nothing."""
        return self.first + self.between + self.second + self.after


INSTRUCTION_SETS: Mapping[str, InstructionSet] = {
    "fused": InstructionSet(
        "a command reads a word and takes the running and the pair's largest exponent, or shifts, rounds and packs it",
        0, 0, 0, 3,
    ),
    "simple": InstructionSet(
        "a command does one operation: 8 for pairs, 9 for pair bits and exponents, shift and round apart, 16 to pack",
        17, 1, 16, 9,
    ),
}  # fmt: skip
"""Instruction sets for encoding, by name: assumptions, as no memory on sale has a maximum or a shift."""


@dataclass(frozen=True)
class Streamed:
    """A streaming kernel: the operands it reads and the results it writes for each word of its result."""

    about: str
    reads: int
    writes: int


STREAMING: Mapping[str, Streamed] = {
    "reduction": Streamed("sum of all words, kept in registers", 1, 0),
    "copy": Streamed("read a word, write it elsewhere", 1, 1),
    "scale": Streamed("read a word, multiply, write it elsewhere", 1, 1),
    "add": Streamed("read two words, add, write the sum", 2, 1),
}
"""Streaming kernels by name."""


class _RunWriter:
    """Writes runs for one configuration: which banks a command touches, how long it takes, and how the bus is used."""

    def __init__(self, pim: Pim) -> None:
        self.gap, self.words = to_fs(pim.units.period), pim.words_per_row
        self.barrier = to_fs(pim.modes.barrier)
        groups = pim.together // pim.units.activate_banks
        self.opening = (groups - 1) * to_fs(pim.channel.faw)
        self.shared = pim.units.banks_per_unit > 1
        apart = pim.units.banks_per_unit
        self.masks = [sum(1 << bank for bank in range(side, pim.channel.banks, apart)) for side in range(apart)]

    def run(self, kind: int, count: int, row: int = -1, side: int = 0, last: bool = False) -> tuple[int, ...]:
        """Return a run of `count` commands on `row` of the banks of one side."""
        mask = 0 if kind == PIM_COMPUTE else self.masks[side]
        return kind, mask, row, count, self.gap, 0, self.opening, 0 if last else 1, self.barrier if last else 0

    def mode(self, writes: int, bus: int) -> tuple[int, ...]:
        """Writes of the host to registers of the units, over the bus."""
        return PIM_COMPUTE, 0, -1, writes, max(self.gap, bus), bus, 0, 0, self.barrier


def encode(
    words: int, pim: Pim, format: str = "mx9", instructions: str = "fused", across: bool = False, modes: bool = False
) -> PimStream:
    """Commands that encode `words` words of fp32 at each unit of a channel in a format of shared microexponents.

    `across`: the blocks lie across lanes. `modes`: with the writes that load the program, enter the mode and leave it.
    Raises UnknownNameError for an unknown format or instruction set, and InputError for words that are no whole
    groups of 16, and for a configuration with too few registers.
    """
    check_name("number format of shared microexponents", format, MICROEXPONENTS)
    check_name("instruction set", instructions, INSTRUCTION_SETS)
    check_whole("words", words, GROUP, 1024)
    chosen = INSTRUCTION_SETS[instructions]
    each = FORMATS[format].bits / VALUE_BITS * GROUP  # words of result of a group
    held = int((pim.units.registers - chosen.working) / each)
    if pim.units.word_bytes != VALUE_BITS or words % GROUP or held < 1:
        raise InputError(
            f"{words} words of {pim.units.word_bytes} B at {pim.units.registers} registers cannot be encoded; give a "
            f"multiple of {GROUP} words of 32 B, and at least {chosen.working + int(each) + 1} registers"
        )
    body = _encode_runs(_RunWriter(pim), chosen, words // GROUP, each, held, across)
    title = f"{format}, {instructions}{', across lanes' * across}"
    return PimStream.of(title, words, _within_mode(body, pim) if modes else body)


MICROEXPONENTS = tuple(name for name, one in FORMATS.items() if isinstance(one, SharedMicroexponents))
"""Formats that a unit can encode: those of shared microexponents."""


def _encode_runs(
    write: _RunWriter, chosen: InstructionSet, groups: int, each: float, held: int, across: bool
) -> Iterator[tuple[int, ...]]:
    """Yield the runs of all groups: `held` groups, each read twice, then their results, `each` words a group."""
    rows, done, side = write.words, 0, 0
    exchanges = EXCHANGES * GROUP // 2 if across else 0
    while done < groups:
        if write.shared and done >= (groups + 1) // 2:
            side = 1
        until = min(done + held, (groups + 1) // 2 if write.shared and not side else groups, _next_row(done, rows))
        for group in range(done, until):
            row = group * GROUP // rows
            yield write.run(READ, chosen.first, row, side)
            if between := chosen.between + exchanges:
                yield write.run(PIM_COMPUTE, between)
            yield write.run(READ, chosen.second, row, side)
            if chosen.after:
                yield write.run(PIM_COMPUTE, chosen.after)
        begin, end = int(done * each), int(until * each) + (until == groups and until * each % 1 > 0)
        yield from _results(write, begin, end, 1 - side if write.shared else 0)
        done = until


def _next_row(group: int, words: int) -> int:
    """Return the first group after `group` in another row, with `words` words per row."""
    per = max(words // GROUP, 1)
    return (group // per + 1) * per


def _results(write: _RunWriter, begin: int, end: int, side: int) -> Iterator[tuple[int, ...]]:
    """Writes of the result's words `begin` to `end`, a run for each row, then a barrier."""
    while begin < end:
        row = begin // write.words
        until = min(end, (row + 1) * write.words)
        yield write.run(WRITE, until - begin, _RESULT_ROW + row, side, last=until == end)
        begin = until


def _within_mode(body: Iterator[tuple[int, ...]], pim: Pim) -> Iterator[tuple[int, ...]]:
    """Yield the runs with the writes before and after them: program and mode, and back."""
    write, modes = _RunWriter(pim), pim.modes
    bus = to_fs(pim.word_seconds)
    before = -(-pim.units.command_file // modes.instructions_per_write) * bool(modes.enter_writes) + modes.enter_writes
    if before:
        yield write.mode(before, bus)
    yield from body
    if modes.leave_writes:
        yield write.mode(modes.leave_writes, bus)


def stream(kernel: str, words: int, pim: Pim) -> PimStream:
    """Commands of a streaming kernel on `words` words of its result at each unit; operands and result share rows.

    Groups of half the registers (all of them where nothing is written) are read, added to or multiplied, and written,
    with a barrier after each group. Raises UnknownNameError for an unknown kernel.

    >>> from weft.hardware.pim import pim
    >>> [stream(name, 320, pim("hbm2")).commands_per_word for name in STREAMING]
    [1.0, 2.0, 2.0, 3.0]
    """
    check_name("streaming kernel", kernel, STREAMING)
    check_whole("words", words, 1, 1024)
    return PimStream.of(kernel, words, _stream_runs(_RunWriter(pim), STREAMING[kernel], words, pim.units.registers))


@dataclass(frozen=True, eq=False)
class MemoryWork:
    """Commands that every memory channel of a GPU carries out during a run: `weft.RunOptions.memory_work`.

    A group of commands is due every `every` [s] (0: when the one before has ended) and gives way to queued requests for
    at most `patience` [s]. Raises InputError for times below zero.
    """

    stream: PimStream
    pim: Pim
    every: float = declare(0.0, "", unit="seconds")
    patience: float = declare(0.0, "", unit="seconds")

    def __post_init__(self) -> None:
        check_fields(self)


def _stream_runs(write: _RunWriter, kernel: Streamed, words: int, registers: int) -> Iterator[tuple[int, ...]]:
    """Yield the runs of a streaming kernel: in each row as many words of every operand and of the result as fit."""
    per_row = write.words // (kernel.reads + kernel.writes)
    group = registers // 2 if kernel.writes else registers
    for first in range(0, words, per_row):
        row = first // per_row
        for begin in range(first, min(first + per_row, words), group):
            count = min(group, min(first + per_row, words) - begin)
            yield write.run(READ, kernel.reads * count, row, last=not kernel.writes)
            if kernel.writes:
                yield write.run(WRITE, kernel.writes * count, row, last=True)
