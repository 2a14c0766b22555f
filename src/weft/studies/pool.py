"""Many comparisons on several processes: largest first, one answer at a time, and a clean end on Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from weft.errors import InputError, SimulationError
from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.parallel import ShardedSubLayer
from weft.parallel.tensor import split
from weft.result import Comparison
from weft.simulation import compare, simulate
from weft.workload import SubLayer


@dataclass(frozen=True)
class Job:
    """One sub-layer to compare: on which GPU, under which overlaps, with requests of which size [bytes].

    `tiling` is how the GEMM is cut (None: as usual).
    """

    layer: ShardedSubLayer
    gpu: Gpu
    overlaps: tuple[str, ...]
    request_bytes: int
    tiling: GemmTiling | None = None

    def run(self) -> Comparison:
        """The comparison, made in this process."""
        return compare(
            self.layer, self.gpu, self.overlaps, request_bytes=self.request_bytes, tiling=self.tiling
        )


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Comparison]]:
    """Every job with its comparison, in the order in which they end; the largest GEMMs begin first.

    A tiny run comes first, in this process: it compiles the engine once for all, and refuses a machine that
    cannot be simulated before any process starts. With one process, or one job, everything runs here.

    Raises InputError for fewer than one process, SimulationError if one dies, and what `compare` raises.
    """
    if processes < 1:
        raise InputError(f"{processes} processes cannot run a study; choose 1 or more jobs")
    ordered = sorted(jobs, key=lambda job: job.layer.gemm.flops, reverse=True)
    if ordered:
        _warm_up(ordered[0])
    if processes == 1 or len(ordered) <= 1:
        return ((job, job.run()) for job in ordered)
    return _in_processes(ordered, min(processes, len(ordered)))


def _warm_up(job: Job) -> None:
    tiny = split(SubLayer.custom(512, 512, 128), 2)
    simulate(tiny, job.gpu, "sequential", request_bytes=job.request_bytes)


def _in_processes(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Comparison]]:
    # Started afresh, not forked: a fork would copy the threads and locks of whatever the caller has running.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare_worker)
    try:
        waiting = {executor.submit(job.run): job for job in jobs}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    except BrokenProcessPool as error:
        raise SimulationError(
            "a process of the study ended by itself: out of memory, or started from a script without "
            "'if __name__ == \"__main__\":'; try it with 1 job"
        ) from error
    finally:
        # On an error or Ctrl-C nobody needs what is still running; on success nothing is.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        executor.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
