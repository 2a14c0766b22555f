"""Requests longer than a channel's interleave: ganged channels, what they cost in exactness and save in events."""

import pytest
from runs import isolated_collective, isolated_gemm, together

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.graph import Gemm
from weft.hardware import System
from weft.overlaps.lower.machine import count_ganged, default_request_bytes, machine_tables

FINE, COARSE = 512, 32 * 1024
SQUARE, FLAT = Gemm(4864, 4096, 2048, "bf16"), Gemm(64, 8192, 8192, "bf16")
BYTES = 32 << 20


def tables(name, request):
    gpu = hardware.gpu(name)
    rows, shape, _ = machine_tables(System(gpu=gpu, gpus=8), 1, RunOptions(request_bytes=request), 2)
    return rows[0], shape


@pytest.mark.parametrize("name", hardware.gpu_names())
@pytest.mark.parametrize("request_bytes", [4096, 16 * 1024])
def test_ganged_channels_have_the_bandwidth_of_those_they_stand_for(name, request_bytes):
    memory = hardware.gpu(name).memory
    row, shape = tables(name, request_bytes)
    rate = int(shape[y.SIZE_CHANNELS]) * int(shape[y.SIZE_BURST]) / (int(row[y.GPU_T_BURST]) * 1e-15)
    bus = memory.burst_bytes / (max(memory.ccd, memory.burst_clocks) / memory.clock) * memory.channels
    assert rate == pytest.approx(bus, rel=1e-4)
    spans = max(request_bytes // memory.interleave, 1)  # channels over which a request must lie
    assert shape[y.SIZE_CHANNELS] >= min(4, memory.channels // spans)
    assert row[y.GPU_QUEUE_BYTES] >= 4 * request_bytes


def test_a_gang_is_as_wide_as_fine_stripes_would_be_and_leaves_four():
    assert [count_ganged(hardware.gpu("mi300x"), request) for request in (512, 4096, 8192, 32768, 65536)] == [
        1,
        1,
        16,
        64,
        64,
    ]
    assert count_ganged(hardware.gpu("a100-sxm-80gb"), 32768) == 20


def test_gpus_run_with_coarse_requests_unless_they_are_models():
    sizes = {
        name: default_request_bytes(hardware.gpu(name)) for name in ("mi300x", "mi210", "h100-sxm", "l4", "t3-paper")
    }
    assert sizes == {"mi300x": 32768, "mi210": 16384, "h100-sxm": 16384, "l4": 8192, "t3-paper": 512}


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_requests_of_the_default_size_leave_four_channels(name):
    gpu = hardware.gpu(name)
    assert gpu.memory.channels // count_ganged(gpu, default_request_bytes(gpu)) >= min(4, gpu.memory.channels)


@pytest.mark.parametrize(("gemm", "within"), [(SQUARE, 0.02), (FLAT, 0.1)], ids=["bound by compute", "bound by memory"])
def test_a_gemm_takes_as_long_with_coarse_requests_as_with_fine_ones(gemm, within):
    """A short GEMM that is bound by memory comes out faster: few wide gangs idle less than many single channels."""
    fine, coarse = (isolated_gemm(gemm, "mi300x", request_bytes=size) for size in (FINE, COARSE))
    assert coarse.makespan == pytest.approx(fine.makespan, rel=within)
    assert coarse.events < fine.events / 5
    assert coarse.bytes("gemm", "read") == pytest.approx(fine.bytes("gemm", "read"), rel=0.02)


@pytest.mark.parametrize("driver", ["cu", "dma"])
def test_a_collective_takes_as_long_with_coarse_requests_as_with_fine_ones(driver):
    fine, coarse = (
        isolated_collective("all_gather", BYTES, "mi300x", driver=driver, request_bytes=size) for size in (FINE, COARSE)
    )
    assert coarse.makespan == pytest.approx(fine.makespan, rel=0.02)
    assert coarse.events < fine.events


def test_both_together_take_as_long_with_coarse_requests_as_with_fine_ones():
    fine, coarse = (
        together(SQUARE, "all_gather", BYTES, "mi300x", strategy="partition", units=32, request_bytes=size)
        for size in (FINE, COARSE)
    )
    assert coarse.makespan == pytest.approx(fine.makespan, rel=0.02)


@pytest.mark.parametrize(
    ("name", "request_bytes", "sentence"),
    [
        ("mi300x", 6144, "divides the channel interleave"),
        ("mi300x", 128 * 1024, "at most 64 KiB"),
        ("l40s", 64 * 1024, "must divide the 24 of l40s"),
    ],
)
def test_a_request_size_that_channels_cannot_share_is_refused(name, request_bytes, sentence):
    with pytest.raises(InputError, match=sentence):
        tables(name, request_bytes)
