"""Which cases are measured: the shapes, sizes and pairs that tell a machine's parameters apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.graph import Gemm

MiB = 2**20
DTYPES = ("bf16", "fp16", "fp8", "fp32", "tf32", "int8")
"""Data types of the measured GEMMs, as far as the device has them."""
COPIES = ("kernel", "memcpy", "to_host", "from_host", "to_peer")
"""Who copies: compute units, whatever the library chooses, a copy engine to or from the host or to a second GPU."""

# N and K of the projections of models with H = 4096, 8192 and 12288, split over 1 to 8 GPUs.
_LAYERS = (
    (4096, 4096), (12288, 4096), (4096, 11008), (8192, 1024), (1280, 8192), (8192, 8192), (28672, 8192),
    (8192, 3584), (9216, 12288), (12288, 3072), (12288, 12288),
)  # fmt: skip
_TOKENS = (1, 8, 16, 64, 128, 192, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384)
_SQUARES = (256, 512, 1024, 1536, 2048, 3000, 4096, 6144, 8192, 16384)


@dataclass(frozen=True)
class OperatorCase:
    """An operator of `weft.estimate` with its dtype and dimensions."""

    name: str
    dtype: str
    shape: Mapping[str, int]

    @property
    def text(self) -> str:
        """The dimensions as one text."""
        return ";".join(f"{key}={value}" for key, value in self.shape.items())


def gemms(dtypes: tuple[str, ...] = DTYPES, *, quick: bool = False, most_bytes: float = 2**35) -> Iterator[Gemm]:
    """Projections of Transformers over numbers of tokens, and squares; `quick` takes a few of them."""
    layers = ((512, 256),) if quick else _LAYERS
    tokens = _TOKENS[:9:4] if quick else _TOKENS
    squares = _SQUARES[:1] if quick else _SQUARES
    shapes = [(m, n, k) for (n, k), m in itertools.product(layers, tokens)] + [(s, s, s) for s in squares]
    for dtype, (m, n, k) in itertools.product(dtypes, dict.fromkeys(shapes)):
        found = Gemm(m, n, k, dtype)
        if found.least_bytes <= most_bytes:
            yield found


def operators(*, quick: bool = False) -> Iterator[OperatorCase]:
    """Every memory-bound operator from a few KiB to GiBs."""
    counts = [2**power for power in ((14, 20) if quick else (12, 14, 16, 18, 20, 22, 24, 26, 28))]
    columns = (1024, 4096) if quick else (512, 1024, 2048, 4096, 8192, 12288)
    for name, dtype, count in itertools.product(
        ("elementwise", "gelu", "dropout", "residual_add"), ("bf16", "fp32"), counts
    ):
        yield OperatorCase(name, dtype, {"elements": count})
    for name, width, count in itertools.product(("softmax", "layernorm", "rmsnorm"), columns, counts):
        if count >= width:
            yield OperatorCase(name, "bf16", {"rows": count // width, "columns": width})
    for count in counts:
        yield OperatorCase("adam", "fp32", {"parameters": count})
        yield OperatorCase("embedding", "bf16", {"tokens": max(count // 4096, 1), "hidden": 4096})


def attention(*, quick: bool = False) -> Iterator[OperatorCase]:
    """Fused attention: long prompts, masked and not, and single queries with a long context."""
    for batch, query, keys, causal in (
        ((1, 256, 256, 1), (4, 1, 512, 0)) if quick
        else ((8, 2048, 2048, 0), (8, 2048, 2048, 1), (2, 8192, 8192, 1), (16, 512, 512, 1), (64, 1, 4096, 0))
    ):  # fmt: skip
        shape = {"batch": batch, "heads": 32, "query": query, "keys": keys, "head": 128, "causal": causal}
        yield OperatorCase("attention_fused", "bf16", shape)


def copy_sizes(*, quick: bool = False) -> list[int]:
    """Sizes of copies [bytes]: every fourfold from 4 KiB to 1 GiB."""
    return [4**power for power in ((6, 9, 11) if quick else range(6, 16))]


def pairs(*, quick: bool = False) -> Iterator[tuple[Gemm, str, int]]:
    """A GEMM beside copies of a size by each kind of copier: compute-bound and memory-bound GEMMs."""
    shapes = ((512, 512, 512),) if quick else ((8192, 8192, 8192), (4096, 12288, 3072), (256, 8192, 28672))
    sizes = (1 * MiB,) if quick else (16 * MiB, 256 * MiB)
    for (m, n, k), kind, size in itertools.product(shapes, COPIES, sizes):
        yield Gemm(m, n, k, "bf16"), kind, size
