"""C3's sensitivity moves assumed values, and only in the runs that ask for it."""

import json
from itertools import product

import pytest

from weft import hardware
from weft.graph import Collective, Driver
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.collectives import collective_kernel
from weft.papers.c3 import C3Study, ScenarioSuite, sensitivity
from weft.papers.c3.runs import ScenarioRuns
from weft.papers.c3.scenarios import Scenario
from weft.papers.c3.sensitivity import _moves, _tasks, representatives
from weft.plan.tune.perturb import Values
from weft.simulate import alone
from weft.simulate.result.metrics import CLASSES
from weft.sweep.simulations import Bench

BENCH = Bench.of("mi300x", 8)


def in_flight(name, system):
    kernel = collective_kernel(alone(Collective(name, 64 << 20, 8)).nodes[0], system)
    return kernel.tiling.in_flight


def test_a_system_carries_what_its_librarys_kernels_cost():
    here = BENCH.system
    moved = here.replace({"library.simple.in_flight": "4 KiB", "library.pairs": "8 KiB"})
    assert moved.library.cost("simple").in_flight == 4096
    assert in_flight("all_gather", moved) == 4096
    assert in_flight("all_to_all", moved) == 8192
    assert set(moved.changes) == {"library.simple.in_flight = 4 KiB", "library.pairs = 8 KiB"}
    assert in_flight("all_gather", here) > 4096


@pytest.mark.parametrize("system", ["mi300x", "h100-sxm"])
def test_every_kernel_says_how_many_bytes_it_may_have_in_flight(system):
    values = sensitivity.sharing_values(hardware.system(system), "bf16")
    (paths,) = (one.paths for one in values if "workgroups" in one.what)
    known = hardware.system(system).provenance
    assert "library.pairs" in paths
    assert len(paths) > 3
    assert all(known[path].source and known[path].low and known[path].high for path in paths)


def test_every_move_changes_something():
    """At least one run of the scenarios is another one."""
    chosen = [ScenarioRuns(one, BENCH) for one in representatives(ScenarioSuite.declared().scenarios)]
    tasks = {task for one in chosen for task in _tasks(one).values()}
    moved = list(_moves(BENCH.system))
    for move in moved:
        assert {move(task) for task in tasks} - tasks, move.what
    words = {move.what.partition(" (")[0] for move in moved}
    assert {"the rate of copies", "the clock", "the rate of reads"} <= words


def test_both_rates_of_copies_move_together():
    copies = ScenarioRuns(ScenarioSuite.declared().scenarios[0], BENCH).collective(Driver.DMA)
    low, high = (
        move(copies).system.gpu
        for move in _moves(BENCH.system)
        if move.what == "the rate of copies (dma.bandwidth, link.dma_efficiency)"
    )
    assert low.dma.bandwidth < high.dma.bandwidth
    assert low.link.dma_efficiency < high.link.dma_efficiency


def test_the_part_of_a_suite_that_is_moved_has_every_class_and_boundness():
    chosen = representatives(ScenarioSuite.declared().scenarios)
    assert sorted((s.kind, s.bound) for s in chosen) == sorted(product(CLASSES, ("compute", "memory")))
    assert {s.collective for s in chosen} == {"all_gather", "all_to_all"}


def test_a_suite_of_ones_own_gives_the_share_of_every_strategy_at_both_ends(monkeypatch, tmp_path):
    window = Values(("dma.window",), "how much an engine has in flight", frozenset({"dma"}))
    monkeypatch.setattr(sensitivity, "sharing_values", lambda *_: (window,))
    small = Scenario(layer="mine", gemm=(4096, 4096, 1024), collective="all_gather", size="64 MiB")
    done = C3Study.sensitivity(ScenarioSuite(title="small", scenarios=(small,)), jobs=1)
    chosen, low, high = (row.figures for row in done.rows[:3])
    assert set(chosen) == set(STRATEGIES)
    assert low["dma"] < chosen["dma"] <= high["dma"]
    assert {low[name] - chosen[name] for name in STRATEGIES if not name.startswith("dma")} == {0}
    heads, rows = done.table()
    assert heads[2:] == list(STRATEGIES)
    assert rows[1][:2] == ["how much an engine has in flight (dma.window)", "32 KiB / 1 MiB"]
    assert json.loads(done.save(tmp_path / "s.json").read_text())["cases"] == [small.title]
