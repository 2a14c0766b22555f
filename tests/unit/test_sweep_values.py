"""One call sweeps any value; work, systems and quantities are given by name."""

import pytest

import weft
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.models import SubLayer
from weft.models.parallel import split
from weft.sweep.questions import StepQuestion

SMALL = split(SubLayer.custom(512, 512, 128), 4)
LINKS = {"link.bandwidth": ["150 GB/s", "0.3 TB/s"]}


@pytest.fixture(scope="module")
def swept():
    return weft.sweep(SMALL, "t3-paper", ["sequential", "t3"], cache=False, **LINKS)


def test_every_combination_is_simulated_in_order(swept):
    assert swept.axes == ("link.bandwidth", "overlap")
    assert [point.values for point in swept] == [
        ("150 GB/s", "sequential"), ("150 GB/s", "t3"), ("0.3 TB/s", "sequential"), ("0.3 TB/s", "t3"),
    ]  # fmt: skip
    machine = weft.system("t3-paper", 4)
    faster = machine.replace({"link.bandwidth": "300 GB/s"})
    expected = [weft.simulate(SMALL, on, how).seconds for on in (machine, faster) for how in ("sequential", "t3")]
    assert [point.seconds for point in swept] == expected
    assert swept.best.seconds == min(expected)


def test_speedups_are_over_the_first_overlap_at_the_same_values(swept):
    first, second, third, fourth = swept
    assert [first.speedup, third.speedup] == [1.0, 1.0]
    assert second.speedup == first.seconds / second.seconds
    assert fourth.speedup == third.seconds / fourth.seconds


def test_quantities_become_an_axis_in_the_unit_of_the_first(swept):
    assert swept.scale == ("link.bandwidth", [150.0, 150.0, 300.0, 300.0], "GB/s")
    assert swept.plot().data["curves"].heads[0] == "link.bandwidth [GB/s]"


def test_choices_without_numbers_become_bars():
    found = weft.sweep(SMALL, "t3-paper", ["sequential", "t3"], cache=False)
    assert found.scale is None
    assert [row[0] for row in found.plot().data["bars"].rows] == ["sequential", "t3"]


def test_whole_numbers_are_choices_without_a_line_between_them_and_the_best_is_marked():
    found = weft.sweep("t-nlg/fc2", "h100-sxm", tp=[2, 4, 8], by="estimate", cache=False)
    rows = found.plot().data["choices"].records()
    assert {row["value"]: row["mark"] for row in rows} == {2: "", 4: "", 8: "best"}
    assert "'line'" not in str(found.plot().spec)


def test_what_does_not_fit_is_left_out_of_the_figure():
    found = weft.sweep_file(
        {"run": "step", "model": "gpt-3", "system": "64xa100", "pp": 8, "batch": 64, "fidelity": "estimate"},
        {"tp": [4, 8], "recompute": ["none", "full"]},
        cache=False,
    )
    shown = {(row["value"], row["series"]) for row in found.plot().data["choices"].records()}
    assert {(point["tp"], f"recompute {point['recompute']}") for point in found if point["fits"]} == shown
    assert "do not fit the memory: 1 of 4" in found.plot().caption


def test_one_value_each_is_one_point():
    found = weft.sweep(SMALL, "t3-paper", cache=False)
    assert len(found) == 1
    assert found.points[0].speedup is None
    assert found.plot().data["curves" if found.scale else "bars"].rows


def test_what_is_swept_twice_is_kept(tmp_path, monkeypatch):
    from weft.core.store import records as store

    monkeypatch.setattr(store, "runs_folder", lambda: tmp_path)
    done = []
    for _ in range(2):
        done.clear()
        weft.sweep(SMALL, "t3-paper", ["t3"], progress=lambda *told: done.append(told))
    assert done[0] == (1, 1, "1 cached")


def test_closed_forms_are_swept_alike():
    sizes = {"memory.bandwidth": ["2 TB/s", "4 TB/s"]}
    found = weft.sweep(weft.gemm(16, 8192, 8192), "h100-sxm", by="estimate", **sizes)
    assert found.points[0].seconds > found.points[1].seconds
    assert [row["bound"] for row in found.to_dict()["rows"]] == ["memory", "memory"]
    assert found.scale == ("memory.bandwidth", [2.0, 4.0], "TB/s")


def test_a_name_means_the_sub_layer_with_its_tp():
    named = weft.sweep("t-nlg/fc2", "h100-sxm", tp=[8, 16], by="estimate")
    layers = [weft.estimate(weft.sublayer("t-nlg", "fc2", tp=tp), "h100-sxm").seconds for tp in (8, 16)]
    assert [point.seconds for point in named] == layers
    assert weft.sublayer("t-nlg/fc2", tp=8) == weft.sublayer("t-nlg", "fc2", tp=8)
    assert weft.sublayer("t-nlg/fc2", tp=8, dtype="bf16")["gemm"].op.dtype == "bf16"


def test_one_overlap_is_a_name_and_not_its_letters():
    assert list(weft.compare(SMALL, "t3-paper", "t3").timelines) == ["sequential", "t3"]


def test_amounts_of_data_are_texts_with_units():
    assert weft.Collective("all_gather", "64 MiB", 8) == weft.all_gather("64 MiB")
    assert weft.Opaque("x", bytes="1 GiB", written="1 MiB").least_bytes == 1 << 30
    assert weft.BenchmarkProtocol(network="50 GB/s").network == 50e9


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: weft.simulate("t-nlg/fc2", "t3-paper"), InputError, "tp is missing: 't-nlg/fc2'"),
        (lambda: weft.simulate(SMALL, "t3-paper", tp=4), InputError, "tp is given twice: 4"),
        (lambda: weft.simulate("t-nlg", "t3-paper", tp=8), InputError, "like 't-nlg/fc2'"),
        (lambda: weft.simulate("t-nlg/fc3", "t3-paper", tp=8), UnknownNameError, "did you mean 'fc2'"),
        (lambda: weft.compare("t-nlp/fc2", "t3-paper", "t3", tp=8), UnknownNameError, "did you mean 't-nlg'"),
        (lambda: weft.sublayer("t-nlg", "fc2"), InputError, "TP None cannot split"),
        (lambda: weft.sweep(SMALL, "t3-paper", []), InputError, "overlap varies over an empty list"),
        (lambda: weft.sweep(SMALL, "t3-paper", **{"link.bandwidht": ["1 GB/s"]}), ConfigError, "link.bandwidth"),
        (lambda: weft.sweep(weft.gemm([1, 2], 3, 4), "h100-sxm", by="estimate"), InputError, "arrays"),
        (lambda: weft.sweep(SMALL, "h100-sxm", "t3", by="estimate"), InputError, "closed forms have none"),
    ],
)
def test_what_is_wrong_is_said(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "loads"), [("even", ()), ("power:0.6", 0.6), ("3,2,2,1", (3.0, 2.0, 2.0, 1.0))], ids=str
)
def test_a_training_question_takes_the_loads_of_experts_as_the_command_does(text, loads):
    question = StepQuestion(model="gpt-oss-120b", system="8xh100", expert_load=text)
    assert question.stated_values()["expert_load"] == loads
