"""What the BERT study runs: its declaration, the model, its phases, and ways to run a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weft.models import load_model
from weft.parallel.framework import framework
from weft.studies.bert.breakdown import FC, GELU, LAMB, LINEAR, NORM, PRODUCTS, SOFTMAX, Broken
from weft.studies.headline import declared

DECLARED = declared(str(Path(__file__).with_name("study.py")))
CASES = DECLARED.cases
MODEL = load_model(CASES["model"])
TRAINER, TRACED = framework("apex-bert"), framework("hugging-face")
"""How pre-training steps and the measured layers run their operators."""
FULL, MIXED = "fp32", "fp16"
GROUP_KEYS = {"fc": FC, "linear": LINEAR, "products": PRODUCTS, "softmax": SOFTMAX, "gelu": GELU, "norm": NORM}
"""The groups of a layer by the last word of their claims."""
BUCKET = 6_250_000
"""Parameters of a bucket of gradients: 25 MB of fp32, the default of PyTorch's DistributedDataParallel."""
FIRST, SECOND = (int(sequence) for sequence in CASES["phases"])
SEQUENCES = CASES["phases"][str(FIRST)]
"""Sequences of a micro-batch in phase 1."""
ONE_BY_ONE, FUSED, FLASH = "operators one by one", "fused with their neighbours", "and attention in one kernel"
AGAIN, UNFUSED = "layers computed again (checkpointing)", "LAMB operation by operation"


@dataclass(frozen=True)
class Variant:
    """A way to run a step of phase 1, with the step."""

    name: str
    dtype: str
    broken: Broken


def near_memory(one: Broken, rate: float) -> float:
    """Speedup of a step whose optimizer runs beside the memory banks, at `rate` times the host's bandwidth."""
    return 1 / (1 - one.share(LAMB) * (1 - 1 / rate))


def reduced_traffic(one: Broken, ranks: int) -> float:
    """Memory traffic that updates near memory save a ring's reduce-scatter of the gradients [bytes on each GPU].

    A step of the ring reads what arrived and the own part, and writes the sum: three accesses, where an update near
    memory is one (T3, arXiv:2401.16677, section 4).
    """
    size = sum(chunk.parameters for chunk in one.step.chunks) * 4
    return 2 * size * (ranks - 1) / ranks
