"""Collectives under T3 other than the paper's ring: tiles that go straight to their owners, and K in parts."""

import numpy as np
import pytest
from machines import finish, gpu, layer, program
from runs import run, tiled

import weft
from weft.core.errors import InputError
from weft.engine import layout as y
from weft.engine.program import Mode
from weft.hardware import FABRICS, System
from weft.kernels import GemmTiling, tile_table
from weft.kernels.gemm import owner_by_owner
from weft.kernels.ring import direct_reduce_scatter
from weft.overlaps.lower.fit import parts_of_k

TP = 8
FC2 = weft.sublayer("t-nlg", "fc2", tp=TP)
SMALL = layer(m=1024, n=1024, k=512, tp=4)


def joined(fabric, ranks=TP, egress=150e9, **changes):
    """The paper's GPUs on a full mesh, or behind a switch, whose links together carry `egress` [bytes/s]."""
    each = egress / (ranks - 1) if fabric == "full" else egress
    one = gpu(**changes)
    return System(gpu=one, gpus=ranks, fabric=FABRICS[fabric](ranks, each, one.link.latency))


# -- straight to the owner


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_owner_of_a_chunk_receives_it_at_its_own_position(ranks):
    *sent, own = direct_reduce_scatter(ranks)
    assert own.mode == Mode.LOCAL_UPDATE
    assert own.updates_per_element == ranks
    # GPU g makes chunk g + 1 + p at position p, and a distance counts ranks downwards.
    for position, rule in enumerate(sent):
        assert rule.mode == Mode.REMOTE_UPDATE
        assert -rule.remote.distance % ranks == (1 + position) % ranks
        assert rule.remote.position == ranks - 1


@pytest.mark.parametrize("shape", [(1024, 512), (512, 2048), (1000, 700)])
def test_neighbouring_tiles_go_to_different_owners(shape):
    gemm, tiling = weft.gemm(*shape, 64, "fp16"), GemmTiling(rows=64, columns=64)
    ordered = tile_table(gemm, tiling, 4, 1)
    found = owner_by_owner(ordered, gemm, tiling)
    assert np.array_equal(found[np.argsort(found[:, y.WORK_TILE])], ordered)
    if len(found) % 4 == 0 and max(tiling.grid(gemm)) % 4 == 0:
        assert (np.sort(found[:, y.WORK_REGION].reshape(-1, 4)) == range(4)).all()


@pytest.mark.parametrize("fabric", ["full", "switch"])
def test_sent_to_owners_nothing_is_read_for_the_reduce_scatter(fabric):
    ran = run(SMALL, joined(fabric, 4), "t3-direct", mode="explicit")
    chunk = SMALL["gemm"].op.output_bytes // 4
    moved = {kind: count for (of, kind), count in ran.traffic.items() if of == "reduce_scatter"}
    assert moved == {"update": 3 * chunk}
    assert ran.traffic["gemm", "update"] == chunk
    assert ran.counters["link_bytes"] == 4 * 2 * 3 * chunk


@pytest.mark.parametrize("fabric", ["full", "switch"])
def test_one_gpu_stands_for_all_that_store_at_owners(fabric):
    one, every = (
        run(FC2, joined(fabric), "t3-direct", mode=mode, request_bytes=4096) for mode in ("mirrored", "explicit")
    )
    assert one.seconds == pytest.approx(every.seconds, rel=0.005)


@pytest.mark.parametrize("fabric", ["full", "switch"])
@pytest.mark.parametrize("egress", [150e9, 37.5e9])
@pytest.mark.parametrize("buffer", ["0 B", "1 TiB"])
def test_gemm_and_reduce_scatter_take_as_long_as_the_longer_where_no_store_waits_for_the_link(fabric, egress, buffer):
    machine = joined(fabric, TP, egress, link__store_buffer=buffer)
    ran, alone = (run(FC2, machine, overlap) for overlap in ("t3-direct", "sequential"))
    sent = (TP - 1) * FC2["gemm"].op.output_bytes / TP
    least = max(alone.duration("gemm"), sent / egress)
    joint = ran.seconds - ran.duration("all_gather")
    assert joint >= 0.99 * least
    if buffer == "1 TiB":  # the first stage has nothing to send before it ends
        first = min(stage.end_fs for stage in ran.stages if stage.kernel == "gemm") * 1e-15
        assert joint <= 1.03 * max(alone.duration("gemm"), first + sent / egress)
    else:  # a stage's stores hold its workgroups while the link sends them
        assert joint >= 0.95 * (alone.duration("gemm") + sent / egress)


@pytest.mark.parametrize("fabric", ["ring", "torus"])
@pytest.mark.parametrize("overlap", ["t3-direct", "t3-direct-dma"])
def test_a_direct_reduce_scatter_needs_links_to_all_peers(fabric, overlap):
    with pytest.raises(InputError, match=f"in the fabric '{fabric}' not every GPU reaches every other one"):
        run(SMALL, joined(fabric, 4), overlap)


