"""A model's operators on the roofline: intensities, ceilings, times as in a step, and what is shown of them."""

import json

import pytest
from shown import check_shown

import weft
from weft.cli.main import main
from weft.core.errors import InputError
from weft.core.options import SUSTAINED
from weft.models.parallel.framework import framework
from weft.plan.tune.tiles import Template
from weft.step.durations import OperatorTimes
from weft.step.rank_parts import rank_parts


@pytest.fixture(scope="module")
def found():
    return weft.roofline("gpt-3", "8xa100", tp=8)


def named(answer, name):
    return next(op for op in answer.operators if op.name == name)


def test_a_gemm_has_the_intensity_of_its_sizes(found):
    plan, model = found.plan, found.model
    tokens, hidden, wide = plan.micro_batch * plan.sequence, model.hidden, 4 * model.hidden // 8
    fc1 = named(found, "fc1")
    assert fc1.flops == 2 * tokens * hidden * wide
    assert fc1.intensity == pytest.approx(
        2 * tokens * hidden * wide / (2 * (tokens * hidden + hidden * wide + tokens * wide))
    )
    assert named(found, "fc1.input").flops + named(found, "fc1.weight").flops == 2 * fc1.flops


def test_operators_take_the_time_that_they_take_in_a_step(found):
    prices = OperatorTimes(found.system, found.plan, SUSTAINED)
    part = next(
        one
        for name, one in rank_parts(found.model, found.plan, framework("megatron-core")).items()
        if name not in ("embedding", "head")
    )
    in_step = {
        (way, node.name): prices.of(node.op, node.stream)
        for way, graph in (("forward", part.forward), ("backward", part.backward))
        for node in graph
        if node.stream == "compute"
    }
    assert {(op.direction, op.name): op.seconds for op in found.operators} == pytest.approx(in_step)


def test_no_operator_is_above_the_peak_of_its_units_nor_above_the_caches(found):
    cache = found.system.gpu.cache.bandwidth
    assert all(op.rate <= found.peak(op) for op in found.operators)
    assert all(op.bandwidth <= cache for op in found.operators)


def test_gemms_of_a_large_layer_are_right_of_the_ridge_and_norms_left_of_it(found):
    sides = {op.kind: found.left_of_ridge(op) for op in found.operators}
    assert sides == {"gemm": False, "attention": False, "norm": True, "element-wise": True}


def test_the_ceiling_bends_at_the_ridge(found):
    peak, ridge = found.peaks["bf16"], found.ridge("bf16")
    assert ridge == pytest.approx(153, rel=0.005)
    for op in found.operators:
        if op.dtype == "bf16":
            assert found.ceiling(op) == min(peak, op.intensity * found.memory_rate)
            assert (found.ceiling(op) < peak) == (op.intensity < ridge)


def test_a_layer_in_8_bits_has_a_roof_of_its_own():
    narrow = weft.roofline("gpt-3", "8xh100", tp=8, precision="fp8-delayed")
    assert list(narrow.peaks) == ["fp8", "bf16", "vector"]
    assert narrow.ridge("fp8") == pytest.approx(2 * narrow.ridge("bf16"), rel=0.01)


def test_a_mixture_shows_its_experts():
    mixed = weft.roofline("mixtral-8x7b", "8xh100", ep=8)
    assert any(op.kind == "grouped_gemm" for op in mixed.operators)


def test_a_plan_that_does_not_fit_the_model_is_refused():
    with pytest.raises(InputError, match="tp"):
        weft.roofline("gpt-3", "8xa100", tp=7)


def test_a_roofline_is_plain_data_a_table_a_figure_and_a_page(found, tmp_path):
    check_shown(found, tmp_path)


def test_the_picture_has_every_operator_and_every_ceiling(found):
    data = found.plot().data
    assert len(data["dots"].rows) == len([op for op in found.operators if op.flops])
    assert data["ceilings"].distinct("ceiling") == ["DRAM", "cache", "bf16", "vector"]
    assert sorted(filter(None, data["ceilings"].column("side"))) == ["above", "above", "left", "right"]


def test_a_tile_search_is_plain_data_a_table_a_figure_and_a_page(tmp_path):
    small = Template((64, 128), (64, 128), (32, 64), (2, 4), (128,), (1, 4))
    check_shown(weft.tiles(weft.gemm(512, 1024, 4096), "h100-sxm", small), tmp_path)


def test_the_commands_answer_in_words_and_write_files(capsys, tmp_path):
    for arguments in (
        ["roofline", "gpt-3", "--system", "8xa100", "--tp", "8", "--out", str(tmp_path)],
        ["tiles", "128,4096,4096", "--gpu", "a100-sxm-80gb", "--json", str(tmp_path / "tiles.json")],
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "right of the ridge of NVIDIA A100" in said
    assert "kernels" in said
    assert "annealing" in said
    found = json.loads((tmp_path / "roofline.json").read_text())
    assert found["peaks"]["bf16"]["ridge"] == pytest.approx(153, rel=0.005)
    assert (tmp_path / "report.html").exists()
    assert json.loads((tmp_path / "tiles.json").read_text())["candidates"] == 5000
