"""Figures: the data that they show is that of the result, and the same result gives the same picture."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vl_convert

import weft
from weft import view
from weft.core.errors import InputError
from weft.core.report.table import Table, number, text
from weft.graph import Collective, Gemm
from weft.models import SubLayer
from weft.models.parallel import split
from weft.simulate.result import Comparison, Residency, Timeline
from weft.simulate.result.timeline import words_of
from weft.view import looks
from weft.view.explorer import held_units, operator_looks, over_time, phases, waits_table
from weft.view.figure import Color, Figure, Label, Lines, bars, timeline_bars
from weft.view.units import COLUMNS, rectangles, unit_map


@functools.cache
def small() -> Comparison:
    return weft.compare(split(SubLayer.custom(1024, 1024, 512), 4), "t3-paper")


def simulated() -> dict[str, Timeline]:
    return {name: run for name, run in small().timelines.items() if not run.parts}


def sums(table: Table, key: str, value: str) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for row in table.records():
        found[row[key]] = found.get(row[key], 0.0) + row[value]
    return found


def test_causes_overlaps_and_strategies_have_colours_of_their_own() -> None:
    for colors in (looks.OVERLAPS, looks.STRATEGIES, looks.cause_looks(list(simulated()["t3"].traffic))):
        assert len(set(colors.values())) == len(colors)


def test_another_collective_has_the_colours_of_an_all_gather_and_its_own_name() -> None:
    assert looks.cause_color(("all_to_all", "read")) == looks.cause_color(("all_gather", "read"))
    assert "all_to_all reads" in looks.cause_looks([("all_to_all", "read")])


def test_a_collective_beside_a_gemm_has_another_colour_than_the_gemm() -> None:
    pair = weft.concurrent(weft.gemm(512, 512, 512), weft.all_reduce("1 MiB", ranks=2))
    colors = operator_looks(weft.simulate(pair, "t3-paper", "streams"))
    assert colors["all-reduce"] != colors["GEMM"]


def test_the_axis_of_bars_holds_its_words_its_marks_and_its_lowest_bar() -> None:
    table = Table([text("lane"), number("start"), number("end"), text("said")], [("a", -3.0, 5.0, "words" * 4)])
    marks = Lines(Table([number("at"), text("name")], [(9.0, "limit")]), "at", "name")
    figure = timeline_bars(
        "",
        table,
        lane="lane",
        start="start",
        end="end",
        color=Color("lane", {"a": looks.BLUE}),
        over=[Label("said"), marks],
    )
    scale = figure.spec["layer"][0]["encoding"]["x"]["scale"]
    low, room = scale["domainMin"], scale["domainMax"]["expr"]
    assert low == -3.0
    width = 500
    most = eval(room.replace("width", str(width)))  # the expression reads the same in Python
    assert most >= 9.0
    assert (5.0 - low) / (most - low) * width + 20 * 6 <= width
    assert ">limit</text>" in figure.svg()


def test_long_names_of_bars_break_between_words_and_short_ones_stay() -> None:
    names = ["further tokens come too late", "memory", "no fewer GPUs and no faster users than another"]
    table = Table([text("reason"), text("kind"), number("layouts")], [(name, "all", 3.0) for name in names])
    figure = bars("Why?", table, lane="reason", end="layouts", color=Color("kind", {"all": looks.BLUE}))
    drawn = figure.svg()
    for words in ("further tokens come", "too late", "memory", "no fewer GPUs and no", "faster users than"):
        assert f">{words}<" in drawn
    assert "…" not in drawn


def test_more_names_than_the_palette_has_get_colours_of_their_own() -> None:
    colors = looks.spread([f"kernel {at}" for at in range(3 * len(looks.PALETTE))])
    assert len(set(colors.values())) == len(colors)


def test_the_same_result_gives_the_same_picture() -> None:
    assert view.sub_layer_times(small()).svg() == view.sub_layer_times(small()).svg()


def test_a_picture_shows_itself_in_a_notebook() -> None:
    assert view.waits(simulated()["t3"])._repr_svg_().startswith("<svg")
    assert small().plot()._repr_svg_().startswith("<svg")
    assert view.waits(simulated()["t3"]).png().startswith(b"\x89PNG")


def test_pages_hold_the_vega_that_is_pinned() -> None:
    held = Path(view.__file__).with_name("vega.js").read_text(encoding="utf-8")
    assert held == vl_convert.javascript_bundle().replace("</script", "<\\/script"), "write it anew: make vega"


def test_figures_are_written_for_the_vega_lite_that_pages_hold() -> None:
    """Page and library agree on the major version: a page of another one warns in the console, and may stay blank."""
    schema = view.waits(simulated()["t3"]).spec["$schema"]
    (written,) = re.findall(r"/vega-lite/v(\d+)\.", schema)
    held = vl_convert.get_vegalite_versions()[-1]  # the version of its bundle, which vega.js is
    assert written == held.split(".")[0]
    code = Path(view.__file__).with_name("vega.js").read_text(encoding="utf-8")
    assert re.search(rf'="{re.escape(held)}\.\d+"', code)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: view.sub_layer_times(small()),
        lambda: view.speedups([small()], {"t3": 1.2}),
        lambda: view.traffic_by_cause(small()),
        lambda: view.traffic_by_cause([small()]),
        lambda: view.waits(list(simulated().values())),
        lambda: view.timeline(simulated()),
    ],
)
def test_every_mark_names_a_table_of_the_figure_and_has_a_tooltip_with_units(draw: Any) -> None:
    figure: Figure = draw()
    assert set(named(figure.spec)) <= {*figure.data}
    assert "tooltip" in str(figure.spec)
    assert "[" in "".join(column.title for table in figure.data.values() for column in table.columns) or figure.data


def named(spec: Any) -> list[str]:
    """The data sets that a specification names."""
    if isinstance(spec, dict):
        own = spec.get("data", {})
        here = [own["name"]] if isinstance(own, dict) and "name" in own else []
        return here + [name for value in spec.values() for name in named(value)]
    return [name for value in spec for name in named(value)] if isinstance(spec, list) else []


def test_speedups_hold_published_means_every_overlap_and_the_mean() -> None:
    figure = view.speedups([small()], {"t3": 1.2})
    names = {name for name in small().timelines if name != "sequential"}
    assert {row["overlap"] for row in figure.data["bars"].records()} == names
    assert figure.data["marks"].records() == [{"overlap": "t3", "speedup": 1.2}]
    means = {row["overlap"]: row["speedup"] for row in figure.data["bars"].records() if "mean" in row["layer"]}
    assert means["t3"] == pytest.approx(small().speedup("t3"))
    assert "[×]" in figure.svg()


def test_traffic_over_time_covers_the_bytes_of_the_run_by_cause() -> None:
    run = simulated()["t3"]
    figure = view.timeline({"t3": run})
    table = figure.data["run0_dram"]
    assert f"peak {run.gpu.memory.bandwidth / 1e9:,.0f} GB/s" in str(figure.spec)
    widths = [row["until_us"] - row["time_us"] for row in table.records()]
    heads = {column.key: column.head for column in table.columns}
    found = {heads[key]: sum(row[key] * w * 1e3 for row, w in zip(table.records(), widths, strict=True))
             for key in table.keys if key.startswith("v")}  # fmt: skip
    wanted = {words_of(cause): cause for cause in run.traffic}
    assert sum(found.values()) == pytest.approx(run.total_bytes, rel=1e-3)
    for words, moved in found.items():
        assert moved == pytest.approx(run.traffic[wanted[words]], rel=2e-3, abs=100)


def test_a_run_of_many_bins_is_shown_in_few_and_loses_no_bytes() -> None:
    run = simulated()["t3"]
    series = run.series
    assert series is not None
    rate = series.link[0] / (series.bin_fs * 1e-15) / 1e9
    table = over_time(run, {"link": rate}, 7)
    assert len(table.rows) <= 7
    assert sum((row[1] - row[0]) * row[2] for row in table.rows) == pytest.approx(
        rate.sum() * series.bin_fs * 1e-9, rel=1e-3
    )


def test_traffic_by_cause_adds_up_to_what_dram_moved() -> None:
    moved = sums(view.traffic_by_cause(small()).data["bars"], "overlap", "mb")
    assert moved == {name: pytest.approx(run.total_bytes / 1e6) for name, run in simulated().items()}
    shares = view.traffic_by_cause([small()]).data["bars"]
    assert sums(shares, "overlap", "share")["sequential"] == pytest.approx(1)


def test_waits_of_each_kernel_add_up_to_all_of_its_time() -> None:
    assert all(
        total == pytest.approx(1)
        for total in sums(view.waits(list(simulated().values())).data["bars"], "kernel", "share").values()
    )


def test_an_ideal_has_no_events_to_explore_but_phases_by_its_definition() -> None:
    ideal = small()["ideal-overlap"]
    found = phases(ideal)
    assert found["gemm"][0] == found["reduce_scatter"][0] == 0
    assert found["all_gather"][0] == pytest.approx(max(found["gemm"][1], found["reduce_scatter"][1]))
    with pytest.raises(InputError, match=r"'ideal-overlap' has no .* ideal"):
        view.timeline({"ideal": ideal})


def test_the_fused_reduce_scatter_begins_before_the_gemm_ends() -> None:
    found = phases(simulated()["t3"])
    assert found["gemm"][0] < found["reduce_scatter"][0] < found["gemm"][1]


def test_the_explorer_says_what_every_kernel_and_chunk_waited_for() -> None:
    waits = waits_table(simulated()).records()
    assert {row["run"] for row in waits} == set(simulated())
    assert {"what": "all_gather", "for": "reduce-scatter (RS) to end"}.items() <= next(
        row for row in waits if row["run"] == "sequential" and row["what"] == "all_gather"
    ).items()
    assert any(row["for"] == "its launch" for row in waits)
    assert [row["long_us"] for row in waits] == sorted((row["long_us"] for row in waits), reverse=True)


def test_compute_units_are_held_once_however_many_workgroups_share_them() -> None:
    units, starts, ends = np.array([0, 0, 1]), np.array([0, 50, 25]), np.array([100, 150, 75])
    held = held_units(units, starts, ends, np.array([0.0, 100.0, 200.0]))
    assert held.tolist() == [1.5, 0.5]
    assert held_units(units[:0], starts[:0], ends[:0], np.array([0.0, 1.0])).tolist() == [0]


def test_streams_show_who_ran_who_waited_and_why(tmp_path: Any) -> None:
    gemm = Gemm(2048, 2048, 1024, "bf16")
    for name, overlap in (("all_reduce", "streams"), ("all_gather", "dma")):
        graph = weft.concurrent(gemm, Collective(name, 16 << 20, 4), gemms=2, collectives=2)
        both = weft.compare(graph, "a100-sxm-80gb", [overlap])
        answer = both.corun()
        owners = {row["owner"] for row in view.held_units(answer).data["held"].records()}
        assert {owner.removeprefix("every second ") for owner in owners} == {"GEMM"} | (
            {name} if overlap == "streams" else set()
        )
        assert "GEMM reads" in str(view.timeline(answer.run).spec)
        assert "computing" in {row["what"] for row in view.stream_waits(answer).data["bars"].records()}
        page = both.save(tmp_path / name / "report.html").read_text()
        assert "serial" in page
    until = 2 * answer.makespan * 1e6  # several runs are compared on one time axis
    assert f"[0, {until}]" in str(view.held_units(answer, until / 1e6).spec)


def test_workgroups_share_the_lines_of_their_unit_and_leave_none_to_nobody() -> None:
    half = COLUMNS // 2
    rows = np.array([[0, 0, 0, 0, COLUMNS], [0, 1, 0, half, COLUMNS], [0, 1, 1, 0, half]])
    image = unit_map(Residency(("gemm 0", "all_gather 0"), rows, 2), [["gemm 0"], ["all_gather 0"]], COLUMNS)
    assert image.shape == (4, COLUMNS)
    assert image[:, 0].tolist() == [1, 1, 2, 2]
    assert image[:, -1].tolist() == [1, 2, 0, 0]
    assert (image[:2] == 0).sum() == 0
    drawn = np.zeros_like(image)
    for owner, low, high, first, last in rectangles(image):
        assert not drawn[low:high, first:last].any()
        drawn[low:high, first:last] = owner
    assert (drawn == image).all()
