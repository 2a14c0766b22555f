"""The time of GEMMs under the kernels of a library, and the best kernel for each: arrays over shapes and tiles.

The fields of a `Shape` and a `Tile`, columns and splits are numbers, or arrays that broadcast. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from weft.estimate.answer import IntArray
from weft.library.tiles import Candidate

Amount = Any
"""A number, or an array that broadcasts with the others."""

MAX_SPLIT = 64
"""Most parts that K is cut into [assumed]."""
SPLIT_STEPS = 4
"""Fewest K steps of a part [assumed]."""
SPLIT_WAVES = 3
"""A split fills the GPU once, twice or three times over [assumed]."""
SMALL = 64
"""Rows or columns of a tile that is tried for however small a matrix [assumed]."""
LARGE = 128 * 128
"""Elements of a tile from which it is tried for however large a matrix [assumed]."""
MANY_WAVES = 12
"""Waves of tiles from which only large tiles are tried [assumed]."""
RAMP = 0.7
"""Ratio of cache to footprint from which part of the operands is still cached when used again [assumed]."""
SAME = 1 + 1e-12
"""Ratio below which two times count as equal, so that rounding decides nothing."""

_PARTIAL_BYTES = 8  # a partial sum is written and read
_AT_ONCE = 512  # shapes: their arrays over tiles and splits stay in the caches of a CPU


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

    m: Amount
    n: Amount
    k: Amount
    batch: Amount


class Tile(NamedTuple):
    """A kernel of a library: the numbers of a `Candidate`."""

    rows: Amount
    columns: Amount
    step: Amount
    stages: Amount
    resident: Amount
    granule: Amount
    cluster: Amount

    @classmethod
    def of(cls, library: Sequence[Candidate]) -> Self:
        """All kernels of a library [T, 1]."""
        return cls._make(np.array([[float(getattr(one, name))] for one in library]) for name in cls._fields)


class Times(NamedTuple):
    """A shape under a tile: times [s], and what explains them."""

    total: Amount
    units_time: Amount  # compute units: main loop, fill, stores
    memory_time: Amount
    matrix_time: Amount  # of units_time: matrix instructions, idle units included
    cache_time: Amount  # of units_time: waiting for the cache's bandwidth
    latency_time: Amount  # of units_time: waiting for a step's operands, or issuing
    split_time: Amount


def best(shape: Shape, library: Sequence[Candidate], on: Machine) -> Times:
    """The times of each shape [S] under its fastest tile and split of K; among equals the first."""
    parts = (Shape(*(size[at : at + _AT_ONCE] for size in shape)) for at in range(0, len(shape.m), _AT_ONCE))
    found = [_best(part, Tile.of(library), on) for part in parts]
    return Times(*map(np.concatenate, zip(*found, strict=True)))


def _best(shape: Shape, tiles: Tile, on: Machine) -> Times:
    each = Shape(*(size[:, None, None] for size in shape))
    columns, splits = ways(each, tiles, on)
    tried = np.diff(splits, prepend=0.0) > 0
    tried[:, 1:] &= ~wasteful(each, tiles, on)[:, 1:]
    of, tile, wave = np.nonzero(tried)
    some, under = Shape(*(size[of] for size in shape)), Tile(*(field[tile, 0] for field in tiles))
    found = fixed(some, under, columns[of, tile, 0], splits[of, tile, wave], on)
    least = np.minimum.reduceat(found.total, _firsts(of))
    equal = np.flatnonzero(found.total <= SAME * least[of])
    chosen = equal[_firsts(of[equal])]
    return Times(*(time[chosen] for time in found))


def _firsts(rising: IntArray) -> IntArray:
    """Positions at which each number first occurs."""
    return np.flatnonzero(np.diff(rising, prepend=-1))


def ways(shape: Shape, tile: Tile, on: Machine) -> tuple[Amount, Amount]:
    """Columns of a tile [..., 1], and rising numbers of parts that K may be cut into [..., SPLIT_WAVES + 1].

    K stays whole, or fills the GPU up to a few times; every part has some steps.
    """
    columns = fitted_columns(shape, tile, on)
    rows, across = _grid(shape, tile, columns)
    filled = np.floor(np.arange(SPLIT_WAVES + 1) * (on.units * tile.resident) / (rows * across * shape.batch))
    most = np.minimum(MAX_SPLIT, np.floor(np.ceil(shape.k / tile.step) / SPLIT_STEPS))
    return columns, np.maximum(np.minimum(filled, most), 1.0)


def fitted_columns(shape: Shape, tile: Tile, on: Machine) -> Amount:
    """Columns of a tile when the library picks, in granules, the narrowest that needs no more waves."""
    grid_rows = np.ceil(shape.m / tile.rows) * shape.batch
    waves = np.ceil(grid_rows * np.ceil(shape.n / tile.columns) / on.units)
    across = np.maximum(np.floor(waves * on.units / grid_rows), 1.0)
    granule = np.maximum(tile.granule, 1.0)
    narrow = np.ceil(shape.n / across / granule) * granule
    fits = (tile.granule > 0) & (2 * narrow > tile.columns)
    return np.where(fits, np.minimum(narrow, tile.columns), tile.columns)


def _grid(shape: Shape, tile: Tile, columns: Amount) -> tuple[Amount, Amount]:
    return np.ceil(shape.m / tile.rows), np.ceil(shape.n / columns)


def memory_bytes(shape: Shape, tile: Tile, columns: Amount, on: Machine) -> Amount:
    """Bytes moved to and from DRAM: operands once, again where the cache loses them between waves, and C.

    A and C are taken to be in the cache when they fit beside one B; B only if `rotation` of them fit. Nothing is
    shared between the GEMMs of a batch. The tiles that run together form a block as square as the grid allows.
    """
    m, n, k, batch = shape
    a, b, c = m * k * on.element, n * k * on.element, m * n * on.output
    near = _held(on.resident / (batch * (a + b + c)))
    far = _held(on.resident / (batch * (a + on.rotation * b + c)))
    kept = np.minimum(1.0, on.resident / (a + b))
    rows, across = _grid(shape, tile, columns)
    at_once = np.minimum(on.units * tile.resident, rows * across)
    high = np.sqrt(at_once * tile.rows * columns) / tile.rows
    high = np.minimum(np.maximum(high, at_once / across), rows)
    wide = at_once / high
    per_wave = (high * tile.rows + wide * columns) * k * on.element
    again = np.maximum(0.0, (1 - kept) * (rows * across / at_once * per_wave - (a + b)))
    crowd = crowding(n * on.element, wide * columns * on.element, on)
    return batch * ((a + c) * (1 - near) + again / 2 + (b * (1 - far) + again / 2) * crowd)


def crowding(stride: Amount, span: Amount, on: Machine) -> Amount:
    """How many times longer B takes because its rows, `stride` bytes apart, meet in few memory channels.

    Without an address hash, rows whose distance is a multiple of channels x interleave all begin in one channel;
    `span` bytes are read of each.
    """
    if on.channels == 0:
        return 1.0
    lines = stride / on.interleave
    common = np.where(lines == np.floor(lines), on.channels, 1.0)
    while (uneven := (common > 1) & (lines % common != 0)).any():
        common = np.where(uneven, common / 2, common)
    used = on.channels / common * np.maximum(1.0, np.floor(span / on.interleave / 2))
    return np.where(common > 1, on.channels / np.minimum(on.channels, used), 1.0)


def _held(ratio: Amount) -> Amount:
    return np.clip((ratio - RAMP) / (1 - RAMP), 0.0, 1.0)


class _Round(NamedTuple):
    """Workgroups that run together, `deep` of them on each of `busy` units, and the times of their K step [s]."""

    rounds: Amount
    deep: Amount
    busy: Amount
    step: Amount
    matrix: Amount  # matrix instructions of one workgroup
    feed: Amount  # operands of all workgroups through the cache


def _rounds(shape: Shape, tile: Tile, columns: Amount, splits: Amount, on: Machine) -> tuple[_Round, _Round]:
    """The whole rounds of resident workgroups on every unit, and the rest as one more.

    A step takes the longest of its matrix products, its slabs through the cache, and the latency over the steps in
    flight. A cluster fetches the longer slab once, if there is a cluster.
    """
    rows, across = _grid(shape, tile, columns)
    slots, work = on.units * tile.resident, rows * across * splits * shape.batch
    matrix = 2 * tile.rows * tile.step / on.unit_flops * columns
    slab = tile.step * on.element / on.cache_rate
    longer = np.maximum(tile.rows, columns) * np.where(rows * across == 1, slab, slab / tile.cluster)
    feed = longer + np.minimum(tile.rows, columns) * slab
    wait = on.latency / (tile.stages - 1)

    def together(rounds: Amount, deep: Amount, busy: Amount) -> _Round:
        fed = deep * feed * busy
        step = np.maximum(np.maximum(deep * matrix + on.issue, fed), wait)
        return _Round(rounds, deep, busy, step, matrix, fed)

    whole = np.floor(work / slots)
    rest = work - whole * slots
    last = together(np.minimum(rest, 1.0), np.ceil(rest / on.units), np.minimum(rest, on.units))
    return together(whole, tile.resident, on.units), last


def split_cost(shape: Shape, splits: Amount, on: Machine) -> Amount:
    """To write the partial sums of a split K through the cache and add them up; nothing without a split."""
    moved = shape.batch * shape.m * shape.n * _PARTIAL_BYTES * splits
    return np.where(splits == 1, 0.0, on.split + moved / on.cache_rate)


def wasteful(shape: Shape, tile: Tile, on: Machine) -> Amount:
    """Whether a library would not try the tile: three quarters of it are padding, or it is small for many waves."""
    low = (tile.rows > SMALL) & (tile.rows >= 4 * shape.m)
    narrow = (tile.columns > SMALL) & (tile.columns >= 4 * shape.n)
    area = tile.rows * tile.columns
    many = shape.m * shape.n * shape.batch > MANY_WAVES * area * on.units * tile.resident
    return low | narrow | ((area < LARGE) & many)


def fixed(shape: Shape, tile: Tile, columns: Amount, splits: Amount, on: Machine) -> Times:
    """The times of a shape under a tile of `columns` columns, with K in `splits` parts.

    Units and memory overlap: the time is the root of the sum of their squares.
    """
    memory = memory_bytes(shape, tile, columns, on) / on.memory_rate
    steps = np.ceil(np.ceil(shape.k / tile.step) / splits)
    store = tile.rows * on.output / on.cache_rate * columns
    units = matrix = cache = latency = 0.0
    for one in _rounds(shape, tile, columns, splits, on):
        units = units + one.rounds * (steps * one.step + on.fill + one.deep * one.busy * store)
        matrix = matrix + one.rounds * steps * one.deep * one.matrix
        waits, fed = one.rounds * steps * (one.step - one.deep * one.matrix), one.step == one.feed
        cache, latency = cache + waits * fed, latency + waits * ~fed
    split = split_cost(shape, splits, on)
    return Times(np.sqrt(units * units + memory * memory) + split, units, memory, matrix, cache, latency, split)
