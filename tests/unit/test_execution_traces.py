"""Execution traces of PyTorch and Chakra: what becomes an operator, what it waits for, and the way out and back."""

import gzip
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import weft
from weft.cli.main import main
from weft.core.errors import ConfigError, InputError
from weft.graph import Call, Collective, Edge, Gemm, Graph, Node, Opaque, Send
from weft.torch.traces import read_execution_trace

MLP = Path(__file__).parents[1] / "traces" / "mlp_execution.json.gz"
needs_protobuf = pytest.mark.skipif(
    find_spec("google") is None or find_spec("google.protobuf") is None,
    reason="Chakra's .et files need protobuf: pip install 'weft[traces]'",
)


def tensor(number, storage, *shape, device="cuda:0"):
    count = 1
    for size in shape:
        count *= size
    return [number, storage, 0, count, 4, device], list(shape), "Tensor(float)"


def call(id_, name, parent, inputs=(), outputs=(), schema=None, **more):
    """A call of PyTorch's execution trace."""
    ways = {
        way: {"values": [t[0] for t in given], "shapes": [t[1] for t in given], "types": [t[2] for t in given]}
        for way, given in (("inputs", inputs), ("outputs", outputs))
    }
    schema = f"{name}(Tensor self) -> Tensor" if schema is None else schema
    stated = {"op_schema": schema, "scope": 0, "tid": 1, **more}
    attrs = [{"name": key, "type": "", "value": value} for key, value in stated.items()]
    return {"id": id_, "name": name, "ctrl_deps": parent, **ways, "attrs": attrs}


def recorded(path, *calls, schema="1.1.1-chakra.0.0.4"):
    path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": [call(1, "root", 1, schema=""), *calls]}))
    return path


def ops(graph):
    return [(node.name, type(node.op).__name__) for node in graph]


def test_a_call_that_weft_knows_stands_for_those_inside_it(tmp_path):
    x, w, y = tensor(2, 3, 16, 32), tensor(4, 5, 32, 64), tensor(6, 7, 16, 64)
    path = recorded(
        tmp_path / "t.json",
        call(10, "aten::matmul", 1, [x, w], [y]),
        call(11, "aten::t", 10, [w], [w], schema="aten::t(Tensor(a) self) -> Tensor(a)"),
        call(12, "aten::mm", 10, [x, w], [y]),
        call(13, "aten::empty", 12, [], [y]),
    )
    graph = weft.read_graph(path)
    assert ops(graph) == [("aten::mm#12", "Gemm")]
    assert graph["aten::mm#12"].op == Gemm(16, 64, 32, "fp32")


def test_a_call_around_a_fill_works_after_it(tmp_path):
    x, y = tensor(2, 3, 16, 32), tensor(6, 7, 16, 32)
    path = recorded(
        tmp_path / "t.json",
        call(10, "aten::max_pool2d_with_indices_backward", 1, [x], [y]),
        call(11, "aten::zero_", 10, [y], [y], schema="aten::zero_(Tensor(a!) self) -> Tensor(a!)"),
        call(12, "aten::zeros_like", 1, [x], [y]),
        call(13, "aten::fill_", 12, [y], [y], schema="aten::fill_(Tensor(a!) self) -> Tensor(a!)"),
    )
    names = [name for name, _ in ops(weft.read_graph(path))]
    assert names == ["aten::zero_#11", "aten::max_pool2d_with_indices_backward#10", "aten::fill_#13"]


def test_dataflow_is_rebuilt_from_storages(tmp_path):
    a, b, c = (tensor(number, number + 1, 8, 8) for number in (2, 4, 6))
    path = recorded(
        tmp_path / "t.json",
        call(10, "aten::neg", 1, [a], [b]),
        call(11, "aten::neg", 1, [a], [c]),
        call(12, "aten::add_", 1, [b, c], [b], schema="aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)"),
        call(13, "aten::exp", 1, [b], [a]),
    )
    after = {node.name: [edge.node for edge in node.edges] for node in weft.read_graph(path)}
    assert after["aten::neg#11"] == []
    assert after["aten::add_#12"] == ["aten::neg#10", "aten::neg#11"]
    assert after["aten::exp#13"] == ["aten::add_#12"]


