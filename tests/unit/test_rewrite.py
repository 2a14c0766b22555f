"""Rewriting: what each rule refuses, what the search finds, and what it gains."""

import json
import re

import numpy as np
import pytest

import weft
from weft.cli.main import main
from weft.core.errors import InputError, SimulationError, UnknownNameError
from weft.graph import Collective, Constant, Streaming, Tensor, View, read_graph, write_graph
from weft.models import load_model
from weft.models.parallel.plan import TrainingPlan
from weft.rewrite import RULES, Rule, rewrite
from weft.rewrite.execute import compare_results, execute, proven, random_values
from weft.rewrite.flow import Draft, Flow, apply_change
from weft.rewrite.layer import layer_graph, twin

GPU = "h100-sxm"
PARALLEL = load_model("gpt-3").model_copy(update={"parallel": True})


def places(name, graph):
    return list(RULES[name].find(Flow(graph)))


def reasons(name, graph):
    found = places(name, graph)
    assert found, f"{name} looks at no place"
    assert all(one.change is None for one in found)
    return "; ".join(one.why for one in found)


def chain(length=3, elements=1 << 26, dtype="fp32"):
    draft = Draft(dtype)
    value = draft.add_input("x", elements)
    for number in range(length):
        op = Streaming("elementwise", elements, 1, dtype, inputs=2, function="add")
        value = draft.node(f"y{number}", op, value, draft.add_input(f"b{number}", elements))
    return draft.graph(value)


def attention(scale=8**-0.5, mask=None, keys=None, again=False, order=("scale", "mask", "softmax")):
    draft = Draft()
    names = {name: draft.add_input(name, 2, 3, 4, 8) for name in "qkv"}
    turned = draft.view("turned", keys or View("k", order=(0, 1, 3, 2)))
    x = draft.node("scores", weft.Gemm(4, 4, 8, batch=6), names["q"], turned)
    more = {"scale": draft.constant("root", Constant((1,), scale))}
    more["mask"] = draft.constant("unseen", mask or Constant((4, 4), pattern="causal"))
    for step in order:
        x = draft.node(step, Streaming(step, 24, 4), x, *([more[step]] if step in more else []))
    y = draft.node("context", weft.Gemm(4, 8, 4, batch=6), x, names["v"])
    return draft.graph(y, *(["softmax"] if again else []))


# -- what rules do


def test_a_chain_of_three_elementwise_operators_runs_1_8_times_as_fast_in_one_kernel():
    found = rewrite(chain(), GPU, ["fuse_elementwise"], launch="0.1 us")
    assert (len(found.rewritten), found.before.kernels, found.after.kernels) == (1, 3, 1)
    assert found.before.bytes / found.after.bytes == pytest.approx(9 / 5)
    # Memory turns around from reads to writes less often, too: one write to four reads instead of two.
    assert found.speedup == pytest.approx(1.8, rel=0.05)
    assert found.rewritten.nodes[0].op.function == "add add add"


def test_fused_attention_moves_neither_scores_nor_weights():
    (found,) = places("flash_attention", attention())
    op = found.change.add[0].op
    assert (op.fused, op.causal, op.kv_heads, op.heads) == (True, 1, 0, 3)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (attention(scale=0.5), r"not scaled by a constant 1/sqrt\(8\)"),
        (attention(order=("mask", "softmax")), "not scaled"),
        (attention(order=("mask", "scale", "softmax")), "in another order"),
        (attention(order=("scale", "mask")), "in another order"),
        (attention(mask=Constant((4, 4), -1.0)), "neither causal nor zero"),
        (attention(keys=View("k", (2, 3, 8, 4))), "not a transposed view of keys"),
        (attention(again=True), "softmax is a result of the graph"),
    ],
)
def test_attention_that_no_kernel_computes_is_refused(graph, said):
    assert re.search(said, reasons("flash_attention", graph))


def products(second=None, results=("y0", "y1"), weight="weight"):
    draft = Draft()
    x = draft.add_input("x", 8, 4)
    draft.node("y0", weft.Gemm(8, 4, 4), x, draft.weight("w0", 4, 4))
    draft.node("y1", second or weft.Gemm(8, 6, 4), x, draft.add_input("w1", 4, 6, role=weight))
    return draft.graph(*results)


