"""Kernels of inference by libraries: what each obeys, and what is refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft.cli.predict import predict
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.core.options import SHORT
from weft.estimate import BenchmarkProtocol, estimate
from weft.graph import Attention, Collective, Gemm, Streaming
from weft.hardware import gpu
from weft.kernels.library import served
from weft.kernels.library.served import libraries, library, parameters, table_of, tables
from weft.lab.fitted import fitted_files, thin_sets, thin_sources

ON = {
    "cdna3": "mi300x",
    "ampere": "a100-sxm-80gb",
    "ada": "l40s",
    "blackwell-rtx": "rtx-pro-6000",
    "hopper": "h100-sxm",
    "blackwell": "b200",
}
ATTENTION = [place for place in tables() if place.startswith("attention.")]


def test_a_set_has_no_more_values_of_its_own_than_a_fifth_of_its_rows():
    """But for Marlin on Hopper, whose few own rows predict unseen loads of a server, and a pool of kernels does not."""
    assert thin_sources() == {}
    assert [*thin_sets()] == ["experts.sglang-marlin.bf16-int4.hopper", "experts.vllm-marlin.bf16-int4.hopper"]
    for place, one in served.fitted_sets().items():
        assert {*one.own, *one.pooled} == {*tables()[place]}
        assert one.own


def test_every_fitted_value_is_counted():
    files = {one.file: one for one in fitted_files()}
    libraries = files["kernels/library/served.toml"]
    assert libraries.values == sum(len(one.own) for one in served.fitted_sets().values() if one.rows)
    assert files["kernels/library/residual.toml"].values == 2
    assert all(one.values for one in files.values())


def case(place, **changes):
    """An attention that the values of a table time, and the GPU."""
    _, name, phase, dtypes, architecture = place.split(".")
    dtype, kept = dtypes.split("-")
    sizes = {"batch": 16, "heads": 32, "query": 1 if phase == "generation" else 4096, "keys": 4096, "head": 128}
    sizes |= {"kv_heads": 8, "causal": 1}
    if "mla" in name:
        latent = phase == "generation" or library("attention", name).how["context"].get("latent")
        sizes |= {"head": 576, "value": 512, "kv_heads": 1} if latent else {"head": 192, "value": 128, "kv_heads": 0}
    sizes |= changes
    return Attention(dtype=dtype, kv_dtype=kept, library=name, **sizes), ON[architecture]


@pytest.mark.parametrize("place", ATTENTION)
def test_parts_add_up_and_a_longer_context_takes_longer(place):
    op, on = case(place)
    found = estimate(op, on)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    longer, _ = case(place, keys=8192, query=1 if op.query == 1 else 8192)
    assert found.seconds < estimate(longer, on).seconds < 5 * found.seconds


@pytest.mark.parametrize("place", ATTENTION)
def test_no_library_beats_the_matrix_units_or_the_memory(place):
    op, on = case(place, batch=64)
    machine = gpu(on)
    elements = op.head if op.head == 576 else op.head + op.value_head  # a latent key holds its value
    kept = 64 * op.key_heads * op.keys * elements * {"bf16": 2, "fp8": 1}[op.kv_dtype]
    seconds = estimate(op, on).seconds
    # A prompt of bf16 over an FP8 cache may be multiplied in FP8.
    faster = 2 if (op.dtype, op.kv_dtype) == ("bf16", "fp8") else 1
    assert seconds > op.flops / machine.matrix_rate(op.dtype, "boost") / faster
    if kept > 1.25 * machine.cache.capacity:
        assert seconds > kept / machine.memory.bandwidth


@pytest.mark.parametrize("place", ATTENTION)
def test_more_sequences_never_take_less_time(place):
    """But for the combination of split keys, which many sequences need not."""
    op, on = case(place, batch=np.array([1, 2, 4, 8, 16, 32, 64, 128]))
    found = estimate(op, on)
    assert np.all(np.diff(found.seconds - found.parts["latency"]) >= 0)


def test_values_lie_in_the_range_of_their_parameter():
    for place, of in tables().items():
        known = parameters(place.partition(".")[0])
        assert all(known[name].low * 0.999 <= value <= known[name].high * 1.001 for name, value in of.items()), place


def test_every_library_says_where_it_is_from_and_what_it_does():
    for one in libraries("attention").values():
        assert one.source
        assert {"context", "generation"} <= set(one.how)


def test_a_value_beyond_its_range_is_refused():
    with pytest.raises(ConfigError, match="outside the range"):
        served._value("attention.trtllm.context", "peak", 1.4, parameters("attention"))


def test_a_shorter_window_takes_less_time():
    whole, near = (
        estimate(case("attention.trtllm.context.bf16-bf16.hopper", window=w)[0], "h100-sxm").seconds for w in (0, 128)
    )
    assert near < whole / 3


def test_a_group_beyond_what_a_library_packs_reads_its_keys_for_each_head():
    """XQA of TensorRT-LLM packs up to 32 query heads; with 64, keys are read through the cache once for each."""
    packed, each = (
        estimate(case("attention.trtllm.generation.bf16-bf16.hopper", heads=64, kv_heads=64 // group)[0], "h100-sxm")
        for group in (32, 64)
    )
    assert each.parts["cache"] > 10 * packed.parts["cache"]


def test_a_latent_key_is_read_once_and_not_again_as_its_value():
    place = "attention.sglang-trtllm-mla.generation.bf16-bf16.blackwell"
    found = estimate(*case(place, batch=128, keys=32768))
    assert found.seconds < 128 * 32768 * 1088 * 2 / (gpu("b200").memory.bandwidth * 0.8)


def test_one_query_is_generation_and_a_prompt_of_one_token_is_context():
    both = Attention(4, 32, np.array([1, 1, 512]), np.array([1, 512, 512]), 128, 8, 1, library="trtllm")
    found = estimate(both, "h100-sxm").seconds
    alone = [
        estimate(Attention(4, 32, q, k, 128, 8, 1, library="trtllm"), "h100-sxm").seconds
        for q, k in ((1, 1), (1, 512), (512, 512))
    ]
    assert found == pytest.approx(alone)


def test_an_architecture_without_rows_takes_the_nearest():
    assert table_of("attention", "vllm-fa3", "context.bf16-bf16", "blackwell").endswith(".hopper")
    assert table_of("attention", "vllm-fa2", "context.bf16-bf16", "hopper").endswith(".ada")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"library": "flash"}, "flash"),
        ({"library": "vllm-flashinfer", "kv_dtype": ""}, r"no context.bf16-bf16 of vllm-flashinfer is known; it has"),
        ({"library": "trtllm", "gradient": True}, "goes with fused attention"),
        ({"library": "trtllm", "kv_dtype": "fp3"}, "fp3"),
    ],
)
def test_what_a_library_lacks_is_refused_with_what_there_is(changes, said):
    with pytest.raises(InputError, match=said):
        estimate(Attention(4, 32, 512, 512, 128, 8, 1, **changes), "h100-sxm")


def test_gpus_of_other_makers_are_refused():
    with pytest.raises(InputError, match="trtllm is not known on GPUs of the architecture 'cdna3', only on ampere"):
        estimate(Attention(4, 32, 512, 512, 128, 8, 1, library="trtllm"), "mi300x")


def test_an_unknown_library_names_the_known_ones():
    with pytest.raises(UnknownNameError, match="trtllm"):
        library("attention", "magic")


def test_the_command_answers_as_python_does(tmp_path):
    file = tmp_path / "times.json"
    shape = "batch=64,heads=32,query=1,keys=8192,head=128,kv_heads=8,causal=1"
    how = ["--library", "trtllm,vllm-fa3", "--kv-dtype", "fp8", "--clock", "short", "--json", str(file)]
    result = CliRunner().invoke(predict, ["op", "attention_fused", "--shape", shape, *how])
    assert result.exit_code == 0, result.output
    assert "attention by trtllm-generation: 80 % interval" in result.output
    op = Attention(64, 32, 1, 8192, 128, 8, 1, kv_dtype="fp8", library="trtllm")
    ours = estimate(op, "h100-sxm", SHORT).seconds * 1e6
    assert json.loads(file.read_text())["predictions"][0]["time_us"] == pytest.approx(ours)


ALL_REDUCES = [(one, host) for one in libraries("all_reduce") for host in ("", "eager")]
NODES = ("dgx-a100", "dgx-h100", "8xb200", "8xl40s")


def reduced(size, system="dgx-h100", ranks=8, name="vllm-custom", host="", of="all_reduce"):
    return estimate(Collective(of, size, ranks), system, SHORT, BenchmarkProtocol(library=name, host=host))


@pytest.mark.parametrize("system", NODES)
@pytest.mark.parametrize(("name", "host"), ALL_REDUCES)
def test_an_all_reduce_of_more_bytes_takes_longer_and_never_beats_the_links(name, host, system):
    sizes = np.array([256.0, 2**16, 2**20, 2**24, 2**28])
    for ranks in (2, 4, 8):
        found = reduced(sizes, system, ranks, name, host)
        assert sum(found.parts.values()) == pytest.approx(found.seconds)
        assert np.all(np.diff(found.seconds) > 0)
        wire = 2 * (ranks - 1) / ranks * sizes / weft.system(system).gpu.link.bandwidth
        assert np.all(found.seconds > wire)


@pytest.mark.parametrize(("ranks", "most"), [(4, 512 << 10), (8, 256 << 10)])
def test_an_all_reduce_goes_in_two_shots_from_its_limit_on(ranks, most):
    found = reduced(np.array([most - 2, most]), ranks=ranks)
    assert found.by.tolist() == ["one-shot", "two-shot"]


def test_two_gpus_always_reduce_in_one_shot():
    assert reduced(1 << 28, ranks=2).by == "one-shot"


def test_gpus_without_nvlink_share_the_bridge_of_the_host():
    """Eight L40S move as many bytes in all per second as four."""
    four, eight = (reduced(1 << 28, "8xl40s", ranks).parts["link"] for ranks in (4, 8))
    assert eight / four == pytest.approx((7 / 8) * 8 / ((3 / 4) * 4))


def test_eager_the_host_decides_for_small_buffers_and_the_copy_for_large_ones():
    small, large = (reduced(size, host="eager").parts for size in (1024, 1 << 28))
    assert small["host"] > 0.5 * sum(small.values())
    assert large["host"] < 0.001 * large["copy"] < large["copy"]


def test_other_collectives_and_several_nodes_stay_with_the_vendors_library():
    plain = estimate(Collective("all_gather", 1 << 20, 8), "dgx-h100", SHORT)
    assert reduced(1 << 20, of="all_gather").seconds == plain.seconds
    assert not str(reduced(1 << 20, "16xh100", 16).by).endswith("-shot")


def test_the_collective_command_answers_as_python_does(tmp_path):
    file = tmp_path / "times.json"
    how = ["--ranks", "8", "--system", "dgx-h100", "--library", "vllm-custom", "--eager", "--json", str(file)]
    result = CliRunner().invoke(predict, ["collective", "all_reduce:1MiB", *how])
    assert result.exit_code == 0, result.output
    assert "all_reduce by vllm-custom-eager: 80 % interval" in result.output
    ours = reduced(1 << 20, host="eager").seconds * 1e6
    assert json.loads(file.read_text())["predictions"][0]["time_us"] == pytest.approx(ours)


def test_a_servers_all_reduce_takes_no_algorithm_of_the_vendors():
    how = ["--ranks", "8", "--system", "dgx-h100", "--library", "vllm-custom", "--algorithm", "ring"]
    result = CliRunner().invoke(predict, ["collective", "all_reduce:1MiB", *how])
    assert result.exit_code
    assert "--algorithm" in str(result.exception or "") + result.output


GEMMS = [place for place in tables() if place.startswith("gemm.")]


def product(place, m=16, n=7168, k=4096, system=None):
    """A GEMM that the values of a table time [s]."""
    _, name, what, architecture = place.split(".")
    dtype, _, weights = what.partition("-")
    return estimate(
        Gemm(m, n, k, dtype), system or ON[architecture], SHORT, BenchmarkProtocol(served=name, weights=weights)
    )


def test_a_row_beyond_a_tile_costs_a_row_of_tiles():
    """A GEMM of many tiles takes whole ones: 4,097 rows as many as 4,112, whatever the tile."""
    whole, beyond, filled = (
        estimate(Gemm(m, 16384, 16384), "h100-sxm", SHORT, BenchmarkProtocol(served="trtllm", weights="int4")).parts[
            "compute"
        ]
        for m in (4096, 4097, 4112)
    )
    assert beyond == pytest.approx(filled, rel=1e-5)
    assert beyond > 1.01 * whole


@pytest.mark.parametrize("place", GEMMS)
def test_a_products_parts_add_up_and_more_rows_take_longer(place):
    rows = np.array([1, 16, 64, 256, 1024, 4096, 16384])
    found = product(place, rows)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert np.all(np.diff(found.seconds) >= 0)
    device = found.seconds - found.parts["host"]
    assert device[-1] > 2.5 * device[-2]


@pytest.mark.parametrize("place", GEMMS)
def test_no_product_beats_the_matrix_units_or_the_memory_of_its_weights(place):
    _, _, what, architecture = place.split(".")
    dtype, _, weights = what.partition("-")
    machine = gpu(ON[architecture])
    element = {"int4": 0.5, "int8": 1}.get(weights) or {"bf16": 2, "fp8": 1, "int8": 1, "nvfp4": 0.5}[dtype]
    assert product(place, 1, 16384, 16384).seconds > element * 16384**2 / machine.memory.bandwidth
    assert product(place, 16384, 8192, 8192).seconds > 2 * 16384 * 8192**2 / machine.matrix_rate(dtype, "boost")


def test_weights_of_fewer_bits_take_less_time_where_memory_decides():
    wide, narrow = (product(f"gemm.trtllm.bf16-{weights}.ampere", 1, 65536, 8192) for weights in ("int8", "int4"))
    assert 1.5 < wide.parts["memory"] / narrow.parts["memory"] < 2.5


@pytest.mark.parametrize(
    ("how", "dtype", "said"),
    [
        ({"served": "magic"}, "fp8", "magic"),
        ({"served": "trtllm", "weights": "int3"}, "bf16", "no bf16-int3 of trtllm is known; it has .*bf16-int4"),
        ({"served": "sglang"}, "bf16", "no bf16 of sglang"),
        ({"weights": "int4"}, "bf16", "goes with served"),
    ],
)
def test_a_format_that_a_library_lacks_is_refused_with_what_there_is(how, dtype, said):
    with pytest.raises(InputError, match=said):
        estimate(Gemm(16, 512, 512, dtype), "h100-sxm", SHORT, BenchmarkProtocol(**how))


def test_the_gemm_command_answers_as_python_does(tmp_path):
    file = tmp_path / "times.json"
    how = ["--dtype", "fp8", "--library", "trtllm", "--clock", "short", "--gpu", "b200", "--json", str(file)]
    result = CliRunner().invoke(predict, ["gemm", "16,7168,4096", *how])
    assert result.exit_code == 0, result.output
    assert "gemm_lowbit by trtllm-fp8: 80 % interval" in result.output
    ours = product("gemm.trtllm.fp8.blackwell").seconds * 1e6
    assert json.loads(file.read_text())["predictions"][0]["time_us"] == pytest.approx(ours)


STREAMED = [place for place in tables() if place.startswith("streaming.")]


def streamed(place, rows):
    _, name, op, architecture = place.split(".")
    return estimate(Streaming(op, rows, 4096, "fp16"), ON[architecture], SHORT, BenchmarkProtocol(served=name))


@pytest.mark.parametrize("place", STREAMED)
def test_a_small_operator_takes_its_launch_and_longer_with_more_tokens(place):
    found = streamed(place, np.array([1, 64, 4096, 65536]))
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert np.all(np.diff(found.seconds) > 0)
    assert found.seconds[0] == pytest.approx(found.parts["launch"][0], rel=0.05)


def test_an_operator_that_a_library_lacks_is_refused():
    with pytest.raises(InputError, match="no softmax of vllm is known; it has embedding"):
        estimate(Streaming("softmax", 64, 64), "h100-sxm", SHORT, BenchmarkProtocol(served="vllm"))


def test_the_command_takes_a_library_for_small_operators(tmp_path):
    file = tmp_path / "times.json"
    how = ["--library", "vllm", "--dtype", "fp16", "--clock", "short", "--json", str(file)]
    result = CliRunner().invoke(predict, ["op", "rmsnorm", "--shape", "rows=64,columns=4096", *how])
    assert result.exit_code == 0, result.output
    assert "small_operators by rmsnorm: 80 % interval" in result.output
    ours = streamed("streaming.vllm.rmsnorm.hopper", 64).seconds * 1e6
    assert json.loads(file.read_text())["predictions"][0]["time_us"] == pytest.approx(ours)
