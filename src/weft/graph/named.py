"""Tensors of a graph by name: those given to it, constants, and parts of others that no kernel copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from weft.core.errors import InputError, check_name, check_type, check_whole, show_value
from weft.graph.attention import Attention
from weft.graph.collective import Collective
from weft.graph.gemm import Gemm
from weft.graph.op import Tensor, check_dtype
from weft.graph.streaming import Streaming

if TYPE_CHECKING:
    from weft.graph.graph import Graph, Node

Shape = tuple[int, ...]
_MOST_AXES = 64
"""Most axes of a tensor, as in NumPy."""


@dataclass(frozen=True)
class View:
    """The tensor `of`, read in another way without a kernel: strides and offsets, as of a slice or a transpose.

    In this order: seen in another `shape` (empty: its own), from `start` to `stop` along `axis` (stop 0: to the end),
    every entry of that axis `repeat` times, axes in another `order` (empty: as they are).
    """

    of: str
    shape: Shape = ()
    axis: int = -1
    start: int = 0
    stop: int = 0
    repeat: int = 1
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_type("what a view is of", self.of, str, "name a tensor")
        check_whole("repeat of a view", self.repeat, 1, 1)
        for what, numbers in (("shape", self.shape), ("order", self.order), ("part", (self.start, self.stop))):
            _check_numbers(f"the {what} of a view of '{self.of}'", numbers)
        if type(self.axis) is not int or abs(self.axis) > _MOST_AXES:
            raise InputError(
                f"the axis of a view of '{self.of}' is {show_value(self.axis)}; give a whole number, such as -1"
            )

    def shape_from(self, whole: Shape) -> Shape:
        """Return the shape of the view of a tensor of shape `whole`; InputError if it does not fit."""
        seen = list(self.shape or whole)
        if math.prod(seen) != math.prod(whole):
            raise InputError(f"a view of '{self.of}' in the shape {tuple(seen)} does not fit its shape {whole}")
        _check_axis(self.of, self.axis, len(seen))
        end = self.stop or seen[self.axis]
        if not 0 <= self.start < end <= seen[self.axis]:
            raise InputError(
                f"a view takes {self.start} to {end} of '{self.of}', whose axis has {seen[self.axis]}; give a part"
            )
        seen[self.axis] = (end - self.start) * self.repeat
        if self.order and sorted(self.order) != list(range(len(seen))):
            raise InputError(f"a view of '{self.of}' orders its axes {self.order}; name each of {len(seen)} once")
        return tuple(seen[axis] for axis in self.order) if self.order else tuple(seen)


@dataclass(frozen=True)
class Joined:
    """Tensors that lie side by side in memory along `axis`, so that they are read as one."""

    parts: tuple[str, ...]
    axis: int = 0

    def __post_init__(self) -> None:
        check_type("what is joined", self.parts, tuple, "give a tuple of names")
        is_axis = type(self.axis) is int and abs(self.axis) <= _MOST_AXES
        if not self.parts or not all(isinstance(part, str) for part in self.parts) or not is_axis:
            raise InputError(
                f"{show_value(self.parts)} along {show_value(self.axis)} cannot be joined; name tensors, and an axis"
            )


@dataclass(frozen=True)
class Constant:
    """A tensor filled with `value`, or the `causal` mask: zeros up to the diagonal, and a large negative number above.

    >>> Constant((4, 4), pattern="causal").shape
    (4, 4)
    """

    shape: Shape
    value: float = 0.0
    pattern: Literal["fill", "causal"] = "fill"
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        _check_numbers("the shape of a constant", self.shape)
        value: object = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise InputError(f"the value of a constant is {show_value(value)}; give a number")
        check_name("pattern of a constant", self.pattern, ("fill", "causal"))
        if self.pattern == "causal" and len(self.shape) < 2:
            raise InputError(f"a causal mask has the shape {self.shape}; give one of queries and keys")
        check_dtype(self.dtype)


def _check_numbers(what: str, numbers: Any) -> None:
    """Raise InputError for what is no tuple of whole numbers of at least 0."""
    check_type(what, numbers, tuple, "give a tuple of whole numbers")
    for number in numbers:
        check_whole(what, number, 0, 8)


def _check_axis(of: str, axis: int, axes: int) -> None:
    if not -axes <= axis < axes:
        raise InputError(f"'{of}' has {axes} axes; axis {axis} is not one of them")


Named = Tensor | View | Joined | Constant
"""What a graph says of a tensor by its name."""


def check_names(graph: Graph) -> None:
    """Raise InputError if a node reads a tensor that nothing gives or writes before it, or two nodes write one."""
    for name in graph.tensors:
        sources(name, graph.tensors)
    written: set[str] = set()
    for node in graph.nodes:
        for name in node.inputs:
            for source in sources(name, graph.tensors):
                declared = isinstance(graph.tensors.get(source), Tensor | Constant)
                if source not in written and not declared:
                    raise InputError(
                        f"node '{node.id}' reads the tensor '{source}', which nothing before it writes; "
                        "put it into the graph's tensors"
                    )
        for name in node.outputs:
            if name in written:
                raise InputError(f"two nodes write the tensor '{name}'; give each output a name of its own")
            written.add(name)
    check_type("the results of a graph", graph.results, tuple, "give a tuple of names, like ('y',)")
    for name in graph.results:
        check_type("a result of a graph", name, str, "name a tensor")
        if not set(sources(name, graph.tensors)) <= written | set(graph.tensors):
            raise InputError(f"the graph's result '{name}' is written by no node; name an output of one")


def sources(name: str, tensors: Mapping[str, Named], through: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the tensors whose memory a name stands for: its own, or those that it is a view of or is joined from.

    Raises InputError for a view of itself; `through` are the names on the way.
    """
    if name in through:
        raise InputError(f"the tensor '{name}' is a view of itself, through {', '.join(through)}; give its source")
    match tensors.get(name):
        case View(of=whole):
            return sources(whole, tensors, (*through, name))
        case Joined(parts=parts):
            return tuple(source for part in parts for source in sources(part, tensors, (*through, name)))
    return (name,)


