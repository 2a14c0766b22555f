"""Tensor parallelism: every GPU computes a part of a GEMM, and a collective combines the parts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from weft.core.errors import InputError, check_name, check_type, check_whole, show_value
from weft.graph import Collective, Gemm, Graph, Node
from weft.graph.collective import PairForm
from weft.models import SubLayer, Transformer
from weft.models import sublayer as unsplit


def split(sublayer: SubLayer, tp: int) -> Graph:
    """Return the share of each of `tp` GPUs: a GEMM with K / tp, and the all-reduce of its output.

    InputError unless tp is at least 2 and divides N (which is H) and K.
    """
    gemm = sublayer.gemm
    if not _fits(tp, math.gcd(gemm.n, gemm.k)):
        raise InputError(_tp_problem(sublayer, tp))
    labels = {"model": sublayer.model, "sublayer": sublayer.name, "title": sublayer.title}
    title = f"{' '.join(dict.fromkeys((sublayer.model, sublayer.name)))}, TP {tp}"
    return replace(dependent("gemm_ar", replace(gemm, k=gemm.k // tp), tp), title=title, labels=labels)


_BEHIND = {"gemm_rs": "reduce_scatter", "gemm_ar": "all_reduce", "gemm_ag": "all_gather", "gemm_a2a": "all_to_all"}
"""The collective of a GEMM's output, by the form."""


def dependent(form: PairForm, gemm: Gemm, ranks: int) -> Graph:
    """Return one GPU's part of a GEMM over `ranks` GPUs, and the collective before or after it.

    "gemm_ag" gathers the outputs of all GPUs on each; "gemm_a2a" sends each GPU a share of every output. Closed forms
    time both, the engine does not.

    >>> [node.id for node in dependent("ag_gemm", Gemm(4096, 512, 4096), ranks=8)]
    ['all_gather', 'gemm']
    """
    check_name("form of a dependent collective", form, get_args(PairForm))
    check_type("the GEMM", gemm, Gemm, "give one, like weft.gemm(4096, 512, 4096)")
    check_whole("ranks", ranks, 2, 8)
    if form == "ag_gemm":
        gathered = Collective("all_gather", gemm.m * gemm.k * gemm.element_bytes, ranks, gemm.dtype)
        nodes = (Node(gathered, "all_gather"), Node(gemm, "gemm", after=("all_gather",)))
    else:
        name = _BEHIND[form]
        size = gemm.output_bytes * (ranks if form == "gemm_ag" else 1)
        moved = Collective(name, size, ranks, gemm.output_dtype)
        nodes = (Node(gemm, "gemm"), Node(moved, name, after=("gemm",)))
    return Graph(nodes, ranks, f"GEMM {gemm} with its {nodes[0].name if form == 'ag_gemm' else nodes[1].name}")


_CUT = {"ag_gemm": "n", "gemm_rs": "k", "gemm_ar": "k", "gemm_ag": "n", "gemm_a2a": "m"}
"""The dimension of the whole GEMM that the GPUs share, by the form."""


def share_of(form: PairForm, whole: Gemm, ranks: int) -> Gemm:
    """Return one GPU's part of a GEMM: its columns around an all-gather, its part of K before a reduction, or its rows.

    InputError for dimensions that `ranks` does not divide.
    """
    cut = _CUT[form]
    for name in dict.fromkeys((cut, "m")):
        size = getattr(whole, name)
        if size % ranks:
            raise InputError(
                f"{name.upper()} is {size}, which {ranks} GPUs cannot share evenly; choose a multiple of {ranks}"
            )
    return replace(whole, **{cut: getattr(whole, cut) // ranks})


def sublayer(
    model: Transformer | str | Path, name: str | None = None, tp: int | None = None, dtype: str | None = None
) -> Graph:
    """Return a GPU's share of a model's sub-layer, as a graph of its GEMM and the all-reduce of its output.

    If no name is given, `model` contains it after a slash, as in "t-nlg/fc2". Without a `dtype` it is in the number
    format of the model.

    Raises UnknownNameError for an unknown model, sub-layer or dtype, InputError for a degree that does not fit.

    >>> sublayer("t-nlg", "fc2", tp=8)["gemm"].op
    Gemm(m=8192, n=4256, k=2128, dtype='fp16')
    """
    if name is None and isinstance(model, str) and "/" in model:
        model, _, name = model.rpartition("/")
    return split(unsplit(model, cast(str, name), dtype), cast(int, tp))


def legal_degrees(sublayer: SubLayer) -> list[int]:
    """Return every tensor-parallel degree that divides the sub-layer's N and K, ascending."""
    common = math.gcd(sublayer.gemm.n, sublayer.gemm.k)
    small = [degree for degree in range(1, math.isqrt(common) + 1) if common % degree == 0]
    return sorted({*small, *(common // degree for degree in small)} - {1})


def _fits(tp: object, common: int) -> bool:
    return isinstance(tp, int) and not isinstance(tp, bool) and tp >= 2 and common % tp == 0


def _tp_problem(sublayer: SubLayer, tp: object) -> str:
    gemm = sublayer.gemm
    subject = " ".join(dict.fromkeys((sublayer.model, sublayer.name)))
    rule = f"it must be a whole number of at least 2 that divides N = H = {gemm.n} and K = {gemm.k}"
    degrees = legal_degrees(sublayer)
    if not degrees:
        return f"TP {show_value(tp)} cannot split {subject}: {rule}, and none does; change N or K"
    wanted = min(tp, gemm.n) if isinstance(tp, int) and tp > 0 else 2
    closest = sorted(sorted(degrees, key=lambda degree: abs(math.log(degree / wanted)))[:3])
    listed = ", ".join(map(str, closest))
    return f"TP {show_value(tp)} cannot split {subject}: {rule}; nearest that do: {listed}"