@pytest.mark.parametrize("fabric", ["full", "switch"])
def test_dma_engines_free_the_workgroups_that_would_wait_for_the_link(fabric):
    machine = joined(fabric)
    stored, sent, ring = (run(FC2, machine, overlap) for overlap in ("t3-direct", "t3-direct-dma", "t3-mca"))
    assert sent.seconds < min(ring.seconds, 0.95 * stored.seconds)
    assert max(span.waits["store"] for span in sent.spans) < max(span.waits["store"] for span in stored.spans)


@pytest.mark.parametrize(("system", "joined_by"), [("dgx-1", "a node joined by 'hybrid'"), ("16xh100", "2 nodes")])
def test_a_direct_reduce_scatter_stays_in_a_node_of_links_to_all(system, joined_by):
    ranks = 16 if joined_by == "2 nodes" else 8
    with pytest.raises(InputError, match=f"{joined_by} not every GPU"):
        run(weft.sublayer("t-nlg", "fc2", tp=ranks), system, "t3-direct")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_added_at_the_owner_as_they_come_tiles_sum_right(dtype):
    graph = layer(m=512, n=512, k=1024, tp=4)
    equal = joined("full", 4)
    slow = System(gpu=equal.gpu, gpus=4, fabric=equal.fabric, variants={2: gpu(compute__clock="0.5 GHz")})
    for machine in (equal, slow):
        done = weft.replay(graph, machine, "t3-direct", dtype=dtype)
        assert done.errors.same_by_arrival == 1
        assert done.errors.near_memory < 2 * done.errors.fp32
        assert done.updates == np.count_nonzero(done.run.updates.peer_fs >= 0) * 4 // 3
        assert weft.replay(graph, machine, "t3-direct-dma", dtype=dtype).errors.near_memory < 2 * done.errors.fp32


@pytest.mark.parametrize(("engines", "most"), [(3, 1), (7, 3), (2, 1)])
def test_an_engine_sends_to_one_owner_as_far_as_there_are_enough(engines, most):
    ran = run(SMALL, joined("full", 4, dma__engines=engines), "t3-direct-dma")
    of_owner, of_engine = {}, {}
    for dma in ran.dmas:
        of_owner.setdefault(dma.position, set()).add(dma.engine)
        of_engine.setdefault(dma.engine, set()).add(dma.position)
    assert max(map(len, of_owner.values())) == most
    assert max(map(len, of_engine.values())) == (1 if engines >= 3 else 2)


# -- summed on the way


def adding(ranks=TP, **changes):
    """The paper's GPUs behind a switch that adds."""
    one = gpu(**changes)
    return System(
        gpu=one, gpus=ranks, fabric=FABRICS["switch"](ranks, one.link.bandwidth, one.link.latency, reduces=True)
    )


@pytest.mark.parametrize("mode", ["mirrored", "explicit"])
def test_memory_is_updated_by_one_sum_of_all_peers(mode):
    ran = run(SMALL, adding(4), "t3-nvls", mode=mode)
    chunk = SMALL["gemm"].op.output_bytes // 4
    moved = {kind: count for (of, kind), count in ran.traffic.items() if of == "reduce_scatter"}
    assert moved == {"update": chunk}
    assert ran.traffic["gemm", "update"] == chunk
    assert ran.counters["link_bytes"] == (4 if mode == "explicit" else 1) * 2 * 3 * chunk


def test_one_gpu_stands_for_all_whose_stores_a_switch_adds():
    one, every = (run(SMALL, adding(4), "t3-nvls", mode=mode) for mode in ("mirrored", "explicit"))
    assert one.seconds == pytest.approx(every.seconds, rel=0.005)


@pytest.mark.parametrize("buffer", ["0 B", "1 TiB"])
def test_a_sum_on_the_way_saves_updates_of_memory_and_never_time_on_the_links(buffer):
    """Each GPU sends as much as without; the owner's memory has one update in place of seven."""
    machine = adding(link__store_buffer=buffer)
    summed, each = (run(FC2, machine, overlap) for overlap in ("t3-nvls", "t3-direct"))
    assert summed.counters["link_bytes"] == each.counters["link_bytes"]
    assert summed.total_bytes < 0.9 * each.total_bytes
    assert summed.seconds <= 1.005 * each.seconds


def test_a_slow_gpu_holds_up_every_sum_until_its_part_is_there():
    late = adding(4)._with(start={2: "100 us"})
    found = run(SMALL, late, "t3-nvls", mode="explicit")
    assert found.seconds >= run(SMALL, adding(4), "t3-nvls", mode="explicit").seconds + 99e-6


@pytest.mark.parametrize(
    ("system", "tiling", "words"),
    [
        (joined("switch", 4), None, "has no switch that adds what passes it"),
        (adding(4), GemmTiling(splits=2), "K"),
    ],
)
def test_sums_on_the_way_need_a_switch_that_adds_and_whole_tiles(system, tiling, words):
    work = SMALL if tiling is None else tiled(SMALL, tiling)
    with pytest.raises(InputError, match=words):
        run(work, system, "t3-nvls")


