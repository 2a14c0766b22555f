"""Experts of a layer in closed form: loads, formats, libraries, and that a step asks the same form."""

import gzip
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft import Routing
from weft.cli.predict import predict
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.estimate.experts import TILES, ExpertRows, Experts, Grouped, experts, time_grouped
from weft.estimate.target import BenchmarkProtocol, target
from weft.graph import GroupedGemm
from weft.kernels.library.kits import KITS
from weft.kernels.library.served import EXPERT_FORMATS, libraries, tables
from weft.lab.experts import draw_load
from weft.lab.left_out import formats_left_out
from weft.models import block, load_model
from weft.models.block import FusionStyle, Tokens
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.rank import part
from weft.serving.step_times import Shape, StepTimes
from weft.step.durations import DurationCache
from weft.step.forward import Forward

STEP = BenchmarkProtocol(rotation=math.inf, after_others=True)


def layer(tokens=4096, loads=(), dtype="bf16", ranks=8, hidden=2048, ffn=768):
    return Experts(Routing(tokens, 8, 128, ranks, loads), hidden, ffn, dtype)


def test_an_expert_pads_its_rows_to_whole_tiles_of_its_own():
    load = ExpertRows.of([129, 1, 0, 128])
    assert dict(zip(TILES, load.blocks.tolist(), strict=True)) == {16: 18, 32: 10, 64: 6, 128: 4}
    assert (load.rows, load.busiest, load.active) == (258, 129, 3)


@pytest.mark.parametrize(("rows", "groups", "busiest"), [(1024, 8, 0), (1024, 8, 576), (3, 8, 0), (8, 8, 8)])
def test_a_shared_load_is_that_of_its_counts(rows, groups, busiest):
    if busiest:
        counts = [busiest] + [(rows - busiest) / (groups - 1)] * (groups - 1)
    else:
        counts = [max(rows / groups, 1)] * min(rows, groups)
    shared, of = ExpertRows.share_evenly(rows, groups, busiest), ExpertRows.of(counts)
    assert float(shared.rows) == of.rows
    assert shared.busiest == of.busiest
    assert shared.blocks[-1] == pytest.approx(of.blocks[-1], rel=0.5)


def test_steps_price_experts_as_predict_experts_does():
    """Qwen3-30B shared by eight H100s: the grouped GEMMs of a rank's forward pass, at the clock of long runs."""
    model, plan = load_model("qwen3-30b-a3b"), TrainingPlan(dp=8, ep=8, batch=8, micro_batch=1, sequence=4096)
    pieces = tuple(block.layer(model, model.layer_kinds[-1], Tokens(1, 4096), FusionStyle(), "bf16"))
    ops = [node.op for node in part("layer", pieces, plan, Framework()).forward if isinstance(node.op, GroupedGemm)]
    known, asked = DurationCache(weft.system("8xh100"), RunOptions()), experts(layer(), "h100-sxm")
    for name, op in zip(("fc1", "fc2"), ops, strict=True):
        assert known.seconds((op, None, "cu")) == pytest.approx(asked.operators[name].seconds, rel=1e-9)


def test_a_graph_of_experts_has_the_same_grouped_gemms():
    routing = Routing(4096, 8, 128, 8)
    found = weft.estimate(weft.experts(routing, 2048, 768), "8xh100", harness=STEP)
    asked = experts(Experts(routing, 2048, 768), "h100-sxm")
    assert found.operators["up"].seconds == pytest.approx(asked.operators["fc1"].seconds)
    assert found.operators["down"].seconds == pytest.approx(asked.operators["fc2"].seconds)


def test_grouped_gemms_of_small_experts_take_what_one_h100_was_measured_on():
    """128 experts of 512 rows, 1536 x 2048, alone: tests/published/test_measured_h100.py has all eight rows."""
    found = experts(Experts(Routing(8192, 8, 128, 1), 2048, 768), "h100-sxm", options=RunOptions())
    assert found.operators["fc1"].seconds == pytest.approx(636.8e-6, rel=0.15)


