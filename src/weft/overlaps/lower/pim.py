"""Memory that computes in the engine's tables: its delays, its refresh, and its commands during a run."""

from __future__ import annotations

from weft.core.errors import InputError
from weft.core.options import ChannelWork, RunOptions
from weft.core.units import format_rate, to_fs
from weft.engine import layout as y
from weft.engine.program import Hardware
from weft.engine.state import Table
from weft.hardware import Gpu
from weft.hardware.pim import Pim
from weft.overlaps.lower.machine import bus_share, count_ganged


def take_delays(row: Table, pim: Pim, read_efficiency: float) -> None:
    """Give a GPU's row (or rows) the rates and delays of the channels of `pim`; all banks are refreshed together."""
    c, burst = pim.channel, pim.word_seconds
    times = {
        y.GPU_T_BURST: burst, y.GPU_T_LONG: pim.units.period, y.GPU_T_UPDATE: pim.update_period, y.GPU_T_RCD: c.rcd,
        y.GPU_T_RP: c.rp, y.GPU_T_RAS: c.ras, y.GPU_T_RC: c.ras + c.rp, y.GPU_T_READ_TO_PRECHARGE: c.rtp,
        y.GPU_T_WRITE_TO_PRECHARGE: c.wr, y.GPU_T_READ_TO_WRITE: c.rtw, y.GPU_T_WRITE_TO_READ: c.wtr,
        y.GPU_T_FAW: c.faw, y.GPU_T_RFC: c.rfc, y.GPU_REFRESH_EVERY: c.refi, y.GPU_T_PATH: burst / read_efficiency,
    }  # fmt: skip
    for column, seconds in times.items():
        row[..., column] = to_fs(seconds)
    shared = to_fs(burst)
    row[..., y.GPU_SHARE_LONG] = bus_share(to_fs(pim.units.period), shared)
    row[..., y.GPU_SHARE_UPDATE] = bus_share(to_fs(pim.update_period), shared)
    row[..., y.GPU_REFRESH_BANKS] = c.banks


def take_commands(hardware: Hardware, gpu: Gpu, work: ChannelWork, options: RunOptions) -> Table:
    """The commands of `work` as the engine's table, the machine having taken the delays of its memory that computes.

    Raises InputError where the channels are not those of the GPU, or stand for several, or have no banks.
    """
    memory, channel, name = gpu.memory, work.pim.channel, work.pim.name
    if options.memory != "banks":
        raise InputError("memory that computes needs its banks; choose memory 'banks', not 'bandwidth'")
    if (request := options.request_bytes) and count_ganged(gpu, request) > 1:
        raise InputError(
            f"a request of {request} B takes several channels, and commands hold one each; choose request_bytes of at "
            f"most {memory.interleave}, such as 512"
        )
    rate = memory.bandwidth / memory.channels
    if (channel.banks, channel.row_bytes) != (memory.banks, memory.row_bytes) or abs(
        channel.bandwidth / rate - 1
    ) > 0.01:
        raise InputError(
            f"'{name}' has {channel.banks} banks at {format_rate(channel.bandwidth)} a channel, and {gpu.name} "
            f"{memory.banks} at {format_rate(rate)}; compile the commands for pim(...).on(gpu)"
        )
    take_delays(hardware.gpu, work.pim, memory.read_efficiency)
    hardware.gpu[:, y.GPU_PIM_EVERY], hardware.gpu[:, y.GPU_PIM_PATIENCE] = to_fs(work.every), to_fs(work.patience)
    runs: Table = work.stream.runs
    return runs
