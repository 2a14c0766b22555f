"""What `fused=True` folds: norms, activations and pointwise chains, with less memory traffic and the same products."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make test-capture runs this")
import small_models as models
import torch
from torch import nn

import weft


def pair(model, **given):
    return tuple(weft.capture(model, fused=fused, **given) for fused in (False, True))


def test_a_norm_is_one_kernel_that_reads_and_writes_its_tensors_once():
    plain, fused = pair(nn.Sequential(nn.RMSNorm(64)), keywords={"input": torch.ones(32, 64)}, backward=False)
    assert len(plain) > len(fused) == 1
    assert fused.least_bytes <= plain.least_bytes


def test_products_attention_and_their_flops_stay():
    model, inputs, loss = models.llama()
    plain, fused = pair(model, keywords=inputs, loss=loss, optimizer=torch.optim.AdamW)
    assert [n.op for n in plain if n.op.matrix_dtype] == [n.op for n in fused if n.op.matrix_dtype]
    assert fused.flops == plain.flops


def test_a_fused_step_has_fewer_operators_and_less_traffic_and_says_what_was_folded():
    model, inputs, loss = models.llama()
    plain, fused = pair(model, keywords=inputs, loss=loss)
    assert len(fused) < len(plain)
    assert fused.least_bytes < plain.least_bytes
    assert int(fused.labels["peak_bytes"]) <= int(plain.labels["peak_bytes"])
    assert "x LlamaRMSNorm" in fused.labels["assumed"]
    assert "x pointwise chain" in fused.labels["assumed"]
    assert weft.step(fused, "h100-sxm").seconds < weft.step(plain, "h100-sxm").seconds


def test_operators_that_do_not_follow_each_other_stay_apart():
    class Two(nn.Module):
        def forward(self, x):
            return x.exp(), x.sin()

    plain, fused = pair(Two(), keywords={"x": torch.ones(8)}, backward=False)
    assert len(plain) == len(fused) == 2
