"""Rows of kernels of inference: what is read from them, and rows with their GPU left out."""

import pytest

import weft
from weft.core.options import SHORT
from weft.estimate import estimate
from weft.estimate.errors import CARRIED, served_error
from weft.graph import Attention
from weft.lab.classes import SERVED_CLASSES
from weft.lab.left_out import gpus_left_out

ATTENTION = (
    "gpu,fw,phase,kernel,dtype,kv_cache_dtype,batch,q_len,kv_len,heads,kv_heads,head_dim,window_size,time_s,source,"
    "licence"
)


def attention(gpu="h100_sxm", batch=8, keys=4096, kernel="torch_flow", window="", factor=1.0):
    op = Attention(batch, 32, 1, keys, 128, 8, 1, window=int(window or 0), library="trtllm")
    seconds = estimate(op, gpu, SHORT).seconds * factor
    how = f"trtllm,generation,{kernel},bfloat16,bfloat16"
    return f"{gpu},{how},{batch},1,{keys},32,8,128,{window},{seconds:.9g},x,MIT"


def written(folder, *rows):
    (folder / "serving").mkdir()
    (folder / "serving" / "serving_attention.csv").write_text("\n".join([ATTENTION, *rows, ""]))
    return folder


def test_rows_are_predicted_as_their_library_runs_them(tmp_path):
    found = weft.validate(written(tmp_path, attention(), attention(window="128")), kinds=["attention"])
    (part,) = found.predictions
    assert part.seconds / part.subject.measured == pytest.approx(1, abs=1e-6)


def test_kernels_that_are_not_compared_are_named(tmp_path):
    found = weft.validate(written(tmp_path, attention(), attention(kernel="magic")), kinds=["attention"])
    assert found.rows_used == 1
    assert any("'magic'" in text for text in found.complaints())


def test_a_time_below_what_the_memory_allows_is_left_out(tmp_path):
    found = weft.validate(written(tmp_path, attention(), attention(factor=1e-4)), kinds=["attention"])
    assert found.rows_used == 1


def test_a_gpu_left_out_is_predicted_from_the_others(tmp_path):
    rows = [
        attention(gpu, batch, keys)
        for gpu in ("h100_sxm", "h200_sxm")
        for batch in (1, 8, 64, 256)
        for keys in (128, 1024, 8192, 32768)
    ]
    found = weft.validate(written(tmp_path, *rows), kinds=["attention"])
    left = gpus_left_out([part.subject for part in found.predictions])
    assert sum(len(part.subject) for part in left) == len(rows)
    assert max(abs(part.seconds / part.subject.measured - 1).mean() for part in left) < 0.15


def test_the_only_gpu_of_an_architecture_takes_the_values_of_another(tmp_path):
    found = weft.validate(written(tmp_path, attention("a100_sxm")), kinds=["attention"])
    (left,) = gpus_left_out([part.subject for part in found.predictions])
    assert left.seconds != pytest.approx(found.predictions[0].seconds)


@pytest.mark.parametrize("kind", [kind for kind in SERVED_CLASSES if kind != "serving"])
def test_answers_carry_the_errors_of_every_kind_and_name_libraries_without_rows(kind):
    assert all(low < 1 < high and rows and machines for low, high, rows, machines in CARRIED[kind].values())
    assert set(CARRIED["gpus"][kind]) == set(CARRIED[kind])
    assert "no public row" in served_error(kind, "magic").why


def test_a_kernel_on_a_gpu_without_rows_has_the_interval_of_rows_whose_gpu_is_left_out():
    known, other = (served_error("attention", "trtllm-context", gpu) for gpu in ("h100-sxm", "mi300x"))
    assert known.value < other.value
    assert "no such row is public for mi300x" in other.why
    assert "whose GPU the fit left out" in other.why
