"""What all studies show: figures with their units, notes, files."""

import json

import pytest

from weft.cli import main as cli
from weft.cli.output import Outputs
from weft.papers import STUDIES
from weft.papers import study as find
from weft.papers.command import show_sensitivity, show_study
from weft.papers.headline import HeadlineRow
from weft.papers.headline_table import headline_table
from weft.papers.page import StudyReport
from weft.plan.tune.perturb import Row, Sensitivity

ROWS = [
    HeadlineRow("a", "a speedup", 1.2, 1.3174, "ratio"),
    HeadlineRow("b", "a change", -0.1, -0.0941, "fraction"),
    HeadlineRow("c", "a share", 0.66, 0.7, "share"),
    HeadlineRow("d", "a count", 32, 64, "CUs"),
    HeadlineRow("e", "nobody published this", None, 0.021, "fraction"),
    HeadlineRow("f", "in its range", (-0.1, 0.0), -0.04, "fraction"),
    HeadlineRow("g", "out of its range", (-0.1, 0.0), 0.016, "fraction"),
]


class Done:
    """A study that is done."""

    notes, links, elsewhere, hypothetical, summary = ("one thing",), (), "Alone", "", ("first of all",)
    title = "What was asked?"

    def __init__(self, rows=ROWS, comparable=True):
        self.rows, self.comparable = rows, comparable
        self.DECLARED = find("c3").DECLARED.model_copy(update={"against": "against nothing"})

    def tables(self):
        return []

    def watch(self, progress):
        return "seen"

    def page(self, folder, watched):
        assert watched == "seen"
        return folder / "report.html"

    def headline(self):
        return self.rows

    def report(self):
        return StudyReport(self)

    def to_dict(self):
        return {}

    def save(self, path):
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
        return path


def lines(text):
    return {line.strip()[:8].strip(): " ".join(line.split()) for line in text.splitlines()}


def test_published_figures_stand_beside_with_their_differences(capsys):
    show_study(Done(), Outputs())
    found = lines(capsys.readouterr().out)
    assert "Published figures beside Weft's, against nothing" in found.values()
    assert found["a speedu"] == "a speedup 1.20x 1.317x +0.117"
    assert found["a change"] == "a change -10% -9.4% +0.6 pp"
    assert found["a share"] == "a share 66% 70.0% +4.0 pp"
    assert found["a count"] == "a count 32 CUs 64 CUs +32"
    assert found["nobody p"] == "nobody published this +2.1%"
    assert found["in its r"] == "in its range -10% to +0% -4.0% +0.0 pp"
    assert found["out of i"] == "out of its range -10% to +0% +1.6% +1.6 pp"


def test_page_and_console_tell_every_figure_alike(capsys):
    """No row is lost where some have nothing published beside them."""
    table = headline_table(ROWS)
    assert [row[0] for row in table.rows] == [row.what for row in ROWS]
    show_study(Done(), Outputs())
    shown = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(" ".join(row).split()) in shown for row in table.cells())


def test_where_nothing_is_published_there_is_one_column(capsys):
    show_study(Done(ROWS[4:5], comparable=False), Outputs())
    told = capsys.readouterr().out
    assert "Alone, against nothing" in told
    assert "published  " not in told
    assert told.endswith("note: one thing\n")


def test_files_are_written_where_asked_and_named(tmp_path, capsys):
    show_study(Done(), Outputs(json=tmp_path / "all.json", folder=tmp_path / "out"))
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"figures: {tmp_path / 'all.json'}",
        f"figures: {tmp_path / 'out' / 'c3.json'}",
        f"report:  {tmp_path / 'out' / 'report.html'}",
    ]


def test_sensitivity_is_shown_and_written_where_asked(tmp_path, capsys):
    rows = (
        Row("as chosen", "", {"gain": 1.2, "traffic": -0.2}),
        Row("memory.latency", "150 ns", {"gain": 1.25, "traffic": -0.21}),
        Row("memory.latency", "300 ns", {"gain": 1.1, "traffic": -0.18}),
    )
    moved = Sensitivity("t3", ("one",), rows, {"gain": ".2f", "traffic": "+.0%"})
    show_sensitivity("Moved", moved, Outputs(json=tmp_path / "all.json", folder=tmp_path / "out"))
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "as chosen 1.20 -20%" in told
    assert "memory.latency 150 ns / 300 ns 1.25 / 1.10 -21% / -18%" in told
    assert told[-3:] == [
        f"figures: {tmp_path / 'all.json'}",
        f"figures: {tmp_path / 'out' / 'sensitivity.json'}",
        f"report: {tmp_path / 'out' / 'report.html'}",
    ]
    written = json.loads((tmp_path / "out" / "sensitivity.json").read_text())
    assert written["rows"][1] == {"what": "memory.latency", "setting": "150 ns", "figures": rows[1].figures}


def test_the_list_names_paper_question_and_usual_time_of_every_study(capsys):
    for arguments in ([], ["--json"]):
        with pytest.raises(SystemExit):
            cli.main(["study", "list", *arguments])
    shown, data = capsys.readouterr().out.split("[\n", 1)
    listed = json.loads(f"[{data}")
    assert [one["name"] for one in listed] == list(STUDIES)
    for one in listed:
        assert one["usual_time"].endswith(" min")
        (row,) = [line for line in shown.splitlines() if line.split()[:1] == [one["name"]]]
        assert all(one[key] in row for key in ("paper", "answers", "usual_time"))


@pytest.mark.parametrize("name", [*STUDIES, "sensitivity"])
def test_every_study_takes_what_all_take_and_shows_how(name, capsys):
    with pytest.raises(SystemExit):
        cli.main(["study", name, "--help"])
    told = capsys.readouterr().out
    wanted = ("--json", "--jobs", "--no-cache", "Example") + (() if name == "sensitivity" else ("--out",))
    assert [option for option in wanted if option not in told] == []
