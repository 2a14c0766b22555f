"""C3's sensitivity moves assumed values, and only in the runs that ask for it."""

import json
from itertools import product

import pytest

from weft.hardware import load
from weft.hardware.ring_kernels import flights_of, in_flight_moved, pairs_in_flight, ring_cost
from weft.overlap.library_ring import cu_collective
from weft.overlap.strategies import STRATEGIES
from weft.result.sharing import CLASSES
from weft.studies.c3 import declared_suite, sensitivity
from weft.studies.c3.scenarios import Scenario, Suite
from weft.studies.c3.sensitivity import _tasks, _variants, representatives
from weft.studies.c3.study import SATURATION
from weft.sweep.streams import Setting

WHERE = Setting(load("mi300x"))


def test_kernels_with_other_bytes_in_flight_are_so_within_the_context_alone():
    before = ring_cost("amd", "cdna3", "simple"), pairs_in_flight("amd", "cdna3")
    with in_flight_moved([("cdna.simple", 4096), ("cdna.pairs", 8192)]):
        assert ring_cost("amd", "cdna3", "simple").in_flight == 4096
        assert cu_collective("all_gather", 64 << 20, 8, "mi300x").tiling.in_flight == 4096
        assert cu_collective("all_to_all", 64 << 20, 8, "mi300x").tiling.in_flight == 8192
    assert (ring_cost("amd", "cdna3", "simple"), pairs_in_flight("amd", "cdna3")) == before


@pytest.mark.parametrize(("vendor", "architecture"), [("amd", "cdna3"), ("nvidia", "hopper")])
def test_every_kernel_says_how_many_bytes_it_may_have_in_flight(vendor, architecture):
    found = flights_of(vendor, architecture)
    assert any(name.endswith(".pairs") for name in found)
    assert all(known.source and known.low and known.high for known in found.values())


def test_every_variant_moves_something():
    """At least one run of the scenarios is another one."""
    chosen = representatives(declared_suite().scenarios)
    as_chosen = set(_tasks(chosen, WHERE, SATURATION))
    first, *moved = _variants(WHERE)
    assert {first.moved.run(task) for task in as_chosen} == as_chosen
    for variant in moved:
        tasks = {variant.moved.run(task) for task in _tasks(chosen, WHERE, variant.units)}
        assert tasks - as_chosen, variant.moved.title
    assert {"the rate of copies", "the clock", "the rate of reads"} <= {v.moved.what for v in moved}


def test_both_rates_of_copies_move_together():
    low, high = (v.moved.setting.gpu for v in _variants(WHERE) if v.moved.what == "the rate of copies")
    assert low.dma.bandwidth < high.dma.bandwidth
    assert low.link.dma_efficiency < high.link.dma_efficiency


def test_the_part_of_a_suite_that_is_moved_has_every_class_and_boundness():
    chosen = representatives(declared_suite().scenarios)
    assert sorted((s.kind, s.bound) for s in chosen) == sorted(product(CLASSES, ("compute", "memory")))
    assert {s.collective for s in chosen} == {"all_gather", "all_to_all"}


def test_a_suite_of_ones_own_gives_the_share_of_every_strategy_at_both_ends(monkeypatch, tmp_path):
    window = [m for m in sensitivity.moved_settings(WHERE, "bf16") if m.paths == ("dma.window",)]
    monkeypatch.setattr(sensitivity, "moved_settings", lambda *_, **__: window)
    small = Scenario(layer="mine", gemm=(4096, 4096, 1024), collective="all_gather", size="64 MiB")
    done = sensitivity.run(Suite(title="small", scenarios=(small,)), jobs=1)
    chosen, low, high = (row.figures for row in done.rows[:3])
    assert set(chosen) == set(STRATEGIES)
    assert low["dma"] < chosen["dma"] <= high["dma"]
    assert {low[name] - chosen[name] for name in STRATEGIES if not name.startswith("dma")} == {0}
    heads, rows = done.table()
    assert heads[2:] == list(STRATEGIES)
    assert rows[1][:2] == ["how much an engine has on its way (dma.window)", "32 KiB / 1 MiB"]
    assert json.loads(done.save(tmp_path / "s.json").read_text())["cases"] == [small.title]