def test_collectives_have_their_group_and_bytes_and_wait_for_what_they_send(tmp_path):
    part, whole = tensor(2, 3, 256), tensor(4, 5, 1024)
    text = (["allgather", [], "String"],)
    path = recorded(
        tmp_path / "t.json",
        call(10, "aten::neg", 1, [whole], [part]),
        call(11, "c10d::_allgather_base_", 1, [whole, part], [whole]),
        call(12, "record_param_comms", 11, [part, *text], [whole], schema="", pg_name="tp", pg_size=4),
        call(13, "aten::exp", 1, [whole], [tensor(8, 9, 1024)]),
    )
    graph = weft.read_graph(path)
    (moved,) = graph.collectives
    assert moved.op == Collective("all_gather", 4096, 4, "fp32")
    assert moved.stream == "communication tp"
    assert [edge.node for edge in moved.edges] == ["aten::neg#10"]
    assert Edge(moved.name) in graph["aten::exp#13"].edges
    assert graph.ranks == 4


def test_an_unknown_group_is_assumed_and_said_or_given(tmp_path):
    sent = call(10, "record_param_comms", 1, [tensor(2, 3, 256), ["allreduce", [], "String"]], schema="")
    path = recorded(tmp_path / "t.json", sent)
    assert "how many GPUs 1 collectives have: 8 are taken" in weft.read_graph(path).labels["assumed"]
    graph = read_execution_trace(path, ranks=2).graph
    assert (graph.ranks, "assumed" in graph.labels) == (2, False)
    for rank in range(4):
        recorded(tmp_path / f"run.{rank}.json", sent)
    assert weft.read_graph(tmp_path / "run.3.json").ranks == 4


def test_calls_on_the_host_are_left_out_beside_a_gpu(tmp_path):
    path = recorded(
        tmp_path / "t.json",
        call(10, "aten::neg", 1, [tensor(2, 3, 8, device="cpu")], [tensor(4, 5, 8, device="cpu")]),
        call(11, "aten::neg", 1, [tensor(6, 7, 8)], [tensor(8, 9, 8)]),
    )
    assert [name for name, _ in ops(weft.read_graph(path))] == ["aten::neg#11"]


def test_a_training_step_of_pytorch_has_its_products_and_phases():
    trace = read_execution_trace(MLP)
    assert trace.read.unmapped == trace.read.dangling == 0
    assert sum(isinstance(node.op, Gemm) for node in trace.graph) == 5
    assert trace.graph.gemms[0].op.flops == 2 * 16 * 32 * 64
    assert [node.phase for node in trace.graph if "add_" in node.name] == ["optimizer"] * 4
    assert weft.step(trace.graph, "h100-sxm").seconds > 0


def feeder(path, nodes):
    path.write_text(json.dumps({"workload_graph": nodes, "ngpus": 8}))
    return path


def work(id_, *waits, name="kernel", kind=4, **more):
    return {"Id": id_, "Name": name, "NodeType": kind, "data_deps": list(waits), "is_cpu_op": False, **more}


def test_work_on_a_gpu_waits_for_what_its_launches_waited_for(tmp_path):
    path = feeder(
        tmp_path / "t.json",
        [
            work(1, name="first", stream=7, num_ops=8, tensor_size=4, runtime=3),
            work(2, 1, name="cudaDeviceSynchronize", is_cpu_op=True),
            work(3, 2, name="aten::add(0)", is_cpu_op=True),
            work(4, 3, name="second", stream=9),
            work(5, 99, name="third", stream=7),
        ],
    )
    trace = read_execution_trace(path)
    assert [edge.node for edge in trace.graph["second#4"].edges] == ["first#1"]
    assert trace.graph["first#1"].op == Opaque("first", 8, 4)
    assert trace.seconds == {"first#1": 3e-6}
    assert trace.read == (5, 2, 3, 2, 1)
    assert "1 dependencies are on nodes that the trace does not hold" in trace.graph.labels["assumed"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"schema": "1.1.1-chakra.0.0.4", "nodes": [', "no whole execution trace"),
        ('{"schema": "2.0.0", "nodes": []}', "states the schema '2.0.0', and Weft reads 1.0.1"),
        ('{"schema": "1.0.1", "nodes": [{"id": 3}]}', "not of the stated schema"),
        ('{"schema": "1.0.1", "nodes": []}', "has no node"),
        (json.dumps({"workload_graph": [work(1, 2), work(2, 1)]}), "1 'kernel' waits for 2 'kernel' waits for 1"),
        (json.dumps({"workload_graph": [work(1), work(1)]}), "two nodes of the trace have the id 1"),
        (json.dumps({"workload_graph": [work(1), work("x")]}), "not of the stated schema"),
        (json.dumps({"workload_graph": [work(1, comm_size="x", kind=7)]}), "not of the stated schema"),
        (json.dumps({"workload_graph": [work(1, kind=1)]}), "none of the trace's 1 nodes is an operator"),
    ],
)
def test_a_broken_trace_is_refused_in_one_sentence(tmp_path, content, says):
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="; ") as error:
        weft.read_graph(path)
    assert says in str(error.value)


