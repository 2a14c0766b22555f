"""A layer of experts in the engine: what the exchanges move, in sequence and joined by T3, and on what numbers."""

import numpy as np
import pytest

import weft
from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.core.store import Store
from weft.engine import layout as y
from weft.estimate.exchange import Exchange, exchange
from weft.graph import Gemm, graph_lines, graph_of_lines
from weft.graph.moe import routing_of
from weft.kernels import GemmTiling
from weft.kernels.channels import ChannelTiling
from weft.overlaps.sequential import SequentialExperts
from weft.overlaps.t3_all_to_all import TrackedExperts

RANKS, HIDDEN, FFN = 4, 512, 256
EVEN = weft.Routing(256, 2, 8, RANKS)
UNEVEN = weft.Routing.by_power_law(256, 2, 8, RANKS, 1.1)
ODD = weft.Routing(50, 3, 8, RANKS, loads=(0, 5, 1, 1, 9, 1, 2, 0))
ROUTINGS = {"even": EVEN, "power law": UNEVEN, "histogram": ODD}
OVERLAPS = ("sequential", "t3-all-to-all")
LIMITED = weft.Routing(256, 4, 16, RANKS, reach=2)
PER_RANK = {**ROUTINGS, "limited": LIMITED, "limited, uneven": weft.Routing.by_power_law(256, 4, 16, RANKS, 0.8, 2)}
GPU = weft.gpu("h100-sxm")
ROW = HIDDEN * 2
TILING = GemmTiling(64, 64)


def layer(routing, tiling=TILING, gpus=RANKS, kernels=SequentialExperts):
    graph = weft.experts(routing, HIDDEN, FFN)
    return kernels(
        routing, graph["up"].op, graph["down"].op, tiling, ChannelTiling(8), GPU, gpus, SUSTAINED
    )  # fmt: skip


def away(routing):
    """Bytes that all GPUs send to each other in one direction, by the routing alone."""
    return int(routing.counts.sum()) * routing.ranks * ROW * (routing.ranks - 1) // routing.ranks


@pytest.fixture(scope="module")
def runs():
    options = RunOptions(mode="explicit", request_bytes=4096)
    return {
        (name, overlap): weft.simulate(weft.experts(routing, HIDDEN, FFN), "h100-sxm", overlap, options)
        for name, routing in ROUTINGS.items()
        for overlap in OVERLAPS
    }


@pytest.fixture(scope="module")
def per_rank():
    options = RunOptions(mode="explicit", request_bytes=4096)
    return {
        name: weft.simulate(weft.experts(routing, HIDDEN, FFN), "h100-sxm", "deepep", options)
        for name, routing in PER_RANK.items()
    }


def copies(routing):
    """Tokens that each GPU sends to every other one, itself included, counted one by one."""
    found = np.zeros((routing.ranks, routing.ranks), dtype=int)
    for g in range(routing.ranks):
        first = routing.first_rows(g)
        for to in range(routing.ranks):
            experts = range(to * routing.experts_per_rank, (to + 1) * routing.experts_per_rank)
            lists = (routing.token_of(first[e] + np.arange(routing.counts[e])).tolist() for e in experts)
            found[g, to] = len({token for one in lists for token in one})
    return found


@pytest.mark.parametrize("name", PER_RANK)
def test_a_token_crosses_the_links_once_for_each_gpu_that_it_reaches(per_rank, name):
    sent = copies(PER_RANK[name])
    assert [
        [sum(n for _, n in PER_RANK[name].sent_tokens(g, to)) for to in range(RANKS)] for g in range(RANKS)
    ] == sent.tolist()
    assert per_rank[name].counters["link_bytes"] == 2 * int(sent.sum() - np.trace(sent)) * ROW


@pytest.mark.parametrize("name", PER_RANK)
def test_results_come_back_as_one_sum_for_each_gpu(per_rank, name):
    routing, run = PER_RANK[name], per_rank[name]
    rows, sent = routing.rows * ROW, int(copies(routing).sum()) * ROW // RANKS
    moved = {cause: n for cause, n in run.traffic.items() if cause[0] in ("dispatch", "combine")}
    # Tokens are read, stored at each GPU, read there and stored for every expert; results the other way round.
    assert moved == {
        ("dispatch", "read"): 2 * sent,
        ("dispatch", "write"): sent + rows,
        ("combine", "read"): rows + 2 * sent,
        ("combine", "write"): 2 * sent + routing.tokens * ROW,
    }


