"""Served loads that others measured, on versions and GPUs without a fitted row."""

import json

import pytest

import weft

H100 = "gpustack/gpustack docs/performance-lab/gpt-oss-120b/h100.md: vLLM 0.10.2, 500 prompts at once"
MI300X = "SemiAnalysisAI/InferenceX pull requests 1053 and 1061: vLLM 0.17, clients with 820 to 1,024 tokens both ways"


@pytest.mark.parametrize(
    ("tp", "prompt", "answer", "total", "tpot"),
    [
        (2, 2000, 98, 34083, 0.1393),
        (2, 4000, 134, 34491, 0.1647),
        (1, 2000, 98, 14386, None),
        (1, 4000, 134, 14247, None),
    ],
)
def test_prompts_that_come_at_once_to_vllm_0_10(tp, prompt, answer, total, tpot):
    """Tokens per second within 20 %, TPOT within 15 % where memory does not limit what runs (docs/deviations.md)."""
    found = weft.serve(
        "gpt-oss-120b",
        f"{tp}xh100",
        weft.ServingPlan(tp=tp, framework="vllm@0.10"),
        weft.Load(concurrency=500, requests=500, input_len=prompt, output_len=answer),
    )
    assert 500 * (prompt + answer) / found.span == pytest.approx(total, rel=0.20), H100
    if tpot:
        assert sum(one.tpot for one in found.requests) / 500 == pytest.approx(tpot, rel=0.15), H100


@pytest.mark.parametrize(("clients", "rate", "tpot"), [(64, 2008, 0.0314), (128, 2990, 0.0413)])
def test_mxfp4_on_mi300x_runs_by_kernels_that_convert_it(clients, rate, tpot):
    found = weft.serve(
        "gpt-oss-120b",
        "1xmi300x",
        weft.ServingPlan(),
        weft.Load(concurrency=clients, requests=4 * clients, input_len=(820, 1024), output_len=(820, 1024)),
    )
    assert found.tpot["mean"] == pytest.approx(tpot, rel=0.15), MI300X
    assert clients / (found.tpot["mean"] + found.ttft["mean"] / 922) == pytest.approx(rate, rel=0.20), MI300X


def test_eager_mode_of_awq_weights_on_an_a100(tmp_path):
    """vllm-project/vllm issue 20469: Qwen3-14B, --enforce-eager, TPOT 20.63 ms behind 16,000 tokens."""
    config = {
        "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    qwen = tmp_path / "config.json"
    qwen.write_text(json.dumps(config))
    step = weft.decode(
        qwen, "1xa100", weft.ServingPlan(weights="int4-g128", library="vllm", enforce_eager=True), context=16100
    )
    assert step.seconds == pytest.approx(20.63e-3, rel=0.15)
