"""A graph before and after rewriting: the verdict in words, the steps, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.core.report import SystemReport
from weft.core.report.table import Table, microseconds, number, text
from weft.rewrite.cost import OperatorCosts, running
from weft.view import looks
from weft.view.figure import Color, Figure, stacked_bars
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.graph import Graph, Node
    from weft.rewrite import Rewriting

_SIDES = ("before", "after")


def _notes(answer: Rewriting) -> Iterator[str]:
    if answer.whole is not None:
        what = "a small twin of the layer" if answer.twin else "the graph"
        yield (
            f"Both sides of {what} agree on random arrays to {answer.whole.exact:.0e} in fp64 and "
            f"{answer.whole.rounded:.0e} in its number formats."
        )
    else:
        yield "The graph is too large to execute; each rule is proven on an example of its own."
    if not answer.exhausted:
        yield f"The search ended after {answer.explored} graphs; more may be found with a larger limit."


def _step_table(answer: Rewriting) -> Table:
    """Return every step of the best sequence with its gain."""
    rows = [
        (step.rule, ", ".join(step.nodes) or "all", 1e6 * step.gain, (step.before.bytes - step.after.bytes) / 1e6,
         (step.before.flops - step.after.flops) / 1e9, step.before.kernels - step.after.kernels,
         1e6 * step.after.seconds)
        for step in answer.steps
    ]  # fmt: skip
    columns = [
        text("rule"), text("nodes", prose=True), microseconds("gain", "gain"),
        number("saved_mb", "traffic saved", "MB", ",.1f"),
        number("saved_gflop", "work saved", "GFLOP", ",.1f"), number("saved_kernels", "kernels saved"),
        microseconds("after", "time then"),
    ]  # fmt: skip
    return Table(columns, rows, f"Rewriting {answer.graph} on {answer.system.name}")


def _cost_table(answer: Rewriting) -> Table:
    """Return the time, traffic, FLOPs, kernels and launches before, after, and of the alternatives."""
    named = [("before", answer.before), ("after", answer.after)]
    named += [(", ".join(one.rules), one.cost) for one in answer.alternatives]
    rows = [
        (name, 1e6 * cost.seconds, cost.bytes / 1e6, cost.flops / 1e9, cost.kernels, cost.launches)
        for name, cost in named
    ]
    columns = [
        text("graph", prose=True), microseconds("time", "time"), number("traffic_mb", "traffic", "MB", ",.1f"),
        number("gflop", "work", "GFLOP", ",.1f"), number("kernels"), number("launches"),
    ]  # fmt: skip
    return Table(columns, rows, "Before, after, and the best with other rules")


def _refusal_table(answer: Rewriting) -> Table:
    """Return where a rule was refused, and why."""
    rows = [(one.rule, ", ".join(one.nodes), one.why) for one in answer.refused]
    return Table([text("rule"), text("nodes"), text("why", prose=True)], rows, "Refused")


def sides(answer: Rewriting) -> Figure:
    """Return the time of every operator before and after, as two bars."""
    prices = OperatorCosts(answer.system, answer.options, answer.launch)
    rows = [
        (side, node.name, 1e6 * prices.op(node.op)[0], str(node.op))
        for side, graph in zip(_SIDES, (answer.graph, answer.rewritten), strict=True)
        for node in _longest_first(graph, prices)
    ]
    table = Table([text("side", " "), text("node"), microseconds("time", "time"), text("operator")], rows)
    return stacked_bars(
        "Where does the time go?", table, lane="side", value="time_us",
        color=Color("node", looks.spread(table.distinct("node"))), in_order=True,
    ).with_caption("Every kernel by itself; those of a reduction may run concurrently with GEMMs.")  # fmt: skip


def _longest_first(graph: Graph, prices: OperatorCosts) -> list[Node]:
    return sorted(running(graph), key=lambda node: -prices.op(node.op)[0])


class RewritingReport(SystemReport["Rewriting"]):
    """The steps that make a graph cheaper, what was refused, and the proof."""

    explained = "rewrite"

    def sentences(self) -> list[str]:
        """Return the answer in sentences: what is gained, by which rule most, and how it is proven."""
        answer = self.answer
        before, after = answer.before, answer.after
        if not answer.steps:
            return [f"No rule makes {answer.graph} cheaper on {answer.system.name}.", *_notes(answer)]
        saved = 1 - after.bytes / before.bytes if before.bytes else 0.0
        count = len(answer.steps)
        many = "One rewriting makes" if count == 1 else f"{count} rewritings make"
        lead = (
            f"{many} {answer.graph} {answer.speedup:.2f} times faster on "
            f"{answer.system.name}: {1e6 * before.seconds:,.0f} to {1e6 * after.seconds:,.0f} µs, "
            f"{percent(saved)} less traffic, "
            f"{before.launches} launches to {after.launches}."
        )
        most = max(answer.steps, key=lambda step: step.gain)
        return [lead, f"Most is gained by {most.rule}: {1e6 * most.gain:,.1f} µs.", *_notes(answer)]

    def tables(self) -> list[Table]:
        """Return the steps, and the costs of all graphs."""
        return [_step_table(self.answer), _cost_table(self.answer)]

    def on_terminal(self) -> list[Table]:
        """Return the steps, if there are any, and the costs."""
        return self.tables()[0 if self.answer.steps else 1 :]

    def details(self) -> list[Table | str]:
        """Return where rules were refused."""
        return [_refusal_table(self.answer)] if self.answer.refused else []

    def figure(self) -> Figure:
        """Return the time of every operator before and after."""
        return sides(self.answer)
