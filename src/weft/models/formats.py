"""Number formats of served weights: the one in which a model was released, and what a GPU makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from weft.core.errors import check_name
from weft.graph import DTYPE_BYTES
from weft.graph.op import BLOCK_BYTES

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.models.transformer import Transformer

WeightFormat = Literal["bf16", "fp16", "fp8", "fp8-block", "int8", "int4-g128", "mxfp8", "mxfp4", "nvfp4"]
"""Formats in which weights are released; of fp8-block, 128 x 128 elements share a scale."""
FP8_BLOCK = "fp8-block"
SERVED_DTYPES = (*DTYPE_BYTES, FP8_BLOCK, *BLOCK_BYTES)
"""Number formats of the products of layers; of fp8-block, 1 x 128 elements of tokens and 128 x 128 of weights share a
scale, as DeepSeek-V3 is released (arXiv:2412.19437, section 3.3)."""
_WEIGHT_ONLY = ("mxfp4", "int4-g128")
"""Releases whose products have 16 bits on every GPU: gpt-oss (vLLM and SGLang: Marlin on Hopper), GPTQ and AWQ."""
_NARROW = {FP8_BLOCK: "fp8", **{name: name for name in ("fp8", "int8", "mxfp8", "mxfp4", "nvfp4")}}
"""The format of weights that stay narrow where a GPU has no matrix rate for the products, by the format of these."""
_WORDS = {FP8_BLOCK: "FP8 blocks", "int4-g128": "INT4", "int4-g128-zero": "INT4"}


class ServedFormat(NamedTuple):
    """The number format `dtype` of a server's products, and that of its `weights` if these are narrower ("": the same).

    `released` says whether the model was released so. `note` says what the GPU converts; "" if nothing.
    """

    dtype: str
    weights: str = ""
    released: bool = False
    note: str = ""

    @property
    def words(self) -> str:
        """The format as people write it, such as "MXFP4 weights as released"."""
        name = self.weights or self.dtype
        said = _WORDS.get(name, name.upper()) + " weights" * bool(self.weights)
        return said + " as released" * (self.released and name not in ("bf16", "fp16"))


BF16 = ServedFormat("bf16", released=True)


def served_format(model: Transformer, gpu: Gpu, dtype: str | None = None, weights: str = "") -> ServedFormat:
    """Return the formats in which engines serve a model on a GPU: by default the one in which it was released.

    Products that the GPU has no matrix rate for have 16 bits, and their weights stay narrow (weight-only kernels, such
    as Marlin's). `weights` alone leave 16-bit products. Raises UnknownNameError for an unknown `dtype`.
    """
    if dtype is not None:
        check_name("number format", dtype, SERVED_DTYPES)
    own = _released_formats(gpu, model.weight_format)
    if dtype is None:
        chosen = (half_format(gpu), weights) if weights else own
    else:
        chosen = (dtype, weights) if weights else _stated_formats(gpu, dtype)
    return ServedFormat(*chosen, chosen == own, _note(gpu, chosen[1]))


def _released_formats(gpu: Gpu, format: str) -> tuple[str, str]:
    """Return the formats of products and of weights of a model that was released in a format."""
    if format in _WEIGHT_ONLY:
        return half_format(gpu), format
    return _stated_formats(gpu, format if format in _NARROW or gpu.supports(format) else half_format(gpu))


def _stated_formats(gpu: Gpu, dtype: str) -> tuple[str, str]:
    """Return the formats of products and of weights where products are to be of a format."""
    narrow = _NARROW.get(dtype, "")
    return (half_format(gpu), narrow) if narrow and not gpu.supports(narrow) else (dtype, "")


def half_format(gpu: Gpu) -> str:
    """Return the format of 16 bits in which a GPU computes: bf16, or fp16 on one without it."""
    return next((name for name in ("bf16", "fp16") if gpu.supports(name)), "bf16")


def _note(gpu: Gpu, weights: str) -> str:
    """Return what a GPU does with weights of a format that it does not multiply; "" if it converts nothing."""
    if weights not in BLOCK_BYTES and weights not in DTYPE_BYTES:
        return ""
    if gpu.supports(weights):
        return ""
    return (
        f"{gpu.name} has no matrix rate for {weights}: weights stay {weights} in memory and are converted to 16 bits "
        "on their way to the matrix units, as the weight-only kernels of vLLM and SGLang do (Marlin)."
    )
