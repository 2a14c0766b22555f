"""The JIT-Q study: capacity by hand, losses below the bound, and what moves them."""

import pytest

from weft import hardware
from weft.core.errors import UnknownNameError
from weft.core.options import SUSTAINED
from weft.models import load_model
from weft.papers.jit_q import JitQStudy
from weft.papers.jit_q.layers import cases, memory_bytes, spread, time_layer
from weft.papers.jit_q.study import STATES, units_of

GPU = hardware.gpu("mi210")


@pytest.fixture(scope="module")
def done():
    return JitQStudy.run(models=["bert-large", "gpt-3"], tokens=[1024, 4096])


def headline(study):
    return {row.id.removeprefix("jit_q."): row.weft for row in study.headline()}


def test_capacity_is_that_of_the_bytes_by_hand():
    shares = [0.238, 0.238, 0.231, 0.211, 0.190, 0.158]
    assert [one.saved for one in STATES] == pytest.approx(shares, abs=5e-4)
    assert STATES[0].saved == pytest.approx(0.238, abs=0.002)
    assert STATES[0].buffered_share(96) == pytest.approx(STATES[0].saved * 94 / 96)


def test_figures_meet_the_bars(done):
    found = headline(done)
    assert found["throughput_lost"] <= found["throughput_lost.eager"] <= 0.024
    assert found["of_bound"] <= 1
    assert found["streaming_gain.hbm2"] == pytest.approx(6.6, rel=0.03)
    assert found["streaming_gain.lpddr5x"] == pytest.approx(7.0, rel=0.02)


def test_taking_turns_is_the_bound_within_what_rows_cost(done):
    for one in done.cases:
        assert 0 <= one.lost <= one.lost_eagerly
        assert one.gemm_loss <= one.bound
        assert 0.9 * one.bound < one.gemm_eager < 1.02 * one.bound


def test_few_tokens_and_simple_instructions_cost_more(done):
    lost = {(one.gpu, one.model, one.tokens, one.instructions): one.gemm_eager for one in done.cases}
    for (gpu, model, tokens, instructions), value in lost.items():
        if tokens == 1024:
            assert value > 2 * lost[gpu, model, 4096, instructions]
        if instructions == "simple":
            assert value > 1.8 * lost[gpu, model, tokens, "fused"]


def test_encoding_by_the_gpu_costs_more_than_fused_commands_do(done):
    assert all(one.host > one.lost_eagerly for one in done.cases if one.instructions == "fused")


def test_a_gemm_moves_at_least_its_operands_and_requests_keep_its_time():
    from weft.graph import Gemm

    op = Gemm(4096, 12288, 12288, "bf16")
    assert memory_bytes(op, GPU) >= 0.5 * op.least_bytes
    made = spread(1000, 1e-3)
    assert (made.at[1:] > made.at[:-1]).all()
    assert made.at[-1] < 1e12


def test_only_the_gemms_of_a_layer_count():
    forward, backward, step, layers = time_layer(load_model("gpt-3"), GPU, 1024, SUSTAINED)
    assert backward.flops == 2 * forward.flops
    assert layers == 96
    assert layers * (forward.seconds + backward.seconds) < step


def test_a_machine_of_its_own_has_no_second_gpu_beside_it():
    study = JitQStudy.run(models=["gpt-3"], tokens=[1024], gpu="mi300x")
    assert {one.gpu for one in study.cases} == {"mi300x"}
    assert study.judged == 1024
    assert all(row.published is None for row in study.headline() if "lost" in row.id)


def test_page_and_data_hold_every_case(done, tmp_path):
    assert len(done.to_dict()["cases"]) == len(done.cases) == 2 * 2 * 2 * 2
    page = done.page(tmp_path, done.watch()).read_text(encoding="utf-8")
    assert "Which bank serves whom?" in page


def test_an_unknown_model_is_refused():
    with pytest.raises(UnknownNameError, match="gpt-3"):
        JitQStudy.run(models=["gpt-4"])


def test_cases_of_one_gpu_take_its_units():
    (fused, simple) = cases(load_model("bert-large"), GPU, units_of(GPU), (1024,), SUSTAINED)
    assert (fused.instructions, simple.instructions) == ("fused", "simple")
    assert fused.pim.name == "hbm2 on mi210"
