"""Whose defaults a step has, what is in force of them, options without effect, and steps that do not fit."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import weft
from weft.cli.catalogues import FRAMEWORK_FIELDS
from weft.cli.main import weft as command
from weft.core.contrast import Contrast
from weft.hardware import gpu
from weft.models.parallel.framework import Framework, current_frameworks, framework, frameworks
from weft.models.parallel.plan import TrainingPlan
from weft.view.plans import framework_sentence

FLASH = "recompute selective has no effect"


def run(text):
    found = CliRunner().invoke(command, text.split())
    assert found.exit_code == 0, found.output
    return found.output


def step(*arguments, **options):
    return weft.step(*arguments, fidelity="estimate", **options)


def test_the_framework_and_what_is_in_force_of_it_stand_in_the_first_lines():
    told = run(
        "step qwen3-30b-a3b --system 64xh200 --ep 8 --batch 64 --recompute full --fidelity estimate"
    ).splitlines()[1]
    assert told.startswith("Framework megatron-core (the default; ")
    assert "ZeRO 1, dispatch by nccl, no EP overlap, no CUDA graphs" in told
    assert told.endswith("sequences of 40,960 tokens, the model's context.")
    memory = run("memory llama-3-8b --system 8xh100 --zero 3 --batch 16 --sequence 4096").splitlines()[1]
    assert memory == "Framework torchtitan (the default; 'weft frameworks list' has others)."


def test_what_was_stated_is_not_said_again():
    plan = TrainingPlan(ep=8, dp=8, batch=8, dispatcher="deepep", cuda_graph_impl="none")
    assert framework_sentence(framework("megatron-core"), plan, ()) == "Framework megatron-core: no EP overlap."


def test_an_option_without_effect_says_so_in_step_memory_and_python():
    asked = {"tp": 8, "batch": 128, "sequence": 2048}
    for found in (weft.step, weft.memory):
        (note,) = (one for one in found("llama-3-70b", "64xh100", recompute="selective", **asked).notes if FLASH in one)
        assert "FlashAttention keeps no scores" in note
        assert not any(FLASH in one for one in found("llama-3-70b", "64xh100", recompute="full", **asked).notes)
    shown = run("memory llama-3-70b --system 64xh100 --tp 8 --batch 128 --sequence 2048 --recompute selective")
    assert FLASH in shown
    assert any(
        FLASH in note
        for note in weft.memory("llama-3-70b", "64xh100", recompute="selective", **asked).to_dict()["notes"]
    )


def test_selective_recomputation_has_an_effect_where_scores_are_kept():
    asked = {"tp": 8, "batch": 128, "sequence": 2048, "framework": "megatron-2022", "recompute": "selective"}
    assert not any("no effect" in note for note in weft.memory("llama-3-70b", "64xh100", **asked).notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shard": 8, "zero": 3, "recompute": "full"}, "shard 8 has no effect"),
        ({"cuda_graph_impl": "full_iteration"}, "cuda_graph_impl full_iteration has no effect"),
        ({"sp": False}, None),
        ({"zero": 1}, None),
        ({"zero": 2}, None),
    ],
)
def test_options_are_held_against_the_step_without_them(options, words):
    notes = [
        note for note in step("llama-3-8b", "8xh100", batch=16, sequence=2048, **options).notes if "effect" in note
    ]
    assert [note.startswith(words) for note in notes] == [True] if words else notes == []


def test_a_schedule_known_for_its_overlap_says_what_hides_the_exchange():
    asked = {"pp": 4, "ep": 8, "batch": 1024, "sequence": 1024, "schedule": "dualpipe"}
    assert any("hides no MoE dispatch" in note for note in step("deepseek-v3", "256xh100", **asked).notes)
    for more in ({"framework": "deepseek"}, {"overlap_moe_expert_parallel_comm": True}):
        assert not any("hides no MoE" in note for note in step("deepseek-v3", "256xh100", **asked, **more).notes)


def test_a_step_that_does_not_fit_says_so_before_any_time():
    asked = "step mixtral-8x7b --system 8xh100 --ep 8 --fidelity estimate"
    told = run(asked)
    assert told.startswith("Mixtral 8x7B on 8 GPUs does not fit: peak ")
    assert "takes" not in told.splitlines()[0]
    assert told.splitlines()[1].startswith("A step would take ")
    against = run(f"{asked} --against recompute=full").splitlines()
    assert against[0].startswith("As asked it does not fit: ")
    assert against[1].startswith("With recompute full it does not fit: ")
    assert "would take" in against[2]


def test_a_framework_that_does_not_run_like_this_on_the_gpu_says_so():
    asked = {"ep": 8, "batch": 64, "sequence": 1024, "framework": "megatron-bridge-2026"}
    assert any(
        "does not run like this here: it is for GPUs that" in note
        for note in step("qwen3-30b-a3b", "8xh200", **asked).notes
    )
    assert any("8 or 4 bits" in note for note in step("qwen3-30b-a3b", "8xb200", **asked).notes)
    notes = step("qwen3-30b-a3b", "8xb200", precision="mxfp8", **asked).notes
    assert not any("does not run like this" in note for note in notes)


def test_frameworks_are_listed_and_shown_like_the_other_lists():
    listed, shown = run("frameworks list"), run("frameworks show megatron-bridge-2026")
    assert all(name in listed for name in frameworks())
    assert "full_iteration" in shown
    assert "Source: NVIDIA-NeMo/Megatron-Bridge" in shown
    help_page = " ".join(run("step --help").split())
    assert all(name in help_page for name in current_frameworks())
    assert (
        "ZeRO stage: shard over replicas optimizer states (1), gradients (2), weights (3, FSDP); Megatron Core's "
        in help_page
    )


def test_what_is_shown_of_a_framework_are_its_fields():
    known = {field.name for field in fields(Framework)} | {"reduce_dtype"}
    assert FRAMEWORK_FIELDS.keys() <= known


def test_current_frameworks_run_on_the_gpus_that_they_are_for():
    amd, hopper, blackwell = gpu("mi300x"), gpu("h200-sxm"), gpu("b200")
    fitting = {
        one.name: [name for name in current_frameworks() if not framework(name).unlike(one, "mxfp8")]
        for one in (amd, hopper, blackwell)
    }
    assert fitting["mi300x"] == ["megatron-core", "torchtitan"]
    assert "megatron-bridge-2026" not in fitting["h200-sxm"]
    assert "megatron-bridge-2026" in fitting["b200"]
    assert replace(framework("megatron-core"), low=True).unlike(amd, "")


def test_a_step_says_what_the_fastest_of_todays_other_frameworks_would_take():
    """On Blackwell in 8 bits, the host launches nothing under Megatron-Bridge 0.5."""
    asked = {"ep": 8, "batch": 64, "sequence": 4096, "precision": "mxfp8"}
    found = step("qwen3-30b-a3b", "8xb200", **asked)
    assert found.elsewhere.keys() == {"megatron-bridge", "megatron-bridge-2026"}
    named = step("qwen3-30b-a3b", "8xb200", framework="megatron-bridge-2026", **asked)
    assert found.elsewhere["megatron-bridge-2026"] == pytest.approx(named.seconds, rel=1e-6)
    assert "As megatron-bridge-2026 runs it, a step takes " in found.report().sentences()[1]
    assert named.elsewhere == {}
    assert step("qwen3-30b-a3b", "8xb200", compare=False, **asked).elsewhere == {}


def test_a_framework_within_the_interval_is_named_only_if_much_faster():
    """The interval of a mixture under Megatron Core reaches further below the time than that of a dense model."""
    dense = step("llama-3-8b", "8xh100", batch=16, sequence=2048)
    mixture = step("qwen3-30b-a3b", "8xh200", ep=8, batch=64, sequence=4096)
    assert mixture.error.low < 1 / 1.15
    assert 1 / 1.15 < dense.error.low < 1 / 1.02
    for found, gain, told in ((dense, 1.02, False), (dense, 1.15, True), (mixture, 1.15, False), (mixture, 1.3, True)):
        one = replace(found, elsewhere={"megatron-bridge": found.seconds / gain})
        assert ("As megatron-bridge runs it, a step takes" in one.report().sentences()[1]) == told


def test_a_change_says_what_it_gains_by_todays_fastest_frameworks():
    """Under Megatron Core the host holds up 8 bits on Blackwell; with the step in a CUDA graph they are faster."""
    asked = "step qwen3-30b-a3b --system 8xb200 --ep 8 --batch 64 --sequence 4096 --fidelity estimate"
    lead, named = run(f"{asked} --against precision=mxfp8").splitlines()[:2]
    assert lead.startswith("With precision mxfp8 it takes ")
    assert named.startswith("Framework megatron-core (the default; 'weft frameworks list' has others). By the fastest ")
    assert "(megatron-bridge-2026) instead of " in named
    assert named.endswith("times as fast.")
    stated = run(f"{asked} --framework megatron-core --against precision=mxfp8").splitlines()
    assert not any("Framework megatron-core" in line for line in stated)
    alike = run("step llama-3-8b --system 8xh100 --batch 16 --sequence 2048 --fidelity estimate --against batch=32")
    assert "Framework megatron-core (the default; 'weft frameworks list' has others).\n" in alike


def test_plans_that_cannot_overlap_exchanges_run_elsewhere_without_it():
    asked = {"pp": 2, "ep": 4, "batch": 64, "sequence": 4096, "precision": "mxfp8"}
    found = step("qwen3-30b-a3b", "8xb200", **asked)
    plain, held = (
        step("qwen3-30b-a3b", "8xb200", framework="megatron-bridge-2026", **asked, **more)
        for more in ({}, {"overlap_moe_expert_parallel_comm": False})
    )
    assert found.elsewhere["megatron-bridge-2026"] == pytest.approx(held.seconds, rel=1e-6)
    assert any(note.startswith("EP overlap is counted, but Megatron Core has it only in ") for note in plain.notes)
    for one in (held, step("qwen3-30b-a3b", "8xb200", framework="deepseek", **asked)):
        assert not any(note.startswith("EP overlap is counted") for note in one.notes)


def test_parts_that_round_to_nothing_have_no_ratio():
    tables = (
        Contrast(
            {
                "as asked": SimpleNamespace(seconds=10.0, parts={"gemm": 9.9998, "exposed dp": 0.0002}, report=_report),
                "other": SimpleNamespace(seconds=10.1, parts={"gemm": 9.98, "exposed dp": 0.12}, report=_report),
            }
        )
        .report()
        ._by_part()
    )
    ratios = dict(zip(tables.column("part"), tables.column("ratio"), strict=True))
    assert ratios.pop("exposed: DP") is None
    assert all(ratio is not None for ratio in ratios.values())


def _report():
    return SimpleNamespace(title=lambda: "a step")


def test_single_changes_do_not_list_what_only_follows_from_them():
    plan = {"tp": 2, "pp": 8, "ep": 8, "batch": 512, "sequence": 4096, "schedule": "interleaved:3"}
    found = step("qwen3-235b-a22b", "128xh200", measured="30 s", recompute="full", **plan)
    (gains,) = [one for one in found.needs if one.startswith("What would gain most")]
    assert "sequence parallelism" not in gains
    assert "layers" not in gains
    assert "DP" not in gains
