"""Rows of exchanges: what is read from them, times from bandwidths, and rows with their number of ranks left out."""

import gzip

import pytest

import weft
from weft.estimate.exchange import Exchange, exchange
from weft.graph.routing import count_reached
from weft.lab.left_out import ranks_left_out

HEAD = (
    "gpu,kernel,op,nodes,ranks,tokens_per_rank,hidden,topk,experts,dtype,sms,time_s,notify_s,reported_GBps,notes,source,"
    "licence"
)


def written(folder, *rows, name="moe_comm.csv"):
    text = "\n".join([HEAD, *rows]) + "\n"
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


def row(tokens=4096, ranks=16, nodes=2, seconds="", rate="", kernel="deepep_normal", sms=24):
    return f"h100_sxm,{kernel},combine,{nodes},{ranks},{tokens},7168,8,256,,{sms},{seconds},,{rate},,x,MIT"


def predicted(tokens, ranks):
    return exchange(Exchange("combine", tokens, 7168, 8, 256, ranks), f"{ranks}xh100", "deepep").seconds


def test_a_table_packed_in_a_folder_below_is_read(tmp_path):
    (tmp_path / "moe").mkdir()
    written(tmp_path / "moe", row(seconds=predicted(4096, 16)), name="moe_comm.csv.gz")
    found = weft.validate(tmp_path, kinds=["exchange"])
    assert found.groups()[0].errors.mean_abs_err == pytest.approx(0, abs=1e-6)


def test_a_bandwidth_counts_rows_to_every_node_with_the_own_one(tmp_path):
    size = 4096 * 7168 * 2 * float(count_reached(2, 256, 8))
    found = weft.validate(written(tmp_path, row(rate=size / predicted(4096, 16) / 1e9)), kinds=["exchange"])
    assert found.groups()[0].errors.mean_abs_err == pytest.approx(0, abs=1e-6)


def test_rows_of_unknown_libraries_are_left_out_and_named(tmp_path):
    rows = row(seconds=1e-3), row(seconds=1e-3, kernel="magic")
    found = weft.validate(written(tmp_path, *rows), kinds=["exchange"])
    assert found.rows_used == 1
    assert any("'magic'" in text for text in found.complaints())


def test_ranks_left_out_are_predicted_from_the_others(tmp_path):
    tokens = (1, 16, 128, 512, 2048, 8192)
    rows = [row(each, ranks, ranks // 8, predicted(each, ranks)) for each in tokens for ranks in (16, 32, 64)]
    found = weft.validate(written(tmp_path, *rows), kinds=["exchange"])
    left = ranks_left_out([part.subject for part in found.predictions])
    assert sum(len(part.subject) for part in left) == len(rows)
    errors = [abs(part.seconds / part.subject.measured - 1).mean() for part in left]
    assert max(errors) < 0.2


def test_a_damaged_pack_is_named(tmp_path):
    (tmp_path / "moe").mkdir()
    written(tmp_path, row(seconds=1e-3))
    (tmp_path / "moe" / "moe_comm.csv.gz").write_bytes(b"no gzip")
    found = weft.validate(tmp_path, kinds=["exchange"])
    assert any("packed by gzip" in text for text in found.complaints())


def test_the_errors_that_answers_carry_are_those_of_every_library_with_rows():
    from weft.estimate.errors import CARRIED, exchange_error
    from weft.lab.exchanges import LIBRARIES

    assert set(CARRIED["exchange"]) == set(LIBRARIES.values())
    assert "no public row" in exchange_error("nccl").why
