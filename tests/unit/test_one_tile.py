"""The paper's machine has one GEMM kernel, which the closed form times and the engine runs."""

import pytest

import weft
from weft.kernels import GemmTiling
from weft.kernels.library.tiles import candidates
from weft.simulate import alone

GPU = weft.gpu("t3-paper")


def test_the_closed_form_chooses_from_the_tile_of_the_engine():
    (one,) = candidates(GPU.architecture, "fp16")
    assert (one.rows, one.columns, one.step, one.stages) == (
        GemmTiling().rows, GemmTiling().columns, GemmTiling().step, GemmTiling().stages,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (2048, 2048, 1024), (2560, 2048, 2048), (4096, 4096, 512), (8192, 4256, 2128), (1280, 1024, 4096),
        (1280, 1024, 512), (1280, 1024, 1024), (1280, 2048, 1024), (1024, 1024, 512), (640, 1024, 768),
    ],
)  # fmt: skip
def test_both_take_as_long(m, n, k):
    op = weft.gemm(m, n, k, "fp16")
    closed, simulated = weft.estimate(op, GPU).seconds, weft.simulate(alone(op, 2), GPU).seconds
    assert float(closed) == pytest.approx(simulated, rel=0.05)


def test_a_slower_launch_takes_as_much_longer_in_both():
    op, slower = weft.gemm(1280, 1024, 1024, "fp16"), GPU.replace({"compute.launch_latency": "6 us"})
    assert float(weft.estimate(op, slower).seconds - weft.estimate(op, GPU).seconds) == pytest.approx(4e-6)
    found = [weft.simulate(alone(op, 2), machine).seconds for machine in (GPU, slower)]
    assert found[1] - found[0] == pytest.approx(4e-6)
