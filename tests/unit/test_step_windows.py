"""Windows: what a kernel and a collective cost each other while both run on a GPU, by the engine and by whole waves."""

import pytest

import weft
from weft.core.options import SUSTAINED
from weft.core.store import Store
from weft.graph import Attention, Collective, Gemm, Streaming
from weft.step.corun import CoRunWindow
from weft.step.durations import group
from weft.step.result.step import Window
from weft.step.windows import GemmTimes, Windows, cut, ring_of, stand_in

NODE = weft.system("8xa100")
GEMM = Gemm(4096, 4096, 1024, "bf16")
GATHER = Collective("all_gather", 16 << 20, 8)


def meeting(gemm: Gemm = GEMM, moved: Collective = GATHER, sharing: str = "priority", **more) -> CoRunWindow:
    return CoRunWindow(gemm, moved, NODE, sharing, SUSTAINED, **more)


def windows(engine: bool = True, store=None, **overlap: str) -> Windows:
    return Windows(lambda axis, ranks: NODE.with_gpus(ranks), overlap, "bf16", SUSTAINED, engine, store)


@pytest.mark.parametrize("moved", ["all_gather", "reduce_scatter", "all_reduce"])
def test_a_collective_never_speeds_a_kernel_up_nor_the_other_way_round(moved):
    found = meeting(moved=Collective(moved, 16 << 20, 8)).run()
    assert found["kernel"] > 1.1  # a fifth of the compute units are gone
    assert 1.0 <= found["collective"] < 1.1  # which has compute units of its own


def test_copies_by_dma_engines_leave_a_compute_bound_gemm_alone():
    found = meeting(sharing="dma").run()
    assert found["kernel"] == pytest.approx(1.0, abs=0.01)
    assert meeting(sharing="dma").growth == 1.0


def test_gathering_and_scattering_take_the_same_compute_units():
    gather, scatter = (meeting(moved=Collective(name, 16 << 20, 8)).run() for name in ("all_gather", "reduce_scatter"))
    assert gather["kernel"] == pytest.approx(scatter["kernel"], rel=0.03)


def test_half_as_large_a_window_changes_the_slowdown_by_less_than_two_percent():
    large = Gemm(16384, 8192, 1024, "bf16")
    whole, half = (meeting(large, waves=waves).run()["kernel"] for waves in (16, 8))
    assert half == pytest.approx(whole, rel=0.02)


def test_whole_waves_are_within_three_percent_of_the_engines_slowdown_of_gemms_on_average():
    """Over five shapes and the GEMMs of a layer of GPT-3 and of Llama 3 8B on eight ranks."""
    shapes = [(4096, 4096, 1024), (2048, 12288, 1536), (8192, 4096, 2048), (4096, 8192, 1024), (2048, 8192, 4096)]
    shapes += [(2048, 4608, 12288), (2048, 12288, 1536), (2048, 6144, 12288), (2048, 12288, 6144)]
    shapes += [(4096, 768, 4096), (4096, 4096, 512), (4096, 3584, 4096), (4096, 4096, 1792)]
    tasks = [meeting(Gemm(*shape, "bf16")) for shape in dict.fromkeys(shapes)]
    errors = [abs(task.growth / task.run()["kernel"] - 1) for task in tasks]
    assert sum(errors) / len(errors) < 0.03


def test_a_window_is_simulated_once_and_then_read_from_disk(tmp_path, monkeypatch):
    first = windows(store=Store(tmp_path)).of(GEMM, GATHER, "tp")
    monkeypatch.setattr(CoRunWindow, "run", None)
    again = windows(store=Store(tmp_path))
    assert again.of(GEMM, GATHER, "tp") == first
    assert [window.source for window in again.found.values()] == ["engine"]


def test_without_the_engine_slowdowns_come_from_waves_of_tiles():
    found = windows(engine=False)
    assert found.of(GEMM, GATHER, "tp") == (meeting().growth, 1.0)
    assert found.of(Streaming("layernorm", 4096, 4096), GATHER, "tp") == (1.0, 1.0)
    assert {window.source for window in found.found.values()} == {"waves"}


def test_what_the_engine_cannot_run_says_why_and_slows_nothing_down():
    found = windows()
    tiny = Collective("all_gather", 1024, 8)
    assert found.of(GEMM, tiny, "tp") == (1.0, 1.0)
    (window,) = found.found.values()
    assert window.source == "none"
    assert "less than 1 KiB each" in window.why


def test_reductions_stay_with_compute_units_where_dma_engines_copy():
    found = windows(tp="dma")
    assert found.sharing("tp", GATHER) == "dma"
    assert found.sharing("tp", Collective("reduce_scatter", 1 << 20, 8)) == "priority"
    assert found.sharing("dp", GATHER) == "priority"


def test_collectives_of_many_sizes_share_one_window():
    found = windows(engine=False)
    for size in (100 << 20, 500 << 20, 3 << 30):
        found.of(GEMM, Collective("all_gather", size, 8), "dp")
    assert len(found.found) == 1


def test_operators_without_a_kernel_in_the_engine_have_a_stand_in():
    batched = Gemm(512, 512, 64, "bf16", batch=16)
    assert stand_in(batched, "bf16") == Gemm(512 * 16, 512, 64, "bf16")
    fused = stand_in(Attention(1, 8, 2048, 2048, 128, dtype="bf16"), "bf16")
    assert fused.flops / fused.least_bytes > 1000  # bound by the matrix units
    streamed = stand_in(Streaming("layernorm", 4096, 4096), "bf16")
    assert streamed.flops / streamed.least_bytes < 100  # bound by memory
    assert cut(Collective("send_recv", 1 << 20, 2)) == Collective("send_recv", 1 << 20, 2)
    assert cut(Collective("send_recv", 1 << 20, 2), copied=True) == Collective("all_gather", 2 << 20, 2)
    assert cut(Collective("broadcast", 1 << 20, 4)) == Collective("all_gather", 1 << 20, 4)


def test_ranks_on_several_nodes_exchange_data_at_the_rate_of_their_adapters():
    plan = weft.TrainingPlan(tp=8, dp=16, batch=16)
    one_each = ring_of(group(weft.system("128xa100"), plan, "dp"), 16)
    assert one_each.gpus == 8
    assert one_each.gpu.link.bandwidth == pytest.approx(25e9)  # one HDR adapter
    eight_each = ring_of(weft.system("64xa100"), 64)
    assert eight_each.gpu.link.bandwidth == pytest.approx(8 * 25e9)


def test_a_collective_progresses_for_as_long_as_each_kernel_takes_beside_it():
    """One kernel takes 2 s for 1 s and lets the collective run at a quarter of its rate, the other disturbs nothing: of
    3 s the collective progresses by 1.5 s."""
    each, (large, small) = windows(engine=False), (GEMM, Gemm(8192, 4096, 1024, "bf16"))
    for gemm, slowdowns in ((large, (2.0, 4.0)), (small, (1.0, 1.0))):
        each.found[gemm, cut(GATHER), "dp"] = Window(str(gemm), str(GATHER), "priority", NODE.gpu.name, slowdowns)
    assert each.of_times(GemmTimes({large: 1.0, small: 1.0}, 2.0), GATHER) == pytest.approx((1.5, 2.0))
    assert each.of_times(GemmTimes({large: 1.0, small: 1.0}, 4.0), GATHER) == pytest.approx((1.25, 2.0))
