"""The exercises on tiling, access patterns, intensity and launches, against published figures and brute force."""

import math
from itertools import product as pairs

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import hardware
from weft.core.errors import InputError
from weft.graph import Gemm
from weft.papers.textbook.kernels import (
    MatrixProduct,
    TileLimits,
    attainable,
    best_rectangle,
    bucket_padding,
    cache_and_register_tiled,
    cache_tiled,
    elementwise_chain,
    fusion_speedup,
    intensity,
    launch_kernels,
    load_instructions,
    register_tiled,
    replay_graph,
    ridge,
    shared_tiled,
    stencil_loads,
    strided_read,
    thread_tiled,
    untiled_traffic,
    view_bytes,
)

CUBE = MatrixProduct(1024, 1024, 1024)
sides = st.integers(1, 12)
products = st.builds(MatrixProduct, sides, sides, sides)


class Words:
    """A memory that counts the words read from it, and what a program keeps of them."""

    def __init__(self):
        self.read = {"a": 0, "b": 0}

    def load(self, name, rows, columns):
        """Read a block whole; the caller keeps it."""
        self.read[name] += len(rows) * len(columns)

    @property
    def counts(self):
        return self.read["a"], self.read["b"]


def blocks(size, side):
    return [range(at, min(at + side, size)) for at in range(0, size, side)]


def run_register_tiles(shape, rows, columns, depth, memory):
    """The loops of a kernel with register tiles: every slice of k is loaded for every tile of C."""
    for tile_rows, tile_columns in pairs(blocks(shape.m, rows), blocks(shape.n, columns)):
        for inner in blocks(shape.k, depth):
            memory.load("a", tile_rows, inner)
            memory.load("b", inner, tile_columns)


def test_the_textbook_figures_of_a_cube_of_1024():
    assert untiled_traffic(CUBE).words("memory") == 2_147_483_648  # 2.15 G
    assert thread_tiled(CUBE, 1).words("memory") == untiled_traffic(CUBE).words("memory")
    assert thread_tiled(CUBE, 8).words("memory") == 268_435_456  # 0.27 G
    tiled = shared_tiled(CUBE, 64, 8)
    assert tiled.words("memory") == 33_554_432  # 33.6 M
    assert tiled.words("shared") == 268_435_456  # 268 M
    assert thread_tiled(CUBE, 8).held["registers"] == 8 * 8 + 2 * 8


