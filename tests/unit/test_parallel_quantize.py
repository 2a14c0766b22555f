"""GEMMs on operands of 8 and 4 bits: which ones, and what makes their operands."""

from dataclasses import replace

import pytest

import weft
from weft.errors import UnknownNameError
from weft.graph import Attention, Gemm, Streaming
from weft.models import load_model
from weft.models.block import Style, Tokens, embedding, head, layer
from weft.options import SUSTAINED
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.parallel.quantize import RECIPES
from weft.parallel.rank import part
from weft.run.step.prices import Prices

MODEL = load_model("gpt-3").model_copy(update={"hidden": 4096, "layers": 32, "heads": 32})
PLAN = Parallelism(tp=4, sp=True, sequence=4096)
every = pytest.mark.parametrize("recipe", RECIPES)


def mine(recipe="", pieces=layer):
    tokens = Tokens(1, 4096)
    given = (MODEL, "dense", tokens) if pieces is layer else (MODEL, tokens)
    return part("part", tuple(pieces(*given, Style(), "bf16")), replace(PLAN, quantize=recipe), Framework())


def quantising(graph):
    return [node for node in graph if isinstance(node.op, Streaming) and node.op.name.startswith(("quant", "amax"))]


@every
def test_all_gemms_of_a_layer_and_nothing_else_multiply_narrow_operands(recipe):
    for graph in (mine(recipe).forward, mine(recipe).backward):
        gemms = {node.op.dtype for node in graph if isinstance(node.op, Gemm)}
        assert gemms == {RECIPES[recipe].dtype}
        others = {node.op.dtype for node in graph if isinstance(node.op, Attention | Streaming)}
        assert others == {"bf16"}


@every
@pytest.mark.parametrize("pieces", [embedding, head])
def test_embedding_and_head_keep_16_bits(recipe, pieces):
    assert mine(recipe, pieces).forward == mine("", pieces).forward


@every
def test_operands_are_made_before_each_gemm_and_again_of_its_gradient(recipe):
    found, whole = mine(recipe), RECIPES[recipe]
    weights = 2 if whole.each_pass else 1
    assert len(quantising(found.forward)) == 4 * len(whole.kernels) * weights
    assert len(quantising(found.backward)) == 4 * len(whole.kernels)


def test_row_wise_scales_gather_16_bits_and_each_rank_quantises_all_tokens():
    rows, tensor, wide = (mine(recipe).forward for recipe in ("rowwise", "tensorwise", ""))
    gathered = [[node.op for node in graph if ".gather" in node.name] for graph in (rows, wide)]
    assert gathered[0] == gathered[1]
    sizes = [
        sum(node.op.rows for node in graph if node.name == name)
        for graph, name in ((rows, "qkv.quantize.0"), (tensor, "qkv.quantize.0"))
    ]
    assert sizes[0] == PLAN.tp * sizes[1] > 0


def test_tokens_are_quantised_before_they_are_gathered_in_8_bits():
    found, wide = (mine(recipe).forward for recipe in ("mxfp8", ""))
    gathered, before = (sum(node.op.bytes for node in one if ".gather" in node.name) for one in (found, wide))
    assert gathered == before / 2
    (first, *_) = quantising(found)
    assert first.op.elements == 4096 * 4096 // 4


def test_less_is_kept_for_the_backward_pass():
    assert mine("mxfp8").kept != mine().kept


@pytest.mark.parametrize(("recipe", "gain"), [("delayed", 1.2), ("mxfp8", 1.2), ("nvfp4", 1.3)])
def test_a_wide_layer_is_faster_on_narrow_operands_and_a_narrow_one_is_not(recipe, gain):
    system = weft.system("8xb200")

    def seconds(name, width):
        model = MODEL.model_copy(update={"hidden": width, "heads": width // 128})
        plan = Parallelism(sequence=4096, quantize=name)
        pieces = tuple(layer(model, "dense", Tokens(1, 4096), Style(), "bf16"))
        found = part("layer", pieces, plan, Framework())
        return sum(Prices(system, plan, SUSTAINED).graph(found.forward).values())

    assert seconds("", 16384) > gain * seconds(recipe, 16384)
    assert seconds("", 256) < seconds(recipe, 256)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'mxfp8'"):
        Parallelism(quantize="mxfp9")
