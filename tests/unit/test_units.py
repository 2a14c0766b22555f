import math

import pytest

from weft.core import units
from weft.core.errors import UnitError


@pytest.mark.parametrize(
    ("text", "dimension", "number"),
    [
        ("450 GB/s", "bytes/s", 450e9),
        ("1.024TB/s", "bytes/s", 1.024e12),
        ("100 Gb/s", "bytes/s", 12.5e9),
        ("16 MiB", "bytes", 16 * 2**20),
        ("16 MB", "bytes", 16e6),
        ("143 ns", "seconds", 143e-9),
        ("2 µs", "seconds", 2e-6),
        ("1.4 GHz", "hertz", 1.4e9),
        ("80", "count", 80),
        (" 1_024 B ", "bytes", 1024),
        ("1e3 B", "bytes", 1000),
    ],
)
def test_a_quantity_is_the_correctly_rounded_number_of_its_base_unit(text, dimension, number):
    assert units.parse(text, dimension) == number


@pytest.mark.parametrize(
    ("text", "dimension", "words"),
    [
        ("450", "bytes/s", ["no unit", "bytes/s", "'450 GB/s'"]),
        ("16 MB", "seconds", ["bytes", "seconds", "'500 ns'"]),
        ("1 KB", "bytes", ["unknown unit 'KB'", "'kB' or 'KiB'"]),
        ("100 Gbps", "bytes/s", ["unknown unit 'Gbps'", "'Gb/s'"]),
        ("2 parsec", "seconds", ["unknown unit 'parsec'", "'500 ns'"]),
        ("8 B", "count", ["has a unit", "bare count"]),
        ("fast", "bytes/s", ["not a quantity", "'450 GB/s'"]),
        ("nan B", "bytes", ["not a quantity"]),
        ("1e999 s", "seconds", ["too large"]),
        ("1e999999999 s", "seconds", ["not a quantity"]),
    ],
)
def test_a_wrong_quantity_is_refused_with_both_dimensions_and_an_example(text, dimension, words):
    with pytest.raises(UnitError) as caught:
        units.parse(text, dimension)
    for word in [f"'{text}'", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (16 * 2**20, "bytes", "16 MiB"),
        (1536, "bytes", "1.5 KiB"),
        (16e6, "bytes", "16 MB"),
        (80e9, "bytes", "80 GB"),
        (512, "bytes", "512 B"),
        (1.024e12, "bytes/s", "1.024 TB/s"),
        (143e-9, "seconds", "143 ns"),
        (1e-15, "seconds", "1 fs"),
        (0, "seconds", "0 s"),
        (-3e-6, "seconds", "-3 us"),
        (1.4e9, "hertz", "1.4 GHz"),
        (5, "count", "5"),
        (math.inf, "bytes", "inf B"),
    ],
)
def test_a_number_is_shown_with_the_prefix_that_suits_it(value, dimension, text):
    assert units.format(value, dimension) == text


def test_fewer_digits_are_shown_on_request():
    assert units.format_time(1.23456e-6, digits=3) == "1.23 us"


def test_femtoseconds_round_halves_to_the_even_neighbour():
    assert units.FS_PER_S == 10**15
    assert units.to_fs(143e-9) == 143_000_000
    assert units.to_fs(1 / 2**16) == 15_258_789_062  # exactly 15258789062.5: the even neighbour
    assert units.to_fs(3 / 2**16) == 45_776_367_188  # exactly 45776367187.5
