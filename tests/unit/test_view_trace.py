"""Traces: what Perfetto and HolisticTraceAnalysis rely on."""

from __future__ import annotations

import functools
import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.core.errors import InputError, OutputError
from weft.core.options import RunOptions
from weft.graph import Collective, Gemm
from weft.models import SubLayer
from weft.models.parallel import split
from weft.simulate.result import Comparison, Timeline
from weft.view import write_trace

HTA_COMMUNICATION = re.compile(r"^nccl.*Kernel")


@functools.cache
def small() -> Comparison:
    return weft.compare(split(SubLayer.custom(1024, 1024, 512), 4), "t3-paper", ["t3", "ideal-overlap"])


@functools.cache
def explicit() -> Timeline:
    layer = split(SubLayer.custom(512, 512, 256), 2)
    return weft.simulate(layer, "t3-paper", "t3-mca", RunOptions(mode="explicit"))


def read(result: Timeline, folder: Path) -> dict[str, Any]:
    (path,) = write_trace(result, folder / "trace.json")
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def spans(data: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [e for e in data["traceEvents"] if e["ph"] == "X" and e["cat"] == category]


def test_the_rank_is_where_readers_look_for_it(tmp_path: Path) -> None:
    (path,) = write_trace(small()["t3"], tmp_path / "t.json")
    data = json.loads(path.read_text())
    assert data["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 4}
    # HolisticTraceAnalysis finds it with this expression, in the first line that matches.
    assert re.search(r'"rank":\s+(\d+)', path.read_text().splitlines()[0])


@pytest.mark.parametrize("overlap", ["sequential", "t3"])
def test_kernels_have_streams_and_only_communication_is_called_nccl(overlap: str, tmp_path: Path) -> None:
    kernels = spans(read(small()[overlap], tmp_path), "kernel")
    names = {kernel["name"] for kernel in kernels}
    communication = {name for name in names if HTA_COMMUNICATION.match(name)}
    assert len(communication) == 2
    assert names - communication == {"gemm_bf16_1024x1024x128"}
    assert all(kernel["args"]["stream"] >= 0 for kernel in kernels)


def test_the_fused_reduce_scatter_overlaps_the_gemm_on_a_stream_of_its_own(tmp_path: Path) -> None:
    kernels = {k["name"]: k for k in spans(read(small()["t3"], tmp_path), "kernel")}
    gemm, fused = kernels["gemm_bf16_1024x1024x128"], kernels["ncclTrackTriggerKernel_ReduceScatter"]
    assert fused["ts"] < gemm["ts"] + gemm["dur"]
    assert len({kernel["args"]["stream"] for kernel in kernels.values()}) == 3


def test_every_kernel_is_tied_to_its_launch(tmp_path: Path) -> None:
    data = read(small()["sequential"], tmp_path)
    launches = {e["args"]["correlation"]: e for e in spans(data, "cuda_runtime")}
    for kernel in spans(data, "kernel"):
        launch = launches[kernel["args"]["correlation"]]
        assert launch["ts"] + launch["dur"] == pytest.approx(kernel["ts"])


def test_times_are_microseconds_and_end_with_the_run(tmp_path: Path) -> None:
    run = small()["t3"]
    ends = [e["ts"] + e["dur"] for e in spans(read(run, tmp_path), "kernel")]
    assert max(ends) == pytest.approx(run.seconds * 1e6)


def test_spans_of_one_track_never_overlap(tmp_path: Path) -> None:
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in read(small()["t3"], tmp_path)["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        for before, after in pairwise(sorted(track)):
            assert before[1] <= after[0] + 1e-6


def test_every_dma_command_and_every_complete_chunk_is_there(tmp_path: Path) -> None:
    run = small()["t3"]
    data = read(run, tmp_path)
    assert len(spans(data, "dma")) == len(run.dmas) > 0
    complete = [e for e in data["traceEvents"] if e["ph"] == "i"]
    assert len(complete) == sum(chunk.complete_fs is not None for chunk in run.chunks) > 0


def test_counters_integrate_to_the_bytes_of_the_run(tmp_path: Path) -> None:
    run = small()["t3"]
    counters = [e for e in read(run, tmp_path)["traceEvents"] if e["ph"] == "C"]
    for cause, amount in run.traffic.items():
        name = f"DRAM {' '.join(cause)} [GB/s]"
        points = [(e["ts"], e["args"]["value"]) for e in counters if e["name"] == name]
        assert points[-1][1] == 0
        total = sum(value * (after - at) * 1e3 for (at, value), (after, _) in pairwise(points))
        assert total == pytest.approx(amount, rel=1e-3)


def test_several_gpus_make_a_file_per_rank(tmp_path: Path) -> None:
    paths = write_trace(explicit(), tmp_path / "t.json.gz")
    assert [path.name for path in paths] == ["t_rank0.json.gz", "t_rank1.json.gz"]
    ranks = [json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"] for path in paths]
    assert ranks == [0, 1]


def test_an_ideal_has_no_trace_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'ideal-overlap' has no trace"):
        write_trace(small()["ideal-overlap"], tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError):
        write_trace(small()["t3"], tmp_path / "file" / "t.json")


@functools.cache
def beside_run(strategy: str) -> Timeline:
    gemm, gather = Gemm(2048, 2048, 1024, "bf16"), Collective("all_gather", 16 << 20, 8)
    return weft.simulate(weft.concurrent(gemm, gather, gemms=2), "mi300x", strategy)


def test_collectives_beside_gemms_go_by_the_name_of_what_drives_them(tmp_path: Path) -> None:
    for strategy, category, name in (
        ("streams", "kernel", "ncclDevKernel_AllGather_RING"),
        ("dma", "gpu_memcpy", "Memcpy PtoP (all_gather by DMA engines)"),
    ):
        data = read(beside_run(strategy), tmp_path)
        found = {event["name"] for event in spans(data, category)} - {"gemm_bf16_2048x2048x1024"}
        assert found == {name}


def test_who_held_how_many_units_of_each_xcd_is_counted_at_every_change(tmp_path: Path) -> None:
    run = beside_run("priority")
    assert run.residency is not None
    events = [e for e in read(run, tmp_path)["traceEvents"] if e["name"] == "XCD 3: held units"]
    for owner, kernels in (("gemm", ("gemm", "gemm.1")), ("collective", ("all_gather",))):
        units, starts, ends = run.residency.of(0, kernels)
        mine = (units >= 3 * 38) & (units < 4 * 38)
        for event, later in list(pairwise(events))[::7]:
            if later["ts"] - event["ts"] < 1e-3:  # times are whole picoseconds
                continue
            now = (event["ts"] + later["ts"]) / 2 * 1e9
            there = mine & (starts <= now) & (ends > now)
            assert event["args"][owner] == len(set(units[there].tolist()))
    assert max(event["args"]["gemm"] for event in events) > 0 == events[-1]["args"]["gemm"]


def test_what_dram_moves_for_each_owner_adds_up_to_what_it_moves_by_cause(tmp_path: Path) -> None:
    run = beside_run("priority")
    data = read(run, tmp_path)
    for owner, part in (("gemm", "gemm"), ("collective", "all_gather")):
        total = 0.0
        events = [e for e in data["traceEvents"] if e["name"] == f"DRAM for {owner} [GB/s]"]
        for one, other in pairwise(events):
            total += one["args"]["value"] * (other["ts"] - one["ts"]) * 1e3
        assert total == pytest.approx(run.bytes(part), rel=1e-3)


def test_kernels_of_a_loop_share_a_name_and_say_their_iteration(tmp_path: Path) -> None:
    kernels = [k for k in spans(read(beside_run("streams"), tmp_path), "kernel") if k["name"].startswith("gemm")]
    assert {kernel["name"] for kernel in kernels} == {"gemm_bf16_2048x2048x1024"}
    assert [kernel["args"]["iteration"] for kernel in kernels] == [0, 1]


def test_queued_gemms_have_a_stream_and_a_name_each(tmp_path: Path) -> None:
    gemms = [Gemm(512, 512, size, "bf16") for size in (256, 512, 256)]
    run = weft.simulate(weft.gemm_queue(gemms, queues=2), "mi100")
    kernels = spans(read(run, tmp_path), "kernel")
    assert {k["name"]: k["args"]["stream"] for k in kernels} == {
        "gemm0_bf16_512x512x256": 30,
        "gemm1_bf16_512x512x512": 31,
        "gemm2_bf16_512x512x256": 30,
    }
