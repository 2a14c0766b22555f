"""Capture PyTorch programs as graphs of operators, without running them: `weft.capture(model, *inputs)`.

Needs PyTorch, which is imported when a capture begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.core.errors import InputError
from weft.graph import Graph

if TYPE_CHECKING:
    from weft.torch.capture.recorder import Recorder

__all__ = ["by_name", "capture", "capturing"]

_MISSING = (
    "capturing needs PyTorch, which is not installed; run pip install 'weft[capture]', or read a captured graph from "
    "its file"
)


def capture(
    model: Any,
    *inputs: Any,
    keywords: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    backward: bool = True,
    optimizer: Callable[[Any], Any] | None = None,
    routing: str | Callable[[int, int, int], Any] = "balanced",
    ops: Mapping[str, Any] | None = None,
    fused: bool = False,
    replicas: int = 1,
) -> Graph:
    """Return the operators of one training step of a PyTorch module: forward, backward and optimizer, in a graph.

    Nothing is computed but integers and masks, and the module stays as it is: its weights may be real, on the "meta"
    device or fake. `loss` takes the module's output to a number (default: the output's own `loss`, else the mean of its
    first tensor), `optimizer` is a class or a function of the parameters, such as torch.optim.AdamW; its states are
    there from the start. Without `backward` only the forward pass is captured. `routing` says which experts a token is
    sent to: "balanced", or a function of tokens, choices and experts that answers indices of (tokens, choices).
    `ops` teaches operators that Weft does not know: "bytes" for one that only moves its tensors, or a function of its
    input and output tensors (`weft.graph.Tensor`) that answers its FLOPs or an operator of Weft.

    With `fused`, operators that a compiler would make one kernel of are one: those of a norm, an activation or a rotary
    embedding, and chains of pointwise operators of one shape; a label says how many.

    With `replicas`, gradients are averaged over `replicas` ranks in all-reduces of 25 MiB while the backward pass runs,
    as DistributedDataParallel does (whose own code cannot be captured).

    The graph's labels name what was assumed and the peak of memory. Raises InputError for what cannot be captured, with
    module, operator and line: unknown operators, control flow that depends on data, CUDA devices.
    """
    step = {"loss": loss, "backward": backward or optimizer is not None, "optimizer": optimizer, "replicas": replicas}
    return _part().capture_module(
        model, inputs, dict(keywords or {}), **step, routing=routing, ops=ops or {}, fused=fused
    )


def by_name(
    maker: str, inputs: Sequence[str], optimizer: str | None = None, dtype: str | None = None, *, backward: bool = True
) -> Graph:
    """The training step of the model that `maker`, like "my_module:make_model", answers; made on the meta device.

    Inputs are like "1x4096:int64", or "input_ids=1x4096:int64" by keyword; those of integers are zeros. `optimizer` is
    a class of torch.optim. Raises InputError as `capture` does, and for names and shapes that are none.
    """
    _part()
    from weft.torch.capture.named import capture_named

    return capture_named(maker, inputs, optimizer, dtype, backward=backward)


class Capturing:
    """What a `capturing` block answers: the graph, once the block has ended."""

    def __init__(self, recorder: Recorder) -> None:
        self._graph: Graph | None = None
        self._recorder = recorder

    @contextmanager
    def setup(self) -> Iterator[None]:
        """A block inside the captured one whose calls are no part of the step: make and shard the model there."""
        self._recorder.preparing = True
        try:
            yield
        finally:
            self._recorder.preparing = False

    @property
    def graph(self) -> Graph:
        """The captured graph; InputError inside the block."""
        if self._graph is None:
            raise InputError("the graph is complete when the 'with weft.capturing()' block has ended; read it there")
        return self._graph


@contextmanager
def capturing(
    *,
    fake: bool = True,
    routing: str | Callable[[int, int, int], Any] = "balanced",
    ops: Mapping[str, Any] | None = None,
    fused: bool = False,
    world: int = 1,
    rank: int = 0,
) -> Iterator[Capturing]:
    """Capture what PyTorch does in a `with` block, such as a step of a training script: see `capture`.

    With `fake`, no floating-point number is computed, and weights from outside the block keep their values; make the
    optimizer in the block, for its states are fake, too. Without it everything really runs. The answer's `graph` is
    there after the block; what the block does in `with found.setup()` is no part of the step.

    With a `world` of ranks the program runs as `rank` of `world`, in this process and without a network: its default
    process group is there, of which meshes, DTensor and FSDP make theirs. Collectives become operators of the graph, on
    one stream for each process group. Raises InputError beside a live process group.
    """
    asked = {"fake": fake, "routing": routing, "ops": ops or {}, "fused": fused, "world": world, "rank": rank}
    with _part().recording(**asked) as recorder:
        found = Capturing(recorder)
        yield found
    found._graph = _finish_graph(recorder)


def _finish_graph(recorder: Recorder) -> Graph:
    return recorder.graph("a captured step")


def _part() -> Any:
    """Return the module that does it; InputError if PyTorch is not installed."""
    try:
        import torch  # noqa: F401 - whether it is there
    except ImportError:
        raise InputError(_MISSING) from None
    from weft.torch.capture import module

    return module
