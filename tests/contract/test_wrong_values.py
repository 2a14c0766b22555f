"""Contract of every dataclass that users fill in: a wrong value of any field is refused by the class itself.

Rules that only a command checks do not hold in Python, in a sweep, or for what a file says.
"""

import math
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from hostile import OBJECTS

import weft
from weft.core.answer import Answer
from weft.core.errors import WeftError
from weft.core.fields import _described_field
from weft.graph import KINDS, ExecutionPlanKernel, MoEExchange, NearMemoryRing, TiledGemm, TrackedMoEExchange

NEGATIVE = {
    ("Send", "offset"),
    ("View", "axis"),
    ("Joined", "axis"),
    ("Convolution", "padding_width"),
    ("Constant", "value"),
}
"""Fields whose values may be below zero."""
FREE = {
    ("BenchmarkProtocol", "rotation"): (math.inf,),  # B always comes from memory
    ("BenchmarkProtocol", "network"): ("x",),
    ("Attention", "causal"): (True,),
    ("Constant", "value"): (math.inf, True),
}
"""What a field may be although others of its type may not."""
WRONG = {
    str: (3, None, b"x", 1.5, ["x"], object()),
    bool: ("false", "no", 1.5, None, 7, [True]),
    int: (-7, 1.5, "many", math.nan, True, b"8", object(), 10**40),
    float: (math.nan, -1.0, "x", None, object(), -math.inf),
}
TYPO = ("typo", 3, b"x", ["x"])


def wrong_values(sample):
    """Every field of an object of one of the plain types, with the values that it must refuse."""
    owner = type(sample).__name__
    for field in fields(sample):
        one = _described_field(type(sample), field)
        kinds = [kind for kind in one.kinds if kind in WRONG]
        if one.choices or field.name in ("dtype", "kernel", "protocol", "phase"):
            values = TYPO
        elif len(one.kinds) == 1 and kinds:
            values = WRONG[kinds[0]]
        elif str(one.kinds[0]).startswith("tuple"):
            values = (5, "x", (object(),)) if getattr(sample, field.name) is not None else (5,)
        else:
            continue
        for value in values:
            negative = isinstance(value, int | float) and value < 0 and (owner, field.name) in NEGATIVE
            free = any(value is each for each in FREE.get((owner, field.name), ()))
            if not (negative or free or (value is None and one.optional)):
                yield field.name, value


@pytest.mark.parametrize("sample", OBJECTS, ids=lambda sample: f"{type(sample).__name__}-{getattr(sample, 'name', '')}")
def test_a_wrong_value_of_a_field_is_refused_by_the_class(sample):
    accepted = []
    for name, value in wrong_values(sample):
        try:
            replace(sample, **{name: value})
        except WeftError:
            continue
        except Exception as error:  # noqa: BLE001 - Python's own errors are what is looked for
            accepted.append((name, value, error))
        else:
            accepted.append((name, value, "accepted"))
    assert not accepted


def test_every_class_that_users_fill_in_is_tried():
    public = [getattr(weft, name) for name in weft.__all__]
    filled = {one for one in public if isinstance(one, type) and is_dataclass(one) and not issubclass(one, Answer)}
    tried = {type(sample) for sample in OBJECTS}
    answers = {weft.Comparison, weft.Contrast, weft.ExecutionPlan, weft.Timeline}
    assert filled | set(KINDS.values()) <= tried | answers


@pytest.mark.parametrize("kernel", [TiledGemm, ExecutionPlanKernel, MoEExchange, TrackedMoEExchange, NearMemoryRing])
@pytest.mark.parametrize("value", [np.array([1, 2]), "x", 5, weft.Routing], ids=str)
def test_an_object_of_a_kernel_is_one(kernel, value):
    with pytest.raises(WeftError, match=r"^(tiling|plan|routing|gemm) is "):
        kernel(value)