def test_ids_may_be_texts(tmp_path):
    trace = read_execution_trace(feeder(tmp_path / "t.json", [work(1, stream=7), work("2", "1", stream=9)]))
    assert [edge.node for edge in trace.graph["kernel#2"].edges] == ["kernel#1"]


def test_values_that_are_no_list_are_left_out(tmp_path):
    made = call(10, "record_param_comms", 1)
    made["inputs"]["values"] = 1e308
    assert len(read_execution_trace(recorded(tmp_path / "t.json", made)).graph) == 1


@needs_protobuf
def test_a_trace_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.core.files.LARGEST_UNPACKED", 1 << 10)
    for name, content in (("t.json.gz", b'{"schema": "1.0.1", "nodes": ['), ("t.et.gz", b"\x07\n\x050.0.4")):
        (tmp_path / name).write_bytes(gzip.compress(content + b" " * (1 << 12)))
        with pytest.raises(ConfigError, match=r"holds more than .* that is read"):
            read_execution_trace(tmp_path / name)


GRAPH = Graph(
    (
        Node(Gemm(64, 64, 64, "bf16"), "gemm", phase="forward", module="layer.0"),
        Node(Call("aten::exp", (), ()), "exp"),
        Node(Collective("all_gather", 4096, 8), "gather", after=("gemm",), stream="tp"),
        Node(Collective("all_reduce", 4096, 4), "reduce", after=(Edge("exp"),), stream="dp"),
        Node(Gemm(64, 64, 64, "bf16"), "last", after=("gather",)),
    ),
    ranks=8,
    labels={"group dp": "0 2 4 6"},
)


@needs_protobuf
def test_a_graph_written_and_read_is_the_same(tmp_path):
    made = weft.write_chakra(GRAPH, tmp_path, on="h100-sxm")
    assert len(made.files) == 8
    assert all(weft.read_graph(path) == GRAPH for path in made.files)
    assert read_execution_trace(made.files[0]).seconds["gemm"] >= 1e-6


@needs_protobuf
def test_nodes_state_what_other_simulators_ask_for(tmp_path):
    from weft.torch.traces.messages import attributes, read_messages

    made = weft.write_chakra(GRAPH, tmp_path, ranks=16)
    _, nodes = read_messages(made.files[9])
    stated = {node.name: attributes(node) for node in nodes}
    assert stated["gemm"]["num_ops"] == GRAPH["gemm"].op.flops
    assert stated["gemm"]["tensor_size"] == GRAPH["gemm"].op.least_bytes
    assert not any(one["is_cpu_op"] for one in stated.values())
    assert (stated["gather"]["comm_type"], stated["gather"]["comm_size"]) == (2, 512)  # Chakra's: a rank's input
    groups = json.loads(made.groups.read_text())
    assert groups[stated["gather"]["pg_name"]] == list(range(8, 16))
    assert groups[stated["reduce"]["pg_name"]] == [9, 11, 13, 15]
    waits = {node.name: {nodes[id_ - 1].name for id_ in node.data_deps} for node in nodes}
    assert waits["exp"] == {"gemm"}  # the one before it on its stream
    assert waits["last"] == {"gather", "exp"}


