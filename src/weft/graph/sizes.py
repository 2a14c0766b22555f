"""Dimensions of operators: whole numbers, or arrays of them for closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import InputError, shown

LARGEST = 2**50
"""Largest dimension of an operator: up to here whole numbers and their neighbours differ as floats."""


def check_sizes(op: object, subject: str, least: Mapping[str, int], **shown: str) -> None:
    """Check some fields of an operator, each a whole number of at least so much, or an array of such numbers.

    Arrays become arrays of floats. `subject` says what a field is, such as "{} of operator 'gelu'"; `shown` names
    fields that people call otherwise. Raises InputError for any other value, and for arrays that do not broadcast.
    """
    arrays: dict[str, tuple[int, ...]] = {}
    for name, low in least.items():
        value = getattr(op, name)
        if type(value) is not int or not low <= value <= LARGEST:
            value = _sizes(subject.format(shown.get(name, name)), value, low)
            object.__setattr__(op, name, value)
        if not isinstance(value, int):
            arrays[name] = value.shape
    if not arrays:
        return
    try:
        np.broadcast_shapes(*arrays.values())
    except ValueError:
        shapes = ", ".join(f"{name} {shape}" for name, shape in arrays.items())
        raise InputError(f"{subject.format('the dimensions')} do not fit together: {shapes}") from None


def _sizes(what: str, value: Any, low: int) -> Any:
    rule = "it must be a whole number " + ("above zero" if low == 1 else f"of at least {low}")
    try:
        sizes = np.asarray(value, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{what} is {shown(value)}; it must be at most {LARGEST}") from None
    except (TypeError, ValueError):
        raise InputError(f"{what} is {shown(value)}; {rule}") from None
    if not sizes.size:
        raise InputError(f"{what} is empty; {rule}, or an array of such numbers")
    if sizes.ndim == 0 and np.isfinite(sizes) and sizes > LARGEST:
        raise InputError(f"{what} is {shown(value)}; it must be at most {LARGEST}")
    wrong = sizes[~((sizes >= low) & (sizes == np.floor(sizes)) & np.isfinite(sizes))]
    if wrong.size or isinstance(value, bool):
        raise InputError(f"{what} is {f'{wrong.flat[0]:g}' if wrong.size and sizes.ndim else shown(value)}; {rule}")
    if np.any(sizes > LARGEST):
        raise InputError(f"{what} is {np.max(sizes):.4g}; it must be at most {LARGEST}")
    return sizes if sizes.ndim else int(sizes)


def is_one(size: object) -> bool:
    """Whether a dimension is a number, not an array of them."""
    return isinstance(size, int)


def plain(value: Any) -> Any:
    """A number computed from dimensions as a whole number; an array as it is."""
    return value if np.ndim(value) else int(value)
