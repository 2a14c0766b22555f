"""What every kind of operator promises: to be plain data, to know its work, and to be timed by a closed form."""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields

import numpy as np
import pytest

import weft
from weft.core.errors import InputError
from weft.graph import KINDS, Call, Collective, Graph, Node, Op, Tensor
from weft.overlaps.lower.operators import KINDS as ENGINE
from weft.simulate.result.stored import _make_value, plain

GPU = "h100-sxm"
NAMES = {"streaming": "gelu", "collective": "all_gather", "opaque": "sort"}
"""What a kind's field `name` may hold, where it has one."""
COUNTS = ("batch", "heads", "groups")
"""Dimensions that multiply whole tensors: as large as the others, they would make more than a GPU's memory holds."""


def example(kind: type[Op], size: int = 1024, batched: str | None = None) -> Op:
    """An operator of a kind: `size` for every length that has no default, 2 for counts; an array for `batched`."""
    if kind is Call:
        made = Tensor((size if batched is None else np.array([size, 2 * size]), 1024))
        return Call("aten.add.Tensor", (made,), (made,), operations=size)
    given = {}
    for field in fields(kind):
        if field.name == "name":
            given["name"] = NAMES[kind.kind]
        elif field.name == "cell":
            given["cell"] = "lstm"
        elif field.name == "rule":
            given["rule"] = "mamba2"
        elif field.name == "ranks":
            given["ranks"] = 8
        elif field.name == "written":
            given["written"] = size // 2  # of its bytes
        elif field.default is MISSING or (kind.kind == "opaque" and type(field.default) is int):
            value = 2 if field.name in COUNTS else size
            given[field.name] = np.array([value, 2 * value]) if field.name == batched else value
    return kind(**given)


every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@every
def test_it_is_plain_data_under_the_name_of_its_kind(kind):
    op = example(kind)
    assert KINDS[op.kind] is kind
    assert op == example(kind)
    assert hash(op) == hash(example(kind))
    assert "\n" not in str(op)
    with pytest.raises(FrozenInstanceError):
        op.dtype = "fp64"
    assert _make_value(plain(op)) == op


@every
def test_it_knows_its_flops_and_the_least_bytes_that_it_moves(kind):
    op = example(kind)
    tensors = (*op.reads, *op.writes)
    assert tensors
    assert all(isinstance(tensor, Tensor) for tensor in tensors)
    assert op.least_bytes == sum(tensor.bytes for tensor in tensors) > 0
    assert isinstance(op.flops, int)
    assert op.flops >= 0
    assert example(kind, 4096).least_bytes > op.least_bytes


@every
def test_a_dimension_that_is_no_size_is_refused(kind):
    with pytest.raises(InputError):
        example(kind, -1)


@every
def test_a_closed_form_times_it_no_faster_than_memory_brings_what_the_caches_cannot_hold(kind):
    op, gpu = example(kind, 1 << 14), weft.gpu(GPU)
    found = weft.estimate(op, "dgx-h100")
    held = 2 * gpu.cache.capacity + gpu.memory_cache.capacity
    assert float(found.seconds) > 0
    assert sum(float(part) for part in found.parts.values()) == pytest.approx(float(found.seconds), rel=0.01)
    if not isinstance(op, Collective):
        assert float(found.seconds) >= (op.least_bytes - held) / gpu.memory.bandwidth
    assert weft.estimate(example(kind, 1 << 15), "dgx-h100").seconds >= found.seconds


@every
def test_it_stands_in_a_graph_before_and_behind_others(kind):
    op, gemm = example(kind), weft.Gemm(1024, 1024, 1024)
    both = Graph((Node(gemm, "before"), Node(op, "own", after=("before",)), Node(gemm, "behind", after=("own",))), 8)
    assert both.flops == op.flops + 2 * gemm.flops
    assert both.least_bytes == op.least_bytes + 2 * gemm.least_bytes
    alone = [float(weft.estimate(one, "dgx-h100").seconds) for one in (gemm, op, gemm)]
    assert float(weft.estimate(both, "dgx-h100").seconds) == pytest.approx(sum(alone))


@every
def test_the_engine_runs_it_or_names_it(kind):
    if kind.kind == "collective":
        return
    if issubclass(kind, ENGINE):
        run = weft.simulate(Graph((Node(example(kind), "own"),)), GPU)
        assert run.seconds > 0
        assert run.total_bytes > 0
        return
    with pytest.raises(InputError, match=rf"no kernel for 'own' \({kind.kind}\)"):
        weft.simulate(Graph((Node(example(kind), "own"),)), GPU)


@every
def test_arrays_of_a_dimension_give_an_array_of_times(kind):
    op = example(kind)
    sized = [f.name for f in fields(kind) if type(getattr(op, f.name)) is int and f.default is MISSING]
    if kind.kind == "opaque":
        sized = ["flops", "bytes"]
    for name in sized:
        if name == "ranks":
            continue
        try:
            many = example(kind, batched=name)
        except InputError:
            pytest.fail(f"{kind.__name__}.{name} takes no array")
        assert weft.estimate(many, "dgx-h100").seconds.shape == (2,)
