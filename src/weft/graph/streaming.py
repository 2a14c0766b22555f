"""Operators that mainly move data, and operators as a framework called them: what each reads, writes and computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from weft.core.errors import InputError, check_name, check_type, check_whole
from weft.core.fields import check_fields
from weft.core.files import packaged_toml
from weft.graph.gemm import Gemm
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes

EXP, DIVIDE, ERF, RANDOM, SELECT, HADAMARD = 6, 6, 12, 20, 20, 4
"""Vector operations of an exponential, a division (each with one special function), an error function, a random number
(Philox, a counter-based generator: ten rounds for four numbers), a place among the largest of a row (radix select:
five instructions for each of four digits), and a Hadamard transform of 16 (four butterflies), each a clock of a lane:
what the fp32 mathematics of CUDA and HIP compile to."""
_OPERATIONS: Mapping[str, float] = {
    "plain": 1,
    "exp": EXP,
    "divide": DIVIDE,
    "erf": ERF,
    "random": RANDOM,
    "select": SELECT,
    "hadamard": HADAMARD,
}
"""Vector operations of each function that the file of kinds counts; "plain" ones are one instruction."""
OWN, MANY, INDEX = "own", "many", "index"
"""A tensor in the operator's dtype, `inputs` or `outputs` of them, and one of 8 bytes for each row."""


@dataclass(frozen=True)
class StreamingKind:
    """A kind of streaming operator: description, dimensions (rows, then columns) with their meaning, and tensors.

    `reads` and `writes` name the dtypes of full-size tensors. `operations` are vector operations per element,
    `specials` exponentials, reciprocals or roots per element. `backward` names the kind that computes the gradients of
    its inputs (empty: the output's gradient passes on unchanged), `weight` the one that computes the gradients of its
    weights, and `saves` the dtypes of the tensors that it keeps until then.
    """

    about: str
    dimensions: Mapping[str, str]
    operations: float
    specials: float = 0.0
    reads: tuple[str, ...] = (OWN,)
    writes: tuple[str, ...] = (OWN,)
    backward: str = ""
    weight: str = ""
    saves: tuple[str, ...] = ()


def _kinds() -> Iterator[tuple[str, StreamingKind]]:
    """Yield the kinds of the file, with operations and dimensions in full."""
    declared = packaged_toml("weft.graph", "streaming.toml")
    dimensions = declared.pop("dimensions")
    for name, kind in declared.items():
        tensors = {key: tuple(kind[key]) for key in ("reads", "writes", "saves") if key in kind}
        operations = sum(count * _OPERATIONS[function] for function, count in kind["operations"].items())
        yield (
            name,
            StreamingKind(**kind | tensors | {"operations": operations, "dimensions": dimensions[kind["dimensions"]]}),
        )


STREAMING: Mapping[str, StreamingKind] = dict(_kinds())
"""The streaming operators by name."""

FUNCTIONS: Mapping[str, int] = {
    **dict.fromkeys(("add", "subtract", "multiply", "maximum"), 2),
    **dict.fromkeys(("relu", "tanh", "sigmoid", "exp", "negate", "square"), 1),
}
"""Functions of elements by name, with their number of operands."""


