"""GEMMs of a layer on operands of 8 or 4 bits: recipes, and the kernels that make the operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weft.graph import Gemm, GroupedGemm, Op, Streaming
from weft.models.block import Piece


@dataclass(frozen=True)
class Recipe:
    """The number format of a GEMM's operands, and the `kernels` that make them of a 16-bit tensor, one after another.

    Both orders of a tensor are made at once: one for the output or the gradient of the input, one for the gradient of
    the weight. Weights are quantised once per step, or with `each_pass` in every forward pass. Tensor-parallel ranks
    gather tokens that are quantised; not so if `gathers_wide`: then in 16 bits, and each rank quantises all of them
    (pytorch/ao pull request 2145, an all-gather of row-wise FP8, has not been merged).
    """

    about: str
    dtype: str
    kernels: tuple[str, ...]
    each_pass: bool = False
    gathers_wide: bool = False


RECIPES: Mapping[str, Recipe] = {
    "delayed": Recipe(
        "fp8, a scale for each tensor from earlier steps (Transformer Engine)", "fp8", ("quantize_transpose",)
    ),
    "current": Recipe(
        "fp8, a scale for each tensor from its largest element (Transformer Engine)",
        "fp8",
        ("amax", "quantize_transpose"),
    ),
    "tensorwise": Recipe(
        "the same, weights in every pass (torchao)", "fp8", ("amax", "quantize_transpose"), each_pass=True
    ),
    "rowwise": Recipe(
        "fp8, a scale for each row of an operand (torchao)",
        "fp8",
        ("quantize", "amax", "quantize"),
        each_pass=True,
        gathers_wide=True,
    ),
    "mxfp8": Recipe("8 bits, a scale for each 32 elements", "mxfp8", ("quantize_mxfp8",)),
    "nvfp4": Recipe(
        "4 bits, a scale for each 16 elements and for each tensor (arXiv:2509.25149)",
        "nvfp4",
        ("amax", "quantize_nvfp4"),
    ),
}
"""How operands are quantised, by name."""
_NARROW = tuple(dict.fromkeys(recipe.dtype for recipe in RECIPES.values()))
_PARTS = ("attention", "mlp", "moe")
"""Parts of a model whose GEMMs are quantised; embedding, head and router keep 16 bits."""


def narrowed(pieces: Iterable[Piece], recipe: str) -> tuple[Piece, ...]:
    """The pieces with GEMMs of layers on operands of the recipe; without one, unchanged."""
    return tuple(_narrowed(piece, RECIPES[recipe].dtype) for piece in pieces) if recipe else tuple(pieces)


def _narrowed(piece: Piece, dtype: str) -> Piece:
    in_layer = piece.module in _PARTS and piece.name != "router"
    if in_layer and isinstance(piece.op, Gemm | GroupedGemm):
        return replace(piece, op=replace(piece.op, dtype=dtype))
    return piece


def is_narrow(op: Op) -> bool:
    """Whether an operator multiplies operands of a recipe."""
    return isinstance(op, Gemm | GroupedGemm) and op.dtype in _NARROW


def quantized(elements: int, recipe: str, dtype: str = "bf16") -> tuple[Streaming, ...]:
    """The kernels that quantise so many elements of a 16-bit tensor."""
    return tuple(Streaming(kernel, elements, 1, dtype) for kernel in RECIPES[recipe].kernels)
