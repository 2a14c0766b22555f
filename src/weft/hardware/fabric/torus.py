"""A two-dimensional torus: each GPU has links to four neighbours; messages go along x first, then along y."""

from __future__ import annotations

from weft.errors import InputError
from weft.hardware.fabric.base import Fabric, Link, pairs
from weft.hardware.fabric.ring import signed_distance

_STEPS = (("x-", -1, 0), ("x+", 1, 0), ("y-", 0, -1), ("y+", 0, 1))


def torus(gpus: int, bandwidth: float, latency: float, columns: int | None = None) -> Fabric:
    """`gpus` GPUs, row after row of `columns` (by default as near to a square as goes), `bandwidth` [bytes/s] a link.

    Raises InputError where `gpus` are no whole rows.
    """
    columns = columns or max(c for c in range(1, int(gpus**0.5) + 1) if gpus % c == 0)
    if gpus % columns:
        raise InputError(f"{gpus} GPUs are no rows of {columns}; choose columns that divide {gpus}")
    rows = gpus // columns

    def at(x: int, y: int) -> int:
        return y % rows * columns + x % columns

    links = [
        Link(kind, at(x, y), at(x, y), at(x + dx, y + dy), bandwidth, latency, to_peer=True)
        for kind, dx, dy in _STEPS
        for y in range(rows)
        for x in range(columns)
    ]

    def route(source: int, target: int) -> tuple[int, ...]:
        (y, x), (to_y, to_x) = divmod(source, columns), divmod(target, columns)
        across, along = signed_distance(x, to_x, columns), signed_distance(y, to_y, rows)
        first = (across > 0) * gpus
        second = (2 + (along > 0)) * gpus
        sign_x, sign_y = (1 if across > 0 else -1), (1 if along > 0 else -1)
        return (
            *(first + at(x + sign_x * step, y) for step in range(abs(across))),
            *(second + at(to_x, y + sign_y * step) for step in range(abs(along))),
        )

    return Fabric("torus", gpus, tuple(links), {(s, t): route(s, t) for s, t in pairs(gpus)})
