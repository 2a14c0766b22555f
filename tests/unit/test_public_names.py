import importlib
import inspect
import pydoc
import re
import tomllib
from pathlib import Path

import pytest

import weft
from weft import view

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", weft.__all__)
def test_every_public_name_can_be_used(name):
    assert getattr(weft, name) is not None


@pytest.mark.parametrize("name", view.__all__)
def test_every_page_figure_and_trace_can_be_used(name):
    assert callable(getattr(view, name))


def test_a_public_name_that_is_also_a_module_can_be_called_whichever_was_imported_first():
    """A module takes the place of a function of its name as soon as it is imported."""
    also = [name for name in weft.__all__ if importlib.util.find_spec(f"weft.{name}") and name != "testing"]
    assert also == ["estimate", "models", "overlaps", "papers", "plan", "rewrite", "simulate", "step", "sweep"]
    assert all(callable(importlib.import_module(f"weft.{name}")) for name in also)
    assert weft.testing is importlib.import_module("weft.testing")  # has no function of its name
    assert weft.models is importlib.import_module("weft.models")
    assert weft.papers is importlib.import_module("weft.papers")
    assert weft.estimate is importlib.import_module("weft.estimate")
    gemm = weft.gemm(4096, 4096, 4096, "bf16")
    assert weft.estimate(gemm, "h100-sxm").seconds == weft.estimate.estimate(gemm, "h100-sxm").seconds


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("estimate", "weft.estimate.dispatch"),
        ("plan", "weft.plan.training"),
        ("rewrite", "weft.rewrite.run"),
        ("simulate", "weft.simulate.single"),
        ("step", "weft.step.queries"),
    ],
)
def test_help_on_a_package_shows_the_function_that_a_call_runs(name, home):
    package = getattr(weft, name)
    function = getattr(importlib.import_module(home), name)
    text = pydoc.plain(pydoc.render_doc(package))
    assert inspect.cleandoc(function.__doc__).partition("\n")[0] in text
    assert f"{name}({next(iter(inspect.signature(function).parameters))}" in text
    assert inspect.signature(package) == inspect.signature(function)


@pytest.mark.parametrize(
    ("names", "one"),
    [
        (weft.gpus, "h100-sxm"),
        (weft.systems, "dgx-h100"),
        (weft.models, "t-nlg"),
        (weft.overlaps, "t3-mca"),
        (weft.papers, "c3"),
    ],
)
def test_names_are_listed(names, one):
    assert one in names()


def test_an_unknown_name_lists_the_public_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'simulat'; public names: .*simulate"):
        weft.simulat  # noqa: B018


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {weft.__version__}\n" in citation
    assert f"## [{weft.__version__}]" in changelog


def test_every_dependency_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    explained = (ROOT / "docs" / "dependencies.md").read_text()
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        assert re.split("[=>]=", requirement)[0] in explained
