"""Contract of every public function: a wrong type is answered by Weft's sentence, never by Python's own error."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hostile
import pytest

import weft
from weft.core.arguments import check_arguments
from weft.core.errors import InputError, WeftError

WRONG = (1, "x", [], None, float("nan"), object(), {}, True, -1, b"x", [[8]], lambda: 1)
FUNCTIONS = sorted(
    name
    for name in weft.__all__
    if name not in ("capture", "capturing")  # take models of PyTorch
    and callable(getattr(weft, name))
    and not inspect.isclass(getattr(weft, name))
)


def required(function):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one for one in parameters if one.default is one.empty and one.kind not in kinds]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if required(getattr(weft, name))])
def test_a_call_with_wrong_types_answers_or_says_what_it_takes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = getattr(weft, name)
    refused = []
    for value in WRONG:
        named = {one.name: value for one in required(function) if one.kind is one.KEYWORD_ONLY}
        try:
            function(*(value for one in required(function) if one.kind is not one.KEYWORD_ONLY), **named)
        except WeftError as error:
            refused.append(str(error))
    assert refused
    assert not [text for text in refused if not text or "object at 0x" in text]


@pytest.fixture
def folder(tmp_path):
    with hostile.work_folder(tmp_path):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("value", [3, "x", [], None, float("nan"), object()], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "name", sorted({*hostile.CALLS} - {"advise", "balance_loops", "calibrate", "plan", "tune", "validate"})
)
def test_one_wrong_argument_among_right_ones_ends_in_an_answer_or_a_sentence(name, value, folder):
    """But for functions that search or simulate for seconds, whose arguments are checked as those of the others are."""
    function = getattr(weft, name)
    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            given = {**hostile.CALLS[name], one.name: value}
            assert hostile.tried(hostile.Try(name, lambda given=given: function(**given), one.name, 60)) is None


@pytest.mark.parametrize("stated", [{"overlap": 0}, {"layers": False}, {"layers": [1.5]}, {"dtype": None}])
def test_a_plan_of_wrong_types_is_refused(stated):
    with pytest.raises(WeftError, match=f"^{next(iter(stated))} is "):
        weft.TrainingPlan(pp=2, **stated)


@pytest.mark.parametrize("stated", [{"tp": "8"}, {"pp": 0.5}, {"overlap": 5}, {"overlap": "flux"}])
def test_a_scaling_of_wrong_types_is_refused(stated):
    with pytest.raises(WeftError, match=next(iter(stated))):
        weft.scale("llama-3-8b", "8xh100", compute=(1, 2), **stated)


@pytest.mark.parametrize(("stages", "micro_batches"), [(10**40, 2), (-1, 2), ("x", 2), (2, None), (100_000, 2)])
def test_a_schedule_of_no_stages_or_too_many_is_refused(stages, micro_batches):
    with pytest.raises(WeftError, match=r"devices|micro.batches|^stages is"):
        weft.find_schedule(stages, micro_batches, "1 ms", "1 ms", "1 ms")


def test_a_wrong_type_is_named_with_what_the_argument_takes():
    with pytest.raises(WeftError, match=r"^half_width is '1 us'; it takes a number$"):
        weft.sample("log.csv", half_width="1 us")
    with pytest.raises(WeftError, match=r"^gemms is b'x'; it takes text, a path or a list$"):
        weft.tune(b"x", "mi100")


def test_tasks_that_cannot_be_hashed_are_refused_as_tasks():
    np = pytest.importorskip("numpy")
    with pytest.raises(WeftError, match=r"^a task is an object of the type ndarray; give the simulations"):
        weft.perturb(np.array([[8]]), [], len)


def test_an_error_with_another_cause_stays_as_it_is():
    def figures(_):
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        weft.perturb([], [], figures)


def test_catalogue_objects_show_themselves_in_a_line():
    assert repr(weft.gpu("h100-sxm")) == "<Gpu h100-sxm: NVIDIA H100 SXM5 80 GB>"
    assert repr(weft.system("64xh100")) == "<System 64 x dgx-h100>"
    assert repr(weft.load_model("gpt-3")) == "<Transformer gpt-3: GPT-3>"


def test_numpy_integers_are_whole_numbers():
    np = pytest.importorskip("numpy")
    asked = {"batch": np.int32(8), "sequence": np.int32(2048)}
    assert (
        weft.prefill("llama-3-8b", "1xh100", **asked).to_dict()
        == weft.prefill("llama-3-8b", "1xh100", batch=8, sequence=2048).to_dict()
    )
    assert type(weft.TrainingPlan(tp=np.int64(8)).tp) is int


def test_a_plan_without_a_batch_asks_for_one():
    with pytest.raises(WeftError, match="a plan is for a number of sequences in each step; give it, like batch=512"):
        weft.plan("gpt-3", "64xa100")


def test_a_context_manager_whose_types_its_module_imports_is_checked():
    """Its outer function is contextlib's, which imports none of them."""

    @check_arguments
    @contextmanager
    def doubling(rule: "Callable[[int], Any]", factors: "Mapping[str, Any]") -> "Iterator[int]":
        yield rule(factors["by"])

    with doubling(lambda value: 2 * value, {"by": 3}) as found:
        assert found == 6
    with pytest.raises(InputError, match="factors is 3; it takes a mapping"), doubling(abs, 3):
        pass
