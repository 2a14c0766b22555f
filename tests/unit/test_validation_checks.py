"""Rows that cannot be true are named with their line and rule, and left out; the others count."""

import numpy as np
import pytest
from estimates import collective, gemm
from shown import check_shown

from weft import hardware
from weft.core.errors import InputError
from weft.lab.checks import collective_floor, gemm_floor
from weft.lab.run import validate

SHAPES = [(4096, 4096, 4096), (8192, 1024, 2048), (64, 4096, 4096), (16, 128, 128), (1024, 1024, 8192)]
GPU = "h100-sxm"
GEMM_HEAD = "gpu,dtype,m,n,k,time_us,source,notes"
COLLECTIVE_HEAD = "system,collective,ranks,bytes,time_us,source,notes"


def predicted_us(shape, dtype="bf16", gpu=GPU):
    return float(gemm(*shape, dtype, hardware.gpu(gpu)).seconds) * 1e6


def gemm_row(shape, time_us, dtype="bf16", gpu=GPU, notes=""):
    return f"{gpu},{dtype},{shape[0]},{shape[1]},{shape[2]},{time_us!r},here,{notes}"


def good_rows():
    return [gemm_row(shape, predicted_us(shape)) for shape in SHAPES]


def validated(folder, *rows, head=GEMM_HEAD, name="gemm.csv", **options):
    (folder / name).write_text("\n".join([head, *rows, ""]))
    return validate(folder, **options)


def test_a_validation_is_shown_in_every_way(tmp_path):
    check_shown(validated(tmp_path, *good_rows()), tmp_path)


def test_rows_as_predicted_have_no_error_and_no_problem(tmp_path):
    done = validated(tmp_path, *good_rows())
    assert not done.problems
    (group,) = done.groups()
    assert group.errors.rows == len(SHAPES)
    assert group.errors.max_abs_err < 1e-6


