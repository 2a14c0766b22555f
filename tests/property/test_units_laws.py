from hypothesis import assume, given
from hypothesis import strategies as st

from weft.core import units
from weft.core.units import Dimension

dimensions = st.sampled_from(list(Dimension))
numbers = st.floats(min_value=1e-18, max_value=1e24) | st.integers(1, 2**62).map(float)


@given(numbers, dimensions)
def test_reading_back_what_was_written_gives_the_same_number(value, dimension):
    text = units.format(value, dimension)
    assert abs(units.parse(text, dimension) - value) <= 1e-12 * value


@given(numbers, dimensions)
def test_a_negative_number_is_written_as_its_positive_with_a_minus(value, dimension):
    assert units.format(-value, dimension) == f"-{units.format(value, dimension)}"


@given(numbers, dimensions, dimensions)
def test_a_quantity_is_read_only_in_its_own_dimension(value, written, read):
    assume(written is not read)
    text = units.format(value, written)
    try:
        units.parse(text, read)
    except units.UnitError:
        return
    raise AssertionError(f"'{text}' was read as {read}")


@given(st.integers(0, 10**18))
def test_whole_femtoseconds_survive_seconds_while_a_float_can_hold_them(femtoseconds):
    assume(femtoseconds < 2**52)
    assert units.to_fs(femtoseconds / units.FS_PER_S) == femtoseconds
