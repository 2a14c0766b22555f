"""Every pipeline schedule keeps the laws of `weft.testing`."""

import pytest

from weft.core.errors import InputError
from weft.step.pipeline import SCHEDULES, schedule
from weft.testing import check_pipeline_schedule

ALSO = ["interleaved:3", "interleaved:2:12", "chimera:2", "terapipe:3"]
EVEN_DEVICES = ("chimera", "chimera:2", "dualpipe")


@pytest.mark.parametrize("name", [*SCHEDULES, *ALSO])
def test_a_schedule_keeps_every_law_of_its_contract(name):
    check_pipeline_schedule(name)


@pytest.mark.parametrize("name", EVEN_DEVICES)
def test_a_pipeline_with_two_ends_refuses_odd_numbers(name):
    with pytest.raises(InputError, match="takes an even number of devices, half from each end, not 5; take 6"):
        schedule(name, 5, 20)
    with pytest.raises(
        InputError, match=r"takes an even number of micro-batches, half from each end.*, not 21; take 22"
    ):
        schedule(name, 4, 21)
