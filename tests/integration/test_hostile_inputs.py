"""What is drawn at random to break Weft ends in an answer with finite numbers, or in a sentence."""

import hostile
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("hostile")
    with hostile.work_folder(place):
        hostile.command(
            ["simulate", "sublayer", "--gemm", "64,64,64", "--tp", "2"]
        )  # the engine, before anything is timed
        yield place


@pytest.mark.parametrize("family", hostile.MAKERS)
def test_hostile_inputs_end_in_an_answer_or_a_sentence(family, folder):
    @settings(
        max_examples=min(300, 30 * hostile.WEIGHTS[family]),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def tries(source):
        assert hostile.tried(hostile.MAKERS[family](source, folder)) is None

    tries()


@pytest.mark.parametrize("name", hostile.READERS)
def test_the_right_file_is_read_by_all_that_read_its_kind(name, folder):
    (folder / name).write_bytes(hostile.seeds()[name])
    for read in hostile.READERS[name]:
        assert hostile.tried(hostile.Try(name, lambda read=read: read(folder / name), name)) is None


@pytest.mark.parametrize("name", hostile.CALLS)
def test_the_right_arguments_are_answered(name, folder):
    hostile.restore(folder)
    getattr(hostile.weft, name)(**hostile.CALLS[name])


@pytest.mark.parametrize("line", hostile.COMMANDS)
def test_the_right_command_lines_are_answered(line, folder):
    hostile.restore(folder)
    assert hostile.command(line.split())
