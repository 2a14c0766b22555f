"""Advice whether to fuse a GEMM with the collective that it needs: times, verdicts, reasons and the crossover."""

import json

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.contrast import UNRESOLVED
from weft.core.errors import InputError, UnknownNameError
from weft.graph import Gemm
from weft.kernels.library.software import costs
from weft.models.parallel import dependent, share_of
from weft.overlaps import OVERLAPS, STRATEGIES
from weft.overlaps.pairs import pair_of


def advise(form="ag_gemm", shape=(8192, 28672, 8192), on="h100-sxm", dtype="bf16", **how):
    return weft.advise_fuse(form, Gemm(*shape, dtype), 8, on, **{"fidelity": "estimate", **how})


@pytest.mark.parametrize(
    ("form", "shape", "measured"), [("ag_gemm", (8192, 11008, 4096), 0.52), ("gemm_rs", (8192, 4096, 11008), 0.37)]
)
def test_async_tp_is_slower_where_it_was_measured_to_lose(form, shape, measured):
    """0.52 and 0.37 times the speed of cuBLAS and NCCL serially on eight H800 (arXiv:2503.20313, table 2)."""
    found = advise(form, shape, "h800")
    joined = found.option("async-tp")
    assert joined.speedup < 0.75
    assert measured < joined.high
    assert joined.verdict != "faster"
    assert found.option("flux").speedup > joined.speedup


def test_a_speedup_is_surer_than_the_times_that_it_is_the_ratio_of():
    """GEMM and collective are the same in both; co-runs in chunks, unmeasured, are as sure as simulated co-runs."""
    found = advise(on="h100-sxm")
    flux, chunked, serial = (found.option(name) for name in ("flux", "priority", "sequential"))
    assert flux.high / flux.low < flux.error.high / flux.error.low
    assert flux.low < flux.speedup < flux.high
    assert (serial.low, serial.high) == (1, 1)
    assert "simulated co-runs" in chunked.gain.why
    assert chunked.high / chunked.low < chunked.error.high / chunked.error.low


def test_a_fused_all_gather_loses_on_eight_mi355x_and_a_fused_all_to_all_gains():
    """MORI's GEMM + all-gather loses at every published size, its GEMM + all-to-all gains 4 to 16 % (ROCm/mori)."""
    how = {"on": "mi355x", "dtype": "fp8", "framework": False}
    for rows, columns, own in ((512, 2048, "53 us"), (2048, 2048, "57 us"), (2048, 1024, "53 us")):
        found = advise("gemm_ag", (rows, columns * 8, 7168), gemm_time=own, **how)
        assert found.option("mori").seconds > found.option("mori-split").seconds
    found = advise("gemm_a2a", (8 * 4096, 18432, 16384), gemm_time="1232 us", **how)
    assert 1.04 < found.option("mori-split").seconds / found.option("mori").seconds < 1.3


def test_a_gemm_of_one_wave_hides_nothing_where_its_tiles_are_sent():
    """All tiles of a wave end together, so that the collective begins when the GEMM has ended."""
    found = advise("gemm_ag", (2048, 16384, 7168), "mi355x", "fp8", framework=False)
    pushed = found.option("mori-split").seconds - found.gemm_s
    assert found.option("mori").seconds == pytest.approx(found.gemm_s + pushed + costs()["mori.packet"])


def test_tiles_that_tma_stores_reach_their_owners_at_the_links_rate_a_wave_behind_the_gemm():
    found = advise("gemm_rs", (4096, 4096, 4096), "b300", framework=False)
    link = found.system.gpu.link
    stores = 7 / 8 * 4096 * 4096 * 2 / (link.bandwidth * link.kernel_efficiency)
    waves = pair_of(dependent("gemm_rs", share_of("gemm_rs", found.gemm, 8), 8), found.system).waves
    assert found.option("tma").seconds == pytest.approx(costs()["tma.start"] + found.gemm_s / waves + stores, rel=1e-3)
    assert found.option("tma").seconds < found.option("flux").seconds


@pytest.mark.parametrize("on", ["a100-sxm-80gb", "h100-sxm", "mi355x"])
def test_without_tma_over_nvlink_no_tiles_are_stored_by_it(on):
    assert "bulk copies by TMA" in advise("gemm_rs", (4096, 4096, 4096), on).left_out["tma"]


@pytest.mark.parametrize("form", ["ag_gemm", "gemm_rs", "gemm_ar", "gemm_ag", "gemm_a2a"])
@pytest.mark.parametrize("on", ["h100-sxm", "mi355x"])
@pytest.mark.parametrize("rows", [1024, 8192])
def test_no_way_takes_less_than_the_longer_part_as_that_way_carries_it_out(form, on, rows):
    """So that none saves more than the rule of thumb, unless copy engines or a switch carry the collective out faster.

    Without a framework's gap, chunks of a GEMM take no less than the whole but for the edges of its waves.
    """
    found = advise(form, (rows, 8192, 8192), on, framework=False)
    pair = pair_of(dependent(form, share_of(form, found.gemm, 8), 8), found.system)
    fastest = {
        "mori": 0.7 * 7 * pair.copy,  # kernels start the copies: without the host's commands
        "async-tp": 7 * pair.copy,
        "userbuffers": 7 * pair.copy,
        "dma": 7 * pair.copy,
        "dma-partition": 7 * pair.copy,
        "in-network": 0.0,
        "tma": 0.8 * found.collective_s,  # stores need no buffer of a ring, and no launch
    }
    for one in found.options[1:]:
        moved = min(found.collective_s, fastest.get(one.method.removesuffix("-split"), found.collective_s))
        assert one.seconds >= 0.93 * max(found.gemm_s, moved), one
        if one.method in ("flux", "priority") and form != "ag_gemm":
            assert 1 - 1 / one.speedup <= found.ideal_saving + 1e-9


