"""Every kind of measurement with the function that turns its rows into subjects."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.validation.collectives import collective_subjects
from weft.validation.contentions import contention_subjects
from weft.validation.data import Kind, Rows
from weft.validation.gemms import gemm_subjects
from weft.validation.layers import layer_subjects
from weft.validation.machines import Machines
from weft.validation.overlaps import overlap_subjects
from weft.validation.problems import Problem
from weft.validation.rings import ring_subjects
from weft.validation.subjects import Subject

Reader = Callable[[Rows, Machines], tuple[list[Subject], list[Problem]]]


def _collectives(rows: Rows, machines: Machines) -> tuple[list[Subject], list[Problem]]:
    """Collectives in closed form, and those of them that the engine simulates as well."""
    subjects, problems = collective_subjects(rows, machines)
    rings = [ring for subject in subjects for ring in ring_subjects(subject)]
    return [*subjects, *rings], problems


READERS: Mapping[Kind, Reader] = {
    "gemm": gemm_subjects,
    "collective": _collectives,
    "layer": layer_subjects,
    "overlap": overlap_subjects,
    "contention": contention_subjects,
}
"""How the rows of each kind are read, checked and given a model."""
