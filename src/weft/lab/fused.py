"""GEMMs with the collective of their output or input, fused and separate, as measured in 2026 on AMD and NVIDIA.

MORI's rows (8 and 4 MI355X) are replays of one graph: no framework's costs. They state the GEMM alone by a kernel of
their own, slower than the library's; each time is compared as predicted from the shape, and with that GEMM's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError, join_or
from weft.graph import Gemm
from weft.graph.collective import PairForm
from weft.lab.checks import Unfit, check_multiplies, unfit_rows
from weft.lab.kinds import RowKind
from weft.lab.problems import Problem
from weft.lab.subjects import Predicted
from weft.lab.tables import Measurements
from weft.overlaps import OVERLAPS, SEQUENTIAL
from weft.overlaps.mori import Mori
from weft.plan.tune.fuse import advise_fuse

FORMS: Mapping[str, PairForm] = {
    "gemm_allgather": "gemm_ag",
    "gemm_allreduce": "gemm_ar",
    "gemm_alltoall": "gemm_a2a",
    "gemm_rs": "gemm_rs",
    "ag_gemm": "ag_gemm",
}
"""The form of each operation of the rows."""
TIME, GIVEN = "time", "time, GEMM as measured"
_SEPARATE = "separate"
_OWN = "gemm-only"
_ASYNC = ("async tp", "symm_mem")
_TMA = ("mkernel", "thunderkittens", "cute")
_FUSED = (*_TMA, "triton")


class Way(NamedTuple):
    """How a row runs both: the overlap method, and its parameters that the row states."""

    method: str
    chunks: int | None = None
    one_thread: bool = False


def way_of(mode: str, op: str, chunks: float = np.nan) -> Way | None:
    """Return how a row of a mode runs the two of an operation; None for a way without a model.

    Unmodelled are pushes and pulls by compute units on their own, and gathers of narrower data.
    """
    name = mode.removesuffix(", bf16 wire")
    count = int(chunks) if np.isfinite(chunks) else None
    match name:
        case "split-rccl" | "model as shipped: gemm + nccl":
            return Way(SEQUENTIAL)
        case "split-sdma":
            return Way("mori-split")
        case "fused-lsa":
            return Way("flux")
        case "fused-sdma" | "fused-sdma lanes" | "fused-sdma phases":
            return Way("mori", count)
        case "fused-sdma serial":
            return Way("mori", count, one_thread=True)
    lower = name.lower()
    if any(word in lower for word in _ASYNC):
        return Way("async-tp")
    if op == "gemm_rs" and any(word in lower for word in _TMA):
        return Way("tma")
    return Way("flux") if any(word in lower for word in _FUSED) else None


def _check(line: int, row: Mapping[str, Any]) -> None:
    """Raise Unfit for an operation, a machine or a way to run both without a model."""
    if row["op"] not in FORMS:
        raise Unfit("op", str(row["op"]), f"this is no GEMM with a collective; rows may have {join_or([*FORMS])}")
    if not np.isfinite(row["ranks"]):
        raise Unfit("ranks", "", "the number of GPUs is needed to predict this row")
    if way_of(row["mode"], row["op"], row["chunks"]) is None:
        raise Unfit("mode", str(row["mode"]), "Weft has no model of this way to run both")
    if not np.isfinite(row["total_us"]):
        raise Unfit("total_us", "", "the time of both is needed")
    try:
        system = hardware.system(row["system"], gpus=int(row["ranks"]))
        check_multiplies(system.gpu, row["gemm_dtype"].rstrip("?"))
    except InputError as error:
        raise Unfit("system", str(row["system"]), str(error)) from None


def _expanded(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the time of each row, the time with the GEMM alone as measured, and the times of separate kernels."""
    rows = checked.rows
    yield "fused", rows.assign(quantity=TIME, gemm_s=np.nan, measured=rows["total_us"] * 1e-6)
    known = rows[np.isfinite(rows["alone_us"])]
    if len(known):
        yield "fused", known.assign(quantity=GIVEN, gemm_s=known["alone_us"] * 1e-6, measured=known["total_us"] * 1e-6)
    separate = rows[np.isfinite(rows["separate_us"])].drop_duplicates(["system", "op", "m", "n", "k"])
    if len(separate):
        yield (
            "fused",
            separate.assign(quantity=TIME, gemm_s=np.nan, mode=_SEPARATE, measured=separate["separate_us"] * 1e-6),
        )


def _with_gemms(checked: Measurements) -> Iterator[Problem]:
    """Add to each row the GEMM's time alone, taken from the rows that time only the GEMM, and drop those rows."""
    rows = checked.rows
    case, is_alone = ["system", "op", "m", "n", "k", "gemm_dtype", "quant"], rows["mode"].str.startswith(_OWN)
    own = rows[is_alone].groupby(case, dropna=False)["total_us"].median()
    keys = pd.MultiIndex.from_frame(rows[case])
    rule = "this row times the GEMM alone, and stands for it in the rows of its shape; it has no collective to predict"
    problems = [*checked.problem(is_alone, rule, "mode")]
    checked.rows = rows.assign(alone_us=own.reindex(keys).to_numpy())[~is_alone]
    return iter(problems)


