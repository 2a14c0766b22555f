"""Captures of what texts name: a function that makes a model, shapes of its inputs, an optimizer of PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from weft.core.errors import InputError, check_name
from weft.graph import Graph
from weft.torch.capture.module import capture_module
from weft.torch.capture.tensors import DTYPES

_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def capture_named(
    maker: str, inputs: Sequence[str], optimizer: str | None = None, dtype: str | None = None, *, backward: bool = True
) -> Graph:
    """The training step of the model that `maker`, like "my_module:make_model", answers; made on the meta device.

    Inputs are like "1x4096:int64", or "input_ids=1x4096:int64" by keyword; those of integers are zeros. `optimizer` is
    a class of torch.optim. Raises InputError for names and shapes that are none.
    """
    given = [_input(one) for one in inputs]
    with torch.device("meta"):
        model = _make_named(maker)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{maker} answers no torch.nn.Module; name a function without arguments that makes the model")
    if dtype is not None:
        check_name("dtype of PyTorch", dtype, _NAMES)
        model = model.to(_NAMES[dtype])
    by_place, by_name = tuple(one for name, one in given if not name), {name: one for name, one in given if name}
    made = _optimizer(optimizer)
    return capture_module(
        model, by_place, by_name, loss=None, backward=backward, optimizer=made, routing="balanced", ops={}
    )


def _make_named(maker: str) -> Any:
    module, colon, name = maker.partition(":")
    if not (module and colon and name):
        raise InputError(f"'{maker}' names no function; give its module and name, like my_module:make_model")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"'{maker}' cannot be imported: {error}; call it from the folder of the module") from None
    return made if isinstance(made, torch.nn.Module) else made()


def _input(text: str) -> tuple[str, torch.Tensor]:
    """Return the name ("" by place) and the tensor of an input."""
    name, _, described = text.rpartition("=")
    shape, _, dtype = described.partition(":")
    check_name("dtype of PyTorch", dtype or "int64", _NAMES)
    try:
        sizes = [int(one) for one in shape.split("x")]
        return name, torch.zeros(sizes, dtype=_NAMES[dtype or "int64"], device="meta")
    except (ValueError, RuntimeError):
        raise InputError(f"'{text}' is no input; give a shape and a dtype, like input_ids=1x4096:int64") from None


def _optimizer(name: str | None) -> Any:
    if name is None:
        return None
    known = [one for one, made in vars(torch.optim).items() if isinstance(made, type) and one != "Optimizer"]
    check_name("optimizer of PyTorch", name, known)
    return getattr(torch.optim, name)
