"""Serving frameworks: their versions and defaults, and the library that each takes for an operator in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from weft.core.catalog import read_toml
from weft.core.errors import UnknownNameError, check_name
from weft.kernels.library.served import kernels_of, places

_FILE = "serving_frameworks.toml"


@cache
def framework_tables() -> Mapping[str, Any]:
    """Return what each serving framework does by default, by name."""
    return read_toml(resources.files("weft.kernels.library") / _FILE)


def framework_names() -> tuple[str, ...]:
    """Return the names of the serving frameworks."""
    return tuple(framework_tables())


def resolve_framework(text: object) -> tuple[str, str]:
    """Return the framework and its version that a text such as "vllm" or "vllm@0.10" names; no version is "".

    A version stands for its patches, so that 0.10.2 is 0.10 where rules are known of that one, and 0.15 is 0.15.1 where
    this is the only one known. Raises UnknownNameError for unknown ones.
    """
    if not isinstance(text, str):
        check_name("serving framework", text, framework_tables())
    name, at, version = str(text).partition("@")
    check_name("serving framework", name, framework_tables())
    if not at:
        return name, ""
    known = framework_tables()[name]["versions"]
    parts = version.removeprefix("v").split(".")
    for count in range(len(parts), 0 if version in known else 1, -1):
        if (shorter := ".".join(parts[:count])) in known:
            return name, shorter
    longer = [one for one in known if one.startswith(f"{'.'.join(parts)}.")]
    if len(longer) != 1:
        raise UnknownNameError(f"version of {name}", version, tuple(known), listed=True)
    return name, longer[0]


@dataclass(frozen=True)
class KernelBackend:
    """The libraries of a framework by operator (`weft.kernels.library.served`), those that it prefers first.

    What none of them was measured for on an architecture is timed as the vendor's library runs it. `gemm` names that
    of a narrow format of operands on an architecture; an all-reduce of more than `most` bytes is the vendor's (0: any
    size is its own). Latent attention of prompts expands keys and values, unless prefixes of a batch, shorter than
    `absorbs` tokens together, are in the compressed cache. Experts of a format of weights on an architecture are stored
    with hidden and inner sizes that `pads` round up. The host takes `launch` to launch a kernel outside of CUDA graphs
    [s]. A `versions` entry replaces fields for one version of the framework.
    """

    name: str
    title: str
    attention: tuple[str, ...]
    latent: tuple[str, ...]
    all_reduce: str
    gemm: Mapping[tuple[str, str], str]
    source: str
    most: int = 0
    absorbs: int = 0
    small: tuple[str, ...] = field(default=())
    experts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pads: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    launch: float = 0.0
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def pads_on(self, architecture: str, format: str) -> tuple[int, int]:
        """Multiples to which the hidden and the inner size of experts of a format are rounded up; 1 for none."""
        return self.pads.get((format, architecture), (1, 1))

    def attention_on(self, architecture: str, latent: bool, what: str) -> str:
        """Return the library of attention (`latent`: of MLA) for a phase such as "context.bf16-fp8"; "" if none."""
        return _first("attention", self.latent if latent else self.attention, what, architecture)

    def expands(self, prefix: int) -> bool:
        """Return whether MLA expands K and V of prompts whose cached prefixes total `prefix` tokens per batch."""
        return not 0 < prefix < self.absorbs

    def gemm_on(self, architecture: str, format: str) -> str:
        """Return the library of GEMMs of a format of operands; "" if none."""
        return self.gemm.get((format, kernels_of(architecture)), "")

    def small_on(self, architecture: str, operator: str) -> str:
        """Return the library of a small operator, such as a norm; "" if none."""
        return _first("streaming", self.small, operator, architecture)

    def experts_on(self, architecture: str, format: str) -> tuple[str, str]:
        """The library of a layer of experts of a format, such as "mxfp4", and the format that it runs; "" if none."""
        for one in self.experts.get(format, ()):
            name, _, kind = one.partition(".")
            if _first("experts", (name,), kind, architecture):
                return name, kind
        return "", ""

    def all_reduce_on(self, architecture: str, linked: bool, size: float) -> str | None:
        """Return the library of an all-reduce of `size` bytes, between linked GPUs or not; None: the vendor's."""
        if self.most and size > self.most:
            return None
        known = places("all_reduce", self.all_reduce, "nvlink" if linked else "pcie")
        return self.all_reduce if not self.most or kernels_of(architecture) in _architectures(known) else None


def _first(operator: str, names: Sequence[str], what: str, architecture: str) -> str:
    """Return the first library with values of its own on an architecture."""
    own = kernels_of(architecture)
    known = (name for name in names if own in _architectures(places(operator, name, what)))
    return next(known, "")


def _architectures(tables: Sequence[str]) -> list[str]:
    return [table.rpartition(".")[2] for table in tables]


