"""Collectives under T3 other than the paper's ring: tiles that go straight to their owners."""

import numpy as np
import pytest
from machines import gpu, layer
from runs import run

import weft
from weft.engine import layout as y
from weft.errors import InputError
from weft.hardware import FABRICS, System
from weft.kernels import GemmTiling, tile_table
from weft.kernels.gemm import owner_by_owner
from weft.kernels.ring import direct_reduce_scatter
from weft.program import Mode

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
@pytest.mark.parametrize("posted", [0, 1])
def test_gemm_and_reduce_scatter_take_as_long_as_the_longer_where_no_store_waits_for_the_link(fabric, egress, posted):
    machine = joined(fabric, TP, egress, link__posted_stores=posted)
    ran, alone = (run(FC2, machine, overlap) for overlap in ("t3-direct", "sequential"))
    sent = (TP - 1) * FC2["gemm"].op.output_bytes / TP
    least = max(alone.duration("gemm"), sent / egress)
    joint = ran.seconds - ran.duration("all_gather")
    assert joint >= 0.99 * least
    if posted:  # the first stage has nothing to send before it ends
        first = min(stage.end_fs for stage in ran.stages if stage.kernel == "gemm") * 1e-15
        assert joint <= 1.03 * max(alone.duration("gemm"), first + sent / egress)
    else:  # a stage's stores hold its workgroups while the link sends them
        assert joint >= 0.95 * (alone.duration("gemm") + sent / egress)


@pytest.mark.parametrize("fabric", ["ring", "torus"])
def test_a_direct_reduce_scatter_needs_links_to_all_peers(fabric):
    with pytest.raises(InputError, match=f"in the fabric '{fabric}' not every GPU reaches every other one"):
        run(SMALL, joined(fabric, 4), "t3-direct")


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