@pytest.mark.parametrize("name", [*libraries("experts")])
def test_uneven_loads_never_cost_less(name):
    places = [("bf16", "h100-sxm")] if name == "grouped" else []
    for place in tables():
        _, of, *rest = place.split(".")
        gpu = {"hopper": "h100-sxm", "blackwell": "b200"}.get(rest[-1])
        places += [(rest[0], gpu)] if of == name and gpu and place.startswith("experts.") else []
    kind, gpu = places[0]
    loads = tuple((np.arange(1, 129) ** -0.5).tolist())
    even, uneven = (experts(layer(loads=of, dtype=kind), gpu, name).seconds for of in ((), loads))
    assert uneven >= even * 0.999


def test_few_tokens_are_bound_by_the_weights_of_active_experts():
    found = experts(layer(tokens=16), "h100-sxm")
    moved = 16 * 3 * 2048 * 768 * 2
    assert found.operators["fc1"].bound == "memory"
    assert found.seconds > moved / weft.gpu("h100-sxm").memory.bandwidth


def test_weights_of_four_bits_take_less_than_those_of_sixteen_where_memory_bounds():
    wide, narrow = (experts(layer(tokens=16, dtype=kind), "b200", "sglang-trtllm") for kind in ("bf16", "bf16-mxfp4"))
    assert narrow.seconds < wide.seconds


def test_parts_add_up():
    for name in ("grouped", "trtllm", "vllm-triton"):
        found = experts(layer(), "h100-sxm", name)
        assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_experts_of_amd_gpus_go_by_a_batch_of_gemms():
    found = experts(layer(), "mi300x")
    op = GroupedGemm(16, 32768, 1536, 2048, busiest=2048)
    assert found.operators["fc1"].seconds == pytest.approx(weft.estimate(op, "mi300x", harness=STEP).seconds)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: layer(dtype="fp9"), UnknownNameError, "unknown format of experts 'fp9'"),
        (lambda: experts(layer(), "h100-sxm", "magic"), UnknownNameError, "unknown library of experts 'magic'"),
        (lambda: experts(layer(dtype="nvfp4"), "h100-sxm"), InputError, "no matrix rate for 'nvfp4'"),
        (lambda: experts(layer(), "b200", "trtllm-deepgemm"), InputError, "no bf16 of trtllm-deepgemm is known"),
        (lambda: experts(layer(), "mi300x", "trtllm"), InputError, "architecture 'cdna3'"),
    ],
)
def test_what_cannot_be_predicted_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_predict_experts_says_what_imbalance_costs(tmp_path):
    file = tmp_path / "experts.json"
    asked = "experts 512x2048x768,top8/128 --ep 8 --gpu h100-sxm --expert-load power:0.5 --json"
    result = CliRunner().invoke(predict, [*asked.split(), str(file)])
    assert result.exit_code == 0, result.output
    assert "x the mean load, which costs" in result.output
    (case,) = json.loads(file.read_text())["predictions"]
    assert case["time_us"] > case["even_us"]
    assert case["fc1_us"] + case["fc2_us"] < case["time_us"]


HEAD = "gpu,fw,op,kernel,dtype,tokens,hidden,inter,topk,experts,moe_tp,moe_ep,distribution,num_slots,time_s"


