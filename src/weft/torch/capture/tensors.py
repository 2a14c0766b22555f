"""Tensors of PyTorch as Weft describes them, and how to find them among arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from weft import graph
from weft.core.errors import InputError
from weft.graph.op import TensorRole
from weft.torch.traces.operators import TABLES

DTYPES = {getattr(torch, name): known["name"] for name, known in TABLES["dtypes"].items()}
"""Weft's names of number formats."""


def find_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments or results, in lists, tuples and dicts, too."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for one in values:
            yield from find_tensors(one)
    elif isinstance(values, dict):
        yield from find_tensors(list(values.values()))


def describe_tensor(tensor: torch.Tensor) -> graph.Tensor | None:
    """A tensor as a kernel reads it: an axis that repeats one element has size 1; None for one without elements."""
    shape = tuple(1 if not stride else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return None if 0 in tensor.shape else make_tensor(shape, dtype_of(tensor.dtype))


def dtype_of(dtype: torch.dtype) -> str:
    """Weft's name of a number format; InputError for one that it does not have."""
    if dtype not in DTYPES:
        raise InputError(
            f"Weft has no number format {dtype}; capture the model in one of {', '.join(map(str, DTYPES))}"
        )
    return DTYPES[dtype]


@cache
def make_tensor(shape: tuple[int, ...], dtype: str, role: TensorRole = "activation") -> graph.Tensor:
    """Return the tensor as Weft describes it; equal tensors share one object."""
    return graph.Tensor(shape, dtype, role)


def whole(tensor: torch.Tensor, role: TensorRole = "activation") -> graph.Tensor | None:
    """Return the memory of a tensor: its shape if it fills its storage, else bytes; None for an empty one."""
    held = tensor.untyped_storage().nbytes()
    if not held:
        return None
    if tensor.numel() * tensor.element_size() == held:
        return make_tensor(tuple(tensor.shape), dtype_of(tensor.dtype), role)
    return make_tensor((held,), "uint8", role)
