"""DeepSpeed's JSON (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py) as a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from weft.core.errors import ConfigError
from weft.plan.documents import to_words
from weft.plan.launched import Launched
from weft.plan.reading import ArgumentReader

_PROGRAM = "The JSON leaves recomputation and the length of sequences to the program: --recompute, --sequence."
_HALF = "The JSON states no number format; bf16 is taken, DeepSpeed by itself computes in fp32 (--dtype fp32)."


def read_deepspeed(settings: Mapping[str, Any], file: str) -> Launched:
    """Return the run that DeepSpeed's settings, by dotted names, state; what is left to the program is not stated."""
    flat = {re.sub(r"^bfloat16\.", "bf16.", name): value for name, value in settings.items()}
    if isinstance(zero := flat.get("zero_optimization"), bool):  # as configurations of 2020 have it
        flat = {name: each for name, each in flat.items() if name != "zero_optimization"}
        flat["zero_optimization.stage"] = int(zero)
    read = ArgumentReader({name: to_words(value) for name, value in flat.items() if value != "auto"}, file, "")
    left = tuple(name for name, value in flat.items() if value == "auto")
    notes = [f"Left to the program (auto): {', '.join(left)}."] if left else []
    fields: dict[str, Any] = {"sp": False}
    stage = read.number("zero_optimization.stage", least=0) or 0
    if stage > 3:
        raise read.wrong("zero_optimization.stage", str(stage), "a stage from 0 to 3")
    if "zero_optimization.stage" not in left:
        fields["zero"] = stage
    if (tp := read.number("tensor_parallel.autotp_size", least=0)) or "tensor_parallel.autotp_size" not in left:
        fields["tp"] = tp or 1
    steps = _batches(read, fields, left)
    undecided = bool({"bf16.enabled", "fp16.enabled"} & {*left})
    fields |= _format(read, undecided)
    if "dtype" not in fields and not undecided:
        notes.append(_HALF)
    _shard(read, fields)
    _offload(read, fields)
    overlapped = read.switch("zero_optimization.overlap_comm", "dp_overlap")
    settings = {} if overlapped is None else {"dp_overlap": overlapped}
    return Launched(
        "deepspeed", "deepspeed-zero3", fields, None, settings, notes=(*notes, _PROGRAM), accumulation=steps,
        local_batch=None if steps else fields.get("micro_batch"), **read.account("deepspeed", True),
    )  # fmt: skip


def _batches(read: ArgumentReader, fields: dict[str, Any], left: tuple[str, ...]) -> int | None:
    """Put the batches that the file states into the fields; return the micro-batches that each replica accumulates."""
    if micro := read.number("train_micro_batch_size_per_gpu"):
        fields["micro_batch"] = micro
    if batch := read.number("train_batch_size"):
        fields["batch"] = batch
    steps = read.number("gradient_accumulation_steps")
    open_ = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"} & {*left}
    if steps is None and batch and not micro and not open_:
        return 1  # what DeepSpeed takes where the batch is all that is stated
    return steps


def _format(read: ArgumentReader, undecided: bool) -> dict[str, Any]:
    """Return the number format, if the file states one; `undecided` ones are left to the program."""
    stated = {low: read.switch(f"{low}.enabled", low) for low in ("bf16", "fp16")}
    if stated["bf16"] and stated["fp16"]:
        raise ConfigError("bf16 and fp16 are both enabled, which DeepSpeed refuses; enable one", read.file)
    chosen = next((low for low, on in stated.items() if on), None)
    if chosen:
        return {"dtype": chosen}
    return {"dtype": "fp32"} if False in stated.values() and not undecided else {}


def _shard(read: ArgumentReader, fields: dict[str, Any]) -> None:
    """Put the groups in which ZeRO-3 gathers weights (ZeRO++) into the fields."""
    each = read.number("zero_optimization.zero_hpz_partition_size")
    if each and each > 1:
        if fields.get("zero") == 3:
            fields["shard"] = each
        else:
            read.idle("zero_optimization.zero_hpz_partition_size", "of ZeRO stage 3")


def _offload(read: ArgumentReader, fields: dict[str, Any]) -> None:
    """Put what the host's memory holds into the fields."""
    for what in ("optimizer", "param"):
        setting = f"zero_optimization.offload_{what}.device"
        place = read.text(setting, known=("none", "cpu", "nvme"))
        if what == "optimizer" and place == "cpu":
            fields["offload"] = "optimizer"
        elif place not in (None, "none"):
            read.not_model(setting, "less memory, longer", place)
