"""One question has one answer: every command and function that can time the same work says the same."""

import json
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.options import SHORT, SUSTAINED
from weft.estimate import BenchmarkProtocol
from weft.estimate.errors import collective_error, gemm_error
from weft.graph import Collective, Graph, LibraryCollective, Node, concurrent
from weft.kernels.library.software import Residual
from weft.models import SubLayer
from weft.models.parallel import split
from weft.overlaps import OVERLAPS
from weft.plan.scale import AS_PLANNED
from weft.simulate import alone, compare
from weft.simulate.single import simulate
from weft.step.clock import train
from weft.step.durations import BETWEEN_OTHERS, OperatorTimes
from weft.step.overlaps import overlap_nodes, pairs
from weft.step.result.step import RESIDUAL
from weft.sweep.questions import StepQuestion
from weft.sweep.simulations import Bench

GPU = "h100-sxm"
SHAPE = (2048, 8192, 8192)
GEMM = weft.gemm(*SHAPE)
GATHER = weft.all_gather("64 MiB", 8)
SYSTEM = weft.system(GPU, gpus=8)
same = partial(pytest.approx, rel=1e-9)
PLAN = {"tp": 8, "pp": 2, "dp": 4, "batch": 64, "micro_batch": 1, "sequence": 4096, "sp": True}
MACHINE = "64xh100"


EXPLICIT = weft.RunOptions(mode="explicit")


def command(tmp_path, *arguments):
    """What a command writes as JSON."""
    file = tmp_path / "answer.json"
    done = CliRunner().invoke(cli, [*map(str, arguments), "--json", str(file)])
    assert done.exit_code == 0, done.output
    return json.loads(file.read_text())


@cache
def gemm_seconds():
    return float(weft.estimate(GEMM, GPU).seconds)


@pytest.mark.parametrize("clock", ["sustained", "short"])
def test_a_gemm_takes_as_long_by_command_as_by_function(tmp_path, clock):
    written = command(tmp_path, "predict", "gemm", ",".join(map(str, SHAPE)), "--gpu", GPU, "--clock", clock)
    seconds = float(weft.estimate(GEMM, GPU, weft.RunOptions(clock=clock)).seconds)
    assert written["predictions"][0]["time_us"] / 1e6 == same(seconds)


def test_a_gemm_is_of_the_same_format_and_clock_unless_told_otherwise(tmp_path):
    assert GEMM.dtype == weft.Gemm(*SHAPE).dtype == weft.Collective("all_gather", 1 << 20, 8).dtype == "bf16"
    assert gemm_seconds() == same(float(weft.estimate(GEMM, GPU, SUSTAINED).seconds))
    assert gemm_seconds() > float(weft.estimate(GEMM, GPU, SHORT).seconds)
    text = CliRunner().invoke(cli, ["predict", "gemm", "8,8,8", "--clock", "short"]).output
    assert "short runs" in text.strip().splitlines()[0]


def test_the_librarys_kernel_of_tiles_takes_as_long_as_the_gemm(tmp_path):
    found = weft.estimate(GEMM, GPU)
    written = command(tmp_path, "tiles", ",".join(map(str, SHAPE)), "--gpu", GPU)
    assert written["clock"] == "sustained"
    assert weft.tiles(GEMM, GPU).library.seconds + found.parts["launch"] == same(float(found.seconds))


def test_a_sweep_and_a_list_of_operators_time_a_gemm_alike():
    (point,) = weft.sweep(GEMM, GPU, by="estimate").points
    assert float(point.answer.seconds) == same(gemm_seconds())
    assert float(weft.estimate([GEMM], GPU).seconds) == same(gemm_seconds())


def test_the_engines_gemm_is_within_the_error_of_its_class():
    seconds = simulate(Graph((Node(GEMM, "gemm"),)), GPU, "in-order").makespan
    assert seconds == pytest.approx(gemm_seconds(), rel=gemm_error(GPU, seconds).value)


def test_a_collective_takes_as_long_by_command_as_by_function(tmp_path):
    written = command(tmp_path, "predict", "collective", "all_gather:64MiB", "--ranks", 8, "--system", "dgx-h100")
    assert written["predictions"][0]["time_us"] / 1e6 == same(float(weft.estimate(GATHER, "dgx-h100").seconds))


