"""What closed forms need beside the work: a GPU at a clock, its links, and how the work is called and timed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.core.errors import InputError, UnknownNameError, check_type, check_whole, show_value
from weft.core.options import SUSTAINED, RunOptions
from weft.core.units import Dimension, format_bytes, parse
from weft.estimate.answer import Parameter
from weft.graph import Driver, Op
from weft.hardware import Described, Gpu, Node, System
from weft.kernels.library.interconnect import Interconnect, interconnect
from weft.kernels.library.profiles import Profile, numbers, values

Timed = Literal["device", "host"]

ROTATION = 6.0
"""B matrices used in turn in a timing loop, as the public inference harnesses do (ai-dynamo/aiconfigurator)."""
LIBRARIES = ("nccl", "rccl", "trtllm-custom", "vllm-custom", "sglang-custom")
HOSTS = ("", "framework", "torch", "profiler", "eager")
_UNTHROTTLED = 0.94
"""Share of the matrix rate at the running clock that a tuned main loop reaches (ROCm/rocm-blogs, maximum achievable
FLOPs: 0.942 on MI300X and 0.936 on MI325X, in bf16)."""


@dataclass(frozen=True)
class BenchmarkProtocol:
    """How work is called and timed; the default is that of single-kernel benchmarks and the libraries' own tests.

    `timed` says whether kernels follow each other on the device, or the host launches each and waits for it. `rotation`
    is how many B matrices of a GEMM are used in turn (infinite: B always comes from memory). An element-wise operator
    `after_others`, as in a step of a model, finds at most the first tensor that it reads in the cache. `quantize` adds
    the conversion of a 16-bit A to scaled 8-bit rows; `tuned` takes the best kernel that a tuner finds, not the choice
    of the library.

    `mask` are the compute units that a GEMM may use, as indices from 0 (None: all).

    GEMMs and streaming operators may be `served` by a library of inference (`weft.kernels.library.served`), GEMMs with
    `weights` of a narrower format ("int8", "int4") that become 16 bits on their way to the matrix units. `values`
    replace shipped ones of libraries by path, like {"gemm.trtllm.fp8.hopper.start": 3e-6} [base units].

    Of collectives: `library` carries them out (None: the vendor's), of `version`, with a `profile` of its own (None:
    the machine's), by `algorithm` ("auto", or one like "ring", "nvls", "direct", "tree" or "ring-ll128"), with `driver`
    "cu" or "dma". Of a ring in one node, `channels` run, each one workgroup (None: the library's own number), on
    `compute_units` compute units (None: all). `host` is who calls: "" (the library's own test), "framework", "torch"
    (packs lists of tensors), "profiler" (times kernels, which wait for the last rank to begin) or "eager" (a server
    without graphs, whose custom all-reduce first copies to its own buffer). `network` is the rate
    per GPU of a network that differs from the machine's [bytes/s], like "50 GB/s".

    Raises UnknownNameError for an unknown library, host or way of timing, InputError for numbers below 1.
    """

    timed: Timed = "device"
    rotation: float = ROTATION
    after_others: bool = False
    quantize: bool = False
    tuned: bool = False
    library: str | None = None
    version: str = ""
    profile: Profile | None = None
    algorithm: str = "auto"
    driver: Driver = Driver.CU
    channels: int | None = None
    compute_units: int | None = None
    mask: tuple[int, ...] | None = None
    host: str = ""
    network: float | str | None = None
    served: str = ""
    weights: str = ""
    values: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        named: tuple[tuple[str, object, tuple[str, ...]], ...] = (
            ("way of timing", self.timed, get_args(Timed)),
            ("collective library", LIBRARIES[0] if self.library is None else self.library, LIBRARIES),
            ("host", self.host, HOSTS),
            ("driver", self.driver, tuple(Driver)),
        )
        for kind, name, known in named:
            if not isinstance(name, str) or name not in known:
                raise UnknownNameError(kind, name, [one for one in known if one])
        object.__setattr__(self, "driver", Driver(self.driver))
        for name, count in (("channels", self.channels), ("compute_units", self.compute_units)):
            if count is not None:
                check_whole(name, count, 1, 8)
        if self.mask is not None:
            check_type("mask", self.mask, tuple, "give the indices of compute units, like (0, 1), or None")
            for unit in self.mask:
                check_whole("a compute unit of a mask", unit, 0, 8)
        for switch in ("after_others", "quantize", "tuned"):
            check_type(switch, getattr(self, switch), bool, "give True or False")
        rotation: object = self.rotation
        if isinstance(rotation, bool) or not isinstance(rotation, int | float) or not rotation >= 1:
            raise InputError(
                f"rotation is {show_value(rotation)}; it counts the B matrices used in turn and must be 1 or more"
            )
        if isinstance(self.network, str):
            object.__setattr__(self, "network", parse(self.network, Dimension.BYTES_PER_SECOND))
        network: object = self.network
        if network is not None and not (isinstance(network, int | float) and 0 < network < math.inf):
            raise InputError(f"network is {show_value(network)}; it must be a rate above zero, in bytes/s")
        if self.weights and not self.served:
            raise InputError(
                f"weights is {show_value(self.weights)}; it goes with served, a library of inference: name one"
            )
        if self.profile is not None:
            check_type("profile", self.profile, Profile, "give what weft.kernels.library.profiles.load_library answers")
        for text in ("algorithm", "version", "served", "weights"):
            check_type(text, getattr(self, text), str, "give a text")
        if self.version and not numbers(self.version):
            raise InputError(f"version is {show_value(self.version)}; give the library's release, like '2.26'")


@dataclass(frozen=True)
class Target:
    """A GPU in a system, the options of the run, and the harness."""

    gpu: Gpu
    what: Gpu | Node | System
    options: RunOptions
    harness: BenchmarkProtocol = field(default_factory=BenchmarkProtocol)

    @cached_property
    def system(self) -> System:
        """The system that `what` describes."""
        return hardware.system(self.what)

    @cached_property
    def fabric(self) -> Interconnect:
        """The system's links in the library's cost model."""
        fabric = interconnect(self.system)
        network = self.harness.network
        return fabric if network is None else replace(fabric, nic=float(network))

    @property
    def mask(self) -> tuple[int, ...] | None:
        """The compute units that a GEMM may use; None if it may use all. Raises InputError for one that is missing."""
        mask, units = self.harness.mask, self.gpu.compute.compute_units
        if mask is None or len(set(mask)) == units:
            return None
        if not mask or not 0 <= min(mask) <= max(mask) < units:
            raise InputError(f"the mask of a GEMM is {show_value(mask)}; give one or more of 0 to {units - 1}, or None")
        return mask

    @property
    def name(self) -> str:
        """The system's name in messages."""
        return self.what.name

    def nodes(self, ranks: int) -> int:
        """Return the number of nodes of `ranks` GPUs: the system's, else as few as hold them.

        Raises InputError for ranks that cannot be spread evenly.
        """
        own = self.system.gpus == ranks
        across = self.system.nodes if own else -(-ranks // self.fabric.gpus_per_node)
        if ranks % across:
            raise InputError(
                f"{ranks} ranks cannot be spread evenly over {across} nodes; give a number of ranks that they divide"
            )
        return across


def target(what: Described, options: RunOptions | None = None, harness: BenchmarkProtocol | None = None) -> Target:
    """Resolve a name or a description and options into a target; without options, of a long run.

    With the clock "boost" power never limits the matrix units. Raises UnknownNameError for an unknown name.
    """
    if options is not None:
        check_type("the options", options, RunOptions, "give weft.RunOptions(...)")
    if harness is not None:
        check_type("the harness", harness, BenchmarkProtocol, "give weft.BenchmarkProtocol(...)")
    known = what if isinstance(what, Gpu | Node | System) else hardware.system(what)
    gpu, options = known if isinstance(known, Gpu) else known.gpu, options or SUSTAINED
    if options.clock == "boost":
        gpu, options = _at_boost(gpu), replace(options, clock="short")
    return Target(gpu, known, options, harness or BenchmarkProtocol())


@lru_cache(maxsize=64)
def _at_boost(gpu: Gpu) -> Gpu:
    """Return the GPU as if power never limited its matrix units: only the main loop's own losses remain.

    Parts with a higher power limit run so, and others on operands that toggle few bits: A100 was measured at 293 to 302
    TFLOP/s of fp16 and bf16 that way (LLMCompass, arXiv:2312.03134; openfabric-systems/simllm @9c2672c, clock held at
    1410 MHz), and at 236 to 271 in other public measurements.
    """
    shares = (path for path in gpu.rules() if path.startswith("achieved.matrix_"))
    return gpu.replace(dict.fromkeys(shares, _UNTHROTTLED))


def check_held(op: Op, gpu: Gpu) -> None:
    """Raise InputError for an operator whose data exceed a GPU's memory; of several, for the largest."""
    least = max(float(np.max(sum(tensor.bytes for tensor in tensors))) for tensors in (op.reads, op.writes))
    if least > gpu.memory.capacity:
        what = op if np.ndim(op.least_bytes) == 0 else f"the largest {op.kind}"
        raise InputError(
            f"the data of {what} take {format_bytes(least, 4)} at least, but the memory of {gpu.name} holds "
            f"{format_bytes(gpu.memory.capacity, 4)}; give smaller sizes"
        )


_CALLED = {"bmm": 0.72}
"""Share of the host's time per kernel that a call of a function takes, where other rows call a module with a bias
[calibrated: the shortest bmm of sitar-lab/NeuSight takes 39 us on V100, the shortest linear 63 us; 0.5 to 1]."""
_HIDDEN = {"bmm": 12e-6}
"""How long such a kernel may run before the host has recorded the event that ends its time [s; calibrated: the shortest
bmm of sitar-lab/NeuSight take 39.2 to 39.8 us on V100 whether K is 2 or 994; 8 to 18 us]."""


def seen_by_host(
    call: str, kernel: npt.NDArray[np.float64] | float, launch: npt.NDArray[np.float64] | float
) -> npt.NDArray[np.float64]:
    """Seconds that the host measures from one call of a kernel to its end, for each time [s] of kernel and launch.

    That is the host's own time for the launch, and the part of the kernel that it waits for. `call` names the function
    or module of PyTorch, such as "bmm" or "linear": a function costs less than a module, and a short kernel is hidden
    behind it.
    """
    hidden = _HIDDEN.get(call, 0.0)
    called = _CALLED.get(call, 1.0) * launch
    return np.asarray(np.maximum(called - hidden, 0.0) + np.maximum(kernel, hidden))


_NEEDS_ROWS = 4
_NEEDS_ROWS_OF_LL128 = 2
"""A library uses LL128 for few sizes, so few rows determine its rate."""

GEMM_PARAMETERS: tuple[Parameter, ...] = (
    *(
        Parameter(f"achieved.matrix_{dtype}", 0.3, 1.0, "", 10, f"share of the {dtype} matrix rate in the main loop")
        for dtype in ("bf16", "fp16", "fp8", "int8", "tf32", "fp32")
    ),
    Parameter("achieved.gemm_memory", 0.4, 1.0, "", 10, "share of the DRAM's peak bandwidth"),
    Parameter("achieved.gemm_cache", 0.15, 1.0, "", 20, "share of the last-level cache's peak bandwidth"),
    Parameter("achieved.gemm_resident", 0.05, 1.0, "", 20, "share of the cache that keeps operands"),
    Parameter("achieved.gemm_issue", 1.0, 300.0, "cycles", 20, "cost of a K step beside its matrix instructions"),
    Parameter("achieved.gemm_latency", 2e-7, 4e-6, "s", 20, "from asking for a K step's operands to having them"),
    Parameter("achieved.gemm_fill", 1e-7, 6e-6, "s", 20, "to begin and end a workgroup"),
    Parameter("achieved.gemm_split", 1e-7, 1e-5, "s", 20, "to add up the parts of a split K"),
    Parameter("achieved.gemm_launch", 2e-7, 1e-5, "s", 20, "from one kernel to the next on the device"),
    Parameter("achieved.gemm_host", 1e-6, 8e-5, "s", 20, "from one kernel to the next, issued and awaited by the host"),
)
"""GPU parameters that may be fitted to measured GEMMs."""


def collective_parameters(profile: Profile) -> tuple[Parameter, ...]:
    """The parameters of a profile that calibration may fit."""
    units = {Dimension.SECONDS: "s", Dimension.BYTES: "bytes"}
    return tuple(
        Parameter(path, value.low, value.high, units.get(value.rule.dimension, ""), _rows(path), value.about)
        for path, value in values().items()
        if path in profile.values
    )


def _rows(path: str) -> int:
    return _NEEDS_ROWS_OF_LL128 if "ll128" in path else _NEEDS_ROWS
