"""The processes that answer: one is kept warm, one that nobody waits for any more is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, cast

from weft.core.files import parse_json, to_json

_MOST = 4
"""Most processes at once."""
_GRACE_S = 1.0
"""How long an answer that nobody waits for may still take before its process is ended [s]."""
_LONGEST_LINE = 1 << 27


_Streams = tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]


_Told = asyncio.Queue[dict[str, Any] | None]


class Worker:
    """A process that runs `weft.ui.worker`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.into, self.told, self.errors = cast("_Streams", (process.stdin, process.stdout, process.stderr))
        self.is_done = True

    @classmethod
    async def start(cls) -> Worker:
        """Start a process in a session of its own."""
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-P", "-m", "weft.ui.worker")
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, limit=_LONGEST_LINE, start_new_session=True
            )
        )

    async def ask(self, asked: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield what the process tells on a question, and each line of progress meanwhile."""
        self.is_done = False
        self.into.write(to_json(asked).encode() + b"\n")
        waiting = {"told": self.told, "progress": self.errors}
        reads = {asyncio.create_task(stream.readline()): name for name, stream in waiting.items()}
        try:
            while True:
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name, line = reads.pop(task), task.result()
                    if not line and name == "told":
                        yield {"kind": "error", "text": "the run was ended"}
                        return
                    if name == "told" and (message := parse_json(line))["kind"] == "end":
                        self.is_done = True
                        return
                    elif name == "told":
                        yield message
                    elif text := line.decode(errors="replace").strip().removeprefix("weft: "):
                        yield {"kind": "progress", "text": text}
                    if line:
                        reads[asyncio.create_task(waiting[name].readline())] = name
        finally:
            for task in reads:
                task.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    def end(self) -> None:
        """End the process, and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Pool:
    """The processes of a server; the one that answered last is warm, and answers next."""

    def __init__(self, warm: Mapping[str, Any]) -> None:
        self.warm = warm
        self.idle: list[Worker] = []
        self.all: set[Worker] = set()
        self.is_closed = False
        self.changed = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Start a process in the background and ask it what a first visit asks."""
        self._spawn(self._run(await self._start(), self.warm, asyncio.Queue()))

    async def answers(self, asked: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield what a process tells on a question; if nobody listens any more, its process is soon ended."""
        worker, told = await self._lend(), _Told()
        running = self._spawn(self._run(worker, asked, told))
        try:
            while (message := await told.get()) is not None:
                yield message
        finally:
            if not running.done():
                self._spawn(self._limit(running, worker))

    async def _run(self, worker: Worker, asked: Mapping[str, Any], told: _Told) -> None:
        try:
            async for message in worker.ask(asked):
                told.put_nowait(message)
        finally:
            told.put_nowait(None)
            async with self.changed:
                if worker.is_done:
                    self.idle.append(worker)
                else:
                    worker.end()
                    self.all.discard(worker)
                self.changed.notify_all()
            if not (self.all or self.is_closed):
                await self.prepare()

    async def _limit(self, running: asyncio.Task[None], worker: Worker) -> None:
        await asyncio.wait({running}, timeout=_GRACE_S)
        if not running.done():
            worker.end()

    async def _lend(self) -> Worker:
        async with self.changed:
            if self.all and not self.idle:
                longest = None if len(self.all) >= _MOST else _GRACE_S
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait_for(lambda: self.idle), longest)
            return self.idle.pop() if self.idle else await self._start()

    async def _start(self) -> Worker:
        worker = await Worker.start()
        self.all.add(worker)
        return worker

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def close(self) -> None:
        """End every process."""
        self.is_closed = True
        for task in list(self.tasks):
            task.cancel()
        for worker in self.all:
            worker.end()
