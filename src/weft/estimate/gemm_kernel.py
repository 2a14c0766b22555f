"""The time of one GEMM under every kernel of a library, and the best of them: plain numbers, one shape at a time.

Written so that numba compiles it; without numba the same code runs, slower. All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, floor, inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from weft.estimate.machine_code import machine_code

SPLIT_STEPS = 4
"""Fewest K steps of a part [assumed]."""
SPLIT_WAVES = 3
"""A split K fills the GPU at most this many times [assumed]."""
SMALL = 64
"""Tiles of at most this many rows or columns are tried for any small matrix [assumed]."""
LARGE = 128 * 128
"""Tiles of at least this many elements are tried for any large matrix [assumed]."""
MANY_WAVES = 12
"""Number of waves from which only large tiles are tried [assumed]."""
RAMP = 0.7
"""Ratio of cache to footprint from which on part of the operands is still cached when reused [assumed]."""
SAME = 1 + 1e-12
"""Times within this ratio are equal, so that rounding decides nothing."""

_PARTIAL_BYTES = 8  # a partial sum is written and read


class KernelMachine(NamedTuple):
    """A GPU as the GEMM model sees it: effective rates of the whole GPU, and costs."""

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
    parts: float  # most parts into which K may be cut
    own_parts: float  # most parts into which the library cuts K by itself


class GemmShape(NamedTuple):
    """`batch` GEMMs of one shape in one launch, and how much of their matrices is distinct in memory.

    A matrix whose elements overlap, as the windows of an image do, is read from memory once, not once for each.
    """

    m: float
    n: float
    k: float
    batch: float
    distinct_a: float = 1.0  # elements in memory as a share of those of A
    distinct_b: float = 1.0


class Tile(NamedTuple):
    """A candidate tile as numbers."""

    rows: float
    columns: float
    step: float
    stages: float
    resident: float
    granule: float
    cluster: float


class WorkgroupCosts(NamedTuple):
    """What a candidate's workgroup costs on a machine [s], and how many are resident."""

    slots: float
    matrix: float  # a K step's matrix instructions, per column
    slab: float  # a K step's elements of one row or column through the whole cache
    shared_slab: float  # the same where a cluster fetches together
    store: float  # a column of C to the cache
    wait: float  # a K step's latency divided by the steps in flight
    wait_share: float  # the wait divided by the workgroups of a round
    issue_share: float  # a step's issue time divided by the workgroups of a round
    unit_share: float  # 1 / units
    column: float  # lower bound of what a K step of one column adds to the time of all units
    pace: float  # lower bound of a workgroup's K step


class GemmTraffic(NamedTuple):
    """Bytes that one GEMM of a batch moves between memory and cache, the same under every candidate."""

    operands: float  # A and B
    kept: float  # share of them that stays in the cache between waves
    others: float  # of A and C, bytes that are read from or written to DRAM
    b: float  # of B


class Attempt(NamedTuple):
    """Times of one shape under one candidate and split, and their breakdown."""

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
    """Tile width in granules where the library can narrow the tile: the least that needs no more waves."""
    if tile.granule == 0:
        return tile.columns
    waves = ceil(grid_rows * ceil(n / tile.columns) / units)
    across = max(floor(waves * units / grid_rows), 1.0)
    narrow = ceil(n / across / tile.granule) * tile.granule
    return min(narrow, tile.columns) if 2 * narrow > tile.columns else tile.columns


def traffic(shape: GemmShape, machine: KernelMachine) -> GemmTraffic:
    """Return which bytes of the operands and of C the cache holds before and after; the same under every candidate.

    A and C count as cached when they fit beside one B; B only if `rotation` of them fit. Nothing is shared between the
    GEMMs of a batch.
    """
    m, n, k, batch, distinct_a, distinct_b = shape
    a, b, c = m * k * machine.element * distinct_a, n * k * machine.element * distinct_b, m * n * machine.output
    near = _held_share(machine.resident / (batch * (a + b + c)))
    far = _held_share(machine.resident / (batch * (a + machine.rotation * b + c)))
    return GemmTraffic(a + b, min(1.0, machine.resident / (a + b)), (a + c) * (1 - near), b * (1 - far))


