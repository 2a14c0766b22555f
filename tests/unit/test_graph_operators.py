"""Operators: their FLOPs and least bytes, arrays of dimensions, and kinds that users add."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from weft import hardware
from weft.core.errors import InputError, UnitError, UnknownNameError
from weft.estimate import estimate
from weft.graph import (
    OPERATORS,
    Attention,
    Collective,
    Gemm,
    Op,
    Streaming,
    Tensor,
    all_gather,
    all_reduce,
    gemm,
    operator,
)

SIZES = {
    "elements": 4096,
    "rows": 64,
    "columns": 128,
    "parameters": 1000,
    "tokens": 32,
    "hidden": 256,
    "batch": 2,
    "heads": 8,
    "query": 16,
    "keys": 64,
    "head": 32,
    "experts": 16,
    "channels": 64,
    "steps": 512,
    "state": 32,
}


def sizes_of(name):
    declared = OPERATORS[name]
    return {key: SIZES[key] for key in declared.dimensions if key not in declared.defaults}


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("elementwise", 2 * 2 * 4096),
        ("gelu", 2 * 2 * 4096),
        ("bias_gelu", 2 * 2 * 4096),
        ("dropout", 5 * 4096),
        ("residual_add", 3 * 2 * 4096),
        ("softmax", 2 * 2 * 64 * 128),
        ("layernorm", 2 * 2 * 64 * 128),
        ("rmsnorm", 2 * 2 * 64 * 128),
        ("adam", (2 + 2 * 12) * 1000),
        ("lamb", (2 + 2 * 12) * 1000),
        ("embedding", 2 * 2 * 32 * 256 + 8 * 32),
        ("attention_batched", 2 * 2 * 2 * 32 * 8 * (16 + 64)),
        ("attention_fused", 2 * 2 * 2 * 32 * 8 * (16 + 64)),
    ],
)
def test_least_bytes_are_everything_read_once_and_everything_written_once(name, least):
    assert operator(name, **sizes_of(name)).least_bytes == least


@pytest.mark.parametrize("name", OPERATORS)
def test_arrays_of_dimensions_agree_with_single_ones(name):
    one = operator(name, **sizes_of(name))
    many = operator(name, **{key: [[size], [2 * size]] for key, size in sizes_of(name).items()})
    assert (many.flops[0, 0], many.least_bytes[0, 0]) == (one.flops, one.least_bytes)
    both = estimate(many, "b200").seconds
    assert both.shape == (2, 1)
    assert both[0, 0] == pytest.approx(float(estimate(one, "b200").seconds))


def test_shared_key_heads_are_read_once():
    own, shared = (Attention(2, 8, 16, 64, 32, kv_heads=count) for count in (0, 2))
    assert own.least_bytes - shared.least_bytes == 2 * 2 * 2 * 6 * 64 * 32
    assert shared.flops == own.flops


def test_a_batch_multiplies_flops_and_bytes():
    assert Gemm(64, 32, 16, batch=3).flops == 3 * Gemm(64, 32, 16).flops
    assert Gemm(64, 32, 16, batch=3).least_bytes == 3 * Gemm(64, 32, 16).least_bytes
    assert Gemm(64, 32, 16, batch=3) != Gemm(64, 32, 16)


def test_what_people_write_becomes_an_operator():
    assert gemm(64, 32, 16) == Gemm(64, 32, 16, "bf16")
    assert all_gather("896 MiB") == Collective("all_gather", 896 << 20, 8)
    assert all_reduce([1024, 2048], ranks=[[2], [4]]).flops.shape == (2, 2)
    with pytest.raises(UnitError):
        all_reduce("64")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gemm(1, 1, "many"), "GEMM dimension K is 'many'; it must be a whole number above zero"),
        (lambda: Gemm([1, 2], [1, 2, 3], 1), "do not fit together"),
        (lambda: Streaming("gelu", 2**51), "elements of operator 'gelu' is"),
        (lambda: Attention(1, 8, 1, 1, 64, kv_heads=2, fused=False), "go with fused attention"),
    ],
)
def test_wrong_dimensions_are_refused_in_a_sentence(make, message):
    with pytest.raises(InputError, match=message):
        make()
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        Streaming("softmx", 1)


@dataclass(frozen=True)
class Convolution(Op):
    """A kind that a user adds, in one place: everything else knows it by its FLOPs and tensors."""

    kind: ClassVar[str] = "convolution"

    images: int
    channels: int
    size: int

    @property
    def reads(self):
        return (
            Tensor((self.images, self.channels, self.size, self.size)),
            Tensor((self.channels, self.channels, 3, 3), role="weight"),
        )

    @property
    def writes(self):
        return self.reads[:1]

    @property
    def flops(self):
        return 2 * 9 * self.images * self.channels**2 * self.size**2

    @property
    def matrix_dtype(self):
        return "bf16"


def test_a_kind_that_a_user_adds_is_timed_by_its_flops_and_bytes():
    gpu = hardware.gpu("h100-sxm")
    wide, narrow = Convolution(64, 1024, 32), Convolution(4096, 2, 128)
    computed, moved = estimate(wide, gpu), estimate(narrow, gpu)
    assert str(computed.bound) == "compute"
    assert computed.seconds > wide.flops / gpu.matrix_rate("bf16")
    assert str(moved.bound) == "memory"
    assert moved.seconds > narrow.least_bytes / gpu.memory.bandwidth
    assert np.all(estimate(Convolution(np.array([1, 64]), 1024, 32), gpu).seconds[1] == computed.seconds)


def test_the_package_is_called_as_its_one_function():
    import weft.estimate as package

    work = Gemm(4096, 4096, 4096, "bf16")
    assert package(work, "h100-sxm").seconds == estimate(work, "h100-sxm").seconds


@pytest.mark.parametrize(
    ("gpu", "slower", "gradient"),
    [
        ("a100-sxm-80gb", (1, 1), (1, 1)),
        ("h100-sxm", (1.5, 2.0), (1.5, 1.75)),  # arXiv:2407.08608, FlashAttention-3 by FlashAttention-2
        ("mi300x", (1.18, 1.62), (1.18, 1.62)),  # AITER by AOTriton, forward; the gradient is assumed alike
        ("mi355x", (1.18, 1.62), (1.18, 1.62)),
    ],
)
def test_attention_of_pytorch_is_behind_the_newest_kernels_of_both_vendors(gpu, slower, gradient):
    """A comparison of vendors under torchtitan is one of the kernels that PyTorch has on each."""
    for (low, high), backward in ((slower, False), (gradient, True)):
        newest, pytorch = (
            estimate(Attention(4, 32, 8192, 8192, 128, 8, 1, gradient=backward, generation=one), gpu).seconds
            for one in (0, 2)
        )
        assert low <= pytorch / newest <= high


def test_a_kind_of_operator_that_names_no_tensors_is_refused():
    with pytest.raises(TypeError, match="operator Silent has no writes; define each as a property"):

        class Silent(Op):
            kind = "silent"

            @property
            def reads(self):
                return ()
