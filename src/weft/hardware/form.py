"""The form that describes a GPU by its data sheet: a TOML file that extends a known GPU, with the values to replace."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hardware.gpus import Gpu

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
                yield from _rates(like)
            table = path.partition(".")[0]
            yield f"\n[{table}]"
        value = like.text(path)
        written = value if path in _COUNTED else f'"{value}"'
        yield f"{path.partition('.')[2]} = {written}" + (f"  # {what}" if what else "")
        if path == "clocks.matrix_peak":
            yield f'# sustained = "{like.text("clocks.sustained")}"  # in long runs; on no data sheet'


_COUNTED = ("compute.compute_units", "memory.channels", "link.links")


def _rates(like: Gpu) -> Iterator[str]:
    yield "\n[rates]  # dense peaks of the whole GPU, without sparsity; 0 for what it does not multiply"
    for name, per_clock in like.rates:
        peak = like.compute.compute_units * per_clock * like.peak_clock(name) / 1e12
        yield f'{name} = "{peak:.6g} TFLOP/s"' if per_clock else f"{name} = 0"
