"""What holds for every rule, on graphs of random sizes."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.graph import read_graph, write_graph
from weft.graph.named import shapes
from weft.rewrite import RULES
from weft.rewrite.execute import compare_results, proven
from weft.rewrite.flow import Flow, apply_change


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 2**31))
@example(seed=604)  # merge_gate_up: a result of one element, whose terms cancel
@settings(max_examples=25, deadline=None)
def test_both_sides_of_a_rule_compute_the_same(name, seed):
    assert proven(RULES[name], seed).holds


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=5, deadline=None)
def test_no_rule_changes_the_shape_of_a_result_or_moves_more(name, seed, tmp_path_factory):
    graph = RULES[name].example(np.random.default_rng(seed))
    for found in RULES[name].find(Flow(graph)):
        if found.change is not None:
            after = apply_change(graph, found.change)
            before_shapes, after_shapes = shapes(graph), shapes(after)
            for one in graph.results:
                assert np.prod(after_shapes[one]) == np.prod(before_shapes[one])
            if name not in ("overlap_reduce_scatter", "fold_batchnorm"):
                running = [node for node in after if node.phase != "load"]
                assert sum(node.op.least_bytes for node in running) <= graph.least_bytes
            path = tmp_path_factory.mktemp("graph") / "one.graph.jsonl"
            assert read_graph(write_graph(after, path)) == after


@given(seeds=st.lists(st.integers(0, 2**31), min_size=1, max_size=3))
@settings(max_examples=10, deadline=None)
def test_all_rules_in_turn_keep_what_attention_computes(seeds):
    graph = start = RULES["flash_attention"].example(np.random.default_rng(seeds[0]))
    for rule in RULES.values():
        change = next((one.change for one in rule.find(Flow(graph)) if one.change is not None), None)
        if change is not None:
            graph = apply_change(graph, change)
    assert compare_results(start, graph, seeds[-1]).holds
