"""What `weft validate` predicts for a row is what the public call answers that a user would make for it."""

import pytest
from step_rows import ROW, validated

import weft
from weft.estimate.exchange import Exchange, exchange
from weft.lab.run import ROW_KINDS
from weft.lab.steps import read_run
from weft.lab.tables import read_file

SHORT = weft.RunOptions(clock="short")


def gemm():
    return weft.estimate(weft.Gemm(4096, 4096, 4096, "bf16"), "h100-sxm", SHORT).seconds


def all_reduce():
    moved = weft.Collective("all_reduce", 1 << 26, 8, "fp16")
    return weft.estimate(moved, "8xh100-sxm", SHORT, weft.BenchmarkProtocol(library="nccl")).seconds


def ring():
    harness = weft.BenchmarkProtocol(algorithm="ring-simple", channels=8, version="2.27.3")
    return weft.estimate(weft.Collective("all_gather", 1 << 26, 8, "fp16"), "8xh100-sxm", SHORT, harness).seconds


def dispatch():
    """Rows of kernels lack the host's wait, which the answer states as a part."""
    found = exchange(Exchange("dispatch", 4096, 7168, 8, 256, 16), "16xh100-sxm", "deepep", options=SHORT)
    assert found.parts["host"] > 0
    return found.seconds - found.parts["host"]


def narrow():
    harness = weft.BenchmarkProtocol(served="trtllm", weights="int4")
    return weft.estimate(weft.Gemm(256, 4096, 4096, "bf16"), "h100-sxm", SHORT, harness).seconds


def fused():
    gemm = weft.Gemm(2048, 16384, 7168, "fp8")
    found = weft.advise_fuse("gemm_ag", gemm, 8, "mi355x", fidelity="estimate", framework=False)
    return found.option("mori-split").seconds


ROWS = {
    fused: (
        "system,ranks,op,m,n,k,gemm_dtype,mode,total_us",
        "8xMI355X,8,gemm_allgather,2048,2048,7168,fp8,split-sdma,210",
    ),
    gemm: ("gpu,dtype,m,n,k,time_us", "h100-sxm,bf16,4096,4096,4096,250"),
    all_reduce: ("system,collective,ranks,bytes,time_us", "8xH100-SXM,all_reduce,8,67108864,350"),
    ring: (
        "system,collective,library,protocol,ranks,channels,sms,bytes,time_us",
        "8xH100-SXM,all_gather,NCCL 2.27.3,Simple,8,8,,67108864,600",
    ),
    dispatch: (
        "gpu,kernel,op,nodes,ranks,tokens_per_rank,hidden,topk,experts,dtype,sms,time_s,reported_GBps",
        "h100_sxm,deepep_normal,dispatch,2,16,4096,7168,8,256,,,0.002,",
    ),
    narrow: ("gpu,kernel,dtype,m,n,k,time_s", "h100_sxm,torch_flow,int4_wo,256,4096,4096,0.0001"),
}


@pytest.mark.parametrize("call", ROWS)
def test_a_row_is_predicted_by_the_public_call(tmp_path, call):
    head, row = ROWS[call]
    (tmp_path / "rows.csv").write_text(f"{head}\n{row}\n")
    found = weft.validate(tmp_path / "rows.csv")
    assert found.predictions[0].seconds[0] == pytest.approx(call(), rel=1e-12), found.complaints()


def test_a_step_and_its_memory_are_those_of_the_public_calls(tmp_path):
    row = {"peak_mem_gb": "40", "mem_kind": "max allocated (GiB)", "step_time_s": "1.5"}
    found = {part.subject.kind: part.seconds[0] for part in validated(tmp_path, row).predictions}
    (rows,) = [read_file(tmp_path / "iterations.csv").rows.to_dict("records")]
    model, system, plan, used = read_run(rows[0], weft.gpu(ROW["gpu"]))
    step = weft.step(model, system, plan, framework=used, fidelity="estimate")
    held = weft.memory(model, system, plan, framework=used)
    assert (found["step"], found["memory"]) == (step.seconds, max(one.peak_allocated for one in held.devices))


def test_every_kind_of_rows_has_a_title_and_says_what_its_errors_are_grouped_by():
    from weft.lab.page import TITLES
    from weft.lab.subjects import _SUMMARY as SUMMARY

    assert not {*ROW_KINDS} - {*TITLES}
    assert not {*ROW_KINDS} - {*SUMMARY}
