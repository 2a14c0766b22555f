"""`weft cache` on a folder of its own; studies use it unless they are told not to."""

import os

import click
import pytest
from sweep_tasks import Echo

from weft.cli import main as cli
from weft.cli.options import store_option
from weft.core.store import Store
from weft.core.store.task import question


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def weft(*arguments):
    with pytest.raises(SystemExit) as left:
        cli.main(list(arguments))
    return left.value.code


def test_show_says_where_and_how_much(folder, capsys):
    assert weft("cache", "show") == 0
    Store().put(question(Echo(1)), {"value": 1})
    (folder / "engine-0123").mkdir()
    (folder / "engine-0123" / "code.nbc").write_bytes(b"0" * 2000)
    assert weft("cache", "show") == 0
    empty, full = capsys.readouterr().out.split(str(folder))[1:]
    assert "simulated runs" in empty
    assert [line.split()[2] for line in full.splitlines() if "simulated" in line] == ["1"]
    assert "2 kB" in full


def test_clear_removes_what_lay_longer_than_asked(folder, capsys):
    store = Store()
    for value, age_s in ((1, 0), (2, 40 * 86400)):
        asked = question(Echo(value, asked=value))
        store.put(asked, {"value": value})
        used = store.path(asked).stat().st_mtime - age_s
        os.utime(store.path(asked), (used, used))
    assert weft("cache", "clear", "--older-than", "30d") == 0
    assert store.contents().entries == 1
    (folder / "engine-0123").mkdir()
    assert weft("cache", "clear", "--engine") == 0
    assert store.contents().entries == 0
    assert not (folder / "engine-0123").exists()
    assert "removed 1 runs" in capsys.readouterr().out


def test_states_of_interrupted_runs_are_shown_and_cleared(folder, capsys):
    (folder / "checkpoints" / "01").mkdir(mode=0o700, parents=True)
    state, part = (folder / "checkpoints" / "01" / name for name in ("0123.json.gz", ".0123.json.gz.part"))
    for file in (state, part):
        file.write_bytes(b"0" * 3000)
    assert weft("cache", "show") == 0
    assert [line.split()[2:5] for line in capsys.readouterr().out.splitlines() if "interrupted runs" in line] == [
        ["1", "3", "kB"]
    ]
    assert weft("cache", "clear") == 0
    assert "removed 1 interrupted runs, 3 kB" in capsys.readouterr().out
    assert not state.exists()
    assert not part.exists()


@pytest.mark.parametrize("command", ["show", "clear"])
def test_a_cache_that_cannot_be_is_told_instead_of_shown_empty(tmp_path, monkeypatch, capsys, command):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    for place, words in (
        (blocked, "cannot be used: it is a file"),
        (blocked / "weft", "does not exist and cannot be made"),
    ):
        monkeypatch.setenv("WEFT_CACHE", str(place))
        assert weft("cache", command) == 2
        told = capsys.readouterr()
        assert told.err == f"weft: the cache '{place}' {words}; set WEFT_CACHE to a folder of yours\n"
        assert told.out == ""


def test_a_cache_that_is_not_there_yet_is_empty_and_not_made(folder, monkeypatch, capsys):
    monkeypatch.setenv("WEFT_CACHE", str(folder / "later"))
    assert weft("cache", "show") == 0
    assert "simulated runs" in capsys.readouterr().out
    assert not (folder / "later").exists()


@pytest.mark.parametrize("age", ["30", "soon", "-1d", "1 year"])
def test_an_age_without_a_unit_is_refused(folder, capsys, age):
    assert weft("cache", "clear", "--older-than", age) == 2
    assert "is no age; write hours, days or weeks" in capsys.readouterr().err


def test_no_cache_leaves_a_study_without_a_store(folder):
    @click.command()
    @store_option
    def command(store):
        return store

    assert command.main([], standalone_mode=False).folder == folder / "runs"
    assert command.main(["--no-cache"], standalone_mode=False) is None
