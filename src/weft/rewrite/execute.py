"""Graphs executed on small arrays in NumPy: the meaning of the operators, and whether two graphs compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, SimulationError
from weft.graph import Attention, Collective, Constant, Convolution, Gemm, Graph, Joined, Node, Op, Opaque, Streaming
from weft.graph.named import Named, View, shapes
from weft.graph.op import Tensor
from weft.rewrite.flow import Flow, apply_change
from weft.rewrite.rules.base import Rule

Array = npt.NDArray[np.float64]
Values = dict[str, list[Array]]
"""The array of every tensor by name, one for each rank."""

_DROPPED = 0.1
"""Share of elements that dropout drops: which ones is an input, so that both sides of a rule drop the same."""
_EPSILON = 1e-5
HIDDEN = -1e4
"""What a causal mask adds to a score that is not seen."""
_BITS = {"fp64": 52, "fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7}
"""Bits of the fraction of number formats."""
LARGEST = 2 * 10**8
"""Most floating-point operations of a graph that is executed."""


def execute(graph: Graph, given: Values, rounded: bool = False) -> Values:
    """Return the graph's results by name, an array for each rank, from arrays of the tensors `given` to it.

    All is computed in fp64; `rounded`, every output is rounded to the number format of its tensor. Raises InputError
    for an operator without a meaning here, and for a graph without results.
    """
    if not graph.results:
        raise InputError("the graph names no results, so there is nothing to compare; give it results=('y',)")
    values: Values = {name: list(arrays) for name, arrays in given.items()}
    for node in graph:
        inputs = [_read(name, graph, values) for name in node.inputs]
        written = _run(node, inputs, graph.ranks)
        for place, (name, arrays) in enumerate(zip(node.outputs, written, strict=False)):
            values[name] = [_round_values(one, _dtype(graph, node, place)) for one in arrays] if rounded else arrays
    return {name: _read(name, graph, values) for name in graph.results}


def _dtype(graph: Graph, node: Node, place: int) -> str:
    stated = graph.tensors.get(node.outputs[place])
    return stated.dtype if isinstance(stated, Tensor) else node.op.writes[place].dtype


def random_values(graph: Graph, seed: int = 0) -> Values:
    """Random arrays for what is given to a graph: normal numbers, positive ones for variances, and bits for dropout."""
    draw = np.random.default_rng(seed)
    return {
        name: [_random(name, tensor, draw) for _ in range(graph.ranks)]
        for name, tensor in graph.tensors.items()
        if isinstance(tensor, Tensor) and not any(name in node.outputs for node in graph)
    }


def _random(name: str, tensor: Tensor, draw: np.random.Generator) -> Array:
    if tensor.dtype == "int8":
        return (draw.random(tensor.shape) >= _DROPPED).astype(np.float64)
    if "variance" in name:
        return draw.uniform(0.5, 2.0, tensor.shape)
    fan = tensor.shape[-2] if tensor.role == "weight" and len(tensor.shape) > 1 else 1
    return draw.standard_normal(tensor.shape) / math.sqrt(fan)


def _read(name: str, graph: Graph, values: Values) -> list[Array]:
    if name not in values:
        values[name] = _find_views(graph.tensors.get(name), name, graph, values)
        if isinstance(graph.tensors.get(name), View | Joined):
            return values.pop(name)  # what it is a view of may be written again under another rule
    return values[name]


def _find_views(named: Named | None, name: str, graph: Graph, values: Values) -> list[Array]:
    match named:
        case View() as view:
            return [_take_view(one, view) for one in _read(view.of, graph, values)]
        case Joined(parts, axis):
            every = [_read(part, graph, values) for part in parts]
            return [np.concatenate(one, axis=axis) for one in zip(*every, strict=True)]
        case Constant(shape, value, pattern):
            causal = pattern == "causal"
            made = np.triu(np.full(shape, HIDDEN), 1 + shape[-1] - shape[-2]) if causal else np.full(shape, value)
            return [made] * graph.ranks
    raise InputError(f"the tensor '{name}' has no value; give arrays for all that no node writes")


def _take_view(whole: Array, view: View) -> Array:
    seen = whole.reshape(view.shape or whole.shape)
    taken = [slice(None)] * seen.ndim
    taken[view.axis] = slice(view.start, view.stop or None)
    seen = np.repeat(seen[tuple(taken)], view.repeat, axis=view.axis)
    return seen.transpose(view.order) if view.order else seen


def _round_values(values: Array, dtype: str) -> Array:
    """Values rounded to the fraction of a number format; unchanged for formats that are not of `_BITS`."""
    if dtype not in _BITS:
        return values
    fraction, exponent = np.frexp(values)
    scale = 2.0 ** (_BITS[dtype] + 1)
    return np.ldexp(np.round(fraction * scale) / scale, exponent)


def _run(node: Node, inputs: Sequence[list[Array]], ranks: int) -> list[list[Array]]:
    """Return the outputs of a node, each as arrays of all ranks."""
    if isinstance(node.op, Collective):
        return [_collective(node.op, inputs[0])]
    meaning = MEANINGS.get(_key(node.op))
    if meaning is None:
        raise InputError(
            f"node '{node.id}' ({node.op}) has no meaning in NumPy; add one to MEANINGS of rewrite/execute.py"
        )
    each = [meaning(node.op, *(one[rank] for one in inputs)) for rank in range(ranks)]
    return [list(one) for one in zip(*each, strict=True)]


def _key(op: Op) -> str:
    return op.name if isinstance(op, Streaming | Opaque) else op.kind


def _collective(op: Collective, data: list[Array]) -> list[Array]:
    """Return what every rank holds after a collective; ranks share the first axis."""
    match op.name:
        case "all_reduce":
            return [np.sum(data, axis=0)] * len(data)
        case "reduce_scatter":
            return list(np.split(np.sum(data, axis=0), len(data), axis=0))
        case "all_gather":
            return [np.concatenate(data, axis=0)] * len(data)
    raise InputError(f"the collective {op.name} has no meaning in NumPy; rules rewrite reductions and all-gathers only")


# -- operators: each takes the operator and its inputs, and returns its outputs


def _gemm(op: Gemm, a: Array, b: Array, *bias: Array) -> tuple[Array]:
    product = a.reshape(op.batch, op.m, op.k) @ b.reshape(op.batch, op.k, op.n)
    return (sum(bias, product.reshape(product.shape[1:] if op.batch == 1 else product.shape)),)


def _convolution(op: Convolution, image: Array, filters: Array, *bias: Array) -> tuple[Array]:
    edge = (op.padding, op.padding)
    padded = np.pad(image, ((0, 0), edge, edge, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (op.window, op.window), axis=(1, 2))
    return (sum(bias, np.einsum("bhwcij,ijcf->bhwf", windows[:, :: op.stride, :: op.stride], filters)),)


def _attention(op: Attention, query: Array, keys: Array, values: Array, *keep: Array) -> tuple[Array]:
    """Fused attention: scores divided by the root of the head's size, a causal mask, softmax, dropout."""
    queries = query.reshape(op.batch, op.heads, op.query, op.head)
    shared = op.heads // op.key_heads
    every_key = np.repeat(keys.reshape(op.batch, op.key_heads, op.keys, op.head), shared, axis=1)
    every_value = np.repeat(values.reshape(op.batch, op.key_heads, op.keys, op.value_head), shared, axis=1)
    scores = queries @ every_key.swapaxes(-1, -2) / math.sqrt(op.head)
    if op.causal:
        scores = scores + np.triu(np.full((op.query, op.keys), HIDDEN), 1 + op.keys - op.query)
    (weights,) = _softmax(op, scores)
    if op.dropout:
        weights = weights * keep[0].reshape(weights.shape) / (1 - _DROPPED)
    return (weights @ every_value,)


