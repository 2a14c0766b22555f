"""What a row of measured collectives was run with, read from how its source and notes put it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_DTYPES = {"half": "fp16", "float": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int8", "fp8": "fp8"}
_OTHERS = {
    "trt-llm": "trtllm-custom",
    "mscclpp": "mscclpp",
    "mscclpp-test": "mscclpp",
    "msccl++": "mscclpp",
    "triton-distributed double_tree": "triton-distributed",
    "sdma": "copy-engine",
}
# PyTorch 2.1, the release at the time of these profiles, carries NCCL 2.18.
_VERSIONS = {"vidur": "2.18"}
# Rates through the network that are far from the adapters' [bytes/s], per GPU and per node: two ranks on two nodes
# reach 5.9 GB/s and eight 21 GB/s in microsoft/vidur's rows, as without direct access of the adapter to GPU memory.
_NETWORKS = {"vidur": (6.3e9, 22e9)}


@dataclass(frozen=True)
class Rig:
    """The library and its version ("" if not said), the data type, who called, and whether the input is the output.

    `host` is what `collective` takes: "torch" where a framework packs lists of tensors, "profiler" where its kernels
    were timed, which wait for the last rank to begin. `network` holds the rates per GPU and per node that the rig's
    network reaches where they are far from its adapters' [bytes/s].
    """

    library: str
    version: str = ""
    dtype: str = "fp16"
    host: str = ""
    in_place: bool = False
    network: tuple[float, float] | None = None

    def options(self, ranks: int, nodes: int) -> dict[str, Any]:
        """The keyword arguments with which `collective` predicts a row of `ranks` GPUs on `nodes` nodes."""
        options: dict[str, Any] = {
            "library": self.library,
            "dtype": self.dtype,
            "host": self.host,
            "nodes": nodes,
        }
        if self.version and self.library == "nccl":
            options["version"] = self.version
        if self.network and nodes > 1:
            each, node = self.network
            options["nic"] = min(each, node * nodes / ranks)
        return options

    @property
    def modelled(self) -> bool:
        """Whether `collective` knows the library; rows of others are reported apart."""
        return self.library in ("nccl", "rccl", "trtllm-custom")


def rig_of(system: str, notes: str, source: str) -> Rig:
    """What a measured row was run with; where nothing is said, the library's own test."""
    text = f"{source} {notes}".lower()
    return Rig(
        library=_library(system, text),
        version=_version(text),
        dtype=_dtype(text),
        host=_host(text),
        in_place="in-place" in text,
        network=next((rates for name, rates in _NETWORKS.items() if name in text), None),
    )


def _library(system: str, text: str) -> str:
    for word, library in _OTHERS.items():
        if word in text and not (library == "mscclpp" and "rccl-tests" in text):
            return library
    amd = re.search(r"\bmi\d{2,3}|gfx\d|amd|gcd", system.lower())
    return "rccl" if amd or "rccl" in text else "nccl"


def _version(text: str) -> str:
    if found := re.search(r"n?ccl (\d+(?:\.\d+)+)", text):
        return found[1]
    return next((version for name, version in _VERSIONS.items() if name in text), "")


def _dtype(text: str) -> str:
    words = re.findall(r"[a-z0-9]+", text)
    return next((dtype for word, dtype in _DTYPES.items() if word in words), "fp16")


def _host(text: str) -> str:
    if "torch.distributed over rccl" in text:
        return "torch"
    if "pytorch profiler" in text:
        return "profiler"
    return "framework" if "includes launch" in text else ""
