"""Algorithms and protocols by name: what the library takes, what may be asked for, and what may not."""

import pytest

from weft.collectives.choice import check_way, profile_of, taken, way_name
from weft.collectives.library import Algorithm, Protocol
from weft.errors import InputError, UnknownNameError
from weft.hardware import find_system
from weft.predict.collective import collective


def ways(system, name="all_reduce", ranks=8, sizes=(2**20, 2**26), **how):
    found = find_system(system)
    return taken(name, list(sizes), ranks, found, profile_of(found), **how)


def check(system, wanted, name="all_reduce", ranks=8):
    found = find_system(system)
    return check_way(wanted, name, ranks, found, profile_of(found))


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
    assert check("dgx-h100", "nvls") == (Algorithm.NVLS, None)
    assert way_name(Algorithm.NVLS_TREE, Protocol.SIMPLE) == "nvls-tree"


@pytest.mark.parametrize(
    ("system", "wanted", "name", "message"),
    [
        ("mi300x-x8", "nvls", "all_reduce", "mi300x-x8 has no switch that reduces; choose 'ring'"),
        ("dgx-h100", "tree", "all_gather", "'tree' carries out no all_gather on dgx-h100; choose 'ring' or 'nvls'"),
        ("hgx-a100-4", "direct", "all_gather", "choose 'ring'"),
        ("mi300x-x8", "ring-ll128", "all_reduce", "mi300x-x8 has no 'ring-ll128'; choose 'ring-ll' or"),
    ],
)  # fmt: skip
def test_a_way_that_a_system_cannot_take_is_refused_with_those_it_can(system, wanted, name, message):
    with pytest.raises(InputError, match=message):
        check(system, wanted, name)


def test_unknown_algorithms_and_protocols_list_the_known():
    with pytest.raises(UnknownNameError, match="unknown protocol 'll129'; known: ll, ll128, simple"):
        check("dgx-h100", "ring-ll129")
    with pytest.raises(UnknownNameError, match="unknown algorithm 'rings'"):
        check("dgx-h100", "rings")
