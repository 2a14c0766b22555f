import numpy as np
import pytest

import weft
from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.kernels.library.collectives import Algorithm, CollectiveCall, MiB, Protocol, canonical, steps
from weft.kernels.library.cost_model import candidates, choose, estimates
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


def candidate(name, way, nodes, local, system="dgx-h100", release=(2, 27, 5)):
    """What NCCL counts on for a way of a collective: its latency [us] and algorithm rate [GB/s]."""
    fabric = interconnect(hardware.system(system)).among(local)
    found = {
        (one.algorithm, one.protocol): one
        for one in candidates(CollectiveCall(name, nodes * local, fabric, nodes, release=release))
    }
    return found[way].latency, found[way].rate / 1e9


# NCCL 2.27.5 on H100 nodes with an adapter of 400 Gb/s per GPU, by hand from src/graph/tuning.cc and search.cc.
RING_LL128, RING_LL = (Algorithm.RING, Protocol.LL128), (Algorithm.RING, Protocol.LL)
RING, TREE, TREE_LL = (
    (Algorithm.RING, Protocol.SIMPLE),
    (Algorithm.TREE, Protocol.SIMPLE),
    (Algorithm.TREE, Protocol.LL),
)
NVLS_TREE, PAT = (Algorithm.NVLS_TREE, Protocol.SIMPLE), (Algorithm.PAT, Protocol.SIMPLE)


@pytest.mark.parametrize(
    ("name", "way", "nodes", "local", "latency", "rate"),
    [
        # Eight channels at 48 GB/s, the rate tried next below the adapter's 50; 14 hops inside at 3.4 us, 1 between.
        ("all_gather", RING, 2, 8, 8.4 + 14 * 3.4 + 14, 8 * 48 * 16 / 15),
        # LL128 reaches 36.7 GB/s in each of eight channels; with four GPUs, 92 % of their adapters.
        ("all_gather", RING_LL128, 2, 8, 14 + 14 * 1.9 + 4, 8 * 36.7 * 16 / 15),
        ("all_gather", RING_LL128, 2, 4, 14 + 6 * 1.9 + 4, 0.92 * 4 * 48 * 8 / 7),
        # LL reaches what the CPU allows; posting a request takes 1 us, longer than a hop of 0.6.
        ("all_gather", RING_LL, 2, 8, 6.6 + 14 * 1.0 + 2.7, 39 * 16 / 15),
        ("all_gather", RING_LL, 16, 8, 6.6 + 112 * 1.0 + 15 * 2.7, 20.4 * 128 / 127),
        # One GPU per node takes the latency of a tree's network hop.
        ("all_gather", RING_LL, 4, 1, 6.6 + 3 * 5.0, 20.4 * 4 / 3),
        # PAT: a level of 4 us for each doubling, 2.8 us for each rank, three quarters of the rings' rate.
        ("reduce_scatter", PAT, 16, 1, 8 + 4 * 4 + 16 * 2.8, 0.75 * 48),
        # A tree over two nodes is limited per channel, and to 85 % where one GPU of a node sends and receives.
        ("all_reduce", TREE, 2, 8, 8.4 + 2 * (7 * 4.0 + 14), 0.85 * 8 * 41.4 / 2),
        ("all_reduce", TREE, 8, 4, 8.4 + 2 * (3 * 4.0 + 3 * 14), 0.85 * 0.92 * 4 * 48 / 2),
        ("all_reduce", TREE_LL, 4, 8, 6.8 + 2 * (7 * 0.6 + 2 * 5), 0.85 * 20.4 / 2),
        # The switch between two nodes: eight heads at 40 GB/s inside; between more, half of the adapters' rate.
        ("all_reduce", NVLS_TREE, 2, 8, 25 + 2 * 14, 8 * 40 * 5 / 6),
        ("all_reduce", NVLS_TREE, 32, 8, 25 + 2 * 5 * 14, 8 * 24 * 5 / 6),
    ],
)  # fmt: skip
def test_between_nodes_nccl_counts_on_its_channels_adapters_and_cpu(name, way, nodes, local, latency, rate):
    assert candidate(name, way, nodes, local) == (pytest.approx(latency), pytest.approx(rate))


def test_gathers_between_many_nodes_of_one_gpu_take_log_time():
    """As data-parallel groups do that have a rank on each node; before release 2.23 they were rings."""
    sizes, fabric = [1024.0, 1e6, 1e9], interconnect(hardware.system("dgx-h100"))
    way, _ = choose("all_gather", sizes, 32, fabric, nodes=32)
    assert list(way) == [Algorithm.PAT, Algorithm.PAT, Algorithm.RING]
    old, _ = choose("all_gather", sizes, 32, fabric, nodes=32, version="2.22.3")
    assert Algorithm.PAT not in old
    dense, _ = choose("all_gather", sizes, 256, fabric, nodes=32)
    assert Algorithm.PAT not in dense


def test_newer_releases_count_on_the_switch_less_than_on_the_adapters():
    """Release 2.28 limits NVLS-Tree to 57.7 GB/s per head between two nodes, and 45.5 between more."""
    assert candidate("all_reduce", NVLS_TREE, 2, 8, release=(2, 29, 2))[1] == pytest.approx(8 * 57.7 * 16 / 30)
    assert candidate("all_reduce", NVLS_TREE, 4, 8, release=(2, 29, 2)) == (
        pytest.approx(25 + 2 * 2 * 20.9), pytest.approx(8 * 45.5 * 32 / 62)
    )  # fmt: skip


def test_nccl_counts_on_less_ll_between_nodes_of_amd_cpus():
    """p5 has the board of a DGX H100, but AMD's CPUs: 22.5 GB/s instead of 39, and 2 us to post a request."""
    assert candidate("all_gather", RING_LL, 2, 8, "p5") == (
        pytest.approx(6.6 + 14 * 2.0 + 2.7), pytest.approx(22.5 * 16 / 15)
    )  # fmt: skip


def test_a_ring_of_little_data_between_nodes_does_not_wait_longer():
    """From 64 B of each channel and rank on, NCCL adds 40 % to the latency of an all-reduce with Simple."""
    call = CollectiveCall("all_reduce", 16, interconnect(hardware.system("dgx-h100")), 2)
    ways, times = estimates(call, [64 * 8 * 16 - 1, 64 * 8 * 16])
    less, more = times[ways.index(RING)]
    assert more / less == pytest.approx(1.4, rel=0.001)


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


def test_ranks_may_be_an_array_of_floats():
    """Sweeps of several systems hold them so."""
    ranks = np.array([16.0, 32.0])
    found = weft.estimate(weft.Collective("all_reduce", 1e6, ranks), "dgx-h100")
    assert found.by.tolist() == ["tree-ll128", "tree-ll128"]
