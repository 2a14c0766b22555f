"""The CU-split study: splits that add up, means by hand, and what an all-reduce loses with few compute units."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from machines import finish, gpu

from weft.cli.options import parse_split
from weft.cli.study_cu_split import cu_split
from weft.engine import layout as y
from weft.errors import InputError, UnknownNameError
from weft.hardware import System, load
from weft.kernels.ring import RingTiling, WholeRing
from weft.overlap.machine import machine_tables
from weft.overlap.streams import CollectiveLoop, Streams
from weft.program import build
from weft.report.cu_split import cu_split_report
from weft.simulation import isolated_collective, together
from weft.simulation.execution import most_resident
from weft.studies.cu_split import CuSplitStudy, SplitCase, run
from weft.workload import Gemm

MIB = 1 << 20
GEMM = Gemm(1024, 1024, 512, "fp16")
CASE = SplitCase(
    ("t-nlg", 8, "op"),
    GEMM,
    gemm_s={0: 4e-3, 8: 5e-3, 16: 6e-3},
    ring_s={0: 2e-3, 8: 3e-3, 16: 2e-3},
    both={8: (5e-3, 4e-3), 16: (6e-3, 8e-3)},
)


def study(**changes):
    values = {
        "cases": (CASE,), "splits": (8, 16), "curve": (8, 16), "gpu": "t3-paper", "units": 80, "changed": (),
        "in_flight": 16384, "request_bytes": 512, "wall_s": 1.0,
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
    changed = study(changed=("memory.channels = 16",))
    assert not any(row.published for row in changed.headline())
    assert "the machine was changed (memory.channels = 16)" in changed.notes[0]
    assert "the published ones are of t3-paper, these of mi100" in study(gpu="mi100").notes[0]
    assert "1 of the 16" in study().notes[0]


def test_an_all_reduce_sends_each_byte_twice_but_its_own_share_and_may_be_repeated():
    ring = WholeRing(MIB, 4, RingTiling(workgroups=4))
    on = gpu(compute__compute_units=8)
    plan = Streams(None, CollectiveLoop(ring, 2)).plan(on)
    rows, shape = machine_tables(System(gpu=on, gpus=4), 1, 512, most_resident(plan, on))
    m = finish(build(plan, rows, shape))
    assert m.link[:, y.L_BYTES].sum() == 2 * ring.link_bytes() == 2 * 2 * 3 * MIB // 4


def ring(bytes_=16 * MIB, units=None, plain_ring=16 * 1024, ranks=4):
    run = isolated_collective(
        "all_reduce", bytes_, "t3-paper", ranks=ranks, units=units, plain_ring=plain_ring, request_bytes=512
    )
    return run.makespan_s


def test_few_workgroups_have_too_little_on_their_way_to_fill_the_link():
    """Twice the workgroups, or twice the bytes in flight of each, take about half the time."""
    seconds = {units: ring(units=units) for units in (4, 8, 16, None)}
    assert seconds[4] > 1.6 * seconds[8]
    assert seconds[8] > 1.15 * seconds[None]
    assert seconds[16] < 1.1 * seconds[None]
    assert ring(units=4, plain_ring=32768) == pytest.approx(seconds[8], rel=0.15)


def test_both_at_once_keep_to_their_own_units_and_share_the_rest():
    both = together(
        GEMM, "all_reduce", GEMM.output_bytes, "t3-paper", ranks=4, strategy="partition", units=8,
        plain_ring=16 * 1024, request_bytes=512,
    )  # fmt: skip
    assert both.collective_s >= 0.999 * ring(GEMM.output_bytes, units=8)
    assert both.gemm_s > 0
    assert both.units == {"gemm": 64, "collective": 8}  # one for each of its tiles


def test_the_page_shows_its_pictures(tmp_path):
    machine = load("t3-paper")
    page = cu_split_report(study(), tmp_path, machine).read_text()
    assert page.count("<svg") == 2
    name, runs = study().watch(machine)
    shown = cu_split_report(study(), tmp_path, machine, (name, runs)).read_text()
    assert shown.count("<svg") == 3
    assert "t-nlg op, TP 8, both at once" in shown
    assert "72-8, both at once" in page


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: parse_split("72-9", load("t3-paper")),
            InputError,
            "has 81 compute units, but t3-paper has 80",
        ),
        (lambda: parse_split("80-0", load("t3-paper")), InputError, "each side needs at least one"),
        (lambda: parse_split("half", load("t3-paper")), InputError, "like 72-8"),
        (lambda: run(splits=[80]), InputError, "each side needs at least one"),
        (lambda: run(["gpt-3"]), InputError, "has the models"),
        (lambda: run(["gpt-9"]), UnknownNameError, "model of the T3 study"),
        (lambda: ring(MIB, plain_ring=1000), InputError, "multiple of 512 B"),
        (lambda: ring(MIB, ranks=1), InputError, "at least 2"),
        (
            lambda: isolated_collective("all_gather", MIB, "t3-paper", plain_ring=512),
            InputError,
            "a plain ring is an all_reduce by compute units, not all_gather by cu",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_the_command_names_a_split_that_does_not_add_up():
    result = CliRunner().invoke(cu_split, ["--split", "72-16"])
    assert isinstance(result.exception, InputError)
    assert "the split 72-16 has 88 compute units, but t3-paper has 80" in str(result.exception)
