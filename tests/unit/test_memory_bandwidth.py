"""A memory channel of one server without banks: its closed forms, and how far runs are from those with banks."""

import json

import numpy as np
import pytest
from machines import gpu
from runs import together

import weft
from weft.cli import main as cli
from weft.core.errors import UnknownNameError
from weft.core.options import RunOptions
from weft.graph import Gemm
from weft.simulate.channel import Requests, one_channel, replay_requests

ONE = one_channel(gpu())
CLOCK, BURST, TIMING = 1 / ONE.memory.clock, ONE.memory.burst_bytes, ONE.memory.timing
COUNT, FS = 64, 1e-15
ARRIVAL = 10**9


def replayed(kind, address=None, size=512, count=COUNT):
    """From the arrival of all requests until each has passed the bus [s]."""
    zero = np.zeros(count, dtype=np.int64)
    address = np.arange(count) * size if address is None else np.asarray(address)
    requests = Requests(zero + ARRIVAL, zero + np.asarray(kind), zero, address, zero + size)
    return (replay_requests(requests, ONE, memory="bandwidth") - ARRIVAL) * FS


@pytest.mark.parametrize("seed", range(3))
def test_reads_take_the_time_of_their_bytes_on_the_bus_wherever_they_lie(seed):
    address = np.random.default_rng(seed).integers(0, 1 << 24, COUNT) * 512
    bursts = COUNT * 512 / BURST
    assert replayed(0, address).max() == pytest.approx(bursts * CLOCK + TIMING.cl, rel=1e-6)


def test_near_memory_updates_take_twice_the_time_of_writes_as_their_column_delay_is_twice_as_long():
    assert ONE.memory.ccd_update == 2 * ONE.memory.ccd_long
    writes, updates = (replayed(kind).max() for kind in (1, 2))
    assert writes == pytest.approx(COUNT * 512 / BURST * CLOCK, rel=1e-6)
    assert updates == pytest.approx(2 * writes, rel=1e-6)


def test_a_write_after_a_read_waits_until_the_bus_has_turned():
    read, write = replayed([0, 1], size=BURST, count=2)
    assert read == pytest.approx(TIMING.cl + CLOCK, rel=1e-6)
    assert write == pytest.approx(TIMING.cl + 3 * CLOCK - TIMING.wl + CLOCK, rel=1e-6)


def test_a_read_after_a_write_waits_until_the_bus_has_turned():
    write, read = replayed([1, 0], size=BURST, count=2)
    assert write == pytest.approx(CLOCK, rel=1e-6)
    assert read == pytest.approx(TIMING.wl + CLOCK + TIMING.cdlr + TIMING.cl + CLOCK, rel=1e-6)


LAYERS = [
    ("t-nlg", "op", 8, "sequential"),
    ("t-nlg", "op", 16, "t3"),
    ("t-nlg", "fc2", 16, "t3"),
    ("mega-gpt-2", "op", 8, "t3-mca"),
]


def of_both(run):
    return [run(memory) for memory in ("banks", "bandwidth")]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name", "tp", "overlap"), LAYERS)
def test_a_sub_layer_ends_within_5_percent_of_its_end_with_banks(model, name, tp, overlap):
    layer = weft.sublayer(model, name, tp=tp)
    banks, bandwidth = of_both(lambda memory: weft.simulate(layer, "t3-paper", overlap, RunOptions(memory=memory)))
    assert bandwidth.makespan == pytest.approx(banks.makespan, rel=0.05)
    assert bandwidth.events < banks.events
    assert sum(bandwidth.traffic.values()) == pytest.approx(sum(banks.traffic.values()), rel=0.03)


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x"])
def test_a_co_run_ends_within_2_percent_of_its_end_with_banks(name):
    banks, bandwidth = of_both(
        lambda memory: together(
            Gemm(8192, 8192, 2048, "bf16"), "all_gather", 256 << 20, name, strategy="partition", units=32, memory=memory
        )
    )
    for node in banks.graph:
        assert bandwidth.duration(node.name) == pytest.approx(banks.duration(node.name), rel=0.02)
    assert bandwidth.events < banks.events


def test_the_command_takes_the_detail_of_the_memory_and_says_so(tmp_path, capsys):
    small = ("simulate", "sublayer", "--gemm", "1024,1024,1024", "--tp", "4", "--memory", "bandwidth")
    with pytest.raises(SystemExit) as left:
        cli.main([*small, "--json", str(tmp_path / "run.json")])
    assert left.value.code == 0
    assert "memory by bandwidth" in capsys.readouterr().out
    assert json.loads((tmp_path / "run.json").read_text())["runs"][0]["memory"] == "bandwidth"


def test_an_unknown_detail_of_the_memory_is_refused():
    with pytest.raises(UnknownNameError, match="unknown detail of the memory 'rows'; known: banks, bandwidth"):
        RunOptions(memory="rows")
