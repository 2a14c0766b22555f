import pickle

import pytest

from weft.cli.inference import prefill
from weft.cli.kernels import advise
from weft.cli.serve import serve
from weft.cli.train import step
from weft.core import errors


def test_every_error_is_a_weft_error_and_bad_input_is_an_input_error():
    for kind in (errors.UnitError, errors.UnknownNameError, errors.ConfigError):
        assert issubclass(kind, errors.InputError)
    for kind in (errors.InputError, errors.SimulationError, errors.OutputError):
        assert issubclass(kind, errors.WeftError)


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    error = errors.UnknownNameError("overlap", "t3-mac", ["sequential", "t3", "t3-mca"])
    assert str(error).startswith("unknown overlap 't3-mac'; known: sequential, t3, t3-mca; did you mean 't3-mca'")


def test_a_name_like_no_other_gets_the_list_without_a_guess():
    assert str(errors.UnknownNameError("overlap", "zzz", ["t3"])) == "unknown overlap 'zzz'; known: t3"


@pytest.mark.parametrize(("other", "ours"), sorted(errors._RENAMED.items()))
def test_a_retired_name_or_that_of_another_tool_is_answered_with_the_name_of_an_option(other, ours):
    options = {flag for command in (serve, step, prefill, advise) for one in command.params for flag in one.opts}
    assert f"--{ours.replace('_', '-')}" in options
    assert f"--{other.replace('_', '-')}" not in {
        flag for command in (serve, step, advise) for one in command.params for flag in one.opts
    }
    assert errors.nearest(other, [ours, f"{other}s", "x"]) == [ours]
    assert errors.nearest(other.replace("_", "-"), [ours.replace("_", "-"), other[:-1]]) == [ours.replace("_", "-")]


def test_a_long_list_of_names_is_not_recited():
    known = [f"name{number}" for number in range(100)]
    assert "100 are known, from 'name0' to 'name99'" in str(errors.UnknownNameError("thing", "x", known))


def test_an_empty_list_of_names_is_said_to_be_empty():
    assert str(errors.UnknownNameError("thing", "x", [])) == "unknown thing 'x'; no thing is known"


def test_a_configuration_error_says_where_before_what():
    assert str(errors.ConfigError("is odd", "my.toml", "memory.banks")) == "my.toml: memory.banks: is odd"
    assert str(errors.ConfigError("is odd")) == "is odd"


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownNameError("model", "x", ("a", "b")),
        errors.ConfigError("is odd", "my.toml", "memory.banks"),
    ],
)
def test_an_error_crosses_process_borders_unchanged(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
