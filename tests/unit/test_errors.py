import pickle

import pytest

from weft.cli.inference import decode, prefill
from weft.cli.kernels import advise_corun
from weft.cli.main import weft
from weft.cli.plan import plan
from weft.cli.serve import serve
from weft.cli.train import memory, step
from weft.core import errors
from weft.graph import EXCHANGES
from weft.models import load_model


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


COMMANDS = (serve, step, memory, prefill, decode, plan, advise_corun)


@pytest.mark.parametrize(
    ("other", "ours"), [(other, name) for other, names in sorted(errors._RENAMED.items()) for name in names]
)
def test_a_retired_name_or_that_of_another_tool_is_answered_with_the_name_here(other, ours):
    flags = [{flag for one in command.params for flag in one.opts} for command in COMMANDS]
    having = [known for known in flags if f"--{ours.replace('_', '-')}" in known]
    assert having or ours in weft.lazy or ours in EXCHANGES
    assert not any(f"--{other.replace('_', '-')}" in known for known in having)
    assert errors.nearest(other, [ours, f"{other}s", "x"]) == [ours]
    assert errors.nearest(other.replace("_", "-"), [ours.replace("_", "-"), other[:-1]]) == [ours.replace("_", "-")]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("llama3-8b", "llama-3-8b"),
        ("gpt3-175b", "gpt-3"),
        ("mixtral-8x7b-instruct", "mixtral-8x7b"),
    ],
)
def test_a_model_in_another_spelling_is_answered_with_its_name(name, nearest):
    with pytest.raises(errors.UnknownNameError) as caught:
        load_model(name)
    assert errors.nearest(caught.value.name, caught.value.known)[0] == nearest


def test_a_script_in_the_place_of_a_model_is_answered_with_the_option_that_reads_it(tmp_path):
    script = tmp_path / "pretrain.sh"
    script.write_text("torchrun pretrain_gpt.py")
    with pytest.raises(errors.InputError, match=f"weft step --launch {script}"):
        load_model(script)


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
