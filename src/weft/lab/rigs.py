"""The conditions of a measured row (library, data type, caller), read from its source and notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources

from weft.core.catalog import Quantity, read_leaves, read_toml
from weft.core.options import SHORT, SUSTAINED, RunOptions
from weft.core.units import Dimension
from weft.estimate import BenchmarkProtocol
from weft.estimate.target import ROTATION
from weft.kernels.library.profiles import Profile

_DTYPES = {"half": "fp16", "float": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int8", "fp8": "fp8"}
_OTHERS = {
    "trt-llm": "trtllm-custom",
    "mscclpp": "mscclpp",
    "mscclpp-test": "mscclpp",
    "msccl++": "mscclpp",
    "triton-distributed double_tree": "triton-distributed",
    "sdma": "copy-engine",
}
_RATE = Quantity(Dimension.BYTES_PER_SECOND)
_PATHS: Mapping[str, Quantity | None] = {
    "version": None,
    "machine": None,
    "network.per_gpu": _RATE,
    "network.per_node": _RATE,
}


@dataclass(frozen=True)
class Rig:
    """The library and its version ("" if not stated), the data type, and the caller.

    `host` is that of a `BenchmarkProtocol`: "torch" if a framework packs lists of tensors, "profiler" if kernels
    were timed, which include the wait for the last rank to begin. `network` holds the rates per GPU and per node
    that the rig's network reaches, if they are far from its adapters' [bytes/s]; `network_from_rows` says that they
    were read from the rig's own rows, which then say little about the model's accuracy. `machine` is the node of a
    rig whose rows name only GPUs.
    """

    library: str
    version: str = ""
    dtype: str = "fp16"
    host: str = ""
    network: tuple[float, float] | None = None
    network_from_rows: bool = False
    machine: str = ""

    def harness(self, ranks: int, nodes: int, profile: Profile | None = None) -> BenchmarkProtocol:
        """The harness to estimate a row of `ranks` GPUs on `nodes` nodes, with a profile if one is given."""
        version = self.version if self.library == "nccl" else ""
        network = None
        if self.network and nodes > 1:
            each, node = self.network
            network = min(each, node * nodes / ranks)
        return BenchmarkProtocol(
            library=self.library, version=version, host=self.host, network=network, profile=profile
        )

    @property
    def modelled(self) -> bool:
        """Whether closed forms model the library; rows of other libraries are reported separately."""
        return self.library in ("nccl", "rccl", "trtllm-custom")


@cache
def known_rigs() -> Mapping[str, Rig]:
    """Facts about rigs of published rows that the rows do not state, by the word that identifies the rig in a source.

    Raises ConfigError for a value that breaks a rule.
    """
    return {
        word: _known_rig(word, table) for word, table in read_toml(resources.files(__package__) / "rigs.toml").items()
    }


def _known_rig(word: str, table: Mapping[str, object]) -> Rig:
    leaves = read_leaves(table, _PATHS, f"rigs.toml: {word}")
    version, machine = (str(leaves[name].value) if name in leaves else "" for name in ("version", "machine"))
    if "network.per_gpu" not in leaves or "network.per_node" not in leaves:
        return Rig("", version, machine=machine)
    each, node = leaves["network.per_gpu"], leaves["network.per_node"]
    from_rows = "calibrated" in (each.provenance.kind, node.provenance.kind)
    return Rig("", version, network=(each.value, node.value), network_from_rows=from_rows)


@lru_cache(maxsize=4096)
def rig_of(system: str, notes: str, source: str) -> Rig:
    """The rig of a measured row; where nothing is stated, the library's own test."""
    text = f"{source} {notes}".lower()
    known = next((rig for word, rig in known_rigs().items() if word in text), Rig(""))
    version = re.search(r"n?ccl (\d+(?:\.\d+)+)", text)
    words = re.findall(r"[a-z0-9]+", text)
    return replace(
        known,
        library=_library(system, text),
        version=version[1] if version else known.version,
        dtype=next((dtype for word, dtype in _DTYPES.items() if word in words), "fp16"),
        host=_host(text),
    )


def _library(system: str, text: str) -> str:
    for word, library in _OTHERS.items():
        if word in text and not (library == "mscclpp" and "rccl-tests" in text):
            return library
    amd = re.search(r"\bmi\d{2,3}|gfx\d|amd|gcd", system.lower())
    return "rccl" if amd or "rccl" in text else "nccl"


def _host(text: str) -> str:
    if "torch.distributed over rccl" in text:
        return "torch"
    if "pytorch profiler" in text:
        return "profiler"
    return "framework" if "includes launch" in text else ""


def gemm_harness(notes: str, source: str) -> BenchmarkProtocol:
    """Return how a measured GEMM was timed.

    vLLM's 8-bit linear layers first quantize their 16-bit input. hipBLASLt's tuning tables of gfx90a ("aldebaran",
    except for operands in the order NN), NeuSight's torch layers and LLMCompass's runs are timed from the host: none of
    their times is below 30 us. Tables of later GPUs are not: their jobs launch 20 kernels before they wait
    (ROCm/hipBLASLt @08c4f1f tensile_config_generator.py). aiter's tuner times kernels on operands that no cache holds,
    up to 101 copies in turn (ROCm/aiter @029455b test_common.py).
    """
    one_by_one = "hipBLASLt" in source and "aldebaran" in source and "layout NN" not in notes
    hosted = one_by_one or any(name in source for name in ("NeuSight", "LLMCompass"))
    return BenchmarkProtocol(
        timed="host" if hosted else "device",
        rotation=float("inf") if "aiter" in source else ROTATION,
        quantize="LinearKernel" in notes,
        tuned=any(name in source for name in ("hipBLASLt", "aiter")),
    )


def gemm_options(source: str) -> RunOptions:
    """The clock of a measured GEMM: vidur times the GEMMs of whole layers on random values, long enough to reach the
    power limit; other sources repeat one kernel for milliseconds.
    """
    return SUSTAINED if "microsoft/vidur" in source else SHORT
