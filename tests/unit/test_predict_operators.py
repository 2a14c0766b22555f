"""Memory-bound operators: what each must move and compute, and the laws that every one obeys."""

import numpy as np
import pytest
from estimates import time_of

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.estimate.kernel import DataSweep, SweepKernel, idle_latency, kernel_time, memory_seconds
from weft.graph import OPERATORS, STREAMING, Streaming, operator
from weft.graph.op import BLOCK_BYTES

A100 = hardware.gpu("a100-sxm-80gb")
SIZES = {
    "elements": 2**26,
    "rows": 16384,
    "columns": 4096,
    "parameters": 10**8,
    "tokens": 16384,
    "hidden": 4096,
    "channels": 4096,
    "steps": 2048,
    "state": 128,
    "batch": 8,
    "heads": 32,
    "query": 2048,
    "keys": 2048,
    "head": 128,
    "experts": 1024,
}
ASKED = {key: SIZES[key] for key in ("batch", "heads", "query", "keys", "head")}


def sizes_of(name, **changes):
    declared = OPERATORS[name]
    return {key: SIZES[key] for key in declared.dimensions if key not in declared.defaults} | changes


def runs(name, gpu):
    """Whether a GPU has the number formats that an operator writes."""
    written = STREAMING[name].writes if name in STREAMING else ()
    return all(hardware.gpu(gpu).supports(dtype) for dtype in written if dtype in ("fp8", *BLOCK_BYTES))


SINGLY = {
    "clamp", "clamp_backward", "scaled_rotary", "scaled_rotary_backward", "weighted_bias_add",
    "weighted_bias_add_backward",
}  # fmt: skip
"""Operators in PyTorch's kernels whose threads load an element only after they stored the one before."""
CASES = [(name, gpu) for name in OPERATORS for gpu in hardware.gpu_names() if runs(name, gpu)]


@pytest.mark.parametrize(("name", "gpu"), CASES)
def test_parts_add_up_and_nothing_is_faster_than_its_bytes_at_peak(name, gpu):
    machine = hardware.gpu(gpu)
    found = time_of(name, machine, **sizes_of(name))
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert machine.compute.launch_latency < found.seconds < 1
    waits = name in SINGLY or name.startswith("scan_")  # chunks wait for the state of the one before
    singly = {"latency"} if waits else set()
    assert str(found.bound) in {"compute", "cache", "memory"} | singly


