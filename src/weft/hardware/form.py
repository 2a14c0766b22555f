"""Describe a GPU by its data sheet: the form to fill in, and what its file inherits from the GPU that it extends.

An inherited value is left out where it no longer fits the values that the file states.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import isclose

from weft.core.catalog import Leaf, PeakRate, Provenance
from weft.core.units import Dimension, format
from weft.hardware.gpus import Gpu, per_clock

_ASKED = {
    "compute.compute_units": "SMs of NVIDIA, CUs of AMD",
    "compute.clock": "highest boost clock",
    "clocks.matrix_peak": "clock of the peaks below; often the boost clock",
    "memory.capacity": "GB is 10^9 bytes, GiB 2^30",
    "memory.bandwidth": "",
    "memory.channels": "32 for each stack of HBM2 to HBM3E, 64 of HBM4",
    "cache.capacity": "last-level cache of the compute units (L2)",
    "link.bandwidth": "all links of the GPU together, in one direction",
    "link.links": "0 without links of its own",
    "host.bandwidth": "PCIe or NVLink-C2C, in one direction",
}
"""What a data sheet says, by its path, and what to know of it."""


def form(like: Gpu) -> str:
    """The text of a TOML file that describes the GPU `like`, as its data sheet states it, to be changed into another.

    Read back unchanged, it gives the values of `like`; all that it leaves out is taken from `like`.
    """
    return "\n".join(_lines(like)) + "\n"


def _lines(like: Gpu) -> Iterator[str]:
    yield f"# A GPU like {like.name}. Replace what its data sheet states otherwise; drop the lines that stay the same."
    yield f"# What is not here is taken from {like.name}: 'weft hardware show FILE --all' lists it."
    yield f'extends = "{like.name}"'
    yield 'title = "My GPU"'
    yield f'description = "Like {like.name}, with ..."'
    yield f'architecture = "{like.architecture}"'
    yield 'source = "name and date of the data sheet"'
    table = ""
    for path, what in _ASKED.items():
        if path.partition(".")[0] != table:
            if table == "clocks":
                yield from _rate_lines(like)
            table = path.partition(".")[0]
            yield f"\n[{table}]"
        value = like.text(path)
        written = value if path in _COUNTED else f'"{value}"'
        yield f"{path.partition('.')[2]} = {written}" + (f"  # {what}" if what else "")
        if path == "clocks.matrix_peak":
            yield f'# sustained = "{like.text("clocks.sustained")}"  # in long runs; on no data sheet'


_COUNTED = ("compute.compute_units", "memory.channels", "link.links")


def _rate_lines(like: Gpu) -> Iterator[str]:
    yield "\n[rates]  # dense peaks of the whole GPU, without sparsity; 0 for what it does not multiply"
    for name, rate in like.rates:
        peak = like.compute.compute_units * rate * like.peak_clock(name) / 1e12
        yield f'{name} = "{peak:.6g} TFLOP/s"' if rate else f"{name} = 0"


NOT_STATED = "not stated"
"""How the source of a value begins that was derived because a file does not state it."""
_MATRIX = ("bf16", "fp16", "fp8", "tf32", "int8", "fp4")
"""Data types of matrix units, those first that others are derived from."""
_HELD = ("clocks.sustained", "clocks.sustained_fp8", "clocks.sustained_fp16", "clocks.sustained_fp32")
_THROTTLING = 0.4
"""The power of the power limit that the clock follows: dynamic power grows with the clock times the voltage squared."""


def refit(leaves: Mapping[str, Leaf], base: Mapping[str, Leaf], stated: Collection[str]) -> dict[str, Leaf]:
    """Return the values of a file with those of `base`, the known GPU it extends, that no longer fit, derived anew.

    Rates that the file does not state keep their ratio to one that it states. Clocks of long runs keep their share of
    the peak clock; with fewer matrix operations per clock than the base they rise towards it, within the same power.
    """
    found = dict(leaves)
    rates = _rates(leaves, base, stated)
    found |= {path: _leaf(value, Dimension.COUNT, "derived", why) for path, (value, why) in rates.items()}
    more = _operations(found) / _operations(base) if _operations(base) else 1.0
    clocks = ("compute.clock", "clocks.matrix_peak")
    same = isclose(more, 1.0) and all(isclose(found[path].value, base[path].value) for path in clocks)
    return found if same else found | _clocks(found, base, stated, more)


def _rates(leaves: Mapping[str, Leaf], base: Mapping[str, Leaf], stated: Collection[str]) -> dict[str, tuple[int, str]]:
    """Whole operations per clock of the matrix formats that a file does not state, with the reason."""
    known = [name for name in _MATRIX if f"rates.{name}" in stated and _rate(leaves, name) and _rate(base, name)]
    if not known:
        return {}
    ratio = _rate(leaves, known[0]) / _rate(base, known[0])
    left = [name for name in _MATRIX if f"rates.{name}" not in stated and _rate(base, name)]
    if isclose(ratio, 1.0):
        return {}
    why = f"{NOT_STATED}: keeps its ratio to {known[0]} on the GPU that the file extends"
    return {f"rates.{name}": (round(ratio * _rate(base, name)), why) for name in left}


def _rate(leaves: Mapping[str, Leaf], dtype: str) -> float:
    """Operations per clock and unit of a format, whose file may state the peak of the whole GPU."""
    value = leaves[f"rates.{dtype}"].value if f"rates.{dtype}" in leaves else 0
    if isinstance(value, PeakRate):
        return per_clock(value / (leaves["compute.compute_units"].value * leaves["clocks.matrix_peak"].value))
    return float(value)


def _operations(leaves: Mapping[str, Leaf]) -> float:
    """Operations of all matrix units per clock, of the first format that the GPU multiplies."""
    return next(
        (leaves["compute.compute_units"].value * rate for name in _MATRIX if (rate := _rate(leaves, name))), 0.0
    )


def _clocks(
    leaves: Mapping[str, Leaf], base: Mapping[str, Leaf], stated: Collection[str], more: float
) -> dict[str, Leaf]:
    """Clocks of long runs that a file does not state, by its own peak clock and its operations per clock."""
    peak, top = leaves["clocks.matrix_peak"].value, leaves["compute.clock"].value
    found = {}
    for path in _HELD:
        if path in stated or not base[path].value:
            continue
        share = base[path].value / base["clocks.matrix_peak"].value
        held = min(top, peak * max(share, min(1.0, share * more**-_THROTTLING)))
        why = f"{NOT_STATED}: {share:.0%} of the peak clock, as the GPU that the file extends"
        if held > peak * share:
            why += f", which has {1 / more:.3g} times the matrix operations per clock at the same power"
        found[path] = _leaf(held, Dimension.HERTZ, "assumed", why, (min(held, peak * share), top))
    return found


def _leaf(value: float, dimension: Dimension, kind: str, source: str, ends: tuple[float, float] | None = None) -> Leaf:
    low, high = (format(end, dimension) for end in ends) if ends else (None, None)
    origin = Provenance(text=format(value, dimension), kind=kind, source=source, low=low, high=high)
    return Leaf(value, origin, ends or (value, value))
