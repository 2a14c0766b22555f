import importlib
import tomllib
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", weft.__all__)
def test_every_public_name_can_be_used(name):
    assert getattr(weft, name) is not None


def test_no_public_name_is_also_a_module():
    """A module of the same name would take the name's place as soon as it is imported."""
    for name in weft.__all__:
        assert importlib.util.find_spec(f"weft.{name}") is None


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
        assert requirement.split(">=")[0] in explained
