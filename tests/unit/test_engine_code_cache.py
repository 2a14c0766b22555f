"""Where the engine's machine code is kept, and that it is not kept where it could grow stale."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from weft.engine import code

KEPT = """
from weft.engine import code, jit

@jit.entry
def twice(x):
    return 2 * x

print(code.keeps_code(), code.is_compiled(), twice(21), len(list(code.cache_root().rglob("*.code"))))
"""


def asked(folder, **variables):
    """What a fresh process says whose cache is that folder."""
    environment = {"WEFT_CACHE": str(folder), "PYTHONPATH": ":".join(sys.path), "HOME": str(folder), **variables}
    script = folder.parent / "kept.py"
    script.write_text(KEPT)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_code_is_kept_in_a_folder_of_its_own(tmp_path):
    assert asked(tmp_path / "cache") == ["True", "False", "42", "1"]
    assert [path.name[:7] for path in (tmp_path / "cache").iterdir()] == ["engine-"]


def test_where_nothing_can_be_written_no_code_is_kept_beside_the_sources(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert asked(blocked) == ["False", "False", "42", "0"]


@pytest.mark.parametrize("variable", ["WEFT_CACHE", "XDG_CACHE_HOME"])
def test_the_environment_names_the_folder(tmp_path, monkeypatch, variable):
    from weft.core.cache import cache_root

    monkeypatch.delenv("WEFT_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_root() == (tmp_path if variable == "WEFT_CACHE" else tmp_path / "weft")


def test_another_copy_of_the_sources_takes_the_code_from_the_folder_that_a_variable_names(tmp_path):
    asked(tmp_path / "made")
    (file,) = (tmp_path / "made").rglob("*.code")
    before = file.stat().st_mtime_ns
    assert asked(tmp_path / "empty", WEFT_ENGINE=str(tmp_path / "made")) == ["True", "False", "42", "0"]
    assert file.stat().st_mtime_ns == before


def test_damaged_code_in_a_given_folder_is_not_used(tmp_path):
    asked(tmp_path / "made")
    (file,) = (tmp_path / "made").rglob("*.code")
    file.write_bytes(file.read_bytes()[:-1])
    assert asked(tmp_path / "empty", WEFT_ENGINE=str(tmp_path / "made")) == ["True", "False", "42", "1"]


def test_the_name_of_the_code_does_not_depend_on_where_the_sources_lie(tmp_path):
    package = Path(code.__file__).parents[1]
    copy = shutil.copytree(package, tmp_path / "copy" / "weft", ignore=shutil.ignore_patterns("__pycache__"))
    show = "from weft.engine.code import cache_directory; print(cache_directory().name)"
    names = [
        subprocess.run([sys.executable, "-c", show], cwd=folder, capture_output=True, text=True, check=True).stdout
        for folder in (copy.parent, package.parent)
    ]
    assert names[0] == names[1]
