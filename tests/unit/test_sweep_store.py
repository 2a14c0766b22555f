"""The store of runs: whole entries or none, nothing believed that is not right, and work goes on without one."""

import gzip
import json
import os

import pytest
from sweep_tasks import Echo

from weft.core.errors import OutputError
from weft.core.store import Store
from weft.core.store import fingerprint as sources
from weft.core.store.task import question
from weft.sweep.tasks import run_tasks

TASK = Echo(1.5)
ASKED = question(TASK)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "runs")
    store.put(ASKED, {"value": 1.5})
    return store


def entry(store):
    return json.loads(gzip.decompress(store.path(ASKED).read_bytes()))


def rewrite(store, **changes):
    store.path(ASKED).write_bytes(gzip.compress(json.dumps({**entry(store), **changes}).encode()))


def test_an_entry_holds_the_question_beside_the_answer(store):
    found = entry(store)
    assert (found["inputs"], found["record"], found["title"]) == ({"asked": 0}, {"value": 1.5}, "echo 1.5")
    assert store.path(ASKED).parent.name == found["key"][:2]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda s: s.path(ASKED).write_bytes(b""), "cannot be read"),
        (lambda s: s.path(ASKED).write_bytes(s.path(ASKED).read_bytes()[:40]), "cannot be read"),
        (lambda s: s.path(ASKED).write_bytes(b"no gzip at all"), "cannot be read"),
        (lambda s: s.path(ASKED).write_bytes(gzip.compress(b"[1, 2]")), "cannot be read"),
        (lambda s: s.path(ASKED).write_bytes(gzip.compress(b"\xff{")), "cannot be read"),
        (lambda s: rewrite(s, record={"value": 1.6}), "its checksum is wrong"),
        (lambda s: rewrite(s, schema=0), "its schema is 0"),
        (lambda s: rewrite(s, key="0" * 64), "it answers another question"),
    ],
)
def test_a_damaged_entry_is_named_once_made_again_and_replaced(store, capsys, damage, reason):
    damage(store)
    assert list(run_tasks([TASK], store=store)) == [(TASK, {"value": 1.5})]
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"'{store.path(ASKED)}' is damaged" in told
    assert reason in told
    assert entry(store)["record"] == {"value": 1.5}
    assert list(run_tasks([TASK], store=store))
    assert capsys.readouterr().err == ""


def test_an_answer_to_another_question_is_not_believed(store, capsys):
    other = question(Echo(1.5, asked=1))
    store.path(other).parent.mkdir(exist_ok=True)
    store.path(other).write_bytes(store.path(ASKED).read_bytes())
    assert store.get(other) is None
    assert "it answers another question" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 2])
def test_where_a_file_stands_in_the_way_work_goes_on_and_says_so_once(tmp_path, capfd, jobs):
    (tmp_path / "runs").write_text("not a folder")
    tasks = [Echo(i, asked=i) for i in range(4)]
    found = dict(run_tasks(tasks, jobs=jobs, store=Store(tmp_path / "runs")))
    assert found == {task: {"value": task.value} for task in tasks}
    told = [line for line in capfd.readouterr().err.splitlines() if "not kept" in line]
    assert len(told) == 1
    assert "cannot write the file" in told[0]
    assert (tmp_path / "runs").read_text() == "not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_no_obstacle(tmp_path, capfd):
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(0o500)
    assert len(list(run_tasks([Echo(1), Echo(2, asked=1)], store=Store(folder)))) == 2
    assert capfd.readouterr().err.count("not kept") == 1


def test_a_full_disk_is_no_obstacle(tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OutputError("cannot write the file 'x': no space left on device")

    monkeypatch.setattr("weft.core.store.records.write_atomically", full)
    assert len(list(run_tasks([Echo(1), Echo(2, asked=1)], store=Store(tmp_path)))) == 2
    assert capsys.readouterr().err.count("no space left on device") == 1


def test_a_change_of_the_sources_asks_another_question(tmp_path, monkeypatch):
    package = tmp_path / "weft"
    (package / "engine").mkdir(parents=True)
    (package / "view").mkdir()
    engine, shown, data = (package / name for name in ("engine/loop.py", "view/page.py", "engine/a.toml"))
    for file in (engine, shown, data):
        file.write_text("one = 1\n")
    monkeypatch.setattr(sources, "PACKAGE", package)

    def code():
        sources.sources.cache_clear()
        return sources.fingerprint_of.__wrapped__(sources.home(Echo))

    seen = [code()]
    for file, changes in ((shown, False), (engine, True), (data, True)):
        file.write_text("one = 2\n")
        seen.append(code())
        assert (seen[-1] != seen[-2]) == changes
    sources.sources.cache_clear()


def test_a_task_counts_what_its_module_imports_to_choose_and_nothing_that_shows():
    names = {
        path.relative_to(sources.PACKAGE).as_posix()
        for path in sources._imported_files(sources.PACKAGE / "papers" / "t3.py")
    }
    assert {"papers/t3.py", "papers/headline.py"} <= names
    assert not {name for name in names if name.startswith(("cli/", "view/", "engine/"))}


def test_entries_that_nobody_used_are_cleared_and_used_ones_stay(store):
    old = question(Echo(2, asked=2))
    store.put(old, {"value": 2})
    for path in (store.path(old), store.path(ASKED)):
        os.utime(path, (0, 0))
    assert store.contents().entries == 2
    assert store.contents().idle_s > 365 * 86400
    store.get(ASKED)
    assert store.clear(unused_s=86400).entries == 1
    assert store.get(old) is None
    assert store.get(ASKED) == {"value": 1.5}
    assert store.clear().entries == 1
    assert store.contents().bytes == 0


def test_what_a_killed_writer_left_is_cleared(store):
    part = store.path(ASKED).with_name(".half.part")
    part.write_text("half")
    assert store.contents().entries == 1
    store.clear()
    assert not part.exists()
