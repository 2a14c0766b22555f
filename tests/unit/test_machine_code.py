"""Closed forms as machine code: what they take, and that a cached one is loaded as data, without numba."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from weft.estimate.machine_code import machine_code


class Pair(NamedTuple):
    few: object
    factor: float


def total(rows: object, pair: object, skip: int, twice: bool) -> float:
    found = 0.0
    for i in range(skip, len(rows)):
        for j in range(rows.shape[1]):
            found += rows[i, j] * pair.factor
    return scaled(found + pair.few[0], twice)


def scaled(value: float, twice: bool) -> float:
    return 2 * value if twice else value


def ends(rows: object, low: float) -> tuple[float, float, float]:
    return low, rows[0, 0], rows[-1, -1]


def is_high(rows: object, low: float) -> bool:
    return rows[0, 0] > low


def fill(rows: object, value: float) -> None:
    for i in range(len(rows)):
        rows[i, 0] = value


ROWS = np.arange(12.0).reshape(4, 3)
CODE = machine_code(globals(), ("total", "ends", "is_high", "fill"))


@pytest.mark.parametrize("rows", [ROWS, ROWS[::2], ROWS.T, np.asfortranarray(ROWS), ROWS[1:, 1:]], ids=str)
@pytest.mark.parametrize("number", [int, np.int64])
def test_arrays_of_any_layout_named_tuples_and_numbers_are_taken(rows, number):
    asked = rows, Pair(np.array([7]), 0.5), number(1), True
    assert CODE["total"](*asked) == total(*asked)
    assert CODE["total"](*asked[:3], np.False_) == total(*asked[:3], False)


def test_one_number_three_numbers_a_truth_value_or_nothing_is_returned():
    assert CODE["ends"](ROWS, np.float64(-1)) == (-1.0, 0.0, 11.0)
    assert [CODE["is_high"](ROWS, low) for low in (-1.0, 0.0)] == [True, False]
    rows = ROWS.copy()
    assert CODE["fill"](rows, 5.0) is None
    assert rows[:, 0].tolist() == [5.0] * 4
    assert rows[:, 1:].tolist() == ROWS[:, 1:].tolist()


@pytest.mark.parametrize("wrong", [None, "3", [1.0]])
def test_what_machine_code_cannot_take_is_refused(wrong):
    with pytest.raises(TypeError, match="machine code takes no"):
        CODE["fill"](ROWS, wrong)


def test_code_for_other_types_of_arguments_is_other_code():
    whole, parts = np.arange(6).reshape(2, 3), np.arange(6.0).reshape(2, 3) / 4
    asked = Pair(np.array([7.0]), 1.0), 0, False
    assert [CODE["total"](rows, *asked) for rows in (whole, parts, whole)] == [22.0, 10.75, 22.0]


def test_a_function_that_would_not_return_what_it_says_is_refused():
    with pytest.raises(TypeError, match=r"test_machine_code.ends returns Tuple\(float64, int64, int64\)"):
        CODE["ends"](np.arange(6).reshape(2, 3), 0.0)


SCRIPT = """
import sys
import numpy as np
from weft.step.pipeline import many

ends = np.empty((1, 2))
many.compile_clock()(0, 2, 1, 4, np.ones((1, 2)), np.ones((1, 2)), np.zeros(1), np.zeros(1), ends, np.empty(12))
print(ends.tolist(), "numba" in sys.modules)
"""
COMPILED, LOADED = "[[10.0, 9.0]] True", "[[10.0, 9.0]] False"


@pytest.fixture
def cached(tmp_path):
    """A cache that holds one compiled function, its file, and a fresh process that calls the function."""

    def called():
        environment = {"WEFT_CACHE": str(tmp_path / "cache"), "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
        told = [sys.executable, "-W", "error", "-c", SCRIPT]
        done = subprocess.run(told, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip(), done.stderr

    assert called() == (COMPILED, "")
    (file,) = (tmp_path / "cache").rglob("*.code")
    return file, called


def test_cached_code_is_loaded_without_numba(cached):
    _, called = cached
    assert called() == (LOADED, "")


@pytest.mark.parametrize("harm", [lambda whole: whole[:-1], lambda whole: b"", lambda whole: b"x" * 99])
def test_damaged_code_is_reported_and_compiled_again(cached, harm):
    file, called = cached
    file.write_bytes(harm(file.read_bytes()))
    shown, told = called()
    assert shown == COMPILED
    assert f"is damaged: {file.name} is not what was written; it is compiled again" in told
    assert called() == (LOADED, "")


def test_a_link_to_a_file_that_others_may_write_is_not_loaded(cached, tmp_path):
    file, called = cached
    target = tmp_path / "elsewhere"
    file.rename(target)
    target.chmod(0o666)
    file.symlink_to(target)
    assert called()[0] == COMPILED


def test_a_folder_that_takes_no_files_still_has_its_code_loaded(cached):
    file, called = cached
    file.parent.chmod(0o500)
    assert called() == (LOADED, "")
    file.parent.chmod(0o700)