def test_the_rule_of_thumb_is_the_shorter_over_the_sum():
    found = advise()
    assert found.ideal_saving == pytest.approx(
        min(found.gemm_s, found.collective_s) / (found.gemm_s + found.collective_s)
    )


@pytest.mark.parametrize("form", ["ag_gemm", "gemm_rs", "gemm_ar"])
def test_every_method_is_compared_or_left_out_with_the_reason(form):
    found = advise(form)
    joining = {name for name, one in OVERLAPS.items() if one.joins_gemms and one.compared}
    named = {one.method for one in found.options} | set(found.left_out)
    assert {*STRATEGIES, "sequential"} <= named
    assert joining - named == {"ideal-overlap", "ideal-rs-nmc"} & joining
    assert all(found.left_out.values())


def test_copy_engines_do_not_add():
    found = advise("gemm_rs", (8192, 8192, 28672))
    assert "cannot add" in found.left_out["dma"]
    assert found.option("priority").chunks in (2, 4, 8)


def test_hardware_that_the_system_lacks_is_named_and_never_best():
    found = advise("gemm_ar", (8192, 8192, 8192), "mi300x")
    assert "switches that add" in found.left_out["in-network"]
    named = advise("gemm_ar", (8192, 8192, 8192), "mi300x", methods=["in-network", "mori"])
    assert "switches that add" in named.option("in-network").needs
    assert named.option("in-network").seconds < named.option("mori").seconds
    assert named.best.method == "mori"
    assert "copy engines that kernels start" in advise("gemm_ar", (8192, 8192, 8192)).left_out["mori"]


def test_a_verdict_follows_the_interval():
    for one in advise().options[1:]:
        expected = "faster" if one.low > 1 else "slower" if one.high < 1 else UNRESOLVED
        assert one.verdict == expected


def test_the_engine_tells_streams_and_t3_as_well():
    found = weft.advise_fuse("gemm_rs", Gemm(2048, 1024, 4096, "bf16"), 8, "h100-sxm")
    assert found.option("t3-mca").needs
    assert found.option("streams").chunks in (2, 4, 8)


def test_a_curve_says_from_which_m_overlap_pays():
    """Small M: parts of a GEMM take as long as the whole, and gaps are not hidden."""
    found = advise("gemm_rs", (8192, 8192, 28672), m_range=(256, 16384))
    sizes = [one.gemm.m for one in found.curve]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (256, 16384)
    assert 256 < found.pays_from < 8192
    for one in found.curve:
        assert any(each.speedup > 1 for each in one.available) or one.gemm.m < found.pays_from


def test_a_gemm_of_its_own_kernel_takes_its_stated_time():
    found, slower = advise(), advise(gemm_time="2 ms")
    assert slower.gemm_s == 2e-3
    assert slower.serial.seconds - found.serial.seconds == pytest.approx(2e-3 - found.gemm_s)
    assert slower.option("priority").seconds > found.option("priority").seconds


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"methods": ["sequential"]}, "name another one"),
        ({"methods": ["in-network"]}, "is for a GEMM and the all-reduce behind it; choose one of"),
        ({"methods": ["streams"]}, "fidelity 'windows'"),
        ({"m_range": (8192, 512)}, "give the least and the largest"),
        ({"gemm_time": "-1 us"}, "a time above zero"),
        ({"gemm_time": "57 us", "m_range": (512, 8192)}, "leave one of them out"),
        ({"shape": (8192, 28676, 8192)}, "N is 28676, which 8 GPUs cannot share"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_next_step(how, words):
    with pytest.raises(InputError, match=words):
        advise(**how)


def test_an_unknown_form_or_method_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="ag_gemm"):
        advise("gemm_gemm")
    with pytest.raises(UnknownNameError, match="flux"):
        advise(methods=["fluxx"])


def test_the_command_writes_every_option_and_the_page(tmp_path):
    asked = ["advise", "fuse", "--gemm", "8192,28672,8192", "--collective", "all_gather", "--gpu", "h100-sxm"]
    quick = ["--fidelity", "estimate", "--m-range", "512,2048"]
    done = CliRunner().invoke(cli, [*asked, *quick, "--json", str(tmp_path / "o.json"), "--out", str(tmp_path / "o")])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "o.json").read_text())
    assert [one["method"] for one in record["options"]][:2] == ["sequential", "flux"]
    assert [one["gemm"][0] for one in record["curve"]] == [512, 768, 1024, 1536, 2048]
    assert "From which M does fusing pay?" in (tmp_path / "o" / "report.html").read_text()
    assert "Rule of thumb" in done.output


def test_options_before_the_subcommand_are_answered_with_the_command():
    done = CliRunner().invoke(cli, ["advise", "--gemm", "512,512,512", "--corun", "all_gather:1MiB", "--gpu", "mi300x"])
    assert "weft advise corun --gemm 512,512,512" in str(done.exception)
