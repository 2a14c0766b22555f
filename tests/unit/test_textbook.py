import pytest

from weft.collectives import textbook
from weft.collectives.textbook import FAMILIES, Counts, cost, lower_bound
from weft.errors import InputError, UnknownNameError

RANKS = (2, 3, 4, 7, 8, 64)
ONE_PORT_FULL_MESH = {
    "one-shot",
    "two-shot",
}  # all peers at once: latency below what one message at a time allows


@pytest.mark.parametrize("key", FAMILIES, ids=" ".join)
def test_no_algorithm_beats_the_lower_bound(key):
    family = FAMILIES[key]
    for p in RANKS:
        if family.powers_only and p & (p - 1):
            continue
        counts, least = family.counts(p, 1e6), lower_bound(family.collective, p, 1e6)
        assert counts.sent >= least.sent * (1 - 1e-12) or family.name == "Bruck"
        assert counts.reduced >= least.reduced * (1 - 1e-12)
        if family.name not in ONE_PORT_FULL_MESH:
            assert counts.messages >= least.messages


@pytest.mark.parametrize("p", RANKS)
def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(p):
    whole = cost("all_reduce", "ring", p, 1e6)
    first, second = cost("reduce_scatter", "ring", p, 1e6), cost("all_gather", "ring", p, 1e6)
    assert whole.messages == first.messages + second.messages
    assert whole.sent == pytest.approx(first.sent + second.sent)
    assert whole.reduced == pytest.approx(first.reduced)


def test_rabenseifner_sends_what_a_ring_sends_in_fewer_messages():
    ring, halving = cost("all_reduce", "ring", 64, 1e6), cost("all_reduce", "Rabenseifner", 64, 1e6)
    assert halving.sent == pytest.approx(ring.sent)
    assert (halving.messages, ring.messages) == (12, 126)


def test_the_best_number_of_segments_is_where_the_chain_is_fastest():
    alpha, beta = 5e-6, 1e-11
    best = textbook.best_segments(8, 1e8, alpha, beta)
    times = {m: textbook.pipelined_chain(8, 1e8, m).seconds(alpha, beta) for m in range(1, 4 * best)}
    assert abs(min(times, key=times.get) - best) <= 1


def test_a_hierarchy_sends_less_between_groups_than_a_flat_ring_does():
    _, between = textbook.hierarchical_all_reduce(2, 8, 1e9)
    assert between.sent * 8 == pytest.approx(1e9)
    assert cost("all_reduce", "ring", 16, 1e9).sent == pytest.approx(1.875e9)


def test_costs_are_alpha_beta_gamma():
    assert Counts(2, 10, 5).seconds(1.0, 0.1, 0.01) == pytest.approx(3.05)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (("all_reduce", "cube", 8, 1e6), UnknownNameError, "unknown all_reduce algorithm 'cube'"),
        (("all_sum", "ring", 8, 1e6), UnknownNameError, "unknown collective 'all_sum'"),
        (("all_gather", "recursive doubling", 6, 1e6), InputError, "needs a power of two of ranks, not 6"),
        (("all_gather", "ring", 1, 1e6), InputError, "at least 2 ranks, not 1"),
        (("all_gather", "ring", 8, 0), InputError, "above zero"),
    ],
)
def test_what_cannot_be_costed_is_refused_in_a_sentence(wrong, error, says):
    with pytest.raises(error, match=says):
        cost(*wrong)
