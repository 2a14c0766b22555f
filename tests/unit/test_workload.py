import pickle
import re

import pytest

from weft import hardware, models
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.graph import Collective, Gemm, concurrent
from weft.models import SUBLAYERS, SubLayer, Transformer, load_model, model_names, sublayer
from weft.overlaps import STRATEGIES

FIELDS = {
    "name": "'m'",
    "title": "'M'",
    "hidden": "4096",
    "layers": "32",
    "sequence_length": "2048",
}
STUDIED = {"batch": "4", "tensor_parallel": "[8]"}


def model_file(tmp_path, **changes):
    fields = {**FIELDS, **changes}
    path = tmp_path / "model.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in fields.items() if value), encoding="utf-8")
    return path


def test_a_gemm_counts_a_multiply_add_as_two_and_each_matrix_once():
    gemm = Gemm(m=4, n=3, k=5)
    assert gemm.flops == 2 * 4 * 3 * 5
    assert gemm.least_bytes == 2 * (4 * 5 + 5 * 3 + 4 * 3)
    assert gemm.output_bytes == 2 * 4 * 3


@pytest.mark.parametrize(
    ("dtype", "operand", "output", "accumulator"),
    [
        ("fp64", 8, ("fp64", 8), 8),
        ("fp32", 4, ("fp32", 4), 4),
        ("tf32", 4, ("fp32", 4), 4),
        ("fp16", 2, ("fp16", 2), 4),
        ("bf16", 2, ("bf16", 2), 4),
        ("fp8", 1, ("bf16", 2), 4),
        ("int8", 1, ("bf16", 2), 4),
    ],
)
def test_a_gemm_reads_its_operands_format_and_writes_8_bit_products_as_bf16(dtype, operand, output, accumulator):
    gemm = Gemm(m=4, n=3, k=5, dtype=dtype)
    assert gemm.element_bytes == operand
    assert (gemm.output_dtype, gemm.output_element_bytes) == output
    assert gemm.accumulator_bytes == accumulator
    assert gemm.least_bytes == operand * (4 * 5 + 5 * 3) + output[1] * 4 * 3


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_gemm_dimension_must_be_a_whole_number_above_zero(value):
    with pytest.raises(InputError, match=f"dimension K is {value}.*above zero"):
        Gemm(1, 1, value)


def test_an_unknown_dtype_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown dtype 'fp17'; known: fp16, bf16"):
        Gemm(1, 1, 1, "fp17")


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "tokens", "degrees"),
    [
        ("mega-gpt-2", 3072, 74, 16384, (8, 16)),
        ("t-nlg", 4256, 78, 8192, (8, 16)),
        ("gpt-3", 12288, 96, 4096, (32,)),
        ("palm", 18432, 118, 4096, (32,)),
        ("mt-nlg", 20480, 105, 4096, (32,)),
    ],
)
def test_the_models_of_the_paper_have_its_dimensions(name, hidden, layers, tokens, degrees):
    model = load_model(name)
    assert (model.name, model.hidden, model.layers, model.tokens) == (name, hidden, layers, tokens)
    assert model.tensor_parallel == degrees


def test_the_five_models_of_the_paper_alone_name_the_degrees_that_it_studies():
    studied = [name for name in model_names() if load_model(name).tensor_parallel]
    assert studied == ["gpt-3", "mega-gpt-2", "mt-nlg", "palm", "t-nlg"]


@pytest.mark.parametrize("name", model_names())
def test_every_dimension_of_a_catalogue_model_says_where_it_comes_from(name):
    model = load_model(name)
    assert {"hidden", "layers", "sequence_length", "heads"} <= set(model.provenance) <= set(model.rules())
    assert all(
        getattr(model, path) == type(model).model_fields[path].default
        for path in set(model.rules()) - set(model.provenance)
    )
    assert all(found.kind != "set by user" for found in model.provenance.values())
    assert pickle.loads(pickle.dumps(model)) == model


@pytest.mark.parametrize(("name", "multiple"), [("op", 1), ("fc2", 4), ("fc1", 4), ("ip", 3)])
def test_a_sublayer_makes_tokens_by_hidden_from_a_multiple_of_hidden(name, multiple):
    layer = sublayer("t-nlg", name)
    assert layer.gemm == Gemm(m=8192, n=4256, k=multiple * 4256, dtype="fp16")
    assert (layer.model, layer.name, layer.title) == ("t-nlg", name, SUBLAYERS[name].title)


def test_feed_forward_sublayers_follow_the_models_own_multiple(tmp_path):
    model = load_model(model_file(tmp_path, ffn_multiple="3"))
    assert sublayer(model, "fc2").gemm.k == 3 * 4096
    assert sublayer(model, "ip").gemm.k == 3 * 4096
    assert sublayer(model, "op").gemm.k == 4096


def test_a_models_sublayer_takes_any_dtype():
    assert sublayer("t-nlg", "fc2", "fp8").gemm.dtype == "fp8"
    with pytest.raises(UnknownNameError, match="unknown dtype 'fp9'"):
        sublayer("t-nlg", "fc2", "fp9")