def _whole(form: PairForm, m: int, n: int, k: int, ranks: int, shape: str) -> tuple[int, int, int]:
    """Return the shape of all GPUs' GEMM; rows give one GPU's, unless they say "global"."""
    if shape == "global":
        return m, n, k
    if "per-rank rows" in shape:
        m *= ranks
    if form in ("ag_gemm", "gemm_ag"):
        return m, n * ranks, k
    return (m * ranks, n, k) if form == "gemm_a2a" else (m, n, k * ranks)


@lru_cache(maxsize=512)
def _seconds(
    system: str, ranks: float, op: str, dtype: str, m: float, n: float, k: float, shape: str, mode: str, chunks: float,
    framework: bool, gemm_s: float | None,
) -> float:  # fmt: skip
    """Return the time of a row's pair by `advise_fuse` [s]."""
    form, count = FORMS[op], int(ranks)
    way = Way(SEQUENTIAL) if mode == _SEPARATE else cast(Way, way_of(mode, op, chunks))
    gemm = Gemm(*_whole(form, int(m), int(n), int(k), count, shape), dtype.rstrip("?"))
    method = OVERLAPS[way.method]
    if isinstance(method, Mori):
        method = replace(method, chunks=way.chunks, one_thread=way.one_thread)
    methods = None if way.method == SEQUENTIAL else [way.method]
    on = hardware.system(system, gpus=count)
    with OVERLAPS.using(method):
        found = advise_fuse(
            form, gemm, count, on, methods=methods, fidelity="estimate", gemm_time=gemm_s, framework=framework
        )
    return found.option(way.method).seconds


def _query(row: Mapping[str, Any], machine: Any) -> tuple[Any, ...]:
    chunks = float(row["chunks"]) if np.isfinite(row["chunks"]) else float("nan")
    gemm_s = float(row["gemm_s"]) if np.isfinite(row["gemm_s"]) else None
    framework = "kraken" in row["source"]
    return (
        *(row[name] for name in ("system", "ranks", "op", "gemm_dtype", "m", "n", "k", "shape_kind", "mode")),
        chunks, framework, gemm_s,
    )  # fmt: skip


def right_signs(predictions: Sequence[Predicted]) -> tuple[int, int]:
    """Return of how many fused rows Weft says correctly whether they are faster than a separate row, and of how many.

    Every fused row is compared with each way to run its case serially: by the library and by copy engines. Rows with
    the GEMM alone as measured count where there are some, else those predicted from the shape.
    """
    rows = fused_gains(predictions)
    return int(((rows["predicted"] > 1) == (rows["measured"] > 1)).sum()), len(rows)


def fused_gains(predictions: Sequence[Predicted]) -> pd.DataFrame:
    """Return fused rows, each with every way to run its case serially: the speedup, predicted and measured."""
    parts = [part for part in predictions if part.subject.kind == "fused"]
    if not parts:
        return pd.DataFrame({name: [] for name in ("predicted", "measured", "method", "system")})
    case = ["system", "op", "m", "n", "k", "gemm_dtype", "quant"]
    frames = []
    for part in parts:
        rows, frame = part.subject.rows, part.frame()
        shapes = {name: rows[name].to_numpy() for name in case if name not in frame}
        frames.append(frame.assign(**shapes, row=[f"{part.subject.file}:{line}" for line in rows.index]))
    every = pd.concat(frames)
    given = every["row"].isin(every["row"][every["quantity"] == GIVEN])
    every = every[~given | (every["quantity"] == GIVEN)]
    serial = every["method"].isin([SEQUENTIAL, "mori-split", _SEPARATE])
    before = every[serial].groupby([*case, "method"], dropna=False)[["predicted", "measured"]].median()
    both = every[~serial].merge(before.reset_index(), on=case, suffixes=("", "_before"))
    return both.assign(**{name: both[f"{name}_before"] / both[name] for name in ("predicted", "measured")})


FUSED = RowKind(
    kind="fused",
    query=_query,
    call=lambda rows, machine, *cells: _seconds(*cells),
    checks=lambda checked: [_with_gemms(checked), unfit_rows(checked, _check)],
    expand=_expanded,
    column="",
    labels=lambda rows, machine, _: rows[["system", "op", "quantity"]].assign(
        method=[
            _SEPARATE if mode == _SEPARATE else cast(Way, way_of(mode, op)).method
            for mode, op in zip(rows["mode"], rows["op"], strict=True)
        ]
    ),
    blamed="mode",
)
"""GEMMs with a collective, fused and separate, by the method that runs both."""
