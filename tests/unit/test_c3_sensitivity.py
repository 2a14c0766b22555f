"""C3's sensitivity moves assumed values, and only in the runs that ask for it."""

from weft.hardware import load
from weft.hardware.ring_kernels import in_flight_moved, ring_cost
from weft.overlap.library_ring import cu_collective
from weft.result.sharing import CLASSES
from weft.studies.c3 import declared_suite
from weft.studies.c3.sensitivity import RING, SATURATION, _variants, representatives
from weft.sweep.streams import Setting


def test_a_ring_with_other_bytes_in_flight_is_so_within_the_context_alone():
    before = ring_cost("amd", "cdna3", "simple")
    with in_flight_moved(RING, 4096):
        assert ring_cost("amd", "cdna3", "simple").in_flight == 4096
        assert cu_collective("all_gather", 64 << 20, 8, "mi300x") is not None
    assert ring_cost("amd", "cdna3", "simple") == before


def test_every_variant_moves_something():
    where = Setting(load("mi300x"))
    moved = [v for v in _variants(where) if v.what != "as chosen"]
    assert all(
        v.where != where
        or v.units != SATURATION
        or v.in_flight not in (None, ring_cost("amd", "", "simple").in_flight)
        for v in moved
    )
    assert {"memory.read_efficiency", "rate of copies (engine and link)", "achieved.gemm_cache"} <= {
        v.what for v in moved
    }


def test_both_rates_of_copies_move_together():
    (low, high) = (
        v.where.gpu for v in _variants(Setting(load("mi300x"))) if v.what.startswith("rate of copies")
    )
    assert low.dma.bandwidth < high.dma.bandwidth
    assert low.link.dma_efficiency < high.link.dma_efficiency


def test_the_part_of_a_suite_that_is_moved_has_every_class_and_boundness():
    chosen = representatives(declared_suite().scenarios)
    assert len(chosen) == 4
    assert {s.kind for s in chosen if s.bound == "compute"} == set(CLASSES)
    assert sum(s.bound == "memory" for s in chosen) == 1
