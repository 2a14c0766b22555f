"""Closed forms of rings with a number of channels, on a number of compute units."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import weft
from weft.core.errors import InputError
from weft.estimate import BenchmarkProtocol
from weft.kernels.library.collectives import RINGS
from weft.kernels.library.profiles import load_library, of_release
from weft.lab.run import validate

MIB = 1 << 20
SIZES = np.array([MIB / 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB])
OWN = {"a100-sxm-80gb": 24, "h100-sxm": 24, "b200": 32, "mi300x": 56}
PROTOCOLS = ("ring-ll", "ring-ll128", "ring-simple")


def seconds(machine, collective="all_reduce", sizes=SIZES, ranks=8, **how):
    system = weft.system(machine, gpus=ranks)
    return weft.estimate(weft.Collective(collective, sizes, ranks), system, harness=BenchmarkProtocol(**how)).seconds


@pytest.mark.parametrize("machine", OWN)
@pytest.mark.parametrize("collective", RINGS)
def test_the_librarys_own_channels_on_all_units_take_what_the_library_takes(machine, collective):
    for protocol in PROTOCOLS:
        if (machine, protocol) == ("mi300x", "ring-ll128"):
            continue
        own = seconds(machine, collective, algorithm=protocol)
        given = seconds(machine, collective, algorithm=protocol, channels=OWN[machine])
        assert given == pytest.approx(own, rel=0.03)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fewer_channels_or_fewer_units_are_never_faster(protocol):
    for name in ("channels", "compute_units"):
        times = [seconds("h100-sxm", algorithm=protocol, **{name: count}) for count in (2, 4, 8, 16, 24)]
        assert all(np.all(more <= fewer * 1.001) for fewer, more in pairwise(times))


def test_a_mask_costs_a_start_and_the_hops_again_for_every_round():
    whole, third = (seconds("a100-sxm-80gb", sizes=MIB, compute_units=units) for units in (24, 8))
    fewer = seconds("a100-sxm-80gb", sizes=MIB, channels=8, compute_units=8)
    assert whole < fewer < third
    assert third > 1.8 * whole


def test_the_measured_trap_thirty_two_channels_on_eight_or_sixteen_sms():
    """Four A100, 1 MiB, as measured (openfabric-systems/simllm @26704c1): 71 us with LL, 253 with Simple on 8 SMs."""
    rows = [("ring-ll", 8, 71.1), ("ring-simple", 8, 253.3), ("ring-ll128", 16, 72.0), ("ring-simple", 16, 134.1)]
    for protocol, units, measured_us in rows:
        how = {"algorithm": protocol, "channels": 32, "compute_units": units, "version": "2.31.2"}
        assert seconds("hgx-a100-4", sizes=MIB, ranks=4, **how) * 1e6 == pytest.approx(measured_us, rel=0.15)


def test_a_switch_that_reduces_gives_way_to_a_ring_where_channels_are_given():
    assert seconds("h100-sxm", sizes=64 * MIB) < seconds("h100-sxm", sizes=64 * MIB, channels=24)


def test_a_newer_release_is_a_ratio_of_the_profile():
    profile = load_library("nccl-a100")
    for version, ratio in (("", 1.0), ("2.30", 1.0), ("2.31.2", 1.6), ("2.40", 1.6)):
        changed = of_release(profile, version)
        assert changed.value("ring.ll128_launch") == pytest.approx(ratio * profile.value("ring.ll128_launch"))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"channels": 65}, "NCCL has 1 to 64"),
        ({"channels": 0}, "at least 1"),
        ({"compute_units": 0}, "at least 1"),
        ({"compute_units": 200}, "h100-sxm has 132; choose 1 to 132"),
        ({"channels": 8, "driver": "dma", "collective": "all_gather"}, "no channels"),
        ({"channels": 8, "algorithm": "nvls"}, "choose 'ring'"),
        ({"channels": 8, "collective": "all_to_all"}, "'all_gather' in one node"),
        ({"channels": 8, "ranks": 16}, "over 2 nodes"),
    ],
)
def test_channels_that_no_ring_can_have_are_refused_in_one_sentence(how, sentence):
    with pytest.raises(InputError) as refused:
        seconds("h100-sxm", **how)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


HEAD = "system,ranks,collective,library,protocol,channels,sms,bytes,time_us,notes"


def test_measured_channels_are_compared_where_the_threads_are_the_librarys(tmp_path):
    rows = [
        "4xA100-SXM4-80GB,4,all_reduce,NCCL 2.31.2,LL,24,,1048576,32,warps=16",
        "4xA100-SXM4-80GB,4,all_reduce,NCCL 2.31.2,Simple,24,8,1048576,190,",
        "4xA100-SXM4-80GB,4,all_reduce,NCCL 2.31.2,LL,24,,1048576,50,warps=4",
        "4xA100-SXM4-80GB,4,all_reduce,NCCL 2.31.2,LL64,24,,1048576,50,",
        "4xA100-SXM4-80GB,4,all_reduce,NCCL 2.31.2,LL,65,,1048576,50,",
        "4xA100-SXM4-80GB,4,all_to_all,NCCL 2.31.2,LL,8,,1048576,50,",
    ]
    (tmp_path / "mine.csv").write_text("\n".join([HEAD, *rows]))
    done = validate(tmp_path)
    (predicted,) = done.by_kind["channels"]
    assert predicted.subject.rows.index.tolist() == [2, 3]
    assert predicted.subject.labels["compute_units"].tolist() == ["one per channel", "fewer than channels"]
    for words in ("threads per channel", "unknown protocol", "NCCL has 1 to 64", "carries out no all_to_all"):
        assert any(words in problem for problem in done.complaints())
