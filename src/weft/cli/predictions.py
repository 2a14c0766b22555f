"""What `weft predict` predicts, prints and writes: cases as columns, beside their predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.bounds import notes
from weft.cli.cases import Shapes
from weft.cli.tables import print_table
from weft.hardware import Gpu
from weft.predict.gemm import Clock
from weft.predict.prediction import FloatArray, Prediction
from weft.units import format_bytes, format_time

_SHOWN = 40
"""Rows that a table shows; files hold all."""
_CLOCKS = {"short": "short runs at the boost clock", "sustained": "long runs at the power limit"}
_GLYPHS = "█▓▒░"
_BAR = 20


@dataclass(frozen=True)
class Predicted:
    """Predictions for one machine: the cases as `columns`, and the `rates` that they reach, by their heads."""

    machine: str
    columns: Mapping[str, Any]
    prediction: Prediction
    rates: Mapping[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.prediction.seconds.size

    def table(self) -> dict[str, list[Any]]:
        """Every column as a list: case, time [us], bound, rates, and parts [us]."""
        count = len(self)
        times = {"time_us": 1e6 * self.prediction.seconds, "bound": self.prediction.bound_names()}
        parts = {f"{name}_us": 1e6 * part for name, part in self.prediction.parts.items()}
        columns = {**self.columns, **times, **self.rates, **parts}
        return {name: np.broadcast_to(np.ravel(column), count).tolist() for name, column in columns.items()}


def predict_gemms(gpu: Gpu, shapes: Shapes, clock: Clock) -> Predicted:
    """The GEMMs on a GPU, with the rate that they reach [TFLOP/s]."""
    from weft.predict import gemm

    dtypes = shapes["dtype"]
    seconds, bound = np.empty(dtypes.size), np.empty(dtypes.size, dtype=np.int64)
    parts: dict[str, FloatArray] = {}
    for dtype in dict.fromkeys(dtypes.tolist()):
        chosen = dtypes == dtype
        m, n, k, batch = (shapes[name][chosen] for name in ("m", "n", "k", "batch"))
        found = gemm(m, n, k, dtype, gpu, batch=batch, clock=clock)
        seconds[chosen], bound[chosen] = found.seconds, found.bound
        for name, part in found.parts.items():
            parts.setdefault(name, np.zeros(dtypes.size))[chosen] = part
    flops = 2.0 * shapes["m"] * shapes["n"] * shapes["k"] * shapes["batch"]
    columns = {"gpu": gpu.name, **shapes, "clock": clock}
    return Predicted(gpu.name, columns, Prediction(seconds, bound, parts), {"tflops": flops / seconds / 1e12})


def print_gemms(done: Sequence[Predicted]) -> None:
    """Print the GEMMs, machine beside machine."""
    rows = []
    for found in done:
        table = found.table()
        for index in range(min(len(found), _SHOWN)):
            case = {name: column[index] for name, column in table.items()}
            shape = f"{case['m']} x {case['n']} x {case['k']}" + (
                f" x {case['batch']}" if case["batch"] > 1 else ""
            )
            rate = f"{case['tflops']:.4g}"
            rows.append(
                [found.machine, shape, case["dtype"], *answer(found, index), rate, where(found, index)]
            )
    columns = ["GPU", "M x N x K", "dtype", "time", "bound", "TFLOP/s", "where the time goes"]
    title = f"GEMMs, {_CLOCKS[done[0].columns['clock']]}"
    print_table(title, columns, rows, numbers=("time", "TFLOP/s"))
    _say_more(done)


def predict_collectives(
    name: str, sizes: FloatArray, ranks: int, system: str, options: Mapping[str, Any]
) -> Predicted:
    """A collective on a system, who carries it out, and its bandwidth as nccl-tests counts it [GB/s]."""
    from weft.collectives.choice import profile_of, taken
    from weft.collectives.library import canonical
    from weft.hardware import find_system
    from weft.predict.collective import bus_factor, collective

    found, proper = find_system(system), canonical(name)
    profile = options.get("profile") or profile_of(found)
    if options.get("dma"):
        by = ["copy engines"]
    else:
        choice = {key: options[key] for key in ("algorithm", "nodes") if key in options}
        by = taken(proper, sizes, ranks, found, profile, **choice)
    prediction = collective(proper, sizes, ranks, found, **options)
    rate = sizes / prediction.seconds / 1e9
    rates = {"algbw_gbs": rate, "busbw_gbs": rate * bus_factor(proper, ranks)}
    columns = {"system": system, "collective": proper, "ranks": ranks, "bytes": sizes.astype(np.int64)}
    return Predicted(system, {**columns, "by": np.array(by)}, prediction, rates)


def print_collectives(done: Sequence[Predicted]) -> None:
    """Print the collectives, system beside system."""
    rows = []
    for found in done:
        table = found.table()
        for index in range(min(len(found), _SHOWN)):
            case = {name: column[index] for name, column in table.items()}
            rates = [f"{case['algbw_gbs']:.4g}", f"{case['busbw_gbs']:.4g}"]
            size = format_bytes(case["bytes"], digits=4)
            told = answer(found, index)
            rows.append([found.machine, size, case["by"], *told, *rates, where(found, index)])
    columns = ["system", "size", "by", "time", "bound", "algbw GB/s", "busbw GB/s", "where the time goes"]
    print_table(
        _collective_title(done[0]), columns, rows, numbers=("size", "time", "algbw GB/s", "busbw GB/s")
    )
    _say_more(done)


def write_collective_report(done: Sequence[Predicted], folder: Path) -> Path:
    """Write the page of the collectives to a folder and return its path."""
    from weft.report.collective import collective_report
    from weft.report.plots.collectives import Curve

    curves = [
        Curve(
            found.machine,
            found.columns["bytes"].astype(np.float64),
            found.prediction,
            1e9 * found.rates["busbw_gbs"],
            found.table()["by"],
        )
        for found in done
    ]
    return collective_report(_collective_title(done[0]), curves, folder)


def _collective_title(found: Predicted) -> str:
    return f"{found.columns['collective']} over {found.columns['ranks']} GPUs"


def predict_operator(name: str, gpu: Gpu, dtype: str, clock: Clock, sizes: Mapping[str, int]) -> Predicted:
    """An operator on a GPU, with its least traffic in its time [GB/s], and what it computes if it multiplies."""
    from weft.predict.operators import least_bytes, matrix_flops, operator

    shape: dict[str, Any] = {key: np.array([size]) for key, size in sizes.items()}
    found = operator(name, gpu, dtype=dtype, clock=clock, **shape)
    rates = {"gbs": least_bytes(name, dtype, **shape) / found.seconds / 1e9}
    if (flops := matrix_flops(name, **shape)) is not None:
        rates["tflops"] = flops / found.seconds / 1e12
    columns = {"gpu": gpu.name, "operator": name, "dtype": dtype, **sizes, "clock": clock}
    return Predicted(gpu.name, columns, found, rates)


def print_operators(done: Sequence[Predicted]) -> None:
    """Print an operator on each GPU."""
    heads = {"gbs": "GB/s", "tflops": "TFLOP/s"}
    rates = [heads[name] for name in done[0].rates]
    rows = [
        [
            found.machine,
            *answer(found, 0),
            *(f"{rate[0]:.4g}" for rate in found.rates.values()),
            where(found, 0),
        ]
        for found in done
    ]
    case = done[0].columns
    shape = ", ".join(f"{key} {value}" for key, value in case.items() if isinstance(value, int))
    columns = ["GPU", "time", "bound", *rates, "where the time goes"]
    print_table(f"{case['operator']}, {shape}, {case['dtype']}", columns, rows, numbers=("time", *rates))
    _say_more(done)


def where(found: Predicted, index: int) -> str:
    """Where the time of a case goes: a bar of its largest parts, then their shares in words."""
    total = float(np.ravel(found.prediction.seconds)[index])
    parts = {name: float(np.ravel(part)[index]) / total for name, part in found.prediction.parts.items()}
    largest = sorted(parts.items(), key=lambda item: -item[1])[: len(_GLYPHS)]
    shown = [(name, share) for name, share in largest if share >= 0.005]
    bar = "".join(glyph * round(_BAR * share) for glyph, (_, share) in zip(_GLYPHS, shown, strict=False))
    words = ", ".join(f"{name} {share:.0%}" for name, share in shown)
    return f"{bar[:_BAR]:<{_BAR}} {words}"


def answer(found: Predicted, index: int) -> list[str]:
    """Time and bound of a case in words."""
    seconds = float(np.ravel(found.prediction.seconds)[index])
    return [format_time(seconds, digits=4), str(np.ravel(found.prediction.bound_names())[index])]


def _say_more(done: Sequence[Predicted]) -> None:
    """What the table does not show: rows that only files hold, and what a bound beside the bar means."""
    import click

    shown = [(found.prediction, index) for found in done for index in range(min(len(found), _SHOWN))]
    for line in notes(shown):
        click.echo(line)
    hidden = sum(max(len(found) - _SHOWN, 0) for found in done)
    if hidden:
        click.echo(
            f"{hidden} more {'row' if hidden == 1 else 'rows'}; --json FILE or --csv FILE writes them all"
        )


def rows(done: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Every case as an object, parts [us] beside its time."""
    tables = [found.table() for found in done]
    return [
        dict(zip(table, values, strict=True))
        for table in tables
        for values in zip(*table.values(), strict=True)
    ]
