"""Rows of operators as `weft measure` writes them."""

import numpy as np
import pytest

import weft

HEAD = "gpu,operator,dtype,shape,time_us,source,notes\n"
ROWS = (
    ("softmax", "bf16", {"rows": 16384, "columns": 4096}),
    ("softmax", "bf16", {"rows": 2**20, "columns": 512}),
    ("attention_fused", "bf16", {"batch": 8, "heads": 32, "query": 2048, "keys": 2048, "head": 128, "causal": 1}),
    ("attention_fused", "bf16", {"batch": 8, "heads": 32, "query": 2048, "keys": 2048, "head": 128, "causal": 0}),
    ("adam", "fp32", {"parameters": 2**26}),
)


def table(place, rows, times):
    lines = [
        f"h100-sxm,{name},{dtype},{';'.join(f'{key}={size}' for key, size in sizes.items())},{time:.6g},,\n"
        for (name, dtype, sizes), time in zip(rows, times, strict=True)
    ]
    (place / "operators.csv").write_text(HEAD + "".join(lines), encoding="utf-8")
    return weft.validate(place)


def closed_form(name, dtype, sizes):
    return float(weft.estimate(weft.operator(name, dtype, **sizes), "h100-sxm", weft.RunOptions("short")).seconds)


def test_an_operator_is_predicted_as_weft_estimate_does(tmp_path):
    found = table(tmp_path, ROWS, [closed_form(*row) * 1e6 / 0.9 for row in ROWS])
    (part,) = found.predictions
    assert part.seconds == pytest.approx([closed_form(*row) for row in ROWS])
    assert np.asarray(part.seconds / part.subject.measured) == pytest.approx(0.9, rel=1e-4)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("softmax", "bf16", {"rows": 4096}), "lacks its dimension 'columns'"),
        (("sofmax", "bf16", {"rows": 4096, "columns": 512}), "unknown operator 'sofmax'"),
        (("softmax", "bf16", {"rows": "many", "columns": 512}), "write them like rows=4096;columns=512"),
    ],
)
def test_a_row_that_names_no_operator_is_left_out_with_its_line_and_the_reason(tmp_path, row, reason):
    found = table(tmp_path, (ROWS[0], row), (208.1, 100.0))
    assert found.rows_used == 1
    (said,) = found.complaints()
    assert "line 3" in said
    assert reason in said


def test_a_sweep_of_one_and_a_quarter_caches_finds_nothing_in_them():
    gpu = weft.gpu("h100-sxm")
    elements = gpu.cache.capacity // 4 * 5 // 4
    sweep = weft.estimate(weft.operator("elementwise", "bf16", elements=elements), gpu)
    moved = 4 * elements / (gpu.memory.bandwidth * gpu.memory.copy_efficiency)
    assert float(sweep.seconds) > moved
    smaller = weft.estimate(weft.operator("elementwise", "bf16", elements=elements * 3 // 4), gpu)
    assert float(smaller.seconds) < 0.75 * moved
