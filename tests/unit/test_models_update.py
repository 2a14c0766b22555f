"""The update of weights: what each optimizer and its surroundings read and write."""

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.models.update import optimizer_ops

N = 1_000_000


def moved(name, **options):
    """Bytes of each parameter."""
    return sum(op.least_bytes for op in optimizer_ops(name, N, **options)) / N


def test_mixed_precision_adam_moves_28_bytes_beside_norm_clip_copy_and_zeros():
    assert moved("adam") == 28 + 4 + 8 + 6 + 4


def test_loss_scaling_reads_and_writes_the_gradients_once_more():
    assert moved("adam", weights="fp16", loss_scaling=True) == moved("adam") + 8


def test_fp32_weights_need_no_copy():
    assert moved("adam", weights="fp32") == moved("adam") - 6


def test_16_bit_gradients_are_half_as_large_and_the_kernel_writes_the_weights_itself():
    ops = optimizer_ops("adam", N, gradients="bf16", weights="bf16")
    assert "cast" not in [getattr(op, "name", "") for op in ops]
    assert moved("adam", gradients="bf16") < moved("adam")


def test_unfused_adam_moves_60_to_100_bytes_in_eight_kernels():
    fused, unfused = (optimizer_ops("adam", N, fused=one) for one in (True, False))
    assert len(unfused) - len(fused) == 7
    assert 60 < moved("adam", fused=False) - (moved("adam") - 28) < 100


def test_lamb_reads_weights_and_updates_again_for_their_norms():
    assert moved("lamb") > moved("adam")
    a100 = weft.gpu("a100-sxm")
    times = {
        name: sum(weft.estimate(op, a100).seconds for op in optimizer_ops(name, 336_000_000))
        for name in ("sgd", "adam", "lamb")
    }
    assert times["sgd"] < times["adam"] < times["lamb"] < 2 * times["adam"]


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("fused", [True, False])
def test_twice_the_parameters_take_twice_as_long(name, fused):
    one, two = (
        sum(weft.estimate(op, "h100-sxm").seconds for op in optimizer_ops(name, count, fused=fused))
        for count in (10**9, 2 * 10**9)
    )
    assert two == pytest.approx(2 * one, rel=0.01)


def test_an_unknown_optimizer_and_no_parameters_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'adam'"):
        optimizer_ops("adamw", N)
    with pytest.raises(InputError):
        optimizer_ops("adam", 0)