@pytest.mark.parametrize("size", ["1 MiB", "8 MiB", "64 MiB"])
def test_the_engines_collective_is_within_the_error_of_its_class(size):
    gather = weft.all_gather(size, 8)
    closed = float(weft.estimate(gather, SYSTEM).seconds)
    seconds = simulate(alone(gather), SYSTEM, "streams").makespan
    assert seconds == pytest.approx(closed, rel=2 * collective_error(GPU, "all_gather", gather.bytes).value)


def test_a_pair_is_one_question_for_simulate_and_advise(tmp_path):
    gemm, gather = weft.gemm(2048, 2048, 1024), weft.all_gather("8 MiB", 8)
    pair = ("--gemm", "2048,2048,1024", "--corun", "all_gather:8MiB", "--gpu", GPU)
    written = command(tmp_path, "simulate", "corun", *pair, "--overlap", "dma")
    task = Bench.of(GPU, 8).together(gemm, gather, "dma")
    advised = task.read(task.run())
    alike = compare(concurrent(gemm, gather), SYSTEM, ["dma"])["dma"]
    assert advised.makespan == alike.makespan
    assert written["runs"][0]["makespan_us"] / 1e6 == same(alike.makespan)


def test_a_gemm_behind_an_all_gather_takes_as_long_by_command_as_by_function(tmp_path):
    """N is that of all GPUs for the command, as for advise fuse; a graph has one GPU's."""
    whole = ("--gemm", "1024,1024,512", "--tp", 4, "--dtype", "fp16", "--form", "ag_gemm")
    written = command(tmp_path, "simulate", "sublayer", *whole)
    graph = weft.dependent("ag_gemm", weft.Gemm(1024, 256, 512, "fp16"), ranks=4)
    assert [run["overlap"] for run in written["runs"]] == ["t3-all-gather"]
    seconds = weft.simulate(graph, "t3-paper", "t3-all-gather").seconds
    assert written["runs"][0]["total_us"] / 1e6 == same(seconds)
    replayed = command(tmp_path, "replay", "t3-all-gather", "--gemm", "1024,1024,512", "--tp", 4)
    assert replayed["seconds"] == weft.simulate(graph, "t3-paper", "t3-all-gather", EXPLICIT).seconds


def test_a_sub_layer_takes_as_long_by_name_as_by_its_operators():
    graph = weft.sublayer("t-nlg", "fc2", tp=8)
    whole = float(weft.estimate("t-nlg/fc2", GPU, tp=8).seconds)
    assert whole == same(float(weft.estimate(graph, weft.system(GPU, gpus=8)).seconds))
    parts = [float(weft.estimate(node.op, weft.system(GPU, gpus=8)).seconds) for node in graph]
    assert whole == same(sum(parts))


def test_a_layer_attends_with_the_kernel_of_steps():
    assert any(node.name == "Attention" for node in weft.layer("llama-3-8b"))