def _seconds(tokens, dtype, gpu):
    kind = {"bfloat16": "bf16", "fp8": "fp8"}[dtype]
    what = Experts(Routing(tokens // 8, 8, 128, 8), 2048, 768, kind)
    return experts(what, gpu, "trtllm", options=RunOptions(clock="short"), rotation=1.0).seconds


def test_rows_of_experts_are_read_and_formats_left_out_of_the_fit(tmp_path):
    sizes = (64, 512, 1024, 4096, 16384)
    rows = [
        f"h100_sxm,trtllm,moe,moe_torch_flow_cutlass,{dtype},{tokens},2048,768,8,128,1,8,balanced,,"
        f"{_seconds(tokens, dtype, 'h100-sxm')}"
        for dtype in ("bfloat16", "fp8")
        for tokens in sizes
    ]
    rows.append("h100_sxm,trtllm,moe,magic,fp8,64,2048,768,8,128,1,8,balanced,,0.001")
    (tmp_path / "moe_kernels.csv.gz").write_bytes(gzip.compress("\n".join([HEAD, *rows, ""]).encode()))
    found = weft.validate(tmp_path / "moe_kernels.csv.gz", kinds=["experts"])
    assert found.rows_used == 2 * len(sizes)
    assert any("'magic'" in text for text in found.complaints())
    assert max(group.errors.mean_abs_err for group in found.groups()) < 0.01
    left = formats_left_out([one.subject for one in found.predictions])
    assert sum(len(one.subject) for one in left) == 2 * len(sizes)


@pytest.mark.parametrize("how", ["balanced", "power_law_1.01", "power_law_1.2", "power_law_1.2_eplb"])
def test_drawn_loads_hold_every_row_and_none_above_all_tokens(how):
    load = draw_load(1024, 8, 256, 1, how, 288 if how.endswith("eplb") else 256)
    assert float(load.rows) == pytest.approx(8 * 1024)
    assert load.busiest <= 1024
    busiest = draw_load(1024, 8, 256, 16, how, 288)
    assert 8 * 1024 / 16 * 0.99 <= float(busiest.rows) <= 8 * 1024


def _served(dtype, gpu, of, tokens=64, **routing):
    what = Experts(Routing(tokens, 8, 128, 1, **routing), 2048, 768, dtype)
    return experts(what, gpu, of, options=RunOptions(clock="short"))


def test_sglang_streams_mxfp4_weights_as_16_bits_and_vllm_as_4():
    """SGLang's Triton converts them when it loads a model: bytes of bf16, 3.8 times those of MXFP4."""
    ratios = [
        _served("bf16-mxfp4", "h100-sxm", of).parts["memory"] / _served("bf16", "h100-sxm", of).parts["memory"]
        for of in ("sglang-triton", "vllm-triton")
    ]
    assert ratios[0] > 0.7
    assert ratios[1] < 0.7


def test_sums_of_scaled_blocks_are_added_on_vector_units():
    """Each costs an instruction a sum of 128 products: as a main loop of the same rate, that much longer."""
    machine = target("h100-sxm", RunOptions(clock="short"))
    what = Grouped(ExpertRows.share_evenly(128 * 1024, 128), 4096, 4096, EXPERT_FORMATS["fp8-block"])
    own = {"peak": 1.0, "begin": 0.0, "memory": 1.0}
    plain, promoted = (sum(time_grouped(what, machine, own | {"promoted": each}).values()) for each in (0, 1))
    tiles, gpu = 128 * 1024 / 128 * 32 * 32, machine.gpu
    added = tiles * 128 * 128 / (gpu.vector_lanes * gpu.compute.clock) / gpu.compute.compute_units
    assert promoted - plain == pytest.approx(added, rel=0.02)


def test_a_format_left_out_takes_the_same_kernels_of_another_library(tmp_path):
    """SGLang's untuned CUTLASS in bf16 by vLLM's in FP8."""
    rows = [
        f"h100_sxm,{fw},moe,{kernel},{dtype},{tokens},2048,768,8,128,1,8,balanced,,"
        f"{_seconds(tokens, dtype, 'h100-sxm')}"
        for fw, kernel, dtype in (
            ("sglang", "sglang_flashinfer_cutlass_moe", "bfloat16"),
            ("vllm", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "fp8"),
        )
        for tokens in (64, 512, 1024, 4096, 16384)
    ]
    (tmp_path / "moe_kernels.csv.gz").write_bytes(gzip.compress("\n".join([HEAD, *rows, ""]).encode()))
    found = weft.validate(tmp_path / "moe_kernels.csv.gz", kinds=["experts"])
    left = formats_left_out([one.subject for one in found.predictions])
    assert sum(len(one.subject) for one in left) == 10


def test_shared_slots_spread_a_power_law():
    uneven, spread = (draw_load(4096, 8, 256, 16, how, 288) for how in ("power_law_1.2", "power_law_1.2_eplb"))
    assert spread.rows < uneven.rows


@pytest.mark.parametrize(
    ("gpu", "dtype", "framework", "of", "kind"),
    [
        ("h100-sxm", "bf16", "vllm", "vllm-triton", "bf16"),
        ("h200", "fp8-block", "sglang", "sglang-triton", "fp8-block"),
        ("b200", "nvfp4", "vllm", "vllm-trtllm", "nvfp4"),
        ("b200", "fp8-block", "trtllm", "sglang-trtllm", "fp8-block"),
    ],
)
def test_a_served_step_takes_its_experts_as_they_are_predicted(gpu, dtype, framework, of, kind):
    """A prompt, a step of a server and `weft predict experts` time one layer alike, slices on two GPUs."""
    read = weft.prefill(
        "qwen3-30b-a3b", f"2x{gpu}", weft.ServingPlan(tp=2, dtype=dtype, library=framework), sequence=4096
    )
    forward = Forward(
        load_model("qwen3-30b-a3b"), weft.system(f"2x{gpu}"), weft.ServingPlan(tp=2, dtype=dtype, library=framework)
    )
    served = StepTimes(forward).parts(Shape(prefills=1, new=4096, pairs=4096 * 4097 // 2))
    alone = experts(Experts(Routing(4096, 8, 128, 1), 2048, 384, kind), gpu, of).seconds
    assert read.parts["grouped_gemm"] == pytest.approx(48 * alone)
    assert served["grouped_gemm"] == pytest.approx(48 * alone)


def test_a_rank_of_a_server_holds_one_slice_of_each_expert():
    """The ranks' slices of the weights add up to the experts: neither GEMM is cut twice."""
    model = load_model("qwen3-30b-a3b")
    graphs = [Forward(model, weft.system(f"{tp}xh200"), weft.ServingPlan(tp=tp))._parts(4096)["moe"] for tp in (1, 4)]
    whole, slices = ([node.op for node in graph if isinstance(node.op, GroupedGemm)] for graph in graphs)
    weights = [[op.groups * op.n * op.k for op in ops] for ops in (whole, slices)]
    assert [4 * each for each in weights[1]] == weights[0] == [128 * 1536 * 2048, 128 * 2048 * 768]


def test_a_shared_expert_is_part_of_the_call_and_its_sum_is_the_only_one():
    found = weft.decode("deepseek-v3", "8xh200", weft.ServingPlan(tp=8, dtype="fp8-block", library="sglang"), batch=16)
    apart = weft.decode("deepseek-v3", "8xh200", weft.ServingPlan(tp=8, dtype="fp8-block"), batch=16)
    assert found.parts["exposed tp"] < apart.parts["exposed tp"]
    layer = Forward(
        load_model("deepseek-v3"), weft.system("8xh200"), weft.ServingPlan(tp=8, dtype="fp8-block", library="sglang")
    )
    names = [node.name for node in layer._parts(16)["moe"]]
    assert [name for name in names if name.endswith(".reduce")] == ["projection.reduce", "unpermute.reduce"]
    assert not any(name.startswith("shared_") for name in names)


def test_slices_of_experts_of_an_unknown_format_are_the_vendors():
    assert KITS["sglang"].experts_on("hopper", "fp8") == ("", "")
    assert KITS["vllm"].experts_on("hopper", "fp8") == ("vllm-triton", "fp8-block")
    assert KITS["vllm"].experts_on("blackwell", "mxfp4") == ("vllm-trtllm", "fp8-mxfp4")