def memory_bytes(
    shape: GemmShape,
    moved: GemmTraffic,
    tile: Tile,
    columns: float,
    grid_rows: float,
    grid_columns: float,
    machine: KernelMachine,
) -> float:
    """Return the bytes moved to and from DRAM: operands once, again where the cache evicts them between waves, and C.

    The tiles that run together form a block as square as the grid allows.
    """
    again, crowd = 0.0, 1.0
    if moved.kept < 1 or machine.channels > 0:
        at_once = min(machine.units * tile.resident, grid_rows * grid_columns)
        high = sqrt(at_once * tile.rows * columns) / tile.rows
        high = min(max(high, at_once / grid_columns), grid_rows)
        wide = at_once / high
        both = high * tile.rows * shape.distinct_a + wide * columns * shape.distinct_b
        per_wave = both * shape.k * machine.element
        passes = grid_rows * grid_columns / at_once
        again = max(0.0, (1 - moved.kept) * (passes * per_wave - moved.operands))
        crowd = crowding(shape.n * machine.element, wide * columns * machine.element, machine)
    return shape.batch * (moved.others + again / 2 + (moved.b + again / 2) * crowd)


def crowding(stride: float, span: float, machine: KernelMachine) -> float:
    """Slowdown of reading B when its rows, `stride` bytes apart, map to few memory channels.

    Without an address hash, rows whose distance is a multiple of channels x interleave all begin in one channel; `span`
    bytes of each are read.
    """
    if machine.channels == 0:
        return 1.0
    lines = stride / machine.interleave
    if lines != floor(lines):
        return 1.0
    common = machine.channels
    while lines % common != 0:
        common = common / 2
    used = machine.channels / common * max(1.0, floor(span / machine.interleave / 2))
    return machine.channels / min(machine.channels, used)


def _held_share(ratio: float) -> float:
    return min(1.0, max(0.0, (ratio - RAMP) / (1 - RAMP)))


def costs(tile: Tile, machine: KernelMachine) -> WorkgroupCosts:
    """Return the costs of a candidate's workgroup that do not depend on the shape."""
    slots = machine.units * tile.resident
    slab = tile.step * machine.element / machine.cache_rate
    wait = machine.latency / (tile.stages - 1)
    matrix = 2 * tile.rows * tile.step / machine.unit_flops
    fed = (max(tile.rows, tile.columns) / tile.cluster + min(tile.rows, tile.columns)) * slab
    turn = max(matrix * tile.columns / machine.units + machine.issue / slots, wait / slots)
    narrow = tile.columns / 2 if tile.granule > 0 else tile.columns
    return WorkgroupCosts(
        slots,
        matrix,
        slab,
        slab / tile.cluster,
        tile.rows * machine.output / machine.cache_rate,
        wait,
        wait / slots,
        machine.issue / slots,
        1 / machine.units,
        max(turn, fed) / tile.columns,
        max(matrix * narrow + machine.issue, wait),
    )


def feed(tile: Tile, columns: float, alone: bool, cost: WorkgroupCosts) -> float:
    """Return the time to load both slabs of a K step through the cache [s]; a cluster loads the longer slab once."""
    longer = max(tile.rows, columns) * (cost.slab if alone else cost.shared_slab)
    return longer + min(tile.rows, columns) * cost.slab


def step_time(
    deep: float, busy: float, matrix: float, fed: float, cost: WorkgroupCosts, machine: KernelMachine
) -> float:
    """Return time of a K step of `deep` resident workgroups [s]: the longest of products, cache loads, and latency."""
    return max(deep * matrix + machine.issue, deep * fed * busy, cost.wait)


