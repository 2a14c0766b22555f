"""Every result gives plain data, a table, a figure, files and a view in a notebook."""

import importlib
import pkgutil
import re

import pytest
from pages import PAGES
from shown import check_shown

import weft
from weft.core.answer import Answer
from weft.core.errors import InputError, OutputError
from weft.core.extensions import find_report
from weft.hardware import FABRICS
from weft.models import SubLayer
from weft.models.parallel import split
from weft.plan.tune.perturb import Row, Sensitivity
from weft.view.answers import REPORTS
from weft.view.answers import page as html_page


@pytest.fixture(scope="module")
def compared():
    return weft.compare(split(SubLayer.custom(512, 512, 128), 4), "t3-paper", ["t3", "ideal-overlap"])


@pytest.fixture(scope="module")
def answers(compared):
    """A small result of every kind that takes no study to make."""
    shared = weft.concurrent(weft.gemm(512, 512, 512), weft.all_gather("1 MiB"), 2, 2)
    shapes = [weft.gemm(512, 512, 512), weft.gemm(64, 4096, 4096)]
    moved = [Row("as chosen", "", {"speedup": 1.2}), Row("link", "1 GB/s", {"speedup": 1.1})]
    return {
        "comparison": compared,
        "shared": weft.compare(shared, "mi300x", ["streams", "dma"]),
        "timeline": compared["t3"],
        "ideal": compared["ideal-overlap"],
        "estimate": weft.estimate(shapes[0], "h100-sxm"),
        "estimates": weft.estimate(weft.gemm([1, 64], 4096, 4096), ["h100-sxm", "mi300x"]),
        "operators": weft.estimate("t-nlg/fc2", "dgx-h100", tp=8),
        "sweep": weft.sweep(shapes, ["h100-sxm", "mi300x"], by="estimate"),
        "schedule": weft.find_schedule(3, 4, "1 ms", "1 ms", "1 ms", memory=4),
        "rewriting": weft.rewrite("llama-3-8b", "h100-sxm", sequence=64),
        "sensitivity": Sensitivity("t3", ["t-nlg"], moved, {"speedup": ".3f"}),
        "graph step": weft.step(weft.concurrent(shapes[0], weft.all_gather("1 MiB")).only("compute"), "h100-sxm"),
    }


NAMES = [
    "comparison", "shared", "timeline", "ideal", "estimate", "estimates", "operators", "sweep", "rewriting", "schedule",
    "sensitivity", "graph step",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_plain_data_a_table_a_figure_and_a_page(answers, name, tmp_path):
    check_shown(answers[name], tmp_path)


def kinds_of_answers(of=Answer):
    """The classes of answers by their kind."""
    own = {kind.kind: kind for kind in of.__subclasses__() if "kind" in vars(kind)}
    return own | {name: found for kind in of.__subclasses__() for name, found in kinds_of_answers(kind).items()}


def test_every_kind_of_answer_says_how_it_is_shown():
    for module in pkgutil.walk_packages(weft.__path__, "weft."):
        if not module.name.endswith("__main__") and not module.name.startswith("weft.torch.capture."):  # need PyTorch
            importlib.import_module(module.name)
    kinds = set(kinds_of_answers())
    assert set(REPORTS) <= kinds
    assert all(find_report(kind) for kind in kinds - set(REPORTS))
    assert {name.partition(":")[0] for name in PAGES} == kinds, "a page of each kind is opened in a browser"


def test_every_figure_is_in_the_page_without_its_script(answers):
    for name, answer in answers.items():
        page = html_page(answer)
        assert page.count("<figure") == len(re.findall(r'<div class="still"><svg .*? fill="#', page)) > 0, name


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_becomes_a_data_frame_with_the_rows_of_its_table(answers, name):
    pandas = pytest.importorskip("pandas")
    frame = answers[name].to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) > 0


def test_a_saved_timeline_is_loaded_as_it_was(compared, tmp_path):
    saved = compared["t3"].save(tmp_path / "run.json")
    loaded = weft.Timeline.load(saved)
    assert loaded.spans == compared["t3"].spans
    assert loaded.system == compared["t3"].system
    assert loaded.to_dict() == compared["t3"].to_dict()
    assert loaded.plot().svg() == compared["t3"].plot().svg()


def test_unequal_gpus_and_fabrics_are_loaded_as_they_were(tmp_path):
    gpu, graph = weft.gpu("t3-paper"), split(SubLayer.custom(512, 512, 128), 4)
    late = weft.System(gpu=gpu, gpus=4, start={2: "50 us"}, variants={1: gpu.replace({"link.bandwidth": "75 GB/s"})})
    mesh = weft.System(gpu=gpu, gpus=4, fabric=FABRICS["full"](4, gpu.link.bandwidth / 4, gpu.link.latency))
    for system in (late, mesh):
        run = weft.simulate(graph, system, "sequential")
        assert weft.Timeline.load(run.save(tmp_path / "run.json")).system == system


@pytest.mark.parametrize("content", ["{}", '{"runs": 3}', '{"map": []}', '{"Timeline": {}}', "[1]", "no"])
def test_a_file_of_something_else_is_no_timeline(content, tmp_path):
    file = tmp_path / "run.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"Timeline\.save"):
        weft.Timeline.load(file)


@pytest.mark.parametrize("path", ["run.xlsx", "run", "", "-"])
def test_a_suffix_says_what_is_written(answers, path):
    with pytest.raises(InputError, match=r"end it in \.json, \.csv or \.html"):
        answers["estimate"].save(path)


def test_a_place_that_cannot_be_written_is_named(answers, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        answers["estimate"].save(tmp_path / "file" / "run.json")


def test_one_case_is_answered_with_numbers_and_words():
    found = weft.estimate(weft.gemm(1, 8192, 8192), "h100-sxm")
    assert type(found.seconds) is float
    assert (type(found.bound), found.bound) == (str, "memory")
    assert {type(part) for part in found.parts.values()} == {float}
    layer = weft.estimate("t-nlg/fc2", "dgx-h100", tp=8)
    assert type(layer.operators["gemm"].seconds) is float
    assert layer.operators["all_reduce"].by == "nvls"


def test_a_sensitivity_with_several_figures_draws_the_first():
    rows = [
        Row("as chosen", "", {"a": 1.2, "b": 2}),
        Row("x", "1", {"a": 1.1, "b": 2}),
        Row("x", "2", {"a": 1.3, "b": 3}),
    ]
    moved = Sensitivity("t3", ["t-nlg"], rows, {"a": ".2f", "b": ".0f"})
    assert [row[1:3] for row in moved.plot().data["bars"].rows] == [("low", 1.1), ("high", 1.3)]
