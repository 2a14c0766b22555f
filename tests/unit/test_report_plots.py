"""Pictures: what they promise to show, and that the same result gives the same picture."""

from __future__ import annotations

import functools

import matplotlib as mpl
import pytest

import weft
from weft.errors import InputError
from weft.parallel.tensor import split
from weft.report import plots
from weft.report.plots.style import CAUSES, OVERLAPS, cause_look
from weft.result import Comparison, Result
from weft.workload import SubLayer


@functools.cache
def small() -> Comparison:
    return weft.compare(split(SubLayer.custom(1024, 1024, 512), 4), "t3-paper")


def texts(figure: plots.Picture) -> str:
    return figure.svg()


def simulated() -> list[Result]:
    return [result for result in small() if not result.parts]


def test_every_cause_and_overlap_has_its_own_colour_or_hatch() -> None:
    for looks in (CAUSES.values(), OVERLAPS.values()):
        assert len({(look.color, look.hatch) for look in looks}) == len(looks)


def test_compute_is_plain_and_ring_traffic_is_hatched_so_that_grey_print_tells_them_apart() -> None:
    assert all(bool(look.hatch) == name.startswith(("rs_", "ag_")) for name, look in CAUSES.items())


def test_the_same_result_gives_the_same_picture() -> None:
    assert plots.timeline(small()["t3"]).svg() == plots.timeline(small()["t3"]).svg()


def test_a_picture_leaves_the_users_settings_alone() -> None:
    before = dict(mpl.rcParams)
    plots.sub_layer_times(small()).svg()
    assert dict(mpl.rcParams) == before


def test_speedups_show_published_means_and_every_overlap() -> None:
    svg = texts(plots.speedups([small()], {"t3": 1.2}))
    assert "t3 1.20" in svg
    assert all(name in svg for name in small().results if name != "sequential")
    assert "[×]" in svg


def test_traffic_over_time_draws_the_peak_of_the_simulated_memory() -> None:
    svg = texts(plots.traffic_over_time(simulated()[0]))
    assert "peak 1024 GB/s" in svg
    assert "time [µs]" in svg


def test_stacked_traffic_over_time_adds_up_to_the_bytes_of_the_run() -> None:
    run = small()["t3"]
    assert run.series is not None
    drawn = sum(run.series.rate(cause).sum() for cause in run.series.traffic) * run.series.bin_fs * 1e-15
    assert drawn == pytest.approx(run.total_bytes)


def test_the_busiest_stages_are_found_under_t3_and_not_under_sequential() -> None:
    window = plots.busiest_stages(small()["t3"])
    assert window is not None
    assert 0 <= window[0] < window[1] <= small()["t3"].total_us
    assert plots.busiest_stages(small()["sequential"]) is None


def test_an_ideal_has_no_timeline_and_says_so() -> None:
    ideal = small()["ideal-overlap"]
    for draw in (plots.timeline, plots.traffic_over_time):
        with pytest.raises(InputError, match=r"'ideal-overlap' has no .* ideal"):
            draw(ideal)


def test_phases_of_an_ideal_follow_its_definition() -> None:
    ideal = small()["ideal-overlap"]
    phases = plots.phases(ideal)
    assert phases["gemm"][0] == phases["reduce_scatter"][0] == 0
    assert phases["all_gather"][0] == pytest.approx(max(phases["gemm"][1], phases["reduce_scatter"][1]))


def test_the_fused_reduce_scatter_begins_before_the_gemm_ends() -> None:
    phases = plots.phases(small()["t3"])
    assert phases["gemm"][0] < phases["reduce_scatter"][0] < phases["gemm"][1]


def test_near_bars_are_drawn_as_one_and_far_ones_apart() -> None:
    assert plots.merged([(5, 6), (0, 1), (1.1, 2)], gap=0.5) == [(0, 2), (5, 1)]


def test_timeline_waits_and_traffic_by_cause_name_what_they_show() -> None:
    timeline = texts(plots.timeline(small()["t3-mca"]))
    assert "RS chunk 1" in timeline
    assert "engine 0" in timeline
    assert "t3: GEMM" in texts(plots.waits(simulated()))
    assert "MB" in texts(plots.traffic_by_cause(small()))
    assert "% of sequential" in texts(plots.traffic_by_cause([small()]))


def test_a_picture_shows_itself_in_a_notebook() -> None:
    assert plots.waits(simulated()[0])._repr_svg_().startswith("<svg")
    assert small().plot()._repr_svg_().startswith("<svg")


def test_streams_show_who_ran_who_waited_and_why(tmp_path):
    from weft.report import concurrency_report
    from weft.report.plots import channel_owners, held_units, stream_waits
    from weft.simulation import beside
    from weft.workload import Gemm

    gemm = Gemm(2048, 2048, 1024, "bf16")
    for name, strategy in (("all_reduce", "streams"), ("all_gather", "dma")):
        answer = beside(
            gemm, name, 16 << 20, "a100-sxm-80gb", ranks=4, gemms=2, collectives=2, strategy=strategy
        )
        assert name in held_units(answer).svg()
        assert "GEMM reads" in channel_owners(answer).svg()
        assert "computing" in stream_waits(answer).svg()
        page = concurrency_report(answer, tmp_path / name).read_text()
        assert "one after the other" in page
    for drawn in (held_units, channel_owners):  # several runs are compared on one time axis
        until = 2 * answer.makespan
        assert {ax.get_xlim()[1] for ax in drawn(answer, until).axes[:2]} == {until * 1e6}


def test_workgroups_share_the_lines_of_their_unit_and_leave_none_to_nobody():
    import numpy as np

    from weft.report.plots.units import COLUMNS, unit_map
    from weft.result import Residency

    half = COLUMNS // 2
    rows = np.array([[0, 0, 0, 0, COLUMNS], [0, 1, 0, half, COLUMNS], [0, 1, 1, 0, half]])
    image = unit_map(Residency(("gemm 0", "all_gather 0"), rows, 2), [["gemm 0"], ["all_gather 0"]], COLUMNS)
    assert image.shape == (4, COLUMNS)
    assert image[:, 0].tolist() == [1, 1, 2, 2]
    assert image[:, -1].tolist() == [1, 2, 0, 0]
    assert (image[:2] == 0).sum() == 0


def test_rs_and_ag_go_by_the_name_of_another_collective() -> None:
    assert cause_look("ag_read").label == "AG reads"
    assert cause_look("ag_read", "all_to_all").label == "all_to_all reads"
    assert cause_look("gemm_read", "all_to_all").label == "GEMM reads"
