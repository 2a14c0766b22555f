"""The entry point of closed forms: time of an operator, several, or a graph, on a GPU or a system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from weft.core.errors import InputError, check_type, join_or
from weft.core.options import RunOptions
from weft.estimate.answer import Bound, Estimate, in_sequence, side_by_side
from weft.estimate.gemm import gemm
from weft.estimate.target import BenchmarkProtocol, Target, check_held, target
from weft.graph import (
    Attention,
    Call,
    Collective,
    Convolution,
    Ctc,
    DmaCopies,
    Driver,
    Gemm,
    Gemv,
    Graph,
    GroupedGemm,
    LibraryCollective,
    MoEExchange,
    Node,
    Op,
    Pooling,
    Recurrent,
    Scan,
    Send,
    Streaming,
    TokenExchange,
)
from weft.graph.graph import check_alike, check_choice
from weft.hardware import Described


def _form(op: Op) -> Callable[[Any, Target], Estimate]:
    """Return the closed form of an operator, whose module is imported when one asks for it."""
    if isinstance(op, Gemm):
        return gemm
    if isinstance(op, GroupedGemm):
        from weft.estimate.experts import grouped_gemm

        return grouped_gemm
    if isinstance(op, Attention):
        from weft.estimate.attention import attention

        return attention
    if isinstance(op, Convolution):
        from weft.estimate.convolution import convolution

        return convolution
    if isinstance(op, Recurrent):
        from weft.estimate.recurrent import recurrent

        return recurrent
    if isinstance(op, Scan):
        from weft.estimate.scan import scan

        return scan
    if isinstance(op, TokenExchange):
        from weft.estimate.exchange import of_operator

        return of_operator
    if isinstance(op, Collective | Send):
        from weft.estimate.collective import collective

        if isinstance(op, Send):
            return lambda send, machine: collective(Collective("send_recv", send.bytes, 2), machine)
        return collective
    if isinstance(op, Call):
        return _call
    from weft.estimate import streaming

    moved: dict[type[Op], Callable[[Any, Target], Estimate]] = {
        Gemv: streaming.gemv,
        Pooling: streaming.pooling,
        Ctc: streaming.ctc,
        Streaming: streaming.streaming,
    }
    return next((form for kind, form in moved.items() if isinstance(op, kind)), streaming.opaque)


def _call(op: Call, machine: Target) -> Estimate:
    """Time the products of a call, serially; without any, its tensors' bytes, which `by` says."""
    if op.products:
        return in_sequence([gemm(product, machine) for product in op.products])
    from weft.estimate.streaming import opaque

    return replace(opaque(op, machine), by=np.array("bytes"))


def estimate(
    work: Op | Sequence[Op] | Graph | str,
    system: Described | Sequence[Described],
    options: RunOptions | None = None,
    harness: BenchmarkProtocol | None = None,
    *,
    tp: int | None = None,
    dtype: str | None = None,
) -> Estimate:
    """Return how long work takes on each GPU of a system, what bounds it, and where the time goes, in closed form.

    `work` is an operator, several, a graph, or a sub-layer's name, like "t-nlg/fc2", with its `tp` (and `dtype`).
    Dimensions of operators, bytes and ranks may be arrays, which broadcast; several systems are a leading axis. A
    single case is answered with Python numbers and words.

    Operators run serially, those of a graph after their predecessors, streams side by side without slowing
    each other down. A node's choice of a collective's kernel, protocol, channels and units is used, and so are the
    launches before any kernel; exchanges of experts are timed as even ones; a choice that closed forms do not know is
    refused. `options` say what clock the GPUs run at (default: that of a long run), `harness` how the work is called
    and timed.

    Raises UnknownNameError for an unknown system, InputError for what the system cannot do: data that the memory of a
    GPU cannot hold, data types that it lacks, ranks that cannot be spread over its nodes, an algorithm that its library
    does not have.

    >>> from weft.graph import Gemm
    >>> print(estimate(Gemm(8192, 8192, 8192, "bf16"), ["h100-sxm", "mi300x"]).bound)
    ['compute' 'compute']
    """
    if isinstance(work, str) or (tp, dtype) != (None, None):
        from weft.models.parallel.work import work_of  # models are imported where one is named

        work = work_of(work, tp, dtype)
    if isinstance(system, Sequence) and not isinstance(system, str | bytes):
        if not system:
            raise InputError("there is no system to estimate on; name one, like 'h100-sxm'")
        return side_by_side([estimate(work, one, options, harness) for one in system])
    machine = target(system, options, harness)
    if isinstance(work, Op):
        return _plain(_estimate_op(work, machine))
    if not isinstance(work, Graph):
        work = _in_a_row(work)
    return _plain(_of_graph(work, machine))


