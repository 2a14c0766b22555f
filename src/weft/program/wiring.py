"""What a plan's GPUs are joined by, in integers: the rows of links, and the routes over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.engine.state import Table


class Hop(NamedTuple):
    """A link of a route, by its row, and the latency from its end to the next link or the receiver [fs]."""

    link: int
    latency: int


class Wiring(NamedTuple):
    """The links of the simulated GPUs, `link[k, :]`, their names, and the routes by (GPU, distance, direct).

    A distance counts ranks away around the group, downwards; `direct` routes take the links to that GPU alone.
    """

    link: Table
    names: tuple[str, ...]
    routes: Mapping[tuple[int, int, bool], tuple[Hop, ...]]


class Hardware(NamedTuple):
    """The simulated GPUs, `gpu[g, :]`, the sizes that they share, as `engine.layout` names them, and their wiring."""

    gpu: Table
    shape: Table
    wiring: Wiring
