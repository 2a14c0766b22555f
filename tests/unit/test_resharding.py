"""The collective of each change of layout, and its bytes: the table of arXiv:2201.12023."""

import pytest

from weft.core.errors import InputError
from weft.graph import Tensor
from weft.papers.textbook.strategies import PARTIAL, REPLICATED, resharding

Q = 4
TENSOR = Tensor((64, 128), "fp16")
N = TENSOR.bytes


@pytest.mark.parametrize(
    ("before", "after", "kind", "sent"),
    [
        (REPLICATED, REPLICATED, None, 0),
        (REPLICATED, 0, None, 0),
        (0, REPLICATED, "all_gather", (Q - 1) / Q * N),
        (0, 1, "all_to_all", (Q - 1) / Q**2 * N),
        (PARTIAL, REPLICATED, "all_reduce", 2 * (Q - 1) / Q * N),
        (PARTIAL, 1, "reduce_scatter", (Q - 1) / Q * N),
        (PARTIAL, PARTIAL, None, 0),
    ],
)
def test_a_change_of_layout_takes_the_collective_of_the_table(before, after, kind, sent):
    moves = resharding(TENSOR, (before,), (after,), [Q])
    assert [move.kind for move in moves] == ([kind] if kind else [])
    assert sum(move.sent for move in moves) == sent


def test_axes_that_make_the_tensor_smaller_go_first():
    moves = resharding(TENSOR, (0, PARTIAL), (REPLICATED, 1), [2, 4])
    assert [(move.axis, move.kind) for move in moves] == [(1, "reduce_scatter"), (0, "all_gather")]
    assert [move.sent for move in moves] == [3 / 4 * N / 2, 1 / 2 * N / 4]


def test_the_bytes_of_an_axis_are_what_the_other_axis_leaves():
    (move,) = resharding(TENSOR, (0, 1), (0, REPLICATED), [2, 4])
    assert move.sent == 3 / 4 * N / 2
    assert move.bytes == N / 2


def test_an_axis_of_one_rank_moves_nothing():
    assert resharding(TENSOR, (0, REPLICATED), (REPLICATED, REPLICATED), [1, 4]) == ()


@pytest.mark.parametrize(
    ("before", "after", "mesh", "words"),
    [
        ((0,), (PARTIAL,), [4], "cannot become a sum"),
        ((0, 1), (0,), [4], "give one for each"),
        ((2,), (0,), [4], "not one of the 2"),
        ((0,), (1,), [3], "cannot split evenly"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(before, after, mesh, words):
    with pytest.raises(InputError, match=words):
        resharding(TENSOR, before, after, mesh)
