"""Measurements for tests: those of WEFT_DATA, or beside the checkout; where there are none, the test is skipped."""

from pathlib import Path

import pytest

from weft.core.errors import InputError
from weft.core.files import data_folder


def measurements(name: str = "") -> Path:
    """The folder of measurements, or a file in it; skips the test without it."""
    try:
        found = data_folder() / name
    except InputError as absent:
        pytest.skip(str(absent))
    if not found.exists():
        pytest.skip(f"{found} is absent: put the measurements there, or set WEFT_DATA to their folder")
    return found