def test_group_limited_tokens_reach_as_many_gpus_as_they_may():
    assert (copies(LIMITED).sum(axis=1) == 2 * LIMITED.tokens).all()
    for reach in range(1, 9):
        routing = weft.Routing(4096, 8, 256, 8, reach=reach)
        assert copies(routing).sum(axis=1) == pytest.approx(np.full(8, reach * 4096), rel=0.1)


def test_one_gpu_represents_all_under_deepep_where_loads_are_even(per_rank):
    options = RunOptions(mode="mirrored", request_bytes=4096)
    mirrored = weft.simulate(weft.experts(LIMITED, HIDDEN, FFN), "h100-sxm", "deepep", options)
    assert mirrored.seconds == pytest.approx(per_rank["limited"].seconds, rel=1e-9)
    assert mirrored.traffic == per_rank["limited"].traffic


def test_deepep_takes_what_its_closed_form_says():
    run = weft.simulate(weft.experts(weft.Routing(4096, 8, 256, 8, reach=5), 7168, 2048), "h100-sxm", "deepep")
    for kernel in ("dispatch", "combine"):
        # Random tokens reach 5.1 of 8 GPUs. The engine's kernels do not wait for the host.
        closed = exchange(Exchange(kernel, 4096, 7168, 8, 256, 8, "bf16"), "8xh100", "deepep")
        (span,) = (one for one in run.spans if one.kernel == kernel)
        took = (span.end_fs - span.start_fs) * 1e-15
        assert took == pytest.approx(closed.seconds - closed.parts.get("host", 0.0), rel=0.15)
        assert span.workgroups == 24


@pytest.mark.parametrize("name", PER_RANK)
def test_every_token_goes_to_top_k_different_experts(name):
    routing = PER_RANK[name]
    assert routing.counts.sum() == routing.tokens * routing.top_k
    assert routing.counts.max() <= routing.tokens
    for rank in range(RANKS):
        expert = np.empty(routing.rows, dtype=int)
        for e, first in enumerate(routing.first_rows(rank)):
            expert[first : first + routing.counts[e]] = e
        tokens = routing.token_of(np.arange(routing.rows))
        pairs = set(zip(tokens.tolist(), expert.tolist(), strict=True))
        assert len(pairs) == routing.rows
        assert (np.bincount(tokens) == routing.top_k).all()


def test_loads_follow_the_histogram_up_to_all_tokens():
    assert EVEN.counts.tolist() == [64] * 8
    assert weft.Routing(100, 1, 4, 2, loads=(1, 2, 3, 4)).counts.tolist() == [10, 20, 30, 40]
    # The first expert would get 160 of 200 rows, but there are 100 tokens: the others share the rest.
    assert weft.Routing(100, 2, 4, 2, loads=(12, 1, 1, 1)).counts.tolist() == [100, 34, 33, 33]
    assert np.all(np.diff(np.sort(UNEVEN.counts)) >= 0)
    assert UNEVEN.counts.max() > 2 * UNEVEN.counts.min()
    even = weft.Routing.by_power_law(256, 2, 8, RANKS, 0.0)
    assert even.counts.tolist() == EVEN.counts.tolist()
    whole = [weft.Routing.by_power_law(256, 2, 8, RANKS, one).counts.tolist() for one in (1, 1.0)]
    assert whole[0] == whole[1]


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_the_links_carry_the_bytes_of_the_routing_in_both_directions(runs, name, overlap):
    # An expert's rows come from all GPUs alike, so that a share of 1 / ranks stays at home.
    assert runs[name, overlap].counters["link_bytes"] == 2 * away(ROUTINGS[name])


@pytest.mark.parametrize("name", ROUTINGS)
def test_memory_moves_what_each_form_needs(runs, name):
    routing = ROUTINGS[name]
    rows = routing.rows * ROW
    sent = away(routing) // RANKS
    moved = {
        overlap: {cause: n for cause, n in runs[name, overlap].traffic.items() if cause[0] in ("dispatch", "combine")}
        for overlap in OVERLAPS
    }
    # Channels copy the GPU's own part, too; results are read, stored at their owner, read again, and stored summed.
    assert moved["sequential"] == {
        ("dispatch", "read"): rows,
        ("dispatch", "write"): rows,
        ("combine", "read"): 2 * rows,
        ("combine", "write"): rows + routing.tokens * ROW,
    }
    assert moved["t3-all-to-all"] == {
        ("dispatch", "read"): sent,
        ("dispatch", "write"): sent,
        ("combine", "update"): rows,
    }


