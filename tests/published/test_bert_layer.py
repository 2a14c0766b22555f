"""A layer of BERT-Large in fp32, forward and backward, 8 sequences of 512: shares of its classes of operators.

Measured operator by operator in PyTorch 2.1 (sitar-lab/NeuSight scripts/asplos/label, bert_large-train-512-8 @6945927).
There a view alone takes `FLOOR`, and the gradient of dropout runs as three kernels, since gradients of gradients were
asked for.
"""

import pytest

import weft
from weft.core.options import SHORT
from weft.graph import Attention, Gemm, Streaming

TOKENS, HIDDEN, WIDE, SCORES = 4096, 1024, 4096, 8 * 16 * 512 * 512
FLOOR = {"h100-sxm": 7e-6, "mi100": 6.5e-6, "mi210": 6e-6}
"""A timed call without a kernel [s]."""
CLASSES = ("feed-forward", "projections", "products", "scores", "gelu", "norms")
MEASURED = {
    "mi100": (16.35, (37.7, 23.3, 10.6, 19.8, 2.3, 6.4)),
    "mi210": (15.09, (41.3, 23.3, 10.4, 17.0, 1.8, 6.0)),
    "h100-sxm": (9.01, (46.0, 25.6, 10.5, 12.7, 1.4, 3.8)),
}
"""Milliseconds of the layer, and shares of the classes [%]; short runs, one operator after the other."""
BETWEEN = weft.BenchmarkProtocol(after_others=True)


def eager_dropout(elements):
    """Forward, and the gradient's copy of the mask in the dtype, its multiple, and their product."""
    each = {"rows": elements, "dtype": "fp32"}
    product = Streaming("elementwise", inputs=2, **each)
    return [
        [Streaming("dropout", **each)],
        [Streaming("cast", elements, 1, "fp16"), Streaming("scale", **each), product],
    ]


def with_gradients(op):
    return [[op], [*op.backward.inputs, *op.backward.weights]]


def calls():
    """The timed calls of each class, each some kernels."""
    attention = Attention(8, 16, 512, 512, 64, dtype="fp32", fused=False, eager=True).kernels
    wide, narrow = Gemm(TOKENS, WIDE, HIDDEN, "fp32"), Gemm(TOKENS, HIDDEN, WIDE, "fp32")
    norm, added = Streaming("layernorm", TOKENS, HIDDEN, "fp32"), Streaming("residual_add", TOKENS * HIDDEN, 1, "fp32")
    return {
        "feed-forward": [*with_gradients(wide), *with_gradients(narrow)],
        "projections": 4 * with_gradients(Gemm(TOKENS, HIDDEN, HIDDEN, "fp32")),
        "products": [call for op in attention if isinstance(op, Gemm) for call in with_gradients(op)],
        "scores": [
            *(call for op in attention if isinstance(op, Streaming) for call in with_gradients(op)),
            *eager_dropout(SCORES),
        ],
        "gelu": with_gradients(Streaming("gelu", TOKENS * WIDE, 1, "fp32")),
        "norms": 2 * [*with_gradients(norm), [added], *eager_dropout(TOKENS * HIDDEN)],
    }


def predicted(gpu):
    def seconds(call):
        return FLOOR[gpu] + sum(weft.estimate(op, gpu, SHORT, BETWEEN).seconds for op in call)

    return {name: sum(map(seconds, timed)) for name, timed in calls().items()}


@pytest.mark.parametrize("gpu", MEASURED)
def test_a_layer_and_the_shares_of_its_operators_are_as_measured(gpu):
    whole, shares = MEASURED[gpu]
    found = predicted(gpu)
    assert 1e3 * sum(found.values()) == pytest.approx(whole, rel=0.06)
    off = {name: 100 * found[name] / sum(found.values()) - share for name, share in zip(CLASSES, shares, strict=True)}
    # Products in fp32 with K = 4096 are 5 to 20 % too slow, those of single heads with K = 64 too fast.
    assert 3 < off.pop("feed-forward") < 6
    assert all(abs(points) < 3 for points in off.values()), off
