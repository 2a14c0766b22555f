"""Every example runs as a reader would run it, and prints what it is there to show."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_look.ipynb"
SLOW = {"02_change_the_machine.py", "06_choose_a_split.py"}
SHOWS = {
    "01_two_overlaps.py": ["t3-mca", "gemm read", "matrix_unit"],
    "02_change_the_machine.py": ["as in the paper", "link.bandwidth = 300 GB/s"],
    "03_own_arbiter.py": ["round-robin", "half_queue"],
    "04_unequal_gpus.py": ["all alike", "GPU 2 starts 50 us late"],
    "05_layer_across_systems.py": ["TP 8, decode", "in all-reduces"],
    "06_choose_a_split.py": ["8192 rows beside 512 MiB: dma", "chosen in"],
}


def test_every_example_says_what_it_shows():
    assert [example.name for example in EXAMPLES] == sorted(SHOWS)


def marked(example):
    return pytest.param(example, marks=pytest.mark.slow if example.name in SLOW else (), id=example.name)


@pytest.mark.parametrize("example", [marked(example) for example in EXAMPLES])
def test_an_example_runs_and_shows_it(example, tmp_path):
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for part in SHOWS[example.name]:
        assert part in done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves no files behind"


def cells(notebook):
    """The sources of the code cells of a notebook."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def run_cell(source, names):
    """The value of a cell's last line, which a notebook shows; None if that is no expression."""
    *before, last = ast.parse(source).body
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return None


def test_the_notebook_runs_and_shows_tables_and_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    shown = [value for value in (run_cell(source, names) for source in cells(NOTEBOOK)) if value is not None]
    tables = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    figures = [value._repr_svg_() for value in shown if hasattr(value, "_repr_svg_")]
    assert len(tables) == 3
    assert len(figures) == 3
    assert "t3-mca" in capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "a notebook leaves no files behind"


def test_the_notebook_holds_no_outputs():
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in content["cells"])
