"""Programs of many ranks, captured in one process: a group that sends nothing, and its calls as collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from weft.core.errors import InputError, check_whole
from weft.graph import Call, Collective, Op
from weft.graph.op import DTYPE_BYTES
from weft.torch.capture import tensors
from weft.torch.traces.operators import COLLECTIVES, collective_named

MAIN = "main"
"""The stream of computation."""
LIBRARIES = ("c10d", "_c10d_functional")
"""Namespaces of PyTorch's collectives: those with process groups, and those that return new tensors."""
COPIES_IN: Mapping[str, str] = {"fsdp::all_gather_copy_in": "gather copies", "fsdp::chunk_cat": "reduce copies"}
"""FSDP's copies into the buffers of its collectives, which run on streams of their own ahead of layers."""
GATHERS, COPIES_OUT = "fsdp::all_gather_copy_in", "split_with_sizes_copy"
"""FSDP gathers the weights of one layer ahead: its copy in waits for the copy out of the gather before."""
UNDECLARED: Mapping[str, tuple[int, str]] = {GATHERS: (1, "all_gather_output")}
"""Places and names of arguments that calls write without saying so."""
WRAPPING = "_c10d_functional::_wrap_tensor_autograd"
"""The call that lets a tensor be awaited when it is used."""


class CommunicationCall(NamedTuple):
    """A call that communicates: its operator, its stream, the group's ranks, and the tensors that it writes."""

    op: Op
    stream: str
    ranks: str
    written: tuple[torch.Tensor, ...]