@pytest.mark.parametrize(
    ("factor", "rule"),
    [
        (1 / 1.5e6, "looks like seconds, not microseconds"),
        (1 / 1000, "looks like milliseconds, not microseconds"),
        (1000, "looks like nanoseconds, not microseconds"),
    ],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_time_in_another_unit_is_named_and_left_out(tmp_path, shape, factor, rule):
    done = validated(tmp_path, *good_rows(), gemm_row(shape, factor * predicted_us(shape), notes="other unit"))
    (problem,) = done.problems
    assert str(problem).startswith("gemm.csv line 7: time_us '")
    assert rule in str(problem)
    assert str(problem).endswith("the row is left out")
    assert done.rows_used == len(SHAPES)


def test_a_whole_file_in_milliseconds_is_refused_with_that_guess(tmp_path):
    rows = [gemm_row(shape, predicted_us(shape) / 1000) for shape in SHAPES]
    with pytest.raises(InputError, match=r"no row of .* lines 2, 3, 4, 5, 6: .* looks like milliseconds"):
        validated(tmp_path, *rows)


def test_a_time_below_the_peaks_is_impossible(tmp_path):
    shape = SHAPES[0]
    floor = float(gemm_floor(*(np.array(float(x)) for x in shape), "bf16", hardware.gpu(GPU)))
    done = validated(tmp_path, *good_rows()[1:], gemm_row(shape, floor * 0.9e6), gemm_row(shape, floor * 1.01e6))
    assert [problem.lines for problem in done.problems if "faster than the peak of h100-sxm" in problem.rule] == [(6,)]


def test_a_floor_counts_operations_or_the_bytes_that_no_cache_holds():
    gpu = hardware.gpu(GPU)
    large = np.array(8192.0)
    assert gemm_floor(large, large, large, "bf16", gpu) == pytest.approx(
        2 * 8192**3 / max(gpu.matrix_rate("bf16", "peak"), gpu.matrix_rate("bf16", "boost"))
    )
    tall, one = np.array(2.0**30), np.array(1.0)
    moved = 2 * (2.0**30 + 1 + 2.0**30)
    assert gemm_floor(tall, one, one, "bf16", gpu) == pytest.approx((moved - gpu.cache.capacity) / gpu.memory.bandwidth)


def test_duplicates_are_left_out_and_repeats_are_told_but_count(tmp_path):
    rows = good_rows()
    again = gemm_row(SHAPES[0], predicted_us(SHAPES[0]) * 1.03)
    done = validated(tmp_path, *rows, rows[2], again)
    first, second = map(str, done.problems)
    assert first.startswith(
        "gemm.csv line 7: earlier line '4': this row is a duplicate: every cell is that of the earlier"
    )
    assert first.endswith("the row is left out")
    assert (
        second
        == "gemm.csv line 8: earlier line '2': this row measures the case of an earlier line again, and counts as well"
    )
    assert done.rows_used == len(SHAPES) + 1


def test_an_unknown_gpu_is_told_once_with_the_number_of_its_rows(tmp_path):
    rows = [gemm_row(shape, 20.0, gpu="h100-smx9") for shape in SHAPES]
    done = validated(tmp_path, *good_rows(), *rows)
    (problem,) = done.problems
    assert "gemm.csv lines 7, 8, 9, 10, 11: gpu 'h100-smx9': Weft knows no such gpu" in str(problem)
    assert "did you mean" in str(problem)
    assert problem.to_dict()["rows"] == len(SHAPES)


def test_an_unknown_collective_is_told_with_those_that_there_are(tmp_path):
    rows = [collective_row(500.0), collective_row(500.0, name="gossip")]
    done = validated(tmp_path, *rows, head=COLLECTIVE_HEAD, name="collectives.csv")
    assert "collective 'gossip': Weft knows no such collective; it knows all_reduce, reduce_scatter" in str(
        done.problems[0]
    )


def test_a_collective_with_forced_protocol_or_channels_is_left_out(tmp_path):
    rows = [f"{collective_row(500.0)},{forced}" for forced in (",", "LL,", "LL128,24", ",8")]
    done = validated(tmp_path, *rows, head=f"{COLLECTIVE_HEAD},protocol,channels", name="collectives.csv")
    (forced,) = [problem for problem in done.problems if "forced in these rows" in problem.rule]
    assert forced.lines == (3, 4, 5)
    assert done.rows_used == 1


def test_a_data_type_that_the_gpu_lacks_is_named(tmp_path):
    done = validated(tmp_path, gemm_row(SHAPES[0], 900.0, dtype="fp8", gpu="a100-sxm-80gb"), *good_rows())
    assert "line 2: dtype 'fp8': a100-sxm-80gb does not multiply matrices of this type; it has" in str(done.problems[0])


def collective_row(time_us, system="8xH100", name="all_reduce", ranks=8, size=2**26, notes=""):
    return f"{system},{name},{ranks},{size},{time_us!r},here,{notes}"


def collective_us(size=2**26, name="all_reduce"):
    return float(collective(name, size, 8, hardware.system("8xH100")).seconds) * 1e6


def test_collectives_have_the_same_checks(tmp_path):
    done = validated(
        tmp_path,
        collective_row(collective_us()),
        collective_row(collective_us() / 1000, notes="a"),
        collective_row(collective_us() * 1000, notes="b"),
        collective_row(2**26 / 450e9 * 0.7e6, name="all_gather", notes="c"),
        collective_row(90.0, system="8xQ7"),
        collective_row(90.0, name="all_gossip"),
        collective_row(90.0, ranks=1, system="1xH100"),
        collective_row(90.0, notes="mscclpp-test kernel 1"),
        head=COLLECTIVE_HEAD,
        name="collectives.csv",
    )
    told = {problem.lines[0]: str(problem) for problem in done.problems}
    assert sorted(told) == list(range(3, 10))
    assert "milliseconds" in told[3]
    assert "nanoseconds" in told[4]
    assert "faster than the peak of h100-sxm" in told[5]
    assert "system '8xQ7': Weft knows no such system" in told[6]
    assert "collective 'all_gossip'" in told[7]
    assert "at least two ranks" in told[8]
    assert "library 'mscclpp': Weft has no model of this library" in told[9]
    (group,) = (group for group in done.groups() if group.keys["kind"] == "collective")
    assert (group.errors.rows, group.keys["collective"], group.keys["ranks"]) == (1, "all_reduce", 8)


def test_the_least_time_of_a_collective_is_what_a_gpu_must_send():
    ranks, size = 8, np.array([8e9])
    assert collective_floor("all_gather", ranks, size, 1e9, False) == pytest.approx([7.0])
    assert collective_floor("all_reduce", ranks, size, 1e9, False) == pytest.approx([14.0])
    assert collective_floor("all_reduce", ranks, size, 1e9, True) == pytest.approx([7.0])


def test_a_chosen_gpu_leaves_the_others_rows_alone(tmp_path):
    other = gemm_row(SHAPES[0], predicted_us(SHAPES[0], gpu="b200"), gpu="b200")
    done = validated(tmp_path, *good_rows(), other, gemm_row(SHAPES[0], 1.0, gpu="q7"), gpus=["b200"])
    assert not done.problems
    assert [group.keys["gpu"] for group in done.groups()] == ["b200"]
    assert (done.rows_used, done.rows_read) == (1, 1)


def test_a_gpu_without_rows_is_refused_with_those_that_have_some(tmp_path):
    with pytest.raises(InputError, match=r"no row of .* is about mi300x; the rows are about h100-sxm \(a TOML file"):
        validated(tmp_path, *good_rows(), gpus=["mi300x"])


def test_a_users_own_machine_stands_for_rows_that_give_its_alias_under_its_own_name(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('extends = "h100-sxm"\naliases = ["rack-7"]\n[compute]\nlaunch_latency = "2 us"\n')
    done = validated(tmp_path, gemm_row(SHAPES[0], predicted_us(SHAPES[0]), gpu="rack-7"), gpus=[str(own)])
    (group,) = done.groups()
    assert (group.keys["gpu"], group.keys["machine"]) == ("own", "own")


def test_json_has_the_documented_groups(tmp_path):
    data = validated(tmp_path, *good_rows()).to_dict()
    (group,) = data["groups"]
    wanted = "kind gpu system dtype ranks collective rows mean_abs_err median_abs_err p90_abs_err bias"
    assert set(wanted.split()) <= set(group)
    assert (group["kind"], group["gpu"], group["dtype"], group["ranks"]) == ("gemm", "h100-sxm", "bf16", None)
    assert {one["range"] for one in data["ranges"]} <= {">= 20 us", "< 20 us"}
    assert data["rows_read"] == data["rows_used"] == len(SHAPES)
    assert data["worst"][0]["file"] == "gemm.csv"


def test_a_layers_operators_and_their_sum_are_compared(tmp_path):
    rows = ["4xA100,Q_K_V,1e-2", "4xA100,Softmax,2e-3", "4xA100,Telepathy,1e-3"]
    done = validated(tmp_path, *rows, head="system,op,prefill_bs8_seq2048_s", name="gpt3_layer_tp4.csv")
    assert "op 'Telepathy': the layer has no such operator; it has" in str(done.problems[0])
    assert [(group.keys["op"], group.errors.rows) for group in done.groups()] == [("each", 2), ("total", 1)]


def test_a_layer_of_an_unknown_model_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(
        InputError, match=r"named after its model and degree, like gpt3_layer_tp4\.csv; models: .*gpt-3"
    ):
        validated(tmp_path, "4xA100,Softmax,1e-3", head="system,op,prefill_bs8_seq2048_s", name="gpt9_layer_tp4.csv")


def test_overlap_rows_without_shape_or_model_are_told(tmp_path):
    head = "system,ranks,collective,pattern,m,n,k,dtype,gemm_us,comm_us,sequential_us,overlap_us,speedup,source,notes"
    done = validated(
        tmp_path,
        "8xA100-80GB-SXM4,8,all_gather,ag_gemm,4096,49152,12288,bf16,,,2637,2236,,Flux paper,shape=global",
        "8xA100-80GB-SXM4,8,all_gather,e2e_training,,,,bf16,,,2637,2236,,x,",
        "8xA100-80GB-SXM4,8,all_gather,ag_gemm,,,,bf16,,,2637,2236,,x,",
        head=head,
        name="overlap.csv",
    )
    told = {problem.lines[0]: str(problem) for problem in done.problems}
    assert "pattern 'e2e_training': Weft has no model of this pattern" in told[3]
    assert "a shape is needed" in told[4]
    first = done.groups()[0]
    assert (first.keys["method"], first.errors.rows) == ("sequential", 1)
    assert first.errors.mean_abs_err < 0.2
