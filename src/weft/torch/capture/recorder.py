"""The dispatch mode that writes down every call of PyTorch: its operator, module, phase and dependencies."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from weft.core.errors import InputError
from weft.graph import Call, Graph, Node, Op, Storages, live_bytes
from weft.graph import Tensor as Described
from weft.graph.op import TensorRole
from weft.torch.capture import distributed, tensors
from weft.torch.capture.fused import KERNELS, fold_records
from weft.torch.capture.operators import CapturedCall, operator_of
from weft.torch.traces.operators import operators_that

UNRECORDED, EMPTY = operators_that("checks"), operators_that("allocates")
"""Calls without a kernel: of the second, what they make is born with the first kernel that writes it."""
_OWN_FOLDER = "/torch/"
"""Part of the paths of PyTorch's files and of those of `weft.torch`: the line that is named is the program's."""


@dataclass
class NodeRecord:
    """A node in the making."""

    op: Op
    name: str
    after: tuple[int, ...]
    module: str
    phase: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stream: str = distributed.MAIN
    pointwise: bool = False
    kernel: str = ""
    frees: list[str] = field(default_factory=list)


@dataclass
class StorageRecord:
    """A storage: its name, its description, and whether anything has been written to it."""

    name: str
    whole: Described | None
    born: bool = True


class Recorder(TorchDispatchMode):
    """Records calls between `__enter__` and `__exit__`, and makes a graph of them.

    `run` computes a call (really, or on fake tensors). `watch` is called with every recorded call, its number and the
    numbers of those that it depends on.
    """

    def __init__(self, run: Any, tracker: ModuleTracker, ops: Mapping[str, Any], notes: list[str]) -> None:
        super().__init__()
        self.run, self.tracker, self.ops, self.notes = run, tracker, ops, notes
        self.records: list[NodeRecord] = []
        self.memories: dict[int, StorageRecord] = {}
        self.storages: Storages[int, int] = Storages()
        self.described: dict[str, Described] = {}
        self.given: dict[str, Described] = {}
        self.unknown: dict[tuple[str, str], str] = {}
        self.names: dict[str, int] = {}
        self.stage: str | None = None
        self.paused = False
        self.preparing = False
        self.ranks = 1
        self.fused = False
        self.kernels: dict[str, str] = {}
        self.groups: dict[str, str] = {}
        self.awaited: set[int] = set()
        self.copied_out: int | None = None
        self.watch: Callable[[Any, Any, Any, Any, tuple[int, ...]], None] | None = None

    # -- calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if distributed.is_wrapped(types):
            return NotImplemented
        if func.namespace == "prim" or self.paused:
            return func(*args, **kwargs)
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return self._join_stream(args[0])
        if func._schema.name == distributed.WRAPPING:
            return distributed.awaited_when_used(args[0])
        literal = func is torch.ops.aten.lift_fresh.default  # fake tensors know the values of numbers in the program
        prepared, named = (args, kwargs) if literal else (self.run.prepare(args), self.run.prepare(kwargs))
        try:
            out = self.run(func, prepared, named)
        except InputError:
            raise
        except Exception as error:
            raise _explain_error(error, self.place(func)) from error
        if not self.preparing:
            self.record(func, prepared, named, out)
        return _in_place(func, args, kwargs, out)

    def record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Write a call down, unless it launches no kernel."""
        signature = _signature(func)
        results = tuple(tensors.find_tensors(out))
        written = tuple(
            one for place in signature.written for one in tensors.find_tensors(_argument(place, args, kwargs))
        )
        if signature.base in EMPTY:
            for one in results:
                self.memory(one, born=False)
            return
        if distributed.communicates(func):
            self._record_moved(func, signature.base, args, results)
            return
        arguments = tuple(tensors.find_tensors((args, kwargs)))
        known = {self._key(one) for one in arguments}
        fresh = {key: one for one in results if (key := self._key(one)) not in known}
        if (not written and not fresh) or signature.base in UNRECORDED:
            self._used_storages(arguments, arguments)
            return
        inputs = self._used_storages(arguments, written)
        op = self._operator(CapturedCall(signature.name, signature.base, func, args, kwargs, results, written))
        if op is None:
            return
        self._add(
            op,
            signature.base,
            inputs,
            {self._key(one): self.memory(one, born=False) for one in written}
            | {key: self.memory(one, born=False) for key, one in fresh.items()},
            distributed.COPIES_IN.get(func._schema.name, distributed.MAIN),
        )
        self._order_gathers(func, signature.base)
        last = self.records[-1]
        last.pointwise = torch.Tag.pointwise in func.tags
        last.kernel = self.kernels.get(last.module, "")
        if self.watch is not None:
            self.watch(func, args, kwargs, out, self.records[-1].after)

    def _order_gathers(self, func: Any, base: str) -> None:
        """Let FSDP's copy into the buffer of a gather wait for the copy out of the gather before."""
        last = self.records[-1]
        if base == distributed.COPIES_OUT:
            self.copied_out = len(self.records) - 1
        elif func._schema.name == distributed.GATHERS and self.copied_out is not None:
            last.after = tuple(sorted({*last.after, self.copied_out}))

    def _record_moved(self, func: Any, base: str, args: Any, results: tuple[torch.Tensor, ...]) -> None:
        """Write a collective down, on the stream of its group."""
        moved = distributed.read_call(func, args, results)
        if moved is None:
            return
        self.groups.setdefault(f"group {moved.stream}", moved.ranks)
        inputs = self._used_storages(tensors.find_tensors(args), moved.written)
        written = {self._key(one): self.memory(one, born=False) for one in moved.written}
        self._add(moved.op, base.strip("_"), inputs, written, moved.stream)

    def _used_storages(
        self, found: Iterable[torch.Tensor], written: Iterable[torch.Tensor]
    ) -> dict[int, StorageRecord]:
        """Return the storages of a call's arguments, without outputs that were allocated but never written before."""
        fills = {key for one in written if (key := self._key(one)) in self.memories}
        return {self._key(one): self.memory(one, born=self._key(one) not in fills) for one in found}

    def _join_stream(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor: computation that is launched from now on waits for the collective that makes it."""
        writer = self.storages.writers.get(self._key(tensor))
        if writer is not None:
            self.awaited.add(writer)
        return tensor

    def _add(
        self,
        op: Op,
        base: str,
        inputs: dict[int, StorageRecord],
        changed: dict[int, StorageRecord],
        stream: str = distributed.MAIN,
    ) -> None:
        """Append a node: after the writers of what it uses, and after the readers of what it changes."""
        number = len(self.records)
        after = self.storages.touch(number, (*inputs, *changed), changed)
        if stream == distributed.MAIN:
            after |= self.awaited
            self.awaited.clear()
        outputs = tuple(one.name for one in changed.values() if not one.born and one.whole is not None)
        read = tuple(one.name for key, one in inputs.items() if one.born and one.whole is not None)
        for one in changed.values():
            one.born = True
        self.records.append(
            NodeRecord(
                op, self._unique_name(base), tuple(sorted(after)), self.module, self.phase, read, outputs, stream
            )
        )

    def _operator(self, called: CapturedCall) -> Op | None:
        """Weft's operator of a call; None for one without elements. Unknown ones are kept; `graph` refuses them."""
        taught = self.ops.get(called.name) or self.ops.get(f"{called.func.namespace}::{called.base}")
        if taught is not None:
            return _as_taught(called, taught)
        if not any(one.numel() for one in (*called.results, *called.written)):
            return None
        found = operator_of(called)
        if found is None:
            name = f"{called.func.namespace}::{called.base}"
            self.unknown.setdefault((name, self.module), self.place(called.func))
        return found

    def _unique_name(self, base: str) -> str:
        """Return a name of its own: "mm", then "mm_1"."""
        count = self.names.get(base, 0)
        self.names[base] = count + 1
        return f"{base}_{count}" if count else base

    # -- memory

    def _key(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def memory(self, tensor: torch.Tensor, role: TensorRole = "activation", born: bool = True) -> StorageRecord:
        """The storage of a tensor; one that is seen for the first time is given to the graph, unless it is not born."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self.memories.get(key)
        if known is None:
            if born and isinstance(tensor, torch.nn.Parameter):
                role = "weight"
            known = StorageRecord(f"t{len(self.described)}", tensors.whole(tensor, role), born=born)
            self.memories[key] = known
            if known.whole is not None:
                self.described[known.name] = known.whole
            weakref.finalize(storage, self._free_storage, key).atexit = False
        if key not in self.storages.writers:
            known.born = known.born or born
            if known.born and known.whole is not None:
                self.given.setdefault(known.name, known.whole)
        return known

    def _free_storage(self, key: int) -> None:
        gone = self.memories.pop(key, None)
        self.storages.forget(key)
        if gone is not None and self.records and gone.born and gone.whole is not None:
            self.records[-1].frees.append(gone.name)

    def resized(self, storage: Any, size: int) -> None:
        """Free the memory of a storage that is about to shrink; one that grows is born with its next writer."""
        known = self.memories.get(storage._cdata)
        if known is None or size == storage.nbytes():
            return
        if self.records and known.born and known.whole is not None:
            self.records[-1].frees.append(known.name)
        whole = (
            tensors.make_tensor((size,), "uint8", known.whole.role if known.whole else "activation") if size else None
        )
        fresh = StorageRecord(f"t{len(self.described)}", whole, born=False)
        if whole is not None:
            self.described[fresh.name] = whole
        self.memories[storage._cdata] = fresh

    def entered(self, module: Any, _: Any) -> None:
        """Remember the class of a module whose operators a compiler makes one kernel of."""
        name = type(module).__name__
        if KERNELS.search(name):
            self.kernels[self.module] = name

    def pause(self, paused: bool) -> bool:
        """Begin or end a pause, in which calls are computed but not seen; answers whether there was one."""
        before, self.paused = self.paused, paused
        return before

    # -- where

    @property
    def module(self) -> str:
        """The innermost module that runs, as a path from the outermost: "layers.0.mlp"."""
        return max(self.tracker.parents - {"Global"}, key=len, default="").partition(".")[2]

    @property
    def phase(self) -> str:
        """The part of the step: what runs again in the backward pass does so with gradients on."""
        if self.stage is not None:
            return self.stage
        if torch._C._current_graph_task_id() == -1:
            return "forward"
        return "recompute" if torch.is_grad_enabled() else "backward"

    def place(self, func: Any) -> str:
        """Operator, module, and the line of the user's program."""
        frame: Any = sys._getframe(1)
        while frame is not None and _OWN_FOLDER in frame.f_code.co_filename:
            frame = frame.f_back
        line = f", line {frame.f_lineno} of {frame.f_code.co_filename}" if frame is not None else ""
        return f"{func} in module '{self.module}'{line}"

    # -- the graph

    def graph(self, title: str) -> Graph:
        """Return what was recorded. Raises InputError that names operators of unknown FLOPs, or if nothing ran."""
        self.paused = True
        if self.unknown:
            raise InputError(_not_known(self.unknown))
        if not self.records:
            raise InputError("nothing was captured; run a model inside the capture")
        if self.fused:
            self.records, said = fold_records(self.records, self.described)
            self.notes.append(said)
        nodes = tuple(self._node(one) for one in self.records)
        stated = {**self.given, **self._odd_outputs()}
        labels = {"source": f"torch {torch.__version__}", "assumed": "; ".join(dict.fromkeys(self.notes))}
        found = Graph(nodes, self.ranks, title, labels | self.groups, stated)
        return replace(found, labels={**found.labels, "peak_bytes": str(max(live_bytes(found)))})

    def _node(self, one: NodeRecord) -> Node:
        after = tuple(self.records[number].name for number in one.after)
        kept = {name: getattr(one, name) for name in ("stream", "phase", "module", "inputs", "outputs")}
        return Node(one.op, one.name, after=after, frees=tuple(one.frees), **kept)

    def _odd_outputs(self) -> dict[str, Described]:
        """Descriptions of outputs of which the operator says something else."""
        found = {}
        for one in self.records:
            for place, name in enumerate(one.outputs):
                said = one.op.writes[place].bytes if place < len(one.op.writes) else 0
                if said != self.described[name].bytes:
                    found[name] = self.described[name]
        return found


@dataclass(frozen=True)
class _Signature:
    name: str
    base: str
    written: tuple[tuple[int, str], ...]


@cache
def _signature(func: Any) -> _Signature:
    """Return name of an operator, and the places and names of the arguments that it writes."""
    base = func._schema.name.partition("::")[2]
    undeclared = distributed.UNDECLARED.get(func._schema.name)
    marked = [
        (place, one.name)
        for place, one in enumerate(func._schema.arguments)
        if one.alias_info and one.alias_info.is_write
    ]
    return _Signature(str(func), base, (*marked, *((undeclared,) if undeclared else ())))


def _in_place(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """Return what the caller gets: of an operator in place its own tensor, not the fake one that stood in for it."""
    written = _signature(func).written
    if len(written) == 1 and isinstance(out, torch.Tensor):
        own = _argument(written[0], args, kwargs)
        return own if isinstance(own, torch.Tensor) else out
    return out


def _argument(place: tuple[int, str], args: Any, kwargs: Any) -> Any:
    number, name = place
    return args[number] if number < len(args) else kwargs.get(name)


def _as_taught(called: CapturedCall, taught: Any) -> Op:
    """The operator that a user's rule answers: "bytes", or a function of tensors that answers FLOPs or an operator."""
    if taught == "bytes":
        return Call(called.name, called.reads, called.writes)
    if not callable(taught):
        raise InputError(f"the rule of {called.name} is {taught!r}; give 'bytes', or a function of inputs and outputs")
    found = taught(called.reads, called.writes)
    if isinstance(found, Op):
        return found
    return Call(called.name, called.reads, called.writes, operations=found)


def _not_known(unknown: Mapping[tuple[str, str], str]) -> str:
    names = list(dict.fromkeys(name for name, _ in unknown))
    first = next(iter(unknown.values()))
    more = f" (and {', '.join(names[1:])})" if len(names) > 1 else ""
    return (
        f"Weft does not know what {first}{more} computes; teach it with ops={{'{names[0]}': rule}}, 'bytes' or a "
        "function of its input and output tensors that answers its FLOPs"
    )


def _explain_error(error: Exception, place: str) -> InputError:
    """Return an error of PyTorch as one sentence with the place and the next step."""
    kind, text = type(error).__name__, str(error).strip().split("\n")[0]
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"):
        return InputError(
            f"{place} depends on the values of floating-point numbers, which a capture does not compute; take the "
            "branch without it, pass its decision as an integer input, or capture with weft.capturing(fake=False)"
        )
    if "fake" in text.lower() and ("impl" in text or "kernel" in text or "rule" in text):
        return InputError(f"{place} says nothing of the shapes of its outputs; give it a torch.library.register_fake")
    return InputError(f"{place} fails: {text}; run the module without Weft on the meta device to see more")
