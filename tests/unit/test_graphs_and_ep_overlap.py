"""CUDA graphs, EP overlap and delayed weight gradients as options of a plan: rules, effect, and every way to ask."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as command
from weft.core.errors import InputError, UnknownNameError
from weft.hardware import system
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.plan_text import changes, words
from weft.plan.launch import lacking, launch
from weft.step.clock import many, train
from weft.step.overlaps import resolve_framework
from weft.sweep.run import sweep_file

MODEL = load_model("qwen3-30b-a3b")
MACHINE = system("16xh200")
CORE, BRIDGE = framework("megatron-core"), framework("megatron-bridge-2026")
PLAN = TrainingPlan(pp=2, dp=8, ep=8, batch=128, sequence=4096, zero=1, schedule="interleaved:2", dispatcher="deepep")
OVERLAP = {"overlap_moe_expert_parallel_comm": True}
ALL = {**OVERLAP, "delay_wgrad_compute": True, "cuda_graph_impl": "full_iteration"}
COMMAND = (
    "step qwen3-30b-a3b --system 16xh200 --pp 2 --ep 8 --batch 128 --sequence 4096 --dispatcher deepep "
    "--schedule interleaved:2 --fidelity estimate"
)


def timed(used=CORE, **options):
    return train(MODEL, MACHINE, replace(PLAN, **options), used, fidelity="estimate")


def exposed(step):
    return step.parts.get("exposed ep", 0.0)


def test_each_option_takes_from_the_step_what_it_is_for():
    alone, graphs = timed(), timed(cuda_graph_impl="full_iteration")
    assert graphs.parts.get("launch gaps", 0.0) < alone.parts["launch gaps"]
    assert exposed(timed(**OVERLAP, cuda_graph_impl="full_iteration")) < 0.6 * exposed(graphs)


def test_graphs_of_more_modules_leave_fewer_launches():
    took = [
        timed(cuda_graph_impl="transformer_engine", cuda_graph_modules=modules).seconds
        for modules in (("moe_router",), ("attn", "moe_router", "moe_preprocess"))
    ]
    assert timed().seconds > took[0] > took[1] > timed(cuda_graph_impl="full_iteration").seconds


def test_delayed_weight_gradients_hide_what_the_pairs_of_operators_leave_exposed():
    """Slow dispatch and combine, longer than the operators that overlap each of them, but shorter than both passes."""
    slow = MACHINE.replace({"link.bandwidth": "60 GB/s"})

    def took(**options):
        plan = replace(PLAN, cuda_graph_impl="full_iteration", **options)
        return train(MODEL, slow, plan, CORE, fidelity="estimate")

    none, paired, delayed = took(), took(**OVERLAP), took(**OVERLAP, delay_wgrad_compute=True)
    assert none.seconds > paired.seconds > delayed.seconds
    assert exposed(none) > max(exposed(paired), exposed(delayed))


def test_a_framework_that_has_an_option_answers_alike_where_it_is_stated():
    assert timed(BRIDGE, **ALL).seconds == pytest.approx(timed(BRIDGE).seconds)
    off = {"overlap_moe_expert_parallel_comm": False, "cuda_graph_impl": "none"}
    assert timed(BRIDGE, **off).seconds == pytest.approx(
        timed(replace(BRIDGE, paired=False, delay_wgrad=False, graphs=())).seconds
    )


def test_graphs_keep_the_launches_of_dense_layers_from_the_host():
    """A host that spends 500 us on each operator."""
    eager = replace(framework("deepspeed-zero3"), launch=500e-6)
    plan = TrainingPlan(dp=8, batch=8, sequence=256)
    dense = load_model("llama-3-8b").replace({"layers": 4})

    def gaps(**options):
        found = train(dense, system("8xh100"), replace(plan, **options), eager, fidelity="estimate")
        return found.parts.get("launch gaps", 0.0)

    assert gaps() > gaps(cuda_graph_impl="local", cuda_graph_modules=("attn",)) > gaps(cuda_graph_impl="local")
    assert gaps(cuda_graph_impl="full_iteration") == 0.0


def test_plans_with_different_options_are_timed_together_as_each_alone():
    plans = [replace(PLAN, **options) for options in ({}, OVERLAP, ALL, {"cuda_graph_impl": "full_iteration"})]
    found = many(MODEL, MACHINE, plans, CORE)
    for plan, seconds in zip(plans, found.seconds, strict=True):
        assert seconds == pytest.approx(train(MODEL, MACHINE, plan, CORE, fidelity="estimate").seconds, rel=1e-9)
    assert len(set(found.seconds.round(6))) == len(plans)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cuda_graph_impl": "all"}, "implementation of CUDA graphs"),
        ({"cuda_graph_modules": ("attn",)}, "cuda_graph_impl is as the framework"),
        ({"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ("attn",)}, "is full_iteration"),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("attention",)}, "module of a layer"),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("moe_preprocess",)}, "without moe_router"),
        ({"overlap_moe_expert_parallel_comm": True, "ep": 1}, "ep is 1"),
        ({"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": True}, "turn that on"),
        ({"overlap_moe_expert_parallel_comm": "yes"}, "give True or False"),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_the_plan(options, words):
    with pytest.raises((InputError, UnknownNameError), match=words):
        replace(PLAN, **{"dispatcher": "", **options})


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("qwen3-30b-a3b", {"cuda_graph_impl": "local"}, "a whole layer .* attn,moe_router,moe_preprocess"),
        ("qwen3-30b-a3b", {"cuda_graph_impl": "local", "cuda_graph_modules": ("moe",)}, "the module moe"),
        ("llama-3-8b", {"cuda_graph_impl": "local", "cuda_graph_modules": ("moe_router",)}, "has no experts"),
        ("qwen3-30b-a3b", {"delay_wgrad_compute": True, "ep": 8}, "Megatron Core does not run them beside"),
    ],
)
def test_options_that_the_model_or_the_framework_cannot_follow_are_refused(model, options, words):
    with pytest.raises(InputError, match=words):
        weft.step(model, "8xh100", batch=8, sequence=1024, fidelity="estimate", **options)


def test_a_plan_says_its_options_in_words():
    assert "CUDA graphs of the full iteration, EP overlap, delayed weight gradients" in words(replace(PLAN, **ALL))
    assert changes(replace(PLAN, **OVERLAP), PLAN) == ["EP overlap"]


def answer(*more):
    found = CliRunner().invoke(command, [*COMMAND.split(), *more])
    assert found.exit_code == 0, found.output
    return found.output


def test_every_way_to_ask_gives_the_same_answer(tmp_path):
    flags = ["--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute", "--cuda-graph-impl", "full_iteration"]
    stated = {"pp": 2, "ep": 8, "batch": 128, "sequence": 4096, "dispatcher": "deepep", "schedule": "interleaved:2"}
    seconds = weft.step("qwen3-30b-a3b", "16xh200", fidelity="estimate", **stated, **ALL).seconds
    answer(*flags, "--json", str(tmp_path / "step.json"))
    assert json.loads((tmp_path / "step.json").read_text())["step_time_s"] == pytest.approx(seconds)
    against = [f"--against={flag.removeprefix('--')}=true" for flag in flags[:2]]
    assert f"{seconds:.3g}" in answer(*against, "--against", "cuda-graph-impl=full_iteration").splitlines()[0]
    assert weft.memory("qwen3-30b-a3b", "16xh200", **stated, **ALL).fits
    fixed = {**stated, **ALL, "tp": 1, "cp": 1, "micro_batch": 1, "zero": 1, "recompute": "none"}
    plan = {name: value for name, value in fixed.items() if name not in ("batch", "sequence")}
    found = weft.plan(
        "qwen3-30b-a3b", "16xh200", batch=128, sequence=4096, fix=plan, refine=0, framework="megatron-core"
    )
    assert found.best.step_time_s == pytest.approx(seconds)
    assert "--overlap-moe-expert-parallel-comm --delay-wgrad-compute" in found.best.command
    asked = {"run": "step", "model": "qwen3-30b-a3b", "system": "16xh200", "fidelity": "estimate", **stated, **OVERLAP}
    rows = sweep_file({**asked, "delay_wgrad_compute": True}, {"cuda_graph_impl": ["none", "full_iteration"]})
    assert [point["step_time_s"] for point in rows][1] == pytest.approx(seconds)


def test_a_launch_file_has_the_arguments_of_megatron_core():
    text = launch("megatron", MODEL, MACHINE, replace(PLAN, **ALL), CORE)
    assert "--cuda-graph-impl full_iteration --te-rng-tracker" in text
    assert "--overlap-moe-expert-parallel-comm --delay-wgrad-compute" in text
    assert "CUDA_DEVICE_MAX_CONNECTIONS=32" in text
    held = replace(PLAN, cuda_graph_impl="local", cuda_graph_modules=("attn", "moe_router"))
    assert "--cuda-graph-impl local --cuda-graph-modules attn moe_router" in launch(
        "megatron", MODEL, MACHINE, held, CORE
    )
    assert "cuda-graph" not in launch("megatron", MODEL, MACHINE, PLAN, CORE)
    assert "--overlap-moe-expert-parallel-comm --delay-wgrad-compute" in launch(
        "megatron", MODEL, MACHINE, PLAN, BRIDGE
    )


@pytest.mark.parametrize(
    ("launcher", "options", "words"),
    [
        ("megatron", {**OVERLAP, "schedule": "1f1b"}, "an interleaved schedule"),
        ("megatron", {**OVERLAP, "recompute": "full"}, "no full recomputation"),
        ("torchtitan", {"cuda_graph_impl": "full_iteration"}, "CUDA graphs"),
        ("deepspeed", OVERLAP, "do not overlap another micro-batch"),
    ],
)
def test_a_launcher_without_the_option_says_so(launcher, options, words):
    assert words in lacking(launcher, MODEL, replace(PLAN, **options))


def test_stated_options_replace_those_of_the_framework():
    stated = resolve_framework(BRIDGE, replace(PLAN, overlap_moe_expert_parallel_comm=True, cuda_graph_impl="none"))
    assert (stated.paired, stated.delay_wgrad, stated.graphs) == (True, False, ())
    assert resolve_framework(BRIDGE, PLAN) is BRIDGE
