"""Where the engine's machine code is kept, and that it is not kept where it could grow stale."""

import subprocess
import sys

import pytest

KEPT = """
from numba.core.caching import FunctionCache
from weft.engine import jit

@jit.entry
def twice(x):
    return 2 * x

print(jit.keeps_code(), jit.is_compiled(), isinstance(twice._cache, FunctionCache))
"""


def asked(folder):
    """What a fresh process says whose cache is that folder."""
    environment = {"WEFT_CACHE": str(folder), "PYTHONPATH": ":".join(sys.path), "HOME": str(folder)}
    done = subprocess.run([sys.executable, "-c", KEPT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_code_is_kept_in_a_folder_of_its_own(tmp_path):
    (tmp_path / "kept.py").write_text(KEPT)
    environment = {"WEFT_CACHE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    script = [sys.executable, str(tmp_path / "kept.py")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True"]
    assert [path.name[:7] for path in tmp_path.iterdir() if path.is_dir()] == ["engine-"]


def test_where_nothing_can_be_written_no_code_is_kept_beside_the_sources(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert asked(blocked) == ["False", "False", "False"]


@pytest.mark.parametrize("variable", ["WEFT_CACHE", "XDG_CACHE_HOME"])
def test_the_environment_names_the_folder(tmp_path, monkeypatch, variable):
    from weft.engine.jit import cache_root

    monkeypatch.delenv("WEFT_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_root() == (tmp_path if variable == "WEFT_CACHE" else tmp_path / "weft")
