"""Tables made of small simulations, and the advice that `weft advise corun` gives from them."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from shown import check_shown

from weft import hardware
from weft.cli.kernels import advise as command
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.estimate.errors import (
    BESIDE,
    C3_SPEEDUPS,
    CARRIED,
    collective_error,
    contention_error,
    gemm_error,
    joined_error,
)
from weft.graph import Collective, Gemm, concurrent
from weft.hardware import System
from weft.overlaps import STRATEGIES
from weft.papers.c3.study import DECLARED, IDS
from weft.plan.tune import advise, load_tables, probes, splits_of, tables_for
from weft.plan.tune.advice import Advice, knobs_for, label
from weft.plan.tune.perturb import ENDS, moves, option_move, perturb, sharing_values
from weft.simulate import compare
from weft.simulate.single import simulate
from weft.sweep.simulations import Bench

MIB = 1 << 20
SHAPE = Gemm(1024, 2048, 1024, "bf16")
ERRORS = Path(__file__).parents[2] / "docs/explanation/errors"


@pytest.fixture(scope="module")
def small():
    """Probes that take seconds: small GEMMs, small collectives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "SIZES", (MIB, 4 * MIB, 16 * MIB))
        patch.setattr(probes, "ROWS", (64, 1024))
        patch.setattr(probes, "WIDE", 1024)
        patch.setattr(probes, "CHECKS", ((512, 1024, 2048),))
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def gathered(small, store) -> Advice:
    return advise(SHAPE, Collective("all_gather", 8 * MIB, 8), "h100-sxm", store=store)


def test_advice_is_shown_in_every_way(gathered, tmp_path):
    check_shown(gathered, tmp_path)


def test_nothing_is_simulated_twice(gathered, store):
    seen = []
    again = advise(
        SHAPE,
        Collective("all_gather", 8 * MIB, 8),
        "h100-sxm",
        store=store,
        progress=lambda done, total, what: seen.append((done, total)),
    )
    assert seen
    assert all(done == total for done, total in seen)
    assert again.to_dict() == gathered.to_dict()


def test_the_advice_is_the_best_of_what_was_simulated_and_lies_within_its_doubts(gathered):
    assert gathered.speedup >= max(map(gathered.speedup_of, gathered.simulated)) / 1.003
    assert gathered.low <= gathered.speedup <= gathered.high
    assert gathered.loss >= -0.003
    assert {one.strategy for one in gathered.simulated} >= {"streams", "priority", "partition", "dma"}


def test_a_partition_whose_mask_is_too_small_for_the_librarys_channels_says_what_that_costs(gathered):
    pair = concurrent(SHAPE, gathered.collective)
    both = compare(pair, "h100-sxm", [replace(STRATEGIES["partition"], units=8)]).corun()
    advice = replace(gathered, masked=both)
    assert advice.to_dict()["mask_alone"]["channels"] == 24
    assert advice.to_dict()["mask_alone"]["rounds"] == 3
    assert any("24 run on it in 3 rounds" in sentence for sentence in advice.report().sentences())
    assert gathered.masked is None or gathered.masked.rounds > 1


def test_channels_that_are_asked_for_hold_wherever_compute_units_drive_the_collective(gathered, store):
    asked = advise(SHAPE, gathered.collective, "h100-sxm", channels=12, spread=False, store=store)
    by_units = [one for one in asked.options if not one.strategy.startswith("dma")]
    assert [one.channels for one in by_units] == [12] * len(by_units)
    assert {one.strategy for one in gathered.simulated if one.channels == 24} == {"streams", "priority"}
    assert asked.alone == gathered.alone, "the baseline stays the library's own"
    assert any(
        "has 12 channels, as asked; the library's own number is 24" in told for told in asked.report().sentences()
    )
    assert asked.to_dict()["channels"] == 12


def test_the_page_of_advice_with_channels_is_written(gathered, store, tmp_path):
    asked = advise(SHAPE, gathered.collective, "h100-sxm", channels=12, spread=False, store=store)
    assert "as asked" in asked.save(tmp_path / "report.html").read_text()


