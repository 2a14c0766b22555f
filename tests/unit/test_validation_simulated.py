"""Rows that the engine answers: contention cells, overlapped GEMMs and ring reduce-scatters."""

import numpy as np
import pandas as pd
import pytest

from weft import hardware
from weft.graph import Gemm
from weft.lab.coruns import QUANTITIES as CORUN_QUANTITIES
from weft.lab.overlaps import QUANTITIES, right_signs
from weft.lab.run import validate
from weft.simulate.single import alone, simulate

CELL = "{system},{dtype},{collective},1024,1024,1024,2,1048576,3,10,{beside},20,25,90,here"


def contention(folder, **changes):
    known = {"system": "4xA100-SXM4-80GB", "dtype": "bf16", "collective": "all_reduce", "beside": "12"}
    columns = "system,dtype,collective,m,n,k,gemms,bytes,collectives,gemm_alone_us,gemm_concurrent_us"
    head = f"{columns},collective_alone_us,collective_concurrent_us,makespan_us,source"
    good, bad = CELL.format(**known), CELL.format(**{**known, **changes})
    (folder / "contention.csv").write_text("\n".join([head, good, bad.replace("here", "there"), ""]))
    return validate(folder)


def test_a_cell_is_compared_in_both_slowdowns_and_the_makespan(tmp_path):
    done = contention(tmp_path)
    assert not done.problems
    measured = {str(part.subject.labels["quantity"].iloc[0]): part.subject.measured[0] for part in done.predictions}
    assert measured == pytest.approx(dict(zip(QUANTITIES, (1.2, 1.25, 90e-6), strict=True)))
    predicted = {str(part.subject.labels["quantity"].iloc[0]): part.seconds[0] for part in done.predictions}
    assert predicted["GEMM slowdown"] > 0.95
    assert 1e-6 < predicted["makespan"] < 1e-2
    assert done.rows_used == 2


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"system": "4xQ7"}, "Weft knows no such system"),
        ({"collective": "all_gossip"}, "collective 'all_gossip'"),
        ({"dtype": "fp8"}, "does not multiply matrices of this type"),
        ({"beside": "4"}, "nothing runs faster beside something else"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_cell_that_cannot_be_is_named_and_left_out(tmp_path, changes, rule):
    done = contention(tmp_path, **changes)
    (problem,) = done.problems
    assert problem.lines == (3,)
    assert rule in str(problem)
    assert done.rows_used == 1


def test_a_gemm_on_fewer_units_is_timed_from_the_hosts_call(tmp_path):
    rows = "size,dtype,backend,mask,cus,median_ms\n2048,bf16,torch,,152,0.05\n2048,bf16,torch,,304,0.05\n"
    (tmp_path / "mi300x_gemm_by_cus.csv").write_text(rows)
    (part,) = validate(tmp_path).predictions
    gpu, gemm = hardware.gpu("mi300x"), Gemm(2048, 2048, 2048, "bf16")
    device = simulate(alone(gemm), gpu).seconds - gpu.compute.launch_latency
    host = gpu.value("achieved.gemm_host")
    assert device < part.seconds[1] < device + host
    assert part.seconds[0] > part.seconds[1]


OVERLAP = "system,ranks,collective,pattern,m,n,k,dtype,gemm_us,comm_us,sequential_us,overlap_us,speedup,source,notes"


def overlap(folder, *rows):
    (folder / "overlap.csv").write_text("\n".join([OVERLAP, *rows, ""]))
    return validate(folder)


def flux(time, speedup, by="flux", notes="shape=global"):
    shape = "8xA100-80GB-SXM4,8,reduce_scatter,gemm_rs,4096,12288,49152,bf16"
    return f"{shape},,,2701,{time},{speedup},Flux paper,system={by}; {notes}"


def test_overlapped_times_and_mere_speedups_are_compared_apart(tmp_path):
    done = overlap(tmp_path, flux(2384, 1.13), flux("", 1.13, by="Triton-distributed"))
    by_method = {
        (str(part.subject.labels["method"].iloc[0]), str(part.subject.labels["quantity"].iloc[0])): part.seconds[0]
        for part in done.predictions
    }
    assert set(by_method) == {("sequential", "time"), ("flux", "time"), ("Triton-distributed", "speedup")}
    assert by_method["flux", "time"] == pytest.approx(2384e-6, rel=0.3)
    assert 0.5 < by_method["Triton-distributed", "speedup"] < 2
    assert right_signs(done.predictions) == (1, 1)


def test_a_way_to_overlap_without_a_model_is_told_where_nothing_else_can_be_compared(tmp_path):
    row = flux("", 1.2, by="Megakernel").replace("2701", "")
    done = overlap(tmp_path, flux(2384, 1.13), row)
    (problem,) = done.problems
    assert "system in notes 'Megakernel': Weft has no model of this way to overlap" in str(problem)


def test_ring_reduce_scatters_of_the_librarys_test_are_simulated_as_well(tmp_path):
    head = "system,collective,ranks,bytes,time_us,source,notes"
    row = "8xA100-SXM4-80GB,reduce_scatter,8,16777216,132.0,here,nccl-tests"
    (tmp_path / "collectives.csv").write_text(
        f"{head}\n{row}\n{row.replace('16777216', '1024').replace('132.0', '15.1')}\n"
    )
    done = validate(tmp_path)
    rings = [part for part in done.predictions if part.subject.kind == "ring"]
    assert [len(part.subject) for part in rings] == [1]
    assert np.all(np.abs(rings[0].seconds / rings[0].subject.measured - 1) < 0.3)


def test_all_reduces_in_the_switch_and_on_a_mesh_are_simulated_on_a_whole_node(tmp_path):
    head = "system,collective,ranks,bytes,time_us,source,notes"
    rows = [
        "8xH100-SXM 80GB HBM3,all_reduce,8,16777216,121.9,here,nccl-tests dtype half",
        "8xH100-SXM 80GB HBM3,all_reduce,8,16777216,119.8,here,nccl-tests dtype int8",
        "2xH100-SXM 80GB HBM3,all_reduce,2,16777216,86.0,here,nccl-tests dtype half",
        "8xMI300X,all_reduce,8,8388608,84.5,here,rccl-tests dtype float",
    ]
    (tmp_path / "collectives.csv").write_text("\n".join([head, *rows, ""]))
    rings = [part for part in validate(tmp_path).predictions if part.subject.kind == "ring"]
    assert [(part.subject.machine, len(part.subject)) for part in rings] == [("h100-sxm", 1), ("mi300x", 1)]
    for part in rings:
        assert np.all(np.abs(part.seconds / part.subject.measured - 1) < 0.1)


def test_a_gemm_on_fewer_units_is_compared_by_mask_and_by_grid(tmp_path, monkeypatch):
    """A mask that a row does not state has the first bits of each run of 38; a time below the peak is left out."""
    monkeypatch.setattr("weft.lab.coruns.seen_by_host", lambda function, seconds, launch: seconds)
    head = "size,dtype,backend,mask,cus,median_ms,tflops,source_file"
    rows = [
        "4096,bf16,torch,,128,0.6,1,a",  # its fullest shader engines have two units of 16
        "4096,bf16,torch,0xffff,16,2.4,1,b",  # two units of each XCD, in two shader engines
        "4096,bf16,ws_grid,,128,0.5,1,c",
        "4096,bf16,streamk,,128,0.5,1,d",
        "4096,bf16,ws_grid,,8,0.5,1,e",  # 34 TFLOP/s are the most of eight units
    ]
    (tmp_path / "rows.csv").write_text("\n".join([head, *rows, ""]))
    done = validate(tmp_path)
    found = pd.concat([one.frame() for one in done.predictions])
    assert found.groupby("backend").size().to_dict() == {"torch": 2, "ws_grid": 1}
    slow = found[found["backend"] == "torch"]["predicted"]
    assert slow.max() / slow.min() == pytest.approx(19 / 5, rel=0.03)  # rounds, both at the boost clock
    assert {problem.column for problem in done.problems} == {"backend", "median_ms"}


def test_a_gemm_beside_an_all_reduce_is_compared_by_channels_and_kernel(tmp_path):
    """The all-reduce alone counts once for each number of channels; kernels without a model are left out."""
    head = "channels_max,m,n,k,dtype,comm_alone_ms,gemm,gemm_alone_ms,gemm_overlap_ms,comm_overlap_ms,wall_ms"
    rows = [
        f"{most},4096,4096,4096,bf16,3.1,{gemm},0.3,0.4,3.4,3.5" for most in (56, 280) for gemm in ("torch", "ws", "q")
    ]
    (tmp_path / "rows.csv").write_text("\n".join([head, *rows, ""]))
    done = validate(tmp_path)
    (part,) = {part.subject.kind: part for part in done.predictions}.values()
    found = pd.concat([one.frame() for one in done.predictions])
    assert part.subject.kind == "corun"
    assert found.groupby("quantity").size().to_dict() == dict(zip(CORUN_QUANTITIES, (2, 4, 4, 4), strict=True))
    alone = found[found["quantity"] == CORUN_QUANTITIES[0]]["predicted"]
    assert alone.nunique() == 1  # the library has 56 channels at most by itself
    assert {problem.column for problem in done.problems} == {"gemm"}