def test_a_gemm_of_a_step_takes_as_long_as_alone_between_other_kernels():
    found = weft.roofline("llama-3-8b", "8xh100", tp=8, batch=8, sequence=4096)
    op = next(one for one in found.operators if one.name == "fc2" and one.direction == "forward")
    gemm = weft.gemm(4096, 4096, 14336 // 8)
    assert op.flops == gemm.flops
    assert op.seconds == same(float(weft.estimate(gemm, GPU, harness=BETWEEN_OTHERS).seconds))


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-bridge", "llama-3"])
def test_a_plan_takes_as_long_as_its_step(tmp_path, framework):
    fix = {name: PLAN[name] for name in ("tp", "pp", "micro_batch", "sp")}
    found = weft.plan("llama-3-70b", MACHINE, batch=64, sequence=4096, fix=fix, refine=0, framework=framework, top=3)
    for one in found.plans:
        step = weft.step("llama-3-70b", MACHINE, one.plan, framework=framework, fidelity="estimate")
        assert step.seconds == same(one.step_time_s)
        assert step.interval_s == same(one.interval_s)


def test_a_plan_without_a_framework_takes_as_long_as_its_step():
    found = weft.plan("llama-3-8b", "8xh100", batch=16, sequence=4096, refine=0, top=8)
    for one in found.plans:
        step = weft.step("llama-3-8b", "8xh100", one.plan, framework=one.setting.framework.name, fidelity="estimate")
        assert step.seconds == same(one.step_time_s)
        assert step.interval_s == same(one.interval_s)


def test_a_plan_that_hides_more_than_any_measured_step_has_the_wider_interval_of_its_step():
    fix, asked = {"tp": 8, "pp": 1, "zero": 3}, {"sequence": 4096, "framework": "torchtitan"}
    best = weft.plan("llama-3-8b", "64xh100", batch=16, fix=fix, refine=0, top=1, **asked).best
    step = weft.step("llama-3-8b", "64xh100", best.plan, framework="torchtitan", fidelity="estimate")
    assert step.hidden["dp"] > 0.4 * step.seconds
    assert best.error == step.error
    assert "beside data-parallel communication" in best.error.why


def test_a_plan_of_a_model_with_scans_has_the_interval_of_its_step():
    best = weft.plan("nemotron-h-8b", "8xh100", batch=32, sequence=4096, fix={"tp": 2}, refine=0, top=1).best
    step = weft.step("nemotron-h-8b", "8xh100", best.plan, framework=best.setting.framework.name, fidelity="estimate")
    assert best.error == step.error
    assert "scans of linear layers" in best.error.why


def test_a_step_takes_as_long_by_command_by_function_and_in_a_scaling(tmp_path):
    step = weft.step("llama-3-70b", MACHINE, fidelity="estimate", **PLAN)
    flags = ("--tp", 8, "--pp", 2, "--dp", 4, "--batch", 64, "--micro-batch", 1, "--sequence", 4096, "--sp")
    written = command(tmp_path, "step", "llama-3-70b", "--system", MACHINE, "--fidelity", "estimate", *flags)
    assert written["step_time_s"] == same(step.seconds)
    assert written["interval_80_s"] == same(list(step.interval_s))
    scaled = weft.scale("llama-3-70b", MACHINE, [1], methods=[AS_PLANNED], fidelity="estimate", **PLAN)
    assert scaled.points[0].step.seconds == same(step.seconds)


def test_no_framework_holds_a_clock_of_its_own():
    """The GEMMs of a forward pass take as long in every framework that multiplies in the same format."""
    plan = {"fidelity": "estimate", "tp": 8, "batch": 8, "sequence": 4096}
    taken = []
    for name in ("megatron-core", "megatron-bridge", "torchtitan", "llama-3"):
        step = weft.step("llama-3-8b", "8xh100", framework=name, **plan)
        (layer,) = {id(one): one for one in step.chunks[0].parts if one.name == "dense"}.values()
        taken.append(layer.forward.parts["gemm"])
    assert taken == [same(taken[0])] * 4


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_steps_take_beyond_their_kernels_is_a_part_of_its_own(recompute):
    """The kernels of a step take what they take where nothing is fitted to steps; the rest is the residual."""
    plan = {"batch": 2, "micro_batch": 1, "sequence": 4096, "recompute": recompute}
    step = weft.step("llama-3-8b", "1xh100-sxm-96gb", fidelity="estimate", **plan)
    plain = train(step.model, step.system, step.plan, step.framework, fidelity="estimate", calibration=Residual())
    assert {name: part for name, part in step.parts.items() if name != RESIDUAL} == same(dict(plain.parts))
    assert step.parts[RESIDUAL] == same(step.seconds - plain.seconds)


@pytest.mark.parametrize("method", ["sequential", "flux", "userbuffers", "async-tp"])
def test_an_overlap_method_gives_one_step_by_command_function_plan_scaling_and_sweep(tmp_path, method):
    plan = {"tp": 8, "batch": 8, "micro_batch": 1, "sequence": 4096}
    ask = {"framework": "megatron-core", "fidelity": "estimate"}
    step = weft.step("llama-3-8b", "8xh100", overlap=f"tp={method}", **ask, **plan)
    flags = [text for name, value in plan.items() for text in (f"--{name.replace('_', '-')}", value)]
    options = ("--framework", "megatron-core", "--fidelity", "estimate", "--overlap", f"tp={method}")
    written = command(tmp_path, "step", "llama-3-8b", "--system", "8xh100", *options, *flags)
    assert written["step_time_s"] == same(step.seconds)
    scaled = weft.scale("llama-3-8b", "8xh100", [1], methods=[method], **ask, **plan)
    assert scaled.points[0].step.seconds == same(step.seconds)
    question = StepQuestion(system="8xh100", model="llama-3-8b", overlap=f"tp={method}", **ask, **plan)
    assert float(question.answer().seconds) == same(step.seconds)
    fix = {"tp": 8, "sp": True, "micro_batch": 1, "overlap": f"tp={method}", "recompute": "none", "zero": 0}
    found = weft.plan(
        "llama-3-8b", "8xh100", batch=8, sequence=4096, fix=fix, refine=0, framework="megatron-core", top=1
    )
    assert found.plans[0].step_time_s == same(step.seconds)


@pytest.mark.parametrize("method", ["flux", "userbuffers", "async-tp", "priority"])
def test_a_pair_takes_as_long_by_command_as_by_function(tmp_path, method):
    asked = ("advise", "fuse", "--collective", "reduce_scatter", "--gemm", ",".join(map(str, SHAPE)), "--gpu", GPU)
    written = command(tmp_path, *asked, "--compare", method, "--fidelity", "estimate")
    found = weft.advise_fuse("gemm_rs", GEMM, 8, GPU, methods=[method], fidelity="estimate")
    assert [one["seconds"] for one in written["options"]] == [same(one.seconds) for one in found.options]


LLAMA = {"tp": 8, "sp": True, "zero": 3, "batch": 128, "micro_batch": 1}
METHODS = ("sequential", "flux", "userbuffers", "async-tp")


@pytest.mark.parametrize("form", ["ag_gemm", "gemm_rs"])
@pytest.mark.parametrize("method", METHODS)
def test_a_sub_layer_takes_as_long_in_a_step_as_advised(method, form):
    """The MLP of Llama 3 70B as `step` and `step_overlaps` time it under a method, and as `advise_fuse` does."""
    step = weft.step("llama-3-70b", MACHINE, overlap=f"tp={method}", fidelity="estimate", **LLAMA)
    system = weft.system(MACHINE)
    prices = OperatorTimes(system, step.plan, SUSTAINED)
    (layer,) = {id(part): part for part in step.chunks[0].parts if part.name == "dense"}.values()
    seconds, _, _ = overlap_nodes(layer.forward.graph, prices, method)
    found = [
        (gemm.op, seconds[gemm.name] + seconds[moved.name])
        for gemm, moved in pairs(layer.forward.graph)
        if (moved.op.name == "all_gather") == (form == "ag_gemm")
    ]
    gemm, both = max(found, key=lambda one: one[0].flops)
    whole = replace(gemm, n=gemm.n * 8) if form == "ag_gemm" else replace(gemm, k=gemm.k * 8)
    advised = weft.advise_fuse(form, whole, 8, weft.system("8xh100"), fidelity="estimate")
    assert both == same(advised.option(method).seconds)


def test_a_sub_layer_by_an_algorithm_takes_as_long_by_command_as_by_function(tmp_path):
    shape = ("--gemm", "1024,1024,4096", "--gpu", GPU, "--algorithm", "nvls")
    written = command(tmp_path, "simulate", "sublayer", *shape, "--compare", "sequential,t3-nvls")
    chosen = replace(OVERLAPS["sequential"], algorithm="nvls")
    found = compare(split(SubLayer.custom(1024, 1024, 4096), 8), SYSTEM, [chosen, "t3-nvls"])
    for run in written["runs"]:
        assert run["total_us"] / 1e6 == same(found[run["overlap"]].seconds)


@pytest.mark.parametrize("size", ["8 MiB", "64 MiB", "66.5 MiB", "512 MiB"])
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather"])
def test_a_collective_through_the_switch_takes_as_long_in_closed_form_as_in_the_engine(name, size):
    """No reduce-scatter through the switch is measured beside others; NCCL prefers rings for it."""
    op = Collective(name, size, 8)
    closed = weft.estimate(op, "dgx-h100", harness=BenchmarkProtocol(algorithm="nvls")).seconds
    engine = simulate(alone(op, kernel=LibraryCollective("nvls")), GPU, "streams").seconds
    assert closed == pytest.approx(engine, rel=0.16)


def test_half_an_all_reduce_through_the_switch_is_no_longer_than_the_whole():
    size = 2.0 ** np.arange(18, 33)
    whole, scatter, gather = (
        weft.estimate(Collective(name, size, 8), "dgx-h100", harness=BenchmarkProtocol(algorithm="nvls")).seconds
        for name in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert (scatter < whole).all()
    assert (gather < whole).all()