def _softmax(op: Op, scores: Array) -> tuple[Array]:
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (grown / grown.sum(axis=-1, keepdims=True),)


def _layernorm(op: Op, x: Array, scale: Array, shift: Array) -> tuple[Array]:
    centred = x - x.mean(axis=-1, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON) * scale + shift,)


def _rmsnorm(op: Op, x: Array, scale: Array) -> tuple[Array]:
    return (x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + _EPSILON) * scale,)


def _batchnorm(op: Op, x: Array, scale: Array, shift: Array, mean: Array, variance: Array) -> tuple[Array]:
    return ((x - mean) / np.sqrt(variance + _EPSILON) * scale + shift,)


def _fold_batchnorm(
    op: Op, filters: Array, scale: Array, shift: Array, mean: Array, variance: Array, *bias: Array
) -> tuple[Array, Array]:
    """Filters and bias that normalise by themselves: w g / sqrt(var + eps), and the shift that is left."""
    factor = scale / np.sqrt(variance + _EPSILON)
    return filters * factor, shift + (sum(bias, np.zeros_like(mean)) - mean) * factor


def _gelu(op: Op, x: Array, *bias: Array) -> tuple[Array]:
    """GeLU by the error function, which NumPy lacks: by Python's, element by element."""
    moved = sum(bias, x)
    return (0.5 * moved * (1 + np.vectorize(math.erf)(moved / math.sqrt(2))),)


def _swiglu(op: Op, gate: Array, up: Array) -> tuple[Array]:
    return (gate / (1 + np.exp(-gate)) * up,)


def _dropout(op: Op, x: Array, keep: Array) -> tuple[Array]:
    return (x * keep.reshape(x.shape) / (1 - _DROPPED),)


def _bias_dropout_add(op: Op, x: Array, residual: Array, keep: Array, *bias: Array) -> tuple[Array]:
    return (_dropout(op, sum(bias, x), keep)[0] + residual,)


def _add_layernorm(op: Op, x: Array, residual: Array, scale: Array, shift: Array) -> tuple[Array, Array]:
    total = x + residual
    return _layernorm(op, total, scale, shift)[0], total


