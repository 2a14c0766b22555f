"""Programs of many ranks in one process: collectives with their bytes and order, memory of shards, and what is refused.

PyTorch's own sharding is compared with Weft's plans of the same layer.
"""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import weft
from weft.core.errors import InputError
from weft.graph import Attention, live_bytes, read_graph, write_graph
from weft.models import Transformer, load_model
from weft.models.parallel.framework import framework
from weft.step.rank_parts import rank_parts

WORLD, TOKENS, LAYERS = 8, 1024, 2
HIDDEN, HEADS, KV_HEADS, HEAD, INNER = 4096, 32, 8, 128, 14336
PRODUCTS = 2 * TOKENS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_HEADS * HEAD + 3 * HIDDEN * INNER)
ATTENTION = 4 * TOKENS * TOKENS * HIDDEN
ACTIVATIONS = TOKENS * HIDDEN * 2


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)


class Attend(nn.Module):
    """Llama-3-8B's attention, for as many heads as the rank has."""

    def __init__(self):
        super().__init__()
        self.q, self.o = linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN)
        self.k, self.v = (linear(HIDDEN, KV_HEADS * HEAD) for _ in "kv")

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for one in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Llama-3-8B's gated layer."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (linear(HIDDEN, INNER) for _ in "gu")
        self.down = linear(INNER, HIDDEN)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Llama-3-8B's layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.RMSNorm(HIDDEN, dtype=torch.bfloat16) for _ in range(2))
        self.attend, self.mlp = Attend(), Mlp()

    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.mlp(self.second(x))


SPLIT = {
    **{f"attend.{name}": ColwiseParallel for name in "qkv"},
    **{f"mlp.{name}": ColwiseParallel for name in ("gate", "up")},
}
TENSOR = {
    **{name: style() for name, style in SPLIT.items()},
    "attend.o": RowwiseParallel(),
    "mlp.down": RowwiseParallel(),
}
GATHER = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
SEQUENCE = {
    **TENSOR,
    "first": SequenceParallel(),
    "second": SequenceParallel(),
    "attend": GATHER,
    "mlp": GATHER,
    "attend.o": RowwiseParallel(output_layouts=Shard(1)),
    "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
}


