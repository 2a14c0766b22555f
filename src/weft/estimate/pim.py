"""Processing in memory in closed form: the bandwidth it gains, and how long encoding takes with nothing else around.

A row is open for its commands, one every `period`; closing it and opening the next one takes tRP + tRCD, during which
all banks that work together wait. Where results go to the same bank, every turn to writing opens two rows.
"""

from __future__ import annotations

from weft.core.errors import check_name
from weft.hardware.pim import Pim
from weft.kernels.formats import FORMATS
from weft.kernels.pim import EXCHANGES, GROUP, INSTRUCTION_SETS, MICROEXPONENTS, VALUE_BITS


def opening(pim: Pim) -> float:
    """From the last command in a row to the first in the next, without what the last one needs to end [s]."""
    groups = pim.together // pim.units.activate_banks
    return pim.channel.rp + pim.channel.rcd + (groups - 1) * pim.channel.faw


def refreshing(pim: Pim) -> float:
    """Return how many times longer everything takes because of refreshes: while one lasts, no row is open."""
    return 1 / (1 - (pim.channel.rfc + pim.channel.rp) / pim.channel.refi)


def streaming_gain(pim: Pim) -> float:
    """Rate at which all units read their banks over that of the interface, with one opening for each row.

    Refreshes, which hold up both alike, are left out.

    >>> from weft.hardware.pim import pim
    >>> [round(streaming_gain(pim(name)), 1) for name in ("hbm2", "hbm2-shared", "lpddr5x")]
    [6.5, 3.3, 7.0]
    """
    period, words = pim.units.period, pim.words_per_row
    row = words * period + opening(pim) + max(pim.channel.rtp - period, 0.0)
    return pim.peak_gain * words * period / row


def commands_per_word(format: str = "mx9", instructions: str = "fused", across: bool = False) -> float:
    """Commands for each word of fp32 that is encoded: c of the cost c S / (A BW).

    >>> [round(commands_per_word("mx9", name) * 16, 1) for name in ("fused", "simple")]
    [36.5, 85.5]
    """
    return sum(_commands(format, instructions, across)) / GROUP


def _commands(format: str, instructions: str, across: bool) -> tuple[int, float]:
    """Commands of a group of 16 words that compute, and that write."""
    check_name("number format of shared microexponents", format, MICROEXPONENTS)
    check_name("instruction set", instructions, INSTRUCTION_SETS)
    exchanged = EXCHANGES * GROUP // 2 if across else 0
    return INSTRUCTION_SETS[instructions].computing + exchanged, FORMATS[format].bits / VALUE_BITS * GROUP


def encode_seconds(
    words: float, pim: Pim, format: str = "mx9", instructions: str = "fused", across: bool = False
) -> float:
    """Return the time to encode `words` words of fp32 at each unit, with rows, turns to writing and refreshes [s]."""
    c, period = pim.channel, pim.units.period
    computing, written = _commands(format, instructions, across)
    held = int((pim.units.registers - INSTRUCTION_SETS[instructions].working) / written)
    turn = min(held, pim.words_per_row // GROUP)  # groups from one turn to writing to the next
    after = (1 + INSTRUCTION_SETS[instructions].after) * period  # from the last read to what follows the computing
    busy = turn * (computing + written) * period
    crossed = max(turn * written - 1, 0.0) / pim.words_per_row  # share of turns whose results lie in two rows
    if pim.units.banks_per_unit > 1:
        rows = turn * GROUP / pim.words_per_row
        read_again = max(c.wtr - period, 0.0) * (1 - rows) + max(opening(pim), c.wtr - period) * rows
        fixed = max(c.rtw - after, 0.0) + read_again + turn * written / pim.words_per_row * opening(pim)
        fixed += crossed * (c.wr - period)
    else:
        fixed = 2 * opening(pim) + max(c.rtp - after, 0.0) + c.wr - period
        fixed += crossed * (opening(pim) + c.wr - period)
    return words / GROUP / turn * (busy + fixed) * refreshing(pim)


def gain_while_encoding(pim: Pim, format: str = "mx9", instructions: str = "fused", across: bool = False) -> float:
    """Return a of the cost c S / (A BW): the rate at which commands pass words, over that of the interface."""
    c = commands_per_word(format, instructions, across)
    seconds = encode_seconds(GROUP, pim, format, instructions, across)
    return c * GROUP * pim.together * pim.units.word_bytes / (seconds * pim.channel.bandwidth)


def serialised_loss(c: float, rate: float, gain: float, bandwidth: float, tokens: float) -> float:
    """Return the share that two encodings of all weights add to a training step's time if nothing overlaps.

    Source: 4 c F / (3 A BW n).

    `rate` is the GEMMs' F [FLOP/s], `gain` A, `bandwidth` the memory's BW [bytes/s], `tokens` n of a GPU and step: for
    each parameter 2 x 4 c / (A BW) seconds beside 6 n / F.

    >>> round(serialised_loss(2.28, 0.6 * 181e12, 6.6, 1638e9, 1024), 3)
    0.03
    """
    return 4 * c * rate / (3 * gain * bandwidth * tokens)


def host_seconds(bytes_: float, bandwidth: float, format: str = "mx9") -> float:
    """Return the time of a GPU kernel that encodes `bytes_` of fp32: it reads each value and writes the copy [s]."""
    return bytes_ * (1 + FORMATS[format].bits / VALUE_BITS) / bandwidth
