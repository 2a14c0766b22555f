"""One table, four ways to write it: raw values in files, formatted ones for people."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from weft.core.report.table import Shown, Table, csv_text, key_of, microseconds, number, text, times_faster
from weft.view import terminal
from weft.view.page import page_text
from weft.view.terminal import print_table

TABLE = Table(
    [text("name"), microseconds("time", "time"), times_faster("speedup", format_="{:.2f}×"), number("count")],
    [["<script>alert(1)</script>", 1234.56, 1.5, 7], ["b, c", np.float64(0.25), None, Shown(3, "three")]],
    "Times of <two>",
)


def test_people_read_formatted_values_and_files_hold_raw_ones() -> None:
    assert TABLE.heads == ["name", "time [µs]", "speedup", "count"]
    assert TABLE.cells() == [
        ["<script>alert(1)</script>", "1,234.6", "1.50×", "7"],
        ["b, c", "0.2", "–", "three"],
    ]
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert rows[0]["time_us"] == "1234.56"
    assert rows[1] == {"name": "b, c", "time_us": "0.25", "speedup": "", "count": "3"}
    assert json.loads(json.dumps(TABLE.records()))[1] == {"name": "b, c", "time_us": 0.25, "speedup": None, "count": 3}


@pytest.mark.parametrize(
    ("format_", "value", "shown"),
    [(".1%", -0.0001, "0.0%"), ("{:.2f}×", -0.001, "0.00×"), (".1%", -0.001, "-0.1%"), ("+.1%", 0.0, "+0.0%")],
)
def test_what_rounds_to_zero_has_no_minus_sign(format_: str, value: float, shown: str) -> None:
    assert number("x", format_=format_).text(value) == shown


def test_a_column_can_be_left_out_by_its_key() -> None:
    assert TABLE.without(["speedup", "count"]).cells()[1] == ["b, c", "0.2"]


def test_keys_are_words_that_every_program_takes() -> None:
    assert key_of("time [µs], 95 % low") == "time_us_95_percent_low"


def test_rows_of_unlike_records_have_every_column() -> None:
    assert csv_text([{"a": 1}, {"b": 2}]) == "a,b\n1,\n,2\n"


def test_a_terminal_shows_signs_that_every_terminal_knows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TABLE)
    out = capsys.readouterr().out
    assert "Times of <two>" in out
    assert "time [us]" in out
    assert "1.50x" in out


def test_a_narrow_terminal_cuts_no_digits_off(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(terminal, "_WIDTH_OF_FILES", 30)
    heads = [text("name"), *(number(f"column{at}", "latency, mean", "ns") for at in range(3))]
    print_table(Table(heads, [["loads of kernels", 123456, 234567, 345678]], "Latencies"))
    out = capsys.readouterr().out
    assert all(whole in out for whole in ("kernels", "123,456", "234,567", "345,678", "latency, mean [ns]"))


def test_a_page_sorts_by_raw_values_and_keeps_markup_as_text() -> None:
    page = page_text("A <page>", "told", [TABLE])
    assert ">&lt;script&gt;alert(1)&lt;/script&gt;</td>" in page
    assert '<td class="n" data-v="1234.56">1,234.6</td>' in page
    assert '<td class="n" data-v="">–</td>' in page
    assert "A &lt;page&gt;" in page
    assert "vegaEmbed" not in page.split("// -- files")[0], "a page without figures does without their script"
