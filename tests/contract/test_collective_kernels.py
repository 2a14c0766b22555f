"""Every collective, algorithm and driver: the bytes on links and in memory, no rate exceeded, and the closed form."""

from __future__ import annotations

from functools import cache

import pytest

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.graph import Collective, DmaCopies, LibraryCollective
from weft.hardware import System
from weft.hardware.fabric import full, ring, switch
from weft.kernels.multicast import FLAG, SwitchCollective
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.collectives import collective_kernel
from weft.simulate import alone
from weft.simulate.single import simulate

MIB = 1 << 20
RANKS = 8
REDUCES, KEEPS = ("reduce_scatter", "all_reduce"), ("all_gather", "all_reduce")
CASES = [
    *(("h100-sxm", name, way) for name in ("all_reduce", "reduce_scatter", "all_gather") for way in ("ring", "nvls")),
    *(("mi300x", name, "ring") for name in ("all_reduce", "reduce_scatter", "all_gather")),
    *(("mi300x", name, "direct") for name in ("all_reduce", "all_gather", "all_to_all")),
    *((gpu, "all_to_all", "library") for gpu in ("h100-sxm", "mi300x")),
    *((gpu, name, "dma") for gpu in ("h100-sxm", "mi300x") for name in ("all_gather", "all_to_all")),
]
every_case = pytest.mark.parametrize(("gpu", "name", "way"), CASES)


def system_of(gpu: str, slowdown: int = 1) -> System:
    """Eight GPUs with links of a fraction of their rate, on the fabric that the machine has."""
    link = hardware.gpu(gpu).link
    if slowdown == 1:
        return hardware.system(gpu, gpus=RANKS)
    rate = link.bandwidth / slowdown
    changed = hardware.gpu(gpu).model_copy(update={"link": link.model_copy(update={"bandwidth": rate})})
    joined = switch(RANKS, rate, link.latency, reduces=True)
    if gpu == "mi300x":
        joined = full(RANKS, rate / (RANKS - 1), link.latency)
    return hardware.system(gpu, gpus=RANKS).with_gpu(changed).model_copy(update={"fabric": joined})


@cache
def run(gpu, name, way, size=8 * MIB, mode="auto", slowdown=1):
    chosen = None if way in ("dma", "library") else LibraryCollective(way)
    graph = alone(Collective(name, size, RANKS, "bf16"), RANKS, chosen)
    how = STRATEGIES["dma" if way == "dma" else "streams"]
    return simulate(graph, system_of(gpu, slowdown), how, RunOptions(clock="short", mode=mode, request_bytes=4096))


def kernel_of(done):
    return collective_kernel(done.graph.collectives[0], done.system)


def flags(done):
    """Bytes by which a GPU tells the others that its chunks are ready: they go up the link once, and down to all."""
    kernel = kernel_of(done)
    if not isinstance(kernel, SwitchCollective):
        return 0
    turns = kernel.turns + (2 if kernel.collective == "all_reduce" else 1) - 1
    return FLAG * kernel.tiling.channels * turns


