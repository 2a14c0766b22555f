"""Number formats in which weights were released, as configurations of Hugging Face and ModelOpt state them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import ConfigError, UnknownNameError
from weft.core.files import read_json

_BESIDE = "hf_quant_config.json"
"""The file in which ModelOpt states a quantization beside config.json."""
_HALF = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16", "float64": "bf16", "auto": "bf16"}
"""The format in which servers load weights of a `torch_dtype`; they round wider formats (vLLM's --dtype auto)."""
_QUANTIZED = ("fp8", "fbgemm_fp8", "mxfp4", "gptq", "awq", "modelopt", "modelopt_fp4", "compressed-tensors")


_OF_MODELOPT = {
    "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block", "FP8_PB_REAL": "fp8-block", "W4A16_AWQ": "int4-g128", "W8A8_SQ_PER_CHANNEL": "int8",
    "MXFP8": "mxfp8",
}  # fmt: skip
"""Formats by ModelOpt's `quant_algo` (NVIDIA/Model-Optimizer modelopt/torch/export/model_config.py)."""
_NAMED = re.compile(r"(?<![a-z0-9])(nvfp4|mxfp4|mxfp8|fp8|fp4|awq|gptq|int4|int8|w4a16|w8a8|w8a16)(?![a-z0-9])")
"""Formats that names of releases state."""


def check_known(key: str, name: object, known: Mapping[str, str]) -> str:
    """Return what a word of a configuration means; UnknownNameError for another one than the known."""
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError(key, name, known)
    return known[name]


def quantization_beside(file: Path) -> Mapping[str, Any] | None:
    """Return the quantization that ModelOpt states in a file beside a `config.json`; None where there is none."""
    beside = file.parent / _BESIDE
    if file.name != "config.json" or not beside.is_file():
        return None
    table = read_json(beside, "quantization", "give the file as ModelOpt wrote it").get("quantization")
    if not isinstance(table, Mapping):
        raise ConfigError("'quantization' is missing; give the file as ModelOpt wrote it", str(beside))
    return {"quant_method": "modelopt", **table}


def weight_format(config: Mapping[str, Any]) -> str:
    """Return the format in which the weights were released."""
    quantized = config.get("quantization_config")
    if quantized is None:
        key = "torch_dtype" if "torch_dtype" in config else "dtype"
        name = config.get(key) or "bfloat16"
        return check_known(key, name.removeprefix("torch.") if isinstance(name, str) else name, _HALF)
    if not isinstance(quantized, Mapping):
        raise ConfigError(f"it is {quantized!r}; give a table with quant_method", None, "quantization_config")
    method = check_known("quant_method", quantized.get("quant_method"), {name: name for name in _QUANTIZED})
    if method in ("gptq", "awq"):
        bits = quantized.get("bits", 4)
        return _stated_bits(bits, {4: "int4-g128", 8: "int8"})
    if method in ("modelopt", "modelopt_fp4"):
        most = next(iter(_layers_by_format(quantized)), quantized.get("quant_algo", "NVFP4"))
        return check_known("quant_algo", most, _OF_MODELOPT)
    if method == "compressed-tensors":
        return _compressed_format(quantized)
    if method == "mxfp4":
        return "mxfp4"
    return "fp8-block" if quantized.get("weight_block_size") else "fp8"


def _layers_by_format(quantized: Mapping[str, Any]) -> dict[str, int]:
    """Return how many linear layers have each format in a quantization of mixed precision, the most frequent first."""
    layers = quantized.get("quantized_layers") if quantized.get("quant_algo") == "MIXED_PRECISION" else None
    stated = layers.values() if isinstance(layers, Mapping) else ()
    return dict(Counter(str(each.get("quant_algo")) for each in stated if isinstance(each, Mapping)).most_common())


def format_remarks(config: Mapping[str, Any], name: str) -> list[str]:
    """Return what is taken as simpler of a quantization, or that a name states one which the configuration lacks."""
    quantized = config.get("quantization_config")
    if quantized is None:
        stated = _NAMED.search(name.lower())
        return [f"the name says {stated[1].upper()}, config.json does not: taken as 16 bits"] if stated else []
    if not isinstance(quantized, Mapping):
        return []
    remarks = []
    if mixed := _layers_by_format(quantized):
        most, *others = mixed
        remarks.append(f"mixed precision taken as {_OF_MODELOPT.get(most, most).upper()}, as most layers are")
        if others:
            remarks[-1] += f"; others have {', '.join(others)}"
    if cache := quantized.get("kv_cache_quant_algo"):
        remarks.append(f"its KV cache of {cache} by --kv-dtype")
    return remarks


def _compressed_format(quantized: Mapping[str, Any]) -> str:
    """Return the format of the first group of weights that compressed-tensors describes."""
    groups = quantized.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        rule = "no group says how many bits its weights have; give config_groups with weights"
        raise ConfigError(rule, None, "quantization_config")
    if weights.get("type", "int") == "float":
        eight = "fp8-block" if weights.get("strategy") == "block" else "fp8"
        return _stated_bits(weights.get("num_bits"), {8: eight, 4: "nvfp4"})
    return _stated_bits(weights.get("num_bits"), {8: "int8", 4: "int4-g128"})


def _stated_bits(bits: object, known: Mapping[int, str]) -> str:
    if not isinstance(bits, int) or bits not in known:
        rule = f"weights of {bits!r} bits are not modelled; give {' or '.join(map(str, sorted(known)))}"
        raise ConfigError(rule, None, "quantization_config")
    return known[bits]