@pytest.mark.parametrize("name", OPERATORS)
def test_more_work_never_takes_less_time(name):
    gpu = A100 if runs(name, "a100-sxm") else hardware.gpu("b200")
    for key in sizes_of(name):
        found = time_of(name, gpu, **sizes_of(name, **{key: SIZES[key] // 8 * np.arange(1, 33)}))
        assert np.all(np.diff(found.seconds) >= -1e-3 * found.seconds[1:]), key


def test_a_long_copy_runs_at_the_measured_copy_rate():
    elements = 2**30
    found = time_of("elementwise", A100, dtype="fp16", elements=elements)
    rate = 2 * 2 * elements / float(found.seconds)
    assert rate == pytest.approx(A100.memory.copy_efficiency * A100.memory.bandwidth, rel=0.01)
    assert str(found.bound) == "memory"


def test_reads_alone_run_at_the_read_rate_and_every_write_beside_them_costs_a_turnaround():
    read = memory_seconds(A100, np.float64(1e9), np.float64(0))
    assert read == pytest.approx(1e9 / (A100.memory.read_efficiency * A100.memory.bandwidth))
    mixed = memory_seconds(A100, np.float64(3e9), np.float64(1e9))
    assert 4 * read < mixed < 4e9 / (A100.memory.copy_efficiency * A100.memory.bandwidth)


def test_a_working_set_that_fits_the_cache_is_faster_than_memory():
    small = time_of("elementwise", A100, elements=4 * 2**20)  # 16 MiB of 40
    assert 16 * 2**20 / float(small.seconds - small.parts["launch"]) > A100.memory.bandwidth
    large = time_of("elementwise", A100, elements=64 * 2**20)
    assert 256 * 2**20 / float(large.seconds) < A100.memory.bandwidth


def test_an_empty_kernel_costs_a_launch_and_a_tiny_one_little_more():
    tiny = time_of("elementwise", A100, elements=1)
    assert A100.compute.launch_latency < tiny.seconds < A100.compute.launch_latency + 2 * idle_latency(A100)
    assert str(tiny.bound) == "launch"


def test_one_row_cannot_fill_memory():
    one = time_of("layernorm", A100, rows=1, columns=2**20)
    all_units = time_of("layernorm", A100, rows=A100.compute.compute_units, columns=2**20)
    assert all_units.seconds < 3 * one.seconds
    assert str(one.bound) == "latency"


def test_rows_that_outgrow_the_cache_are_read_twice():
    fits = time_of("layernorm", A100, rows=2**18, columns=1024)
    misses = time_of("layernorm", A100, rows=2**14, columns=2**14)
    assert misses.seconds / fits.seconds == pytest.approx(1.5, rel=0.08)


def test_long_softmax_rows_are_limited_by_exponentials_where_lanes_are_few():
    long = time_of("softmax", A100, rows=2**18, columns=2048)
    assert str(long.bound) == "compute"
    assert A100.vector_lanes == 64
    assert hardware.gpu("h100-sxm").vector_lanes == 128
    assert hardware.gpu("mi300x").vector_lanes == 64


def test_sweeps_follow_each_other_and_within_one_the_slowest_sets_the_pace():
    bytes_, operations = np.float64(4e9), np.float64(2e10)
    both = kernel_time(SweepKernel((DataSweep(reads=bytes_, operations=operations),), 1e6, 256), A100)
    parted = kernel_time(SweepKernel((DataSweep(reads=bytes_), DataSweep(operations=operations)), 1e6, 256), A100)
    assert both.parts["memory"] * both.parts["compute"] == 0
    assert min(parted.parts["memory"], parted.parts["compute"]) > 0
    assert parted.seconds > 1.5 * both.seconds


def test_batched_attention_is_its_three_kernels_and_fused_beats_it():
    shape = sizes_of("attention_batched")
    batched = time_of("attention_batched", A100, **shape)
    fused = time_of("attention_fused", A100, **shape)
    masked = time_of("attention_fused", A100, **shape, causal=1)
    softmax = time_of("softmax", A100, rows=8 * 32 * 2048, columns=2048)
    assert softmax.seconds < batched.seconds
    assert 0.5 * fused.seconds < masked.seconds < 0.6 * fused.seconds
    assert fused.seconds < 0.7 * batched.seconds


def test_one_query_reads_keys_and_values_at_the_rate_of_memory():
    found = time_of("attention_fused", A100, batch=64, heads=32, query=1, keys=4096, head=128)
    read = 2 * 64 * 32 * 4096 * 128 * 2
    assert read / float(found.seconds) > 0.8 * A100.memory.bandwidth
    shared = time_of("attention_fused", A100, batch=64, heads=32, query=1, keys=4096, head=128, kv_heads=8)
    assert shared.seconds < 0.4 * found.seconds


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm", "mi300x"])
def test_query_heads_that_share_keys_read_them_once_from_memory(gpu):
    machine = hardware.gpu(gpu)
    grouped = time_of("attention_fused", machine, batch=64, heads=64, query=1, keys=32768, head=128, kv_heads=8)
    read = 2 * 64 * 8 * 32768 * 128 * 2
    assert str(grouped.bound) == "memory"
    assert read / float(grouped.seconds) > 0.75 * machine.memory.bandwidth
    own = time_of("attention_fused", machine, batch=64, heads=8, query=1, keys=32768, head=128)
    assert grouped.seconds < 1.05 * own.seconds


def test_grouping_long_queries_changes_nothing_that_computes():
    shape = {"batch": 4, "heads": 64, "query": 4096, "keys": 4096, "head": 128, "causal": 1}
    alone, grouped = (time_of("attention_fused", A100, **shape, kv_heads=count) for count in (64, 8))
    assert str(grouped.bound) == "compute"
    assert grouped.seconds == pytest.approx(float(alone.seconds), rel=0.01)


def test_attention_counts_the_products_that_its_mask_leaves():
    shape = {"batch": 2, "heads": 4, "query": 128, "keys": 128, "head": 64}
    assert operator("attention_batched", **shape).flops == 4 * 2 * 4 * 128 * 128 * 64
    assert operator("attention_fused", **shape, causal=1).flops == 4 * 2 * 4 * (128 * 129 / 2) * 64
    assert Streaming("softmax", 1, 1).matrix_dtype is None


def test_a_dtype_that_the_gpu_lacks_is_refused():
    with pytest.raises(InputError, match="a100-sxm-80gb does not compute in fp8; choose one of"):
        time_of("gelu", A100, dtype="fp8", elements=1)
    assert time_of("gelu", hardware.gpu("h100-sxm"), dtype="fp8", elements=1).seconds > 0


def test_shapes_are_arrays_as_well_as_numbers():
    columns = np.array([64, 1024, 4096])
    found = time_of("softmax", A100, rows=np.array([[8], [4096]]), columns=columns)
    assert found.seconds.shape == found.bound.shape == (2, 3)
    alone = time_of("softmax", A100, rows=4096, columns=1024)
    assert found.seconds[1, 1] == pytest.approx(float(alone.seconds))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("softmax", {"rows": 4}, "lacks its dimension 'columns'; give it like rows=4096,columns=4096"),
        ("softmax", {"rows": 4, "columns": 4, "cols": 4}, "has no dimension 'cols'"),
        (
            "gelu",
            {"elements": 0},
            "elements of operator 'gelu' is 0; it must be a whole number above zero",
        ),
        ("gelu", {"elements": 2.5}, "is 2.5; it must be a whole number"),
        ("gelu", {"elements": 10**400}, "must be at most 1125899906842624"),
        ("gelu", {"elements": 1e20}, "is 1e+20; it must be at most 1125899906842624".replace("+", "[+]")),
        ("gelu", {"elements": "many"}, "is 'many'; it must be a whole number"),
        ("elementwise", {"elements": 8, "inputs": 0, "outputs": 0}, "has neither inputs nor outputs"),
        (
            "elementwise",
            {"elements": 8, "inputs": -1},
            "inputs of operator 'elementwise' is -1; it must be",
        ),
        ("attention_fused", ASKED | {"kv_heads": 3}, "kv_heads is 3; it must divide the 32 query heads"),
        ("attention_fused", ASKED | {"kv_heads": 64}, "kv_heads is 64; it must divide the 32 query heads"),
        ("attention_fused", ASKED | {"causal": 2}, "causal is 2; it must be 0"),
        ("softmax", {"rows": [1, 2], "columns": [1, 2, 3]}, "do not fit together"),
    ],
)
def test_a_wrong_shape_is_named_with_an_example(name, shape, message):
    with pytest.raises(InputError, match=message):
        time_of(name, A100, **shape)


def test_an_unknown_operator_or_dtype_names_the_known():
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        time_of("softmx", A100, rows=1, columns=1)
    with pytest.raises(UnknownNameError, match="unknown dtype 'fp17'"):
        time_of("gelu", A100, dtype="fp17", elements=1)
