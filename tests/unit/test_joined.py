"""GEMM and collective joined by software: in sequence, fused, in pieces; and rows with a system or method left out."""

import numpy as np
import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.kernels.library import software
from weft.lab.left_out import by_method, by_system, left_out
from weft.lab.run import validate
from weft.models.parallel import dependent
from weft.overlaps import OVERLAPS, applicable, find_overlap
from weft.overlaps.pairs import PairTimes, pair_of


def pair(form="ag_gemm", shape=(8192, 1376, 4096), system="hgx-h800", ranks=8, dtype="bf16"):
    return pair_of(dependent(form, weft.Gemm(*shape, dtype), ranks), system)


def seconds(found, method, costs=None):
    return float(OVERLAPS[method].seconds(found, costs))


def test_a_framework_adds_its_gap_to_both_parts_in_sequence():
    found = pair()
    assert seconds(found, "sequential") == pytest.approx(found.gemm + found.collective + 20e-6)
    alone = PairTimes(**{**vars(found), "framework": False})
    assert seconds(alone, "sequential") == pytest.approx(found.gemm + found.collective)


@pytest.mark.parametrize("form", ["ag_gemm", "gemm_rs", "gemm_ar"])
def test_no_way_to_join_hides_more_than_the_shorter_part(form):
    found = pair(form, (4096, 4096, 4096), "dgx-h100")
    for method in (one for one in applicable("tp", "closed form") if OVERLAPS[one].applies_to(form)):
        assert seconds(found, method) >= max(found.gemm, found.collective if method == "sequential" else 0)


def test_tiles_stored_at_their_owners_travel_no_faster_than_gemms_store_them():
    found = pair("gemm_rs", (8192, 8192, 1024), "dgx-h100", dtype="fp16")
    assert seconds(found, "flux") == pytest.approx(990e-6, rel=0.15)  # bytedance/flux issue #100
    unlimited = seconds(found, "flux", {"flux.store_rate": 1e12})
    assert unlimited < 0.6 * seconds(found, "flux")


@pytest.mark.parametrize(
    ("form", "shape"), [("ag_gemm", (8192, 1376, 4096)), ("gemm_rs", (8192, 4096, 1376))], ids=["gather", "scatter"]
)
def test_async_tp_loses_at_1024_tokens_a_rank_of_a_7b_model(form, shape):
    """Measured: 0.52 and 0.37 times the sequence's speed (arXiv:2503.20313, table 2)."""
    found = pair(form, shape)
    assert seconds(found, "async-tp") > 1.5 * seconds(found, "sequential")


def test_small_pieces_take_as_long_as_the_host_issues_them():
    """Measured: 244 to 289 us from 32 to 256 rows, where the sequence takes 74 to 96 (pytorch issue #179770)."""
    times = [seconds(pair("gemm_rs", (rows, 16384, 7168), "hgx-b300", dtype="fp8"), "async-tp") for rows in (32, 256)]
    assert times[1] == pytest.approx(times[0], rel=0.05)
    assert times[0] == pytest.approx(250e-6, rel=0.2)


def test_pieces_win_where_the_gemm_is_large_enough():
    found = pair("ag_gemm", (65536, 6656, 16384), "dgx-h100")
    assert seconds(found, "async-tp") < seconds(found, "sequential")


def test_pairs_over_two_nodes_copy_at_the_networks_rate():
    one, two = pair("ag_gemm", (8192, 3072, 12288), ranks=8), pair("ag_gemm", (8192, 3072, 12288), ranks=16)
    assert two.copy * 15 > one.copy * 7
    assert seconds(two, "flux") < seconds(two, "sequential")


def test_only_a_switch_that_adds_spares_a_fused_all_reduce_its_start():
    inside, outside = (pair("gemm_ar", (8192, 8192, 1024), system) for system in ("dgx-h100", "mi300x-x8"))
    costs = {"flux.start": 1e-3}
    assert seconds(inside, "flux", costs) == seconds(inside, "flux")
    assert seconds(outside, "flux", costs) == pytest.approx(seconds(outside, "flux") + 1e-3 - 60e-6)


