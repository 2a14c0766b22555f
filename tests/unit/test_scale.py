"""Machines of the future: what grows with a factor, what a step does there, and how sure the answer is."""

import json
from types import SimpleNamespace

import pytest

import weft
from weft.cli.main import main
from weft.core.errors import InputError
from weft.graph import Collective
from weft.models.scaling import all_reduce_rate, edge, share
from weft.plan.scale import Scaled, Scaling, faster, scale

PLAN = {"tp": 8, "pp": 8, "batch": 64}
LARGE = weft.gemm(16384, 16384, 16384, "bf16")


def shares(**given):
    found = scale("gpt-3", "64xa100", methods=["sequential"], **PLAN, **given)
    return [point.exposed for point in found.points]


def test_edge_is_the_flops_of_a_layer_over_its_all_reduced_bytes():
    hidden, tokens, sequence, tp = 4096, 8192, 2048, 8
    flops = (24 * hidden**2 + 4 * sequence * hidden) * tokens / tp
    assert edge(hidden, sequence, tp) == pytest.approx(flops / (2 * tokens * hidden * 2))


def test_a_ring_sends_nearly_every_byte_of_an_all_reduce_twice():
    assert all_reduce_rate(100e9, 2) == 100e9
    assert all_reduce_rate(100e9, 1024) == pytest.approx(50e9, rel=1e-3)


def test_communication_takes_half_where_both_take_as_long():
    assert share(1000, 1e14, 1e11) == 0.5


def test_a_machine_that_computes_twice_as_fast_halves_a_large_gemm():
    gpu = weft.system("8xh100")
    times = [float(weft.estimate(LARGE, faster(gpu, compute=c)).seconds) for c in (1, 2)]
    assert times[1] == pytest.approx(times[0] / 2, rel=0.03)


def test_links_that_carry_twice_as_much_halve_a_large_all_reduce():
    node, moved = weft.system("8xh100"), Collective("all_reduce", 1 << 30, 8)
    times = [float(weft.estimate(moved, faster(node, network=n)).seconds) for n in (1, 2)]
    assert times[1] == pytest.approx(times[0] / 2, rel=0.1)


def test_memory_grows_with_compute_unless_it_has_a_factor():
    node = weft.system("8xh100")
    assert faster(node, compute=4).gpu.memory.bandwidth == pytest.approx(4 * node.gpu.memory.bandwidth)
    assert faster(node, compute=4, memory=1).gpu.memory.bandwidth == node.gpu.memory.bandwidth


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), 1e6])
def test_factors_are_positive_numbers(factor):
    with pytest.raises(InputError, match="give factors above 0"):
        faster(weft.system("8xh100"), compute=factor)


def test_more_compute_exposes_more_and_more_network_less():
    base, computes, carries = (shares(compute=[c], network=[n])[0] for c, n in ((1, 1), (4, 1), (4, 4)))
    assert carries == pytest.approx(base, abs=0.03)
    assert computes > base + 0.05


def test_every_combination_of_factors_is_a_machine():
    found = scale("gpt-3", "64xa100", [1, 2], [1, 4], memory=[1, 2], **PLAN)
    machines = [(points[0].compute, points[0].network, points[0].memory) for points in found.machines()]
    assert machines == [(c, n, m) for c in (1, 2) for n in (1, 4) for m in (1, 2)]
    assert all([point.method for point in points] == ["sequential", "framework"] for points in found.machines())


def test_the_page_shows_the_machine_of_today_where_it_is_not_among_the_points():
    found = scale("gpt-3", "64xa100", [2, 4], [2], **PLAN)
    assert found.report().gpu().changes == ()
    assert found.to_dict()["system"] == found.system.label


def test_without_degrees_nodes_are_added_until_the_model_fits():
    found = scale("llama-3-70b", "8xh100", [1])
    plan = found.first.plan
    assert plan.tp == 8
    assert plan.pp > 1
    assert found.first.memory.fits
    assert "does not fit 8 GPUs" in found.notes[0]


def test_without_tensor_parallelism_there_is_nothing_to_compare():
    found = scale("gpt-1.7b", "8xh100", [1], dp=8, batch=32)
    assert [point.method for point in found.points] == ["framework"]
    assert any("Without tensor parallelism" in note for note in found.notes)


def test_an_empty_list_of_factors_is_refused():
    with pytest.raises(InputError, match="compute is empty"):
        scale("gpt-3", "64xa100", [], **PLAN)


def scaling(exposed, error):
    """Two points: one that exposes `exposed` of a second, one that exposes nothing."""
    points = [
        Scaled(1, 1, 1, name, SimpleNamespace(seconds=1 - exposed + bare, exposed={"tp": bare}))
        for name, bare in (("sequential", exposed), ("ideal", 0.0))
    ]
    return Scaling(tuple(points), weft.system("8xh100"), error, error, ())


def test_the_range_of_a_speedup_closes_with_the_errors():
    exact, rough = scaling(0.5, 0.0), scaling(0.5, 0.1)
    assert exact.speedup(exact.points[1], exact.points[0]) == (2.0, 2.0, 2.0)
    value, low, high = rough.speedup(rough.points[1], rough.points[0])
    assert value == 2.0
    assert low == pytest.approx(1 + 0.9 / 1.1)
    assert high == pytest.approx(1 + 1.1 / 0.9)


def test_the_range_of_a_share_holds_it():
    value, low, high = scaling(0.5, 0.1).share(scaling(0.5, 0.1).points[0])
    assert low < value < high
    assert low == pytest.approx(0.45)


def test_the_command_says_what_is_exposed_and_writes_its_page(capsys, tmp_path):
    factors = ["--compute", "1,4", "--network", "1,2"]
    degrees = ["--tp", "8", "--pp", "8", "--batch", "64"]
    with pytest.raises(SystemExit) as left:
        main(["scale", "gpt-3", "--system", "64xa100", *degrees, *factors, "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert out.startswith("Communication exposes ")
    assert "framework makes the step" in out
    found = json.loads((tmp_path / "scale.json").read_text())
    assert len(found["points"]) == 8
    assert all(low <= one["speedup"] <= high for one in found["points"] for low, high in [one["speedup_range"]])
    assert (tmp_path / "report.html").exists()


def test_memory_has_factors_of_its_own_on_the_command_line(capsys, tmp_path):
    degrees = ["--tp", "8", "--pp", "8", "--batch", "64", "--compute", "4", "--memory", "1,2"]
    with pytest.raises(SystemExit) as left:
        main(["scale", "gpt-3", "--system", "64xa100", *degrees, "--json", str(tmp_path / "scale.json")])
    assert left.value.code == 0, capsys.readouterr().err
    points = json.loads((tmp_path / "scale.json").read_text())["points"]
    assert [point["memory"] for point in points] == [1, 1, 2, 2]


@pytest.mark.parametrize("text", ["0", "x", "-1", "nan"])
def test_factors_on_the_command_line_are_numbers_above_zero(capsys, text):
    with pytest.raises(SystemExit) as left:
        main(["scale", "gpt-3", "--system", "64xa100", "--compute", text])
    assert left.value.code == 2
    assert "write" in capsys.readouterr().err
