"""What every fabric keeps to: routes between all pairs, each connected, and loads as even as it says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from operator import attrgetter

import pytest

from weft.core.errors import InputError
from weft.hardware import FABRICS
from weft.hardware.fabric import EVERY_PEER, Fabric, nodes, torus

RATE, LATENCY = 100e9, 500e-9
BUILT = {f"{name} of {gpus}": FABRICS[name](gpus, RATE, LATENCY) for name in FABRICS for gpus in (8, 16)}
BUILT["fat tree of 16"] = nodes(16, RATE, LATENCY, each=4, oversubscription=2)
BUILT["torus of 2 x 3"] = torus(6, RATE, LATENCY, columns=2)

every = pytest.mark.parametrize("fabric", BUILT.values(), ids=BUILT)


@every
def test_every_pair_of_gpus_has_a_route_of_its_own(fabric: Fabric):
    pairs = {(s, t) for s in range(fabric.gpus) for t in range(fabric.gpus) if s != t}
    assert set(fabric.routes) == pairs
    assert not fabric.striped or set(fabric.striped) == pairs
    with pytest.raises(InputError, match=f"{fabric.name}.* no route from GPU 0 to GPU 0"):
        fabric.route(0, 0)


@every
def test_each_link_of_a_route_begins_where_the_one_before_it_ends(fabric: Fabric):
    for (source, target), route in fabric.routes.items():
        links = [fabric.links[k] for k in route]
        assert links[0].source == source
        assert links[-1].target == target
        assert all(one.target == after.source for one, after in pairwise(links))
        assert sum(link.latency for link in links) > 0
    for (source, target), route in fabric.striped.items():
        first, *_, last = [fabric.links[k] for k in route]
        assert (first.source, first.target, last.target) == (source, EVERY_PEER, target)


@every
def test_links_have_names_of_their_own_and_bundles_only_where_routes_begin(fabric: Fabric):
    assert len({link.name for link in fabric.links}) == len(fabric.links)
    later = {k for route in (*fabric.routes.values(), *fabric.striped.values()) for k in route[1:]}
    assert not any(fabric.links[k].bundle is not None for k in later)


@every
def test_rotating_the_ranks_of_a_symmetric_fabric_maps_routes_onto_links_of_the_same_kinds(fabric: Fabric):
    def kinds(source: int, target: int) -> list[tuple[str, int]]:
        links = [fabric.links[k] for k in fabric.routes[source, target]]
        return [(link.kind, (link.owner - source) % fabric.gpus) for link in links]

    same = all(kinds(0, (t - s) % fabric.gpus) == kinds(s, t) for s, t in fabric.routes)
    assert same or not fabric.symmetric
    loads = Counter(k for route in fabric.routes.values() for k in route)
    by_kind: dict[str, set[int]] = {}
    for k, load in loads.items():
        by_kind.setdefault(fabric.links[k].kind, set()).add(load)
    if fabric.symmetric:
        assert all(len(found) == 1 for found in by_kind.values())


@every
def test_rotating_the_ranks_by_the_period_maps_routes_onto_equivalent_links(fabric: Fabric):
    if not fabric.period:
        assert fabric.symmetric
        return
    many, rates = Counter(link.kind for link in fabric.links), attrgetter("bandwidth", "latency", "payload")

    def links(source: int, target: int, turned: int) -> list[tuple[str, int, float, float, float | None]]:
        found = [fabric.links[k] for k in fabric.routes[source, target]]
        return [
            (one.kind, (one.owner + turned * many[one.kind] // fabric.gpus) % many[one.kind], *rates(one))
            for one in found
        ]

    for s, t in fabric.routes:
        moved = (s + fabric.period) % fabric.gpus, (t + fabric.period) % fabric.gpus
        assert links(s, t, fabric.period) == links(*moved, 0)


def test_a_torus_sends_along_x_first_and_the_shorter_way_round():
    fabric = torus(16, RATE, LATENCY)
    assert [fabric.links[k].name for k in fabric.routes[0, 7]] == ["x- 0", "y+ 3"]
    assert [fabric.links[k].name for k in fabric.routes[5, 15]] == ["x- 5", "x- 4", "y- 7", "y- 3"]


def test_rails_change_gpu_inside_the_node_and_a_tree_climbs_to_the_spine():
    rails, tree = nodes(16, RATE, LATENCY), nodes(16, RATE, LATENCY, oversubscription=4)
    assert [rails.links[k].name for k in rails.routes[1, 10]] == [
        "egress 1", "ingress 2", "adapter out 2", "adapter in 10",
    ]  # fmt: skip
    assert [rails.links[k].name for k in rails.routes[2, 10]] == ["adapter out 2", "adapter in 10"]
    up = next(link for link in tree.links if link.kind == "up")
    assert [tree.links[k].name for k in tree.routes[1, 10]] == [
        "adapter out 1",
        "up 0",
        "down 1",
        "adapter in 10",
    ]
    assert up.bandwidth == pytest.approx(8 * 50e9 / 4)


@pytest.mark.parametrize("build", [lambda: torus(16, RATE, LATENCY, 3), lambda: nodes(12, RATE, LATENCY)])
def test_gpus_that_make_no_whole_rows_or_nodes_are_refused(build):
    with pytest.raises(InputError, match=r"1\d GPUs"):
        build()