def test_several_pairs_are_timed_as_each_by_itself():
    pairs = [pair(), pair("gemm_rs", (8192, 4096, 1376))]
    for method in ("sequential", "flux", "userbuffers", "async-tp"):
        together = OVERLAPS[method].seconds(PairTimes.stack(pairs))
        assert together == pytest.approx([seconds(one, method) for one in pairs])


def test_every_cost_has_a_source_and_lies_within_its_range():
    for path, leaf in software.leaves().items():
        low, high = software.bounds()[path]
        assert low < software.costs()[path] <= high
        assert leaf.provenance.source


def test_a_graph_that_is_no_pair_and_an_unknown_method_are_refused():
    work = dependent("ag_gemm", weft.Gemm(1024, 1024, 1024, "bf16"), 8)
    with pytest.raises(UnknownNameError, match="flux"):
        find_overlap("magic", "sub-layer", "closed form")
    assert pair_of(work, "dgx-h100").ranks == 8
    with pytest.raises(InputError, match="give one of each"):
        pair_of(weft.concurrent(weft.Gemm(64, 64, 64), weft.Collective("broadcast", 1 << 20, 8)), "dgx-h100")


OVERLAP = "system,ranks,collective,pattern,m,n,k,dtype,gemm_us,comm_us,sequential_us,overlap_us,speedup,source,notes"
CASES = (
    ("8xH800", 8192, 610, 900, "async-TP"),
    ("8xH800", 4096, 330, 560, "async-TP"),
    ("8xH100", 8192, 440, 600, "async-TP"),
    ("8xH100", 4096, 260, 400, "helion"),
    ("8xB300", 8192, 300, 420, "helion"),
    ("8xB300", 4096, 180, 330, "helion"),
)
ROWS = [
    f"{system},8,reduce_scatter,gemm_rs,{rows},7168,1536,bf16,,,{before},{after},,here,system={by}; shape=local"
    for system, rows, before, after, by in CASES
]


def test_left_out_predictions_cover_every_row_once_and_forget_its_group(tmp_path):
    (tmp_path / "overlap.csv").write_text("\n".join([OVERLAP, *ROWS, ""]))
    done = validate(tmp_path)
    subjects = [part.subject for part in done.predictions]
    shipped = {
        (str(part.subject.labels["method"].iloc[0]), line): seconds
        for part in done.predictions
        for line, seconds in zip(part.subject.rows.index.tolist(), part.seconds.tolist(), strict=True)
    }
    for key in (by_system, by_method):
        found = [
            (str(part.subject.labels["method"].iloc[0]), line)
            for part in left_out(subjects, key)
            for line in part.subject.rows.index.tolist()
        ]
        assert sorted(found) == sorted(shipped)


def test_every_group_says_whether_its_system_and_method_were_in_sight(tmp_path):
    known = ROWS[0].replace("async-TP", "Async-TP PyTorch (decomposition)")
    (tmp_path / "overlap.csv").write_text("\n".join([OVERLAP, known, ROWS[3], ROWS[0].replace("H800", "H200"), ""]))
    seen = {
        (group["system"], group["method"]): group["seen"]
        for group in validate(tmp_path).to_dict()["groups"]
        if group["method"] != "sequential"
    }
    assert seen == {
        ("8xH800", "Async-TP PyTorch (decomposition)"): "yes",
        ("8xH100", "helion"): "not the method",
        ("8xH200", "async-TP"): "neither",
    }


def test_a_shape_that_the_engine_cannot_cut_is_predicted_in_closed_form(tmp_path):
    row = "8xH800,8,all_gather,ag_gemm,8184,14336,4096,bf16,,,,,1.2,here,system=flux; shape=global"
    (tmp_path / "overlap.csv").write_text(f"{OVERLAP}\n{row}\n")
    done = validate(tmp_path)
    assert np.all(np.isfinite(np.concatenate([part.seconds for part in done.predictions])))
    assert done.rows_used == 1