def units_time(
    work: float, steps: float, tile: Tile, columns: float, fed: float, cost: WorkgroupCosts, machine: KernelMachine
) -> float:
    """Return the time of whole rounds of resident workgroups on every unit, and of the remainder [s]."""
    matrix, store = cost.matrix * columns, cost.store * columns
    rounds = floor(work / cost.slots)
    rest = work - rounds * cost.slots
    time = 0.0
    if rounds > 0:
        step = step_time(tile.resident, machine.units, matrix, fed, cost, machine)
        time = rounds * (steps * step + machine.fill + cost.slots * store)
    if rest > 0:
        deep, busy = ceil(rest / machine.units), min(rest, machine.units)
        step = step_time(deep, busy, matrix, fed, cost, machine)
        time += steps * step + machine.fill + deep * busy * store
    return time


def attempt(
    shape: GemmShape, tile: Tile, columns: float, splits: float, memory_time: float, machine: KernelMachine
) -> Attempt:
    """One shape under one candidate: rounds of resident workgroups on every unit, overlapped with memory.

    Unit time and memory time overlap in part: the total is the root of the sum of their squares.
    """
    cost = costs(tile, machine)
    grid = ceil(shape.m / tile.rows) * ceil(shape.n / columns)
    work = grid * splits * shape.batch
    steps = ceil(ceil(shape.k / tile.step) / splits)
    fed = feed(tile, columns, grid == 1, cost)
    matrix = cost.matrix * columns
    rounds = floor(work / cost.slots)
    rest = work - rounds * cost.slots
    matrix_time = cache_time = latency_time = 0.0
    for last in range(2):
        deep = ceil(rest / machine.units) if last else tile.resident
        busy = min(rest, machine.units) if last else machine.units
        count = (1.0 if rest > 0 else 0.0) if last else rounds
        step = step_time(deep, busy, matrix, fed, cost, machine)
        matrix_time += count * steps * deep * matrix
        if step == deep * fed * busy:
            cache_time += count * steps * (step - deep * matrix)
        else:
            latency_time += count * steps * (step - deep * matrix)
    units = units_time(work, steps, tile, columns, fed, cost, machine)
    split_time = split_cost(shape, splits, machine)
    total = sqrt(units * units + memory_time * memory_time) + split_time
    return Attempt(total, columns, splits, units, memory_time, matrix_time, cache_time, latency_time, split_time)


def split_cost(shape: GemmShape, splits: float, machine: KernelMachine) -> float:
    """Return time to write the partial sums of a split K through the cache and to add them [s]; 0 without a split."""
    if splits == 1:
        return 0.0
    return machine.split + shape.batch * shape.m * shape.n * _PARTIAL_BYTES * splits / machine.cache_rate


def wasteful(shape: GemmShape, tile: Tile, machine: KernelMachine) -> bool:
    """Return whether a library skips the tile: three quarters of it are padding, or it is small for many waves."""
    if (tile.rows > SMALL and tile.rows >= 4 * shape.m) or (tile.columns > SMALL and tile.columns >= 4 * shape.n):
        return True
    area = tile.rows * tile.columns
    return area < LARGE and shape.m * shape.n * shape.batch > MANY_WAVES * area * machine.units * tile.resident


def least_time(
    shape: GemmShape,
    tile: Tile,
    grid: float,
    depth: float,
    columns: float,
    cost: WorkgroupCosts,
    machine: KernelMachine,
) -> float:
    """Lower bound of the units' time under one candidate, for any split of K; cheaper than the time itself.

    Every workgroup's K steps need the matrix units, the cache and, with all resident workgroups, a turn to issue
    and to wait; and a workgroup takes its pace through the smallest part of K.
    """
    matrix = cost.matrix * columns
    every = max(matrix * cost.unit_share + cost.issue_share, cost.wait_share)
    every = max(every, feed(tile, columns, grid == 1, cost))
    least = machine.fill + grid * (depth * every + cost.store * columns)
    pace = max(matrix + machine.issue, cost.wait)
    alone = machine.fill + depth * pace
    if least < alone:
        parts = most_parts(depth, grid, cost, machine)
        if parts > 1:
            alone = min(alone, machine.fill + depth / parts * pace + split_cost(shape, 2.0, machine))
        least = max(least, alone)
    return least


