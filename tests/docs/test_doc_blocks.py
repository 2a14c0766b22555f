"""The checker of the pages must catch a page that lies."""

import re
import sys
from pathlib import Path

import pytest
from doc_blocks import ConsoleParser, FileParser, PythonParser, commands, difference, run
from sybil.document import Document
from sybil.example import SybilFailure

ROOT = Path(__file__).parents[2]


def check(page: str, parser: object) -> None:
    document = Document(page, "page.md")
    for region in parser(document):
        document.add(region)
    for example in document.examples():
        example.evaluate()


def test_python_output_is_compared_with_the_text_block_below():
    check("```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n", PythonParser())
    with pytest.raises(SybilFailure):
        check("```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n", PythonParser())


def test_a_text_block_elsewhere_is_not_taken_for_output():
    check("```python\nprint(6 * 7)\n```\n\nOther words.\n\n```text\n41\n```\n", PythonParser())


def test_blocks_of_a_page_share_their_names():
    check("```python\na = 1\n```\n\n```python\nassert a == 1\n```\n", PythonParser())


def test_a_block_that_names_a_file_is_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check('```toml\n# file: mine/gpu.toml\nname = "mine"\n```\n', FileParser("toml"))
    assert (tmp_path / "mine/gpu.toml").read_text() == 'name = "mine"\n'


def test_commands_and_their_outputs_are_told_apart():
    assert commands("$ weft a \\\n    --b 1\n$ weft c\nx\ny\n") == [("weft a --b 1", ""), ("weft c", "x\ny")]


def test_a_console_block_must_print_what_it_shows():
    check("```console\n$ weft --version\nweft 0...\n```\n", ConsoleParser())
    with pytest.raises(SybilFailure):
        check("```console\n$ weft --version\nweft 9...\n```\n", ConsoleParser())


def test_a_command_must_succeed_unless_its_error_is_shown():
    assert run("weft --nonsense", shown="") is not None
    assert run("weft --nonsense", shown="weft: no such option...") is None
    assert run("weft --version", shown="weft: no such option...") is not None


def test_the_notice_of_the_first_compilation_is_not_compared():
    talkative = "python -c 'import sys; print(\"weft: compiling the engine ...\", file=sys.stderr); print(1)'"
    assert run(talkative, shown="1") is None


def test_a_command_of_another_program_is_refused():
    assert "not run here" in (run("rm -rf nowhere", shown="") or "")


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("a ... c", True),
        ("a b d", False),
        ("a ...\nd", False),
        ("...\nlast", True),
        ("a b c\nlast", False),
        ("a b c\n...\nlast", True),
    ],
)
def test_an_ellipsis_stands_for_part_of_a_line_or_for_whole_lines(shown, same):
    printed = "a b c" if "last" not in shown else "a b c  \nmore\nlast\n"
    assert (difference(shown, printed) is None) is same


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_a_skipped_example_says_why(page):
    bare = re.findall(r"<!--+\s*skip: (?:next|start)\s*--+>", page.read_text())
    assert not bare, f'{page.name}: give the reason, as in <!--- skip: next "needs two GPUs" -->'


def test_the_examples_run_with_this_python():
    assert run("python -c pass", shown="") is None
    assert Path(sys.executable).exists()
