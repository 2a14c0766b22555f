"""The CU-split study: splits that add up, means by hand, and what an all-reduce loses with few compute units."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from weft import hardware
from weft.cli.values import split
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.graph import Collective, Gemm, LibraryCollective, concurrent
from weft.models.parallel import sublayer
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.masks import apart_of
from weft.papers.command import command_of
from weft.papers.cu_split import CuSplitStudy, SplitCase, run
from weft.simulate import alone
from weft.simulate.single import simulate

MIB = 1 << 20
GEMM = Gemm(1024, 1024, 512, "fp16")
CASE = SplitCase(
    sublayer("t-nlg", "op", 8),
    gemm_s={0: 4e-3, 8: 5e-3, 16: 6e-3},
    ring_s={0: 2e-3, 8: 3e-3, 16: 2e-3},
    both={8: (5e-3, 4e-3), 16: (6e-3, 8e-3)},
)


def study(**changes):
    values = {
        "cases": (CASE,), "splits": (8, 16), "curve": (8, 16), "machine": hardware.gpu("t3-paper"), "in_flight": 16384,
        "request_bytes": 512, "wall_s": 1.0,
    }  # fmt: skip
    return CuSplitStudy(**{**values, **changes})


def test_speedups_are_against_one_after_the_other_on_all_units():
    assert CASE.speedup(0) == pytest.approx(6 / 4)
    assert CASE.speedup(8) == pytest.approx(6 / 5)
    assert CASE.simulated(16) == pytest.approx(6 / 8)
    assert CASE.ring_slowdown(8) == pytest.approx(0.5)
    assert CASE.gemm_slowdown(16) == pytest.approx(0.5)


def test_published_figures_stand_beside_the_papers_machine_only():
    assert {row.id: row.published for row in study().headline() if row.published} == {
        "cu_split.72_8.ar_slowdown": 0.41,
        "cu_split.72_8.speedup": 1.18,
        "cu_split.64_16.ar_slowdown": 0.07,
        "cu_split.64_16.gemm_slowdown": 0.21,
        "cu_split.64_16.speedup": 1.49,
        "cu_split.ideal.speedup": 1.67,
    }
    changed = study(machine=hardware.gpu("t3-paper").replace({"memory.channels": "16"}))
    assert not any(row.published for row in changed.headline())
    assert "the machine was changed (memory.channels = 16)" in changed.notes[0]
    assert "the published ones are of t3-paper, these of mi100" in study(machine=hardware.gpu("mi100")).notes[0]
    assert "1 of the 16" in study().notes[0]


def ring(bytes_=16 * MIB, units=None, in_flight=16 * 1024, ranks=4, name="all_reduce", count=1):
    op = Collective(name, bytes_, ranks, "fp16")
    graph = alone(op, kernel=LibraryCollective(channels=units))
    graph = replace(graph, nodes=tuple(replace(graph.nodes[0], iteration=i) for i in range(count)))
    overlap = replace(STRATEGIES["streams"], in_flight=in_flight)
    return simulate(graph, "t3-paper", overlap, RunOptions(request_bytes=512))


def test_an_all_reduce_sends_each_byte_twice_but_its_own_share_and_may_be_repeated():
    assert ring(MIB, units=4).counters["link_bytes"] == 2 * 3 * MIB // 4
    assert ring(MIB, units=4, count=2).counters["link_bytes"] == 2 * 2 * 3 * MIB // 4


def test_few_workgroups_have_too_little_in_flight_to_fill_the_link():
    """Twice the workgroups, or twice the bytes in flight of each, take about half the time."""
    seconds = {units: ring(units=units).makespan for units in (4, 8, 16, None)}
    assert seconds[4] > 1.6 * seconds[8]
    assert seconds[8] > 1.15 * seconds[None]
    assert seconds[16] < 1.1 * seconds[None]
    assert ring(units=4, in_flight=32768).makespan == pytest.approx(seconds[8], rel=0.15)


def test_both_at_once_keep_to_their_own_units_and_share_the_rest():
    graph = concurrent(GEMM, Collective("all_reduce", GEMM.output_bytes, 4, "fp16"))
    split = replace(STRATEGIES["partition"], units=8, in_flight=16 * 1024)
    both = simulate(graph, "t3-paper", split, RunOptions(request_bytes=512))
    assert both.end("all_reduce") >= 0.999 * ring(GEMM.output_bytes, units=8).makespan
    assert both.end("gemm") > 0
    assert both.held == {"gemm": 64, "all_reduce": 8}  # one for each of its tiles


def test_the_page_shows_its_pictures(tmp_path):
    page = study().page(tmp_path).read_text()
    assert page.count("<figure") == 2
    shown = study().page(tmp_path, study().watch()).read_text()
    assert shown.count("<figure") == 3
    assert "t-nlg op, TP 8, both at once" in shown
    assert "GEMM on 72 CUs, all-reduce on 8, both at once" in page


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: apart_of(72, 9, hardware.gpu("t3-paper")),
            InputError,
            "has 81 compute units, but t3-paper has 80",
        ),
        (lambda: apart_of(80, 0, hardware.gpu("t3-paper")), InputError, "each side needs at least one"),
        (lambda: split("half"), InputError, "like 72-8"),
        (lambda: run(splits=[80]), InputError, "each side needs at least one"),
        (lambda: run(["gpt-3"]), InputError, "has the models"),
        (lambda: run(["gpt-9"]), UnknownNameError, "model of the T3 study"),
        (lambda: ring(MIB, in_flight=1000), InputError, "multiple of 512 B"),
        (lambda: ring(MIB, ranks=1), InputError, "at least 2"),
        (
            lambda: ring(MIB, name="all_gather", in_flight=512),
            InputError,
            "a PaperAllReduce, carries out all_reduce, but this is all_gather",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_the_command_names_a_split_that_does_not_add_up():
    result = CliRunner().invoke(command_of("cu-split"), ["--split", "72-16"])
    assert isinstance(result.exception, InputError)
    assert "the split 72-16 has 88 compute units, but t3-paper has 80" in str(result.exception)
