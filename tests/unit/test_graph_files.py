"""Graphs on disk, and tensors by name."""

import gzip

import pytest

import weft
from weft.core.errors import ConfigError, InputError
from weft.graph import (
    KINDS,
    Call,
    Constant,
    Edge,
    Gemm,
    Graph,
    Joined,
    KernelChoice,
    Node,
    Streaming,
    Tensor,
    TiledGemm,
    View,
    concurrent,
    read_graph,
    write_graph,
)  # fmt: skip
from weft.graph.named import shapes
from weft.kernels import GemmTiling
from weft.view import write_graph_trace


@pytest.fixture
def graph():
    nodes = (
        weft.Node(weft.Gemm(8, 12, 4), "both", inputs=("x", "w"), outputs=("y",)),
        weft.Node(
            Streaming("elementwise", 48, inputs=2, function="add relu"), "sum", after=(Edge("both", "tile"),),
            choice=KernelChoice(compute_units=(0, 1), priority=2), inputs=("left", "right"), outputs=("z",),
        ),
    )  # fmt: skip
    tensors = {
        "x": Tensor((8, 4)), "w": Tensor((4, 12), "fp16", "weight"), "left": View("y", axis=1, stop=6),
        "right": View("y", axis=1, start=6), "mask": Constant((8, 8), pattern="causal"), "pair": Joined(("z", "z"), 1),
    }  # fmt: skip
    return weft.Graph(nodes, 2, "a title", {"origin": "by hand"}, tensors, ("z",))


@pytest.mark.parametrize("name", ["model.graph.jsonl", "model.graph.jsonl.gz"])
def test_a_graph_is_read_as_it_was_written(graph, tmp_path, name):
    path = write_graph(graph, tmp_path / name)
    assert read_graph(path) == graph
    assert path.read_bytes()[:2] == (b"\x1f\x8b" if name.endswith("gz") else b'{"')


def test_every_kind_of_operator_survives(tmp_path):
    ops = [
        weft.Gemm(8, 8, 8, batch=3), weft.operator("attention_fused", batch=1, heads=2, query=8, keys=8, head=4),
        weft.operator("swiglu", elements=8), weft.all_reduce("1 MiB"), weft.Opaque("sort", 1, 9, 4, seconds=1e-6),
        Call("aten.add.Tensor", (Tensor((8,), "int64"),), (Tensor((8,)),), (weft.Gemm(8, 8, 8),), 8),
        KINDS["recurrent"]("gru", 8, 2, 4, inputs=4, computes="data"),
        *(KINDS[kind](*sizes) for kind, sizes in {
            "grouped_gemm": (2, 8, 8, 8), "convolution": (1, 2, 2), "gemv": (8, 8, 16), "pooling": (1, 2),
            "ctc": (2, 9, 3, 5), "send": (8,), "copy": (8,), "scan": ("gated_delta", 2, 8, 4, 8, 8, 2, 8),
        }.items()),
    ]  # fmt: skip
    assert {op.kind for op in ops} == set(KINDS)
    whole = weft.Graph(tuple(weft.Node(op, op.kind) for op in ops))
    assert read_graph(write_graph(whole, tmp_path / "all.jsonl")) == whole


def test_iterations_survive(tmp_path):
    loop = concurrent(weft.Gemm(64, 64, 64), weft.all_gather("1 MiB"), gemms=3)
    assert read_graph(write_graph(loop, tmp_path / "loop.jsonl")) == loop


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "line 1 does not announce a graph"),
        (lambda text: text.replace('"version":2', '"version":1'), "is of version 1, and this Weft reads 2"),
        (lambda text: text.rsplit("\n", 2)[0], "the first line announces 9 lines"),
        (lambda text: text.replace("Streaming", "Streamed"), "line 9 unknown class"),
        (lambda text: text.replace('"m":8', '"m":0'), "line 8 GEMM dimension M is 0"),
        (lambda text: text.replace('"m":8', '"rows":8'), "line 8 does not describe"),
        (
            lambda text: text.replace('"name":', '"stream":5,"name":', 1),
            "line 8 the stream of node '.*' is 5; give a text",
        ),
        (lambda text: text.replace('"name":', '"phase":[1],"name":', 1), "line 8 the phase of node '.*' is "),
        (lambda text: text + "{", "line 10 is no JSON"),
    ],
)
def test_a_broken_file_names_the_line(graph, tmp_path, change, said):
    path = write_graph(graph, tmp_path / "mine.jsonl")
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError, match=said):
        read_graph(path)


def test_what_is_cut_off_in_the_middle_of_the_compressed_data_is_refused(graph, tmp_path):
    path = write_graph(graph, tmp_path / "mine.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cut off"):
        read_graph(path)
    path.write_bytes(gzip.compress(b"\xff\xfe"))
    with pytest.raises(ConfigError, match="this is no graph"):
        read_graph(path)


