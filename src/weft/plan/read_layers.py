"""Which layers Megatron-LM's arguments name: with experts, with a window, with a state in place of attention."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from weft.models.block import compose_pattern
from weft.plan.reading import ArgumentReader

_BLOCKS = {"M": "linear", "*": "attention", "-": "mlp", "E": "experts"}
"""The kinds of layers of hybrid models by the letters of their pattern (megatron/core/ssm/mamba_hybrid_layer_allocation
.py); "|" ends a pipeline stage, and what follows "/" are layers that predict further tokens."""
_MAMBA = {
    "linear_state": ("mamba-state-dim", 128), "linear_head": ("mamba-head-dim", 64),
    "linear_groups": ("mamba-num-groups", 8),
}  # fmt: skip
"""Sizes of Mamba-2 layers by argument, with Megatron-LM's defaults."""
_DELTA = {
    "linear_heads": "linear-num-value-heads", "linear_groups": "linear-num-key-heads",
    "linear_head": "linear-value-head-dim", "linear_state": "linear-key-head-dim",
}  # fmt: skip
_MOST_LAYERS = 100_000
_CONV, _MAMBA_CHUNK, _DELTA_CHUNK, _EXPAND = 4, 128, 64, 2
"""Tokens of the convolution and of chunks, and the width of Mamba's layers over hidden, in Megatron Core's modules."""


def read_layers(
    read: ArgumentReader, shape: Mapping[str, Any], layers: int | None, hidden: int | None
) -> dict[str, Any]:
    """Return the dimensions that follow from arguments on single layers: experts, windows, linear layers.

    `shape` holds the dimensions read so far. Raises ConfigError for a value that the argument does not take.
    """
    found = _shared(read, shape["expert_ffn"])
    if blocks := read.text("hybrid-layer-pattern", "hybrid-override-pattern"):
        read.flag("is-hybrid-model", "layers of several kinds")
        return found | _hybrid(read, blocks, hidden)
    if not layers:
        return found
    if layers > _MOST_LAYERS:
        raise read.wrong("num-layers", str(layers), f"at most {_MOST_LAYERS:,}")
    networks = _networks(read, layers)
    mixers, more = _mixers(read, layers)
    dense = networks.index("moe") if "moe" in networks else layers
    if not any(mixers) and networks == ["dense"] * dense + ["moe"] * (layers - dense):
        return found | more | {"dense_layers": dense}
    routed = networks if shape["experts"] else ["dense"] * layers
    return found | more | {"pattern": compose_pattern(mixers, routed)}


