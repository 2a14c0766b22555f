"""Memory that computes beside a GEMM on a whole GPU, and T3's near-memory update as one of its commands."""

import numpy as np
import pytest

import weft
from weft import hardware
from weft.core.errors import InputError
from weft.core.units import to_fs
from weft.engine import layout as y
from weft.engine.program.plan import PimStream
from weft.engine.replay import replay
from weft.hardware.pim import pim
from weft.kernels.pim import MemoryWork, encode, stream
from weft.overlaps.arbiters import ROUND_ROBIN
from weft.overlaps.lower.machine import gpu_row
from weft.papers.jit_q.layers import spread
from weft.simulate.pim import IDLE, meet, tables
from weft.simulate.result.stored import as_record, from_record
from weft.simulate.single import alone

MI210 = hardware.gpu("mi210")
ON = pim("hbm2").on(MI210)
GEMM = alone(weft.Gemm(2048, 2048, 2048, "bf16"), 1)


def beside(work, *, graph=GEMM, every=0.0, patience=0.0, **options):
    options = weft.RunOptions(memory_work=MemoryWork(work, ON, every, patience), **options)
    return weft.simulate(graph, MI210, options=options)


@pytest.fixture(scope="module")
def idle():
    return beside(IDLE)


def test_memory_without_commands_leaves_a_gemm_as_it_is_with_the_same_refresh(idle):
    assert idle.commands.seconds == idle.commands.busy == 0
    plain = weft.simulate(GEMM, MI210, options=weft.RunOptions(request_bytes=512))
    assert idle.seconds == pytest.approx(plain.seconds, rel=0.02)
    assert plain.commands is None


@pytest.mark.parametrize("every", [0.0, 1e-6, 3e-6])
@pytest.mark.parametrize("patience", [0.0, 0.5e-6])
def test_every_channel_carries_out_all_commands_in_order_and_the_gemm_is_no_faster(idle, every, patience):
    work = encode(1600, ON)
    ran = beside(work, every=every, patience=patience)
    found, runs = ran.commands, work.runs
    assert found.begin.shape == (MI210.memory.channels, len(runs))
    assert (found.end - found.begin == runs[:, y.PIM_COUNT] * runs[:, y.PIM_GAP]).all()
    assert (found.begin[:, 1:] >= found.end[:, :-1]).all()
    group = np.cumsum(np.concatenate(([0], runs[:-1, y.PIM_TOGETHER] == 0)))
    first = np.unique(group, return_index=True)[1]
    assert (found.begin[:, first] >= np.arange(len(first)) * to_fs(every)).all(), "no group comes before it is due"
    assert found.seconds >= meet(work, ON, gpu=MI210, every=every).pim_seconds * (1 - 1e-3)
    refreshes = int(found.seconds / ON.channel.refi) - 1
    assert (work.busy_fs + refreshes * to_fs(ON.channel.rfc)) * 1e-15 <= found.seconds
    assert ran.seconds >= idle.seconds * (1 - 1e-3)
    assert ran.total_bytes == pytest.approx(idle.total_bytes, rel=0.01)


def test_more_commands_cost_a_gemm_more(idle):
    lost = [beside(encode(words, ON)).seconds for words in (320, 3200, 12800)]
    assert idle.seconds <= lost[0] < lost[1] < lost[2]


@pytest.mark.parametrize(("words", "every"), [(3200, 0.0), (9600, 0.0), (3200, 2e-6)])
def test_whole_gpu_and_single_channel_agree_on_what_commands_cost(idle, words, every):
    """`meet` spreads the GEMM's bytes over its time in one channel; the engine makes them as workgroups need them."""
    size, channels = 512, MI210.memory.channels
    requests = spread(idle.total_bytes // size // channels, idle.seconds)
    work = encode(words, ON)
    single = [meet(one, ON, requests, MI210, 16, every).seconds for one in (IDLE, work)]
    whole = beside(work, every=every).seconds / idle.seconds
    assert whole == pytest.approx(single[1] / single[0], rel=0.05)


def test_commands_of_a_run_survive_its_record(idle):
    ran = beside(encode(320, ON))
    again = from_record(as_record(ran))
    assert again.commands.seconds == ran.commands.seconds
    assert again.commands.busy == ran.commands.busy


def update(words, pim):
    """T3's near-memory update of `words` words of one row: the time of a read and a write each, one word on the bus."""
    gap, bus = to_fs(pim.update_period), to_fs(pim.word_seconds)
    return PimStream.of("near-memory update", words, [(y.UPDATE, 1, 0, words, gap, bus, 0, 0, 0)])


@pytest.mark.parametrize("words", [1, 8, 16, 32])
def test_an_update_of_a_tile_takes_the_bus_bank_and_bytes_that_the_engine_charges(words):
    """T3's update is a command of memory that computes: one run of them is what one request of the engine takes."""
    size, work = ON.units.word_bytes, update(words, ON)
    ran = tables(MemoryWork(IDLE, ON), MI210)
    trace = np.array([[0, y.UPDATE, y.COMMUNICATION_STREAM, 0, words * size, y.NONE]])
    _, done, machine = replay(ran, ROUND_ROBIN.compiled, trace)
    assert meet(work, ON, gpu=MI210).end[0] == done[0]
    assert work.busy_fs == machine.group[:, y.GROUP_UNTIL].max() - ran.gpu[0, y.GPU_T_RCD]
    bus = int((work.runs[:, y.PIM_COUNT] * work.runs[:, y.PIM_BUS]).sum())
    assert bus == machine.channel[0, y.CHAN_BUSY]
    assert work.count("update") * size == trace[0, 4]
    engine = gpu_row(MI210)[[y.GPU_T_UPDATE, y.GPU_T_BURST]] * words
    assert [work.busy_fs, bus] == pytest.approx(engine, rel=5e-4)  # 1.638 TB/s is a rounded figure


def test_an_update_takes_the_commands_of_a_streaming_kernel_that_reads_and_writes_each_word():
    """T3 publishes a column delay of twice CCDL: two commands, one that reads a word and one that writes the sum."""
    assert update(8, ON).busy_fs == pytest.approx(stream("scale", 8, ON).busy_fs, abs=16)  # rounded to 1 fs a command
    for name in hardware.gpu_names():
        memory = hardware.gpu(name).memory
        if memory.banks % 16 == 0:
            assert pim("hbm2").on(hardware.gpu(name)).update_period == pytest.approx(memory.ccd_update / memory.clock)


def test_work_that_does_not_fit_the_gpu_is_refused_in_one_sentence():
    other = pim("hbm2")
    with pytest.raises(InputError, match=r"compile the commands for pim\(...\)\.on\(gpu\)"):
        weft.simulate(GEMM, MI210, options=weft.RunOptions(memory_work=MemoryWork(encode(320, other), other)))
    with pytest.raises(InputError, match="needs its banks"):
        beside(encode(320, ON), memory="bandwidth")
    with pytest.raises(InputError, match="takes several channels"):
        beside(encode(320, ON), request_bytes=16384)
    with pytest.raises(InputError, match=r"every is -1\.0; give a finite number of seconds of at least 0"):
        MemoryWork(IDLE, ON, every=-1.0)
    with pytest.raises(InputError, match=r"give weft\.kernels\.pim\.MemoryWork"):
        weft.RunOptions(memory_work="encode")