def test_sums_of_a_switch_are_not_replayed():
    with pytest.raises(InputError, match="in an order that no log holds; replay 't3-direct'"):
        weft.replay(SMALL, adding(4), "t3-nvls")


# -- K in parts


def in_parts(splits):
    return GemmTiling(rows=64, columns=64, splits=splits)


@pytest.mark.parametrize("splits", [2, 3])
def test_memory_adds_up_all_parts_and_what_the_neighbour_sends(splits):
    graph = layer(m=512, n=512, k=512, tp=4)
    ran = run(graph, "t3-paper", "t3-split-k", tiling=in_parts(splits), mode="explicit")
    chunk = graph["gemm"].op.output_bytes // 4
    moved = {cause: count for cause, count in ran.traffic.items() if "all_gather" not in cause}
    del moved["gemm", "read"]
    assert moved == {
        ("gemm", "update"): splits * 4 * chunk,
        ("reduce_scatter", "read"): 3 * chunk,
        ("reduce_scatter", "update"): 3 * chunk,
    }


@pytest.mark.parametrize("splits", [2, 4])
@pytest.mark.parametrize("overlap", ["t3-split-k", "t3-direct"])
@pytest.mark.parametrize(("m", "n", "tp"), [(300, 400, 2), (384, 264, 3), (260, 264, 4)])
def test_every_tile_gets_an_update_of_each_part_and_one_of_each_sender(m, n, tp, overlap, splits):
    built = program(layer(m, n, 256 * tp, tp), overlap, explicit=True, tiling=in_parts(splits))
    state = finish(built)
    senders = {"t3-split-k": (0, *[1] * (tp - 1)), "t3-direct": (*[0] * (tp - 1), tp - 1)}[overlap]
    for g in range(tp):
        tiles = state.tile[g]
        seen = state.seen[g].reshape(len(tiles), -1).sum(axis=1)
        position = tiles[:, y.TILE_REGION] - built.region("output", 0)
        expected = np.array([splits + count for count in senders])
        whole = tiles[:, y.TILE_BYTES] > 0
        assert np.array_equal(seen[whole], (tiles[:, y.TILE_BYTES] * expected[position])[whole])


def test_in_one_part_it_is_t3_to_the_digit():
    split_k, ring = (run(SMALL, "t3-paper", overlap, tiling=in_parts(1)) for overlap in ("t3-split-k", "t3"))
    assert split_k.seconds == ring.seconds
    assert split_k.events == ring.events
    assert dict(split_k.traffic) == dict(ring.traffic)


def test_few_tiles_are_cut_and_many_are_not():
    paper = gpu()
    for rows, parts in ((8192, 1), (256, 1), (128, 2)):
        gemm = layer(m=rows, n=4256, k=17024, tp=8)["gemm"].op
        assert parts_of_k(gemm, GemmTiling(), paper) == parts
    assert parts_of_k(layer(m=128, n=4256, k=512, tp=8)["gemm"].op, GemmTiling(), paper) == 1  # two K steps


def test_a_prompt_of_a_few_tokens_gains_from_parts():
    few = layer(m=128, n=4256, k=17024, tp=8)
    assert run(few, "t3-paper", "t3-split-k").seconds < 0.8 * run(few, "t3-paper", "t3").seconds


@pytest.mark.parametrize("overlap", ["t3-split-k", "t3-direct"])
@pytest.mark.parametrize("tp", [2, 4])
def test_an_all_gather_waits_until_the_sums_of_all_parts_have_left(overlap, tp):
    graph = layer(m=512, n=512, k=256 * tp, tp=tp)
    ran = run(graph, "t3-paper", overlap, tiling=in_parts(2), mode="explicit")
    for g in range(tp):
        (gather,) = (span for span in ran.spans if span.operator == "all_gather" and span.gpu == g)
        output = {c.position: c for c in ran.chunks if c.buffer == "output" and c.gpu == g}
        assert gather.start_fs >= output[tp - 1].complete_fs
        assert gather.start_fs >= output[tp - 2].last_sent_fs


@pytest.mark.parametrize("overlap", ["t3-split-k", "t3-direct"])
@pytest.mark.parametrize("splits", [2, 3])
def test_parts_of_k_sum_right_at_the_cost_of_more_roundings(overlap, splits):
    graph = tiled(layer(m=256, n=256, k=1024, tp=4), in_parts(splits))
    done = weft.replay(graph, "t3-paper", overlap)
    assert done.errors.fp32 < done.errors.near_memory < 3 * done.errors.fp32
    exact = done.partials.astype(np.float64).sum(axis=0)
    assert np.abs(done.result - exact).max() < 0.01 * np.abs(exact).max()
