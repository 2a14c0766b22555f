import errno
import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from weft import files
from weft.errors import OutputError
from weft.files import check_out_dir, check_writable, write_atomically


def test_text_and_bytes_are_written_and_folders_made(tmp_path):
    assert write_atomically(tmp_path / "a/b/text.json", "é").read_bytes() == "é".encode()
    assert write_atomically(tmp_path / "a/data.bin", b"\x00\xff").read_bytes() == b"\x00\xff"


def test_an_existing_file_is_replaced_and_keeps_its_permissions(tmp_path):
    target = tmp_path / "t3.json"
    target.write_text("old")
    target.chmod(0o640)
    write_atomically(target, "new")
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    assert write_atomically(tmp_path / "new", "").stat().st_mode == plain.stat().st_mode


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, "through")
    reader.join()
    assert read == ["through"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("cause", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, cause):
    target = tmp_path / "t3.json"
    target.write_text("old")

    def fail(self: Path, other: Path) -> None:
        raise cause

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises((KeyboardInterrupt, OutputError)):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_checks_pass_for_what_can_be_made_and_make_nothing(tmp_path):
    assert check_writable(tmp_path / "new/t3.json") == tmp_path / "new/t3.json"
    assert check_out_dir(tmp_path / "new/t3") == tmp_path / "new/t3"
    assert check_out_dir(tmp_path) == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file_and_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"it is a folder; add a file name"):
        check_writable(tmp_path)
    with pytest.raises(OutputError, match=r"it is a file; name a folder"):
        check_out_dir(tmp_path / "file")
    with pytest.raises(OutputError, match=r"cannot write the file .*: not a directory; choose another place"):
        check_writable(tmp_path / "file/t3.json")
    with pytest.raises(OutputError, match=r"cannot write the file"):
        write_atomically(tmp_path / "file/t3.json", "")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system that nobody can write to")
def test_a_place_that_nobody_can_write_to_is_refused():
    with pytest.raises(OutputError, match=r"cannot write the file '/proc/t3.json'"):
        check_writable("/proc/t3.json")
    with pytest.raises(OutputError, match=r"cannot write to the folder '/proc/t3'"):
        check_out_dir("/proc/t3")


def _all_three(folder):
    with files.written_together():
        for name in ("a.json", "b.csv", "report.html"):
            files.write_atomically(folder / name, "after")


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_files_that_belong_together_are_written_all_or_none(tmp_path, monkeypatch, failing):
    (tmp_path / "a.json").write_text("before")
    made, calls = tempfile.mkstemp, []

    def full(*arguments, **named):
        calls.append(named)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return made(*arguments, **named)

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(OutputError, match="no space left on device"):
        _all_three(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.json": "before"}


@pytest.mark.parametrize("at", [1, 2, 3])
def test_ctrl_c_between_two_files_that_belong_together_waits_for_the_last(tmp_path, monkeypatch, at):
    moved, calls = Path.replace, []

    def interrupted(part, target):
        calls.append(target)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return moved(part, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _all_three(tmp_path)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"after"}
    assert len(list(tmp_path.iterdir())) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_files_that_belong_together_take_their_places_at_the_end(tmp_path):
    with files.written_together():
        files.write_atomically(tmp_path / "a", "once")
        with files.written_together(), files.written_whole(tmp_path / "b") as part:
            part.write_text("inner")
        files.write_atomically(tmp_path / "a", "twice")
        assert not (tmp_path / "a").exists()
        assert not (tmp_path / "b").exists()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "twice", "b": "inner"}
