"""Workers of a Dask cluster, by the address of its scheduler; each has the same Weft and libraries as this process.

Dask repeats the tasks of a worker that dies on another one. Records return to this process, which stores them: workers
need no folder in common with it.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any, Self

from weft import __version__
from weft.core.errors import InputError, SimulationError
from weft.core.store.fingerprint import fingerprint_of, home, sources
from weft.core.store.records import Store, say
from weft.core.store.task import Question, answer
from weft.sweep.dispatch import AnsweredBatch

_CONNECT_S = 10.0
"""How long a scheduler may take to answer [s]."""
_COUNTED_S = 5.0
"""How often the workers are counted [s]."""
_at_work = threading.Lock()
"""Weft answers one question at a time in a process, however many threads a worker has."""


class DaskCluster:
    """Workers of the Dask scheduler at `address`, such as "tcp://10.0.0.1:8786", or of a scheduler file (.json)."""

    stores = False
    deaths = 2  # of batches that lost three workers each, Dask's own limit

    def __init__(self, address: str) -> None:
        self.address = address
        self.name = f"the Dask scheduler at '{address}'"
        self._client: Any = None
        self._slots, self._counted = 1, 0.0
        self._told = False

    @property
    def broken(self) -> tuple[type[BaseException], ...]:
        """What a batch raises if several workers died of it."""
        from distributed import KilledWorker

        return (KilledWorker,)

    @property
    def slots(self) -> int:
        """Threads of all workers that are connected now, at least one."""
        if time.monotonic() - self._counted > _COUNTED_S:
            with self._reaching():
                self._slots = max(sum(self._client.nthreads().values()), 1)
            self._counted = time.monotonic()
        return self._slots

    def __enter__(self) -> Self:
        """Connect, and check the sources of every worker; InputError if no scheduler answers, or sources differ."""
        self._client = _connect(self.address)
        self._executor = self._client.get_executor()
        try:
            self._check_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        """Drop what is not answered yet, and disconnect; the cluster stays."""
        with suppress(Exception):  # a scheduler that is gone needs no farewell
            self._executor.shutdown(wait=False)
        with suppress(Exception):
            self._client.close()

    def submit(self, batch: Sequence[Question], store: Store | None) -> Future[AnsweredBatch]:
        """Begin to answer a batch on any worker."""
        with self._reaching():
            future: Future[AnsweredBatch] = self._executor.submit(_answer_remotely, batch)
        return future

    def restart(self) -> None:
        """Nothing to replace: the cluster starts its workers."""

    def check(self) -> None:
        """Say once if no worker is connected; SimulationError if the scheduler is gone."""
        if self._client.status != "running":
            raise SimulationError(f"{self.name} ended before the sweep did; start one, and run the sweep again")
        with self._reaching():
            alone = not self._client.nthreads()
        if alone and not self._told:
            say(f"{self.name} has no workers; the sweep waits for one")
        self._told = alone

    def _check_workers(self) -> None:
        with self._reaching():
            found = self._client.run(sources, on_error="return")
        for worker, theirs in found.items():
            if isinstance(theirs, BaseException):
                raise InputError(
                    f"the worker {worker} cannot import Weft ({theirs}); install the same Weft on every worker"
                )
            if theirs != sources():
                raise _other_sources(f"the worker {worker} has")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Translate a lost connection into a SimulationError."""
        try:
            yield
        except (OSError, TimeoutError, CancelledError, RuntimeError) as error:
            raise SimulationError(f"{self.name} does not answer any more ({error}); run the sweep again") from error


def _connect(address: str) -> Any:
    """Return a client of the scheduler; InputError if Dask is missing or nothing answers at the address."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError("a sweep on a cluster needs Dask; run pip install 'weft[dask]'") from None
    where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        return Client(**where, timeout=_CONNECT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at '{address}' ({type(error).__name__}); start one by 'dask scheduler', and "
            "give the address that it prints, like tcp://10.0.0.1:8786"
        ) from None


def _answer_remotely(batch: Sequence[Question]) -> AnsweredBatch:
    """Return the answers to a batch on a worker; InputError if its sources are not those of the process that asks."""
    with _at_work:
        begin = time.perf_counter()
        for asked in batch:
            if fingerprint_of(home(type(asked.task))) != asked.code:
                raise _other_sources(f"the worker on {platform.node()} has")
        return AnsweredBatch([(answer(asked.task), "") for asked in batch], time.perf_counter() - begin)


def _other_sources(who: str) -> InputError:
    """Return the error for a worker whose answers would not be this process's."""
    return InputError(
        f"{who} other sources of Weft, or another Python, numpy, numba or scipy, than this process "
        f"(weft {__version__}, Python {platform.python_version()}); install the same on both"
    )
