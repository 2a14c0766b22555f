import errno
import gzip
import io
import json
import math
import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from weft.core import files
from weft.core.errors import ConfigError, InputError, OutputError
from weft.core.files import check_out_dir, check_writable, write_atomically


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_signal_between_two_files_that_belong_together_waits_for_the_last(tmp_path, monkeypatch, at, number, heard):
    moved, calls = Path.replace, []

    def interrupted(part, target):
        calls.append(target)
        if len(calls) == at:
            signal.raise_signal(number)
        return moved(part, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _all_three(tmp_path)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"after"}
    assert len(list(tmp_path.iterdir())) == 3
    assert signal.getsignal(number) is signal.default_int_handler


def test_files_that_belong_together_take_their_places_at_the_end(tmp_path):
    with files.written_together():
        files.write_atomically(tmp_path / "a", "once")
        with files.written_together(), files.written_whole(tmp_path / "b") as part:
            part.write_text("inner")
        files.write_atomically(tmp_path / "a", "twice")
        assert not (tmp_path / "a").exists()
        assert not (tmp_path / "b").exists()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "twice", "b": "inner"}


DEEP = files.DEEPEST + 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nests more than 100 levels"),
        ("[" * DEEP + "]" * DEEP, "nests more than 100 levels"),
        ('{"a":' * DEEP + "1" + "}" * DEEP, "nests more than 100 levels"),
        ("9" * 5000, "thousands of digits"),
        ("[Infinity]", "the number inf"),
        ('{"a": NaN}', "the number nan"),
        ("1e400", "the number inf"),
        ('"\\ud83d"', "half of a character"),
        ('{"\\uD83d": 1}', "half of a character"),
        ("{", "Expecting"),
    ],
)
def test_json_that_no_reader_can_use_is_refused_in_words(text, why):
    with pytest.raises(ValueError, match=why):
        files.parse_json(text)


def test_json_within_the_limits_is_what_pythons_reader_says():
    text = '{"a": [1, 2.5, "\\ud83e\\udd8a", null, {"b": []}]}'
    assert files.parse_json(text) == files.parse_json(text.encode()) == json.loads(text)
    assert math.isnan(files.parse_json("NaN", any_number=True))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" + ".".join("a" * 5000) + "]\n", "nests more than 100 levels"),
        ("[" + ".".join("a" * 500) + "]\n", "nests more than 100 levels"),
        (".".join("a" * 500_000) + " = 1\n", "nests more than 100 levels"),
        ("x = {" + ".".join("a" * 500_000) + " = 1}\n", "nests more than 100 levels"),
        ("a = " + "[" * 5000 + "]" * 5000, "nests more than 100 levels"),
        ("a = " + "9" * 5000, "thousands of digits"),
        ("a = ", "Invalid value"),
    ],
)
def test_toml_that_no_reader_can_use_is_refused_in_words(text, why):
    with pytest.raises(ValueError, match=why):
        files.parse_toml(text)


@pytest.mark.parametrize("packed", [False, True])
def test_text_is_read_packed_or_not(tmp_path, packed):
    file = tmp_path / "a.csv"
    content = "\ufeffé".encode()
    file.write_bytes(gzip.compress(content) if packed else content)
    assert files.read_text(file) == "é"


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path):
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(bytes(3 << 20)))
    with pytest.raises(InputError, match=r"unpacked, is larger than 2 MiB"):
        files.read_text(file, 2 << 20)
    with pytest.raises(InputError, match=r"unpacked, is larger than 256 KiB"):
        files.read_text(file, 256 << 10)
    file.write_bytes(gzip.compress(b"1,2\n")[:-3])
    with pytest.raises(ConfigError, match="it is cut off"):
        files.read_text(file)


def test_a_pipe_is_read_as_a_file_whatever_its_name_ends_in(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SILENCE_S", 0.05)
    os.mkfifo(tmp_path / "f.csv.gz")
    with pytest.raises(InputError, match=r"nothing came out of the pipe|is no text"):
        files.read_text(tmp_path / "f.csv.gz")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_a_stored_file_is_a_regular_file(tmp_path, kind):
    place = tmp_path / "stored"
    if kind == "link":
        (tmp_path / "other").write_text("1")
        place.symlink_to(tmp_path / "other")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place = Path("/dev/zero")
    with pytest.raises(InputError, match=r"is a link|is no file"):
        files.read_stored(place)


def test_a_stored_file_that_others_may_write_is_not_trusted(tmp_path):
    file = write_atomically(tmp_path / "state", b"1", private=True)
    assert files.read_stored(file, own=True) == b"1"
    file.chmod(0o666)
    assert files.read_stored(file) == b"1"
    with pytest.raises(InputError, match="others may write"):
        files.read_stored(file, own=True)


def test_what_is_private_replaces_a_link_instead_of_what_it_points_to(tmp_path):
    (tmp_path / "others").write_text("theirs")
    (tmp_path / "link").symlink_to(tmp_path / "others")
    write_atomically(tmp_path / "link", "mine", private=True)
    assert (tmp_path / "others").read_text() == "theirs"
    assert not (tmp_path / "link").is_symlink()


def test_json_holds_null_where_a_number_is_not_finite(tmp_path):
    file = files.write_json(tmp_path / "a.json", {"a": [math.inf, 1.5], "b": {"c": math.nan, "d": -math.inf}})
    assert json.loads(file.read_text()) == {"a": [None, 1.5], "b": {"c": None, "d": None}}


def test_csv_cells_that_a_spreadsheet_would_compute_are_text():
    out = io.StringIO()
    row = {"=name": "=HYPERLINK(1)", "b": "@x", "c": "-1.5", "d": -1.5, "e": "+cmd|x", "f": "plain", "g": None}
    files.write_csv(out, [row], list(row))
    assert out.getvalue() == "'=name,b,c,d,e,f,g\n'=HYPERLINK(1),'@x,-1.5,-1.5,'+cmd|x,plain,\n"


@pytest.mark.parametrize("text", ["a,b\n" + "1" * 200_000 + ",2\n", "a,a\n1,2\n"])
def test_csv_that_no_reader_can_use_is_refused_in_words(text):
    with pytest.raises(ConfigError, match=r"is no CSV|is there twice"):
        list(files.read_records(text, "x.csv"))


def test_rows_of_csv_have_the_names_of_the_first_line():
    assert list(files.read_records("a,b\n1,2\n\n3\n", "x.csv")) == [{"a": "1", "b": "2"}, {"a": "3", "b": ""}]


def test_a_file_that_is_called_packed_and_is_not_is_refused(tmp_path):
    (tmp_path / "a.csv.gz").write_text("1,2")
    with pytest.raises(ConfigError, match=r"not packed by gzip; pack it again"):
        files.read_text(tmp_path / "a.csv.gz")


def test_half_a_character_is_replaced_in_json_and_text(tmp_path):
    text = files.to_json({"half": "a\udcff", "whole": "\U0001f98a", "escaped": "\\ud83d"})
    assert json.loads(text) == {"half": "a\ufffd", "whole": "\U0001f98a", "escaped": "\\ud83d"}
    assert write_atomically(tmp_path / "text", "a\udcff").read_text() == "a?"
