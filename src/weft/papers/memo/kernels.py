"""Rows on operators and compilers: intensity, tiles, access patterns, launches, fusion, rewriting, tile search."""

from __future__ import annotations

import numpy as np

from weft.graph import Gemm, Graph, Streaming
from weft.hardware import gpu
from weft.papers.memo.values import Values, case
from weft.papers.textbook.kernels import (
    MatrixProduct,
    bucket_padding,
    cache_and_register_tiled,
    elementwise_chain,
    fusion_speedup,
    intensity,
    launch_kernels,
    load_instructions,
    register_tiled,
    replay_graph,
    ridge,
    shared_tiled,
    stencil_loads,
    strided_read,
    thread_tiled,
    untiled_traffic,
    view_bytes,
)
from weft.plan.tune.tiles import tiles
from weft.rewrite import RULES, Rewriting, rewrite
from weft.rewrite.execute import proven
from weft.rewrite.flow import Draft
from weft.step.queries import step

SQUARE = 4096
A100 = "a100-sxm-80gb"
_RIDGES = {"a100": A100, "h100": "h100-sxm", "mi300x": "mi300x"}


def roofline() -> Values:
    """Operations for each access of chains, FLOPs for each byte of a GEMM, and ridges of three GPUs."""
    return {
        "add": elementwise_chain(1, fused=False).per_access,
        "apart": elementwise_chain(3, fused=False).per_access,
        "fused": elementwise_chain(3, fused=True).per_access,
        "apart_bytes": elementwise_chain(3, fused=False).per_byte(4),
        "fused_bytes": elementwise_chain(3, fused=True).per_byte(4),
        "speedup": fusion_speedup(3),
        "gemm": intensity(Gemm(SQUARE, SQUARE, SQUARE, "bf16")),
        **{row: ridge(gpu(name), "bf16") for row, name in _RIDGES.items()},
    }


def tiling() -> Values:
    """Words that the product of the memo's size moves under each way of tiling it [millions], and a stencil's loads."""
    n, tile, side, band = (case("tiling")[name] for name in ("n", "tile", "side", "band"))
    square = MatrixProduct(n, n, n)
    shared = shared_tiled(square, tile, side)
    both = cache_and_register_tiled(square, (band, band), (side, side))
    words = {
        "untiled": untiled_traffic(square).words("memory"),
        "register": register_tiled(square, side, side).words("memory"),
        "one_element": thread_tiled(square, 1).words("memory"),
        "rows": thread_tiled(square, side, outer=False).words("memory"),
        "outer": thread_tiled(square, side).words("memory"),
        "memory": shared.words("memory"),
        "shared": shared.words("shared"),
        "band_a": both.reads["memory"][0],
        "band_b": both.reads["memory"][1],
        "band_registers": both.words("cache"),
    }
    return {
        **{row: count / 1e6 for row, count in words.items()},
        "registers": thread_tiled(square, side).held["registers"],
        "stencil": stencil_loads(128, 1),
        "stencil_unshared": stencil_loads(128, 1, shared=False),
    }


def access() -> Values:
    """Loads, bytes of views and of a copy, and sectors of a transposed read."""
    return {
        "scalar": load_instructions(256),
        "vector": load_instructions(256, 4),
        "transposed": strided_read(1024, 4096, 2).waste,
        "view": view_bytes((1024, 1024), 2),
        "contiguous": view_bytes((1024, 1024), 2, contiguous=True) / 1e6,
    }


def launches() -> Values:
    """Padding of lengths into buckets, and the GPU's idle share where launches bind, with and without a graph."""
    padding = bucket_padding(np.linspace(1024, 2048, 100_001)[1:])
    kernels, host = np.full(1000, 5e-6), 10e-6
    return {
        "padding": padding.volume,
        "padding_mean": padding.mean,
        "idle": launch_kernels(kernels, host).idle,
        "idle_graph": replay_graph(kernels, host).idle,
    }


def fusion() -> Values:
    """Return what fused kernels are worth to two published models, as throughput gained."""
    return {row: _fused_seconds(**plan) for row, plan in case("fusion").items()}


def _fused_seconds(model: str, system: str, pp: int, batch: int) -> float:
    fused, apart = (
        step(model, system, framework=framework, tp=8, pp=pp, batch=batch, recompute="full", dtype="fp16",
             fidelity="estimate").seconds
        for framework in ("megatron-2021", "megatron-2021-unfused")
    )  # fmt: skip
    return apart / fused - 1


def rewriting() -> Values:
    """Return what rules make of small graphs, and how many of the rules NumPy proves."""
    chain, three = _rewritten(elementwise(3), "fuse_elementwise"), _rewritten(projections(4096), "merge_qkv")
    one = rewrite(projections(4096), A100, ["cuda_graph"])
    return {
        "chain": chain.before.bytes / chain.after.bytes,
        "chain_kernels": chain.after.kernels,
        "qkv_kernels": three.after.kernels,
        "qkv_flops": three.after.flops / three.before.flops,
        "graph_bytes": one.after.bytes / one.before.bytes,
        "batchnorm": proven(RULES["fold_batchnorm"]).exact,
        "proven": sum(proven(rule).holds for rule in RULES.values()) / len(RULES),
    }


def _rewritten(graph: Graph, rule: str) -> Rewriting:
    return rewrite(graph, A100, [rule])


def elementwise(operators: int, elements: int = 2**24) -> Graph:
    """Additions in a row, each of the result before and of a tensor of its own."""
    draft = Draft("fp32")
    value = draft.add_input("x0", elements)
    for number in range(1, operators + 1):
        op = Streaming("elementwise", elements, inputs=2, function="add", dtype="fp32")
        value = draft.node(f"y{number}", op, value, draft.add_input(f"x{number}", elements))
    return draft.graph(value)


def projections(hidden: int) -> Graph:
    """Queries, keys and values: three GEMMs on one input of 2,048 tokens."""
    draft = Draft("bf16")
    tokens = draft.add_input("x", 2048, hidden)
    outputs = [
        draft.node(name, Gemm(2048, hidden, hidden, "bf16"), tokens, draft.weight(f"w_{name}", hidden, hidden))
        for name in ("q", "k", "v")
    ]
    return draft.graph(*outputs)


def tile_search() -> Values:
    """Candidates of a template, the part that is timed, and the best one's time over that of the library's kernel."""
    found = tiles(Gemm(SQUARE, SQUARE, SQUARE, "bf16"), "h100-sxm")
    return {
        "candidates": found.candidates,
        "timed": len(found.seconds) / found.candidates,
        "best": found.best.seconds / found.library.seconds,
    }
