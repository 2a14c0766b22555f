"""Laws of graphs in the engine: whatever is drawn, every operator runs once, after all that it waits for."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import gpu
from runs import Bare

from weft.graph import Collective, DmaCopies, Gemm, Graph, KernelChoice, Node, TiledGemm
from weft.hardware import System
from weft.kernels import GemmTiling
from weft.simulate.single import simulate

SMALL = gpu(compute__compute_units=8, memory__channels=8, memory__bandwidth="256 GB/s")
TILING = GemmTiling(64, 64, 32)
RANKS = 4


@st.composite
def graphs(draw):
    """Up to seven GEMMs and copies by DMA engines on up to three streams, with several predecessors each."""
    nodes = []
    for number in range(draw(st.integers(1, 7))):
        earlier = [node.id for node in nodes]
        after = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        stream = draw(st.sampled_from(["one", "two", "three"]))
        if draw(st.booleans()):
            op = Gemm(64 * draw(st.integers(1, 3)), 64, 32 * draw(st.integers(1, 3)))
            choice = KernelChoice(TiledGemm(TILING))
        else:
            op = Collective("all_gather", draw(st.sampled_from([64, 128])) << 10, RANKS, "fp16")
            choice = KernelChoice(DmaCopies())
        nodes.append(Node(op, f"operator{number}", after=tuple(after), stream=stream, choice=choice))
    return Graph(tuple(nodes), RANKS)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_every_operator_runs_once_after_its_predecessors_and_its_stream(graph):
    run = simulate(graph, System(gpu=SMALL, gpus=RANKS), Bare("bare", "", ""))
    spans = {span.operator: span for span in run.spans}
    assert len(run.spans) == len(spans) == len(graph)
    last = {}
    for node in graph:
        before = [edge.node for edge in node.edges]
        before += [last[node.stream]] if node.stream in last else []
        begin = spans[node.name].start_fs
        assert begin == max((spans[name].end_fs for name in before), default=0)
        last[node.stream] = node.name
    sent = sum(node.op.bytes * (RANKS - 1) // RANKS for node in graph if isinstance(node.op, Collective))
    assert run.counters["link_bytes"] == sent
    for node in graph.gemms:
        m, n, k = node.op.m, node.op.n, node.op.k
        assert run.bytes(node.name, "write") in (0, node.op.output_bytes) or run.bytes("gemm") > 0
        assert run.counters["cache_hits"] + run.counters["cache_misses"] > 0
        assert m * n * k > 0


@given(graphs())
def test_the_critical_path_is_the_longest_chain_of_edges_and_streams(graph):
    seconds = {node.name: 1.0 for node in graph}
    times = graph.critical_path(seconds)
    assert all(end == begin + 1 for begin, end in times.values())
    assert max(end for _, end in times.values()) <= len(graph)
    for node in graph:
        assert all(times[edge.node][1] <= times[node.id][0] for edge in node.edges)