def test_products_on_one_input_read_it_once():
    graph = products()
    (found,) = places("merge_gate_up", graph)
    merged = apply_change(graph, found.change)
    assert [node.op.n for node in merged if node.phase != "load"] == [10]
    assert merged.tensors["y1"] == View("y0+y1", start=4, stop=10)


def test_products_of_other_formats_or_of_no_weights_are_not_merged():
    assert "do not match" in reasons("merge_gate_up", products(weft.Gemm(8, 6, 4, "fp32")))
    assert "w1 is no weight" in reasons("merge_gate_up", products(weight="activation"))
    assert not places("merge_qkv", products())


def biased(again=False, width=6, reduced=False):
    draft = Draft(ranks=2 if reduced else 1)
    x = draft.node("y", weft.Gemm(8, 6, 4), draft.add_input("x", 8, 4), draft.weight("w", 4, 6))
    if reduced:
        x = draft.node("sum", Collective("all_reduce", 96, 2, "fp16"), x)
    moved = draft.node("moved", Streaming("bias_add", 48), x, draft.weight("b", width))
    z = draft.node("z", Streaming("gelu", 48), moved)
    return draft.graph(z, *(["y", "moved"] if again else []))


def test_a_bias_is_not_moved_before_another_reader():
    assert "y is a result of the graph" in reasons("matmul_bias", biased(again=True))
    assert "moved is a result of the graph" in reasons("bias_gelu", biased(again=True))
    assert "has not the 6 columns" in reasons("matmul_bias", biased(width=48))


def test_a_bias_behind_a_reduction_is_not_added_on_every_rank():
    assert not places("matmul_bias", biased(reduced=True))


def test_a_convolution_that_is_read_again_keeps_its_normalisation():
    graph = RULES["fold_batchnorm"].example(np.random.default_rng(0))
    assert "conv is a result" in reasons("fold_batchnorm", weft.Graph(
        graph.nodes, tensors=graph.tensors, results=(*graph.results, "conv"),
    ))  # fmt: skip
    changing = {**graph.tensors, "mean": Tensor(graph.tensors["mean"].shape, "fp16")}
    assert "mean is no constant" in reasons("fold_batchnorm", weft.Graph(
        graph.nodes, tensors=changing, results=graph.results,
    ))  # fmt: skip


def test_folded_filters_are_made_once_and_cost_nothing_per_run():
    graph = RULES["fold_batchnorm"].example(np.random.default_rng(0))
    found = rewrite(graph, GPU, ["fold_batchnorm"])
    assert [(node.phase, node.name) for node in found.rewritten] == [("load", "norm.folded"), ("", "norm")]
    assert found.after.kernels == 1
    assert found.whole.holds


def scattered(rows):
    draft = Draft(ranks=2)
    y = draft.node("y", weft.Gemm(rows, 4, 4), draft.add_input("x", rows, 4), draft.weight("w", 4, 4))
    return draft.graph(draft.node("z", Collective("reduce_scatter", rows * 8, 2, "fp16"), y, stream="tp"))


def test_a_reduction_is_cut_where_rows_divide():
    assert [one.change is None for one in places("overlap_reduce_scatter", scattered(8))] == [False, False]
    assert [one.change is None for one in places("overlap_reduce_scatter", scattered(4))] == [False, True]
    assert "6 rows do not divide into 2 parts for each of 2 ranks" in reasons("overlap_reduce_scatter", scattered(6))


def test_parts_of_a_reduction_run_beside_the_next_product():
    draft = Draft("bf16", ranks=8)
    x, w = draft.add_input("x", 8192, 2048), draft.weight("w", 2048, 8192)
    y = draft.node("y", weft.Gemm(8192, 8192, 2048, "bf16"), x, w)
    z = draft.node("z", Collective("reduce_scatter", 2 * 8192 * 8192, 8, "bf16"), y, stream="tp")
    found = rewrite(draft.graph(z), "8xh100", ["overlap_reduce_scatter"])
    alone = weft.estimate(weft.Gemm(8192, 8192, 2048, "bf16"), "8xh100").seconds
    assert found.before.seconds - found.after.seconds > 0.3 * alone
    assert [node.stream for node in found.rewritten][:3] == ["compute", "tp", "compute"]


