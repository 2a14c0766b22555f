"""Progress where nobody looks on: few lines, and none that says nothing."""

import pytest

from weft.cli import progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_file_gets_a_line_at_the_beginning_at_the_end_and_now_and_then(clock, capsys):
    with progress.progress_bar("study") as told:
        for done in range(101):
            clock[0] = done * 0.3
            told(done, 100, f"run {done}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "study: 0 of 100, run 0"
    assert lines[-1] == "study: 100 of 100, run 100"
    assert len(lines) == 4


def test_no_steps_are_no_line_and_parts_of_one_work_do_not_begin_anew(clock, capsys):
    with progress.progress_bar("tuning") as told:
        for total in (3, 0, 2):
            for done in range(total + 1):
                told(done, total, "the same")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"tuning: {step}, the same" for step in ("0 of 3", "3 of 3", "2 of 2")]


def test_the_time_left_follows_the_finished_share_of_the_work(clock, capsys):
    with progress.progress_bar("study") as told:
        told(0, 4, "starting")
        for done, (seconds, share) in enumerate(((60, 0.6), (80, 0.8), (90, 0.9)), 1):
            clock[0] = seconds
            told.expect(share)
            told(done, 4, "next")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines[1:]] == ["about 40 s left", "about 20 s left", "about 10 s left"]
