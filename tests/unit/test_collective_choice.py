import numpy as np
import pytest

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.kernels.library.collectives import (
    Algorithm,
    CollectiveCall,
    MiB,
    Protocol,
    canonical,
    choose,
    estimates,
    steps,
)
from weft.kernels.library.interconnect import interconnect

SIZES = 2.0 ** np.arange(9, 32)
SYSTEMS = {"A100": "dgx-a100", "H100": "dgx-h100", "B200": "hgx-b200"}


def switches(system: str, collective: str, ranks: int, **options) -> list[tuple[str, float]]:
    """Where the choice changes between powers of two: what to, and the size in MiB."""
    algorithm, protocol = choose(collective, SIZES, ranks, interconnect(hardware.system(SYSTEMS[system])), **options)
    found, last = [], None
    for size, *codes in zip(SIZES / MiB, algorithm, protocol, strict=True):
        name = "NVLS" if codes[0] == Algorithm.NVLS else Protocol(codes[1]).name
        if name != last:
            found.append((name, float(size)))
        last = name
    return found[1:]


# What nccl-tests shows as jumps of the measured time (ai-dynamo/aiconfigurator @095f58a, NCCL 2.27 to 2.29).


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("system", "ranks", "expected"),
    [
        ("A100", 2, [("SIMPLE", 2)]),
        ("A100", 4, [("SIMPLE", 2)]),
        ("A100", 8, [("LL128", 4), ("SIMPLE", 16)]),
        ("H100", 2, [("SIMPLE", 4)]),
        ("H100", 4, [("SIMPLE", 4)]),
        ("H100", 8, [("LL128", 8), ("SIMPLE", 32)]),
        ("B200", 2, [("SIMPLE", 8)]),
        ("B200", 4, [("SIMPLE", 8)]),
        ("B200", 8, [("LL128", 16), ("SIMPLE", 32)]),
    ],
)
def test_one_way_collectives_change_protocol_where_nccl_does(collective, system, ranks, expected):
    assert switches(system, collective, ranks) == expected


@pytest.mark.parametrize(
    ("system", "ranks", "expected"),
    [
        ("A100", 2, [("SIMPLE", 1)]),
        ("A100", 4, [("LL128", 2), ("SIMPLE", 8)]),
        ("A100", 8, [("LL128", 4), ("SIMPLE", 32)]),
        ("H100", 2, [("SIMPLE", 2)]),
        ("H100", 4, [("LL128", 4), ("SIMPLE", 16)]),
        ("H100", 8, [("NVLS", 2)]),
        ("B200", 2, [("SIMPLE", 4)]),
        ("B200", 4, [("LL128", 8), ("SIMPLE", 16)]),
        ("B200", 8, [("NVLS", 4)]),
    ],
)
def test_all_reduce_changes_protocol_and_algorithm_where_nccl_does(system, ranks, expected):
    assert switches(system, "all_reduce", ranks) == expected


def test_the_switch_cannot_add_integers():
    assert ("NVLS", 2) not in switches("H100", "all_reduce", 8, floating=False)


@pytest.mark.parametrize(("version", "last_ll"), [("2.27.3", 512), ("2.29.2", 16)])
def test_send_and_receive_use_flags_longer_in_older_releases(version, last_ll):
    parts = np.array([last_ll * 1024, last_ll * 1024 + 16])
    _, protocol = choose("all_to_all", parts * 8, 8, interconnect(hardware.system("dgx-h100")), version=version)
    assert list(protocol) == [Protocol.LL, Protocol.SIMPLE]


def test_rccl_reduces_between_all_pairs_up_to_16_mib_on_a_full_mesh():
    size = np.array([0.5, 0.51, 16, 16.1]) * MiB
    algorithm, protocol = choose("all_reduce", size, 8, interconnect(hardware.system("mi300x-x8")))
    assert list(algorithm) == [Algorithm.DIRECT] * 3 + [Algorithm.RING]
    assert list(protocol) == [Protocol.LL, Protocol.SIMPLE, Protocol.SIMPLE, Protocol.SIMPLE]


@pytest.mark.parametrize(("name", "last_ll", "last"), [("all_gather", 128, 16), ("all_to_all", 512, 43)])
def test_rccl_pushes_small_sizes_to_all_peers_in_one_step_on_a_full_mesh(name, last_ll, last):
    size = np.array([last_ll / 1024, last_ll / 1024 + 0.01, last, last + 0.1]) * MiB
    algorithm, protocol = choose(name, size, 8, interconnect(hardware.system("mi300x-x8")))
    assert list(algorithm[:3]) == [Algorithm.DIRECT] * 3
    assert algorithm[3] == (Algorithm.RING if name == "all_gather" else Algorithm.PAIRWISE)
    assert list(protocol[:3]) == [Protocol.LL, Protocol.SIMPLE, Protocol.SIMPLE]


@pytest.mark.parametrize(("system", "ranks", "nodes"), [("mi355x-x8", 8, 1), ("mi300x-x8", 4, 1), ("mi300x-x8", 16, 2)])
def test_one_step_needs_eight_mi300x_of_one_node(system, ranks, nodes):
    for name in ("all_reduce", "all_gather", "all_to_all"):
        algorithm, _ = choose(name, SIZES, ranks, interconnect(hardware.system(system)), nodes=nodes)
        assert Algorithm.DIRECT not in algorithm


def test_flags_per_line_need_nvlink():
    _, protocol = choose("all_gather", SIZES, 4, interconnect(hardware.system("pcie-l40s")))
    assert Protocol.LL128 not in protocol


def test_nodes_without_a_reducing_switch_are_joined_by_trees():
    algorithm, _ = choose("all_reduce", SIZES, 16, interconnect(hardware.system("p4de")), nodes=2)
    assert algorithm[-1] == Algorithm.TREE
    old, _ = choose("all_reduce", SIZES, 16, interconnect(hardware.system("p4de")), nodes=2, version="2.18")
    assert old[-1] == Algorithm.RING


def test_the_estimate_is_latency_plus_bytes_by_bandwidth():
    keys, times = estimates(CollectiveCall("all_gather", 2, interconnect(hardware.system("dgx-a100"))), [0.0, 480e9])
    simple = times[keys.index((Algorithm.RING, Protocol.SIMPLE))]
    assert simple == pytest.approx([11.8e-6, 1.0 + 11.8e-6])


def test_names_have_aliases_and_neighbours():
    assert canonical("alltoall") == "all_to_all"
    with pytest.raises(UnknownNameError, match="did you mean 'all_reduce'"):
        canonical("all_reduc")


def test_one_rank_is_no_collective():
    with pytest.raises(InputError, match="at least 2 ranks, not 1"):
        steps("all_reduce", 1)


@pytest.mark.parametrize(
    ("system", "workgroups"), [("dgx-a100", 24), ("dgx-h100", 24), ("hgx-b200", 32), ("mi300x-x8", 56)]
)
def test_a_ring_takes_the_librarys_number_of_workgroups(system, workgroups):
    assert interconnect(hardware.system(system)).workgroups(8) == workgroups