def test_a_sublayer_of_ones_own_needs_only_its_dimensions():
    assert SubLayer.custom(128, 256, 512).gemm == Gemm(128, 256, 512)


def test_unknown_models_and_sublayers_list_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown model 'gpt3'; .* are known, .*did you mean .*'gpt-3'"):
        load_model("gpt3")
    with pytest.raises(UnknownNameError, match=r"unknown sub-layer 'fc3'; known: op, fc2, fc1, ip"):
        models.sublayer("t-nlg", "fc3")


def test_a_model_file_may_give_bare_values(tmp_path):
    model = load_model(model_file(tmp_path, **STUDIED))
    assert model == load_model(str(model_file(tmp_path, **STUDIED)))
    assert (model.tokens, model.ffn_multiple, model.tensor_parallel) == (8192, 4, (8,))
    assert model.provenance["hidden"].kind == "set by user"


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "name"])
def test_a_model_file_with_a_missing_field_names_file_field_and_example(tmp_path, field):
    with pytest.raises(ConfigError) as caught:
        load_model(model_file(tmp_path, **{field: ""}))
    assert re.match(
        rf"model\.toml: {field}: this (value|text) is missing; add .*like (\{{ value = |{field} = )",
        str(caught.value),
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hiden": "3"}, ["hiden", "did you mean 'hidden'"]),
        ({"hidden": "-3"}, ["hidden", "greater than zero"]),
        ({"hidden": "'3 B'"}, ["hidden", "bare count"]),
        ({"tensor_parallel": "8"}, ["tensor_parallel", "[8, 16]"]),
        ({"tensor_parallel": "[1]"}, ["tensor_parallel", "above 1"]),
        ({"tensor_parallel": "[]"}, ["tensor_parallel", "above 1"]),
        ({"title": "3"}, ["title", "text in quotes"]),
    ],
)
def test_a_model_file_that_breaks_a_rule_is_named_with_the_rule(tmp_path, changes, words):
    with pytest.raises(ConfigError) as caught:
        load_model(model_file(tmp_path, **changes))
    for word in ["model.toml", *words]:
        assert word in str(caught.value)


def test_the_operators_of_a_graph_stand_once_each_in_launch_order():
    moved, product = Collective("all_gather", 1 << 20, 4), Gemm(64, 64, 64)
    graph = concurrent(product, moved, gemms=3, collectives=2)
    assert list(graph.operators.items()) == [("all_gather", moved), ("gemm", product)]
    first = STRATEGIES["streams"].apply(graph, hardware.gpu("t3-paper"))
    assert list(first.operators) == list(dict.fromkeys(node.name for node in first)) == ["gemm", "all_gather"]


def test_a_files_one_source_is_that_of_every_value_without_its_own(tmp_path):
    own = "{ value = 4, kind = 'assumed', low = 1, high = 8, source = 'a guess' }"
    model = load_model(model_file(tmp_path, source="'a paper'", batch=own))
    assert (model.provenance["hidden"].kind, model.provenance["hidden"].source) == ("published", "a paper")
    assert (model.provenance["batch"].kind, model.provenance["batch"].source) == ("assumed", "a guess")
    with pytest.raises(ConfigError, match=r"model\.toml: source: 3 must be text"):
        load_model(model_file(tmp_path, source="3"))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"heads": 48, "hidden": 4000}, "cannot share hidden"),
        ({"kv_heads": 5}, "kv_heads is 5; it must divide the 32 heads"),
        ({"experts": 8}, "go together"),
        ({"experts": 8, "experts_per_token": 9}, "experts_per_token is 9; there are 8 experts"),
        ({"shared_experts": 1}, "shared_experts go with experts"),
        ({"query_rank": 64}, "give kv_rank"),
        ({"kv_rank": 64}, "needs head"),
        ({"dense_layers": 33}, "the model has 32 layers"),
    ],
)
def test_dimensions_that_contradict_each_other_are_named_with_the_rule(tmp_path, changes, rule):
    with pytest.raises(ConfigError, match=rule):
        load_model(model_file(tmp_path, **{name: str(value) for name, value in changes.items()}))


def test_a_model_can_be_described_in_python():
    model = Transformer(name="m", title="M", hidden=64, layers=2, sequence_length=8, batch=2, tensor_parallel=(2, 4))
    assert sublayer(model, "fc2").gemm == Gemm(16, 64, 256)
    assert hash(model) == hash(model.model_copy())
    with pytest.raises(ConfigError, match="hidden: '-1' must be greater than zero"):
        Transformer(name="m", title="M", hidden=-1, layers=2, sequence_length=8, batch=2, tensor_parallel=(2,))


def test_a_gemm_shows_its_shape_as_the_field_writes_it():
    assert str(Gemm(128, 256, 512)) == "128 x 256 x 512 bf16"


def test_a_model_without_its_number_of_heads_has_heads_of_128():
    assert load_model("gpt-3").attention_heads == 96
    nameless = Transformer(name="m", title="M", hidden=4096, layers=2, sequence_length=8, batch=1, tensor_parallel=[2])
    assert nameless.heads is None
    assert nameless.attention_heads == 32
