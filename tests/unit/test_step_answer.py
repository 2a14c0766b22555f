"""What a training step answers: words, waterfall, memory, page, and traces that agree with it."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import pytest
from shown import check_shown

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.estimate.step_errors import FAR, MeasuredClass, Spread, classes, located, step_error
from weft.models.parallel.complete import complete, nearest
from weft.models.parallel.plan import TrainingPlan
from weft.step.result.step import plan_traits
from weft.view.memory import fitting, memory_curve
from weft.view.step import communication_table, layer_streams
from weft.view.step_trace import kernels, step_trace, write_step_trace
from weft.view.trace import trace_data

HTA_COMMUNICATION = re.compile(r"^nccl.*(AllReduce|AllGather|ReduceScatter|SendRecv|AllToAll)")
HIDDEN = "50 to 60 % of a step beside data-parallel communication"
NOT_COMPUTING = ("exposed", "bubble", "imbalance", "launch gaps", "calibration residual")


@pytest.fixture(scope="module")
def answer():
    return weft.step("gpt-3", "64xa100", tp=8, pp=8, batch=16, fidelity="estimate")


def test_a_step_is_plain_data_a_table_a_figure_and_a_page(answer, tmp_path):
    check_shown(answer, tmp_path)


def test_the_memory_of_a_step_is_plain_data_a_table_a_figure_and_a_page(answer, tmp_path):
    check_shown(answer.memory, tmp_path)


def test_the_waterfall_adds_up_to_the_step(answer):
    *parts, (name, time, share, _) = answer.report().tables()[0].rows
    assert name == "the step"
    assert sum(row[1] for row in parts) == pytest.approx(time) == pytest.approx(answer.seconds * 1e3)
    assert sum(row[2] for row in parts) == pytest.approx(share) == 1


def test_the_first_sentence_is_the_verdict(answer):
    first = answer.report().sentences()[0]
    assert f"{answer.tokens_per_s_per_gpu:,.0f} tokens/s per GPU" in first
    assert f"MFU {answer.mfu:.1%}" in first


def test_the_last_sentence_says_the_interval_and_what_it_rests_on(answer):
    assert answer.report().notes()[-1].startswith("Expected error: 80 % interval ")
    low, high = answer.interval_s
    assert 0 < low < high
    assert answer.to_dict()["interval_80_s"] == [low, high]
    assert answer.to_dict()["evidence"] == answer.error.why


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "mi300x"])
@pytest.mark.parametrize("framework", ["megatron-2022", "of-ours"])
@pytest.mark.parametrize("mixture", [False, True])
def test_every_step_has_an_interval_that_names_its_class(gpu, framework, mixture):
    found = step_error(weft.gpu(gpu), framework, mixture)
    assert 0 < found.low < found.high < 3
    assert "measured step" in found.why


@pytest.mark.parametrize("layers", ["dense", "mixture"])
def test_a_measured_class_names_its_rows(layers):
    for one in classes(layers):
        found = step_error(weft.gpu(one.gpu), one.framework, mixture=layers == "mixture")
        assert f"from {one.rows:,} measured step" in found.why
        assert f"with {one.framework} on {one.gpu}" in found.why
        assert "no measured step" not in found.why


def test_a_step_like_no_measured_one_says_so_and_names_the_nearest():
    near = step_error(weft.gpu("b200"), "megatron-bridge-ec2", mixture=True)
    assert "no measured step is like this one (models with experts with megatron-bridge-ec2 on b200)" in near.why
    assert "nearest 31 measured steps with megatron-bridge-ec2 on b300" in near.why
    here = step_error(weft.gpu("b200"), "of-ours", mixture=True)
    assert "nearest 10 measured steps with megatron-bridge on b200" in here.why


def test_an_interval_is_wider_the_less_is_measured():
    def width(gpu, framework):
        found = step_error(weft.gpu(gpu), framework)
        return math.log(found.high / found.low)

    own, other = width("a100-sxm-80gb", "megatron-deepspeed"), width("h100-sxm", "of-ours")
    assert own < other < width("mi300x", "of-ours")


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize(
    ("near", "far", "said"),
    [
        ({"gpus": 64}, {"gpus": 1 << 17}, "times as many as measured"),
        ({"precision": "bf16"}, {"precision": "int2"}, "has int2"),
        ({"traits": ["PP"]}, {"traits": ["PP", "2-D TP", "SP"]}, "has 2-D TP or SP"),
    ],
)
def test_an_interval_is_wider_for_a_scale_format_or_plan_that_no_measured_step_has(mixture, near, far, said):
    plain, alike, apart = (
        step_error(weft.gpu("h100-sxm"), "megatron-bridge", mixture, **how) for how in ({}, near, far)
    )
    assert alike == plain
    assert apart.low < plain.low < plain.high < apart.high
    assert said in apart.why
    assert "wider as" not in plain.why


def test_scales_and_formats_within_the_measured_ones_leave_the_interval_as_it_is():
    """Of megatron-bridge on H100 8 to 1,024 GPUs were measured, in bf16 and three formats of 8 bits."""
    known = step_error(weft.gpu("h100-sxm"), "megatron-bridge")
    for gpus in (1, 8, 8192):
        for precision in ("bf16", "fp8-delayed", "fp8-tensorwise"):
            assert step_error(weft.gpu("h100-sxm"), "megatron-bridge", False, gpus, precision) == known


def test_an_interval_is_wider_where_more_communication_is_hidden_than_in_any_measured_step():
    """FSDP of TP ranks on eight nodes moves weights for as long as it computes; measured steps lose most of that."""
    much, little = (
        weft.step("llama-3-70b", "64xh100", tp=tp, zero=3, batch=64, micro_batch=1, recompute="full", sequence=8192)
        for tp in (8, 1)
    )
    share = much.hidden["dp"] / much.seconds
    assert plan_traits(much.plan, much.model, share) == [*plan_traits(much.plan, much.model), HIDDEN]
    assert HIDDEN in much.error.why
    assert "wider as" not in little.error.why


def test_a_plan_found_has_the_interval_of_its_step():
    plans = weft.plan("llama-3-8b", "8xh100", batch=64, sequence=2048, fix={"precision": "fp8-block"}, refine=0)
    best = plans.best
    answer = weft.step("llama-3-8b", "8xh100", best.plan, framework=best.setting.framework, fidelity="estimate")
    assert answer.error == best.error


SPREAD = Spread(0.06, 0.03, 0.05, 0.08, (-1.28, 1.28), (-1.28, 1.28))


def measured(gpu, framework, mean, works=10):
    return MeasuredClass(gpu, framework, mean, works, works, (8, 64))


def test_a_class_without_rows_leans_towards_those_of_its_framework_and_gpu():
    known = [measured("a", "x", 0.2), measured("b", "y", 0.0), measured("c", "z", 0.0)]
    none, by_gpu, by_framework, own = (
        located(gpu, framework, known, SPREAD) for gpu, framework in [("d", "w"), ("a", "w"), ("d", "x"), ("a", "x")]
    )
    assert none[0] < by_gpu[0] < by_framework[0] < own[0] < 0.2
    assert none[1] > by_gpu[1] > by_framework[1] > own[1] > 0.08


def test_a_class_far_off_says_little_of_others():
    near, far = ([measured("a", "x", mean), measured("b", "y", 0.0)] for mean in (FAR, 0.9))
    assert located("c", "x", far, SPREAD) == located("c", "x", near, SPREAD)
    assert located("a", "x", far, SPREAD)[0] > located("a", "x", near, SPREAD)[0]


def test_the_ratio_of_two_steps_is_surer_than_either(answer):
    other = weft.step("gpt-3", "64xa100", tp=8, pp=8, batch=16, recompute="full", fidelity="estimate")
    ratio = answer.ratio_error(other)
    assert ratio.low * ratio.high == pytest.approx(1)
    assert ratio == other.ratio_error(answer)
    assert "pairs that differ in plan" in ratio.why


def test_a_ratio_over_vendors_is_less_sure_than_over_gpus(answer):
    here, there = (weft.step("gpt-3", system, tp=8, pp=8, batch=16) for system in ("64xh100", "64xmi300x"))
    same, across = answer.ratio_error(here), here.ratio_error(there)
    assert across.high > same.high
    assert "no measured step on a GPU of AMD" in across.why


def test_the_answer_has_the_keys_that_programs_read(answer):
    found = answer.to_dict()
    assert {"step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_bytes", "waterfall"} <= set(found)
    assert sum(found["waterfall"].values()) == pytest.approx(found["step_time_s"])


def test_hfu_counts_what_is_computed_again():
    plain, again = (
        weft.step("gpt-3", "64xa100", tp=8, pp=8, batch=16, recompute=how, fidelity="estimate")
        for how in ("none", "full")
    )
    assert plain.hfu == plain.mfu
    assert again.hfu / again.mfu == pytest.approx(4 / 3, rel=0.02)  # all layers once more; the head is not repeated


def test_mfu_follows_the_closed_form_of_the_papers(answer):
    """72 B s L h^2 (1 + s / 6h + V / 12hL): arXiv:2205.05198, appendix A."""
    model, plan = answer.model, answer.plan
    h, s, layers, v = model.hidden, plan.sequence, model.layers, model.vocabulary
    flops = 72 * plan.batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert answer.flops() == pytest.approx(flops, rel=2e-3)


def test_replicas_take_the_gpus_that_are_left(answer):
    plan, notes = complete(answer.model, 64, {"tp": 4, "pp": 4})
    assert (plan.dp, plan.sp, plan.sequence) == (4, True, answer.model.sequence_length)
    assert plan.micro_batches == 16
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"tp": 3, "pp": 8}, "the nearest plan that fills it is tp 4, pp 8, dp 2"),
        ({"tp": 8, "pp": 8, "dp": 4}, "ask for a system of 256 GPUs"),
        ({"tp": 8, "pp": 8, "batch": 3, "micro_batch": 2}, "give a multiple of 2"),
        ({"tp": 0}, "at least 1"),
    ],
)
def test_an_impossible_plan_is_one_sentence_with_the_nearest_one(answer, stated, words):
    with pytest.raises(InputError, match=words) as found:
        complete(answer.model, 64, stated)
    assert "\n" not in str(found.value)


def test_an_unknown_field_of_a_plan_names_its_neighbour():
    with pytest.raises(UnknownNameError, match="did you mean 'micro_batch'"):
        weft.step("gpt-3", "64xa100", micro_batches=4)


def test_a_plan_and_its_fields_are_not_given_together():
    plan = TrainingPlan(tp=8, pp=8)
    with pytest.raises(InputError, match="tp belong to the plan"):
        weft.step("gpt-3", "64xa100", plan, tp=4)


@pytest.mark.parametrize(("gpus", "asked"), [(64, (3, 8, 1)), (96, (5, 7, 2)), (7, (2, 2, 1)), (1, (8, 8, 8))])
def test_the_nearest_plan_fills_the_gpus(gpus, asked):
    tp, pp, cp = nearest(gpus, *asked)
    assert gpus % (tp * pp * cp) == 0


def test_memory_that_does_not_fit_says_by_how_much_and_what_would():
    found = weft.memory("gpt-3", "16xa100", tp=8, pp=1, batch=2)
    assert not found.fits
    assert "Does not fit" in fitting(found)
    assert f"{found.peak / 1e9 - found.capacity / 1e9:.1f} GB above" in fitting(found)


def test_an_optimizer_that_exceeds_the_memory_is_timed_and_said_not_to_fit():
    found = weft.step("gpt-3", "8xa100", tp=8, batch=1, zero=0, fidelity="estimate")
    assert not found.memory.fits
    first, second, *_ = found.report().sentences()
    assert first.startswith("GPT-3 on 8 GPUs does not fit: peak ")
    assert second.startswith("A step would take ")


def test_communication_is_hidden_or_exposed(answer):
    for _, busy, hidden, exposed, _, gain in communication_table(answer).rows:
        assert hidden + exposed == pytest.approx(busy)
        assert gain >= 1


def test_a_layer_shows_its_streams(answer):
    (table,) = layer_streams(answer).data.values()
    assert set(table.column("stream")) == {"compute", "tp"}


@pytest.fixture(scope="module")
def sharded_over_replicas():
    return weft.step("llama-3-8b", "16xh100", zero=3, recompute="full", batch=32, fidelity="estimate")


def test_a_sharded_layer_is_drawn_with_what_gathers_and_scatters_beside_it(sharded_over_replicas):
    (table,) = layer_streams(sharded_over_replicas).data.values()
    moved = [row for row in table.records() if row["stream"] == "dp"]
    assert {row["kind"] for row in moved} == {"all-gather", "reduce-scatter"}
    assert all(0 <= row["start_ms"] < row["end_ms"] for row in moved)


def test_the_curve_of_memory_reaches_the_end_of_the_step_and_the_peak(answer, sharded_over_replicas):
    for one in (answer, sharded_over_replicas):
        (table,) = memory_curve(one).data.values()
        assert max(sum(row[2:]) for row in table.rows) == pytest.approx(one.memory.peak / 1e9)
        assert table.column("time_s")[-1] == table.column("until_s")[-1] == one.seconds


def test_a_schedule_without_backward_passes_trains_nothing():
    with pytest.raises(InputError, match="'inference' has no backward passes; train with another one"):
        weft.step("gpt-3", "64xa100", tp=8, pp=8, batch=64, schedule="inference", fidelity="estimate")


@pytest.fixture(scope="module")
def sharded():
    return weft.step("llama-3-8b", "32xh100", zero=3, batch=32, sequence=2048, fidelity="estimate")


@pytest.fixture(scope="module")
def fused():
    return weft.step("gpt-3", "64xa100", tp=8, pp=8, batch=8, overlap={"tp": "t3-mca"}, fidelity="estimate")


@pytest.mark.parametrize(
    ("name", "device"), [("answer", 0), ("answer", 3), ("answer", 7), ("sharded", 0), ("fused", 1)]
)
def test_a_trace_agrees_with_the_step_on_every_second(request, name, device):
    answer = request.getfixturevalue(name)
    found = list(kernels(answer, device))
    computing = sum(kernel.end - kernel.start for kernel in found if kernel.stream == "compute")
    parts = answer.rank_parts(device)
    assert computing == pytest.approx(sum(time for name, time in parts.items() if not name.startswith(NOT_COMPUTING)))
    assert max(kernel.end for kernel in found) <= answer.seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "device", "stream"), [("answer", 2, "tp"), ("sharded", 0, "compute"), ("sharded", 0, "dp")]
)
def test_kernels_of_one_stream_never_overlap(request, name, device, stream):
    for each in ("compute", stream):
        found = kernels(request.getfixturevalue(name), device)
        mine = sorted((k.start, k.end) for k in found if k.stream == each)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(mine))


def test_a_trace_shows_the_gathering_of_weights_beside_computing(sharded):
    moved = [k for k in kernels(sharded, 0) if k.stream == "dp"]
    assert {k.name for k in moved} >= {"ncclDevKernel_AllGather_RING", "ncclDevKernel_ReduceScatter_RING"}
    hidden, exposed = sharded.work(0).hidden["dp"], sharded.parts["exposed dp"]
    assert sum(k.end - k.start for k in moved) == pytest.approx(hidden + exposed, rel=1e-3)


def test_a_trace_has_one_file_per_stage_with_its_rank_in_the_first_line(answer, tmp_path):
    files = write_step_trace(answer, tmp_path / "t.json")
    assert [file.name for file in files] == [f"t_rank{8 * device}.json" for device in range(8)]
    data = json.loads(files[1].read_text())
    assert data["distributedInfo"] == {"backend": "nccl", "rank": 8, "world_size": 64}
    assert re.search(r'"rank":\s+(\d+)', files[1].read_text().splitlines()[0])


def test_only_communication_is_named_after_nccl(answer):
    events = [event for event in trace_data(step_trace(answer, 1))["traceEvents"] if event.get("cat") == "kernel"]
    communication = {event["args"]["stream"] for event in events if HTA_COMMUNICATION.match(event["name"])}
    assert communication == {20, 24}
    assert {event["args"]["stream"] for event in events} - communication == {7}


def test_every_kernel_of_a_step_has_its_launch(answer):
    events = trace_data(step_trace(answer))["traceEvents"]
    launched = [event["args"]["correlation"] for event in events if event.get("cat") == "cuda_runtime"]
    assert launched == [event["args"]["correlation"] for event in events if event.get("cat") == "kernel"]


def test_a_long_trace_unfolds_only_the_first_micro_batches(answer):
    whole, short = list(kernels(answer, 0)), list(kernels(answer, 0, most=2000))
    assert len(short) < 2500 < len(whole)
    assert short[-1].end == whole[-1].end
    assert any("not unfolded" in kernel.name for kernel in short)