def test_every_strategy_is_confirmed_near_to_what_the_tables_expect(gathered):
    off = [one.forecast_s / one.run.makespan - 1 for one in gathered.simulated if one.run]
    assert max(map(abs, off)) < 0.35


def test_assumed_values_of_dma_engines_matter_only_where_these_copy(gathered, small, store):
    assert gathered.best.strategy == "dma"
    assert any("dma" in doubt.why for doubt in gathered.doubts)
    by_units = advise(SHAPE, Collective("reduce_scatter", 8 * MIB, 8), "h100-sxm", store=store)
    assert not any("dma" in doubt.why for doubt in by_units.doubts)
    assert any("link.latency" in doubt.why for doubt in by_units.doubts)


def test_every_doubt_of_an_assumed_value_moves_the_speedup(gathered):
    assumed = [doubt for doubt in gathered.doubts if "uncertain" in doubt.why]
    assert len(assumed) >= 3
    assert all((doubt.low, doubt.high) != (gathered.speedup,) * 2 for doubt in assumed)


# Small enough to be cheap, large enough for library rings of large buffers, and for queues of the memory.
PRODUCT, BENCH = Gemm(64, 8192, 8192, "bf16"), Bench.of("mi300x", 8)
LARGE, SMALL = (Collective("all_gather", size, 8) for size in (32 * MIB, MIB))
TASKS = {
    "gemm": BENCH.gemm(PRODUCT),
    "collective": BENCH.collective(LARGE),
    "collective, small": BENCH.collective(SMALL),
    "copies": BENCH.collective(LARGE, 0),
    "priority": BENCH.together(PRODUCT, LARGE, "priority"),
}
"""A GEMM, a collective by compute units and by DMA engines, each alone, and both under a strategy."""


def times(system: System) -> dict[str, float]:
    """What each task takes on a system [s]."""
    return {name: simulate(task.graph, system, task.overlap, task.options).makespan for name, task in TASKS.items()}


@pytest.fixture(scope="module")
def as_it_is() -> dict[str, float]:
    return times(BENCH.system)


VALUES = sharing_values(BENCH.system, "bf16")
PATHS = [(one, path) for one in VALUES for path in one.paths if not path.startswith("library.")]


ROW_CYCLE = {f"memory.timing.{name}" for name in ("ras", "rp", "rc")}
"""A rule ties these to one another: they move together."""


def at_ends(path: str) -> Iterator[System]:
    """The system with a value at each end of its range that is another one and breaks no rule."""
    provenance = BENCH.system.provenance
    together = ROW_CYCLE if path in ROW_CYCLE else {path}
    for end in ("low", "high"):
        texts = {one: getattr(provenance[one], end) or "1100 MHz" for one in together}
        try:
            moved = BENCH.system.replace(texts)
        except InputError:
            continue
        if moved.value(path) != BENCH.system.value(path):
            yield moved


@pytest.mark.parametrize(("values", "path"), PATHS, ids=[path for _, path in PATHS])
def test_each_assumed_value_changes_what_it_is_said_to_change_and_nothing_else(values, path, as_it_is):
    by_end = ({name for name, time in times(moved).items() if time != as_it_is[name]} for moved in at_ends(path))
    changed: set[str] = next(filter(None, by_end), set())  # requests coarser than the queue hide its lower end
    assert changed
    assert "gemm" in values.parts or "gemm" not in changed
    assert "cu" in values.parts or not changed & {"collective", "collective, small"}
    assert "dma" in values.parts or "copies" not in changed
    assert values.parts != {"dma"} or changed == {"copies"}


def test_both_limits_of_the_rate_of_copies_are_moved_together(as_it_is):
    low, high = moves(BENCH.system, [one for one in VALUES if "dma.bandwidth" in one.paths])
    assert set(low.values) == set(high.values) == {"dma.bandwidth", "link.dma_efficiency"}
    fast = high(TASKS["copies"])
    assert simulate(fast.graph, fast.system, fast.overlap).makespan < 0.95 * as_it_is["copies"]


