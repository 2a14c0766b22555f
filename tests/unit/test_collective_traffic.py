import numpy as np
import pytest

from weft.collectives.fabric import fabric_of
from weft.collectives.library import Algorithm, Protocol
from weft.collectives.traffic import reached, traffic, workgroup_rate
from weft.errors import InputError


@pytest.mark.parametrize(
    ("name", "options", "per_link_byte"),
    [
        ("all_gather", {}, 3.29),
        ("all_gather", {"registered": True}, 2.14),
        ("reduce_scatter", {}, 3.29),
        ("all_reduce", {}, 3.14),
        ("all_to_all", {}, 4.29),
        ("all_gather", {"dma": True}, 2.29),
        ("reduce_scatter", {"algorithm": Algorithm.DIRECT}, 1.29),
    ],
)
def test_memory_traffic_for_a_byte_on_the_link_at_eight_ranks(name, options, per_link_byte):
    assert traffic(name, 1e9, 8, **options).memory_per_link_byte == pytest.approx(per_link_byte, abs=0.01)


def test_a_registered_switch_reads_and_writes_the_buffer_once():
    moved = traffic("all_reduce", 8e9, 8, algorithm=Algorithm.NVLS, registered=True)
    assert (moved.link, moved.read, moved.written) == (9e9, 8e9, 8e9)


def test_flags_double_what_a_protocol_puts_on_the_wire():
    simple = traffic("all_gather", 1e6, 8)
    assert traffic("all_gather", 1e6, 8, protocol=Protocol.LL).link == pytest.approx(2 * simple.link)


def test_copy_engines_cannot_reduce():
    with pytest.raises(InputError, match="copy engines cannot reduce"):
        traffic("reduce_scatter", 1e6, 8, dma=True)


def test_a_switch_does_not_exchange():
    with pytest.raises(InputError, match="a switch does not carry out all_to_all"):
        traffic("all_to_all", 1e6, 8, algorithm=Algorithm.NVLS)


def test_more_workgroups_reach_more_until_the_links_are_full():
    fabric = fabric_of("dgx-h100")
    rates = reached(fabric, 8, np.arange(1, 65))
    assert np.all(np.diff(rates) > 0)
    assert rates[0] == pytest.approx(workgroup_rate(fabric, 8), rel=0.01)
    assert rates[-1] == pytest.approx(fabric.figure(8), rel=0.01)


@pytest.mark.parametrize(
    ("system", "workgroups"), [("dgx-a100", 24), ("dgx-h100", 24), ("hgx-b200", 32), ("mi300x-x8", 56)]
)
def test_a_ring_takes_the_librarys_number_of_workgroups(system, workgroups):
    assert fabric_of(system).workgroups(8) == workgroups
