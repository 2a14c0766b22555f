"""Whether two graphs compute the same: both executed on the same small random arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.core.errors import SimulationError
from weft.graph import Graph
from weft.rewrite.execute import BITS, Values, execute, random_values
from weft.rewrite.flow import Flow, applied
from weft.rewrite.rules.base import Rule

EXACT = 1e-9
"""Largest difference in fp64, relative to the largest result."""
ROUNDINGS = 16
"""Largest difference with every tensor rounded to its number format, in units of its last place [assumed: each side
rounds less often than that in a row]."""
SEED = 20


@dataclass(frozen=True)
class Proof:
    """How far two graphs' results differ: `exact` in fp64, `rounded` in the number formats.

    Both are relative to the largest element of a result; `rounded` to that of the sum of magnitudes behind it where its
    terms cancel.
    """

    exact: float
    rounded: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether both differences are within their tolerance."""
        return self.exact <= EXACT and self.rounded <= self.tolerance


def compared(before: Graph, after: Graph, seed: int = SEED) -> Proof:
    """The differences of two graphs' results on the same random arrays; InputError for what NumPy does not execute."""
    given = random_values(before, seed)
    dtypes = {tensor.dtype for node in before for tensor in node.op.writes if tensor.dtype in BITS}
    tolerance = ROUNDINGS * 2.0 ** -min((BITS[dtype] for dtype in dtypes), default=52)
    magnitudes = execute(before, {name: [np.abs(one) for one in arrays] for name, arrays in given.items()})
    exact = _difference(execute(before, given, False), execute(after, given, False))
    rounded = _difference(execute(before, given, True), execute(after, given, True), magnitudes)
    return Proof(exact, rounded, tolerance)


def _difference(first: Values, second: Values, magnitudes: Values | None = None) -> float:
    worst = 0.0
    for name, arrays in first.items():
        for one, other, terms in zip(arrays, second[name], (magnitudes or first)[name], strict=True):
            largest = max(float(np.max(np.abs(one))), float(np.max(np.abs(terms))), 1e-30)
            worst = max(worst, float(np.max(np.abs(one - other.reshape(one.shape)))) / largest)
    return worst


def proven(rule: Rule, seed: int = SEED) -> Proof:
    """The proof of a rule on its example; SimulationError if the example has no place for it, or the sides differ."""
    before = rule.example(np.random.default_rng(seed))
    change = next((found.change for found in rule.find(Flow(before)) if found.change is not None), None)
    if change is None:
        raise SimulationError(f"the rule {rule.name} finds no place in its own example; repair one of the two")
    proof = compared(before, applied(before, change), seed)
    if not proof.holds:
        raise SimulationError(
            f"the rule {rule.name} changes what is computed: its sides differ by {proof.exact:.2g} in fp64 and "
            f"{proof.rounded:.2g} rounded; do not use it"
        )
    return proof
