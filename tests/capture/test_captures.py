"""What a capture holds: FLOPs by closed forms, attention as one operator, phases, and errors that name the place."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make test-capture runs this")
import small_models as models
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft
from weft.core.errors import InputError
from weft.graph import Attention, Gemm, GroupedGemm, read_graph, write_graph


def flops(graph, phase):
    """FLOPs of matrix units, of attention for every pair of tokens."""
    ops = (node.op for node in graph if node.phase == phase and node.op.matrix_dtype)
    return sum((replace(op, causal=0) if isinstance(op, Attention) else op).flops for op in ops)


def captured(made, **given):
    model, inputs, loss = made
    return weft.capture(model, keywords=inputs, loss=loss, **given)


def test_a_module_of_a_short_name_is_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x)

    graph = weft.capture(Net(), torch.zeros(4, 8), backward=False)
    assert [node.module for node in graph] == ["a"]


def test_flops_of_a_llama_are_those_of_its_closed_form():
    tokens, hidden, keys, inner, layers, vocabulary = 64, 64, 32, 128, 2, 256
    graph = captured(models.llama())
    products = (
        2 * tokens * (layers * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner) + hidden * vocabulary)
    )
    attention = 4 * 2 * 32 * 32 * hidden * layers
    assert flops(graph, "forward") == products + attention
    assert flops(graph, "backward") == 2 * products + 2.5 * attention


def test_flops_of_lenet_are_those_of_pytorchs_counter():
    from torch.utils.flop_counter import FlopCounterMode

    model, inputs, loss = models.lenet()
    graph = weft.capture(model, keywords=inputs, loss=loss)
    with FlopCounterMode(display=False) as counter:
        loss(model(**inputs)).backward()
    assert flops(graph, "forward") + flops(graph, "backward") == counter.get_total_flops()


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_flops_of_experts_are_those_of_the_tokens_that_are_sent_to_them(experts):
    tokens, hidden, keys, inner, layers, vocabulary = 64, 64, 32, 96, 2, 256
    graph = captured(models.mixtral(experts, torch.bfloat16))
    layer = 2 * hidden * hidden + 2 * hidden * keys + 2 * 3 * hidden * inner + 4 * hidden
    products = 2 * tokens * (layers * layer + hidden * vocabulary)
    assert flops(graph, "forward") == products + 4 * 2 * 32 * 32 * hidden * layers
    assert "routing of top-k balanced" in graph.labels["assumed"]
    assert (GroupedGemm in {type(node.op) for node in graph}) == (experts == "grouped_mm")


def test_a_routing_of_ones_own_sends_all_tokens_to_one_pair_of_experts():
    graph = captured(
        models.mixtral("grouped_mm", torch.bfloat16),
        routing=lambda tokens, choices, _: torch.arange(choices).expand(tokens, choices),
    )
    assert {node.op.busiest for node in graph if isinstance(node.op, GroupedGemm)} == {64}


def test_attention_is_one_operator_forward_and_backward_with_its_causal_mask_and_shared_keys():
    graph = captured(models.llama())
    found = [node.op for node in graph if isinstance(node.op, Attention)]
    assert found == [Attention(2, 4, 32, 32, 16, 2, 1, "fp32", gradient=back) for back in (False, False, True, True)]


def test_what_a_checkpoint_runs_again_is_in_a_phase_of_its_own():
    layer = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=False)

    graph = weft.capture(Model(), torch.ones(4, 8, requires_grad=True))
    again = [node for node in graph if node.phase == "recompute"]
    assert [type(node.op) for node in again][:1] == [Gemm]
    assert all(node.module.startswith("layer") for node in again if isinstance(node.op, Gemm))


def test_autocast_computes_products_in_its_number_format():
    def loss(out):
        return out.float().sum()

    class Model(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    graph = weft.capture(Model(8, 8), torch.ones(4, 8), loss=loss)
    assert {node.op.dtype for node in graph if isinstance(node.op, Gemm)} == {"bf16"}


def test_tied_weights_are_one_tensor():
    tied, apart = (captured(models.llama(tie_word_embeddings=one)) for one in (True, False))
    sizes = [sum(t.bytes for t in graph.tensors.values() if t.role == "weight") for graph in (tied, apart)]
    assert sizes[1] - sizes[0] == 256 * 64 * 4


def test_the_module_keeps_its_weights_and_has_no_gradients():
    model, inputs, loss = models.gpt2()
    kept = {name: one.clone() for name, one in model.state_dict().items()}
    weft.capture(model, keywords=inputs, loss=loss, optimizer=torch.optim.AdamW)
    assert all(torch.equal(one, kept[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


def test_a_captured_graph_survives_its_file_and_is_timed_on_a_gpu(tmp_path):
    graph = captured(models.lenet(), optimizer=torch.optim.AdamW)
    assert read_graph(write_graph(graph, tmp_path / "lenet.graph.jsonl.gz")) == graph
    step = weft.step(graph, "v100")
    assert sum(one.seconds for one in step.shares) == pytest.approx(step.seconds)
    assert step.fits
    assert 0 < step.by_bytes < 1


@torch.library.custom_op("weft_tests::scan", mutates_args=())
def scan(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0)


scan.register_fake(torch.empty_like)


@torch.library.custom_op("weft_tests::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class Uses(nn.Module):
    """A module that calls a function inside another module."""

    def __init__(self, function):
        super().__init__()
        self.inner = nn.Identity()
        self.inner.forward = function

    def forward(self, x):
        return self.inner(x)


def test_an_unknown_operator_is_named_with_its_module_and_line_and_can_be_taught():
    with pytest.raises(InputError, match=r"weft_tests.scan.default in module 'inner', line \d+ of .*ops="):
        weft.capture(Uses(scan), torch.ones(8), backward=False)
    taught = weft.capture(Uses(scan), torch.ones(8), backward=False, ops={"weft_tests::scan": lambda i, o: 7})
    assert [node.op.flops for node in taught] == [7]
    moved = weft.capture(Uses(scan), torch.ones(8), backward=False, ops={"weft_tests::scan": "bytes"})
    assert [node.op.least_bytes for node in moved] == [64]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (shapeless, "register_fake"),
        (lambda x: x if x.sum() > 0 else -x, r"in module 'inner', line \d+ .* depends on the values"),
        (lambda x: x[x > 0], "depends on the values"),
        (lambda x: x.cuda(), "CUDA"),
        (lambda x: x + torch.ones(8, device="cuda"), "cuda"),
        (lambda x: x.to("cuda"), "CUDA"),
    ],
)
def test_what_cannot_be_captured_is_refused_in_a_sentence_with_the_next_step(function, said):
    with pytest.raises(InputError, match=said):
        weft.capture(Uses(function), torch.ones(8), backward=False)


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.AdamW,
        partial(torch.optim.AdamW, foreach=True),
        partial(torch.optim.AdamW, fused=True),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        torch.optim.NAdam,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
    ],
)
def test_a_block_may_step_an_optimizer_that_counts_its_steps(optimizer):
    model = nn.Linear(8, 8)
    before, updates = model.weight.detach().clone(), optimizer(model.parameters())
    with weft.capturing() as found:
        for _ in range(2):
            model(torch.randn(4, 8)).sum().backward()
            updates.step()
            updates.zero_grad()
    assert "optimizer" in {node.phase for node in found.graph}
    assert torch.equal(before, model.weight)
