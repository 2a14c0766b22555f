"""Capture of a module's training step, and of a block of a program, on fake tensors."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils.stateless import _reparametrize_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils.module_tracker import ModuleTracker
from torch.utils.weak import WeakIdKeyDictionary

from weft.core.errors import InputError, check_name, check_type
from weft.graph import Graph
from weft.torch.capture import distributed, tensors
from weft.torch.capture.attention import kept_whole
from weft.torch.capture.recorder import Recorder

_LARGEST_REAL = 1 << 24
"""Most elements of an integer tensor that is really computed."""
_COUNTING = ("aten::_to_copy", "aten::histc", "aten::cumsum")
"""How programs count the tokens of each expert, on the CPU by way of floating-point numbers."""
Routing = str | Callable[[int, int, int], Any]


class FakeRun:
    """Runs calls on fake tensors; integers and masks are computed, so that programs can read their values.

    Converts real floating-point tensors to fake ones; the indices of `topk` follow `routing`.
    """

    def __init__(self, routing: Routing, notes: list[str]) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.routing, self.notes = routing, notes
        self.counts = WeakIdKeyDictionary()
        self.converted: list[weakref.ref[torch.Tensor]] = []

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results of a call."""
        _refuse_cuda(kwargs.get("device"))
        given = list(tensors.find_tensors((args, kwargs)))
        if func._schema.name in _COUNTING and all(_is_real(one) or one in self.counts for one in given):
            return self._count_elements(func, args, kwargs)
        if given and all(_is_real(one) for one in given) and func._schema.name != "aten::_to_copy":
            return self._really(func, args, kwargs)
        if given and all(one.dim() == 0 and one in self.counts for one in given):
            return self._single(func, args, kwargs)
        out = func(*args, **kwargs)
        if not given and _small_integers(out):
            return self._really(func, args, kwargs)
        if given and all(_is_real(one) for one in given) and _small_integers(out):
            return self._really(func, args, kwargs)
        if func is torch.ops.aten.topk.default:
            return out[0], self._route_tokens(given[0], out[1])
        return out

    def prepare(self, values: Any) -> Any:
        """Arguments with fake tensors in the places of real floating-point ones."""
        if isinstance(values, torch.Tensor):
            return self._stand_in(values) if not isinstance(values, FakeTensor) and not _is_real(values) else values
        if isinstance(values, list | tuple):
            return type(values)([self.prepare(one) for one in values])
        if isinstance(values, dict):
            return {name: self.prepare(one) for name, one in values.items()}
        return values

    def _stand_in(self, real: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor of a real one, always the same; a single number is kept beside it."""
        self.converted.append(weakref.ref(real))
        fake = self.mode.fake_tensor_converter.from_real_tensor(self.mode, real)
        if real.dim() == 0 and real.device.type == "cpu" and fake not in self.counts:
            with unset_fake_temporarily():
                self.counts[fake] = real.detach().clone()
        return fake

    def clear(self) -> None:
        """Take away the fake gradients that a block has left on real tensors."""
        for one in self.converted:
            real = one()
            if real is not None and real.is_leaf and isinstance(real.grad, FakeTensor):
                real.grad = None

    def _count_elements(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of counting, whose numbers are kept beside a fake tensor if they are floating-point ones."""
        args = [self.counts.get(one, one) if isinstance(one, torch.Tensor) else one for one in args]
        with unset_fake_temporarily():
            out = func(*args, **kwargs)
        if _is_real(out):
            return out
        fake = self.fake(out)
        self.counts[fake] = out
        return fake

    def _single(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call on single numbers, such as an optimizer's count of its steps: programs look at them."""
        known, named = (pytree.tree_map_only(torch.Tensor, self.counts.__getitem__, one) for one in (args, kwargs))
        with unset_fake_temporarily():
            real = func(*known, **named)
        if func is torch.ops.aten._local_scalar_dense.default:
            return real
        out = func(*args, **kwargs)
        if isinstance(out, FakeTensor) and isinstance(real, torch.Tensor):
            self.counts[out] = real
        return out

    def _really(self, func: Any, args: Any, kwargs: Any) -> Any:
        with unset_fake_temporarily():
            out = func(*args, **kwargs)
        floating = [one for one in tensors.find_tensors(out) if one.is_floating_point()]
        return self.fake(out) if floating and isinstance(out, torch.Tensor) else out

    def _route_tokens(self, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return the places of the largest of each row, as the routing says."""
        experts, choices = scores.shape[-1], chosen.shape[-1]
        tokens = chosen.numel() // max(choices, 1)
        said = self.routing if isinstance(self.routing, str) else "as given"
        self.notes.append(f"routing of top-k {said}")
        with unset_fake_temporarily():
            if callable(self.routing):
                found = torch.as_tensor(self.routing(tokens, choices, experts), dtype=torch.int64)
            else:
                found = torch.arange(tokens * choices).remainder(experts)
            if found.numel() != chosen.numel():
                raise InputError(f"the routing answers {found.numel()} indices; give {tokens} rows of {choices}")
            return found.reshape(chosen.shape)

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor without data of the same shape; on the CPU, also if it is on the meta device."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _is_real(tensor: torch.Tensor) -> bool:
    """Return whether it is an integer tensor or a mask with data."""
    return not isinstance(tensor, FakeTensor) and not tensor.is_floating_point() and not tensor.is_complex()


def _small_integers(out: Any) -> bool:
    found = list(tensors.find_tensors(out))
    fits = all(not one.is_floating_point() and not one.is_complex() and one.numel() <= _LARGEST_REAL for one in found)
    return bool(found) and fits


def _refuse_cuda(device: Any) -> None:
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        kind = "CUDA device" if torch.device(device).type == "cuda" else "device"
        raise InputError(
            f"the model asks for the {kind} '{device}'; leave it on the CPU or meta, the system is chosen later"
        )


class RealRun:
    """Computes calls as they are."""

    def prepare(self, values: Any) -> Any:
        """Return the arguments."""
        return values

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results of a call."""
        return func(*args, **kwargs)


@contextmanager
def recording(
    *, fake: bool, routing: Routing, ops: Mapping[str, Any], fused: bool = False, world: int = 1, rank: int = 0
) -> Iterator[Recorder]:
    """Yield a block in which every call is recorded; on fake tensors, or really, and as one rank of a `world`."""
    if world != 1 and not fake:
        raise InputError("a world of ranks is captured on fake tensors, for nothing is sent; leave fake=True")
    if not callable(routing):
        check_name("routing", routing, ("balanced",))
    notes: list[str] = []
    run = FakeRun(routing, notes) if fake else RealRun()
    with ExitStack() as stack, ModuleTracker() as tracker:
        if world != 1:
            stack.enter_context(distributed.world(world, rank))
        recorder = Recorder(run, tracker, ops, notes)
        recorder.ranks, recorder.fused = world, fused
        entered = register_module_forward_pre_hook(recorder.entered)
        stack.callback(entered.remove)
        stack.enter_context(distributed.resizes_seen(recorder.resized))
        if world != 1:
            stack.enter_context(distributed.whole_shapes_unseen(recorder.pause))
            stack.enter_context(distributed.waits_where_eager_does())
        with kept_whole(), _optimizer_steps(recorder), _no_cuda():
            if isinstance(run, FakeRun):
                with _clear_run(run), run.mode, recorder:
                    yield recorder
            else:
                with recorder:
                    yield recorder


@contextmanager
def _clear_run(run: FakeRun) -> Iterator[None]:
    try:
        yield
    finally:
        run.clear()


@contextmanager
def _no_cuda() -> Iterator[None]:
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        if "cuda" in str(error).lower() and not torch.cuda.is_available():
            raise InputError(
                "the model asks for a CUDA device, which this computer does not have; leave it on the CPU or meta"
            ) from error
        raise


@contextmanager
def _optimizer_steps(recorder: Recorder) -> Iterator[None]:
    """Mark what optimizers do as their own phase."""

    def begin(*_: Any) -> None:
        recorder.stage = "optimizer"

    def end(*_: Any) -> None:
        recorder.stage = None

    hooks = register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def capture_module(
    model: Any, inputs: tuple[Any, ...], keywords: dict[str, Any], *, loss: Any, backward: bool, optimizer: Any,
    routing: Routing, ops: Mapping[str, Any], fused: bool = False, replicas: int = 1,
) -> Graph:  # fmt: skip
    """See `weft.capture`."""
    check_type("the model", model, torch.nn.Module, "give a torch.nn.Module")
    with recording(fake=True, routing=routing, ops=ops, fused=fused, world=replicas) as recorder:
        run = recorder.run
        recorder.paused = True
        state = _state(model, run)
        inputs, keywords = _fake_inputs(inputs, run), _fake_inputs(keywords, run)
        updated = None
        if optimizer is not None:
            updated = _ready(optimizer, [one for one in state.values() if isinstance(one, torch.nn.Parameter)])
        _tell_recorder(recorder, state, updated)
        recorder.paused = False
        with _reparametrize_module(model, state):
            parameters = [one for one in state.values() if isinstance(one, torch.nn.Parameter)] if replicas > 1 else []
            with distributed.gradients_summed(parameters, replicas) if parameters else nullcontext():
                value = _forward(recorder, model, inputs, keywords, loss, backward)
                if value is not None:
                    value.backward()
                del value
            if updated is not None:
                updated.step()
                updated.zero_grad()
        return recorder.graph(type(model).__name__)


def _forward(recorder: Recorder, model: Any, inputs: Any, keywords: Any, loss: Any, backward: bool) -> Any:
    """Return the number from which the backward pass begins; None without one."""
    with torch.set_grad_enabled(backward):
        out = model(*inputs, **keywords)
        return _loss(out, loss, recorder.notes) if backward else None


def _loss(out: Any, loss: Any, notes: list[str]) -> Any:
    """Return the number that the backward pass begins from."""
    if loss is not None:
        return loss(out)
    own = getattr(out, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    found = [one for one in tensors.find_tensors(_values(out)) if one.is_floating_point() and one.requires_grad]
    if not found:
        raise InputError("the model's output has no gradient; give capture a loss, or backward=False")
    notes.append("loss is the mean of the first output")
    return found[0].float().mean()


def _values(out: Any) -> Any:
    return list(out.values()) if hasattr(out, "values") and not isinstance(out, torch.Tensor) else out


def _state(model: torch.nn.Module, run: Any) -> dict[str, Any]:
    """Fake parameters and buffers by name, tied ones as one tensor; buffers of integers are copied."""
    made: dict[int, Any] = {}
    found = {}
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, one in named:
        if id(one) not in made:
            made[id(one)] = _as_fake(one, run)
        found[name] = made[id(one)]
    return found


def _as_fake(tensor: torch.Tensor, run: Any) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(run.fake(tensor), requires_grad=tensor.requires_grad)
    if tensor.is_floating_point() or tensor.is_complex():
        return run.fake(tensor)
    with unset_fake_temporarily():
        if tensor.is_meta:
            return torch.zeros(tensor.shape, dtype=tensor.dtype)
        return tensor.detach().clone()


def _fake_inputs(values: Any, run: Any) -> Any:
    """Inputs with fake floating-point tensors, and integers as they are."""
    if isinstance(values, torch.Tensor):
        _refuse_cuda(values.device)
        return _as_fake(values, run).requires_grad_(values.requires_grad)
    if isinstance(values, list | tuple):
        return type(values)(_fake_inputs(one, run) for one in values)
    if isinstance(values, dict):
        return {name: _fake_inputs(one, run) for name, one in values.items()}
    return values


def _ready(optimizer: Any, parameters: list[torch.nn.Parameter]) -> Any:
    """Return an optimizer that has made its states, by a first step that is not recorded."""
    trained = [one for one in parameters if one.requires_grad]
    distinct = list({id(one): one for one in trained}.values())
    made = optimizer(distinct, **_as_on_gpus(optimizer))
    for one in distinct:
        one.grad = torch.zeros_like(one)
    made.step()
    made.zero_grad()
    return made


def _as_on_gpus(optimizer: Any) -> dict[str, bool]:
    """PyTorch's own classes update lists of tensors on GPUs, where on the CPU they take them one by one."""
    if isinstance(optimizer, type) and "foreach" in inspect.signature(optimizer).parameters:
        return {"foreach": True}
    return {}


def _tell_recorder(recorder: Recorder, state: Mapping[str, Any], optimizer: Any) -> None:
    """Let the recorder know what is there from the start: weights, buffers and the optimizer's states."""
    for one in state.values():
        recorder.memory(one, "weight")
    if optimizer is not None:
        for one in tensors.find_tensors([dict(states) for states in optimizer.state.values()]):
            recorder.memory(one, "state")