def test_a_tiling_is_not_lost_silently(tmp_path):
    tiling = weft.gemm_queue([weft.Gemm(64, 64, 64)])
    chosen = tiling.map(lambda node: weft.Node(node.op, node.name, choice=KernelChoice(TiledGemm(GemmTiling()))))
    with pytest.raises(InputError, match="holds no GemmTiling"):
        write_graph(chosen, tmp_path / "mine.jsonl")
    assert not list(tmp_path.iterdir())


def test_shapes_follow_from_operators_and_views(graph):
    found = shapes(graph)
    assert (found["y"], found["left"], found["z"], found["pair"]) == ((8, 12), (8, 6), (8, 6), (8, 12))


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        (View("y", order=(1, 0)), (6, 4)),
        (View("y", (2, 2, 6), order=(1, 0, 2)), (2, 2, 6)),
        (View("y", (4, 2, 3), axis=1, repeat=3), (4, 6, 3)),
        (View("y", start=1, stop=4), (4, 3)),
    ],
)
def test_a_view_has_its_shape(view, shape):
    assert view.shape_from((4, 6)) == shape


@pytest.mark.parametrize("view", [View("y", (5, 5)), View("y", start=4, stop=9), View("y", order=(0, 0))])
def test_a_view_that_does_not_fit_is_refused(view):
    with pytest.raises(InputError, match="a view"):
        view.shape_from((4, 6))


def test_a_tensor_that_nothing_writes_is_named():
    node = weft.Node(weft.Gemm(8, 8, 8), "gemm", inputs=("x", "w"), outputs=("y",))
    with pytest.raises(InputError, match="reads the tensor 'w', which nothing before it writes"):
        weft.Graph((node,), tensors={"x": Tensor((8, 8))})
    given = {"x": Tensor((8, 8)), "w": Tensor((8, 8))}
    with pytest.raises(InputError, match="two nodes write the tensor 'y'"):
        weft.Graph((node, weft.Node(node.op, "again", inputs=("x", "w"), outputs=("y",))), tensors=given)
    with pytest.raises(InputError, match="result 'z' is written by no node"):
        weft.Graph((node,), tensors=given, results=("z",))
    wrong = weft.Graph((node,), tensors={**given, "x": Tensor((8, 9))})
    with pytest.raises(InputError, match="reads 'x' of shape"):
        shapes(wrong)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": View("b"), "b": View("a")}, "is a view of itself"),
        ({"a": Joined(("x", "a"))}, "is a view of itself"),
    ],
)
def test_a_view_of_itself_is_refused(tensors, said):
    node = weft.Node(weft.Gemm(8, 8, 8), "gemm", inputs=("x", "w"), outputs=("y",))
    given = {"x": Tensor((8, 8)), "w": Tensor((8, 8)), **tensors}
    with pytest.raises(InputError, match=said):
        weft.Graph((node,), tensors=given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: View(3),
        lambda: View("a", shape=(4, None)),
        lambda: View("a", axis="1"),
        lambda: View("a", repeat=0),
        lambda: Joined(()),
        lambda: Constant((1,), "1"),
        lambda: Constant((4,), pattern="causal"),
        lambda: View("a", axis=5).shape_from((4, 6)),
    ],
)
def test_what_describes_no_tensor_is_refused(make):
    with pytest.raises(InputError):
        make()


def test_a_graphs_step_has_a_trace_with_every_operator_where_it_ran(tmp_path):
    product = Node(Gemm(512, 512, 512, "bf16"), "product", phase="forward", module="head")
    again = Node(Gemm(512, 512, 512, "bf16"), "again", after=("product",), stream="side")
    step = weft.step(Graph((product, again)), "h100-sxm")
    (path,) = write_graph_trace(step, tmp_path / "trace.json.gz")
    recorded = weft.read_trace(path)
    assert recorded.makespan == pytest.approx(step.seconds, rel=1e-3)
    assert sorted(recorded.names) == ["gemm_bf16_512x512x512"]
    assert len(recorded.streams) == 2
    assert step.spans["again"][0] == step.spans["product"][1]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), "1 ms", True, None])
def test_a_measured_time_is_a_finite_number_of_seconds(seconds):
    with pytest.raises(InputError, match=r"measured time of operator .* it must be a finite number"):
        weft.Opaque("sort", seconds=seconds)


def test_an_operator_with_a_measured_time_takes_it_on_every_gpu():
    for gpu in ("h100-sxm", "mi300x"):
        assert weft.estimate(weft.Opaque("sort", seconds=3e-6), gpu).seconds == 3e-6
