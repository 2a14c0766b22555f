"""Recipes of low-precision training: which tensors have 8 or 4 bits, what casts them, and who can run them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import SUSTAINED
from weft.graph import Attention, Collective, Gemm, Streaming
from weft.graph.op import width
from weft.hardware import gpu
from weft.models import load_model
from weft.models.block import FusionStyle, Tokens, embedding, head, layer
from weft.models.parallel.framework import Framework, framework
from weft.models.parallel.memory import states, words
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import RECIPES, check_trains
from weft.models.parallel.rank import part
from weft.step.durations import OperatorTimes
from weft.view.step import StepReport

MODEL = load_model("gpt-3").model_copy(update={"hidden": 4096, "layers": 32, "heads": 32})
PLAN = TrainingPlan(tp=4, sp=True, sequence=4096)
MACHINE = {"mxfp8": "8xb200", "nvfp4": "8xb200"}
LOW = [name for name, recipe in RECIPES.items() if recipe.operands]
every = pytest.mark.parametrize("name", RECIPES)
low = pytest.mark.parametrize("name", LOW)


def mine(name="", pieces=layer, framework=None):
    tokens = Tokens(1, 4096)
    given = (MODEL, "dense", tokens) if pieces is layer else (MODEL, tokens)
    whole = tuple(pieces(*given, FusionStyle(), "bf16"))
    return part("part", whole, replace(PLAN, precision=name), framework or Framework())


def casting(graph):
    return [node for node in graph if isinstance(node.op, Streaming) and node.op.name.startswith(("quant", "amax"))]


def step_of(name, **stated):
    return weft.step(
        "llama-3-8b", MACHINE.get(name, "8xh100"), batch=8, sequence=8192, fidelity="estimate", precision=name, **stated
    )


def test_bf16_is_what_a_plan_without_a_recipe_runs():
    named, usual = (step_of(name, tp=8) for name in ("bf16", ""))
    assert (named.seconds, named.parts, named.memory.peak) == (usual.seconds, usual.parts, usual.memory.peak)


@low
def test_all_gemms_of_a_layer_multiply_the_recipes_operands_and_the_rest_keeps_16_bits(name):
    for graph in (mine(name).forward, mine(name).backward):
        gemms = {node.op.dtype for node in graph if isinstance(node.op, Gemm)}
        assert gemms == {RECIPES[name].operands}
        others = {node.op.dtype for node in graph if isinstance(node.op, Attention | Streaming)}
        reduced = {node.op.dtype for node in graph if isinstance(node.op, Collective) and node.op.reduces}
        assert others == reduced == {"bf16"}


@low
@pytest.mark.parametrize("pieces", [embedding, head])
def test_embedding_and_logits_keep_16_bits(name, pieces):
    assert mine(name, pieces).forward == mine("", pieces).forward


@low
@pytest.mark.parametrize("each_pass", [False, True])
def test_operands_are_cast_before_each_gemm_and_again_of_its_gradient(name, each_pass):
    found, kernels = mine(name, framework=Framework(casts_each_pass=each_pass)), len(RECIPES[name].casts)
    assert len(casting(found.forward)) == 4 * kernels * (2 if each_pass else 1)
    assert len(casting(found.backward)) == 4 * kernels


@low
def test_tokens_are_gathered_in_the_format_of_the_recipe(name):
    found, wide = (mine(one).forward for one in (name, ""))
    gathered, before = ([node.op.bytes for node in one if ".gather" in node.name] for one in (found, wide))
    assert sum(gathered) == sum(before) * width(RECIPES[name].gathered or "bf16") / 2


@low
def test_gradients_of_blocks_that_share_a_scale_are_gathered_along_rows_and_columns(name):
    found, wide = (mine(one).backward for one in (name, ""))
    fc2, before = (next(node.op.bytes for node in one if node.name == "fc2.gather") for one in (found, wide))
    orders = 2 if name in ("fp8-block", "mxfp8", "nvfp4") else 1
    assert fc2 == before * orders * width(RECIPES[name].gathered or "bf16") / 2


@low
@pytest.mark.parametrize("keeps", [False, True])
def test_replicas_gather_weights_in_the_format_that_the_recipe_offers_and_the_framework_keeps(name, keeps):
    used, plan = Framework(keeps_low=keeps), TrainingPlan(precision=name)
    low = name in ("fp8-delayed", "fp8-tensorwise") and keeps
    assert words(1000, 600, plan, used) == (1000 - 600 / 2 if low else 1000)


@low
@pytest.mark.parametrize("keeps", [False, True])
def test_weights_are_held_in_16_bits_or_in_the_format_of_the_recipe_beside_their_operands(name, keeps):
    """Operands in both orders stay where they are cast once a step; nothing of them where each pass casts anew."""
    plan, recipe = TrainingPlan(precision=name), RECIPES[name]
    held = states(1000, plan, Framework(keeps_low=keeps), narrow=600)
    wide = 400 if keeps and recipe.weights else 1000
    assert held["weights"] == round(2 * wide + 2 * 600 * width(recipe.operands))
    assert (held["gradients"], held["optimizer"]) == (4000, 12000)
    assert states(1000, plan, Framework(keeps_low=keeps, casts_each_pass=True), narrow=600)["weights"] == 2000


def test_ranks_that_gather_operands_cast_their_own_shards():
    plan = TrainingPlan(dp=8, batch=8, zero=3, sequence=4096, precision="fp8-tensorwise")
    pieces = tuple(layer(MODEL, "dense", Tokens(1, 4096), FusionStyle(), "bf16"))
    sizes = []
    for keeps in (False, True):
        used = Framework(casts_each_pass=True, keeps_low=keeps)
        sizes.append([node.op.rows for node in part("part", pieces, plan, used).forward if ".weights" in node.name])
    assert sizes[0] == [8 * size for size in sizes[1]] != []


def test_row_wise_scales_gather_16_bits_and_each_rank_casts_all_tokens():
    rows, tensor = (mine(name).forward for name in ("fp8-rowwise", "fp8-tensorwise"))
    sizes = [
        sum(node.op.rows for node in graph if node.name == name)
        for graph, name in ((rows, "qkv.quantize.0"), (tensor, "qkv.quantize.0"))
    ]
    assert sizes[0] == PLAN.tp * sizes[1] > 0


@low
def test_less_is_kept_for_the_backward_pass(name):
    assert mine(name).kept.bytes < mine().kept.bytes


@low
@pytest.mark.parametrize("hidden", [256, 4096, 16384])
def test_a_layer_is_slower_by_no_more_than_its_casts(name, hidden):
    system = weft.system(MACHINE.get(name, "8xh100"))

    def seconds(precision):
        model = MODEL.model_copy(update={"hidden": hidden, "heads": hidden // 128})
        plan = TrainingPlan(sequence=4096, precision=precision)
        pieces = tuple(layer(model, "dense", Tokens(1, 4096), FusionStyle(), "bf16"))
        found, prices = part("layer", pieces, plan, Framework()), OperatorTimes(system, plan, SUSTAINED)
        graphs = found.forward, found.backward
        whole = sum(sum(prices.graph(graph).values()) for graph in graphs)
        return whole, sum(prices.of(node.op) for graph in graphs for node in casting(graph))

    (whole, cast), (wide, _) = seconds(name), seconds("")
    assert whole - cast <= wide
    if hidden != 4096:
        assert (whole < wide) == (hidden == 16384)


@every
def test_steps_of_all_recipes_state_their_utilization_of_one_peak(name):
    found = step_of(name, tp=8)
    machine = found.system.gpu
    assert found.peak_flops == machine.matrix_rate("bf16") * 8
    assert found.hfu * found.peak_flops < machine.matrix_rate(RECIPES[name].operands or "bf16") * 8
    (lead, *_) = StepReport(found).sentences()
    assert " of the bf16 peak" in lead


@every
def test_a_gpu_runs_the_recipes_whose_operands_it_multiplies(name):
    operands = RECIPES[name].operands or "bf16"
    for one in ("a100", "h100", "b200", "mi300x", "mi355x"):
        machine = gpu(one)
        if machine.supports(operands):
            check_trains("bf16", name, machine)
            continue
        with pytest.raises(InputError, match=rf"in {operands}, as the precision {name} does; .* runs bf16"):
            check_trains("bf16", name, machine)


@pytest.mark.parametrize("ask", [weft.step, weft.memory, weft.roofline])
def test_every_question_on_training_names_the_recipes_that_the_gpu_runs(ask):
    with pytest.raises(InputError, match=r"h100-sxm does not compute in mxfp8.* runs bf16, fp8-delayed"):
        ask("llama-3-8b", "8xh100", precision="mxfp8")


def test_models_do_not_train_in_8_bits_throughout():
    for dtype in ("fp8", "int8"):
        with pytest.raises(InputError, match=r"leave dtype out, and name the precision .*fp8-tensorwise"):
            weft.step("llama-3-8b", "8xh100", dtype=dtype)
        with pytest.raises(InputError, match="no framework trains"):
            weft.memory("llama-3-8b", "8xh100", dtype=dtype)
        with pytest.raises(InputError, match="no framework trains"):
            weft.plan("llama-3-8b", "8xh100", batch=8, fix={"dtype": dtype})
    assert weft.decode("llama-3-8b", "h100", weft.ServingPlan(dtype="fp8")).seconds > 0


@every
def test_a_dtype_that_contradicts_the_recipe_is_refused(name):
    assert TrainingPlan(dtype="bf16", precision=name).recipe is RECIPES[name]
    for dtype in ("fp8", "int8", "fp16", "fp32"):
        with pytest.raises(InputError, match=f"dtype {dtype} contradicts the precision {name}"):
            TrainingPlan(dtype=dtype, precision=name)


def test_unknown_recipes_and_the_old_name_of_the_field_are_refused_with_the_new_ones():
    with pytest.raises(UnknownNameError, match="did you mean 'mxfp8'"):
        TrainingPlan(precision="mxfp9")
    with pytest.raises(UnknownNameError, match="did you mean 'fp8-rowwise'"):
        TrainingPlan(precision="rowwise")
    with pytest.raises(UnknownNameError, match="did you mean 'precision'"):
        weft.step("llama-3-8b", "8xh100", quantize="rowwise")


def test_the_page_on_steps_lists_every_recipe_as_it_is_declared():
    page = (Path(__file__).parents[2] / "docs/explanation/step.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \| (.*) \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (
            name,
            recipe.about,
            recipe.operands or "-",
            ", ".join(f"`{kernel}`" for kernel in recipe.casts) or "-",
            (recipe.gathered or "16 bits") + ", gradients twice" * (recipe.orders - 1),
            recipe.shared or "16 bits",
        )
        for name, recipe in RECIPES.items()
    ]


@low
def test_the_waterfall_shows_what_the_casts_take(name):
    found = step_of(name, tp=8)
    assert 0 < found.parts["casts"] < found.parts["gemm"]
    assert "casts" not in step_of("bf16", tp=8).parts


def test_a_step_says_that_its_framework_has_no_such_recipe():
    notes = [step_of(name, zero=3).notes for name in ("fp8-block", "fp8-rowwise")]
    assert [any("torchtitan with FSDP2 has no recipe" in note for note in each) for each in notes] == [True, False]


def test_weights_that_are_gathered_as_operands_are_cast_as_shards():
    core = framework("megatron-core")

    def updating(name, keeps):
        return step_of(name, dp=8, framework=replace(core, keeps_low=keeps)).parts["optimizer"]

    wide, whole, shards = updating("bf16", False), updating("fp8-tensorwise", False), updating("fp8-tensorwise", True)
    assert whole - wide == pytest.approx(8 * (shards - wide), rel=0.1)
