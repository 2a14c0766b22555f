"""Streams of memory requests in a folder of measurements: read, replayed, reported, refused where they are wrong."""

import gzip
import json

import numpy as np
import pytest

from weft import hardware
from weft.cli import main as cli
from weft.core.errors import InputError
from weft.lab import validate
from weft.lab.problems import Problem
from weft.lab.streams import FINEST, peers_channel, read_stream
from weft.simulate.channel import Requests, replay_requests

HEAD = "at_ns,kind,stream,address,bytes,other"
FS_PER_NS = 10**6


def requests(count=64, size=512):
    number, zero = np.arange(count), np.zeros(count, dtype=np.int64)
    return Requests(number * 20 * FS_PER_NS, number % 4 // 3, zero, number * size, zero + size)


@pytest.fixture
def folder(tmp_path):
    """A stream whose other simulator is the engine itself, in bursts."""
    made = requests()
    pieces, of = made.cut(FINEST)
    done = np.zeros(len(made.at), dtype=np.int64)
    np.maximum.at(done, of, replay_requests(pieces, peers_channel()))
    columns = (made.at // FS_PER_NS, *made[1:], done // FS_PER_NS)
    lines = [",".join(map(str, row)) for row in np.stack(columns, axis=1).tolist()]
    (tmp_path / "dram").mkdir()
    with gzip.open(tmp_path / "dram" / "mixed.csv.gz", "wt") as file:
        file.write("\n".join([HEAD, *lines, ""]))
    return tmp_path


def test_requests_are_cut_into_pieces_that_cover_them():
    pieces, of = requests(2, 80).cut(32)
    assert of.tolist() == [0, 0, 0, 1, 1, 1]
    assert pieces.address.tolist() == [0, 32, 64, 80, 112, 144]
    assert pieces.bytes.tolist() == [32, 32, 16, 32, 32, 16]
    assert pieces.at.tolist() == [0, 0, 0, *[20 * FS_PER_NS] * 3]


def test_a_stream_is_compared_with_each_simulator_in_bursts_and_default_requests(folder):
    done = validate(folder)
    found = {(row["requests"], row["quantity"]): row for row in done.streams()}
    assert set(found) == {(size, of) for size in ("bursts", "default") for of in ("bandwidth", "read latency")}
    for (size, _), row in found.items():
        assert row["weft"] == pytest.approx(row["other"], rel=0.001 if size == "bursts" else 0.05)
    assert done.rows_used == done.rows_read == 4
    assert done.worst() == []


def test_the_command_prints_both_sides_and_writes_them_as_json(folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["validate", "--data", str(folder), "--kinds", "dram", "--json", str(tmp_path / "v.json")])
    out = capsys.readouterr().out
    assert left.value.code == 0
    for words in ("Memory requests on one channel", "bandwidth, GB/s", "read latency, ns", "other"):
        assert words in out
    assert "furthest off" not in out
    assert {row["stream"] for row in json.loads((tmp_path / "v.json").read_text())["streams"]} == {"mixed"}


def test_a_folder_without_streams_says_what_it_lacks(tmp_path):
    with pytest.raises(InputError, match="no \\.csv file"):
        validate(tmp_path, kinds=["dram"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{HEAD}\n0,0,0,0\n", "no table of whole numbers"),
        ("at_ns,kind,address\n0,0,0\n", "lacks stream, bytes"),
        (f"{HEAD}\n5,0,0,0,64,9\n4,0,0,64,64,9\n", "line 3: at_ns must be zero or more, in the order of arrival"),
        (f"{HEAD}\n0,2,0,0,64,9\n", "line 2: kind must be 0 (read) or 1 (write)"),
        (f"{HEAD}\n0,0,2,0,64,9\n", "line 2: stream must be 0"),
        (f"{HEAD}\n0,0,0,0,0,9\n", "line 2: bytes must be above zero"),
    ],
)
def test_a_stream_that_breaks_a_rule_is_left_out_with_its_line(tmp_path, text, sentence):
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    problem = read_stream(file)
    assert isinstance(problem, Problem)
    assert sentence in str(problem)
    assert str(problem).endswith("left out")


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_long_reads_reach_the_share_that_was_measured_on_every_gpu_of_the_catalogue(name):
    reached = reads(hardware.gpu(name))
    expected = hardware.gpu(name).memory.read_efficiency
    assert reached == pytest.approx(expected, rel=0.01 if name != "t3-paper" else 0.03)


def test_refreshes_of_all_banks_leave_long_reads_the_measured_share():
    gpu = hardware.gpu("a100-sxm-80gb")
    changed = gpu.replace({"memory.refresh_banks": gpu.memory.banks, "memory.timing.rfc": "260 ns"})
    assert reads(changed) == pytest.approx(gpu.memory.read_efficiency, rel=0.02)


def reads(gpu):
    """Share of the peak that sequential reads of 512 B reach."""
    from weft.simulate.channel import one_channel

    count, zero = 8000, np.zeros(8000, dtype=np.int64)
    done = replay_requests(Requests(zero, zero, zero, np.arange(count) * 512, zero + 512), one_channel(gpu))
    # What is in flight while the first data comes is not part of a long run.
    begun, over = np.sort(done)[[count // 4, -1]]
    return (count * 3 // 4 - 1) * 512 / ((over - begun) * 1e-15) / (gpu.memory.bandwidth / gpu.memory.channels)