def shapes(graph: Graph) -> dict[str, Shape]:
    """Return the shape of every tensor of a graph by name.

    Outputs have the shapes of their operators, in which flat streaming operators keep that of their first input;
    InputError for views and inputs that do not fit.
    """
    found: dict[str, Shape] = {}
    for node in graph.nodes:
        for name in node.inputs:
            _shape(name, graph.tensors, found)
        for place, name in enumerate(node.outputs):
            stated = graph.tensors.get(name)
            found[name] = stated.shape if isinstance(stated, Tensor) else _write_shape(node, place, found)
    for name in (*graph.tensors, *graph.results):
        _shape(name, graph.tensors, found)
    return found


def _shape(name: str, tensors: Mapping[str, Named], found: dict[str, Shape]) -> Shape:
    if name not in found:
        match tensors.get(name):
            case Tensor(shape=shape) | Constant(shape=shape):
                found[name] = shape
            case View() as view:
                found[name] = view.shape_from(_shape(view.of, tensors, found))
            case Joined(parts, axis):
                every = [list(_shape(part, tensors, found)) for part in parts]
                _check_axis(name, axis, len(every[0]))
                if any(len(one) != len(every[0]) for one in every):
                    raise InputError(f"what is joined to '{name}' has different numbers of axes; give equal ones")
                every[0][axis] = sum(one[axis] for one in every)
                found[name] = tuple(every[0])
            case _:
                raise InputError(f"the tensor '{name}' is neither given nor written; put it into the graph's tensors")
    return found[name]


def _write_shape(node: Node, place: int, found: Mapping[str, Shape]) -> Shape:
    op = node.op
    if place >= len(op.writes):
        raise InputError(f"node '{node.id}' names {len(node.outputs)} outputs; its operator writes {len(op.writes)}")
    shape = op.writes[place].shape
    if isinstance(op, Collective) and node.inputs:
        rows, *others = found[node.inputs[0]]
        more = {"all_gather": op.ranks, "reduce_scatter": 1 / op.ranks}.get(op.name, 1)
        return (max(round(rows * more), 1), *others)
    if isinstance(op, Streaming) and node.inputs:
        first = found[node.inputs[0]]
        if math.prod(first) != math.prod(shape):
            raise InputError(
                f"node '{node.id}' reads '{node.inputs[0]}' of shape {first}, its operator {math.prod(shape)} elements"
            )
        return first
    if isinstance(op, Gemm | Attention):
        _check_reads(node, found)
    return shape[1:] if isinstance(op, Gemm) and op.batch == 1 else shape


def _check_reads(node: Node, found: Mapping[str, Shape]) -> None:
    """Raise InputError if an input has not the elements that the operator reads."""
    for name, tensor in zip(node.inputs, node.op.reads, strict=False):
        if math.prod(found[name]) != math.prod(tensor.shape):
            raise InputError(
                f"node '{node.id}' reads '{name}' of shape {found[name]}, where its operator reads {tensor.shape}"
            )
