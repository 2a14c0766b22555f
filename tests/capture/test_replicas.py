"""Gradients of replicas in buckets, as DistributedDataParallel sends them; and compiled modules."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
import on_gloo
import torch
from torch import nn

import weft
from weft.graph import Collective

WIDE = 2048


def network() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(6)))


def captured(**given):
    with torch.device("meta"):
        rows = torch.zeros(64, WIDE)
    return weft.capture(network(), rows, optimizer=torch.optim.SGD, **given)


def test_every_gradient_is_summed_once_in_buckets_the_last_layers_first():
    graph = captured(replicas=8)
    sums = [node for node in graph if isinstance(node.op, Collective)]
    gradients = 6 * (WIDE * WIDE + WIDE) * 4
    assert {(node.op.name, node.op.ranks) for node in sums} == {("all_reduce", 8)}
    assert sum(node.op.bytes for node in sums) == gradients
    # the first bucket ends with the gradient that fills 1 MiB, the others with one that fills 25 MiB
    layer = WIDE * WIDE * 4
    assert [round(node.op.bytes / layer) for node in sums] == [1, 2, 2, 1]


def test_buckets_are_those_of_distributed_data_parallel(tmp_path):
    on_gloo.run("buckets", tmp_path, WIDE, 6)
    ours = [node.op.bytes for node in captured(replicas=8) if isinstance(node.op, Collective)]
    assert ours == np.load(tmp_path / "sizes.npy").tolist()


def test_buckets_are_sent_while_the_backward_pass_runs():
    graph = captured(replicas=8)
    places = [node.id for node in graph]
    sums = [places.index(node.id) for node in graph if isinstance(node.op, Collective)]
    products = [place for place, node in enumerate(graph) if node.phase == "backward" and node.op.kind == "gemm"]
    assert min(sums) < max(products)
    found = weft.step(graph, "8xh100")
    assert found.hidden > 0


def test_one_replica_sends_nothing():
    assert not any(isinstance(node.op, Collective) for node in captured())


def test_a_module_compiled_for_the_eager_backend_is_captured_as_it_is():
    model, rows = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), torch.ones(8, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, compiled = (weft.capture(one, rows) for one in (model, torch.compile(model, backend="eager")))
    assert [node.op for node in plain] == [node.op for node in compiled]
