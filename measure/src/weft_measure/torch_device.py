"""PyTorch as a `Device`: a CUDA or ROCm GPU, or the CPU, on which everything can be tried but nothing learnt."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

from weft.core.errors import InputError, UnknownNameError
from weft_measure.device import Unsupported, Work
from weft_measure.plan import COPIES
from weft_measure.state import StateLog

_DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "tf32": "float32",
    "fp64": "float64",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
}

WEIGHTS = 6
"""Weights that take turns in a loop of GEMMs, as in public inference harnesses (ai-dynamo/aiconfigurator): layers of a
model do not find each other's weights in the cache."""
MOST_WEIGHT_BYTES = 2**33


def open_device(kind: str = "cuda", name: str | None = None) -> TorchDevice:
    """The device that PyTorch sees, "cuda" (also ROCm's) or "cpu"; `name` replaces the catalogue's name for it.

    Raises InputError if PyTorch or a GPU is missing, with what to do.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise InputError(
            "measuring needs PyTorch, which is not installed here; install it, like pip install torch, "
            "on the machine with the GPU"
        ) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"PyTorch {torch.__version__} sees no GPU; check the driver and that this build has CUDA or ROCm, "
            "or try the measurement without one: --device cpu"
        )
    return TorchDevice(torch, kind, name)


class TorchDevice:
    """A `Device` by PyTorch's public functions; one GPU, the current one."""

    def __init__(self, torch: Any, kind: str, name: str | None = None) -> None:
        self._torch, self._kind, self._gpu = torch, kind, kind == "cuda"
        self.title = torch.cuda.get_device_name() if self._gpu else "CPU"
        self.name = name or _catalogue_name(self.title)
        self.about = _versions(torch, self.title, gpu=self._gpu)
        self._log = StateLog(_smi_name(torch)) if self._gpu else None
        self._recorded: tuple[Work, int, Callable[[], object]] | None = None

    def gemm(self, m: int, n: int, k: int, dtype: str, inputs: str = "random") -> Work:
        """`torch.matmul` with weights (stored N x K) in turn; 8-bit types by the scaled and the integer product."""
        torch = self._torch
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        a = self._filled((m, k), dtype, inputs)
        turns = max(1, min(WEIGHTS, int(MOST_WEIGHT_BYTES / (a.element_size() * n * k))))
        weights = itertools.cycle([self._filled((n, k), dtype, inputs).t() for _ in range(turns)])
        product, how = self._product(a, n, dtype)
        return self._tried(lambda: product(next(weights)), f"{how}; {turns} weights in turn")

    def _product(self, a: Any, n: int, dtype: str) -> tuple[Callable[[Any], object], str]:
        """What multiplies `a` by a matrix of `n` columns, and how."""
        torch = self._torch
        if dtype == "fp8":
            one = torch.ones((), dtype=torch.float32, device=self._kind)
            how = "torch._scaled_mm, one scale per tensor, bf16 written"
            return lambda b: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16), how
        if dtype == "int8":
            return lambda b: torch._int_mm(a, b), "torch._int_mm, int32 sums written"
        out = torch.empty((a.shape[0], n), dtype=a.dtype, device=self._kind)
        return lambda b: torch.matmul(a, b, out=out), "torch.matmul, B transposed"

    def operator(self, name: str, dtype: str, shape: Mapping[str, int]) -> Work:
        """The function of `torch.nn.functional` or `torch.optim` that does the operator eagerly."""
        from weft_measure.torch_operators import OPERATORS

        if name not in OPERATORS:
            raise Unsupported(f"PyTorch has no single function for '{name}'")
        return self._tried(OPERATORS[name](self._torch, self._filled, dtype, shape), "PyTorch, eager")

    def copy(self, kind: str, size: int) -> Work:
        """By a kernel (a function of each element), by `copy_` on the device, to and from pinned memory, to a peer."""
        here = self._bytes(size)
        if kind == "kernel":
            other = self._bytes(size)
            return self._tried(lambda: self._torch.bitwise_not(here, out=other), "torch.bitwise_not of int32")
        if kind == "memcpy":
            other = self._bytes(size)
            return self._tried(lambda: other.copy_(here), "Tensor.copy_ on the device")
        if kind == "to_peer":
            peer = self._on_peer(size)
            return self._tried(lambda: peer.copy_(here, non_blocking=True), "to the second GPU, copy engine")
        if kind not in COPIES:
            raise UnknownNameError("copy", kind, COPIES)
        host = self._torch.empty(size // 4, dtype=self._torch.int32, pin_memory=self._gpu)
        target, source = (host, here) if kind == "to_host" else (here, host)
        return self._tried(lambda: target.copy_(source, non_blocking=True), "pinned host memory, copy engine")

    def stream(self, reads: int, writes: int, size: int) -> Work:
        """Reads by a sum, writes by a fill, copies and more by functions of each element."""
        torch, arrays = (
            self._torch,
            [self._filled((size // 4,), "fp32", "random") for _ in range(reads + writes)],
        )
        works: dict[tuple[int, int], Callable[[], object]] = {
            (1, 0): lambda: torch.sum(arrays[0]),
            (0, 1): lambda: arrays[0].fill_(1.0),
            (1, 1): lambda: torch.neg(arrays[0], out=arrays[1]),
            (2, 1): lambda: torch.add(arrays[0], arrays[1], out=arrays[2]),
            (3, 1): lambda: torch.addcmul(arrays[0], arrays[1], arrays[2], out=arrays[3]),
        }
        if (reads, writes) not in works:
            raise Unsupported(f"PyTorch has no kernel of {reads} reads and {writes} writes")
        return self._tried(works[reads, writes], f"{reads} arrays read, {writes} written, fp32")

    def chase(self, size: int, steps: int) -> Work:
        """A Triton kernel of one thread that follows a random cycle of 128-B lines, past the first-level cache."""
        if not self._gpu:
            raise Unsupported("a pointer chase needs a GPU")
        from weft_measure.torch_chase import chase_kernel

        return self._tried(chase_kernel(self._torch, size, steps), "one thread, random cycle of 128-B lines")

    def seconds(self, work: Work, repeats: int, *, graph: bool = True) -> float:
        """By events around the runs, which are recorded in a CUDA graph first so that the host costs nothing."""
        if not self._gpu:
            start = time.perf_counter()
            _run(work, repeats)
            return time.perf_counter() - start
        run = self._once_recorded(work, repeats) if graph else (lambda: _run(work, repeats))
        torch = self._torch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def seconds_beside(self, first: Work, runs: int, second: Work, others: int) -> tuple[float, float]:
        """Two streams that wait for one event (two threads on the CPU)."""
        if not self._gpu:
            return _beside_on_host(lambda: _run(first, runs), lambda: _run(second, others))
        torch = self._torch
        start = torch.cuda.Event(enable_timing=True)
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        graphs = [self._graph(first, runs), self._graph(second, others)]
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        start.record()
        for stream, replay, end in zip(streams, graphs, ends, strict=True):
            stream.wait_event(start)
            with torch.cuda.stream(stream):
                replay()
                end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(ends[0])) * 1e-3, float(start.elapsed_time(ends[1])) * 1e-3

    def round_trip(self, work: Work) -> float:
        """By the host's clock around a start and a synchronisation."""
        start = time.perf_counter()
        work.enqueue()
        if self._gpu:
            self._torch.cuda.synchronize()
        return time.perf_counter() - start

    def state(self) -> Mapping[str, float]:
        """Medians of what nvidia-smi told since the last call; nothing without it."""
        return self._log.since_last() if self._log else {}

    def kernels(self, work: Work) -> list[str]:
        """By torch.profiler."""
        profiler = self._torch.profiler
        kind = profiler.ProfilerActivity.CUDA if self._gpu else profiler.ProfilerActivity.CPU
        with profiler.profile(activities=[kind]) as seen:
            work.enqueue()
            if self._gpu:
                self._torch.cuda.synchronize()
        events = [event for event in seen.events() if not self._gpu or "CUDA" in str(event.device_type)]
        return [event.name for event in events if not event.name.startswith("aten::empty")]

    def close(self) -> None:
        """End the sampling of clock and power."""
        if self._log:
            self._log.close()

    def _once_recorded(self, work: Work, repeats: int) -> Callable[[], object]:
        """The graph of these runs, kept until another is asked for: the samples of a timing share it."""
        if self._recorded is None or self._recorded[0] is not work or self._recorded[1] != repeats:
            self._recorded = None  # its memory goes first
            self._recorded = (work, repeats, self._graph(work, repeats))
        return self._recorded[2]

    def _graph(self, work: Work, repeats: int) -> Callable[[], object]:
        """What replays a recorded graph of the runs; launches one by one where the work cannot be recorded."""
        torch, graph = self._torch, self._torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                _run(work, repeats)
        except RuntimeError:
            torch.cuda.synchronize()
            return lambda: _run(work, repeats)
        graph.replay()
        replay: Callable[[], object] = graph.replay
        return replay

    def _tried(self, enqueue: Callable[[], object], note: str) -> Work:
        """The work once it has run; `Unsupported` if the device refuses it or has too little memory."""
        try:
            enqueue()
            if self._gpu:
                self._torch.cuda.synchronize()
        except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
            raise Unsupported(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
        return Work(enqueue, note)

    def _filled(self, shape: tuple[int, ...], dtype: str, inputs: str) -> Any:
        """A tensor of normal random numbers (small whole ones for int8), or of zeros."""
        torch = self._torch
        if dtype not in _DTYPES or not hasattr(torch, _DTYPES[dtype]):
            raise Unsupported(f"PyTorch {torch.__version__} has no {dtype}")
        wanted = getattr(torch, _DTYPES[dtype])
        try:
            if inputs == "zero":
                return torch.zeros(shape, dtype=torch.float32, device=self._kind).to(wanted)
            if dtype == "int8":
                return torch.randint(-8, 8, shape, dtype=wanted, device=self._kind)
            plain = torch.randn(shape, dtype=torch.bfloat16 if dtype == "fp8" else wanted, device=self._kind)
            return plain.to(wanted)
        except RuntimeError as error:
            raise Unsupported(str(error).splitlines()[0]) from None

    def _bytes(self, size: int) -> Any:
        try:
            return self._torch.zeros(size // 4, dtype=self._torch.int32, device=self._kind)
        except RuntimeError as error:
            raise Unsupported(str(error).splitlines()[0]) from None

    def _on_peer(self, size: int) -> Any:
        if not self._gpu or self._torch.cuda.device_count() < 2:
            raise Unsupported("a copy to a peer needs a second GPU")
        return self._torch.empty(size // 4, dtype=self._torch.int32, device="cuda:1")


def _run(work: Work, repeats: int) -> None:
    for _ in range(repeats):
        work.enqueue()


def _beside_on_host(first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
    ends = [0.0, 0.0]

    def timed(index: int, run: Callable[[], None]) -> None:
        run()
        ends[index] = time.perf_counter()

    threads = [Thread(target=timed, args=(index, run)) for index, run in enumerate((first, second))]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends[0] - start, ends[1] - start


def _catalogue_name(title: str) -> str:
    import weft

    try:
        return str(weft.gpu(title).name)
    except UnknownNameError:
        return title.lower().replace(" ", "-")


def _smi_name(torch: Any) -> str:
    """What nvidia-smi calls the current GPU, whichever of them are visible here."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return f"GPU-{uuid}" if uuid else str(torch.cuda.current_device())


def _versions(torch: Any, title: str, *, gpu: bool) -> str:
    runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {getattr(torch.version, 'hip', None)}"
    return f"{title}; PyTorch {torch.__version__}" + (f"; {runtime}" if gpu else "")
