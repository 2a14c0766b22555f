"""Operators that mainly move data, element by element or row by row: what each reads, writes and computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from weft.errors import InputError, check_name
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes

EXP, DIVIDE, ERF, RANDOM, SELECT, HADAMARD = 6, 6, 12, 20, 20, 4
"""Vector operations of an exponential, a division (each with one special function), an error function, a random number
(Philox, a counter-based generator: ten rounds for four numbers), a place among the largest of a row (radix select:
five instructions for each of four digits), and a Hadamard transform of 16 (four butterflies), each a clock of a lane:
what the fp32 mathematics of CUDA and HIP compile to."""
OWN, MANY, INDEX = "", "many", "index"
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


_ELEMENTS = {"elements": "elements of each tensor"}
_ROWS = {"rows": "rows, each normalised by itself", "columns": "elements of a row"}
_PARAMETERS = {"parameters": "parameters updated on this GPU"}
_TOKENS = {"tokens": "rows gathered", "hidden": "elements of a row"}
_EXPERTS = {"tokens": "rows, each a token", "experts": "elements of a row"}
_STATE = ("fp32", "fp32", "fp32")
"""Optimizer state of each parameter: a master weight and two moments."""

STREAMING: Mapping[str, StreamingKind] = {
    "elementwise": StreamingKind(
        "A function of `inputs` tensors that makes `outputs` tensors, an operation for each of their elements.",
        _ELEMENTS,
        1,
        reads=(MANY,),
        writes=(MANY,),
        backward="elementwise",
        saves=(OWN,),
    ),
    "gelu": StreamingKind("GeLU by the error function.", _ELEMENTS, 5 + ERF, 1, backward="gelu_backward", saves=(OWN,)),
    "gelu_backward": StreamingKind("Gradient of GeLU.", _ELEMENTS, 12 + ERF, 2, (OWN, OWN)),
    "bias_gelu": StreamingKind(
        "A bias added, then GeLU.",
        _ELEMENTS,
        6 + ERF,
        1,
        backward="gelu_backward",
        weight="bias_backward",
        saves=(OWN,),
    ),
    "bias_backward": StreamingKind("Gradient of a bias: a sum over all rows.", _ELEMENTS, 1, writes=()),
    "swiglu": StreamingKind(
        "SiLU of a gate times a second tensor; elements count one of the two.",
        _ELEMENTS,
        4 + EXP + DIVIDE,
        2,
        (OWN, OWN),
        backward="swiglu_backward",
        saves=(OWN, OWN),
    ),
    "swiglu_backward": StreamingKind(
        "Gradients of the gate and the second tensor of SwiGLU.",
        _ELEMENTS,
        10 + EXP + DIVIDE,
        2,
        (OWN, OWN, OWN),
        (OWN, OWN),
    ),
    "dropout": StreamingKind(
        "Random zeros, with a mask of a byte per element.",
        _ELEMENTS,
        2 + RANDOM,
        writes=(OWN, "int8"),
        backward="dropout_backward",
        saves=("int8",),
    ),
    "dropout_backward": StreamingKind("Gradient of dropout: masked and scaled.", _ELEMENTS, 2, reads=(OWN, "int8")),
    "dropout_backward_again": StreamingKind(
        "Gradient of dropout that can be differentiated again (PyTorch's create_graph): three kernels.",
        _ELEMENTS,
        3,
        reads=(OWN, "int8"),
    ),
    "bias_dropout_add": StreamingKind(
        "A bias added, random zeros, and the sum with a second tensor.",
        _ELEMENTS,
        4 + RANDOM,
        reads=(OWN, OWN),
        writes=(OWN, "int8"),
        backward="dropout_backward",
        weight="bias_backward",
        saves=("int8",),
    ),
    "bias_add": StreamingKind("A bias added to each row.", _ELEMENTS, 1),
    "residual_add": StreamingKind("The sum of two tensors.", _ELEMENTS, 1, reads=(OWN, OWN)),
    "transpose": StreamingKind("A copy in another order of dimensions.", _ELEMENTS, 1, backward="transpose"),
    "rotary": StreamingKind("Rotary position embedding.", _ELEMENTS, 6, backward="rotary"),
    "softmax": StreamingKind(
        "Softmax over rows, fp32 inside.", _ROWS, 2 * EXP + DIVIDE + 4, 3, backward="softmax_backward", saves=(OWN,)
    ),
    "softmax_backward": StreamingKind("Gradient of softmax over rows.", _ROWS, 6, 0, (OWN, OWN)),
    "eager_softmax": StreamingKind(
        "Softmax as PyTorch runs it, its gradient in two kernels.",
        _ROWS,
        2 * EXP + DIVIDE + 4,
        3,
        backward="eager_softmax_backward",
        saves=(OWN,),
    ),
    "eager_softmax_backward": StreamingKind(
        "Gradient of softmax: its output times the gradient, then differences from sums over rows.",
        _ROWS,
        7,
        0,
        (OWN, OWN),
    ),
    "scale": StreamingKind("A multiple of a tensor.", _ROWS, 1, backward="scale"),
    "mask": StreamingKind("A tensor and a mask that is added to each row.", _ROWS, 1),
    "masked_fill": StreamingKind(
        "A tensor with a constant where a mask says so, in place.", _ROWS, 1, backward="masked_fill_backward"
    ),
    "masked_fill_backward": StreamingKind(
        "Gradient of masked_fill: a copy, then zeros where the mask says so.", _ROWS, 2, 0, (OWN, OWN), (OWN, OWN)
    ),
    "widen": StreamingKind("A copy in fp32.", _ELEMENTS, 1, writes=("fp32",), backward="cast"),
    "layernorm": StreamingKind(
        "LayerNorm with scale and shift.", _ROWS, 12, backward="layernorm_backward", saves=(OWN,)
    ),
    "layernorm_backward": StreamingKind(
        "Gradients of LayerNorm's input, and partial sums of those of scale and shift.", _ROWS, 18, 0, (OWN, OWN)
    ),
    "eager_layernorm": StreamingKind(
        "LayerNorm with scale and shift, as PyTorch runs it: another kernel sums the gradients of both.",
        _ROWS,
        12,
        backward="layernorm_backward",
        weight="layernorm_sums",
        saves=(OWN,),
    ),
    "layernorm_sums": StreamingKind("Gradients of LayerNorm's scale and shift.", _ROWS, 4, 0, (OWN, OWN), ()),
    "batchnorm": StreamingKind(
        "Batch normalisation in inference: channels by their kept mean and variance, scale and shift.", _ELEMENTS, 2
    ),
    "batchnorm_training": StreamingKind(
        "Batch normalisation in training: mean and variance of each channel over the batch, then scale and shift.",
        _ELEMENTS,
        8,
        backward="batchnorm_gradient",
        saves=(OWN,),
    ),
    "batchnorm_gradient": StreamingKind(
        "Gradients of batch normalisation: sums over each channel, then their use.", _ELEMENTS, 12, 0, (OWN, OWN)
    ),
    "add_layernorm": StreamingKind(
        "The sum of two tensors, kept, and its LayerNorm.",
        _ROWS,
        13,
        0,
        (OWN, OWN),
        (OWN, OWN),
        backward="layernorm_backward",
        saves=(OWN,),
    ),
    "dropout_add_layernorm": StreamingKind(
        "Random zeros, the sum with a second tensor, kept, and its LayerNorm.",
        _ROWS,
        15 + RANDOM,
        0,
        (OWN, OWN),
        (OWN, OWN, "int8"),
        backward="layernorm_backward",
        saves=(OWN, "int8"),
    ),
    "add_rmsnorm": StreamingKind(
        "The sum of two tensors, kept, and its RMSNorm.",
        _ROWS,
        6,
        0,
        (OWN, OWN),
        (OWN, OWN),
        backward="rmsnorm_backward",
        saves=(OWN,),
    ),
    "rmsnorm": StreamingKind("RMSNorm with scale.", _ROWS, 5, backward="rmsnorm_backward", saves=(OWN,)),
    "rmsnorm_backward": StreamingKind(
        "Gradient of RMSNorm's input, and partial sums of that of the scale.", _ROWS, 11, 0, (OWN, OWN)
    ),
    "cross_entropy": StreamingKind(
        "Loss of rows of logits in the kernels of Megatron-LM: fp32 copy, maximum, shift, exponential, sum, quotient.",
        _ROWS,
        2 * EXP + DIVIDE + 4,
        2,
        (OWN, "fp32", "fp32", "fp32", "fp32", "fp32"),
        ("fp32", "fp32", "fp32", "fp32"),
        backward="cross_entropy_backward",
        saves=("fp32",),
    ),
    "cross_entropy_backward": StreamingKind(
        "Gradient of the logits from the kept probabilities.", _ROWS, 3, 0, ("fp32", "fp32"), ("fp32", OWN)
    ),
    "eager_cross_entropy": StreamingKind(
        "Loss of rows of logits in the kernels of PyTorch: an fp32 copy, then the logarithm of softmax.",
        _ROWS,
        2 * EXP + 4,
        2,
        (OWN, "fp32"),
        ("fp32", "fp32"),
        backward="eager_cross_entropy_backward",
        saves=("fp32",),
    ),
    "eager_cross_entropy_backward": StreamingKind(
        "Gradient of the logits: of the chosen logarithms, of the logarithm of softmax, and a copy in the dtype.",
        _ROWS,
        EXP + 4,
        1,
        ("fp32", "fp32", "fp32"),
        ("fp32", "fp32", OWN),
    ),
    "fused_cross_entropy": StreamingKind(
        "Loss of rows of logits and their gradient in place, in one kernel.",
        _ROWS,
        2 * EXP + DIVIDE + 4,
        2,
        (OWN, OWN),
    ),
    "adam": StreamingKind(
        "An Adam step: fp32 master weights and moments, gradients and a copy of the weights in the dtype.",
        _PARAMETERS,
        12 + DIVIDE,
        2,
        (OWN, *_STATE),
        _STATE,
    ),
    "lamb": StreamingKind(
        "A LAMB step: as Adam, with the norms of weights and update between its two kernels.",
        _PARAMETERS,
        18 + DIVIDE,
        2,
        (OWN, *_STATE),
        _STATE,
    ),
    "sgd": StreamingKind(
        "A step of SGD with momentum: fp32 master weights and one moment.",
        _PARAMETERS,
        4,
        0,
        (OWN, "fp32", "fp32"),
        ("fp32", "fp32"),
    ),
    "embedding": StreamingKind(
        "Rows gathered from a table.", _TOKENS, 1, reads=(OWN, INDEX), backward="embedding_backward", saves=(INDEX,)
    ),
    "embedding_backward": StreamingKind(
        "Gradients of rows added to those of a table.", _TOKENS, 1, reads=(OWN, OWN, INDEX)
    ),
    "top_k": StreamingKind(
        "Router of a mixture: softmax over the experts of each token, the largest of them, and a map of the choice.",
        _EXPERTS,
        2 * EXP + DIVIDE + 4 + SELECT,
        2,
        writes=("fp32", "int8"),
        backward="top_k_backward",
        saves=("fp32", "int8"),
    ),
    "top_k_backward": StreamingKind(
        "Gradient of the router's logits from those of the chosen experts.", _EXPERTS, 6, 0, ("fp32", "fp32", "int8")
    ),
    "permute": StreamingKind(
        "Tokens copied to the places of the `outputs` experts that each is sent to.",
        _TOKENS,
        1,
        reads=(OWN, INDEX),
        writes=(MANY,),
        backward="unpermute",
        saves=(INDEX,),
    ),
    "unpermute": StreamingKind(
        "Sum of the rows of the `inputs` experts of each token, weighted by the router.",
        _TOKENS,
        2,
        reads=(MANY, INDEX),
        backward="unpermute_backward",
        saves=(MANY, INDEX),
    ),
    "unpermute_backward": StreamingKind(
        "Gradients of the experts' rows, and of the router's weights.",
        _TOKENS,
        3,
        reads=(OWN, MANY, INDEX),
        writes=(MANY,),
    ),
    "cast": StreamingKind("A copy of fp32 numbers in the dtype.", _ELEMENTS, 1, reads=("fp32",), backward="widen"),
    "amax": StreamingKind("The largest magnitude of a tensor, from which its scale follows.", _ELEMENTS, 1, writes=()),
    "quantize": StreamingKind("A scaled copy in fp8, and its largest magnitude.", _ELEMENTS, 4, writes=("fp8",)),
    "quantize_transpose": StreamingKind(
        "Scaled copies in fp8, one of them transposed, and the largest magnitude.", _ELEMENTS, 4, writes=("fp8", "fp8")
    ),
    "quantize_mxfp8": StreamingKind(
        "Copies in MXFP8 with block scales along rows and along columns.", _ELEMENTS, 8, writes=("mxfp8", "mxfp8")
    ),
    "quantize_nvfp4": StreamingKind(
        "Copies in NVFP4 with block scales along rows and, rotated by a Hadamard matrix of 16, along columns.",
        _ELEMENTS,
        8 + HADAMARD + RANDOM / 8,
        writes=("nvfp4", "nvfp4"),
    ),
}
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
        check_dtype(self.dtype)
        for word in self.function.split():
            check_name("function of an element", word, FUNCTIONS)
        shown = dict(zip(("rows", "columns"), STREAMING[self.name].dimensions, strict=False))
        subject = f"{{}} of operator '{self.name}'"
        check_sizes(self, subject, {"rows": 1, "columns": 1, "inputs": 0, "outputs": 0}, **shown)
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
        """The tensors of the dtypes; `count` stands for how many MANY is."""
        listed = [one for dtype in dtypes for one in ([OWN] * count if dtype == MANY else [dtype])]
        return tuple(
            Tensor((self.rows, 8), "int8", "buffer")
            if dtype == INDEX
            else Tensor((self.rows, self.columns), dtype or self.dtype, "state" if dtype == "fp32" else "activation")
            for dtype in listed
        )

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps for the backward pass, other than its outputs."""
        return self._tensors(self.about.saves, self.inputs)

    @property
    def backward(self) -> Gradients:
        """The kernels that compute the gradients of its inputs and of its weights, if it needs any."""
        return Gradients(self._derived(self.about.backward), self._derived(self.about.weight))

    def _derived(self, name: str) -> tuple[Streaming, ...]:
        """The operator of that name in the backward pass; a gradient has the inputs' count of outputs."""
        if not name:
            return ()
        given = {
            "elementwise": (self.outputs + self.inputs, self.inputs),
            "unpermute": (self.outputs, 1),
            "unpermute_backward": (self.inputs, self.inputs),
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
