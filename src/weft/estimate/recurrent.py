"""How long a recurrent layer takes, in closed form: steps that wait for each other, each loading all weights.

A step takes its kernels' gaps, the pace of a product over the state, and the longer of multiplying and loading the
weights (with the part of the shorter that the library's kernels do not hide), then its element-wise part through the
cache. The inputs' product and the gradient of the weights are GEMMs over all steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.core.errors import InputError
from weft.core.units import format_bytes
from weft.estimate.answer import Estimate, FloatArray, floats, from_parts, side_by_side
from weft.estimate.gemm import gemm
from weft.estimate.kernel import CacheShare
from weft.estimate.target import Target
from weft.graph.op import width
from weft.graph.recurrent import Recurrent
from weft.kernels.gemm import main_loop_flops
from weft.kernels.library.tiles import recurrent_values

REGISTERS = 0.5
"""Share of the register files that holds the weights of a persistent kernel [assumed; 0.4 to 0.7]."""


def recurrent(op: Recurrent, machine: Target) -> Estimate:
    """Return the time of a recurrent layer's pass; parts: launch, latency, memory, cache and compute.

    The harness's `values` replace those of the GPU's library (weft.kernels.library.tiles). Raises InputError for a
    dtype that the GPU lacks, and for a persistent kernel whose weights its registers cannot hold.
    """
    if op.computes == "weights":
        return _simple(gemm(op.weight_product, machine))
    known = {**recurrent_values(machine.gpu.architecture), **(machine.harness.values or {})}
    step = _persistent(op, machine, known) if op.persistent else _step(op, machine, known)
    steps = from_parts({name: part * floats(op.steps) for name, part in step.items()})
    product = op.input_product
    return steps if product is None else _together(steps, _simple(gemm(product, machine)))


def _step(op: Recurrent, machine: Target, known: Mapping[str, float]) -> dict[str, FloatArray]:
    """Return the times of one step by cause [s]."""
    way = "forward" if op.computes == "forward" else "backward"
    compute, memory = _product_seconds(op, machine), _weights_loaded(op, machine)
    hidden_part = known["overlap"] * np.minimum(compute, memory)
    return {
        "launch": np.zeros(np.shape(compute)) + known[f"kernels.{op.cell}"] * known[f"{way}.gap"],
        "latency": floats(op.hidden) * known[f"{way}.pace"],
        "memory": memory - np.where(memory < compute, hidden_part, 0.0),
        "cache": _elementwise(op, machine),
        "compute": compute - np.where(memory < compute, 0.0, hidden_part),
    }


def _persistent(op: Recurrent, machine: Target, known: Mapping[str, float]) -> dict[str, FloatArray]:
    """Return the times of one step by cause [s] where registers hold the weights: no loads, no launches, a barrier."""
    held = REGISTERS * machine.gpu.compute.registers_per_cu * machine.gpu.compute.compute_units
    weights = np.max(_weight_bytes(op))
    if weights > held:
        raise InputError(
            f"the weights of {op} take {format_bytes(weights, 3)}, but half the registers of {machine.gpu.name} hold "
            f"{format_bytes(held, 3)}; give fewer hidden cells, or leave persistent out"
        )
    compute = _product_seconds(op, machine)
    return {
        "latency": np.zeros(np.shape(compute)) + known["persistent.step"],
        "cache": _elementwise(op, machine),
        "compute": compute,
    }


def _weight_bytes(op: Recurrent) -> FloatArray:
    return floats(op.outputs) * floats(op.hidden) * width(op.dtype)


def _product_seconds(op: Recurrent, machine: Target) -> FloatArray:
    """Return the time of a step's product at the achieved rate [s]."""
    flops = 2 * floats(op.outputs) * floats(op.hidden) * floats(op.batch)
    return flops / (machine.gpu.compute.compute_units * main_loop_flops(op.dtype, machine.gpu, machine.options))


def _weights_loaded(op: Recurrent, machine: Target) -> FloatArray:
    """Return the time to load the weights, from the cache as far as it holds them between steps [s]."""
    size, gpu = _weight_bytes(op), machine.gpu
    cached = CacheShare(size, gpu).cache
    missed = (1 - cached) * size / (gpu.memory.bandwidth * gpu.achieved.gemm_memory)
    return missed + cached * size / (gpu.cache.bandwidth * gpu.cache.efficiency)


def _elementwise(op: Recurrent, machine: Target) -> FloatArray:
    """Time to move a step's gates and states through the cache [s]: two sets of gates read, one kept, two states."""
    moved = floats(op.batch) * floats(op.hidden) * (3 * op.gates + 2) * width(op.dtype)
    return moved / (machine.gpu.cache.bandwidth * machine.gpu.cache.efficiency)


_CAUSES = {"convert": "launch", "tail": "compute", "fill": "latency", "split": "latency"}
"""The parts of a GEMM's time that count under another cause here."""


def _simple(product: Estimate) -> Estimate:
    """Return a GEMM's estimate with the parts of `recurrent`."""
    parts: dict[str, FloatArray] = {}
    for name, part in product.parts.items():
        cause = _CAUSES.get(name, name)
        parts[cause] = parts.get(cause, np.zeros(())) + part
    return from_parts(parts)


def _together(*passes: Estimate) -> Estimate:
    """Estimates in sequence, with the bound that has the largest part of the sum."""
    every = side_by_side(passes)
    return from_parts({name: part.sum(axis=0) for name, part in every.parts.items()})
