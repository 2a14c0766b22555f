"""A step of inference: what it costs, what it holds, and what it says."""

from __future__ import annotations

import pytest
from shown import check_shown

import weft
from weft.core.errors import InputError


@pytest.fixture(scope="module")
def written():
    return weft.decode("llama-3-70b", "8xmi300x", weft.ServingPlan(tp=8, dtype="fp8"), context=1152)


@pytest.mark.parametrize(
    "answer",
    [
        weft.prefill("llama-3-8b", "4xl40s", weft.ServingPlan(tp=4)),
        weft.decode("gpt-3", "8xa100", weft.ServingPlan(tp=8)),
    ],
)
def test_an_answer_is_plain_data_a_table_a_figure_and_a_page(answer, tmp_path):
    check_shown(answer, tmp_path)


def test_a_token_of_a_70b_model_on_mi300x_takes_what_was_measured(written):
    """15.85 s end to end for 128 tokens in and 2048 out (AMD's results page, vLLM 0.8.5): 7.7 ms a token."""
    assert written.seconds == pytest.approx(7.7e-3, rel=0.1)


def test_the_interval_of_a_pass_is_that_of_measured_servers_relative_to_its_kernels(written):
    """7.7 ms a token were measured; prefill alone is at most a server's time to first token."""
    least, most = written.interval_s
    assert least < 7.7e-3 < most
    assert "80 % interval" in written.error.why
    assert written.to_dict()["interval_80_s"] == [least, most]
    prompts = weft.prefill("llama-3-70b", "8xh100", weft.ServingPlan(tp=8, library="vllm"))
    assert prompts.error.high - 1 > 3 * (1 - prompts.error.low)
    assert "TTFT of servers" in prompts.error.why


@pytest.mark.parametrize(
    ("gpu", "library", "most"), [("h100", "vllm", 1.4), ("h100", None, 1.4), ("mi300x", None, 2.0)]
)
def test_a_gpu_of_another_vendor_has_no_narrower_an_interval(gpu, library, most):
    """The measured loads are of NVIDIA's GPUs; those on MI300X are few."""
    found = weft.decode("llama-3-8b", f"1x{gpu}", weft.ServingPlan(library=library)).error
    near = weft.decode("llama-3-8b", "1xh100", weft.ServingPlan(library=library)).error
    assert found.low <= near.low < 1 < near.high <= found.high < most


def test_the_cache_of_a_token_is_that_of_the_heads_of_keys_and_values(written):
    assert written.cache_per_token * written.plan.tp == 2 * 2 * 80 * 8 * 128


def test_latent_attention_keeps_its_compressed_cache_on_every_gpu():
    found = weft.decode("deepseek-v3", "8xh200", weft.ServingPlan(tp=8, dtype="fp8"))
    assert found.cache_per_token == (512 + 64) * 2 * 61
    assert any("Latent attention" in note for note in found.notes)


def test_windowed_layers_keep_a_window_of_the_context():
    """Of gpt-oss's 24 layers, every other layer keeps 128 tokens: K and V of 8 heads of 64 elements."""
    found = weft.decode("gpt-oss-20b", "1xh100", weft.ServingPlan(), context=8192)
    assert found.cache == (12 * 128 + 12 * 8192) * 2 * 8 * 64 * 2


def test_a_longer_context_and_a_larger_batch_never_speed_a_token_up(written):
    longer = weft.decode("llama-3-70b", "8xmi300x", weft.ServingPlan(tp=8, dtype="fp8"), context=32768)
    larger = weft.decode("llama-3-70b", "8xmi300x", weft.ServingPlan(tp=8, dtype="fp8"), context=1152, batch=64)
    assert longer.seconds > written.seconds
    assert larger.seconds > written.seconds
    assert larger.tokens_per_s > 8 * written.tokens_per_s


def test_prefill_counts_the_work_of_every_token():
    short, long = (weft.prefill("llama-3-8b", "h100", batch=batch).parts["gemm"] for batch in (4, 8))
    assert long == pytest.approx(2 * short, rel=0.1)


def test_the_parts_of_a_step_of_inference_add_up(written):
    *parts, (_, time, share, _) = written.report().tables()[0].rows
    assert sum(row[1] for row in parts) == pytest.approx(time)
    assert share == 1


def test_weights_that_do_not_fit_are_said_so():
    found = weft.decode("llama-3-70b", "8xh100", weft.ServingPlan(tp=1))
    assert not found.fits
    assert any("Does not fit" in sentence for sentence in found.report().sentences())


