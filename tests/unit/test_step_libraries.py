"""Steps of served models by the libraries of frameworks of inference."""

import pytest
from deployments import decode_with, forward_with, prefill_with, serve_with

import weft
from weft.core.errors import InputError
from weft.core.options import SUSTAINED
from weft.graph import Attention
from weft.kernels.library.kits import KITS, LIBRARIES
from weft.models import load_model
from weft.step.forward import Group

HOPPER = {"vllm": "vllm-fa3", "sglang": "sglang-fa3", "trtllm": "trtllm"}


def forward(library, model="llama-3-70b", on="8xh100", tp=8, **how):
    return forward_with(load_model(model), weft.system(on), tp=tp, library=library, **how)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_same_step_takes_the_same_time_asked_by_decode_by_prefill_and_by_serve(library):
    how = {"tp": 2, "dtype": "fp8", "kv_dtype": "fp8", "library": library}
    load = {"concurrency": 1, "requests": 1, "output_len": 2, "cpu_overhead": "0ms"}
    for size, step in ((512, 0), (511, 1)):  # sizes that are timed, not interpolated, and replayed from a graph
        iteration = serve_with("llama-3-8b", "2xh100", input_len=size, **load, **how).iterations[step]
        ask, sizes = (decode_with, {"context": 512}) if step else (prefill_with, {"sequence": 512})
        asked = ask("llama-3-8b", "2xh100", **sizes, **how)
        assert iteration.end - iteration.start == pytest.approx(asked.seconds, rel=1e-9)


@pytest.mark.parametrize("framework", KITS)
def test_serve_takes_the_libraries_of_its_framework(framework):
    load = {"concurrency": 1, "requests": 1, "input_len": 300, "output_len": 2}
    own = serve_with("llama-3-8b", "1xh100", framework=framework, **load)
    named = serve_with("llama-3-8b", "1xh100", framework=framework, library=framework, **load)
    vendors = serve_with("llama-3-8b", "1xh100", framework=framework, library="vendor", **load)
    assert own.iterations == named.iterations != vendors.iterations


@pytest.mark.parametrize("library", KITS)
def test_attention_of_a_step_is_that_of_the_frameworks_library(library):
    op = Attention(64, 8, 1, 2001, 128, 1, causal=1, library=HOPPER[library])
    each = weft.estimate(op, "h100-sxm", options=SUSTAINED).seconds
    assert forward(library).attention(Group(64, 1, 2000)).seconds == pytest.approx(80 * each, rel=1e-6)


def test_latent_attention_of_next_tokens_reads_the_compressed_cache_once():
    """Keys and values apart, as the vendor's form reads them, are twice the bytes at a long context."""
    group = Group(64, 1, 16000)
    ours, vendors = (forward(name, "deepseek-v3").attention(group).seconds for name in ("trtllm", "vendor"))
    assert 0.4 < ours / vendors < 0.9


def test_latent_attention_of_prompts_is_absorbed_behind_short_prefixes_alone():
    """SGLang on Hopper expands keys and values of whole prompts, and behind prefixes of 8,192 tokens; vLLM always."""
    on = {name: forward(name, "deepseek-v3") for name in ("sglang", "vllm")}

    def taken(name, cached, sequences=1):
        group = Group(sequences, 1024, cached)
        (piece,) = on[name]._attend("moe", group)
        return piece.head, on[name]._kernels(group)

    assert taken("sglang", 0) == taken("sglang", 8192) == taken("sglang", 2048, 4) == (192, "sglang-fa3")
    assert taken("sglang", 1) == taken("sglang", 8191) == (576, "sglang-fa3-mla")
    assert {taken("vllm", cached) for cached in (0, 1, 8192)} == {(192, "vllm-fa3")}
    seconds = [on["sglang"].attention(Group(1, 8192, cached)).seconds for cached in (0, 1)]
    assert 1.8 < seconds[1] / seconds[0] < 4  # (576 + 512) / (192 + 128) times the FLOPs


def test_a_kernel_of_blocks_has_another_that_quantises_its_operand():
    """16 bits: ten operators of a dense layer, its attention and its cache; FP8 by blocks: one more for each GEMM."""
    plain, blocks = (forward("vllm", dtype=dtype).launches for dtype in ("bf16", "fp8-block"))
    assert blocks - plain == 80 * 4
    assert 80 * 12 <= plain < 80 * 12 + 8


def test_large_all_reduces_are_the_vendors():
    """vLLM's own kernel ends at 8 MiB: 512 tokens of 8192 elements of 16 bits."""
    kit = KITS["vllm"]
    assert kit.all_reduce_on("hopper", True, 8 << 20) == "vllm-custom"
    assert kit.all_reduce_on("hopper", True, (8 << 20) + 1) is None


def test_keys_and_values_of_8_bits_take_half_the_memory_and_less_time():
    wide, narrow = (forward("vllm", kv_dtype=dtype) for dtype in ("bf16", "fp8"))
    assert narrow.cache(1000) * 2 == wide.cache(1000)
    assert narrow.attention(Group(256, 1, 8000)).seconds < wide.attention(Group(256, 1, 8000)).seconds


def test_scaled_blocks_cost_a_conversion_that_whole_tensors_do_not():
    plain, blocks = (forward("sglang", dtype=dtype).shared_pass(64).parts["gemm"] for dtype in ("fp8", "fp8-block"))
    assert blocks > 1.1 * plain


@pytest.mark.parametrize("library", LIBRARIES)
def test_gpus_without_measured_libraries_are_timed_by_the_vendors(library):
    step = Group(8, 1, 1000)
    ours, vendors = (forward(name, on="8xmi300x").attention(step).seconds for name in (library, "vendor"))
    assert ours == vendors


def test_an_unknown_library_or_number_format_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="known: vllm, sglang, trtllm, vendor"):
        decode_with("llama-3-8b", "1xh100", library="vllm2")
    with pytest.raises(InputError, match="bf16, fp8"):
        decode_with("llama-3-8b", "1xh100", kv_dtype="int8")


@pytest.mark.parametrize("library", KITS)
@pytest.mark.parametrize("machine", ["8xh100", "8xb200"])
@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b", "llama-3-70b"])
def test_fewer_bits_never_take_longer_where_a_batch_hides_their_casts(library, machine, model):
    plain, narrow = (
        decode_with(model, machine, tp=4, batch=256, dtype=dtype, library=library).seconds for dtype in ("bf16", "fp8")
    )
    assert narrow < plain
