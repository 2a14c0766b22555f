"""What every study keeps to: a command, sentences that it can tell, a page that explains it, a place for figures."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from weft.core.errors import ConfigError
from weft.papers import STUDIES
from weft.papers import study as find
from weft.papers.command import study as command
from weft.papers.headline import read_declaration

DOCS = Path(__file__).parents[2] / "docs"

every = pytest.mark.parametrize("name", STUDIES)


@every
def test_the_command_tells_its_name_options_and_examples(name):
    told = CliRunner().invoke(command, [name, "--help"])
    assert told.exit_code == 0, told.output
    assert "--json" in told.output
    for example in find(name).DECLARED.examples:
        assert shlex.split(example)[:3] == ["weft", "study", name]


@every
def test_it_declares_its_name_and_what_its_page_says_first(name):
    declared = find(name).DECLARED
    assert declared.name == name
    assert set(declared.summary) <= set(declared.claims), "a sentence of a claim that is not declared is left out"


@every
def test_a_page_of_the_documentation_explains_it(name):
    _, page = find(name).DECLARED.explained
    papers = (DOCS / "explanation" / "papers.md").read_text(encoding="utf-8")
    assert (DOCS / "explanation" / f"{page}.md").is_file() or f"weft study {name}" in papers


@every
def test_its_figures_have_a_place_in_the_deviations(name):
    mark = f"<!--- figures of {name}: made by `make figures` -->"
    after = (DOCS / "deviations.md").read_text(encoding="utf-8").partition(mark)[2]
    assert "<!--- end of figures -->" in after, f"docs/deviations.md lacks {mark} and <!--- end of figures -->"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("covers", "cover", r"c3.toml: claims\.c3\.base: cover: unknown key; did you mean 'covers'"),
        ("called", "caled", r"c3.toml: caled: unknown key; did you mean 'called'"),
        ('title = "A', 'moved = "A', r"c3.toml: title: this value is missing; add it"),
    ],
)
def test_a_wrong_key_in_its_file_is_refused_with_the_known_ones(tmp_path, old, new, words):
    text = 'name = "c3"\ncalled = "C3"\npaper = "x"\ngpu = "mi100"\ntitle = "A"\nasks = "x"\ntakes = "x"\n'
    text += 'about = "x"\nexplained = ["x", "x"]\n'
    file = tmp_path / "c3.toml"
    file.write_text(f'{text}[claims."c3.base"]\ncovers = "all"\n'.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        read_declaration(str(tmp_path / "c3.py"))
