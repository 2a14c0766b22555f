"""One declared study per paper: cases, configurations, and its published figures against Weft's.

>>> study("t3").DECLARED.claims["t3_mca.speedup.geomean"].published
1.3
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from weft.core.callables import make_callable
from weft.core.errors import InputError, check_name

if TYPE_CHECKING:
    from weft.papers.headline import PaperStudy

STUDIES: Mapping[str, str] = {
    "t3": "T3 (ASPLOS 2024): sub-layers that overlap with their own collective.",
    "t3-end-to-end": "T3 end to end: whole steps of training and prompts, and where T3 pays.",
    "t3-beyond": "T3 beyond its paper: faster GPUs, straight to the owner, K in parts, a slow GPU.",
    "c3": "C3 and ConCCL (ISPASS 2025): a GEMM beside an independent collective.",
    "cu-split": "T3's motivation: compute units split between a GEMM and an all-reduce.",
    "goldyloc": "GOLDYLOC (TACO 2025): independent GEMMs together on one GPU.",
    "comp-vs-comm": "Tale of Two Cs (IISWC 2023): communication's share of training, today and in future.",
    "seqpoint": "SeqPoint (ISPASS 2020): iterations that represent an epoch, and their sampling error.",
    "jit-q": "JIT-Q (MLSys 2024): weights encoded inside memory, just in time.",
    "pytorch-on-simulator": "PyTorch on a GPU simulator (ISPASS 2019): programs, channels and banks over time.",
    "memo": "A memo of machine-learning systems: its worked numbers, and where it slips.",
    "serving": "Published servers: schedulers, separate prompts, experts on many GPUs, first tokens.",
    "bert": "Demystifying BERT (IISWC 2022): the operators of BERT-Large's pre-training.",
}
"""One-line descriptions of the studies, by name of the study's module."""

__all__ = ["STUDIES", "study"]


def study(name: str) -> type[PaperStudy]:
    """Return the class `STUDY` of a study's module.

    Raises UnknownNameError for a name that no study has, InputError if it needs an extension that is not installed.
    """
    check_name("study", name, STUDIES)
    try:
        found: type[PaperStudy] = import_module(f"weft.papers.{name.replace('-', '_')}").STUDY
    except ModuleNotFoundError as error:
        needs = (error.name or "").split(".")
        if needs[0] != "weft":
            raise
        raise InputError(
            f"the study '{name}' needs the extension '{needs[1]}' of Weft, which is not installed"
        ) from error
    return found


def study_names() -> list[str]:
    """Return the studies by name."""
    return list(STUDIES)


make_callable(__name__, __name__, "study_names")
