"""Run every combination of a question's values: on processes here, on a Dask cluster, or one shard of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from weft import __version__
from weft.core.errors import InputError, check_name, check_type, check_whole, join_or
from weft.core.files import check_out_dir, check_writable
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.core.store.fingerprint import fingerprint_of
from weft.sweep import matrix as tasks
from weft.sweep.answer import Sweep, Temporary, Version, parts_of, row_of
from weft.sweep.cluster import DaskCluster
from weft.sweep.code import is_shared
from weft.sweep.dispatch import WorkerPool
from weft.sweep.matrix import Combination, Matrix, matrix_of, several
from weft.sweep.pool import Processes
from weft.sweep.rows import SUFFIXES, Columns, check_format
from weft.sweep.shards import Manifest, begin
from weft.sweep.tasks import Progress, run_tasks

By = Literal["simulate", "estimate"]
"""How a sweep computes times: by the engine, or in closed form."""
_CHUNK = 4096
"""Runs whose questions are in memory at once."""


def sweep(
    work: Any,
    system: Any,
    overlap: Any = None,
    *,
    tp: Any = None,
    dtype: Any = None,
    by: By = "simulate",
    options: RunOptions | None = None,
    jobs: int = 1,
    cache: bool = True,
    progress: Progress | None = None,
    **values: Any,
) -> Sweep:
    """Time every combination of works, systems, overlaps and values of the systems.

    Each argument is one value or a list; other arguments are values of the systems by their paths, such as
    `**{"link.bandwidth": ["150 GB/s", "300 GB/s"]}`. `by` "estimate" uses closed forms instead of the engine, also for
    operators, and takes no overlap. Simulations run on `jobs` processes and are cached on disk (`cache`), so that an
    interrupted sweep resumes where it stopped. A combination that does not work is a point with the reason `why`.

    Raises InputError for an empty list and if no combination works, UnknownNameError for unknown names, ConfigError for
    values that the systems cannot take.
    """
    check_name("way to find times", by, get_args(By))
    if by == "estimate":
        check_type("the overlap of a closed form", overlap, type(None), "leave it out: closed forms have none")
    if options is not None:
        check_type("the options", options, RunOptions, "give weft.RunOptions(...)")
    optional = {name: value for name, value in (("tp", tp), ("dtype", dtype)) if value is not None}
    last = {} if overlap is None else {"overlap": overlap}
    asked = {"work": work, "system": system, **optional, **values, **last}
    axes = {name: several(name, [value] if isinstance(value, str) else value) for name, value in asked.items()}
    data: dict[str, Any] = {"run": by} | ({} if options is None else {"options": options})
    for name in [name for name, each in axes.items() if len(each) == 1]:
        table, (value,) = (data.setdefault("set", {}) if name in values else data), axes.pop(name)
        table[name] = value
    answer = sweep_file(data, axes, jobs=jobs, cache=cache, progress=progress)
    if not any(not point.why for point in answer):
        raise InputError(next(iter(answer.summary.reasons)))
    return answer


def sweep_file(
    asked: str | Path | Mapping[str, Any],
    vary: Mapping[str, Any] | None = None,
    *,
    jobs: int = 1,
    dask: str | None = None,
    shard: tuple[int, int] = (1, 1),
    out: str | Path | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> Sweep:
    """Run a question under every combination of the values that `vary`, and answer with a point for each.

    `asked` is a TOML file, or its values: `run` ("step", "memory", "serve", "simulate" or "estimate") and the arguments
    of that function. `vary` has a list for each key, field of a plan or path of the system, such as {"tp": [1, 2],
    "link.bandwidth": ["300 GB/s", "450 GB/s"]}, and adds to the file's table [vary]. A combination that does not work
    is a row with the reason.

    Runs are made by `jobs` processes, or by the workers of the Dask scheduler at the address `dask`. `shard` (i, n)
    runs the i-th of n parts. Each record is kept as soon as it is made: in the folder `out`, else in the user's cache
    (`cache`). If `out` ends in .csv, .parquet, .json or .html, the table or a page is written there.

    Raises ConfigError for unknown keys, UnknownNameError for unknown names, InputError for a scheduler that does not
    answer, workers with other sources of Weft and a folder of another sweep, OutputError for a path that cannot be
    written, SimulationError for a run that ends process after process.
    """
    check_whole("jobs", jobs, 1, 2)
    index, shards = _check_shard(shard)
    matrix, (table, folder) = matrix_of(asked, vary), _places(out)
    if shards > 1 and folder is None:
        raise InputError(
            f"shard {index}/{shards} needs a folder for its records; name one as out, and merge the folders"
        )
    version = Version(__version__, fingerprint_of(Path(tasks.__file__)))
    kept = None if cache or folder else Temporary()
    with ExitStack() as running:
        workers: WorkerPool | None = None
        if dask is not None:
            workers = running.enter_context(DaskCluster(dask))  # before anything is written
        elif jobs > 1 and is_shared():
            workers = running.enter_context(Processes(min(jobs, max(len(matrix), 2))))
        store = (
            begin(folder, Manifest(matrix, version, (index, shards)))
            if folder
            else Store(kept.folder if kept else None)
        )
        check_out_dir(store.folder)
        columns = _run(matrix, version, (index, shards), store, workers, progress)
    if not store.keeps:
        raise InputError(
            f"runs could not be kept in '{store.folder}': {store.given_up}; sweep again, or name another folder as out"
        )
    answer = Sweep(matrix, store, version, columns, (index, shards), kept)
    if table is not None:
        answer.save(table)
    return answer


def _check_shard(shard: tuple[int, int]) -> tuple[int, int]:
    index, shards = shard
    check_whole("the number of shards", shards, 1, 16)
    check_whole("the shard", index, 1, 3)
    if index > shards:
        raise InputError(f"shard {index}/{shards} is none of {shards}; number them from 1 to {shards}")
    return index, shards


def _places(out: str | Path | None) -> tuple[Path | None, Path | None]:
    """Return the file or the folder that `out` names, checked; None for what it does not."""
    if out is None:
        return None, None
    path = Path(out)
    if path.suffix.lower() in SUFFIXES:
        check_format(path)
        return check_writable(path), None
    if path.suffix and not path.is_dir():
        raise InputError(f"'{path}' is no table, page or folder; end it in {join_or(SUFFIXES)}, or name a folder")
    return None, check_out_dir(path)


def _run(
    matrix: Matrix,
    version: Version,
    shard: tuple[int, int],
    store: Store,
    workers: WorkerPool | None,
    progress: Progress | None,
) -> Columns:
    """Run every combination of a shard that is not in the store, and return the columns of all."""
    columns, done = Columns(), 0
    cases = (case for case, _ in parts_of(matrix, version, shard))
    whole = len(matrix) if shard[1] == 1 else sum(1 for _ in parts_of(matrix, version, shard))
    for chunk in _chunks(cases):
        told = None if progress is None else _shift_progress(progress, done, whole)
        for case, record in run_tasks(chunk, 1, told, store, workers):
            columns.see(case.number, row_of(case, record, version))
        done += len(chunk)
    return columns


def _chunks(cases: Iterator[Combination]) -> Iterator[list[Combination]]:
    while chunk := list(islice(cases, _CHUNK)):
        yield chunk


def _shift_progress(progress: Progress, before: int, whole: int) -> Progress:
    """Progress of a chunk as that of the whole sweep."""
    return lambda done, _, what: progress(before + done, whole, what)
