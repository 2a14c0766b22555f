"""Traces as PyTorch's profiler writes them, event by event, for tests."""

import gzip
import json
from pathlib import Path


class Recorded:
    """A trace that grows by calls on the host and work on the GPU; times in microseconds."""

    def __init__(self, **head):
        self.events, self.head, self.last = [], {"schemaVersion": 1, **head}, 0

    def event(self, cat, name, start, duration, tid=1, **args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration, "args": args}
        )

    def call(self, name, start, duration, shapes=None, types=None, values=(), tid=1, **args):
        if shapes is not None:
            types = types or ["float" if shape else "Scalar" for shape in shapes]
            args = {**args, "Input Dims": shapes, "Input type": types, "Concrete Inputs": list(values)}
        self.event("cpu_op", name, start, duration, tid=tid, **args)

    def kernel(self, name, launched, start, duration, stream=7, tid=1, cat="kernel", **args):
        self.last += 1
        self.event("cuda_runtime", "cudaLaunchKernel", launched, 1, tid=tid, correlation=self.last)
        self.event(cat, name, start, duration, tid=stream, device=0, stream=stream, correlation=self.last, **args)
        return self.last

    def host(self, name, start, tid=1):
        self.last += 1
        self.event("cuda_runtime", name, start, 1, tid=tid, correlation=self.last)
        return self.last

    def gemm(self, start, m=1024, n=512, k=256, kernel="ampere_sgemm_128x64_nn", **args):
        """A product that the host calls at `start` and the GPU runs 10 us later for 20 us."""
        self.call("aten::mm", start, 5, [[m, k], [k, n]])
        return self.kernel(kernel, start + 1, start + 10, 20, **args)

    def write(self, path):
        text = json.dumps({**self.head, "traceEvents": self.events}).encode()
        Path(path).write_bytes(gzip.compress(text) if str(path).endswith(".gz") else text)
        return path