def _shared(read: ArgumentReader, wide: int | None) -> dict[str, Any]:
    """Return the shared experts, as a multiple of the width of a routed one."""
    shared = read.number("moe-shared-expert-intermediate-size")
    if not (shared and wide):
        return {}
    if shared % wide:
        rule = f"a multiple of the {wide} columns of an expert"
        raise read.wrong("moe-shared-expert-intermediate-size", str(shared), rule)
    return {"shared_experts": shared // wide}


def _networks(read: ArgumentReader, layers: int) -> list[str]:
    """Return which layers have experts."""
    often = read.text("moe-layer-freq") or "1"
    pattern = layer_pattern(often, layers)
    if pattern is None:
        rule = f"a whole number, or 0 or 1 for each of the {layers} layers, like ([0]*1+[1]*{layers - 1})"
        raise read.wrong("moe-layer-freq", often, rule)
    return ["moe" if on else "dense" for on in pattern]


def _mixers(read: ArgumentReader, layers: int) -> tuple[list[str], dict[str, Any]]:
    """Return what mixes the tokens of each layer ("": full attention), and the sizes of it."""
    variant = read.text("experimental-attention-variant", known=("gated_delta_net",))
    more: dict[str, Any] = {"attention_gate": True} if read.flag("attention-output-gate", "gate of attention") else {}
    if variant:
        linear = _every(read, "linear-attention-freq", layers)
        sizes = {name: read.number(argument) for name, argument in _DELTA.items()}
        lacks = [f"--{argument}" for name, argument in _DELTA.items() if not sizes[name]]
        if lacks:
            raise read.wrong("experimental-attention-variant", variant, f"{', '.join(lacks)} beside it")
        conv = read.number("linear-conv-kernel-dim") or _CONV
        more |= sizes | {"linear": "gated_delta", "linear_conv": conv, "linear_chunk": _DELTA_CHUNK}
        return ["linear" if on else "" for on in linear], more
    text = " ".join(read.texts("window-size") or [])
    if not text or text.startswith("-1"):
        return [""] * layers, more
    left = re.split(r"[,\s]+", text.strip("()[] "))[0]
    if not left.isascii() or not left.isdecimal() or not int(left):
        raise read.wrong("window-size", text, "tokens to the left and to the right, like 128,0")
    slides = _every(read, "window-attn-skip-freq", layers) if "window-attn-skip-freq" in read.given else [1] * layers
    return ["window" if on else "" for on in slides], more | ({"window": int(left)} if any(slides) else {})


def _every(read: ArgumentReader, name: str, layers: int) -> list[int]:
    """Return 1 for the layers that are not full attention: all but every n-th, or as a list says."""
    text = read.text(name) or ""
    if text.isascii() and text.isdecimal() and int(text):
        return [int((at + 1) % int(text) > 0) for at in range(layers)]
    pattern = layer_pattern(text, layers) if text else None
    if pattern is None:
        rule = f"a whole number, or 0 or 1 for each of the {layers} layers, like ([1]*3+[0])*{max(layers // 4, 1)}"
        raise read.wrong(name, text, rule)
    return pattern


def _hybrid(read: ArgumentReader, text: str, hidden: int | None) -> dict[str, Any]:
    """Return the layers and sizes of a model of Mamba-2, attention, MLPs and experts, each a layer of its own."""
    name = "hybrid-layer-pattern" if "hybrid-layer-pattern" in read.given else "hybrid-override-pattern"
    letters = text.partition("/")[0].replace("|", "")
    unknown = [letter for letter in letters if letter not in _BLOCKS]
    if unknown or not letters:
        rule = "a letter for each layer: M (Mamba-2), * (attention), - (MLP), E (experts)"
        raise read.wrong(name, text, rule)
    sizes = {field: read.number(argument) or usual for field, (argument, usual) in _MAMBA.items()}
    heads = read.number("mamba-num-heads") or (hidden or 0) * _EXPAND // sizes["linear_head"]
    found: dict[str, Any] = {"pattern": tuple(_BLOCKS[letter] for letter in letters), "layers": len(letters)}
    if "M" not in letters:
        return found
    more = {"linear_heads": heads, "linear_conv": _CONV, "linear_chunk": _MAMBA_CHUNK}
    return found | sizes | more | {"linear": "mamba2"}


def layer_pattern(text: str, layers: int) -> list[int] | None:
    """Return 0 or 1 for each layer, as Megatron-LM reads `--moe-layer-freq`; None for anything else.

    >>> layer_pattern("([0]*1+[1]*2)", 3)
    [0, 1, 1]
    """

    def value(node: ast.expr) -> int | list[int]:
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= 10_000:
            return node.value
        if isinstance(node, ast.List):
            found = [value(each) for each in node.elts]
            return [each for each in found if isinstance(each, int)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
                return [*left, *right][:10_000]
            if isinstance(node.op, ast.Mult) and isinstance(left, list) is not isinstance(right, list):
                several, times = (left, right) if isinstance(left, list) else (right, left)
                if isinstance(several, list) and isinstance(times, int):
                    return (several * min(times, 10_000 // max(len(several), 1) + 1))[:10_000]
        raise ValueError(text)

    if len(text) > 10_000:
        return None
    try:
        found = value(ast.parse(text.strip("'\" "), mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if isinstance(found, int):
        return [int(at % found == 0) for at in range(layers)] if found > 0 else None
    return found if len(found) == layers and set(found) <= {0, 1} else None
