"""Reads what Nsight Systems recorded: an SQLite file of `nsys export --type sqlite`, with one or more GPUs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import pathname2url

from weft.core.errors import ConfigError, InputError
from weft.core.files import Unpacked
from weft.torch.traces.reader import Meeting, RankTrace, TraceReader, rank_in_name
from weft.torch.traces.recorded import Columns, MatchedWork, RecordedWork
from weft.torch.traces.trace import SENDS

_NS = 1e-9
_MAGIC = b"SQLite format 3\0"
_KERNELS, _COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS, _GRAPHS = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS, _RANGES, _TEXTS = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""Copies by CUPTI's number (CUpti_ActivityMemcpyKind), in the words of Kineto's names."""
_STEP = re.compile(r"(?:step|iter|iteration)\D{0,3}(\d+)", re.IGNORECASE)
"""Texts of NVTX ranges that number the steps of a run."""


class NsightReader(TraceReader):
    """Reads Nsight Systems' SQLite export: every GPU of the file is one rank."""

    tool = "Nsight Systems"
    numbered = True

    def recognizes(self, path: Path, start: bytes) -> bool:
        """Return whether the file is an SQLite database."""
        return start.startswith(_MAGIC)

    def read(self, path: str | Path) -> Iterator[RankTrace]:
        """Yield the GPUs in the order of their numbers. Raises ConfigError for a file of another schema."""
        with Unpacked(path) as file:  # refuses a missing file, a folder, and a file that an option writes
            if file.packed:
                raise ConfigError("this is a packed SQLite database; unpack it with gunzip", str(path))
        address = f"file:{pathname2url(str(Path(path).resolve()))}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as database:
                database.text_factory = lambda text: text.decode(errors="replace")
                database.execute("PRAGMA trusted_schema = OFF")
                yield from _Export(database, path).ranks()
        except (sqlite3.Error, UnicodeDecodeError, TypeError, OverflowError) as error:
            why = f"the file cannot be read as Nsight Systems writes it ({error})"
            raise ConfigError(f"{why}; export it again with 'nsys export --type sqlite'", str(path)) from None