def quick_time(shape: GemmShape, tile: Tile, depth: float, cost: WorkgroupCosts, machine: KernelMachine) -> float:
    """Lower bound of the units' time under one candidate of any width; cheaper still than `least_time`."""
    columns = ceil(shape.m / tile.rows) * shape.n * shape.batch
    least = machine.fill + columns * (depth * cost.column + cost.store)
    parts = max(1.0, min(machine.parts, depth / SPLIT_STEPS))
    return max(least, machine.fill + min(depth * cost.pace, depth / parts * cost.pace + machine.split))


def most_parts(depth: float, grid: float, cost: WorkgroupCosts, machine: KernelMachine) -> float:
    """The most parts that K is cut into: each of some steps, up to the library's limit or a few fills of the GPU."""
    most = min(machine.parts, floor(depth / SPLIT_STEPS), floor(SPLIT_WAVES * cost.slots / grid))
    return max(1.0, most)


def parts_tried(turn: int, most: float, work: float, cost: WorkgroupCosts, machine: KernelMachine) -> float:
    """Return the parts of K tried in a turn: one, up to the library's limit, then whole fills of the GPU."""
    if turn == 0:
        return 1.0
    fills = floor(max(turn - 1, 1) * cost.slots / work)
    return min(most, fills, machine.own_parts) if turn == 1 else min(most, fills)


def fit_tile(shape: GemmShape, tile: Tile, machine: KernelMachine) -> tuple[float, float, float]:
    """Return columns of the tile, and rows and columns of its grid."""
    grid_rows = ceil(shape.m / tile.rows)
    columns = fitted_columns(shape.n, grid_rows * shape.batch, tile, machine.units)
    return columns, grid_rows, ceil(shape.n / columns)


def under(
    shape: GemmShape, moved: GemmTraffic, tile: Tile, cost: WorkgroupCosts, limit: float, machine: KernelMachine
) -> tuple[float, float, float, float]:
    """Return the best way to run the shape with one candidate: time, columns, parts of K, and memory time.

    Ways that cannot beat `limit` are skipped; if none is left, the time is infinite.
    """
    columns, grid_rows, grid_columns = fit_tile(shape, tile, machine)
    grid = grid_rows * grid_columns
    work = grid * shape.batch
    depth = ceil(shape.k / tile.step)
    found, parts, before, memory_time = inf, 1.0, 0.0, 0.0
    least = least_time(shape, tile, work, depth, columns, cost, machine)
    if least > limit:
        return found, columns, parts, memory_time
    memory_time = memory_bytes(shape, moved, tile, columns, grid_rows, grid_columns, machine) / machine.memory_rate
    memory_squared = memory_time * memory_time
    if least * least + memory_squared > limit * limit:
        return found, columns, parts, memory_time
    fed = feed(tile, columns, grid == 1, cost)
    pace = max(cost.matrix * columns + machine.issue, cost.wait)
    most = most_parts(depth, work, cost, machine)
    for turn in range(SPLIT_WAVES + 2):
        splits = parts_tried(turn, most, work, cost, machine)
        if splits <= before:
            continue
        before = splits
        extra = split_cost(shape, splits, machine)
        steps = ceil(depth / splits)
        if extra + max(machine.fill + steps * pace, memory_time) > limit:
            continue
        busy = units_time(work * splits, steps, tile, columns, fed, cost, machine)
        total = sqrt(busy * busy + memory_squared) + extra
        if total < found:
            found, parts = total, splits
            limit = min(limit, SAME * total)
        if splits == most:
            break
    return found, columns, parts, memory_time


