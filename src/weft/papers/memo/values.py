"""What every group of rows shares: values by row, and what the study's file declares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.papers.headline import read_declaration

Values = Mapping[str, float]
"""Weft's values of a section's rows, in the units that the study's file declares."""
DECLARED = read_declaration(str(Path(__file__).with_name("study.py")))


def case(name: str) -> Any:
    """Return what the study's file declares of a case."""
    return DECLARED.cases[name]
