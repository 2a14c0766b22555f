"""Laws of what sweeps keep: records come back exactly, and equal content is one question."""

import json
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as some
from sweep_tasks import Echo

from weft.core.store import Store
from weft.core.store.task import question

plain = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(value=plain, asked=plain)
def test_a_record_comes_back_exactly(value, asked):
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        posed = question(Echo(value, asked))
        store.put(posed, {"value": value})
        again = store.get(posed)
    # As texts: 1 and 1.0 are equal in Python, but are not the same record.
    assert json.dumps(again) == json.dumps({"value": value})


@settings(deadline=None)
@given(one=plain, two=plain)
def test_two_inputs_are_one_question_just_if_their_content_is_equal(one, two):
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (question(Echo(0, one)).key == question(Echo(0, two)).key) == same
    if isinstance(one, dict):
        assert question(Echo(0, one)) == question(Echo(0, dict(reversed(one.items()))))
