"""Starting is instant: what a command does not need is not imported (modules are counted, not seconds)."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "altair",
    "jinja2",
    "llvmlite",
    "ml_dtypes",
    "numba",
    "numpy",
    "numpy.ma",
    "pandas",
    "pydantic",
    "rich",
    "vl_convert",
}


def heavy_modules_after(code: str) -> set[str]:
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return HEAVY & set(json.loads(done.stderr.splitlines()[-1]))


def command_line(*arguments: str) -> str:
    return f"""
from weft.cli.main import main
try:
    main({list(arguments)!r})
except SystemExit:
    pass"""


def test_import_weft_imports_no_heavy_library():
    assert heavy_modules_after("import weft; dir(weft)") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["no-such-command"]], ids=str)
def test_the_root_command_imports_no_heavy_library(arguments):
    assert heavy_modules_after(command_line(*arguments)) == set()


def test_a_table_on_a_terminal_imports_nothing_that_draws():
    loaded = heavy_modules_after(
        command_line("overlaps", "list") + "\nimport weft.view.run, weft.view.corun, weft.view.advice"
    )
    assert loaded & {"altair", "vl_convert", "jinja2"} == set()


def test_a_step_in_closed_form_loads_no_compiler_and_no_rare_formats():
    step = "step", "gpt-3", "--system", "8xa100", "--tp", "8", "--batch", "8", "--fidelity", "estimate"
    assert heavy_modules_after(command_line(*step)) == {"numpy", "pydantic", "rich"}


def test_a_kept_simulation_loads_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    look_up = """
import weft
from weft.models import parallel
from weft.simulate import kept
from weft.core.store import Store, task
graph = parallel.sublayer("t-nlg", "fc2", tp=8)
described = kept.RunInputs(graph, weft.system("t3-paper", gpus=8), "t3", whole=True)
assert Store().get(task.question(described)) is None"""
    assert heavy_modules_after(look_up) & {"numba", "llvmlite", "ml_dtypes"} == set()


def test_loading_a_machine_imports_no_compiler_and_no_pictures():
    loaded = heavy_modules_after("import weft; weft.gpu('t3-paper')")
    assert loaded & {"numba", "llvmlite", "altair", "vl_convert", "rich", "jinja2"} == set()
