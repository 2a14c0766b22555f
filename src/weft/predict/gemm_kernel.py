"""The time of one GEMM under every kernel of a library, and the best of them: plain numbers, one shape at a time.

Written so that numba compiles it; without numba the same code runs, slower. All times are in seconds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

MAX_SPLIT = 64
"""Parts that K may be cut into, at most."""
SPLIT_STEPS = 4
"""K steps that a part has at least."""
SPLIT_WAVES = 3
"""A split fills the GPU once, twice or three times over."""
SMALL = 64
"""Rows or columns of a tile that is tried for however small a matrix."""
LARGE = 128 * 128
"""Elements of a tile from which it is tried for however large a matrix."""
MANY_WAVES = 12
"""Waves of tiles from which only large tiles are tried."""
RAMP = 0.7
"""Cache over footprint from which on some of the operands are still there when they are used again (assumed)."""


_PARTIAL_BYTES = 8  # a partial sum is written and read


class Machine(NamedTuple):
    """A GPU as the kernel sees it: effective rates of the whole GPU, and costs."""

    units: float
    unit_flops: float  # of one compute unit [FLOP/s]
    cache_rate: float  # [bytes/s]
    memory_rate: float  # [bytes/s]
    resident: float  # cache that holds operands between uses [bytes]
    issue: float  # per K step
    latency: float
    fill: float
    split: float
    element: float  # of A and B [bytes]
    output: float  # of C [bytes]
    rotation: float  # sets of B that take turns in the cache
    channels: float  # memory channels that interleave without a hash; 0 = hashed
    interleave: float  # [bytes]


class Shape(NamedTuple):
    """`batch` GEMMs of one shape in one launch."""

    m: float
    n: float
    k: float
    batch: float


class Tile(NamedTuple):
    """A candidate as numbers."""

    rows: float
    columns: float
    step: float
    stages: float
    resident: float
    granule: float
    cluster: float


class Attempt(NamedTuple):
    """One shape under one candidate and split: times, and what explains them."""

    total: float
    columns: float
    splits: float
    units_time: float  # compute units: main loop, fill, stores
    memory_time: float
    matrix_time: float  # of which matrix instructions, idle units included
    cache_time: float  # of which waiting for the cache's bandwidth
    latency_time: float  # of which waiting for a step's operands, or issuing
    split_time: float


def fitted_columns(n: float, grid_rows: float, tile: Tile, units: float) -> float:
    """Columns of a tile when the library picks, in granules, the narrowest that needs no more waves."""
    if tile.granule == 0:
        return tile.columns
    waves = math.ceil(grid_rows * math.ceil(n / tile.columns) / units)
    across = max(math.floor(waves * units / grid_rows), 1.0)
    narrow = math.ceil(n / across / tile.granule) * tile.granule
    return min(narrow, tile.columns) if 2 * narrow > tile.columns else tile.columns


def memory_bytes(
    shape: Shape,
    rows: float,
    columns: float,
    at_once: float,
    grid_rows: float,
    grid_columns: float,
    on: Machine,
) -> float:
    """Bytes moved to and from DRAM: operands once, again where the cache loses them between waves, and C.

    `at_once` tiles run together, as a block as square as the grid allows. A and C are taken to be in the cache
    when they fit beside one B; B only if `rotation` of them fit. Nothing is shared between the GEMMs of a batch.
    """
    m, n, k, batch = shape
    a, b, c = m * k * on.element, n * k * on.element, m * n * on.output
    high = math.sqrt(at_once * rows * columns) / rows
    high = min(max(high, at_once / grid_columns), grid_rows)
    wide = at_once / high
    per_wave = (high * rows + wide * columns) * k * on.element
    kept = min(1.0, on.resident / (a + b))
    again = max(0.0, (1 - kept) * (grid_rows * grid_columns / at_once * per_wave - a - b))
    near = _held(on.resident / (batch * (a + b + c)))
    far = _held(on.resident / (batch * (a + on.rotation * b + c)))
    crowd = crowding(n * on.element, wide * columns * on.element, on)
    return batch * ((a + c) * (1 - near) + again / 2 + (b * (1 - far) + again / 2) * crowd)


def crowding(stride: float, span: float, on: Machine) -> float:
    """How many times longer B takes because its rows, `stride` bytes apart, meet in few memory channels.

    Without an address hash, rows whose distance is a multiple of channels x interleave all begin in one channel;
    `span` bytes are read of each.
    """
    if on.channels == 0:
        return 1.0
    lines = stride / on.interleave
    if lines != math.floor(lines):
        return 1.0
    common = on.channels
    while lines % common != 0:
        common = common / 2
    used = on.channels / common * max(1.0, math.floor(span / on.interleave / 2))
    return on.channels / min(on.channels, used)


def _held(ratio: float) -> float:
    return min(1.0, max(0.0, (ratio - RAMP) / (1 - RAMP)))


def attempt(
    shape: Shape, tile: Tile, columns: float, splits: float, memory_time: float, on: Machine
) -> Attempt:
    """One shape under one candidate: rounds of resident workgroups on every unit, beside the memory's time.

    A round of x workgroups per unit takes, per K step, the longest of: x matrix products, x slabs through the unit's
    share of the cache's bandwidth, and the latency over the steps in flight. Units and memory overlap: the time is the
    root of the sum of their squares.
    """
    m, n, k, batch = shape
    grid = math.ceil(m / tile.rows) * math.ceil(n / columns)
    work = grid * splits * batch
    slots = on.units * tile.resident
    steps = math.ceil(math.ceil(k / tile.step) / splits)
    matrix = 2 * tile.rows * columns * tile.step / on.unit_flops
    shared = tile.cluster if grid > 1 else 1.0
    slab = (max(tile.rows, columns) / shared + min(tile.rows, columns)) * tile.step * on.element
    tile_bytes = tile.rows * columns * on.output
    wait = on.latency / (tile.stages - 1)
    rounds = math.floor(work / slots)
    rest = work - rounds * slots
    units_time = matrix_time = cache_time = latency_time = 0.0
    for last in range(2):
        deep = math.ceil(rest / on.units) if last else tile.resident
        count = (1.0 if rest > 0 else 0.0) if last else rounds
        if count == 0:
            continue
        busy = min(rest, on.units) if last else on.units
        fed = deep * slab * busy / on.cache_rate
        step = max(deep * matrix + on.issue, fed, wait)
        units_time += count * (steps * step + on.fill + deep * tile_bytes * busy / on.cache_rate)
        matrix_time += count * steps * deep * matrix
        if step == fed:
            cache_time += count * steps * (step - deep * matrix)
        else:
            latency_time += count * steps * (step - deep * matrix)
    split_time = split_cost(shape, splits, on)
    total = math.sqrt(units_time * units_time + memory_time * memory_time) + split_time
    return Attempt(
        total, columns, splits, units_time, memory_time, matrix_time, cache_time, latency_time, split_time
    )


def split_cost(shape: Shape, splits: float, on: Machine) -> float:
    """To write the partial sums of a split K through the cache and add them up; nothing without a split."""
    if splits == 1:
        return 0.0
    return on.split + shape.batch * shape.m * shape.n * _PARTIAL_BYTES * splits / on.cache_rate


def wasteful(shape: Shape, tile: Tile, on: Machine) -> bool:
    """Whether a library would not try the tile: three quarters of it are padding, or it is small for many waves."""
    if (tile.rows > SMALL and tile.rows >= 4 * shape.m) or (
        tile.columns > SMALL and tile.columns >= 4 * shape.n
    ):
        return True
    area = tile.rows * tile.columns
    return area < LARGE and shape.m * shape.n * shape.batch > MANY_WAVES * area * on.units * tile.resident


def under(shape: Shape, tile: Tile, found: Attempt, on: Machine) -> Attempt:
    """The better of `found` and the best way to run the shape with one candidate, K in one part or several.

    What cannot be faster than `found`, by its matrix instructions, its steps' pace or the memory, is not looked at.
    """
    m, n, k, batch = shape
    if found.total < math.inf and wasteful(shape, tile, on):
        return found
    grid_rows = math.ceil(m / tile.rows)
    columns = fitted_columns(n, grid_rows * batch, tile, on.units)
    grid_columns = math.ceil(n / columns)
    grid = grid_rows * grid_columns
    slots = on.units * tile.resident
    depth = math.ceil(k / tile.step)
    most = min(MAX_SPLIT, max(1.0, math.floor(depth / SPLIT_STEPS)))
    matrix = 2 * tile.rows * columns * tile.step / on.unit_flops
    pace = max(matrix + on.issue, on.latency / (tile.stages - 1))
    all_matrix = grid * batch * depth * matrix / on.units
    least = on.fill + min(depth * pace, depth / most * pace + on.split)
    if max(least, all_matrix) >= found.total:
        return found
    at_once = min(slots, grid)
    memory_time = (
        memory_bytes(shape, tile.rows, columns, at_once, grid_rows, grid_columns, on) / on.memory_rate
    )
    before = 0.0
    for waves in range(SPLIT_WAVES + 1):
        splits = 1.0
        if waves > 0:
            splits = min(most, max(1.0, math.floor(waves * slots / (grid * batch))))
        if splits > before:
            busy = max(all_matrix, on.fill + depth / splits * pace)
            if (
                math.sqrt(busy * busy + memory_time * memory_time) + split_cost(shape, splits, on)
                >= found.total
            ):
                continue
            now = attempt(shape, tile, columns, splits, memory_time, on)
            if now.total < found.total:
                found = now
        before = max(before, splits)
    return found


def whole(shape: Shape, tile: Tile, columns: float, on: Machine) -> Attempt:
    """The shape under one candidate of so many columns, K in one part."""
    grid_rows, grid_columns = math.ceil(shape.m / tile.rows), math.ceil(shape.n / columns)
    at_once = min(on.units * tile.resident, grid_rows * grid_columns)
    moved = memory_bytes(shape, tile.rows, columns, at_once, grid_rows, grid_columns, on)
    return attempt(shape, tile, columns, 1.0, moved / on.memory_rate, on)


def best(shape: Shape, tiles: Any, on: Machine) -> tuple[int, Attempt]:
    """The fastest candidate and its times; among equals the first."""
    chosen, found = -1, Attempt(math.inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for index in range(len(tiles)):
        row = tiles[index]
        tile = Tile(row[0], row[1], row[2], row[3], row[4], row[5], row[6])
        now = under(shape, tile, found, on)
        if now.total < found.total:
            chosen, found = index, now
    return chosen, found


def run(m: Any, n: Any, k: Any, batch: Any, tiles: Any, on: Machine, chosen: Any, times: Any) -> None:
    """Fill `chosen` and a row of `times` (the fields of Attempt) for every shape."""
    for i in range(len(m)):
        index, found = best(Shape(m[i], n[i], k[i], batch[i]), tiles, on)
        chosen[i] = index
        times[i, 0], times[i, 1], times[i, 2] = found.total, found.columns, found.splits
        times[i, 3], times[i, 4], times[i, 5] = found.units_time, found.memory_time, found.matrix_time
        times[i, 6], times[i, 7], times[i, 8] = found.cache_time, found.latency_time, found.split_time
