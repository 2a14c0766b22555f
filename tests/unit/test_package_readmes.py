"""READMEs of packages and the page on the architecture: their paths, names, links and imports are those of the code."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "weft"
PACKAGES = sorted(each.name for each in SOURCE.iterdir() if (each / "__init__.py").exists())
PAGES = {**{name: SOURCE / name / "README.md" for name in PACKAGES}, "architecture": ROOT / "docs" / "architecture.md"}
PATH = re.compile(r"[\w.-]+(/[\w.*-]+)*(/|\.(py|toml|md|csv))|[\w.-]+(/[\w.-]+)+")
LEAST_LINES, MOST_LINES = 15, 45


def quoted(text):
    """Return what stands in backticks outside blocks of text and links' targets."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@cache
def words(*folders):
    """Return every identifier in the files of some folders."""
    return {
        word
        for folder in folders
        for file in folder.rglob("*")
        if file.suffix in (".py", ".toml") and file != Path(__file__)
        for word in re.findall(r"[A-Za-z_]\w*", file.read_text())
    }


def anchors(page):
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def layers():
    """Return each package's layer, the lowest 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = next(each["layers"] for each in contracts if each["type"] == "layers")
    return {name.strip(): at for at, names in enumerate(reversed(named)) for name in names.split("|")}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_says_what_it_does_what_it_may_import_and_where_to_start(name):
    text = PAGES[name].read_text()
    assert text.startswith(f"# `weft.{name}`\n")
    assert LEAST_LINES <= len(text.splitlines()) <= MOST_LINES
    for part in ("**Key types:**", "**May import:**", "**Start with**", "| to change | go to | and see |"):
        assert part in text, part


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_may_import_the_packages_below_it(name):
    said = re.search(r"\*\*May import:\*\* (.*?)[.;]( |$)", PAGES[name].read_text(), flags=re.MULTILINE)
    floor = layers()
    assert set(re.findall(r"`(\w+)`", said[1])) == {other for other in floor if floor[other] < floor[name]}


@pytest.mark.parametrize("name", PAGES)
def test_paths_on_a_page_exist(name):
    places = (PAGES[name].parent, SOURCE, ROOT)
    paths = [each for each in quoted(PAGES[name].read_text()) if PATH.fullmatch(each)]
    assert paths
    assert [each for each in paths if not any((place / each).exists() for place in places)] == []


@pytest.mark.parametrize("name", PAGES)
def test_names_on_a_page_are_names_of_the_code(name):
    named = [each for each in quoted(PAGES[name].read_text()) if re.fullmatch(r"[A-Za-z_][\w.]*", each)]
    parts = {part for each in named if not PATH.fullmatch(each) for part in each.split(".")}
    assert parts - words(ROOT / "src", ROOT / "measure", ROOT / "tests") == set()


@pytest.mark.parametrize("name", PACKAGES)
def test_key_types_of_a_package_are_its_own(name):
    stated = re.search(r"\*\*Key types:\*\* (.*)", PAGES[name].read_text())[1]
    code = "\n".join(file.read_text() for file in (SOURCE / name).rglob("*.py"))
    own = {
        *re.findall(r"^(?:class |def )?(\w+)", code, re.MULTILINE),
        *(each.name for each in (SOURCE / name).iterdir()),
    }
    assert set(re.findall(r"`([\w.]+)`", stated)) - own == set()


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_to_pages_and_their_headings(name):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[name].read_text()):
        path, _, heading = target.partition("#")
        page = PAGES[name].parent / path
        assert page.exists(), target
        assert not heading or heading in anchors(page), target


def test_the_architecture_names_every_package_in_the_order_of_the_layers():
    rows = re.findall(r"^\| (`.*?) \|", PAGES["architecture"].read_text(), flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    floor = layers()
    assert sorted(named) == PACKAGES
    assert [floor[name] for name in named] == sorted(floor[name] for name in named)