@pytest.mark.parametrize(
    ("collective", "bytes_"), [("all_gather", 256 * MIB), ("all_to_all", 64 * MIB)], ids=["ring", "pairs"]
)
def test_fewer_bytes_in_flight_make_the_librarys_collectives_slower(collective, bytes_):
    few, many = moves(BENCH.system, [one for one in VALUES if "workgroups" in one.what])
    task = BENCH.collective(Collective(collective, bytes_, 8))
    slow, chosen, fast = (
        simulate(one.graph, one.system, one.overlap).makespan for one in (few(task), task, many(task))
    )
    assert chosen < slow
    assert fast < 1.02 * chosen  # more bytes in flight than fill the links wait at the links


def test_a_value_is_moved_only_in_the_runs_that_depend_on_it():
    for move in moves(BENCH.system, VALUES):
        tasks = {"gemm": TASKS["gemm"], "cu": TASKS["collective"], "dma": TASKS["copies"]}
        assert {name for name, task in tasks.items() if move(task) != task} == move.parts
        beside = BENCH.together(PRODUCT, LARGE, "dma")
        assert (move(beside) != beside) == bool(move.parts & {"gemm", "dma"})


def test_what_is_moved_is_told_by_its_values_and_the_end():
    found = {(move.what, move.setting): move for move in moves(BENCH.system, VALUES, measured=True)}
    assert ("how much an engine has in flight (dma.window)", "32 KiB") in found
    assert ("what a copy costs host and engine (dma, 7 values)", "high") in found
    (held,) = {what for what, _ in found if what.startswith("how much the library's workgroups")}
    assert {setting for what, setting in found if what == held} == set(ENDS)


def test_options_are_moved_like_values():
    task = TASKS["gemm"]
    assert option_move("clock", clock="short")(task).options.clock == "short"
    assert option_move("requests", request_bytes=8192)(task).options.request_bytes == 8192
    rows = perturb([task], [option_move("clock", clock="short")], lambda runs: {"us": runs[task].makespan * 1e6})
    assert [row.what for row in rows] == ["as chosen", "clock"]
    assert rows[1].setting == "short"
    assert rows[1].figures["us"] != rows[0].figures["us"]


def test_a_reducing_collective_is_told_why_dma_engines_are_left_out(small, store):
    advice = advise(SHAPE, Collective("reduce_scatter", 8 * MIB, 8), "h100-sxm", store=store, spread=False)
    assert "cannot add" in advice.why_no_dma
    assert advice.why_no_dma in advice.report().sentences()
    assert not any(one.strategy.startswith("dma") for one in advice.options)
    assert advice.crossover is None


def test_the_page_says_what_to_take_and_what_to_set(gathered, tmp_path):
    page = gathered.save(tmp_path / "report.html").read_text()
    assert gathered.name_of(gathered.best) in page
    assert gathered.knobs[0].source in page
    assert page.count("<figure") == 3


def test_the_command_writes_the_advice_and_tables_that_choose_the_same(small, store, tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    shape = f"{SHAPE.m},{SHAPE.n},{SHAPE.k}"
    asked = ["corun", "--gemm", shape, "--corun", "all_gather:8MiB", "--gpu", "h100-sxm", "--jobs", "1", "--quick"]
    done = CliRunner().invoke(command, [*asked, "--json", str(tmp_path / "a.json"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "a.json").read_text())
    best = found["best"]
    named = label(best["strategy"], best["units"], "SMs")
    assert f"Use {named}: " in done.output
    tables = load_tables(tmp_path / "out/tables.json")
    assert tables.collectives["all_gather"].bytes == (MIB, 4 * MIB, 16 * MIB)
    assert (tmp_path / "out/report.html").exists()


def test_a_gemm_without_three_sizes_and_an_unknown_collective_are_refused():
    runner = CliRunner()
    two = runner.invoke(command, ["--gemm", "8,8", "--corun", "all_gather:1MiB", "--gpu", "h100-sxm"])
    assert isinstance(two.exception, InputError)
    with pytest.raises(UnknownNameError, match="all_gather, all_to_all"):
        tables_for("h100-sxm", ["all_scatter"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"bytes": 100 << 40},
            "the buffer of the all_gather is 100 TiB, but the memory of each GPU holds 206.1 GB",
        ),
        ({"ranks": 9}, "9 GPUs cannot be spread evenly over 2 nodes"),
        ({"ranks": 16}, "16 ranks do not fit into a node; take at most 8"),
        ({"request_bytes": 100}, "the request size is 100 B"),
    ],
)
def test_what_no_machine_can_do_is_refused_before_the_first_run(options, sentence):
    ran = []
    given = {"bytes": 1 << 20, "ranks": 8, "request_bytes": None, **options}
    with pytest.raises(InputError, match=sentence):
        advise(
            Gemm(512, 512, 512, "bf16"),
            Collective("all_gather", given["bytes"], given["ranks"]),
            "mi300x",
            RunOptions(request_bytes=given["request_bytes"]),
            progress=lambda *what: ran.append(what),
        )
    assert ran == []


