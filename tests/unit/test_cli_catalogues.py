import json

import pytest
from click.testing import CliRunner

from weft.cli.catalogues import hardware, models
from weft.core.errors import UnknownNameError
from weft.core.report.table import Table, number, text
from weft.view.terminal import print_table


def run(group, *arguments):
    result = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_lists_name_what_can_be_shown():
    assert "t3-paper" in run(hardware, "list")
    for name in ("gpt-3", "mega-gpt-2", "mt-nlg", "palm", "t-nlg"):
        assert name in run(models, "list")


def test_a_machine_is_shown_with_units_ranges_and_sources():
    shown = run(hardware, "show", "t3-paper", "--all")
    row = next(line for line in shown.splitlines() if "memory.timing.rcd" in line)
    for word in ("12 ns", "assumed", "12 ns to 14 ns", "GPGPU-Sim"):
        assert word in row


def test_a_machine_as_json_holds_every_value_in_base_units():
    gpu = json.loads(run(hardware, "show", "t3-paper", "--json"))
    values = {value["path"]: value for value in gpu["values"]}
    assert values["memory.bandwidth"]["value"] == 1.024e12
    assert values["memory.bandwidth"]["unit"] == "bytes/s"
    assert values["memory.bandwidth"]["text"] == "1.024 TB/s"
    assert all(value["source"] for value in values.values())


def test_a_model_is_shown_with_its_sublayers_on_each_gpu():
    shown = run(models, "show", "t-nlg")
    assert "4256" in shown
    row = next(line for line in shown.splitlines() if "fc2" in line)
    assert row.split() == ["8", "fc2", "FC-2", "(forward)", "8192", "4256", "2128", "148.4", "66.5", "MiB"]


def test_a_model_that_no_study_splits_is_shown_by_what_its_file_states():
    shown = run(models, "show", "deepseek-v3")
    assert "671.0 billion parameters, 37.6 billion of them for each token" in shown
    assert "experts_per_token" in shown
    assert "window" not in shown
    assert "Sub-layers" not in shown


def test_models_as_json_are_plain_data():
    model = json.loads(run(models, "show", "gpt-3", "--json"))
    assert model["hidden"] == 12288
    assert model["provenance"]["batch"]["kind"] == "assumed"
    assert [layer["name"] for layer in model["sublayers"]] == ["op", "fc2", "fc1", "ip"]
    listed = {entry["name"]: entry for entry in json.loads(run(models, "list", "--json"))}
    assert {"t-nlg", "llama-3-8b"} <= set(listed)
    assert listed["llama-3-8b"]["parameters"] == 8_030_261_248
    assert "t3-paper" in [entry["name"] for entry in json.loads(run(hardware, "list", "--json"))]


def test_a_narrow_terminal_gets_numbered_sources(monkeypatch):
    monkeypatch.setattr("weft.view.terminal._WIDTH_OF_FILES", 80)
    shown = run(hardware, "show", "t3-paper", "--all")
    assert "Sources" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "bytes_per_clock_per_bank" in shown


@pytest.mark.parametrize("group", [hardware, models])
def test_an_unknown_name_is_left_to_the_root_command_to_say(group):
    with pytest.raises(UnknownNameError):
        CliRunner().invoke(group, ["show", "nothing"], catch_exceptions=False)


@pytest.mark.parametrize("group", [hardware, models])
@pytest.mark.parametrize("command", ["list", "show"])
def test_every_help_has_an_example(group, command):
    assert "Example: weft " in run(group, command, "--help")


def test_a_table_that_does_not_fit_loses_no_digits(monkeypatch, capsys):
    monkeypatch.setattr("weft.view.terminal._WIDTH_OF_FILES", 20)
    print_table(Table([text("overlap"), number("total us", format_=".3f")], [["ideal-overlap", 123456.789]], "Times"))
    assert "ideal-overlap 123456.789" in capsys.readouterr().out


@pytest.fixture
def terminal(monkeypatch):
    """Sets the width of what is printed."""
    return lambda width: monkeypatch.setattr("weft.view.terminal._WIDTH_OF_FILES", width)


def test_the_list_of_machines_leaves_titles_out_where_there_is_no_room(terminal):
    terminal(80)
    lines = run(hardware, "list").splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith(" h100-sxm ")]
    assert rows == [" h100-sxm         132          989 85.5 GB   3.35 TB/s  50 MiB  18 x, 450 GB/s "]
    assert lines.count("no room for title: widen the terminal to see more") == 2
    terminal(200)
    assert "NVIDIA H100 SXM5 80 GB" in run(hardware, "list")
    assert "no room" not in run(hardware, "list")


def test_a_last_column_of_prose_that_would_be_a_few_letters_wide_is_a_table_of_its_own(terminal, capsys):
    rows = [["one of the cases", 12.5, "compute 50 %, memory 30 %, launch 20 %"]]
    columns = [text("case"), number("time", format_="{} us"), text("where it goes", prose=True)]
    terminal(50)
    print_table(Table(columns, rows, "Times"))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 50
    times, prose = out.split("where it goes")
    assert "one of the cases   12.5 us" in times
    assert "compute" not in times
    assert "one of the cases compute 50 %, memory 30 %," in prose
    terminal(100)
    print_table(Table(columns, rows, "Times"))
    assert "12.5 us   compute 50 %" in capsys.readouterr().out
