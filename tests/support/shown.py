"""What every answer must do: plain data, a table, a figure, files, and a view in a notebook."""

import csv
import json

from weft.view.figure import Figure


def check_shown(answer, folder):
    """Use everything that an answer offers, and look at what comes out."""
    assert json.loads(json.dumps(answer.to_dict())) == answer.to_dict()
    report = answer.report()
    assert report.sentences()[0][-1] in ".:", "the first sentence answers the question"
    assert report.title()
    assert report.tables()[0].rows
    figure = answer.plot()
    assert isinstance(figure, Figure)
    assert figure.svg().startswith("<svg")
    assert answer._repr_html_().startswith("<p>")
    assert "<table" in answer._repr_html_()
    rows = list(csv.DictReader(answer.save(folder / "a.csv").read_text().splitlines()))
    assert rows
    assert json.loads(answer.save(str(folder / "a.json")).read_text())
    assert answer.save(folder / "new" / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert [file.name for file in folder.glob("new/*")] == ["a.html"]
    assert len(str(answer)) < 10_000
    assert str(answer) == repr(answer)
