"""Parameters and FLOPs of models, against what their authors publish."""

import csv

import pytest
from measured import measurements

from weft.core.errors import UnknownNameError
from weft.models import load_model
from weft.models.counts import CONVENTIONS, forward_flops, hardware_flops, model_flops, parameters, utilisation

A100 = 312e12
"""Peak rate of an A100 in fp16 on dense matrices [FLOP/s]."""
PUBLISHED = {
    "gpt-1.7b": 1.7,
    "gpt-3.6b": 3.6,
    "gpt-7.5b": 7.5,
    "gpt-18.4b": 18.4,
    "gpt-39.1b": 39.1,
    "gpt-76.1b": 76.1,
    "gpt-145.6b": 145.6,
    "gpt-310.1b": 310.1,
    "gpt-529.6b": 529.6,
    "gpt-1008b": 1008.0,
    "gpt-3": 174.6,
    "gpt-22b": 22,
    "llama-2-7b": 6.74,
    "llama-2-13b": 13.0,
    "llama-2-70b": 69.0,
    "llama-3-8b": 8.03,
    "llama-3-70b": 70.6,
    "llama-3.1-405b": 405.9,
    "qwen2.5-7b": 7.62,
    "qwen2.5-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "qwen3-32b": 32.8,
    "minimax-m2": 229,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 141,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "deepseek-v3": 671,
    "kimi-k2": 1026,
    "bloom-176b": 176.25,
    "bert-large": 0.336,
    "internlm-7b": 7.3,
    "internlm-20b": 20.1,
    "mpt-125m": 0.1253,
    "mpt-350m": 0.356,
    "mpt-760m": 0.7605,
    "mpt-1b": 1.316,
    "mpt-3b": 2.6518,
    "mpt-7b": 6.6589,
    "mpt-13b": 12.854,
    "mpt-30b": 29.9752,
    "mpt-70b": 64.8624,
    "t5-11b": 11.1,
}
ACTIVE = {
    "qwen3-30b-a3b": 3.3,
    "qwen3-235b-a22b": 22,
    "mixtral-8x7b": 12.9,
    "mixtral-8x22b": 39,
    "deepseek-v3": 37,
}


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_a_model_has_the_number_of_parameters_that_its_authors_publish(name, billions):
    digits = len(str(billions).partition(".")[2])
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, abs=0.51 * 10**-digits, rel=3e-3)


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_a_token_of_a_mixture_is_computed_by_its_published_active_parameters(name, billions):
    assert load_model(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_plain_models_parameters_are_all_active():
    model = load_model("llama-3-8b")
    assert model.active_parameters == model.parameters


def test_gpts_parameters_follow_the_formula_of_its_authors():
    """arXiv:2104.04473, equation 2; its last norm has 2 h more."""
    model = load_model("gpt-3")
    layers, h, s, v = model.layers, model.hidden, model.sequence_length, model.vocabulary
    assert model.parameters == 12 * layers * h**2 + 13 * layers * h + (v + s) * h + 2 * h


def test_layers_that_predict_further_tokens_are_counted_apart():
    found = parameters(load_model("deepseek-v3"))
    assert found.prediction == pytest.approx(11.6e9, rel=0.01)
    assert found.total == found.embedding + found.layers + found.head


def test_a_dense_steps_flops_follow_the_closed_form():
    """72 s L h^2 (1 + s / 6h + V / 12hL) (arXiv:2205.05198, appendix A; full attention)."""
    model = load_model("gpt-22b")
    layers, h, s, v = model.layers, model.hidden, 2048, model.vocabulary
    assert model_flops(model, s, "full") == pytest.approx(
        72 * s * layers * h**2 * (1 + s / 6 / h + v / 12 / h / layers)
    )
    again = hardware_flops(model, s, "selective", "megatron-2022")
    assert again == pytest.approx(72 * s * layers * h**2 * (1 + s / 3 / h + v / 12 / h / layers))
    whole = hardware_flops(model, s, "full", "full")
    assert whole == pytest.approx(96 * s * layers * h**2 * (1 + s / 6 / h + v / 16 / h / layers))


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "seconds", "mfu", "hfu"),
    [
        ("gpt-22b", 8, 4, 1.10, 41.5, 43.7),
        ("gpt-3", 64, 64, 13.75, 51.4, 52.8),
        ("gpt-529.6b", 280, 280, 37.83, 56.0, 57.0),
        ("gpt-1008b", 512, 512, 71.49, 56.3, 57.0),
    ],
)
def test_published_step_times_give_the_published_utilisation(name, gpus, batch, seconds, mfu, hfu):
    """arXiv:2205.05198, table 5: sequence parallelism and selective recomputation."""
    model, peak = load_model(name), gpus * A100
    found = 100 * utilisation(batch * model_flops(model, 2048, "megatron-2022"), seconds, peak)
    assert found == pytest.approx(mfu, abs=0.2)
    flops = batch * hardware_flops(model, 2048, "selective", "megatron-2022")
    assert 100 * utilisation(flops, seconds, peak) == pytest.approx(hfu, abs=0.2)


