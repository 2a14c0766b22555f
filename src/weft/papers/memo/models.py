"""Rows on models: their operators and sizes, what a step holds and computes again, number formats, utilisation."""

from __future__ import annotations

import numpy as np

from weft.estimate.quantization import quantized_format
from weft.graph import Attention, Gemm, Tensor
from weft.graph.convolution import Convolution
from weft.hardware import gpu, system
from weft.models import Transformer, load_model
from weft.models.block import FusionStyle
from weft.models.counts import forward_flops, hardware_flops, model_flops, parameters, utilisation
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.papers.memo.values import Values, case
from weft.papers.textbook.quantization import cache_bytes, quantize, signal_to_noise, state_bytes
from weft.plan.recompute import segments
from weft.step.memory import memory
from weft.step.offload import HOST_EFFICIENCY, hidden_and_exposed, seconds_to_host

GPT3 = load_model("gpt-3")
SEQUENCE = 2048
FULL = "full"
"""The convention of FLOPs in which each query sees all keys."""


def operators() -> Values:
    """FLOPs of a layer of GPT-3 by its parts [TFLOP], parameters [billions], and backward over forward FLOPs."""
    flops = forward_flops(GPT3, SEQUENCE, FULL)
    feed_forward = forward_flops(GPT3, SEQUENCE, FULL, names=("fc1", "fc2"))["layers"]
    gemm = Gemm(SEQUENCE, GPT3.hidden, GPT3.hidden)
    fused = Attention(1, GPT3.attention_heads, SEQUENCE, SEQUENCE, 128, causal=1)
    return {
        "parameters": parameters(GPT3).total / 1e9,
        "layer": (flops["layers"] + flops["attention"]) / GPT3.layers / 1e12,
        "attention": flops["attention"] / GPT3.layers / 1e12,
        "feed_forward": feed_forward / GPT3.layers / 1e12,
        "convolution": Convolution(batch=32, channels=64, filters=64).flops / 1e9,
        "backward_gemm": sum(one.flops for one in (*gemm.backward.inputs, *gemm.backward.weights)) / gemm.flops,
        "backward_flash": sum(one.flops for one in fused.backward.inputs) / fused.flops,
    }


def sizes() -> Values:
    """GPT-3 in several number formats, its training state, and what the borders of its layers hold [GB]."""
    count = parameters(GPT3).total
    formats = {name: quantized_format(name).bytes(count) / 1e9 for name in ("fp32", "bf16", "int8", "int4-g128")}
    mixed, plain = state_bytes("mixed"), state_bytes("fp32")
    states = ("master weights", "first moment", "second moment")
    own = ("gradients", "first moment", "second moment")
    return {
        "fp32": formats["fp32"],
        "fp16": formats["bf16"],
        "int8": formats["int8"],
        "int4": formats["int4-g128"],
        "adam": sum(plain[name] for name in own) * count / 1e9,
        "adam_bytes_memo": sum(plain[name] for name in own),
        "adam_bytes_zero": sum(mixed[name] for name in states),
        "state_bytes": sum(mixed.values()),
        "boundary": Tensor((case("tokens"), GPT3.hidden), "fp16").bytes / 1e9,
        "cache": cache_bytes(1, SEQUENCE, GPT3.layers, GPT3.attention_heads, 128) / 1e9,
    }


def peak() -> Values:
    """Memory of a step that was measured: the first pipeline device of the 7B model of Megatron Core [GB]."""
    model = Transformer(**case("peak_model"))
    plan = TrainingPlan(tp=4, dp=2, batch=8, micro_batch=2, sequence=model.sequence_length, zero=1)
    device = memory(model, system("dgx-a100"), plan, Framework(style=FusionStyle(dropout=True))).devices[0]
    static = sum(device.fixed[name] for name in ("weights", "gradients", "optimizer"))
    return {
        "static": static / 1e9,
        "dynamic": (device.peak_allocated - static) / 1e9,
        "all": device.peak_allocated / 1e9,
    }


def recomputation() -> Values:
    """Checkpointing and swapping: units of a layer, times of an iteration, FLOPs, and seconds of the host's link."""
    selective = hardware_flops(GPT3, SEQUENCE, "selective", "megatron-2022")
    layer_input = Tensor((SEQUENCE, GPT3.hidden), "fp16").bytes
    beside = forward_flops(GPT3, SEQUENCE, FULL)["layers"] / GPT3.layers / case("swap_ranks") / case("swap_rate")
    slow, fast = (gpu("a100-sxm-80gb").replace({"host.bandwidth": f"{rate / HOST_EFFICIENCY:.6g} GB/s"})
                  for rate in case("swap_links"))  # fmt: skip
    return {
        "segments": segments(GPT3.layers)[0],
        "segments_of_ten": segments(GPT3.layers, 10)[0],
        "compute": segments(GPT3.layers)[1],
        "selective": selective / model_flops(GPT3, SEQUENCE, "megatron-2022") - 1,
        "swap": seconds_to_host(layer_input, fast) * 1e3,
        "swap_beside": beside * 1e3,
        "swap_exposed": hidden_and_exposed(layer_input, beside, fast)[1] * 1e3,
        "swap_slow": seconds_to_host(layer_input, slow) * 1e3,
        "swap_slow_exposed": hidden_and_exposed(layer_input, beside, slow)[1] * 1e3,
    }


def quantization() -> Values:
    """Bits of formats, SNR in closed form and of rounded arrays [dB], and the largest error in steps."""
    bits = {name: quantized_format(name).bits_per_element for name in case("formats").values()}
    uniform = np.linspace(-1, 1, 100_001)
    rounded = quantize(uniform, 8)
    sine = np.sin(np.linspace(0, np.pi / 2, 100_001))
    return {
        **{row: bits[name] for row, name in case("formats").items()},
        "uniform": signal_to_noise(8, 3**0.5),
        "sine": signal_to_noise(8, 2**0.5),
        "uniform_rounded": rounded.snr(uniform),
        "sine_rounded": quantize(sine, 8).snr(sine),
        "error": float(np.abs(rounded.values - uniform).max() / rounded.scale[0]),
    }


def utilisations() -> Values:
    """MFU and HFU of a published step of GPT-3, and their ratio under full recomputation."""
    gpus, batch, seconds, rate = (case("step")[name] for name in ("gpus", "batch", "seconds", "peak"))
    model = batch * model_flops(GPT3, SEQUENCE, "megatron-2022")
    selective = batch * hardware_flops(GPT3, SEQUENCE, "selective", "megatron-2022")
    layers = forward_flops(GPT3, SEQUENCE, FULL)
    every = hardware_flops(GPT3, SEQUENCE, "full", FULL) - 3 * layers["head"]
    return {
        "mfu": utilisation(model, seconds, gpus * rate),
        "hfu": utilisation(selective, seconds, gpus * rate),
        "full": (model_flops(GPT3, SEQUENCE, FULL) - 3 * layers["head"]) / every,
    }