def test_a_machine_without_a_collective_library_is_refused():
    with pytest.raises(InputError, match="no collective library is known for t3-paper"):
        tables_for("t3-paper")


def test_splits_take_as_many_units_of_every_die():
    assert splits_of(hardware.gpu("mi300x")) == (8, 16, 32, 64, 128)
    assert splits_of(hardware.gpu("h100-sxm")) == (4, 8, 16, 32)


def test_slowdowns_are_read_from_when_both_ended():
    # The collective (2 s alone) ends at 3 s, the GEMM (4 s alone) at 6 s: by 3 s it had done 1 s of its work.
    found = probes.slowdowns(6.0, 3.0, gemm_s=4.0, collective_s=2.0)
    assert found == pytest.approx((3.0, 1.5))
    assert probes.slowdowns(4.0, 2.0, gemm_s=4.0, collective_s=2.0) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("gpu", ["mi300x", "h100-sxm"])
@pytest.mark.parametrize("strategy", ["streams", "priority", "partition", "dma", "dma-partition"])
def test_every_strategy_says_what_to_set_and_who_says_so(gpu, strategy):
    found = knobs_for(hardware.gpu(gpu), strategy, 16 if "partition" in strategy else None, "all_gather")
    assert found
    assert all(knob.text and knob.source and "{" not in knob.text for knob in found)


def test_the_units_of_a_partition_stand_in_what_to_set():
    rings, mask = knobs_for(hardware.gpu("mi300x"), "partition", 32, "all_gather")
    assert "NCCL_MAX_NCHANNELS=32" in rings.text
    assert "4 CUs of each XCD" in mask.text
    assert "272" in mask.text
    sends = knobs_for(hardware.gpu("mi300x"), "partition", 32, "all_to_all")[0]
    assert "NCCL_MAX_P2P_NCHANNELS=32" in sends.text


def test_channels_that_are_asked_for_stand_in_what_to_set():
    gpu = hardware.gpu("h100-sxm")
    more, *_ = knobs_for(gpu, "priority", None, "all_gather", channels=32, own=24)
    fewer, *_ = knobs_for(gpu, "partition", 16, "all_gather", channels=8, own=24)
    assert "NCCL_MIN_CTAS=32" in more.text
    assert "NCCL_MAX_CTAS=8" in fewer.text


def test_the_errors_that_answers_carry_are_those_of_the_page_that_validation_makes():
    _, *rows = csv.reader((ERRORS / "classes.csv").read_text().splitlines())
    shown = {
        (row[0], row[1]): (*row[2:4], *(int(cell.replace(",", "")) for cell in row[4:6])) for row in rows if row[1]
    }
    carried = {}
    for table in ("gemm", "collective", "over_nodes", "left_out", "joined"):
        for path, sizes in lists_in(CARRIED[table], table):
            for place, found in enumerate(sizes):
                if found:
                    carried[path, f"{place + 1} of {len(sizes)}"] = (
                        *(f"{end - 1:+.1%}" for end in found[:2]),
                        *found[2:],
                    )
    assert carried == shown


