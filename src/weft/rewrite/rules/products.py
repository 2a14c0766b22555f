"""Rules around products: GEMMs with a common input, biases, folded normalisation, and overlapped reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from weft.graph import Collective, Convolution, Gemm, Graph, Joined, Node, Opaque, Tensor, View, operator
from weft.graph.streaming import Streaming
from weft.rewrite.flow import LOAD, Draft, Flow, GraphChange, MatchedPlace
from weft.rewrite.rules.base import find_follower, refuse_place, size

CHUNKS = (2, 4)
"""Parts into which a GEMM before a reduction is cut."""


def merge(least: int, most: int) -> Callable[[Flow], Iterator[MatchedPlace]]:
    """GEMMs, `least` to `most` of them, that multiply one input by different weights: one GEMM of all columns."""

    def find(flow: Flow) -> Iterator[MatchedPlace]:
        groups: dict[str, list[Node]] = {}
        for node in flow.graph:
            if isinstance(node.op, Gemm) and len(node.inputs) >= 2 and node.phase != LOAD:
                groups.setdefault(node.inputs[0], []).append(node)
        for nodes in groups.values():
            if least <= len(nodes) <= most:
                yield _merge_products(flow, nodes)

    return find


def _merge_products(flow: Flow, nodes: Sequence[Node]) -> MatchedPlace:
    ops = [node.op for node in nodes if isinstance(node.op, Gemm)]
    if any(replace(op, n=ops[0].n) != ops[0] or op.batch != 1 or op.accumulates for op in ops):
        return refuse_place("their shapes, dtypes or batches do not match", *nodes)
    if len({len(node.inputs) for node in nodes}) > 1:
        return refuse_place("some of them add a bias, others do not", *nodes)
    for node in nodes:
        changing = [name for name in node.inputs[1:] if not flow.constant(name)]
        if changing:
            return refuse_place(
                f"{changing[0]} is no weight, so it cannot be laid beside the others in advance", *nodes
            )
    name = "+".join(node.name for node in nodes)
    columns = [op.n for op in ops]
    ends = np.cumsum(columns).tolist()
    tensors: dict[str, Tensor | View] = {
        node.outputs[0]: View(name, axis=-1, start=end - own, stop=end)
        for node, end, own in zip(nodes, ends, columns, strict=True)
    }
    loads, inputs = [], []
    for place, kind in enumerate(("weights", "bias")[: len(nodes[0].inputs) - 1], 1):
        parts = tuple(node.inputs[place] for node in nodes)
        whole = Tensor((*flow.shapes[parts[0]][:-1], ends[-1]), ops[0].dtype, "weight")
        joined = f"{name}.{kind}"
        loads.append(_load_node(joined, "concatenate", parts, {joined: whole}))
        tensors[joined] = whole
        inputs.append(joined)
    product = replace(
        nodes[0], op=replace(ops[0], n=ends[-1]), name=name, iteration=0, inputs=(nodes[0].inputs[0], *inputs),
        outputs=(name,),
    )  # fmt: skip
    return MatchedPlace(tuple(node.id for node in nodes), GraphChange(_ids(nodes), (*loads, product), tensors))


def _load_node(name: str, kind: str, inputs: tuple[str, ...], outputs: dict[str, Tensor]) -> Node:
    """Return a node that runs once, before the graph."""
    written = sum(tensor.bytes for tensor in outputs.values())
    op = Opaque(kind, bytes=2 * written, written=written)
    return Node(op, name, stream="compute", phase=LOAD, inputs=inputs, outputs=tuple(outputs))


def _ids(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(node.id for node in nodes)


def merge_example(count: int) -> Callable[[np.random.Generator], Graph]:
    """GEMMs of random widths on one input."""

    def example(draw: np.random.Generator) -> Graph:
        draft, m, k = Draft(), size(draw), size(draw)
        x = draft.add_input("x", m, k)
        bias = draw.random() < 0.5
        made = []
        for number in range(count):
            n = size(draw)
            more = (draft.weight(f"b{number}", n),) if bias else ()
            made.append(draft.node(f"y{number}", Gemm(m, n, k, "fp16"), x, draft.weight(f"w{number}", k, n), *more))
        return draft.graph(*made)

    return example


def fold_batchnorm(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield a convolution and the batch normalisation of its output: filters that normalise by themselves."""
    for node in flow.graph:
        if not isinstance(node.op, Convolution):
            continue
        after, blocked = find_follower(flow, node, "batchnorm")
        yield from blocked
        if after is None:
            continue
        changing = [name for name in (*node.inputs[1:], *after.inputs[1:]) if not flow.constant(name)]
        if changing:
            yield refuse_place(f"{changing[0]} is no constant, so it cannot be folded in advance", node, after)
            continue
        filters, bias = f"{after.name}.filters", f"{after.name}.bias"
        made = {
            filters: Tensor(flow.shapes[node.inputs[1]], node.op.dtype, "weight"),
            bias: Tensor((node.op.filters,), node.op.dtype, "weight"),
        }
        inputs = (node.inputs[1], *after.inputs[1:], *node.inputs[2:])
        load = _load_node(f"{after.name}.folded", "fold_batchnorm", inputs, made)
        folded = replace(after, op=node.op, inputs=(node.inputs[0], filters, bias))
        yield MatchedPlace((node.id, after.id), GraphChange((node.id, after.id), (load, folded), made))


