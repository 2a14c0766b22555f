"""Block formats: the bits that values become, by worked examples, and the error bound of each."""

import numpy as np
import pytest

from weft.core.errors import InputError
from weft.kernels.formats import FORMATS

BOUNDS = {"mx9": 2**-7, "mx6": 2**-4, "mx4": 2**-2}
"""Largest relative error of a block's largest value: 0.78, 6.25 and 25 %."""


def encode(values, name, axis=-1):
    return FORMATS[name].encode(values, axis)


def block(*values, size=16):
    return [*values, *[0.0] * (size - len(values))]


def test_sixteen_ones_are_exact():
    found = encode([1.0] * 16, "mx9")
    assert found.fields["exponent"].tolist() == [[127]]
    assert found.fields["shift"].tolist() == [[0] * 8]
    assert found.fields["element"].tolist() == [[64] * 16]


def test_a_value_just_below_the_next_power_is_cut_and_the_exponent_not_raised():
    found = encode(block(1.9999), "mx9")
    assert found.fields["element"][0, 0] == 127
    assert found.decode()[0] == np.float32(127 / 64)


def test_a_pair_of_smaller_values_halves_its_scale_once():
    found = encode(block(1.0, 1.0, 0.3, 0.2, 2**-20, 2**-20), "mx9")
    assert found.fields["shift"].tolist() == [[0, 1, 1, 1, 1, 1, 1, 1]]
    assert found.fields["element"][0, 2:6].tolist() == [38, 26, 0, 0]


def test_ties_round_to_even():
    assert encode(block(1.0, 1 + 1 / 128, 1 + 3 / 128), "mx9").fields["element"][0, 1:3].tolist() == [64, 66]


@pytest.mark.parametrize(
    ("name", "bits"), [("mx9", 9), ("mx6", 6), ("mx4", 4), ("mxfp8", 8.25), ("mxfp4", 4.25), ("nvfp4", 4.5)]
)
def test_bits_of_a_value_with_its_share_of_the_scales(name, bits):
    assert FORMATS[name].bits == bits
    assert encode(np.ones((64, 32)), name).bytes == 64 * 32 * bits / 8


@pytest.mark.parametrize("name", BOUNDS)
def test_the_largest_value_of_a_block_is_off_by_at_most_its_bound_and_comes_near_it(name):
    values = np.random.default_rng(0).normal(size=(20_000, 16))
    top = np.abs(values).argmax(axis=-1)[:, None]
    own, read = (np.take_along_axis(one, top, -1) for one in (values, encode(values, name).decode()))
    worst = np.abs(read / own - 1).max()
    assert 0.95 * BOUNDS[name] < worst <= BOUNDS[name]


def test_a_tensor_and_its_transpose_have_two_encodings():
    values = np.random.default_rng(1).normal(size=(32, 32)) * np.logspace(0, 4, 32)
    rows, columns = (encode(values, "mx6", axis) for axis in (1, 0))
    assert np.array_equal(columns.decode(), encode(values.T, "mx6").decode().T)
    assert not np.array_equal(rows.decode(), columns.decode())


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_and_powers_of_two_survive(name):
    size = FORMATS[name].block
    assert not encode(np.zeros(size), name).decode().any()
    assert encode(np.full(size, -0.25), name).decode().tolist() == [-0.25] * size


@pytest.mark.parametrize("name", FORMATS)
def test_the_smallest_and_largest_floats_stay_finite(name):
    limits = np.finfo(np.float32)
    values = np.resize([limits.max, -limits.max, limits.tiny, limits.smallest_subnormal], FORMATS[name].block)
    assert np.isfinite(encode(values, name).decode()).all()


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_that_do_not_divide_are_refused_with_the_padding(name):
    with pytest.raises(InputError, match=f"blocks of {FORMATS[name].block}; pad it to {2 * FORMATS[name].block}"):
        encode(np.ones(FORMATS[name].block + 1), name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_no_scale_holds_are_refused(bad):
    with pytest.raises(InputError, match="1 of 16 values are NaN or infinite"):
        encode(block(bad), "mx9")