def _dropout_add_layernorm(
    op: Op, x: Array, residual: Array, scale: Array, shift: Array, keep: Array, *bias: Array
) -> tuple[Array, Array]:
    return _add_layernorm(op, _dropout(op, sum(bias, x), keep)[0], residual, scale, shift)


def _add_rmsnorm(op: Op, x: Array, residual: Array, scale: Array) -> tuple[Array, Array]:
    return _rmsnorm(op, x + residual, scale)[0], x + residual


def _rotary(op: Op, x: Array) -> tuple[Array]:
    """Pairs of neighbours turned by an angle that grows with the row and falls with the column, over heads of 128."""
    rows, pairs = np.arange(x.shape[0])[:, None], np.arange(x.shape[-1] // 2) % 64
    angle = rows / 10_000 ** (pairs / 64)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    turned[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return (turned,)


_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
    "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "exp": np.exp,
    "negate": np.negative, "square": np.square,
}  # fmt: skip


def _elementwise(op: Streaming, first: Array, *others: Array) -> tuple[Array]:
    """Return the words of its function in turn; one of two operands takes the next input."""
    from weft.graph.streaming import FUNCTIONS

    value, waiting = first, iter(others)
    for word in op.function.split():
        more = [next(waiting)] if FUNCTIONS[word] == 2 else []
        value = _FUNCTIONS[word](value, *more)
    return (value,)


def _same(op: Op, x: Array) -> tuple[Array]:
    return (x.copy(),)


def _add_arrays(op: Op, x: Array, other: Array) -> tuple[Array]:
    return (x + other.reshape(x.shape) if other.size == x.size else x + other,)


MEANINGS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "gemm": _gemm,
    "convolution": _convolution,
    "attention": _attention,
    "elementwise": _elementwise,
    "bias_add": _add_arrays,
    "residual_add": _add_arrays,
    "mask": _add_arrays,
    "scale": lambda op, x, factor: (x * factor,),
    "softmax": _softmax,
    "eager_softmax": _softmax,
    "layernorm": _layernorm,
    "eager_layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
    "batchnorm": _batchnorm,
    "fold_batchnorm": _fold_batchnorm,
    "concatenate": lambda op, *parts: (np.concatenate(parts, axis=-1),),
    "gelu": _gelu,
    "bias_gelu": _gelu,
    "swiglu": _swiglu,
    "dropout": _dropout,
    "bias_dropout_add": _bias_dropout_add,
    "add_layernorm": _add_layernorm,
    "dropout_add_layernorm": _dropout_add_layernorm,
    "add_rmsnorm": _add_rmsnorm,
    "rotary": _rotary,
    "transpose": _same,
    "widen": _same,
    "cast": _same,
}
"""What each operator computes, by the name of a streaming or opaque operator, else by its kind."""


_PARAMETERS: Mapping[str, int] = {
    **dict.fromkeys(("bias_add", "bias_gelu", "scale", "mask", "dropout", "bias_dropout_add"), 1),
    **dict.fromkeys(("rmsnorm", "add_rmsnorm"), 1),
    **dict.fromkeys(("layernorm", "eager_layernorm", "add_layernorm"), 2),
    "dropout_add_layernorm": 3,
    "batchnorm": 4,
}
"""Fewest small inputs, such as a bias, that streaming operators read behind the tensors of their traffic."""


def least_inputs(op: Op) -> int:
    """Fewest inputs that a node of an operator must name."""
    small = _PARAMETERS.get(op.name, 0) if isinstance(op, Streaming) else 0
    return 0 if isinstance(op, Opaque) else len(op.reads) + small


def executable(graph: Graph) -> bool:
    """Return whether a graph names its tensors and results, is small, and all of its operators have a meaning."""
    known = all(isinstance(node.op, Collective) or _key(node.op) in MEANINGS for node in graph)
    named = bool(graph.results) and all(node.outputs for node in graph)
    if not (known and named) or graph.flops * graph.ranks > LARGEST:
        return False
    return sum(math.prod(shape) for shape in shapes(graph).values()) * graph.ranks <= LARGEST // 10


_EXACT = 1e-9
"""Largest difference in fp64, relative to the largest result."""
_ROUNDINGS = 16
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
        return self.exact <= _EXACT and self.rounded <= self.tolerance


def compare_results(before: Graph, after: Graph, seed: int = SEED) -> Proof:
    """The differences of two graphs' results on the same random arrays; InputError for what NumPy does not execute."""
    given = random_values(before, seed)
    dtypes = {tensor.dtype for node in before for tensor in node.op.writes if tensor.dtype in _BITS}
    tolerance = _ROUNDINGS * 2.0 ** -min((_BITS[dtype] for dtype in dtypes), default=52)
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
    proof = compare_results(before, apply_change(before, change), seed)
    if not proof.holds:
        raise SimulationError(
            f"the rule {rule.name} changes what is computed: its sides differ by {proof.exact:.2g} in fp64 and "
            f"{proof.rounded:.2g} rounded; do not use it"
        )
    return proof
