"""One pass on one rank: what its compute stream does, what it waits for, and what sharing the GPU costs."""

import pytest

from weft.graph import Collective, Gemm, Graph, Node
from weft.step.spans import time_nodes

GEMM, MOVE = Gemm(64, 64, 64), Collective("all_gather", 1 << 20, 8)


def kernel(name: str, **more) -> Node:
    return Node(GEMM, name, stream="compute", **more)


def graph(*nodes: Node) -> Graph:
    return Graph(nodes, ranks=8)


def test_collective_beside_a_gemm_is_hidden():
    work = graph(kernel("a"), Node(MOVE, "move", after=("a",), stream="tp"), kernel("b", after=("a",)))
    found = time_nodes(work, {"a": 1.0, "move": 2.0, "b": 3.0})
    assert found.seconds == 4.0
    assert found.parts == {"gemm": 4.0}
    assert found.hidden == {"tp": 2.0}


def test_wait_for_a_collective_is_exposed_on_its_axis():
    work = graph(
        kernel("a"), Node(MOVE, "move", after=("a",), stream="tp"), kernel("b", after=("a",)),
        kernel("c", after=("b", "move")),
    )  # fmt: skip
    found = time_nodes(work, {"a": 1.0, "move": 5.0, "b": 3.0, "c": 1.0})
    assert found.seconds == 7.0
    assert found.parts == {"gemm": 5.0, "exposed tp": 2.0}
    assert found.hidden == {"tp": 3.0}


def test_gap_belongs_to_the_collectives_that_fill_it():
    work = graph(
        Node(MOVE, "first", stream="cp"), Node(MOVE, "second", after=("first",), stream="tp"),
        kernel("a", after=("second",)),
    )  # fmt: skip
    found = time_nodes(work, {"first": 1.0, "second": 2.0, "a": 1.0})
    assert found.parts == {"gemm": 1.0, "exposed cp": 1.0, "exposed tp": 2.0}


def test_what_is_computed_again_is_a_part_of_its_own():
    found = time_nodes(graph(kernel("a", phase="recompute"), kernel("b")), {"a": 1.0, "b": 2.0})
    assert found.parts == {"recompute": 1.0, "gemm": 2.0}


def test_without_slowdown_sharing_changes_nothing():
    work = graph(
        kernel("a"), Node(MOVE, "move", after=("a",), stream="tp"), kernel("b", after=("a",)),
        kernel("c", after=("b", "move")),
    )  # fmt: skip
    seconds = {"a": 1.0, "move": 5.0, "b": 3.0, "c": 1.0}
    shared = time_nodes(work, seconds, lambda own, other: (1.0, 1.0))
    alone = time_nodes(work, seconds)
    assert {name: pytest.approx(times) for name, times in alone.times.items()} == shared.times


def test_kernel_and_collective_slow_each_other_only_while_both_run():
    work = graph(Node(MOVE, "move", stream="tp"), kernel("a"))
    found = time_nodes(work, {"move": 1.0, "a": 4.0}, lambda own, other: (2.0, 1.5))
    # For 1.5 s both run: the collective ends, the GEMM has done 0.75 s of its work; 3.25 s remain.
    assert found.times["move"] == pytest.approx((0.0, 1.5))
    assert found.seconds == pytest.approx(4.75)