def lists_in(table, path):
    """Every list of classes in a table, with its path."""
    for name, found in table.items():
        if isinstance(found, dict):
            yield from lists_in(found, f"{path} {name}")
        else:
            yield f"{path} {name}", found


def test_the_error_beside_a_collective_is_the_largest_of_the_page():
    _, *rows = csv.reader((ERRORS / "bar.csv").read_text().splitlines())
    beside = [row[3] for row in rows if row[0].startswith("contention cell")]
    assert max(float(text.rstrip("%")) for text in beside) / 100 == pytest.approx(BESIDE["largest"])


def test_a_speedup_on_amd_is_doubted_as_far_as_c3_is_missed():
    amd = hardware.gpu("mi300x")
    here, published = C3_SPEEDUPS["priority"]
    assert contention_error(amd, "priority").low == pytest.approx(published / here)
    assert contention_error(amd, "priority").high == 1.0
    assert "MI300X" in contention_error(amd, "dma").why
    # Published mean shares times the same mean ideal.
    ideals = {
        name: 1 + (published - 1) / DECLARED.claims[IDS[name]].published for name, (_, published) in C3_SPEEDUPS.items()
    }
    assert list(ideals.values()) == pytest.approx([ideals["dma"]] * len(ideals), abs=0.005)


def test_a_co_run_says_whether_its_gpu_and_its_way_to_share_were_measured():
    seen, unseen = (contention_error(hardware.gpu(gpu), "streams") for gpu in ("a100-sxm-80gb", "h100-sxm"))
    assert seen.low == unseen.low == pytest.approx(1 / (1 + BESIDE["largest"]))
    assert "no public row" not in seen.why
    assert unseen.why.endswith("no public row has streams on h100-sxm")
    assert contention_error(hardware.gpu("a100-sxm-80gb"), "dma").why.endswith("no public row has dma on a100-sxm-80gb")


def test_a_gpu_without_rows_has_the_interval_of_machines_left_out():
    unseen, seen = gemm_error("mi355x", 1e-3), gemm_error("h100-sxm", 1e-3)
    assert unseen.value > seen.value
    assert "no such row is public for mi355x; 80 % interval" in unseen.why
    assert "machines left out of the fits" in unseen.why
    found = collective_error("mi300x", "all_to_all", 64 * MIB)
    assert [found.low, found.high] == CARRIED["left_out"]["all_to_all"][2][:2]


def test_a_collective_over_nodes_has_the_error_of_collectives_over_nodes():
    inside, across = (collective_error("h100-sxm", "all_reduce", 64 * MIB, nodes) for nodes in (1, 2))
    assert [across.low, across.high] == CARRIED["over_nodes"]["h100-sxm"]["all_reduce"][2][:2]
    assert across.value > inside.value
    other = collective_error("h100-sxm", "reduce_scatter", 64 * MIB, 2)
    assert other[:2] == across[:2]
    assert "no such row is public for h100-sxm; 80 % interval" in other.why
    assert "of all_reduce on h100-sxm" in other.why


def test_errors_are_those_of_the_class_of_size():
    short, long = (gemm_error("h100-sxm", seconds) for seconds in (10e-6, 1e-3))
    assert [[*one[:2]] for one in (short, long)] == [found[:2] for found in CARRIED["gemm"]["h100-sxm"]]
    assert "below 20 us" in short.why
    sizes = [collective_error("h100-sxm", "all_to_all", size) for size in (64 * 1024, 4 * MIB, 256 * MIB)]
    assert [[*one[:2]] for one in sizes] == [found[:2] for found in CARRIED["collective"]["h100-sxm"]["all_to_all"]]


def test_an_interval_says_how_many_rows_and_systems_it_rests_on():
    _, _, rows, _ = CARRIED["collective"]["mi300x"]["all_reduce"][1]
    assert f"from {rows} rows on mi300x" in collective_error("mi300x", "all_reduce", 8 * MIB).why
    assert "on 2 systems in-sample" in joined_error("async-tp", 1e-3, seen=True).why