def time_candidate(shape: GemmShape, tile: Tile, columns: float, splits: float, machine: KernelMachine) -> Attempt:
    """Return the times of the shape under one candidate with given columns and parts of K."""
    grid_rows, grid_columns = ceil(shape.m / tile.rows), ceil(shape.n / columns)
    moved = memory_bytes(shape, traffic(shape, machine), tile, columns, grid_rows, grid_columns, machine)
    return attempt(shape, tile, columns, splits, moved / machine.memory_rate, machine)


def best(shape: GemmShape, tiles: Any, prepared: Any, least: Any, machine: KernelMachine) -> tuple[int, Attempt]:
    """Return the fastest candidate and its times; the first on a tie.

    The candidate with the least lower bound is tried first, so that few others need a full evaluation. `prepared` holds
    the Costs of every candidate; `least` is scratch space for the squares of their lower bounds.
    """
    moved = traffic(shape, machine)
    memory = shape.batch * (moved.others + moved.b) / machine.memory_rate
    first, step, depth = 0, 0.0, 0.0
    for index in range(len(tiles)):
        tile, cost = _tile(tiles[index]), _costs(prepared[index])
        least[index] = inf
        if index > 0 and wasteful(shape, tile, machine):
            continue
        if tile.step != step:
            step, depth = tile.step, ceil(shape.k / tile.step)
        time = quick_time(shape, tile, depth, cost, machine)
        least[index] = time * time
        if least[index] < least[first]:
            first = index
    chosen, found = first, under(shape, moved, _tile(tiles[first]), _costs(prepared[first]), inf, machine)
    for index in range(len(tiles)):
        limit = SAME * found[0]
        if index == first or least[index] + memory * memory > limit * limit:
            continue
        now = under(shape, moved, _tile(tiles[index]), _costs(prepared[index]), limit, machine)
        if now[0] * SAME < found[0] or (now[0] <= limit and index < chosen):
            chosen, found = index, now
    return chosen, attempt(shape, _tile(tiles[chosen]), found[1], found[2], found[3], machine)


def _shape(row: Any) -> GemmShape:
    return GemmShape(row[0], row[1], row[2], row[3], row[4], row[5])


def _tile(row: Any) -> Tile:
    return Tile(row[0], row[1], row[2], row[3], row[4], row[5], row[6])


def _costs(row: Any) -> WorkgroupCosts:
    return WorkgroupCosts(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10])


def run(shapes: Any, tiles: Any, machine: KernelMachine, chosen: Any, times: Any, prepared: Any, least: Any) -> None:
    """Fill `chosen` and a row of `times` (the fields of Attempt) for every row of `shapes` (the fields of Shape).

    `prepared` (tiles, fields of Costs) and `least` (tiles) are scratch space.
    """
    for i in range(len(tiles)):
        cost = costs(_tile(tiles[i]), machine)
        for field in range(len(cost)):
            prepared[i, field] = cost[field]
    for i in range(len(shapes)):
        chosen[i], found = best(_shape(shapes[i]), tiles, prepared, least, machine)
        for field in range(len(found)):
            times[i, field] = found[field]


def each(shape: GemmShape, tiles: Any, splits: Any, machine: KernelMachine, times: Any) -> None:
    """Fill `times` with the time of a shape under every tile, K in the parts given for each."""
    for i in range(len(tiles)):
        tile = _tile(tiles[i])
        times[i] = time_candidate(shape, tile, tile.columns, splits[i], machine).total


@cache
def compile_kernel(name: str = "run") -> Callable[..., None]:
    """A function of this file with all that it calls as machine code, kept on disk: over a million shapes a second."""
    entry: Callable[..., None] = machine_code(globals(), (name,), ceil=np.ceil, floor=np.floor)[name]  # return floats
    return entry
