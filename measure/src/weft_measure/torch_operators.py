"""The memory-bound operators as PyTorch offers them, each made from its dtype and dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Filled = Callable[[tuple[int, ...], str, str], Any]
Make = Callable[[Any, Filled, str, Mapping[str, int]], Callable[[], object]]


def _elements(function: Callable[[Any, Any, Any], object], inputs: int = 1) -> Make:
    def make(torch: Any, filled: Filled, dtype: str, shape: Mapping[str, int]) -> Callable[[], object]:
        arrays = [filled((shape["elements"],), dtype, "random") for _ in range(inputs + 1)]
        return lambda: function(torch, arrays[0], arrays[1])

    return make


def _rows(function: Callable[[Any, Any, Any], object]) -> Make:
    def make(torch: Any, filled: Filled, dtype: str, shape: Mapping[str, int]) -> Callable[[], object]:
        rows = filled((shape["rows"], shape["columns"]), dtype, "random")
        weight = filled((shape["columns"],), dtype, "random")
        return lambda: function(torch.nn.functional, rows, weight)

    return make


def _adam(torch: Any, filled: Filled, dtype: str, shape: Mapping[str, int]) -> Callable[[], object]:
    weights = filled((shape["parameters"],), dtype, "random").requires_grad_()
    weights.grad = filled((shape["parameters"],), dtype, "random")
    on_gpu = weights.device.type == "cuda"
    step: Callable[[], object] = torch.optim.Adam([weights], fused=True, capturable=on_gpu).step
    return step


def _embedding(torch: Any, filled: Filled, dtype: str, shape: Mapping[str, int]) -> Callable[[], object]:
    table = filled((65536, shape["hidden"]), dtype, "random")
    index = torch.randint(0, 65536, (shape["tokens"],), device=table.device)
    return lambda: torch.nn.functional.embedding(index, table)


def _attention(torch: Any, filled: Filled, dtype: str, shape: Mapping[str, int]) -> Callable[[], object]:
    batch, heads, head = shape["batch"], shape["heads"], shape["head"]
    query = filled((batch, heads, shape["query"], head), dtype, "random")
    key, value = (filled((batch, heads, shape["keys"], head), dtype, "random") for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(query, key, value, is_causal=bool(shape["causal"]))


OPERATORS: Mapping[str, Make] = {
    "elementwise": _elements(lambda torch, x, y: torch.neg(x, out=y)),
    "gelu": _elements(lambda torch, x, y: torch.nn.functional.gelu(x)),
    "dropout": _elements(lambda torch, x, y: torch.native_dropout(x, 0.1, True)),
    "residual_add": _elements(lambda torch, x, y: torch.add(x, y), inputs=2),
    "softmax": _rows(lambda functional, x, weight: functional.softmax(x, dim=-1)),
    "layernorm": _rows(lambda functional, x, weight: functional.layer_norm(x, weight.shape, weight, weight)),
    "rmsnorm": _rows(lambda functional, x, weight: functional.rms_norm(x, weight.shape, weight)),
    "adam": _adam,
    "embedding": _embedding,
    "attention_fused": _attention,
}
"""Operators by the names that `weft.estimate` gives them."""