class _Export:
    """An open database, its tables and the columns of each."""

    def __init__(self, database: sqlite3.Connection, path: str | Path) -> None:
        self.database, self.path = database, str(path)
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.tables = {
            name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')}
            for (name,) in names
            if name in (_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS, _RANGES, _TEXTS, "TARGET_INFO_GPU")
        }
        if any(str(name).startswith("rocpd_") for (name,) in names):
            raise ConfigError(
                "this is a rocpd database of rocprofv3; convert it with 'rocpd convert -i FILE --output-format csv', "
                "and name the folder of the CSV files",
                self.path,
            )
        if not self.tables.keys() & {_KERNELS, _GRAPHS}:
            raise InputError(
                f"'{path}' is an SQLite database without the table {_KERNELS}; record with 'nsys profile --trace "
                "cuda,nvtx' on a machine with a GPU, and write the file with 'nsys export --type sqlite'"
            )

    def select(self, table: str, needs: str, may: str = "", where: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table; columns that it `may` lack are None. Raises ConfigError for one that it needs."""
        has = self.tables.get(table)
        if has is None:
            return
        if lacking := [name for name in needs.split() if name not in has]:
            raise ConfigError(
                f"its table {table} has no column {lacking[0]}; export it again with 'nsys export --type sqlite'",
                self.path,
            )
        columns = [f'"{name}"' if name in has else "NULL" for name in (*needs.split(), *may.split())]
        yield from self.database.execute(f"SELECT {', '.join(columns)} FROM {table} {where}")

    def ranks(self) -> Iterator[RankTrace]:
        texts = dict(self.select(_TEXTS, "id value"))
        names = {row[0]: str(row[1]) for row in self.select("TARGET_INFO_GPU", "id name")}
        host, steps = self._launches(texts), self._steps(texts)
        devices = sorted(
            {(row[0], row[1] or 0) for table in (_KERNELS, _GRAPHS)
             for row in self.select(table, "deviceId", "globalPid", "GROUP BY 1, 2")}
        )  # fmt: skip
        if not devices:
            raise InputError(f"'{self.path}' has no kernel on a GPU; record with 'nsys profile --trace cuda,nvtx'")
        alone = rank_in_name(Path(self.path)) if len(devices) == 1 else None
        for device, process in devices:
            work, whole_graphs = self._work(device, process, texts, host)
            mine = tuple(sorted(steps.get(_process(process), ())))
            part = MatchedWork(work).of_rank(self.path, names.get(device, ""), alone, None, mine)
            remark = (
                f"{whole_graphs:,} CUDA graphs were recorded as a whole, and count as compute with the collectives in "
                "them; record with 'nsys profile --cuda-graph-trace=node'"
            )
            yield replace(part, remark=remark * bool(whole_graphs))

    def _launches(self, texts: dict[int, str]) -> Columns:
        host = Columns("correlation thread kind | start")
        waits = {id_: 2 for id_, text in texts.items() if "StreamWaitEvent" in text}
        waits |= {id_: 1 for id_, text in texts.items() if "EventRecord" in text}
        for start, correlation, thread, name in self.select(_CALLS, "start correlationId", "globalTid nameId"):
            host.add(_correlation(thread, correlation), 0, waits.get(name, 0), start * _NS)
        return host

    def _steps(self, texts: dict[int, str]) -> dict[int, set[int]]:
        """Return the numbers of steps that NVTX ranges state, by process."""
        found: dict[int, set[int]] = {}
        for _, text, text_id, thread in self.select(_RANGES, "end", "text textId globalTid", 'WHERE "end" IS NOT NULL'):
            if step := _STEP.fullmatch(str(text or texts.get(text_id, "")).removeprefix("Profiler")):
                found.setdefault(_process(thread), set()).add(int(step[1]))
        return found

    def _work(self, device: int, process: int, texts: dict[int, str], host: Columns) -> tuple[RecordedWork, int]:
        """Return the work of one process on one GPU, and how many CUDA graphs it holds as a whole."""
        work = RecordedWork(host)
        mine = f"WHERE deviceId = {int(device)}"
        mine_too = f"{mine} AND globalPid = {int(process)}"
        kernels = self.tables.get(_KERNELS, set())
        naming = "demangledName" if "demangledName" in kernels else "shortName"
        tables = (_KERNELS, 0, naming), (_GRAPHS, 0, "graphId"), (_COPIES, 1, "copyKind"), (_SETS, 2, "deviceId")
        graphs = kernels_alone = 0
        for table, kind, named in tables:
            where = mine_too if "globalPid" in self.tables.get(table, ()) else mine
            rows = self.select(table, f"start end deviceId streamId {named}", "correlationId globalPid", where)
            for start, end, _, stream, value, correlation, owner in rows:
                if end < start:
                    why = f"its table {table} has a row that ends ({end}) before it starts ({start})"
                    raise ConfigError(f"{why}; export it again", self.path)
                name = _name(table, value, texts)
                meeting = work.meetings[Meeting(name)] if kind == 0 and SENDS.search(name) else -1
                work.gpu.add(
                    work.names[name], work.streams[device, stream], _correlation(owner, correlation), -1, kind, meeting,
                    start * _NS, (end - start) * _NS,
                )  # fmt: skip
                work.count += 1
            if table == _GRAPHS:
                graphs = len(work.gpu) - kernels_alone
            kernels_alone = len(work.gpu) if table == _KERNELS else kernels_alone
        return work, graphs


def _name(table: str, value: int, texts: dict[int, str]) -> str:
    """Return the name of a piece of work, in Kineto's words for copies."""
    match table:
        case "CUPTI_ACTIVITY_KIND_KERNEL":
            return str(texts.get(value, value))
        case "CUPTI_ACTIVITY_KIND_MEMCPY":
            return f"Memcpy {_COPY_KINDS.get(value, value)}"
        case "CUPTI_ACTIVITY_KIND_MEMSET":
            return "Memset"
        case _:
            return f"CUDA graph {value}"


def _process(thread: int | None) -> int:
    """Return the process of a serialized thread or process of Nsight Systems: bits 24 to 47."""
    return (thread or 0) >> 24 & 0xFFFFFF


def _correlation(thread: int | None, correlation: int | None) -> int:
    """Return a number of a launch that is one of its own in all processes of the file; -1 if there is none."""
    return -1 if correlation is None else _process(thread) << 32 | correlation & 0xFFFFFFFF
