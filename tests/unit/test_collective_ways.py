"""Algorithms and protocols by name: what the library takes, what may be asked for, and what may not."""

import pytest
from estimates import collective

from weft.core.errors import InputError, UnknownNameError


def ways(system, name="all_reduce", ranks=8, sizes=(2**20, 2**26), **how):
    return collective(name, list(sizes), ranks, system, **how).by.tolist()


def test_each_size_names_the_way_that_the_library_takes():
    assert ways("dgx-h100") == ["ring-ll", "nvls"]
    assert ways("mi300x-x8") == ["direct-simple", "ring-simple"]
    assert ways("mi300x-x8", "all_gather") == ["direct-simple", "ring-simple"]
    assert ways("mi300x-x8", "all_to_all") == ["direct-simple", "pairwise-simple"]
    assert ways("dgx-h100", "all_to_all")[1] == "pairwise-simple"
    assert ways("dgx-h100", ranks=16)[1] == "nvls-tree"


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("system", ["dgx-h100", "mi300x-x8", "dgx-a100"])
def test_the_named_way_takes_as_long_as_the_librarys_choice(system, name):
    for size in (2**12, 2**20, 2**26):
        (way,) = ways(system, name, sizes=[size])
        auto, asked = (collective(name, size, 8, system, algorithm=one) for one in ("auto", way))
        assert asked.seconds == auto.seconds


def test_what_is_asked_for_is_what_is_taken():
    assert ways("dgx-h100", algorithm="ring-ll128") == ["ring-ll128", "ring-ll128"]
    assert ways("dgx-h100", algorithm="ring") == ["ring-ll", "ring-simple"]
    assert ways("mi300x-x8", "all_to_all", sizes=(2**17, 2**18), algorithm="pairwise") == [
        "pairwise-ll",
        "pairwise-simple",
    ]
    assert ways("dgx-h100", algorithm="nvls") == ["nvls", "nvls"]


@pytest.mark.parametrize(
    ("system", "wanted", "name", "message"),
    [
        ("mi300x-x8", "nvls", "all_reduce", "mi300x-x8 has no switch that reduces; choose 'ring'"),
        ("dgx-h100", "tree", "all_gather", "'tree' carries out no all_gather on dgx-h100; choose 'ring' or 'nvls'"),
        ("dgx-h100", "pairwise", "all_reduce", "'pairwise' carries out no all_reduce on dgx-h100; choose"),
        ("dgx-a100", "direct", "all_gather", "choose 'ring'"),
        ("mi300x-x8", "ring-ll128", "all_reduce", "mi300x-x8 has no 'ring-ll128'; choose 'ring-ll' or"),
    ],
)  # fmt: skip
def test_a_way_that_a_system_cannot_take_is_refused_with_those_it_can(system, wanted, name, message):
    with pytest.raises(InputError, match=message):
        collective(name, 2**20, 8, system, algorithm=wanted)


def test_an_exchange_with_all_peers_takes_whole_slices_where_a_ring_would_flag_lines():
    assert ways("mi210-x4", "all_gather", ranks=4, sizes=(2**22,)) == ["ring-ll128"]
    assert ways("mi210-x4", "all_gather", ranks=4, sizes=(2**22,), algorithm="direct") == ["direct-simple"]


def test_unknown_algorithms_and_protocols_list_the_known():
    with pytest.raises(UnknownNameError, match="unknown protocol 'll129'; known: ll, ll128, simple"):
        ways("dgx-h100", algorithm="ring-ll129")
    with pytest.raises(UnknownNameError, match="unknown algorithm 'rings'"):
        ways("dgx-h100", algorithm="rings")
