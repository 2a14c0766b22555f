"""`weft.rewrite`: a graph, or a layer of a model, made cheaper by rules that are proven on small arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft import hardware
from weft.core.errors import InputError, check_name, check_type, check_whole
from weft.core.options import SUSTAINED, RunOptions
from weft.core.units import Dimension, parse
from weft.graph import Graph
from weft.hardware import System
from weft.hardware.resolve import Described
from weft.models import Transformer, graph_in, load_model
from weft.models.parallel.check import check_plan
from weft.models.parallel.plan import TrainingPlan
from weft.rewrite.answer import Rewriting
from weft.rewrite.best import ALPHA, MOST, RewriteSearch, RewriteState, refusals, replay_steps
from weft.rewrite.cost import LAUNCH, OperatorCosts
from weft.rewrite.execute import Proof, compare_results, executable, least_inputs, proven
from weft.rewrite.layer import layer_graph, twin
from weft.rewrite.rules import RULES, Rule

FIELDS = ("tp", "sp", "micro_batch", "sequence", "dtype", "dropout")
"""What may be stated of a model's layer: fields of a plan, and whether it drops elements."""


def rewrite(
    work: Graph | Transformer | str | Path,
    system: Described,
    rules: Sequence[str | Rule] = (),
    *,
    launch: str = "",
    alpha: float = ALPHA,
    most: int = MOST,
    options: RunOptions = SUSTAINED,
    **plan: Any,
) -> Rewriting:
    """The cheapest graph that `rules` lead to (none: all of `RULES`), with each step's gain, proven by execution.

    `work` is a graph that names its tensors, a file of one, or a model whose dense layer's forward pass is rewritten;
    `plan` then holds those of `FIELDS`. `rules` are names or your own. The host launches a kernel every `launch` (""
    for that of empty kernels). The search is best-first with backtracking: graphs of up to `alpha` times the best time
    are looked at further, at most `most` are costed.

    Raises UnknownNameError for an unknown rule, model or system, InputError for a graph that does not name its tensors,
    for a layer that no rule knows, and for numbers out of range.

    >>> found = rewrite("llama-3-8b", "h100-sxm", ["merge_gate_up"], sequence=512)
    >>> [step.nodes for step in found.steps]
    [('gate', 'up')]
    """
    wanted = _select_rules(rules)
    check_whole("most", most, 1, MOST)
    if not 1 <= alpha <= 10:
        raise InputError(f"alpha is {alpha:g}; give a factor from 1 (only improvements) to 10, such as {ALPHA}")
    where = hardware.system(system)
    graph, small = _graph(work, where, plan)
    period = parse(launch, Dimension.SECONDS) if launch else LAUNCH
    if not 0 < period < 1:
        raise InputError(f"launch is {launch}; give a time above zero and below a second, such as '5 us'")
    search = RewriteSearch(OperatorCosts(where, options, period), tuple(wanted.values()), alpha, most)
    best = search.run(graph)
    used = dict.fromkeys(step.rule for step in best.steps)
    whole = _whole(graph, best, small, wanted)
    return Rewriting(
        where, graph, best.graph, search.states[0].cost, best.cost, best.steps, search.alternatives(best),
        refusals(graph, search.rules), {name: proven(wanted[name]) for name in used}, whole, small is not None,
        len(search.states), search.exhausted, period, options,
    )  # fmt: skip


def _select_rules(rules: Sequence[str | Rule]) -> dict[str, Rule]:
    """Return the rules by name: those asked for, or all of `RULES`."""
    check_type("rules", rules, (list, tuple), "give a list of names or of rules, such as ['add_norm']")
    found = {}
    for one in rules or tuple(RULES):
        if not isinstance(one, Rule):
            check_name("rule", one, RULES)
        rule = one if isinstance(one, Rule) else RULES[one]
        found[rule.name] = rule
    return found


def _graph(work: Graph | Transformer | str | Path, where: System, plan: dict[str, Any]) -> tuple[Graph, Graph | None]:
    """Return the graph to rewrite, and the small twin of a model's layer."""
    work = graph_in(work) or work
    if isinstance(work, Graph):
        if plan:
            raise InputError(f"{', '.join(plan)} belong to a model's layer; a graph has its sizes, so leave them out")
        _check(work)
        return work, None
    check_type("the work", work, (Transformer, str, Path), "give a model, a graph, or a file of one (.graph.jsonl)")
    model = load_model(work)
    for name in plan:
        check_name("field of a layer's plan", name, FIELDS)
    dropout = bool(plan.pop("dropout", False))
    stated = TrainingPlan(**{"sequence": model.sequence_length, "batch": plan.get("micro_batch", 1), **plan})
    check_plan(model, stated)
    if where.gpus < stated.tp:
        raise InputError(
            f"{where.name} has {where.gpus} GPUs, the layer is shared by {stated.tp}; name more, or less tp"
        )
    return layer_graph(model, stated, dropout), twin(model, stated, dropout)


def _check(graph: Graph) -> None:
    """Raise InputError for a graph whose nodes do not name what they read and write."""
    unnamed = [node.id for node in graph if not node.outputs]
    if unnamed:
        raise InputError(
            f"node '{unnamed[0]}' does not name its tensors, so no rule can tell what reads them; give it inputs and "
            "outputs"
        )
    for node in graph:
        if len(node.inputs) < least_inputs(node.op):
            raise InputError(
                f"node '{node.id}' ({node.op}) names {len(node.inputs)} inputs; give at least {least_inputs(node.op)}, "
                "small ones such as a bias behind the others"
            )
    sized = [node.id for node in graph if any(np.ndim(value) for value in vars(node.op).values())]
    if sized:
        raise InputError(f"node '{sized[0]}' has arrays of dimensions; give a graph of one size")
    if not graph.results:
        raise InputError("the graph names no results, so every rule could drop all of it; give it results=('y',)")


def _whole(graph: Graph, best: RewriteState, small: Graph | None, rules: dict[str, Rule]) -> Proof | None:
    """The difference of the graph, or its twin, and what the steps make of it; None if NumPy cannot execute it."""
    if small is not None:
        return compare_results(small, replay_steps(small, best.steps, rules))
    return compare_results(graph, best.graph) if executable(graph) else None