def _in_a_row(work: Any) -> Graph:
    """Return the estimate of operators in sequence; InputError if `work` is not a list of them."""
    rule = "give an operator like weft.gemm(8192, 8192, 8192), a list of them, a graph, or a name like 't-nlg/fc2'"
    check_type("the work", work, (list, tuple), rule)
    for op in work:
        check_type("an operator of the work", op, Op, rule)
    return Graph(tuple(Node(op, f"{op.kind}{place}") for place, op in enumerate(work)))


def _plain(answer: Estimate) -> Estimate:
    """Return the estimate with Python numbers and words instead of arrays without axes."""
    if np.ndim(answer.seconds) == 0:
        return answer.case()
    return replace(answer, operators={name: _plain(one) for name, one in answer.operators.items()})


def _estimate_op(op: Op, machine: Target) -> Estimate:
    check_held(op, machine.gpu)
    found = _form(op)(op, machine)
    waits = machine.harness.timed == "host" and not isinstance(op, Gemm | GroupedGemm | Collective | Send)
    return _add_host_wait(found, machine) if waits else found


def _add_host_wait(issued: Estimate, machine: Target) -> Estimate:
    """Replace an operator's launch by the host's launch and wait; GEMMs and collectives have terms of their own."""
    launch = np.maximum(issued.parts["launch"], machine.gpu.achieved.gemm_host)
    seconds = issued.seconds + launch - issued.parts["launch"]
    bound = np.where(launch > seconds / 2, Bound.LAUNCH, issued.bound)
    return replace(issued, seconds=seconds, bound=bound, parts={**issued.parts, "launch": launch})


def _of_graph(graph: Graph, machine: Target) -> Estimate:
    found: dict[str, Estimate] = {}
    first: dict[str, Node] = {}
    for node in graph:
        chosen = _as_chosen(node, machine)
        if node.name not in found:
            found[node.name], first[node.name] = _estimate_op(node.op, chosen), node
        else:
            check_alike(first[node.name], node)
    launch = machine.gpu.compute.launch_latency
    path = graph.critical_path({name: one.seconds for name, one in found.items()}, launch)
    each = {node.id: found[node.name] for node in graph}
    ends = [end for _, end in path.values()]
    return replace(in_sequence(list(each.values())), seconds=reduce(np.maximum, ends), operators=each)


_TIMED = LibraryCollective, DmaCopies, MoEExchange
"""The kernels of collectives that have a closed form. An MoE exchange already has the bytes that its routing sends."""


def _as_chosen(node: Node, machine: Target) -> Target:
    """Return the machine with the harness that a node's choice asks for.

    Raises InputError for a choice that closed forms do not time.
    """
    choice, kernel, where = node.choice, node.choice.kernel, "the closed form of weft.estimate"
    if not isinstance(node.op, Collective):
        masked = ("compute_units",) if isinstance(node.op, Gemm) else ()
        check_choice(node, (), ("launches_before", *masked), where)
        if not masked or choice.compute_units is None:
            return machine
        return replace(machine, harness=replace(machine.harness, mask=choice.compute_units))
    timed = kernel is None or isinstance(kernel, _TIMED)
    if not timed or (isinstance(kernel, MoEExchange) and kernel.dispatcher is not None):
        from weft.kernels.library.collectives import KERNELS

        raise InputError(
            f"no closed form times the {type(kernel).__name__} of '{node.id}'; choose a LibraryCollective, like "
            f"{join_or(KERNELS)}, or ask weft.simulate"
        )
    changed: dict[str, Any] = {}
    if isinstance(kernel, DmaCopies):
        check_choice(node, (DmaCopies,), ("launches_before",), "a copy by DMA engines")
        if kernel.options:
            raise InputError(
                f"the choice of node '{node.id}' states {', '.join(kernel.options)} of copies, which {where} does not "
                "use; leave them out"
            )
        changed["driver"] = Driver.DMA
    else:
        check_choice(node, _TIMED, ("compute_units", "launches_before"), where)
        if isinstance(kernel, LibraryCollective) and (kernel.algorithm or kernel.protocol):
            changed["algorithm"] = "-".join(filter(None, (kernel.algorithm or "ring", kernel.protocol)))
        if isinstance(kernel, LibraryCollective | MoEExchange) and kernel.channels is not None:
            changed["channels"] = kernel.channels
        if choice.compute_units is not None:
            changed["compute_units"] = len(choice.compute_units)
    return replace(machine, harness=replace(machine.harness, **changed)) if changed else machine