def test_the_causal_half_counts_half_of_attention_and_all_else_alike():
    causal, full = (forward_flops(load_model("llama-3-8b"), 8192, name) for name in ("causal", "full"))
    assert full["attention"] == 2 * causal["attention"]
    assert (full["layers"], full["head"]) == (causal["layers"], causal["head"])
    counted = forward_flops(load_model("llama-3-8b"), 8192, "full-embedding")
    assert counted["head"] == 2 * full["head"]


def test_six_flops_a_parameter_and_token_but_for_the_embedding():
    model = load_model("llama-3-70b")
    attention = 6 * model.layers * model.hidden * 8192
    rest = 6 * (model.parameters - model.vocabulary * model.hidden)
    assert model_flops(model, 8192) / 8192 == pytest.approx(rest + attention, rel=1e-4)


def test_windows_bidirectional_models_and_encoders_count_what_they_see():
    windowed = forward_flops(load_model("gpt-oss-20b"), 8192)["attention"]
    assert windowed < 0.6 * forward_flops(load_model("gpt-oss-20b").replace({"window": 0}), 8192)["attention"]
    bert = load_model("bert-large")
    assert forward_flops(bert, 512, "causal") == forward_flops(bert, 512, "full")
    t5 = load_model("t5-11b")
    assert forward_flops(t5, 128, source=512)["layers"] > 2 * forward_flops(t5, 128, source=128)["layers"]


def test_unknown_conventions_and_recomputations_list_the_known():
    with pytest.raises(UnknownNameError, match="unknown convention of FLOPs 'half'; known: causal, full"):
        model_flops(load_model("gpt-3"), 2048, "half")
    with pytest.raises(UnknownNameError, match="unknown recomputation 'some'"):
        hardware_flops(load_model("gpt-3"), 2048, "some")
    assert all(one.source for one in CONVENTIONS.values())


def test_printed_rates_are_the_printed_tokens_times_the_flops_of_their_convention():
    """Megatron-Bridge counts causal attention, and the layer that predicts a further token (DeepSeek-V3)."""
    names = {"DeepSeek-V3": "deepseek-v3", "Llama-3-70B": "llama-3-70b", "Llama-3.1-405B": "llama-3.1-405b",
             "Qwen3-30B-A3B": "qwen3-30b-a3b", "Qwen3-235B-A22B": "qwen3-235b-a22b"}  # fmt: skip
    with measurements("iterations.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if "Bridge 26.0" in row["framework"] and row["model"] in names]
    found = []
    for row in rows:
        if row["tflops_per_gpu"] and row["tokens_per_s_per_gpu"] and row["task"] == "pretrain":
            length = int(row["seq_len"])
            each = model_flops(load_model(names[row["model"]]), length) / length
            found.append(each * float(row["tokens_per_s_per_gpu"]) / float(row["tflops_per_gpu"]) / 1e12)
    assert len(found) > 10
    assert sorted(found)[len(found) // 2] == pytest.approx(1, abs=0.01)