@dataclass(frozen=True)
class Streaming(Op):
    """The streaming operator `name` on `rows` x `columns` elements of `dtype`; for a flat one `columns` is 1.

    `inputs` and `outputs` count the tensors of "elementwise", and the experts of a token in permutations. `function`
    says what an "elementwise" one computes, where that matters: words of `FUNCTIONS`, each on what the ones before made
    and, if it takes two operands, on the next input. Raises UnknownNameError for an unknown name or dtype, InputError
    for a dimension that is no whole number above zero.

    >>> Streaming("residual_add", 1024).least_bytes
    6144
    """

    kind: ClassVar[str] = "streaming"

    name: str
    rows: int
    columns: int = 1
    dtype: str = "bf16"
    inputs: int = 1
    outputs: int = 1
    function: str = ""

    def __post_init__(self) -> None:
        check_name("operator", self.name, STREAMING)
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        check_type("the function of each element", self.function, str, "give a text, like 'gelu'")
        for word in self.function.split():
            check_name("function of an element", word, FUNCTIONS)
        shown = dict(zip(("rows", "columns"), STREAMING[self.name].dimensions, strict=False))
        subject = f"{{}} of operator '{self.name}'"
        check_sizes(self, subject, {"rows": 1, "columns": 1}, **shown)
        for name, value in (("inputs", self.inputs), ("outputs", self.outputs)):
            check_whole(subject.format(name), value, 0, 1)
        if self.inputs + self.outputs == 0:
            raise InputError(
                f"operator '{self.name}' has neither inputs nor outputs; give at least one of them a tensor"
            )

    @property
    def elements(self) -> int:
        """Elements of each tensor."""
        return self.rows * self.columns

    @property
    def about(self) -> StreamingKind:
        """The `StreamingKind` of this name."""
        return STREAMING[self.name]

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The tensors that it reads."""
        return self._tensors(self.about.reads, self.inputs)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The tensors that it writes."""
        return self._tensors(self.about.writes, self.outputs)

    def _tensors(self, dtypes: tuple[str, ...], count: int) -> tuple[Tensor, ...]:
        """Return the tensors of the dtypes; `count` stands for how many MANY is."""
        listed = (each for dtype in dtypes for each in ([OWN] * count if dtype == MANY else [dtype]))
        return tuple(map(self._tensor, listed))

    def _tensor(self, dtype: str) -> Tensor:
        """Return a tensor as `StreamingKind` names it; one that is always in fp32 is a state."""
        if dtype == INDEX:
            return Tensor((self.rows, 8), "int8", "buffer")
        named = self.dtype if dtype == OWN else dtype
        return Tensor((self.rows, self.columns), named, "state" if dtype == "fp32" else "activation")

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps for the backward pass, other than its outputs."""
        return self._tensors(self.about.saves, self.inputs)

    @property
    def backward(self) -> Gradients:
        """The kernels that compute the gradients of its inputs and of its weights, if it needs any."""
        return Gradients(self._gradient_ops(self.about.backward), self._gradient_ops(self.about.weight))

    def _gradient_ops(self, name: str) -> tuple[Streaming, ...]:
        """Return the operator of that name in the backward pass; a gradient has the inputs' count of outputs."""
        if not name:
            return ()
        given = {
            "elementwise": (self.outputs + self.inputs, self.inputs),
            "permute": (self.outputs, self.inputs),
            "unpermute": (self.outputs, self.inputs),
        }
        inputs, outputs = given.get(name, (self.inputs, self.outputs))
        return (replace(self, name=name, inputs=inputs, outputs=outputs),)

    @property
    def operations(self) -> float:
        """Vector operations per element."""
        many = (self.inputs if MANY in self.about.reads else 0) + (self.outputs if MANY in self.about.writes else 0)
        return self.about.operations * (many or 1)

    @property
    def flops(self) -> int:
        """Vector operations on all elements."""
        return round(self.operations) * self.elements

    def __str__(self) -> str:
        if len(self.about.dimensions) == 1:
            return f"{self.name} of {self.elements} elements"
        return f"{self.name} of {self.rows} rows of {self.columns}"


@dataclass(frozen=True)
class Call(Op):
    """The operator `name` of a framework, such as "aten.add.Tensor", as it was called once.

    It moves `inputs` and `outputs`, and computes `products` on matrix units or, without any, `operations` on vector
    units. A tensor that it only reads in part, such as the table of an embedding, counts with that part. Raises
    InputError for a count of operations that is no whole number of at least 0.

    >>> x = Tensor((4096, 4096))
    >>> Call("aten.mul.Tensor", (x, x), (x,), operations=4096 * 4096).least_bytes
    100663296
    """

    kind: ClassVar[str] = "call"

    name: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    products: tuple[Gemm, ...] = ()
    operations: int = 0

    def __post_init__(self) -> None:
        check_type("the name of an operator", self.name, str, "give a text, like 'aten.add.Tensor'")
        for what in ("inputs", "outputs", "products"):
            check_type(f"{what} of operator '{self.name}'", getattr(self, what), tuple, "give a tuple")
            for one in getattr(self, what):
                kind = Gemm if what == "products" else Tensor
                check_type(
                    f"one of the {what} of operator '{self.name}'", one, kind, f"give a weft.graph.{kind.__name__}"
                )
        check_whole(f"operations of operator '{self.name}'", self.operations, 0, 1)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Its inputs."""
        return self.inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Its outputs."""
        return self.outputs

    @property
    def flops(self) -> int:
        """Those of its products; without any, its vector operations."""
        return sum(product.flops for product in self.products) if self.products else self.operations

    @property
    def matrix_dtype(self) -> str | None:
        """The dtype of its products' operands; None without products."""
        return self.products[0].dtype if self.products else None

    def __str__(self) -> str:
        return self.name