def test_a_sum_that_is_read_again_is_kept_beside_its_norm():
    graph = RULES["add_norm"].example(np.random.default_rng(3))
    (found,) = places("add_norm", graph)
    assert found.change.add[0].outputs == ("y", "total")


def test_a_norm_of_other_rows_is_refused():
    draft = Draft()
    total = draft.node("total", Streaming("residual_add", 48), draft.add_input("x", 8, 6), draft.add_input("r", 8, 6))
    y = draft.node("y", Streaming("rmsnorm", 16, 3), total, draft.weight("scale", 3))
    assert "normalises rows of 3" in reasons("add_norm", draft.graph(y))


def test_operands_that_cannot_change_places_are_not_fused():
    draft = Draft()
    x, b = draft.add_input("x", 8), draft.add_input("b", 8)
    y = draft.node("y", Streaming("elementwise", 8, function="exp"), x)
    z = draft.node("z", Streaming("elementwise", 8, inputs=2, function="subtract"), b, y)
    assert "cannot change places" in reasons("fuse_elementwise", draft.graph(z))


def test_what_the_host_must_know_is_not_recorded():
    draft = Draft()
    y = draft.node("router", Streaming("top_k", 8, 4), draft.add_input("x", 8, 4))
    assert "router decides the sizes" in reasons("cuda_graph", draft.graph(y))


def test_a_recorded_graph_saves_launches_and_no_bytes():
    found = rewrite(chain(8, 64), GPU, ["cuda_graph"], launch="5 us")
    assert (found.before.launches, found.after.launches) == (8, 1)
    assert found.before.bytes == found.after.bytes
    assert found.before.seconds - found.after.seconds > 7 * 3e-6


# -- proofs


def test_a_rule_that_changes_the_result_is_found_out():
    def wrong(flow):
        for found in RULES["matmul_bias"].find(flow):
            (node,) = found.change.add
            less = weft.Node(node.op, node.name, inputs=node.inputs[:2], outputs=node.outputs)
            yield type(found)(found.nodes, type(found.change)(found.change.remove, (less,)))

    with pytest.raises(SimulationError, match="the rule wrong changes what is computed"):
        proven(Rule("wrong", "", wrong, RULES["matmul_bias"].example))
    with pytest.raises(SimulationError, match="finds no place in its own example"):
        proven(Rule("idle", "", lambda flow: iter(()), RULES["matmul_bias"].example))


def test_rounding_is_that_of_the_number_format():
    draft = Draft("bf16")
    graph = draft.graph(
        draft.node("y", Streaming("residual_add", 2, 1, "bf16"), draft.add_input("x", 2), draft.add_input("z", 2))
    )
    given = {"x": [np.array([256.0, 1.0])], "z": [np.array([1.0, 2.0**-9])]}
    assert execute(graph, given)["y"][0].tolist() == [257, 1 + 2.0**-9]
    assert execute(graph, given, rounded=True)["y"][0].tolist() == [256, 1]


def test_an_operator_without_a_meaning_is_named():
    draft = Draft()
    graph = draft.graph(draft.node("sorted", weft.Opaque("sort", bytes=8, written=4), draft.add_input("x", 2)))
    with pytest.raises(InputError, match=r"'sorted' .* has no meaning in NumPy"):
        execute(graph, random_values(graph))
    assert rewrite(graph, GPU).whole is None


# -- layers


@pytest.mark.parametrize(
    ("model", "plan", "dropout"),
    [
        ("llama-3-8b", {}, False),
        ("llama-3-8b", {"tp": 8, "sp": True}, False),
        ("gpt-3", {"tp": 8, "sp": True}, True),
        ("gpt-3", {"tp": 4}, True),
    ],
)
def test_every_rewriting_of_a_layer_computes_what_the_layer_does(model, plan, dropout):
    found = rewrite(model, "8xh100", sequence=2048, dropout=dropout, most=60, **plan)
    assert {"flash_attention"} <= {step.rule for step in found.steps}
    assert found.twin
    assert found.whole.holds
    assert all(proof.holds for proof in found.proofs.values())
    assert found.after.seconds < found.before.seconds


