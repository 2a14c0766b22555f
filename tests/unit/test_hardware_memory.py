"""The DRAM of the catalogue in the engine: reads have their measured share, copies should come out as measured."""

import pytest

import weft
from weft.models import SubLayer
from weft.parallel import split

# Nothing but DRAM slows an all-gather over such links, with no cache beside it.
FREE = {
    "link.bandwidth": "100 TB/s",
    "host.bandwidth": "100 TB/s",
    "link.latency": "1 ns",
    "memory_cache.capacity": "0 B",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "l40s", "mi100", "mi210", "mi300x"])
def test_timings_and_channels_give_about_the_copy_bandwidth_that_others_measured(name):
    gpu = weft.gpu(name)
    layer = split(SubLayer.custom(m=4096, n=8192, k=256, name="copy"), tp=2)
    result = weft.simulate(layer, gpu.replace(FREE), "sequential", weft.RunOptions(request_bytes=64))
    # Half of the output is read, half is written.
    copied = layer["all_reduce"].op.bytes / result.duration("all_gather")
    assert copied / gpu.memory.bandwidth == pytest.approx(gpu.memory.copy_efficiency, rel=0.12)