def fold_example(draw: np.random.Generator) -> Graph:
    """Return a convolution of random sizes, with or without a bias, and its normalisation."""
    draft, images, channels, filters = Draft(), size(draw), size(draw), size(draw)
    stride, padding = int(draw.integers(1, 3)), int(draw.integers(0, 2))
    op = Convolution(images, channels, filters, size(draw) + 2, size(draw) + 2, 3, stride, padding)
    image = draft.add_input("image", images, op.height, op.width, channels)
    bias = (draft.weight("bias", filters),) if draw.random() < 0.5 else ()
    y = draft.node("conv", op, image, draft.weight("filters", 3, 3, channels, filters), *bias)
    kept = (draft.weight(name, filters) for name in ("scale", "shift", "mean", "variance"))
    elements = images * op.rows * op.columns * filters
    return draft.graph(draft.node("norm", Streaming("batchnorm", elements), y, *kept))


def matmul_bias(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield a GEMM and the kernel that adds its bias: the GEMM adds it as it writes its output."""
    for node in flow.graph:
        if not isinstance(node.op, Gemm) or len(node.inputs) != 2 or not node.outputs:
            continue
        after, blocked = find_follower(flow, node, "bias_add")
        yield from blocked
        if after is None:
            continue
        if flow.shapes[after.inputs[1]] != (node.op.n,):
            yield refuse_place(f"{after.inputs[1]} has not the {node.op.n} columns of the product", node, after)
            continue
        both = replace(after, op=node.op, inputs=(*node.inputs, after.inputs[1]))
        yield MatchedPlace((node.id, after.id), GraphChange((node.id, after.id), (both,)))


def bias_example(draw: np.random.Generator) -> Graph:
    """Return a GEMM of random sizes and its bias."""
    draft, m, n, k = Draft(), size(draw), size(draw), size(draw)
    y = draft.node("product", Gemm(m, n, k, "fp16"), draft.add_input("x", m, k), draft.weight("w", k, n))
    return draft.graph(draft.node("y", Streaming("bias_add", m * n), y, draft.weight("b", n)))


def overlap_reduce_scatter(flow: Flow) -> Iterator[MatchedPlace]:
    """A GEMM and the reduce-scatter of its output: parts of both, so that one part is sent while the next is computed.

    A part has rows of every rank's share, so that each rank gets its own rows, as before.
    """
    for node in flow.graph:
        if not isinstance(node.op, Gemm) or not node.outputs:
            continue
        after, why = flow.next_of(node)
        readers = flow.readers(node.outputs[0])
        if after is None:
            if any(_scatters(one) for one in readers):
                yield refuse_place(why, node)
            continue
        if not _scatters(after):
            continue
        if node.op.batch != 1 or flow.shapes[node.inputs[0]] != (node.op.m, node.op.k):
            yield refuse_place(f"{node.inputs[0]} is not one matrix of rows", node, after)
            continue
        for chunks in CHUNKS:
            yield _chunk_product(node, after, chunks)


def _scatters(node: Node) -> bool:
    return isinstance(node.op, Collective) and node.op.name == "reduce_scatter"


def _chunk_product(node: Node, after: Node, chunks: int) -> MatchedPlace:
    gemm, moved = node.op, after.op
    assert isinstance(gemm, Gemm)
    assert isinstance(moved, Collective)
    if gemm.m % (moved.ranks * chunks) or moved.bytes % chunks:
        return refuse_place(
            f"{gemm.m} rows do not divide into {chunks} parts for each of {moved.ranks} ranks", node, after
        )
    rows, name = gemm.m // (moved.ranks * chunks), node.name
    by_rank = f"{name}.rows"
    tensors: dict[str, View | Joined] = {by_rank: View(node.inputs[0], (moved.ranks, chunks, rows, gemm.k))}
    parts = []
    for part in range(chunks):
        own, sent = f"{name}.{part}", f"{after.name}.{part}"
        tensors[f"{own}.rows"] = View(by_rank, axis=1, start=part, stop=part + 1)
        product = replace(gemm, m=gemm.m // chunks)
        parts.append(replace(node, op=product, name=own, inputs=(f"{own}.rows", *node.inputs[1:]), outputs=(own,)))
        parts.append(
            replace(after, op=replace(moved, bytes=moved.bytes // chunks), name=sent, after=(own,), inputs=(own,),
                    outputs=(sent,))
        )  # fmt: skip
    tensors[after.outputs[0]] = Joined(tuple(f"{after.name}.{part}" for part in range(chunks)))
    return MatchedPlace((node.id, after.id), GraphChange((node.id, after.id), tuple(parts), tensors))


def scatter_example(draw: np.random.Generator) -> Graph:
    """Return a GEMM on several ranks, whose outputs are added up and shared out by rows."""
    ranks = int(draw.integers(2, 4))
    draft, m, n, k = Draft(ranks=ranks), size(draw, multiple=4 * ranks), size(draw), size(draw)
    y = draft.node("product", Gemm(m, n, k, "fp16"), draft.add_input("x", m, k), draft.weight("w", k, n))
    sent = draft.node("sum", Collective("reduce_scatter", 2 * m * n, ranks, "fp16"), y, stream="tp")
    return draft.graph(draft.node("y", operator("gelu", elements=m // ranks * n), sent))