def test_a_twin_has_the_nodes_of_the_layer():
    model, plan = load_model("llama-3-70b"), TrainingPlan(tp=8, sp=True, sequence=4096)
    assert [node.id for node in twin(model, plan)] == [node.id for node in layer_graph(model, plan)]
    assert compare_results(twin(model, plan), twin(model, plan)).exact == 0


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "bert-large", "t5-11b", PARALLEL])
def test_a_layer_that_no_rule_knows_is_refused(model):
    with pytest.raises(InputError, match="which no rule rewrites yet"):
        rewrite(model, GPU)


def test_gate_and_up_are_merged_where_the_weights_set_the_pace():
    long, short = (rewrite("llama-3-8b", GPU, sequence=tokens) for tokens in (8192, 16))
    assert "merge_gate_up" in {step.rule for step in short.steps}
    assert "merge_gate_up" not in {step.rule for step in long.steps}
    assert any("merge_gate_up" in one.rules for one in long.alternatives)


def test_steps_lead_from_the_first_cost_to_the_last():
    found = rewrite("llama-3-8b", GPU, sequence=1024)
    costs = [found.before, *(step.after for step in found.steps)]
    assert [step.before for step in found.steps] == costs[:-1]
    assert costs[-1] == found.after
    assert found.exhausted
    assert sum(step.gain for step in found.steps) == pytest.approx(found.before.seconds - found.after.seconds)


def test_a_search_that_is_cut_short_says_so():
    assert not rewrite("llama-3-8b", GPU, sequence=1024, most=5).exhausted


# -- bad input, files and the command


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"rules": ["fuse"]}, UnknownNameError, "unknown rule 'fuse'"),
        ({"alpha": 0.5}, InputError, "alpha is 0.5"),
        ({"most": 0}, InputError, "most is 0"),
        ({"tp": 16}, InputError, "the layer is shared by 16"),
        ({"launch": "5"}, InputError, "unit"),
        ({"launch": "-1 us"}, InputError, "above zero"),
        ({"pp": 2}, UnknownNameError, "unknown field of a layer's plan 'pp'"),
        ({"rules": "add_norm"}, InputError, "give a list"),
    ],
)
def test_bad_input_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        rewrite("llama-3-8b", "8xh100", **given)


def test_a_graph_without_names_or_results_is_refused():
    gemm = weft.Gemm(8, 8, 8)
    with pytest.raises(InputError, match="'gemm' does not name its tensors"):
        rewrite(weft.Graph((weft.Node(gemm, "gemm"),)), GPU)
    given = {name: Tensor((8, 8)) for name in "ab"}
    node = weft.Node(gemm, "gemm", inputs=("a", "b"), outputs=("c",))
    with pytest.raises(InputError, match="names no results"):
        rewrite(weft.Graph((node,), tensors=given), GPU)
    short = weft.Node(gemm, "gemm", inputs=("a",), outputs=("c",))
    with pytest.raises(InputError, match="names 1 inputs; give at least 2"):
        rewrite(weft.Graph((short,), tensors=given, results=("c",)), GPU)
    with pytest.raises(InputError, match="tp belong to a model's layer"):
        rewrite(weft.Graph((node,), tensors=given, results=("c",)), GPU, tp=8)


def test_the_command_writes_the_page_and_the_graph(tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        main(["rewrite", "llama-3-8b", "--system", GPU, "--sequence", "64", "--out", str(tmp_path / "out"),
              "--json", str(tmp_path / "found.json")])  # fmt: skip
    assert done.value.code == 0
    assert "rewritings make a layer of Llama 3 8B" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["steps"][0]["gain_s"] > 0
    assert found["before"]["kernels"] > found["after"]["kernels"]
    assert "flash_attention" in (tmp_path / "out" / "report.html").read_text()
    rewritten = read_graph(tmp_path / "out" / "model.graph.jsonl")
    assert rewrite(rewritten, GPU).before.seconds == pytest.approx(found["after"]["seconds"])


def test_a_file_is_rewritten(tmp_path):
    path = write_graph(chain(2), tmp_path / "mine.graph.jsonl.gz")
    assert [step.rule for step in rewrite(path, GPU, ["fuse_elementwise"]).steps] == ["fuse_elementwise"]