@pytest.mark.parametrize("name", ROUTINGS)
def test_t3_never_reads_for_communication_what_the_sequence_does_not(runs, name):
    first, second = (runs[name, overlap].traffic for overlap in OVERLAPS)
    for operator in ("dispatch", "combine"):
        assert second.get((operator, "read"), 0) <= first[operator, "read"]


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_even_loads_end_at_the_same_time_on_equal_gpus(runs, overlap):
    run = runs["even", overlap]
    ends = {(span.kernel, span.iteration): set() for span in run.spans}
    for span in run.spans:
        if span.workgroups:
            ends[span.kernel, span.iteration].add(span.end_fs)
    assert all(len(found) <= 1 for found in ends.values())


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_one_gpu_represents_all_where_loads_are_even(runs, overlap):
    options = RunOptions(mode="mirrored", request_bytes=4096)
    mirrored = weft.simulate(weft.experts(EVEN, HIDDEN, FFN), "h100-sxm", overlap, options)
    assert mirrored.seconds == pytest.approx(runs["even", overlap].seconds, rel=1e-9)
    assert mirrored.traffic == runs["even", overlap].traffic
    with pytest.raises(InputError, match="their experts get different numbers of tokens"):
        weft.simulate(weft.experts(UNEVEN, HIDDEN, FFN), "h100-sxm", overlap, options)


def test_uneven_loads_take_longer_than_even_ones(runs):
    for overlap in OVERLAPS:
        assert runs["power law", overlap].seconds > runs["even", overlap].seconds


@pytest.mark.parametrize("name", ROUTINGS)
def test_t3_hides_the_exchanges_behind_the_gemms(runs, name):
    first, second = (runs[name, overlap] for overlap in OVERLAPS)
    assert second.seconds < first.seconds
    assert first.seconds == pytest.approx(sum(first.durations.values()), rel=0.05 if name != "even" else 1e-9)
    busiest = max(int(ROUTINGS[name].received_rows(rank).sum()) for rank in range(RANKS))
    products = Gemm(busiest, 2 * FFN, HIDDEN).flops + Gemm(busiest, HIDDEN, FFN).flops
    assert second.seconds >= products / GPU.matrix_rate("bf16", "boost")


@pytest.mark.parametrize("name", ROUTINGS)
def test_no_tile_starts_before_its_tokens_have_arrived(runs, name):
    run, of = runs[name, "t3-all-to-all"], ROUTINGS[name]
    made = layer(of, run_tiling(of), kernels=TrackedExperts)
    arrived = {(c.gpu, c.position): c.last_remote_fs for c in run.chunks if c.buffer == "arriving"}
    names, rows = run.residency.kernels, run.residency.rows
    for g in range(RANKS):
        tiles = made._tiles(g, made.up, 0, FFN * 2)
        own = rows[(rows[:, 0] == g) & (rows[:, 1] == names.index("up"))]
        needs = {
            line: max((arrived[g, p] for p, slot, _ in pieces if slot.distance), default=0)
            for line, pieces in made._of_lines(g).items()
        }
        for tile, (*_, end) in zip(tiles, own.tolist(), strict=False):
            assert end > needs[int(tile[y.WORK_ROW])]


def run_tiling(routing):
    """The tiling that a run chooses."""
    from weft.overlaps.lower.fit import tiling_for

    up = weft.experts(routing, HIDDEN, FFN)["up"].op
    return tiling_for(Gemm(up.rows, up.n, up.k, up.dtype), GPU, RunOptions(mode="explicit", request_bytes=4096))


@pytest.mark.parametrize("tiling", [TILING, GemmTiling(128, 128), GemmTiling(32, 96)])
@pytest.mark.parametrize("name", ROUTINGS)
def test_dispatched_tokens_come_back_as_the_sum_of_their_experts(name, tiling):
    """The plan's pieces carry real numbers: tokens to lines, lines through experts, results to their owners."""
    routing, made = ROUTINGS[name], layer(ROUTINGS[name], tiling)
    rng, each = np.random.default_rng(0), routing.experts_per_rank
    tokens = rng.standard_normal((RANKS, routing.tokens, 4))
    weights = rng.standard_normal((routing.experts, 4, 4))
    lines = np.full((RANKS, max(map(made.lines, range(RANKS))), tiling.rows, 4), np.nan)
    place = [[(p, slot) for p, slot in enumerate(made.slots)] for _ in range(RANKS)]
    for g in range(RANKS):  # dispatch
        for _, slot in place[g]:
            if piece := made.sent_piece(g, slot):
                target = (g - slot.distance) % RANKS
                cell = lines[target, piece.line, piece.at : piece.at + piece.rows]
                assert np.isnan(cell).all(), "two pieces share rows of a line"
                cell[:] = tokens[g, routing.token_of(piece.row + np.arange(piece.rows))]
    summed = np.zeros((RANKS, routing.tokens, 4))
    for g in range(RANKS):  # experts, and combine
        results = np.full_like(lines[g], np.nan)
        for line, expert, rows in made._lines_in_order(g):
            assert np.isfinite(lines[g, line, :rows]).all()
            results[line, :rows] = lines[g, line, :rows] @ weights[g * each + expert]
        for _, slot in place[g]:
            if piece := made.came(g, slot):
                owner = (g + slot.distance) % RANKS
                where = routing.token_of(piece.row + np.arange(piece.rows))
                summed[owner, where] += results[piece.line, piece.at : piece.at + piece.rows]
    expected = np.zeros_like(summed)
    for g in range(RANKS):
        for e, first in enumerate(routing.first_rows(g)):
            where = routing.token_of(first + np.arange(routing.counts[e]))
            expected[g, where] += tokens[g, where] @ weights[e]
    np.testing.assert_allclose(summed, expected)