def test_replicas_fill_the_system():
    found = weft.decode("llama-3-8b", "8xh100", weft.ServingPlan(tp=2))
    assert found.replicas == 4
    with pytest.raises(InputError, match="such as 2"):
        weft.decode("llama-3-8b", "8xh100", weft.ServingPlan(tp=3))


def test_a_model_that_writes_no_tokens_is_refused():
    with pytest.raises(InputError, match="give a decoder"):
        weft.decode("bert-large", "8xa100")


def test_few_tokens_visit_few_experts():
    """A batch of one visits 8 of 256 experts, so that a token reads a small part of the weights."""
    one, many = (
        weft.decode("deepseek-v3", "8xh200", weft.ServingPlan(tp=8, dtype="fp8"), batch=batch) for batch in (1, 256)
    )
    assert many.parts["grouped_gemm"] > 5 * one.parts["grouped_gemm"]


def test_narrow_weights_speed_up_the_products_of_small_batches_only():
    plain, narrow = (weft.decode("llama-3-8b", "8xh100", weft.ServingPlan(weights=name)) for name in ("", "int4-g128"))
    assert 2 < plain.parts["gemm"] / narrow.parts["gemm"] < 16 / 4.125  # the head keeps 16 bits, launches their time
    assert plain.seconds - narrow.seconds == pytest.approx(plain.parts["gemm"] - narrow.parts["gemm"])
    assert 2.5 < plain.weights / narrow.weights < 16 / 4.125
    many = [
        weft.decode("llama-3-8b", "8xh100", weft.ServingPlan(weights=name), batch=1024) for name in ("", "int4-g128")
    ]
    assert many[0].seconds == pytest.approx(many[1].seconds)


def test_narrow_weights_go_with_products_of_16_bits():
    with pytest.raises(InputError, match="weights of int8 are converted to 16 bits, and the products are of fp8"):
        weft.decode("llama-3-8b", "8xh100", weft.ServingPlan(weights="int8", dtype="fp8"))


def test_experts_have_narrow_weights_and_the_router_has_not():
    plain, narrow = (
        weft.decode("mixtral-8x7b", "8xh100", weft.ServingPlan(tp=2, weights=name), batch=8) for name in ("", "int8")
    )
    assert narrow.parts["grouped_gemm"] == pytest.approx(plain.parts["grouped_gemm"] / 2, rel=0.2)


def test_a_chunk_shares_the_weights_with_the_next_tokens_of_others():
    """Chunked prefill (Sarathi-Serve): one pass over both reads the weights once, and costs less than two."""
    alone, chunk = weft.decode("llama-3-8b", "1xh100", batch=32), weft.prefill("llama-3-8b", "1xh100", sequence=256)
    both = weft.decode("llama-3-8b", "1xh100", batch=32, chunk=256)
    assert max(alone.seconds, chunk.seconds) < both.seconds < 0.9 * (alone.seconds + chunk.seconds)
    assert both.parts["attention"] == pytest.approx(alone.parts["attention"] + chunk.parts["attention"])


def test_a_prompt_behind_cached_tokens_costs_their_attention_alone():
    plain, behind = (weft.prefill("llama-3-8b", "1xh100", sequence=512, cached=cached) for cached in (0, 4096))
    assert behind.parts["gemm"] == plain.parts["gemm"]
    assert behind.parts["attention"] > 2 * plain.parts["attention"]
    assert behind.cache == 9 * plain.cache
    assert behind.cache_per_token == plain.cache_per_token


def test_a_prompt_in_chunks_computes_no_less_than_at_once():
    whole = weft.prefill("llama-3-8b", "1xh100", sequence=4096).seconds
    chunks = [weft.prefill("llama-3-8b", "1xh100", sequence=1024, cached=at).seconds for at in range(0, 4096, 1024)]
    assert whole < sum(chunks) < 1.2 * whole


def test_a_context_beyond_that_of_the_model_is_said_to_be():
    assert "100,000 tokens are more than the 8,192 that Llama 3 70B reads:" in str(
        weft.decode("llama-3-70b", "8xh100", weft.ServingPlan(tp=8), context=100_000)
    )
    assert "more than the" not in " ".join(
        weft.decode("llama-3-70b", "8xh100", weft.ServingPlan(tp=8), context=8192).notes
    )
