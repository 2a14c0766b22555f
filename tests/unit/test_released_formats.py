"""Number formats of served weights: the released one by default, and weights alone where a GPU cannot multiply it."""

from __future__ import annotations

import json

import pytest
from deployments import decode_with, forward_with, serve_with

import weft
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.models import load_model
from weft.models.formats import served_format


@pytest.mark.parametrize(
    ("model", "gpu", "stated", "format"),
    [
        ("gpt-oss-120b", "h200-sxm", {}, ("bf16", "mxfp4", True)),
        ("gpt-oss-120b", "b200", {}, ("bf16", "mxfp4", True)),
        ("gpt-oss-20b", "l40s", {"dtype": "bf16"}, ("bf16", "", False)),
        ("gpt-oss-120b", "h200-sxm", {"dtype": "mxfp4"}, ("bf16", "mxfp4", True)),
        ("gpt-oss-120b", "b200", {"dtype": "mxfp4"}, ("mxfp4", "", False)),
        ("deepseek-v3", "h200-sxm", {}, ("fp8-block", "", True)),
        ("deepseek-v3", "a100-sxm-80gb", {}, ("bf16", "fp8", True)),
        ("deepseek-v3", "h200-sxm", {"weights": "int4-g128"}, ("bf16", "int4-g128", False)),
        ("deepseek-v3", "h200-sxm", {"dtype": "bf16"}, ("bf16", "", False)),
        ("kimi-k2", "b200", {}, ("fp8-block", "", True)),
        ("minimax-m2", "mi300x", {}, ("fp8-block", "", True)),
        ("qwen3-235b-a22b", "h200-sxm", {}, ("bf16", "", True)),
        ("qwen3-32b", "h100-sxm", {"dtype": "nvfp4"}, ("bf16", "nvfp4", False)),
        ("llama-2-7b", "a100-sxm-80gb", {}, ("fp16", "", True)),
        ("llama-3-8b", "a100-sxm-80gb", {"dtype": "fp8"}, ("bf16", "fp8", False)),
    ],
)
def test_weights_are_served_as_released_and_stay_narrow_where_products_cannot(model, gpu, stated, format):
    found = served_format(load_model(model), weft.gpu(gpu), **stated)
    assert found[:3] == format
    narrow = found.weights if found.weights != "int4-g128" else ""
    assert bool(found.note) == (bool(narrow) and not weft.gpu(gpu).supports(narrow))


def test_gpt_oss_fits_one_gpu_in_the_format_that_was_released():
    found = decode_with("gpt-oss-120b", "1xh200")
    assert 60e9 < found.weights < 66e9
    assert found.to_dict()["weights"] == "mxfp4"
    assert found.report().sentences()[0].startswith("GPT-OSS 120B (MXFP4 weights as released) on 1 GPU: ITL ")
    assert any("no matrix rate for mxfp4" in note for note in found.notes)


def test_training_stays_in_16_bits():
    assert weft.step("gpt-oss-20b", "8xh200", ep=8, batch=8, fidelity="estimate").plan.dtype == "bf16"


def test_a_draft_of_the_model_has_its_format_and_another_model_its_own():
    system = weft.system("8xh200")
    own, other = (
        forward_with(
            load_model("deepseek-v3"),
            system,
            tp=8,
            num_speculative_tokens=1,
            acceptance_rate=0.8,
            speculative_method=draft,
        )
        for draft in ("mtp", "llama-3-8b")
    )
    assert own.draft.dtype == "fp8-block"
    assert other.draft.dtype == "bf16"


@pytest.mark.parametrize(
    ("model", "stated", "words"),
    [
        ("gpt-oss-120b", {"dtype": "bf16"}, r"the weights as released \(mxfp4: leave out --dtype and --weights\)"),
        ("llama-3-70b", {}, "narrower weights, such as --weights int4-g128"),
    ],
)
def test_weights_that_leave_no_memory_name_narrower_ones(model, stated, words):
    with pytest.raises(InputError, match=words):
        serve_with(model, "1xh100", rate=1, **stated)


_LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_act": "silu",
}  # fmt: skip
_COMPRESSED = {"quant_method": "compressed-tensors"}


def _read(tmp_path, more):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_LLAMA | more))
    return load_model(file)


@pytest.mark.parametrize(
    ("more", "format"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "float16"}, "fp16"),
        ({"dtype": "bfloat16"}, "bf16"),
        ({"torch_dtype": "float32"}, "bf16"),
        ({"torch_dtype": "torch.float16"}, "fp16"),
        ({"torch_dtype": None}, "bf16"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8-block"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4-g128"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
        (
            {"quantization_config": {**_COMPRESSED, "config_groups": {"0": {"weights": {"num_bits": 8}}}}},
            "int8",
        ),
        (
            {"quantization_config": {**_COMPRESSED,
                                     "config_groups": {"0": {"weights": {"num_bits": 8, "type": "float"}}}}},
            "fp8",
        ),
    ],
)  # fmt: skip
def test_a_configuration_states_the_format_of_its_weights(tmp_path, more, format):
    assert _read(tmp_path, more).weight_format == format


@pytest.mark.parametrize(
    ("quantized", "error", "words"),
    [
        ({"quant_method": "nope"}, UnknownNameError, "nope"),
        ({"quant_method": ["fp8"]}, UnknownNameError, "quant_method"),
        ("fp8", ConfigError, "give a table with quant_method"),
        ({"quant_method": "gptq", "bits": 3}, ConfigError, "weights of 3 bits"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, ConfigError, "give config_groups"),
    ],
)
def test_a_format_that_is_not_modelled_is_refused(tmp_path, quantized, error, words):
    with pytest.raises(error, match=words):
        _read(tmp_path, {"quantization_config": quantized})


@pytest.mark.parametrize("more", [{"torch_dtype": "bfloat61"}, {"dtype": "bfloat61"}, {"torch_dtype": 16}])
def test_a_misspelt_dtype_is_refused_with_the_names_that_exist(tmp_path, more):
    with pytest.raises(UnknownNameError, match=rf"{next(iter(more))}.*bfloat16"):
        _read(tmp_path, more)