@pytest.mark.parametrize("name", ROUTINGS)
def test_buffers_of_the_plan_lie_where_the_pieces_do(name):
    """Sizes and places that the engine gets are those that the numbers above went through."""
    made, plan = layer(ROUTINGS[name]), layer(ROUTINGS[name], kernels=TrackedExperts).plan()
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    for g in range(RANKS):
        for p, slot in enumerate(made.slots):
            to = (g - slot.distance) % RANKS
            assert buffers["sent"].sizes[g][p] == buffers["arriving"].sizes[to][p]
            assert buffers["summed"].sizes[g][p] == buffers["leaving"].sizes[to][p]
            if piece := made.sent_piece(g, slot):
                token = int(ROUTINGS[name].token_of(piece.row))
                assert buffers["sent"].offsets[g][p] == token * ROW == buffers["summed"].offsets[g][p]
                assert buffers["arriving"].offsets[to][p] == (piece.line * TILING.rows + piece.at) * ROW


def test_the_paper_s_machine_runs_both_forms():
    answer = weft.compare(weft.experts(weft.Routing(128, 2, 8, 4), 256, 256), "t3-paper", OVERLAPS)
    assert answer.speedup("t3-all-to-all") > 1
    assert list(answer.timelines) == list(OVERLAPS)


def test_a_layer_of_experts_is_kept_in_a_file():
    graph = weft.experts(UNEVEN, HIDDEN, FFN)
    again = graph_of_lines(list(graph_lines(graph)), "memory")
    assert again == graph
    assert routing_of(again) == UNEVEN


def test_a_run_of_experts_is_read_from_disk_as_it_was(tmp_path):
    graph, store = weft.experts(LIMITED, 256, 256), Store(tmp_path)
    options = RunOptions(request_bytes=4096)
    first, again = (weft.simulate(graph, "h100-sxm", "deepep", options, store=store) for _ in range(2))
    assert again.graph == first.graph
    assert again.seconds == first.seconds


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: weft.Routing(8, 2, 9, 4), "9 experts cannot be dealt evenly to 4 GPUs; give a multiple of 4"),
        (lambda: weft.Routing(8, 5, 4, 4), "top_k is 5, but there are only 4 experts"),
        (lambda: weft.Routing(8, 2, 4, 4, loads=(1.0,)), "1 loads for 4 experts; give one for each, or none"),
        (lambda: weft.Routing(8, 2, 4, 4, loads=(1, 0, 0, 0)), "fewer than 2 experts have a load above zero"),
        (lambda: weft.Routing(8, 2, 4, 4, loads=(1, -1, 0, 2)), "a load of an expert is -1; give finite numbers"),
        (lambda: weft.Routing(0, 2, 4, 4), "tokens of a routing is 0; it must be a whole number"),
        (lambda: weft.Routing.by_power_law(8, 2, 4, 4, -1), "exponent of the loads is -1; give a number from zero on"),
        (lambda: weft.experts("even", 64, 64), "routing is 'even'; it takes a routing like weft.Routing"),
        (
            lambda: weft.simulate("t-nlg/fc2", "t3-paper", "t3-all-to-all", tp=8),
            "'t3-all-to-all' is for an MoE layer, but .* choose 'sequential'",
        ),
        (
            lambda: weft.simulate(weft.experts(EVEN, 64, 64), "h100-sxm", "t3"),
            "is an MoE layer; choose 'sequential', 't3-all-to-all' or 'deepep'",
        ),
        (lambda: weft.simulate(weft.experts(EVEN, 64, 64), "4xa100-pcie", "sequential"), "straight to the GPU of each"),
    ],
)
def test_what_cannot_be_routed_is_refused_with_the_rule(make, says):
    with pytest.raises(InputError, match=says):
        make()
