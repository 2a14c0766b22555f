"""Steps of graphs with collectives: exposed or hidden by their streams, among the ranks of their groups."""

from __future__ import annotations

import pytest

import weft
from weft.core.errors import InputError
from weft.graph import Collective, Gemm, Graph, Node, Send

GEMM, MOVED = Gemm(4096, 4096, 4096), Collective("all_reduce", 64 << 20, 8)


def timed(*nodes, on="8xh100-sxm", **labels):
    return weft.step(Graph(nodes, 8, labels=labels), on)


def test_a_collective_between_two_kernels_is_exposed_whole():
    step = timed(
        Node(GEMM, "up"),
        Node(MOVED, "sum", stream="tp", after=("up",)),
        Node(GEMM, "down", after=("sum",)),
    )
    assert step.hidden == pytest.approx(0, abs=1e-9)
    assert step.seconds == pytest.approx(sum(one.seconds for one in step.shares))
    assert step.exposed == pytest.approx(weft.estimate(MOVED, "8xh100-sxm").seconds, rel=0.05)


def test_a_collective_beside_kernels_is_hidden_and_slows_them_down():
    kernels = [Node(GEMM, f"gemm{number}") for number in range(20)]
    alone, beside = timed(*kernels), timed(Node(MOVED, "sum", stream="dp"), *kernels)
    assert beside.exposed == pytest.approx(0, abs=1e-9)
    assert beside.hidden > 0
    assert alone.seconds < beside.seconds < alone.seconds + beside.hidden
    assert sum(one.seconds for one in beside.shares) == pytest.approx(beside.seconds)


def test_a_group_across_nodes_is_slower_than_one_within():
    pair = Collective("all_reduce", 64 << 20, 2)
    near, far = (
        timed(Node(pair, "sum", stream="dp"), on="16xh100-sxm", **{"group dp": ranks}) for ranks in ("0 1", "0 8")
    )
    assert far.exposed > near.exposed


def test_a_graph_of_more_ranks_than_gpus_or_with_messages_is_refused():
    with pytest.raises(InputError, match=r"8 ranks.*4 GPUs"):
        timed(Node(MOVED, "sum", stream="tp"), on="4xh100-sxm")
    with pytest.raises(InputError, match="send messages"):
        timed(Node(Send(1 << 20), "send", stream="pp"))
