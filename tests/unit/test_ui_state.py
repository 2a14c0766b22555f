"""The state of a page: the query of its address, the values of its form and the command line say the same."""

import shlex

import pytest

from weft.core.errors import InputError, UnknownNameError
from weft.ui.state import (
    FILE,
    PIN,
    TABS,
    arguments,
    fields_of,
    find_command,
    pack_file,
    params_of,
    parse_state,
    show_command,
    unpack_file,
    write_query,
)


@pytest.mark.parametrize("tab", TABS)
def test_the_query_of_a_state_gives_the_state_again(tab):
    state = parse_state(tab, TABS[tab].start)
    assert parse_state(tab, write_query(state)) == state


@pytest.mark.parametrize("tab", TABS)
def test_the_command_of_a_first_visit_is_one_that_the_command_line_takes(tab):
    of = TABS[tab]
    words = arguments(of.command, parse_state(tab, of.start))
    assert shlex.split(show_command(words)) == ["weft", *words]
    find_command(of.command)[0].make_context("weft", words[len(of.command) :]).close()


@pytest.mark.parametrize("tab", TABS)
def test_what_a_tab_shows_first_are_options_of_its_commands(tab):
    known = {key for command in TABS[tab].commands for key in params_of(command)}
    assert set(TABS[tab].front) <= known


@pytest.mark.parametrize("tab", TABS)
def test_every_option_of_the_command_stands_once_in_the_form(tab):
    front, more = fields_of(tab, {})
    keys = [one.key for one in (*front, *more)]
    added = {word.lstrip("-") for ask in TABS[tab].asks for word in ask.added}
    assert len(keys) == len(set(keys))
    assert set(params_of(TABS[tab].command)) - added <= set(keys)


def test_options_that_write_or_read_files_are_no_fields():
    for tab in TABS:
        front, more = fields_of(tab, {})
        keys = {one.key for one in (*front, *more)}
        assert keys.isdisjoint({"json", "csv", "out", "launch", "trace", "against"})


def test_a_command_has_the_values_in_the_order_of_its_options():
    state = parse_state("train", "batch=64&tp=8&system=64xa100&model=gpt-3&set=link.bandwidth%3D600+GB/s")
    assert show_command(arguments(("step",), state)) == (
        "weft step gpt-3 --system 64xa100 --tp 8 --batch 64 --set 'link.bandwidth=600 GB/s'"
    )


@pytest.mark.parametrize(("given", "words"), [("yes", ["--sp"]), ("no", ["--no-sp"])])
def test_a_flag_is_stated_both_ways(given, words):
    assert arguments(("step",), {"sp": (given,)}) == ["step", *words]


def test_a_flag_that_is_neither_yes_nor_no_is_refused():
    with pytest.raises(InputError, match="sp is 'maybe'; give yes or no"):
        arguments(("step",), {"sp": ("maybe",)})


def test_an_option_given_twice_is_refused():
    with pytest.raises(InputError, match="tp is given 2 times, 4 and 8"):
        arguments(("step",), parse_state("train", "tp=4&tp=8"))


def test_empty_values_are_not_stated():
    assert parse_state("train", "tp=&pp=4&dp=+") == {"pp": ("4",)}


def test_a_key_that_no_command_of_the_tab_has_names_its_neighbour():
    with pytest.raises(UnknownNameError, match="micro-batch"):
        parse_state("train", "micro-bach=2")


@pytest.mark.parametrize(
    "value",
    ["/etc/passwd", "../secret.toml", "~/x.json", "mine.py:Mine", "tp=/tmp/mine.py:Mine", "file:/etc/passwd", "C:\\x"],
)
def test_a_value_that_names_a_place_or_code_of_this_computer_is_refused(value):
    with pytest.raises(InputError, match="no paths and no code"):
        arguments(("step",), {"overlap": (value,)})


def test_units_with_a_slash_are_no_places():
    value = "link.bandwidth=600 GB/s"
    assert arguments(("step",), {"set": (value,)}) == ["step", "--set", value]


@pytest.mark.parametrize("value", ["--json=x", "-h", "--"])
def test_a_value_cannot_add_an_option(value):
    with pytest.raises(InputError, match="does not begin with a dash"):
        arguments(("step",), {"model": (value,)})
    assert arguments(("step",), {"recompute": (value,)}) == ["step", f"--recompute={value}"]


def test_a_file_travels_in_the_address():
    text = '{"hidden_size": 4096, "name": "π"}'
    assert unpack_file(pack_file("config.json", text)) == ("config.json", text)
    state = parse_state("train", write_query({FILE: (pack_file("config.json", text),), PIN: ("tp=8",)}))
    assert unpack_file(state[FILE][0])[1] == text


@pytest.mark.parametrize("name", ["mine.py", "a/b.json", "../b.json", "<img src=x>.json", ".json", "x" * 90 + ".json"])
def test_a_file_with_another_name_is_refused(name):
    with pytest.raises(InputError, match="is no file that the page takes"):
        pack_file(name, "{}")


def test_a_file_that_unpacks_to_more_than_its_limit_is_refused():
    import base64
    import zlib

    bomb = base64.urlsafe_b64encode(zlib.compress(b"0" * 10_000_000, 9)).decode()
    with pytest.raises(InputError, match="at most 200,000"):
        unpack_file(f"config.json:{bomb}")


@pytest.mark.parametrize("packed", ["%%%", "AAAA", ""])
def test_a_damaged_file_is_refused(packed):
    with pytest.raises(InputError, match="damaged copy"):
        unpack_file(f"config.json:{packed}")


def test_a_number_has_a_slider_over_its_range():
    front, _ = fields_of("train", {"tp": ("8",)})
    by_key = {one.key: one for one in front}
    assert (by_key["tp"].kind, by_key["tp"].values, by_key["tp"].is_doubling) == ("number", ("8",), True)
    assert (by_key["zero"].low, by_key["zero"].high, by_key["zero"].is_doubling) == (0, 3, False)


def test_a_field_has_help_and_default_of_its_option():
    front, _ = fields_of("train", {})
    field = next(one for one in front if one.key == "pp")
    assert (field.help, field.default) == ("Pipeline parallelism: stages.", "1")