def captured(plan, tokens=TOKENS, world=WORLD):
    """A step of layers that are sharded by a plan of DTensor, or as `plan` does with them and the mesh."""
    with weft.capturing(world=world) as found:
        with found.setup():
            layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
            mesh = init_device_mesh("cpu", (world,))
            if callable(plan):
                plan(layers, mesh)
            else:
                for layer in layers:
                    parallelize_module(layer, mesh, plan)
        x = torch.empty(1, tokens, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        layers(x).backward(torch.empty(1, tokens, HIDDEN, dtype=torch.bfloat16))
    return found.graph


def shard_weights(layers, mesh):
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(layers, mesh=mesh)


def counted(nodes, of=lambda node: node.phase):
    return Counter((of(node), node.op.name, node.op.bytes, node.op.ranks) for node in nodes)


def planned(sp):
    """Collectives of a layer in a plan of Weft."""
    model = load_model("llama-3-8b")
    plan = weft.TrainingPlan(tp=WORLD, sp=sp, sequence=TOKENS)
    found = rank_parts(model, plan, framework("megatron-core"))[model.layer_kinds[0]]
    assert isinstance(model, Transformer)
    return {"forward": counted(found.forward.collectives), "backward": counted(found.backward.collectives)}


def total(counts, kind):
    return sum(count for (_, name, *_), count in counts.items() if name == kind)


@pytest.fixture(scope="module")
def tensor():
    return captured(TENSOR)


@pytest.fixture(scope="module")
def sequence():
    return captured(SEQUENCE, TOKENS // WORLD)


@pytest.fixture(scope="module")
def sharded():
    return captured(shard_weights)


def test_tensor_parallelism_reduces_twice_forward_and_once_for_each_split_product_backward(tensor):
    """DTensor reduces the gradients of q, k, v, gate and up one by one, Megatron those of one input: 5, not 2."""
    assert counted(tensor.collectives) == {
        ("forward", "all_reduce", ACTIVATIONS, WORLD): 2 * LAYERS,
        ("backward", "all_reduce", ACTIVATIONS, WORLD): len(SPLIT) * LAYERS,
    }


def test_a_plan_sends_forward_what_dtensor_sends_and_backward_one_reduction_for_products_of_one_input(tensor):
    plan = planned(sp=False)
    assert plan["forward"] == {("forward", "all_reduce", ACTIVATIONS, WORLD): 2}
    assert {key[2] for key in plan["backward"]} == {ACTIVATIONS}
    assert total(plan["backward"], "all_reduce") == 2 < len(SPLIT)


def test_a_plan_with_sequence_parallelism_sends_what_dtensor_sends(sequence):
    plan = planned(sp=True)
    mine = counted(sequence.collectives)
    forward = Counter({key: count // LAYERS for key, count in mine.items() if key[0] == "forward"})
    assert (
        forward
        == plan["forward"]
        == {
            ("forward", "all_gather", ACTIVATIONS, WORLD): 2,
            ("forward", "reduce_scatter", ACTIVATIONS, WORLD): 2,
        }
    )
    scattered = sum(count for key, count in mine.items() if key[:3] == ("backward", "reduce_scatter", ACTIVATIONS))
    gathered = sum(count for key, count in mine.items() if key[:3] == ("backward", "all_gather", ACTIVATIONS))
    assert (scattered, gathered) == (2 * LAYERS, 2 * LAYERS)
    assert total(plan["backward"], "reduce_scatter") == 2


def test_shapes_are_those_of_the_rank_and_flops_the_share_of_the_whole(tensor):
    """Neither DTensors nor the whole shapes by which DTensor learns how results are sharded are operators."""
    attention = [node.op for node in tensor if isinstance(node.op, Attention)]
    assert {(one.heads, one.kv_heads) for one in attention} == {(HEADS // WORLD, KV_HEADS // WORLD)}
    products = {
        phase: sum(n.op.flops for n in tensor if n.phase == phase and n.op.matrix_dtype and n.op not in attention)
        for phase in ("forward", "backward")
    }
    assert products == {"forward": LAYERS * PRODUCTS // WORLD, "backward": 2 * LAYERS * PRODUCTS // WORLD}


def test_sharded_weights_are_gathered_for_each_pass_and_their_gradients_scattered(sharded):
    weights = sum(one.numel() for one in Layer().to("meta").parameters()) * 2
    assert counted(sharded.collectives) == {
        ("forward", "all_gather", weights, WORLD): LAYERS,
        ("backward", "all_gather", weights, WORLD): LAYERS,
        ("backward", "reduce_scatter", weights, WORLD): LAYERS,
    }


def test_gathered_weights_are_freed_when_their_layer_has_run(sharded):
    """FSDP gives storages the size 0; the most that is alive is the shards, activations and two layers' weights."""
    layer = sum(one.numel() for one in Layer().to("meta").parameters()) * 2
    forward = [size for size, node in zip(live_bytes(sharded), sharded, strict=True) if node.phase == "forward"]
    assert forward[-1] < min(forward[0] + 2.5 * layer, LAYERS * layer * 2)
    assert max(live_bytes(sharded)) == int(sharded.labels["peak_bytes"])


def test_the_next_layers_weights_are_gathered_while_a_layer_computes(sharded):
    names = [node.name for node in sharded]
    gathers = [node for node in sharded if node.op.kind == "collective" and node.op.name == "all_gather"]
    second = gathers[1]
    waits = {edge.node for edge in second.edges}
    copies_in = {node.name for node in sharded if node.stream == "gather copies"}
    assert waits <= copies_in | {gathers[0].name}
    copy = sharded[next(iter(waits & copies_in))]
    earlier = [names.index(edge.node) for edge in copy.edges]
    products = [names.index(node.name) for node in sharded if node.op.matrix_dtype]
    assert max(earlier) < products[0] < names.index(copy.name)


def test_a_collective_in_place_orders_those_that_write_before_and_read_after_it():
    with weft.capturing(world=WORLD) as found:
        x = torch.empty(64)
        x.mul_(2)
        dist.all_reduce(x)
        x.add(1)
    first, reduced, last = found.graph
    assert [edge.node for edge in reduced.edges] == [first.name]
    assert [edge.node for edge in last.edges] == [reduced.name]
    assert (reduced.op.name, reduced.op.bytes, reduced.stream) == ("all_reduce", 256, "world")


def test_what_is_launched_after_a_wait_waits_and_what_is_before_does_not():
    from torch.distributed._functional_collectives import all_reduce, wait_tensor

    with weft.capturing(world=WORLD) as found:
        x, y = torch.empty(64), torch.empty(64)
        reduced = all_reduce(x * 2, "sum", dist.group.WORLD)
        y.exp()
        wait_tensor(reduced)
        y.sin()
    edges = {node.name: [edge.node for edge in node.edges] for node in found.graph}
    assert edges["exp"] == []
    assert edges["sin"] == ["all_reduce"]


def test_each_process_group_has_a_stream_and_its_ranks_are_in_the_graphs_labels(tmp_path):
    with weft.capturing(world=WORLD, rank=3) as found:
        with found.setup():
            mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        x = torch.empty(64)
        dist.all_reduce(x, group=mesh.get_group("tp"))
        dist.all_reduce(x, group=mesh.get_group("dp"))
    graph = found.graph
    assert [(node.stream, node.op.ranks) for node in graph] == [("tp", 4), ("dp", 2)]
    assert (graph.labels["group tp"], graph.labels["group dp"]) == ("0 1 2 3", "3 7")
    assert read_graph(write_graph(graph, tmp_path / "graph.jsonl.gz")) == graph


def test_a_world_ends_with_its_block_and_a_second_one_follows():
    for _ in range(2):
        with weft.capturing(world=2) as found:
            dist.all_reduce(torch.empty(64))
        assert len(found.graph) == 1
        assert not dist.is_initialized()


def test_a_live_process_group_is_refused_and_kept(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(InputError, match=r"process group is live.*destroy_process_group"), weft.capturing(world=8):
            pass
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("given", "said"),
    [({"world": 8, "rank": 8}, "rank 8"), ({"world": 8, "fake": False}, "fake=True"), ({"world": 0}, "world")],
)
def test_worlds_that_are_none_are_refused(given, said):
    with pytest.raises(InputError, match=said), weft.capturing(**given):
        pass


def test_a_collective_that_weft_does_not_have_is_named():
    with pytest.raises(InputError, match=r"gather_.*all_reduce"), weft.capturing(world=2):
        dist.gather(torch.empty(4), [torch.empty(4), torch.empty(4)])


def test_a_sharded_step_is_timed_on_as_many_gpus_with_its_collectives_exposed_or_hidden(tensor, sharded):
    for graph in (tensor, sharded):
        step = weft.step(graph, "8xh100-sxm")
        assert sum(one.seconds for one in step.shares) == pytest.approx(step.seconds, rel=1e-3)
        with pytest.raises(InputError, match="8 ranks"):
            weft.step(graph, weft.system("h100-sxm").with_gpus(1))
    assert weft.step(tensor, "8xh100-sxm").hidden == pytest.approx(0, abs=1e-4)
    assert weft.step(sharded, "8xh100-sxm").hidden > 0
