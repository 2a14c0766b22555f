"""`weft simulate --beside`: a GEMM loop and an independent loop of collectives on the same GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import comma_list, parse_split, together, whole_numbers
from weft.errors import InputError, join_or

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.result.concurrent import Concurrency, Strategies

ALL = "all"
"""What --overlap takes for every strategy side by side."""


beside_options = together(
    click.option(
        "--beside",
        metavar="COLLECTIVE:SIZE",
        help="Run --gemm in a loop beside a loop of this collective, which does not depend on it, like "
        "all_reduce:256MiB; SIZE is that of the whole buffer.",
    ),
    click.option("--ranks", type=int, default=8, show_default=True, metavar="N", help="GPUs of --beside."),
    click.option(
        "--loops",
        callback=whole_numbers,
        metavar="G[,C]",
        help="GEMMs and collectives of --beside.  [default: 4, and as many collectives as last as long]",
    ),
    click.option(
        "--split",
        metavar="GEMM-COLL",
        help="Compute units of the GEMM and those set apart, for the partitioned overlaps of --beside, like "
        "272-32.  [default: as many as the collective can use, or 8 beside DMA engines]",
    ),
    click.option(
        "--copies",
        callback=comma_list,
        metavar="A,B=N",
        help="How DMA engines copy where they move the data of --beside: prelaunched, broadcast (all_gather), "
        "swap (all_to_all), engines=N, engines_per_peer=N, threads=N.",
    ),
    click.option(
        "--first",
        type=click.Choice(["collective", "gemm"]),
        help="Which loop of --beside the host launches first.  [default: the collective where it has priority, "
        "else the GEMM]",
    ),
)
"""--beside and what goes with it."""


def simulate_beside(
    gemm: tuple[int, ...] | None,
    dtype: str,
    text: str,
    gpu: Gpu,
    loops: tuple[int, ...] | None,
    strategy: str,
    split: str | None,
    options: dict[str, Any],
) -> Concurrency | Strategies:
    """Simulate what the options of --beside say; InputError for what they leave open or cannot mean."""
    from weft.simulation import beside, beside_all
    from weft.workload import Gemm

    if gemm is None:
        raise InputError("--beside needs the GEMM of one GPU: give --gemm M,N,K, like 8192,8192,8192")
    if len(gemm) != 3:
        raise InputError(f"--gemm has {len(gemm)} dimensions; write M,N,K, like 8192,8192,8192")
    _check_counts(loops, options["ranks"])
    name, bytes_ = parse_collective(text)
    counts: dict[str, Any] = dict(zip(("gemms", "collectives"), loops or (), strict=False))
    units = None if split is None else parse_split(split, gpu)
    shape = Gemm(*gemm, dtype)
    if strategy == ALL:
        return beside_all(shape, name, bytes_, gpu, units=units, **counts, **options)
    return beside(shape, name, bytes_, gpu, strategy=strategy, units=units, **counts, **options)


def _check_counts(loops: tuple[int, ...] | None, ranks: int) -> None:
    if ranks < 2:
        raise InputError(f"--ranks is {ranks}; a collective needs at least 2 GPUs, like --ranks 8")
    if loops is None:
        return
    if len(loops) > 2:
        raise InputError(f"--loops has {len(loops)} numbers; write GEMMs,collectives, like 8,20")
    if min(loops) < 1:
        raise InputError(f"--loops has {min(loops)} in it; each loop runs at least once, like --loops 8,20")


def parse_copies(parts: tuple[str, ...]) -> dict[str, int | bool]:
    """The options of DMA engines in ("prelaunched", "engines=2"); InputError for a number too many or too few."""
    return dict(map(_copy_option, parts))


def _copy_option(text: str) -> tuple[str, int | bool]:
    name, equals, number = (part.strip() for part in text.partition("="))
    counted = name in ("engines", "engines_per_peer", "threads")
    if counted and not number.isdecimal():
        raise InputError(f"--copies {name} needs a whole number; write it like {name}=2")
    if equals and not counted:
        raise InputError(f"--copies {text}: only engines, engines_per_peer and threads take a number")
    return name, int(number) if counted else True


def check_strategy(name: str, split: str | None) -> str:
    """The name of a strategy, or "all"; InputError for an overlap of a sub-layer, or a split that it has no use for."""
    from weft.overlap import OVERLAPS, STRATEGIES, find_strategy

    if name == ALL:
        return name
    if name in OVERLAPS:
        raise InputError(
            f"overlap '{name}' joins a GEMM with the collective of its own output, but those of --beside do not depend "
            f"on each other; choose {join_or((*STRATEGIES, ALL))}"
        )
    chosen = find_strategy(name)
    if split is not None and not chosen.partition:
        parting = [strategy.name for strategy in STRATEGIES.values() if strategy.partition]
        raise InputError(
            f"--split {split} needs an overlap that sets compute units apart: {join_or(parting)}"
        )
    return chosen.name


def refuse_strategy(name: str, split: str | None, copies: tuple[str, ...] | None) -> None:
    """Raise InputError for a strategy, a split or copies where nothing independent is to run beside the GEMM."""
    from weft.overlap import STRATEGIES

    if name in (*STRATEGIES, ALL):
        raise InputError(
            f"overlap '{name}' shares a GPU between kernels that do not depend on each other, but those of a sub-layer "
            f"do; give --gemm M,N,K --beside all_gather:896MiB --overlap {name}"
        )
    if split is not None:
        raise InputError(
            f"--split {split} shares compute units with --beside, which is missing; add it or leave it out"
        )
    if copies is not None:
        raise InputError(
            "--copies says how to move the data of --beside, which is missing; add it or leave it out"
        )


def parse_collective(text: str) -> tuple[str, int]:
    """The name and the size [bytes] in "all_reduce:256MiB"; InputError if either is missing, or nothing is moved."""
    from weft import units

    name, colon, size = text.partition(":")
    if not (name and colon and size):
        raise InputError(f"'{text}' is no collective with its size; write it like all_reduce:256MiB")
    bytes_ = int(units.parse(size, units.Dimension.BYTES))
    if bytes_ < 1:
        raise InputError(f"'{text}' moves nothing; give a size above zero, like {name.strip()}:256MiB")
    return name.strip(), bytes_