@needs_protobuf
def test_a_message_leaves_one_rank_and_arrives_at_another(tmp_path):
    graph = Graph(
        (
            Node(Gemm(64, 64, 64), "a", rank=0),
            Node(Send(1024), "s", rank=0, after=("a",), stream="p2p"),
            Node(Gemm(64, 64, 64), "b", rank=1, after=("s",)),
        ),
        ranks=2,
    )
    from weft.torch.traces.messages import attributes, read_messages

    made = weft.write_chakra(graph, tmp_path)
    (_, first), (_, second) = map(read_messages, made.files)
    assert [(node.name, node.type) for node in first] == [("a", 4), ("s", 5)]
    assert [(node.name, node.type) for node in second] == [("s", 6), ("b", 4)]
    sent, arrives = attributes(first[1]), attributes(second[0])
    assert {key: sent[key] for key in arrives if key != "weft"} == arrives
    assert list(second[1].data_deps) == [second[0].id]
    assert [node.name for node in weft.read_graph(made.files[1])] == ["b"]


@needs_protobuf
@pytest.mark.parametrize("keep", [0.3, 0.8])
def test_an_et_file_that_is_cut_off_is_refused(tmp_path, keep):
    path = weft.write_chakra(GRAPH, tmp_path).files[0]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ConfigError, match="; "):
        weft.read_graph(path)


@needs_protobuf
def test_an_et_file_of_another_version_is_refused(tmp_path):
    from weft.torch.traces.messages import packed_messages, schema

    path = tmp_path / "t.et"
    path.write_bytes(packed_messages([schema()["GlobalMetadata"](version="9.9")]))
    with pytest.raises(ConfigError, match=r"version '9\.9', and Weft reads 0\.0\.4"):
        weft.read_graph(path)


@needs_protobuf
def test_a_value_that_is_false_or_zero_is_written(tmp_path):
    from weft.torch.traces.messages import attribute, attributes, packed_messages, read_messages, schema

    node = schema()["Node"](id=0, name="x", type=4)
    told = {"no": ("bool", False), "zero": ("int64", 0), "dims": ("bool", (True, False))}
    node.attr.extend(attribute(name, *value) for name, value in told.items())
    path = tmp_path / "t.et"
    path.write_bytes(packed_messages([schema()["GlobalMetadata"](version="0.0.4"), node]))
    head, (read,) = read_messages(path)
    assert attributes(read) == {"no": False, "zero": 0, "dims": (True, False)}
    assert packed_messages([head, read]) == path.read_bytes()


@needs_protobuf
def test_3664_nodes_are_read_in_under_a_second(tmp_path):
    nodes = tuple(Node(Gemm(64, 64, 64), f"n{number}") for number in range(3664))
    path = weft.write_chakra(Graph(nodes), tmp_path).files[0]
    begin = time.process_time()
    assert len(weft.read_graph(path)) == 3664
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("graph", "ranks", "says"),
    [
        (Graph((Node(Gemm(64, 64, 64), "a"), Node(Gemm(64, 64, 64), "b", after=(Edge("a", "tile"),)))), None, "tiles"),
        (GRAPH, 12, "12 ranks are no multiple of the graph's 8"),
        (
            Graph((Node(Gemm(8, 8, 8), "a", rank=0), Node(Gemm(8, 8, 8), "b", rank=1, after=("a",))), ranks=2),
            None,
            "only messages join ranks",
        ),
        (Graph((Node(Send(8), "s", rank=1),), ranks=2), None, "from rank 1 to rank 2"),
    ],
)
def test_what_chakra_has_no_node_for_is_refused(tmp_path, graph, ranks, says):
    with pytest.raises(InputError, match=says):
        weft.write_chakra(graph, tmp_path / "out", ranks)
    assert not (tmp_path / "out").exists()


def test_without_protobuf_the_message_says_what_to_install(tmp_path, monkeypatch):
    from weft.torch.traces import messages

    messages.schema.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(InputError, match=r"pip install 'weft\[traces\]'"):
        weft.write_chakra(GRAPH, tmp_path)


@needs_protobuf
def test_the_command_writes_a_file_for_each_rank(tmp_path, capsys):
    graph = tmp_path / "mlp.json"
    graph.write_bytes(gzip.decompress(MLP.read_bytes()))
    told = tmp_path / "told.json"
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(graph), "--chakra", str(tmp_path / "out"), "--ranks", "2", "--json", str(told)])
    assert "46 nodes of 2 ranks" in capsys.readouterr().out
    assert json.loads(told.read_text())["nodes"] == [23, 23]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["workload.0.et", "workload.1.et"]
