"""Pictures: what they promise to show, and that the same result gives the same picture."""

from __future__ import annotations

import functools

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PolyCollection

import weft
from weft.errors import InputError
from weft.models import SubLayer
from weft.parallel import split
from weft.report import plots
from weft.report.plots.style import CAUSES, OVERLAPS, cause_look
from weft.result import Comparison, Timeline


@functools.cache
def small() -> Comparison:
    return weft.compare(split(SubLayer.custom(1024, 1024, 512), 4), "t3-paper")


def texts(figure: plots.Picture) -> str:
    return figure.svg()


def simulated() -> list[Timeline]:
    return [result for result in small() if not result.parts]


def test_every_cause_and_overlap_has_its_own_colour_or_hatch() -> None:
    for looks in (CAUSES.values(), OVERLAPS.values()):
        assert len({(look.color, look.hatch) for look in looks}) == len(looks)


def test_compute_is_plain_and_ring_traffic_is_hatched_so_that_grey_print_tells_them_apart() -> None:
    assert all(
        bool(look.hatch) == (operator in ("reduce_scatter", "all_gather")) for (operator, _), look in CAUSES.items()
    )


def test_the_same_result_gives_the_same_picture() -> None:
    assert plots.timeline(small()["t3"]).svg() == plots.timeline(small()["t3"]).svg()


def test_a_picture_leaves_the_users_settings_alone() -> None:
    before = dict(mpl.rcParams)
    plots.sub_layer_times(small()).svg()
    assert dict(mpl.rcParams) == before


def test_speedups_show_published_means_and_every_overlap() -> None:
    svg = texts(plots.speedups([small()], {"t3": 1.2}))
    assert "t3 1.20" in svg
    assert all(name in svg for name in small().timelines if name != "sequential")
    assert "[×]" in svg


def test_traffic_over_time_draws_the_peak_of_the_simulated_memory() -> None:
    svg = texts(plots.traffic_over_time(simulated()[0]))
    assert "peak 1024 GB/s" in svg
    assert "time [µs]" in svg


def area(drawn: PolyCollection) -> float:
    """What a filled polygon covers, by the shoelace formula."""
    (path,) = drawn.get_paths()
    x, y = path.vertices.T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))) / 2


def test_stacked_traffic_over_time_covers_the_bytes_of_the_run_by_cause() -> None:
    run = small()["t3"]
    (axes,) = plots.traffic_over_time(run).axes
    drawn = [area(part) * 1e3 for part in axes.collections if isinstance(part, PolyCollection)]  # GB/s x us = kB
    moved = [run.traffic[cause] for cause in CAUSES if run.traffic.get(cause)]
    assert drawn == pytest.approx(moved, rel=1e-9)
    assert sum(drawn) == pytest.approx(run.total_bytes)


def test_the_busiest_stages_are_found_under_t3_and_not_under_sequential() -> None:
    window = plots.busiest_stages(small()["t3"])
    assert window is not None
    assert 0 <= window[0] < window[1] <= small()["t3"].seconds * 1e6
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
    from weft.graph import Collective, Gemm
    from weft.report import corun_report
    from weft.report.plots import channel_owners, held_units, stream_waits

    gemm = Gemm(2048, 2048, 1024, "bf16")
    for name, overlap in (("all_reduce", "streams"), ("all_gather", "dma")):
        graph = weft.concurrent(gemm, Collective(name, 16 << 20, 4), gemms=2, collectives=2)
        both = weft.compare(graph, "a100-sxm-80gb", [overlap])
        answer = both.corun()
        assert name in held_units(answer).svg()
        assert "GEMM reads" in channel_owners(answer).svg()
        assert "computing" in stream_waits(answer).svg()
        page = corun_report(both, tmp_path / name).read_text()
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


def test_another_collective_has_the_colours_of_an_all_gather_and_its_own_name() -> None:
    assert cause_look(("all_gather", "read")).label == "AG reads"
    look = cause_look(("all_to_all", "read"))
    assert look == cause_look(("all_gather", "read"))._replace(label="all_to_all reads")
    assert cause_look(("gemm", "read")).label == "GEMM reads"