def sent(done):
    """Bytes that a GPU sends over its link: of parts rounded up, with flags between the data."""
    op, kernel = done.graph.collectives[0].op, kernel_of(done)
    share = getattr(kernel, "share", op.bytes // RANKS)
    if isinstance(kernel, SwitchCollective):  # every GPU's answers go up, the owner's sum once
        own = {"reduce_scatter": RANKS, "all_gather": 1, "all_reduce": RANKS + 1}[op.name]
        return own * share + flags(done)
    wire = kernel.tiling.wire if hasattr(kernel, "tiling") else 1
    return share * (RANKS - 1) * (2 if op.name == "all_reduce" else 1) * wire


@every_case
def test_links_carry_every_byte_of_the_algorithm_once(gpu, name, way):
    done = run(gpu, name, way)
    assert done.counters["link_bytes"] == pytest.approx(sent(done), rel=1e-3)
    assert sent(done) >= flags(done) + 8 * MIB // RANKS


@every_case
def test_one_gpu_for_all_and_each_of_them_move_the_same_bytes_in_the_same_time(gpu, name, way):
    one, each = (run(gpu, name, way, 2 * MIB, mode) for mode in ("mirrored", "explicit"))
    assert one.traffic == each.traffic
    assert RANKS * one.counters["link_bytes"] == each.counters["link_bytes"]
    assert one.makespan == pytest.approx(each.makespan, rel=0.05)


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather"])
def test_through_the_switch_memory_is_read_and_written_once_per_stage(name):
    """Scatter: read, store. Sum: read at every GPU. Copies: stored at every GPU. Gather: read, store."""
    size, done = 8 * MIB, run("h100-sxm", name, "nvls")
    share, stages = size // RANKS, (name in REDUCES, name in KEEPS)
    own = share if name == "all_gather" else 0
    read = own + sum((2 * size, size)[stage] for stage, has in enumerate(stages) if has)
    stored = sum((size, 2 * size)[stage] for stage, has in enumerate(stages) if has) + (share if not stages[1] else 0)
    moved = {kind: sum(amount for cause, amount in done.traffic.items() if kind in cause) for kind in ("read", "write")}
    assert moved == {"read": read, "write": stored + RANKS * flags(done)}


def wire_time(done):
    """Time that the bytes of a run take on the link in the direction that carries more of them [s]."""
    kernel, link = kernel_of(done), done.system.gpu.link
    most = sent(done)
    if isinstance(kernel, SwitchCollective) and kernel.collective == "all_gather":
        most = kernel.share * RANKS  # copies come down from all GPUs
    share = (
        link.dma_efficiency
        if isinstance(done.graph.collectives[0].choice.kernel, DmaCopies)
        else link.kernel_efficiency
    )
    paced = kernel.tiling.link if hasattr(kernel, "tiling") else 1.0
    return most / (link.bandwidth * share * paced)


@every_case
def test_no_run_is_faster_than_its_bytes_on_the_links(gpu, name, way):
    done = run(gpu, name, way)
    assert done.makespan > wire_time(done)


@every_case
def test_where_links_are_the_limit_more_bytes_take_bytes_over_rate(gpu, name, way):
    """With links at a sixteenth of their rate all else hides behind them; start and end are the same for both sizes.

    Not so in a ring, which begins with a slice of each channel that nothing else overlaps: half of one of its steps.
    """
    small, large = (run(gpu, name, way, size * MIB, slowdown=16) for size in (64, 128))
    expected = wire_time(large) - wire_time(small)
    kernel = kernel_of(large)
    first = 0.5 / (kernel.steps - 1) if kernel.algorithm == "ring" else 0.0
    assert 0.97 < (large.makespan - small.makespan) / expected < 1.03 + first, (
        large.makespan - small.makespan
    ) / expected


@pytest.mark.parametrize(
    ("gpu", "name", "kernel", "sentence"),
    [
        (
            "mi300x",
            "all_reduce",
            LibraryCollective("nvls"),
            "has no switch that reduces, as 'nvls' needs; choose 'ring' or 'direct', or leave the algorithm",
        ),
        (
            "a100-sxm-80gb",
            "all_reduce",
            LibraryCollective("nvls"),
            "has no switch that reduces, as 'nvls' needs; choose 'ring', or leave",
        ),
        (
            "h100-sxm",
            "all_reduce",
            LibraryCollective("direct"),
            "no link from each GPU to each peer, as 'direct' needs; choose",
        ),
        (
            "h100-sxm",
            "all_to_all",
            LibraryCollective("nvls"),
            "'nvls' carries out no all_to_all; leave the algorithm to the library",
        ),
        (
            "mi300x",
            "reduce_scatter",
            LibraryCollective("direct"),
            "'direct' carries out no reduce_scatter; choose 'ring', or leave",
        ),
        (
            "mi300x",
            "all_reduce",
            LibraryCollective("direct", channels=4),
            "give it 8 channels, or choose the algorithm 'ring'",
        ),
    ],
)
def test_an_algorithm_that_cannot_run_is_refused_with_those_that_can(gpu, name, kernel, sentence):
    with pytest.raises(InputError, match=sentence):
        simulate(
            alone(Collective(name, MIB, RANKS, "bf16"), RANKS, kernel), hardware.system(gpu, gpus=RANKS), "streams"
        )


def test_a_mask_that_cannot_hold_a_direct_all_reduce_is_refused():
    masked = alone(Collective("all_reduce", MIB, RANKS, "bf16"), RANKS, compute_units=(0, 1, 2))
    with pytest.raises(InputError, match="or choose the algorithm 'ring'"):
        simulate(masked, hardware.system("mi300x", gpus=RANKS), "streams")


def test_an_unknown_kernel_names_the_known_ones():
    with pytest.raises(UnknownNameError, match="'gossip'; known: ring, direct, nvls, pairwise"):
        LibraryCollective("gossip")


def test_a_switch_adds_floating_point_numbers_only():
    with pytest.raises(InputError, match="a switch adds floating-point numbers only, not int8"):
        simulate(
            alone(Collective("all_reduce", MIB, RANKS, "int8"), RANKS, LibraryCollective("nvls")), "h100-sxm", "streams"
        )


@pytest.mark.parametrize(
    ("gpu", "size", "algorithm"),
    [
        ("h100-sxm", MIB // 2, "ring"),
        ("h100-sxm", 8 * MIB, "nvls"),
        ("mi300x", 8 * MIB, "direct"),
        ("mi300x", 64 * MIB, "ring"),
        ("a100-sxm-80gb", 8 * MIB, "ring"),
    ],
)
def test_an_all_reduce_takes_the_librarys_algorithm_by_default(gpu, size, algorithm):
    node = alone(Collective("all_reduce", size, RANKS, "bf16"), RANKS).collectives[0]
    assert collective_kernel(node, hardware.system(gpu, gpus=RANKS)).algorithm == algorithm


def test_a_fabric_of_ones_own_decides_what_can_run():
    node = alone(Collective("all_reduce", 8 * MIB, RANKS, "bf16"), RANKS).collectives[0]
    own = hardware.system("h100-sxm", gpus=RANKS)
    around = own.model_copy(update={"fabric": ring(RANKS, 1e11, 5e-7)})
    assert collective_kernel(node, around).algorithm == "ring"