@contextmanager
def world(ranks: int, rank: int) -> Iterator[None]:
    """A default process group of `ranks` ranks, seen from `rank`, that sends nothing; gone after the block.

    Raises InputError beside a process group of the program's own.
    """
    check_whole("ranks of the captured world", ranks, 2, 8)
    check_whole("the captured rank", rank, 0, 0)
    if rank >= ranks:
        raise InputError(f"rank {rank} is none of {ranks}; choose one from 0 to {ranks - 1}")
    if dist.is_initialized():
        raise InputError(
            "a process group is live in this process, and a capture makes one of its own; capture before "
            "init_process_group, or after destroy_process_group"
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of the first bucket of gradients, and of the others (PyTorch's DistributedDataParallel)."""


@contextmanager
def gradients_summed(parameters: Iterable[torch.nn.Parameter], ranks: int) -> Iterator[None]:
    """All-reduce gradients over `ranks` replicas as DistributedDataParallel does, while the block runs backward.

    Gradients are copied into buckets, those of the last parameters first; a bucket is sent when its gradients and all
    buckets before it are complete, and all are copied back at the end.
    """
    buckets = _buckets([one for one in dict.fromkeys(parameters) if one.requires_grad])
    missing = [{id(one) for one in bucket} for bucket in buckets]
    sent: list[tuple[torch.Tensor, Any]] = []

    def complete(parameter: torch.nn.Parameter) -> None:
        for ids in missing:
            ids.discard(id(parameter))
        while len(sent) < len(buckets) and not missing[len(sent)]:
            flat = torch.cat([one.grad.reshape(-1) for one in buckets[len(sent)]]).div_(ranks)
            sent.append((flat, dist.all_reduce(flat, async_op=True)))

    hooks = [one.register_post_accumulate_grad_hook(complete) for bucket in buckets for one in bucket]
    try:
        yield
        for bucket, (flat, work) in zip(buckets, sent, strict=False):
            work.wait()
            for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                one.grad.copy_(part.view_as(one.grad))
    finally:
        for hook in hooks:
            hook.remove()


def _buckets(parameters: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters in buckets of one dtype, the last first."""
    buckets: list[list[torch.nn.Parameter]] = []
    held = 0
    for one in reversed(parameters):
        size = one.numel() * one.element_size()
        limit = FIRST_BUCKET if len(buckets) == 1 else BUCKET
        if not buckets or held >= limit or buckets[-1][0].dtype != one.dtype:
            buckets.append([])
            held = 0
        buckets[-1].append(one)
        held += size
    return buckets


def is_wrapped(types: Any) -> bool:
    """Return whether a call is one of tensors that hold others, such as DTensors: their local calls follow."""
    return any(hasattr(one, "__tensor_flatten__") for one in types)


def communicates(func: Any) -> bool:
    """Return whether a call belongs to a library of collectives, such as c10d."""
    return func.namespace in LIBRARIES


def read_call(func: Any, args: Any, results: tuple[torch.Tensor, ...]) -> CommunicationCall | None:
    """Return what a call sends, and to which ranks; None if nothing. Raises InputError if Weft has no such operator."""
    base = func._schema.name.partition("::")[2]
    if base in ("barrier", "monitored_barrier_", "check_for_nan"):
        return None
    known = collective_named(base)
    if known is None:
        names = ", ".join(sorted({one.name for one in COLLECTIVES.values()}))
        raise InputError(
            f"{func} is a collective that Weft does not have; use one of {names}, or call it inside setup() if it "
            "belongs to the preparation"
        )
    kind = known.name
    into, of = _sides(func, args, results, kind)
    group = _group(args)
    ranks = 2 if kind == "send_recv" else group.size()
    whole = into if kind == "all_gather" else of
    stream, members = stream_of(group), " ".join(map(str, dist.get_process_group_ranks(group)))
    if ranks == 1:
        read, write = (tuple(one for one in map(tensors.describe_tensor, side) if one) for side in (of, into))
        return CommunicationCall(Call(str(func), read, write), stream, members, into)
    dtype = tensors.dtype_of(whole[0].dtype)
    size = sum(one.numel() * one.element_size() for one in whole)
    return CommunicationCall(
        Collective(kind, size, ranks, dtype if dtype in DTYPE_BYTES else "int8"), stream, members, into
    )


def _sides(
    func: Any, args: Any, results: tuple[torch.Tensor, ...], kind: str
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Return the tensors that a call writes and those that it sends.

    Calls with process groups do not declare what they write: it is their first argument, and the second one is sent,
    where there is one.
    """
    first = tuple(tensors.find_tensors(args[0]))
    if func.namespace == "c10d":
        second = tuple(tensors.find_tensors(args[1])) if len(args) > 1 else ()
        return first, second or first
    return results, first


def _group(args: Any) -> Any:
    """Return the process group among the arguments of a call, an object or a name."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    for one in args:
        if isinstance(one, torch.ScriptObject):
            return dist.ProcessGroup.unbox(one)
        if isinstance(one, dist.ProcessGroup):
            return one
    return _resolve_process_group(next(one for one in reversed(args) if isinstance(one, str)))


def stream_of(group: Any) -> str:
    """Return the stream of a process group: the name of its axis of a mesh, or its ranks."""
    if group == dist.group.WORLD:
        return "world"
    named = str(group.group_desc or "")
    if named.startswith("mesh_") and named != "mesh_default":
        return named.removeprefix("mesh_")
    return "ranks " + " ".join(map(str, dist.get_process_group_ranks(group)))


@contextmanager
def whole_shapes_unseen(pause: Callable[[bool], bool]) -> Iterator[None]:
    """Keep a recorder from the calls on whole shapes by which DTensor learns how results are sharded.

    `pause` begins or ends a pause, and answers what was before.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    name = "_propagate_tensor_meta_non_cached"
    plain = getattr(ShardingPropagator, name)

    def unseen(*args: Any, **named: Any) -> Any:
        before = pause(True)
        try:
            return plain(*args, **named)
        finally:
            pause(before)

    setattr(ShardingPropagator, name, unseen)
    try:
        yield
    finally:
        setattr(ShardingPropagator, name, plain)


@contextmanager
def waits_where_eager_does() -> Iterator[None]:
    """Let results of functional collectives be awaited where they are used, as in a run, not at once as in a trace."""
    from torch.distributed import _functional_collectives as functional

    name = "_are_we_tracing"
    plain = getattr(functional, name)
    setattr(functional, name, lambda: False)
    try:
        yield
    finally:
        setattr(functional, name, plain)


def awaited_when_used(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first use waits for the collective that makes it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(tensor)


@contextmanager
def resizes_seen(resized: Callable[[Any, int], None]) -> Iterator[None]:
    """Call `resized` before storages get another size: FSDP frees gathered weights so."""
    plain = torch.UntypedStorage.resize_

    def seen(storage: Any, size: int) -> Any:
        resized(storage, int(size))
        return plain(storage, size)

    torch.UntypedStorage.resize_ = seen
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain
