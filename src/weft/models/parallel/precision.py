"""Recipes of low-precision training: which tensors have 8 or 4 bits, and the kernels that make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weft.core.errors import InputError
from weft.graph import Attention, Gemm, GroupedGemm, Op, Streaming
from weft.graph.op import Role, width
from weft.hardware import Gpu
from weft.models.block import LayerOp


@dataclass(frozen=True)
class Recipe:
    """The number formats of a training step by class of tensor; an empty name stands for the plan's `dtype`, 16 bits.

    `operands` is that of both operands of the three GEMMs of each linear layer and expert: forward, gradient of the
    input, gradient of the weight. Of a 16-bit tensor the kernels `casts` make them, one after another, in both orders:
    along rows for the output or the gradient of the input, along columns for the gradient of the weight. For them
    tensor-parallel ranks gather tokens in the format `gathered`, and gradients of tokens in `orders` orders: those of
    blocks that share a scale cannot be made of each other.

    Where the framework keeps low-precision weights (`Framework.keeps_low`), the weights of these GEMMs are held in the
    format `weights` only, and replicas gather them in the format `shared`.

    Where tokens have a scale for each 128 elements (`scaled`), Hopper's vector units scale sums of 128 products.

    In 16 bits under every recipe: attention, norms, activation functions, the residual stream, embedding, logits, loss,
    router, reductions of tensor parallelism, and what stages and experts exchange. Master weights, optimizer states and
    the format of gradients are the framework's (`Framework`), which also decides how often weights are cast.
    """

    about: str
    source: str
    operands: str = ""
    casts: tuple[str, ...] = ()
    gathered: str = ""
    orders: int = 1
    weights: str = ""
    shared: str = ""
    scaled: bool = False

    @property
    def copies(self) -> float:
        """Bytes of a weight's operands in both orders, which stay where weights are cast once a step."""
        return 2 * width(self.operands) if self.operands else 0.0


_TE = "NVIDIA/TransformerEngine docs/features/low_precision_training"
_GATHERS = "NVIDIA/Megatron-LM docs/user-guide/features/low_precision_training.md (fp8-param-gather)"
RECIPES: Mapping[str, Recipe] = {
    "bf16": Recipe("16 bits throughout", "arXiv:1710.03740, with bf16 in place of fp16"),
    "fp8-delayed": Recipe(
        "FP8, a scale for each tensor from earlier steps",
        f"{_TE}/fp8_delayed_scaling; {_GATHERS}",
        operands="fp8",
        casts=("quantize_transpose",),
        gathered="fp8",
        weights="fp8",
        shared="fp8",
    ),
    "fp8-tensorwise": Recipe(
        "FP8, a scale for each tensor from its largest element",
        f"{_TE}/fp8_current_scaling; {_GATHERS}; pytorch/ao torchao/float8 (enable_fsdp_float8_all_gather)",
        operands="fp8",
        casts=("amax", "quantize_transpose"),
        gathered="fp8",
        weights="fp8",
        shared="fp8",
    ),
    "fp8-rowwise": Recipe(
        "FP8, a scale for each row of an operand",
        "pytorch/ao torchao/float8; its pull request 2145, an all-gather of row-wise FP8, has not been merged",
        operands="fp8",
        casts=("quantize", "amax", "quantize"),
    ),
    "fp8-block": Recipe(
        "FP8, a scale for each 128 elements, of weights for each 128 x 128 (DeepSeek-V3)",
        f"{_TE}/fp8_blockwise_scaling; arXiv:2412.19437 section 3.3.2; scales, 3 % of the bytes, are left out",
        operands="fp8",
        casts=("quantize_transpose",),
        gathered="fp8",
        orders=2,
        scaled=True,
    ),
    "mxfp8": Recipe(
        "8 bits, a scale for each 32 elements",
        f"{_TE}/mxfp8; NVIDIA/Megatron-LM megatron/core/distributed (param_and_grad_buffer.py): gathered weights are "
        "cast from bf16",
        operands="mxfp8",
        casts=("quantize_mxfp8",),
        gathered="mxfp8",
        orders=2,
        weights="mxfp8",
    ),
    "nvfp4": Recipe(
        "4 bits, a scale for each 16 elements and for each tensor",
        f"{_TE}/nvfp4; arXiv:2509.25149, without its layers in 16 bits; weights held and gathered in 16 bits [assumed]",
        operands="nvfp4",
        casts=("amax", "quantize_nvfp4"),
        gathered="nvfp4",
        orders=2,
    ),
}
"""Recipes by name."""
TRAINS = ("bf16", "fp16", "tf32", "fp32", "fp64")
"""Number formats in which whole models train, without a recipe."""
_NARROW = tuple(dict.fromkeys(recipe.operands for recipe in RECIPES.values() if recipe.operands))
_PARTS = ("attention", "mamba", "mlp", "moe")
"""Parts of a model whose GEMMs have the recipe's operands."""


def check_trains(dtype: str, precision: str, gpu: Gpu) -> None:
    """Raise InputError for a number format in which models do not train, and for a recipe that the GPU cannot run."""
    runs = [name for name, recipe in RECIPES.items() if gpu.supports(recipe.operands or "bf16")]
    can = f"{gpu.name} runs {', '.join(runs) or 'none of the recipes'}"
    if dtype not in TRAINS:
        raise InputError(
            f"no framework trains with attention, activations and traffic in {dtype}: recipes keep these in 16 bits "
            f"and give only GEMMs fewer; leave dtype out, and name the precision ({can})"
        )
    needed = RECIPES[precision].operands or dtype if precision else ""
    if needed and not gpu.supports(needed):
        raise InputError(f"{gpu.name} does not compute in {needed}, as the precision {precision} does; {can}")


def narrow_ops(pieces: Iterable[LayerOp], recipe: Recipe, attention: str = "") -> tuple[LayerOp, ...]:
    """The pieces with GEMMs of layers on the operands of the recipe, and attention in a format of its own, if any."""
    if not recipe.operands:
        return tuple(pieces)
    return tuple(_narrow_op(piece, recipe, attention) for piece in pieces)


def _narrow_op(piece: LayerOp, recipe: Recipe, attention: str) -> LayerOp:
    if attention and isinstance(piece.op, Attention):
        return replace(piece, op=replace(piece.op, dtype=attention))
    in_layer = piece.module in _PARTS and piece.role is not Role.ROUTER
    if in_layer and isinstance(piece.op, Gemm | GroupedGemm):
        return replace(piece, op=replace(piece.op, dtype=recipe.operands, scaled=int(recipe.scaled)))
    return piece


def is_narrow(op: Op) -> bool:
    """Return whether an operator multiplies operands of a recipe with 8 or 4 bits."""
    return isinstance(op, Gemm | GroupedGemm) and op.dtype in _NARROW


def casts(elements: int, recipe: Recipe, dtype: str = "bf16") -> tuple[Streaming, ...]:
    """Return the kernels that make the operands of a recipe from `elements` 16-bit elements."""
    return tuple(Streaming(kernel, elements, 1, dtype) for kernel in recipe.casts)
