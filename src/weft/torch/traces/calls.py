"""What nodes of an execution trace compute: the calls that do work by themselves, and their operators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from weft.graph import Collective, Op, Opaque
from weft.graph.op import DTYPE_BYTES
from weft.torch.traces.operators import (
    DTYPES,
    RULES,
    TABLES,
    RecordedCall,
    collective_named,
    operator_of,
    operators_that,
    parse_list,
)
from weft.torch.traces.records import Kind, TraceRecord

_OF_CHAKRA = {number: known["name"] for known in TABLES["collectives"] for number in known["chakra"]}
"""Weft's collective of Chakra's `comm_type`."""
_FILLS = ("fill_", "zero_")
_FILLED = re.compile(r"(new_)?(zeros|ones|full)(_like)?|zero_|scalar_tensor")
"""Calls that only fill memory, which the call inside them does."""
_MOVES = (*_FILLS, "copy_")
_NOTHING = operators_that("allocates") | operators_that("checks") | operators_that("host")
"""Calls without a kernel. Those that return a view say so in the schema."""
_PIECE = re.compile(r"\(\d+\)$")
"""The number of a piece of a call, which Chakra's converter cuts where the call launches kernels."""


def bare(name: str) -> str:
    """Return a call's name without the number of a piece."""
    return _PIECE.sub("", name)


def _base(name: str) -> str:
    return bare(name).rsplit("::", 1)[-1].split(".", 1)[0]


def _is_view(schema: str) -> bool:
    """Return whether a call returns (a part of) its input, and changes nothing, by its schema."""
    return "(a" in schema and "!" not in schema


def working(records: Mapping[int, TraceRecord]) -> list[int]:
    """Return the calls that do work by themselves, in their order, of calls that lie inside each other.

    Later calls have higher ids. The innermost ones do work, if they are no views. A call around fills works, too, after
    them; one that Weft knows as a whole, such as a convolution, stands for those inside it.
    """
    inside: dict[int, list[int]] = {}
    found: dict[int, float] = {}
    for id_ in sorted(records, reverse=True):
        one, within = records[id_], inside.pop(id_, [])
        kept = _working_calls(one, within, records)
        for other in set(within) - set(kept):
            del found[other]
        if id_ in kept:
            found[id_] = max([id_, *(found[other] for other in kept if other != id_)]) + 0.5
        for parent in one.parents:
            inside.setdefault(parent, []).extend(kept)
    return sorted(found, key=lambda one: found[one])


def _working_calls(one: TraceRecord, within: list[int], records: Mapping[int, TraceRecord]) -> list[int]:
    """Of a call and the working calls inside it, those that do work."""
    if one.name == "record_param_comms":
        return [one.id]
    schema, base = one.attributes.get("op_schema") or "", _base(one.name)
    triton = one.attributes.get("kernel_backend") == "triton"
    if not (schema or triton) or one.name.startswith("c10d::") or base in _NOTHING or _is_view(schema):
        return within
    bases = [_base(records[id_].name) for id_ in within]
    if base in RULES and not any(inner in RULES for inner in bases):
        return [one.id, *(id_ for id_, inner in zip(within, bases, strict=True) if inner in _MOVES)]
    if all(inner in _FILLS for inner in bases) and not (bases and _FILLED.fullmatch(base)):
        return [one.id, *within]
    return within


def compute_op(one: TraceRecord, call: TraceRecord | None) -> Op | None:
    """The operator of a node that computes, by the call that launched it, or its bytes; None if it is not known."""
    ops, size = one.attributes.get("num_ops", 0), one.attributes.get("tensor_size", 0)
    if ops or size:
        written = size if one.kind == Kind.STORE else 0
        return Opaque(one.name, int(ops), int(size), written)
    if call is None:
        return None
    read, made = call.inputs.bytes, call.outputs.bytes
    given = call.inputs
    found = operator_of(RecordedCall.of_texts(bare(call.name), given.shapes, given.types, given.values))
    return found or (Opaque(call.name, 0, read + made, made) if read + made else None)


def groups(records: Mapping[int, TraceRecord]) -> dict[str, int]:
    """GPUs of each process group that the trace describes, by its name and its number."""
    found = {}
    for one in records.values():
        if one.kind == Kind.METADATA:
            for text in parse_list(one.inputs.values):
                for group in parse_list(str(text)):
                    size = len(group.get("ranks") or ()) or int(group.get("group_size") or 0)
                    found.update({str(group[key]): size for key in ("pg_name", "backend_id") if key in group})
    return found


def collective(one: TraceRecord, sizes: Mapping[str, int], otherwise: int) -> tuple[Op | None, str, bool]:
    """Return the operator of a node that communicates, its group, and whether the group's size was recorded.

    `sizes` are those of groups, `otherwise` that of an unknown one. None: not known, or nothing is sent.
    """
    stated = one.attributes
    values = parse_list(one.inputs.values)
    group = str(stated.get("pg_name") or _group(values))
    last = values[-1] if values and type(values[-1]) is int else 0  # the group's size, from schema 1.0.2 on
    numbered = str(values[2]) if len(values) > 2 else ""
    known = int(stated.get("pg_size") or sizes.get(group) or sizes.get(numbered) or last or 0)
    ranks = known or otherwise
    dtype = next((DTYPES.get(word.lower()) for word in re.findall(r"Tensor\(([^)]*)\)", one.inputs.types)), None)
    size = int(stated.get("comm_size") or 0)
    if "comm_type" in stated:
        name = _OF_CHAKRA.get(int(stated["comm_type"]), "")
    else:
        name = next(filter(None, map(_collective_name, values)), "")
        size = one.inputs.bytes or one.outputs.bytes
    if known == 1:
        return Opaque(f"{name or one.name} of one GPU"), group, True
    if not name or not size:
        return None, group, bool(known)
    fits = dtype if dtype in DTYPE_BYTES else "int8" if dtype else "bf16"
    return Collective(name, size * (ranks if name == "all_gather" else 1), ranks, fits), group, bool(known)


def _collective_name(value: Any) -> str:
    """Weft's collective of a name of PyTorch's; "" for another value."""
    known = collective_named(value) if isinstance(value, str) else None
    return known.name if known else ""


def _group(values: Any) -> str:
    """Return the name of a group among values: the first of a pair of its name and its description."""
    pairs = (one for one in values if isinstance(one, list) and len(one) == 2)
    return next((one[0] for one in pairs if isinstance(one[0], str)), "")