def test_square_forms_of_the_textbook():
    n, b, v = 1024, 128, 8
    assert cache_tiled(CUBE, b, b).reads["memory"] == (n**2, n**3 // b)
    assert register_tiled(CUBE, v, 2 * v).reads["memory"] == (n**3 // (2 * v), n**3 // v)
    assert thread_tiled(CUBE, v, outer=False).words("memory") == n**3 // v + n**3


def test_b_is_read_n_cubed_over_the_band_not_n_squared():
    """A known slip in print has n^2 / b1 words from memory; B is read whole for each of n / b1 bands."""
    n, b, v = 1024, 128, 8
    both = cache_and_register_tiled(CUBE, (b, b), (v, v))
    assert both.words("memory") == n**2 + n**3 // b != n**2 + n**2 // b
    assert both.words("cache") == 2 * n**3 // v


def test_the_depth_of_a_register_tile_costs_registers_and_no_traffic():
    shallow, deep = register_tiled(CUBE, 8, 4, 1), register_tiled(CUBE, 8, 4, 16)
    assert shallow.reads == deep.reads
    assert (shallow.held["registers"], deep.held["registers"]) == (8 + 4 + 32, 16 * 8 + 16 * 4 + 32)


@given(products, sides, sides, sides)
def test_register_tiles_read_what_their_loops_load(shape, rows, columns, depth):
    memory = Words()
    run_register_tiles(shape, rows, columns, depth, memory)
    assert register_tiled(shape, rows, columns, depth).reads["memory"] == memory.counts


@given(products, sides, sides)
def test_cache_bands_read_what_their_loops_load(shape, rows, columns):
    memory = Words()
    for band in blocks(shape.m, rows):
        memory.load("a", band, range(shape.k))
        for other in blocks(shape.n, columns):
            memory.load("b", range(shape.k), other)
    assert cache_tiled(shape, rows, columns).reads["memory"] == memory.counts


@given(products)
def test_the_naive_loop_reads_both_operands_for_every_product(shape):
    memory = Words()
    run_register_tiles(shape, 1, 1, 1, memory)
    assert untiled_traffic(shape).reads["memory"] == memory.counts


@given(products, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_shared_tiles_read_what_their_loops_load(shape, across, down, side):
    rows, columns = across * side, down * side
    memory, shared = Words(), Words()
    run_register_tiles(shape, rows, columns, 1, memory)
    for tile_rows, tile_columns in pairs(blocks(shape.m, rows), blocks(shape.n, columns)):
        part = MatrixProduct(len(tile_rows), len(tile_columns), shape.k)
        run_register_tiles(part, side, side, 1, shared)
    found = shared_tiled(shape, (rows, columns), side)
    assert (found.reads["memory"], found.reads["shared"]) == (memory.counts, shared.counts)


def least_recently_used(addresses, room):
    """Misses of a fully associative cache that evicts the least recently used word."""
    held, misses = {}, 0
    for address in addresses:
        misses += address not in held
        held.pop(address, None)
        held[address] = True
        if len(held) > room:
            del held[next(iter(held))]
    return misses


def test_a_cache_of_the_bands_size_misses_as_often_as_the_form_says():
    """Word by word, in an LRU cache with room for the bands and the next column of B."""
    n, band = 12, 3
    order = [
        word
        for rows, columns in pairs(blocks(n, band), blocks(n, 1))
        for i, j in pairs(rows, columns)
        for k in range(n)
        for word in (("a", i, k), ("b", k, j))
    ]
    form = cache_tiled(MatrixProduct(n, n, n), band, 1)
    assert least_recently_used(order, form.held["cache"] + n) == form.words("memory")
    assert least_recently_used(order, 2) == untiled_traffic(MatrixProduct(n, n, n)).words("memory")


@given(
    st.builds(MatrixProduct, *[st.integers(16, 400)] * 3), st.integers(2048, 1 << 17), st.integers(256, 1 << 14),
    st.sampled_from([1, 2, 3]),
)  # fmt: skip
def test_no_tile_that_fits_moves_less_than_the_best_rectangle(shape, shared, accumulators, stages):
    limits = TileLimits(shared, accumulators, step=16, stages=stages)
    sizes = range(16, 16 * (accumulators // 16 // 16 + 1) + 1, 16)
    fitting = [(a, b) for a, b in pairs(sizes, sizes) if a * b <= accumulators and limits.slab(a, b) <= shared]
    if not fitting:
        with pytest.raises(InputError, match="no tile fits"):
            best_rectangle(shape, limits)
        return
    best = best_rectangle(shape, limits)
    assert limits.slab(best.rows, best.columns) == best.shared_bytes <= shared
    assert best.rows * best.columns <= accumulators
    for rows, columns in fitting:
        words = register_tiled(shape, rows, columns).words("memory") + shape.m * shape.n
        assert best.words <= words


def test_the_best_tile_of_a_large_cube_is_square_where_accumulators_bind():
    best = best_rectangle(MatrixProduct(8192, 8192, 8192), TileLimits(1 << 20, 128 * 128))
    assert (best.rows, best.columns) == (128, 128)


def test_a_stencil_loads_each_element_once_through_shared_memory():
    assert stencil_loads(128, 1) == 130
    assert stencil_loads(128, 1, shared=False) == 384
    for radius in range(5):
        touched = {at + step for at in range(64) for step in range(-radius, radius + 1)}
        assert stencil_loads(64, radius) == len(touched)


def test_a_transposed_read_of_half_precision_moves_sixteen_times_its_bytes():
    assert strided_read(4096, 4096, 2).waste == 16
    assert strided_read(4096, 1, 2).waste == 1


@given(st.integers(1, 60), st.integers(1, 40), st.sampled_from([1, 2, 4, 8]))
def test_strided_reads_move_the_sectors_that_their_bytes_touch(elements, stride, element):
    touched = {(at * stride * element + byte) // 32 for at in range(elements) for byte in range(element)}
    assert strided_read(elements, stride, element).moved == 32 * len(touched)


def test_views_are_free_and_copies_read_and_write():
    assert view_bytes((64, 32), 2) == 0
    assert view_bytes((64, 32), 2, contiguous=True) == 2 * 64 * 32 * 2


def test_vectors_of_four_need_a_quarter_of_the_loads():
    assert (load_instructions(256), load_instructions(256, 4)) == (256, 64)
    assert load_instructions(257, 4) == 65


def test_element_wise_chains_and_products_have_the_known_intensities():
    assert elementwise_chain(1, fused=True).per_access == 1 / 3
    assert elementwise_chain(3, fused=False).per_access == 3 / 9
    assert elementwise_chain(3, fused=True).per_access == 3 / 5
    assert elementwise_chain(3, fused=False).per_byte() == pytest.approx(1 / 12)
    assert elementwise_chain(3, fused=True).per_byte() == pytest.approx(3 / 20)
    assert fusion_speedup(3) == 1.8
    assert intensity(Gemm(4096, 4096, 4096, "bf16")) == pytest.approx(4096 / 3)


@pytest.mark.parametrize(("gpu", "published"), [("a100-sxm-80gb", 153), ("h100-sxm", 295), ("mi300x", 245)])
def test_ridges_of_the_catalogue_are_those_of_the_data_sheets(gpu, published):
    on = hardware.gpu(gpu)
    at = ridge(on, "bf16")
    assert at == pytest.approx(published, rel=0.005)
    assert attainable(on, "bf16", at / 2) == pytest.approx(on.matrix_rate("bf16") / 2)
    assert attainable(on, "bf16", at * 2) == on.matrix_rate("bf16")


def test_power_of_two_buckets_cost_a_third_by_volume_and_39_percent_by_length():
    found = bucket_padding(np.linspace(512, 1024, 100_001)[1:])
    assert found.volume == pytest.approx(4 / 3, abs=1e-4)
    assert found.mean == pytest.approx(2 * math.log(2), abs=1e-4)
    assert bucket_padding([1, 2, 64, 1024]).volume == 1


@given(st.lists(st.floats(1e-7, 1e-4), min_size=1, max_size=30), st.floats(0, 1e-4))
def test_launches_delay_kernels_as_a_clock_of_host_and_gpu_says(kernels, host):
    gpu = 0.0
    for at, seconds in enumerate(kernels):
        gpu = max(gpu, host * (at + 1)) + seconds
    found = launch_kernels(kernels, host)
    assert found.seconds == pytest.approx(gpu)
    assert replay_graph(kernels, host).seconds <= found.seconds * (1 + 1e-12)
    assert 0 <= found.idle + 1e-12 <= 1


def test_a_graph_removes_the_idle_time_of_short_kernels():
    kernels = [2e-6] * 1000
    assert launch_kernels(kernels, 8e-6).idle == pytest.approx(0.75, abs=0.001)
    assert replay_graph(kernels, 8e-6).idle == pytest.approx(0.004, abs=0.001)
    assert launch_kernels([100e-6] * 100, 8e-6).idle == pytest.approx(8 / 10008, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: MatrixProduct(0, 1, 1), "m is 0"),
        (lambda: shared_tiled(CUBE, 60, 8), "multiples of it"),
        (lambda: cache_and_register_tiled(CUBE, (60, 64), (8, 8)), "multiples of the register tile"),
        (lambda: untiled_traffic(CUBE).words("shared"), "the levels are memory"),
        (lambda: best_rectangle(CUBE, TileLimits(1024, 256)), "no tile fits"),
        (lambda: bucket_padding([]), "at least one"),
        (lambda: bucket_padding([3], 1), "above 1"),
        (lambda: launch_kernels([], 1e-6), "at least one"),
        (lambda: launch_kernels([1e-6], -1.0), "at least 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, said):
    with pytest.raises(InputError, match=said):
        call()
