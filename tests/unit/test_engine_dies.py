"""Dies with caches of their own: who runs where, and whose lines lie where."""

import numpy as np
import pytest
from interpreted import PLAIN
from machines import GEMM_READ, bare, chiplets, finish, gpu, streams_program
from runs import GemmLoop, Streams
from state import workgroups

from weft import hardware
from weft.core.errors import InputError
from weft.engine import layout as y
from weft.engine.state import LINE_COMING, LINE_HERE
from weft.graph import Gemm
from weft.kernels import GemmTiling, over_dies, tile_table

TILING = GemmTiling(rows=32, columns=32, step=16, resident=1)
LINE = 512


def gemm_log(tiles, units=None, machine=None):
    """The workgroups of a GEMM of `tiles` tiles in a row."""
    loop = GemmLoop(Gemm(32 * tiles, 32, 64, "bf16"), TILING, 1)
    one_each = machine or chiplets(compute__max_workgroups_per_cu=1)
    return workgroups(finish(streams_program(Streams(loop, None, gemm_units=units), one_each)), 0)


def test_workgroups_go_round_the_dies_and_each_die_fills_its_units_in_order():
    log = gemm_log(8)
    assert log.unit.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert (log.start == log.start[0]).all()


def test_a_workgroup_waits_for_its_own_die_even_if_another_is_free():
    log = gemm_log(9, units=(0, 2, 3, 4, 5, 6, 7))  # die 0 has one unit, the others two
    assert log.unit[8] == 0
    # Workgroup 4 is the second of die 0, workgroup 8 its third: one after another, while units 3, 5 and 7 idle.
    assert log.start[4] == log.end[0]
    assert log.start[8] == log.end[4]
    assert (log.start[[1, 2, 3, 5, 6, 7]] == log.start[0]).all()


def test_a_die_without_a_unit_in_the_mask_is_skipped_in_the_dealing():
    log = gemm_log(6, units=(0, 1, 4, 5, 6, 7))
    assert log.unit.tolist() == [0, 4, 6, 1, 5, 7]


def test_one_unit_is_enough():
    log = gemm_log(3, units=(5,))
    assert log.unit.tolist() == [5, 5, 5]
    assert (log.start[1:] == log.end[:-1]).all()


def test_one_unit_in_every_die_takes_every_fourth_workgroup():
    log = gemm_log(8, units=(1, 3, 5, 7))
    assert log.unit.tolist() == [1, 3, 5, 7, 1, 3, 5, 7]


@pytest.mark.parametrize(
    ("units", "sentence"),
    [
        ((), "the mask of kernel 'gemm' leaves it no compute unit; give it at least one of 8"),
        ((0, 8), "the mask of kernel 'gemm' names compute unit 8; the GPU has 8, counted from 0 to 7"),
    ],
)
def test_a_mask_that_no_gpu_has_is_refused(units, sentence):
    with pytest.raises(InputError) as error:
        gemm_log(4, units=units)
    assert str(error.value) == sentence


def test_units_lie_in_dies_in_blocks():
    m = bare(chiplets(compute__compute_units=10))
    assert m.unit[:, y.UNIT_PARTITION].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert [PLAIN.first_unit(m, 0, part) for part in range(5)] == [0, 3, 5, 8, 10]


def test_gpus_whose_units_share_a_cache_are_one_die():
    assert [hardware.gpu(name).dies for name in ("mi300x", "mi210", "h100-sxm", "t3-paper")] == [8, 1, 1, 1]
    assert not bare(gpu()).unit[:, y.UNIT_PARTITION].any()


def miss(m, part, address=0):
    PLAIN.load(m, 0, part, address, LINE, GEMM_READ, y.COMPUTE_STREAM, 1, 0, 0)
    m.held[:] = m.line[:, LINE_COMING] = 0  # what is in flight arrives
    m.line[m.tag == address // LINE, LINE_HERE] = -1


def test_what_one_die_has_loaded_is_a_miss_in_another():
    m = bare(chiplets())
    for part in (0, 0, 1):
        miss(m, part)
    assert (m.flow[0, y.FLOW_MISSES], m.flow[0, y.FLOW_HITS]) == (2, 1)


def test_hits_in_different_dies_do_not_share_a_slice():
    m = bare(chiplets())
    for part in (0, 1):
        miss(m, part)
    out = int(m.gpu[0, y.GPU_CACHE_OUT])
    m.clock[y.CLOCK_NOW] = later = 1_000_000_000
    starts = [PLAIN._slice_time(m, 0, PLAIN._slice_of(m, 0, part, 0), LINE, later) - out for part in (0, 1, 0)]
    assert starts == [later, later, later + LINE * int(m.gpu[0, y.GPU_SLICE64]) // 64]


def test_a_request_entered_ahead_of_its_time_leaves_the_gap_before_it_to_others():
    m = bare(chiplets())
    out, service = int(m.gpu[0, y.GPU_CACHE_OUT]), LINE * int(m.gpu[0, y.GPU_SLICE64]) // 64
    assert PLAIN._slice_time(m, 0, 0, LINE, 1_000_000_000) == 1_000_000_000 + out
    assert PLAIN._slice_time(m, 0, 0, LINE, 0) == out + service


def test_the_slices_of_all_dies_together_have_the_bandwidth_of_the_cache():
    m, machine = bare(chiplets()), chiplets()
    slices = int(m.shape[y.SIZE_PARTITIONS] * m.shape[y.SIZE_SLICES])
    rate = slices * 64 / (int(m.gpu[0, y.GPU_SLICE64]) * 1e-15)
    assert rate == pytest.approx(machine.cache.bandwidth * machine.achieved.gemm_cache, rel=1e-3)


def test_neighbouring_tiles_run_on_one_die():
    machine = chiplets()
    table = tile_table(Gemm(32 * 16, 32, 64, "bf16"), TILING, 1)
    work = over_dies(table, machine)
    dies = [work[i :: machine.dies, y.WORK_ROW] for i in range(machine.dies)]
    assert [d.tolist() for d in dies] == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    assert np.array_equal(work[:, y.WORK_TILE], np.arange(16))
    assert sorted(work[:, y.WORK_OFFSET]) == sorted(table[:, y.WORK_OFFSET])


@pytest.mark.parametrize("tiles", [1, 7, 8, 9, 21])
def test_every_tile_is_computed_once_over_the_dies(tiles):
    table = tile_table(Gemm(32 * tiles, 32, 64, "bf16"), TILING, 1)
    assert sorted(over_dies(table, chiplets())[:, y.WORK_ROW]) == list(range(tiles))
