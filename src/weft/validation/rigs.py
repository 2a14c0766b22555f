"""What a measured row was run with, read from how its source and notes put it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.estimate import Harness
from weft.library.profiles import Profile
from weft.library.rigs import known_rigs

_DTYPES = {"half": "fp16", "float": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int8", "fp8": "fp8"}
_OTHERS = {
    "trt-llm": "trtllm-custom",
    "mscclpp": "mscclpp",
    "mscclpp-test": "mscclpp",
    "msccl++": "mscclpp",
    "triton-distributed double_tree": "triton-distributed",
    "sdma": "copy-engine",
}


@dataclass(frozen=True)
class Rig:
    """The library and its version ("" if not said), the data type, who called, and whether the input is the output.

    `host` is that of a Harness: "torch" where a framework packs lists of tensors, "profiler" where its kernels
    were timed, which wait for the last rank to begin. `network` holds the rates per GPU and per node that the rig's
    network reaches where they are far from its adapters' [bytes/s]; `network_from_rows` says that they were read from
    the rig's own rows, which then say little of how well the model predicts.
    """

    library: str
    version: str = ""
    dtype: str = "fp16"
    host: str = ""
    in_place: bool = False
    network: tuple[float, float] | None = None
    network_from_rows: bool = False

    def harness(self, ranks: int, nodes: int, profile: Profile | None = None) -> Harness:
        """How a row of `ranks` GPUs on `nodes` nodes is estimated, perhaps with a profile of its own."""
        version = self.version if self.library == "nccl" else ""
        network = None
        if self.network and nodes > 1:
            each, node = self.network
            network = min(each, node * nodes / ranks)
        return Harness(library=self.library, version=version, host=self.host, network=network, profile=profile)

    @property
    def modelled(self) -> bool:
        """Whether closed forms know the library; rows of others are reported apart."""
        return self.library in ("nccl", "rccl", "trtllm-custom")


def rig_of(system: str, notes: str, source: str) -> Rig:
    """What a measured row was run with; where nothing is said, the library's own test."""
    text = f"{source} {notes}".lower()
    known = next((rig for rig in known_rigs() if rig.word in text), None)
    return Rig(
        library=_library(system, text),
        version=_version(text) or (known.version if known else ""),
        dtype=_dtype(text),
        host=_host(text),
        in_place="in-place" in text,
        network=known.network if known else None,
        network_from_rows=known is not None and known.network_from_rows,
    )


def _library(system: str, text: str) -> str:
    for word, library in _OTHERS.items():
        if word in text and not (library == "mscclpp" and "rccl-tests" in text):
            return library
    amd = re.search(r"\bmi\d{2,3}|gfx\d|amd|gcd", system.lower())
    return "rccl" if amd or "rccl" in text else "nccl"


def _version(text: str) -> str:
    found = re.search(r"n?ccl (\d+(?:\.\d+)+)", text)
    return found[1] if found else ""


def _dtype(text: str) -> str:
    words = re.findall(r"[a-z0-9]+", text)
    return next((dtype for word, dtype in _DTYPES.items() if word in words), "fp16")


def _host(text: str) -> str:
    if "torch.distributed over rccl" in text:
        return "torch"
    if "pytorch profiler" in text:
        return "profiler"
    return "framework" if "includes launch" in text else ""


def gemm_harness(notes: str, source: str) -> Harness:
    """How a measured GEMM was timed.

    vLLM's linear layers in 8 bits quantize their 16-bit input first; tuning tables of hipBLASLt, NeuSight's torch
    layers and LLMCompass's runs are timed from the host, as their least times of 30 us and more show. (Those of
    hipBLASLt for operands in the order NN are not.)
    """
    tuned = "hipBLASLt" in source and "layout NN" not in notes
    hosted = tuned or any(name in source for name in ("NeuSight", "LLMCompass"))
    return Harness(quantize="LinearKernel" in notes, timed="host" if hosted else "device")