_BLOCK = "fp8-block"
_SGLANG = {(_BLOCK, "hopper"): "sglang", (_BLOCK, "blackwell"): "trtllm", ("nvfp4", "blackwell"): "sglang"}
"""SGLang's GEMMs, DeepGEMM on Hopper and FlashInfer's on Blackwell, whose kernels of scaled blocks are TensorRT-LLM's:
rows of DeepGEMM there convert scales in every call."""
_MARLIN = "sglang-marlin.bf16-int4"
"""Marlin's kernel of weights of 4 bits, by SGLang's rows of int4: vLLM's own are few, and large alone in mxfp4."""
_OLD_MXFP4 = {"mxfp4": ("vllm-trtllm.fp8-mxfp4", "vllm-marlin.bf16-int4")}
"""Experts of MXFP4 before vLLM 0.11.1: Marlin on Hopper and before (vllm-project/vllm PR 27523 says when Triton's took
its place), by vLLM's own rows of int4, since those of MXFP4 last as long as the host's launches."""
_PADS = {("mxfp4", one): (256, 128) for one in ("ampere", "ada", "hopper")}
"""Marlin takes columns in multiples of 256 and inner sizes in multiples of 128
(vllm/model_executor/layers/quantization/mxfp4.py)."""
_KITS = (
    KernelBackend(
        "vllm",
        "vLLM",
        attention=("vllm-fa3", "vllm-trtllm", "vllm-fa2", "vllm-flashinfer", "vllm-triton"),
        latent=("sglang-fa3-mla", "sglang-trtllm-mla"),
        all_reduce="vllm-custom",
        gemm={**_SGLANG, (_BLOCK, "ada"): "vllm-triton"},
        source="vllm-project/vllm: FlashAttention by default on Hopper, FlashInfer on Blackwell; where rows of vLLM's "
        "calls last as long as the host's work (latent attention, DeepGEMM, FlashInfer), the same kernels by SGLang; "
        "v1/attention/backends/mla/common.py: latent attention of prompts is never absorbed; experts in FP8 by Triton "
        "on Hopper, as by blocks: rows of one scale a tensor are of CUTLASS, untuned",
        most=8 << 20,
        small=("vllm",),
        experts={
            "bf16": ("vllm-trtllm.bf16", "vllm-triton.bf16"),
            "fp8": ("vllm-trtllm.fp8", "vllm-triton.fp8", "vllm-triton.fp8-block"),
            _BLOCK: ("vllm-trtllm.fp8-block", "vllm-triton.fp8-block"),
            "nvfp4": ("vllm-trtllm.nvfp4",),
            "mxfp4": ("vllm-trtllm.fp8-mxfp4", _MARLIN, "vllm-triton.bf16-mxfp4"),
            "int4": (_MARLIN, "vllm-marlin.bf16-int4"),
        },
        # calibrated, 10 to 100 us: to times of public closed loops (weft validate --kinds serving); pieces of compiled
        # code and operators in Python: MiniMax-M2.5 on B200 reads 1,024 tokens in 113 ms, and in 80 ms from a graph
        launch=50e-6,
        versions={"0.10": {"pads": _PADS, "replaced": _OLD_MXFP4}},
    ),
    KernelBackend(
        "sglang",
        "SGLang",
        attention=("sglang-fa3", "sglang-trtllm", "sglang-flashinfer"),
        latent=("sglang-fa3-mla", "sglang-trtllm-mla"),
        all_reduce="sglang-custom",
        gemm=_SGLANG,
        source="sgl-project/sglang python/sglang/srt/server_args.py: fa3 on Hopper, trtllm_mha and trtllm_mla on "
        "Blackwell; models/deepseek_common/attention_backend_handler.py: latent attention of prompts is absorbed "
        "behind prefixes of less than SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD tokens (environ.py: 8,192), not of none",
        most=8 << 20,
        absorbs=8192,
        launch=20e-6,  # calibrated as vLLM's, whose optimum is flat: 0 to 80 us
        experts={
            "bf16": ("sglang-trtllm.bf16", "sglang-triton.bf16"),
            _BLOCK: ("sglang-trtllm.fp8-block", "sglang-triton.fp8-block"),
            "nvfp4": ("sglang-trtllm.nvfp4",),
            "mxfp4": ("sglang-trtllm.fp8-mxfp4", "sglang-triton.bf16-mxfp4"),
            "int4": ("sglang-trtllm.bf16-int4", _MARLIN),
        },
    ),
    KernelBackend(
        "trtllm",
        "TensorRT-LLM",
        attention=("trtllm",),
        latent=("trtllm-mla",),
        all_reduce="trtllm-custom",
        # calibrated as vLLM's, 0 to 40 us: more contradicts the TPOT where prompts are read between
        launch=20e-6,
        gemm={(_BLOCK, "hopper"): "trtllm", (_BLOCK, "blackwell"): "trtllm", (_BLOCK, "ada"): "trtllm"},
        source="NVIDIA/TensorRT-LLM; the norm and the activation before quantise operands of NVFP4, so that GEMMs with "
        "a conversion of their own are not what a step runs",
        experts={
            "bf16": ("trtllm.bf16",),
            "fp8": ("trtllm.fp8",),
            _BLOCK: ("sglang-trtllm.fp8-block", "trtllm.fp8-block"),
            "nvfp4": ("trtllm-min-latency.nvfp4",),
            "mxfp4": ("sglang-trtllm.fp8-mxfp4", "vllm-triton.bf16-mxfp4"),
        },
    ),
)
KITS: Mapping[str, KernelBackend] = {one.name: one for one in _KITS}
"""Kits of libraries by framework."""
VENDOR = "vendor"
"""The name of no kit: every operator as the vendor's libraries run it."""
LIBRARIES = (*KITS, VENDOR)


def kit(name: str) -> KernelBackend | None:
    """The kit of a framework, "vllm", or of a version that differs, "vllm@0.10"; None for the vendor's libraries.

    UnknownNameError lists the known names, and the versions with libraries of their own.
    """
    framework, at, version = str(name).partition("@")
    check_name("library of a step", framework if at else name, LIBRARIES)
    found = KITS.get(framework)
    if not at:
        return found
    check_name(f"version of {framework} with libraries of its own", version, tuple(found.versions) if found else ())
    assert found is not None
    own = dict(found.versions[version])
    experts = {**found.experts, **own.pop("replaced", {})}
    return replace(found, experts=experts, **own)
