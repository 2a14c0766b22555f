"""Weft: what compute and communication cost each other when they share the GPUs of a machine.

>>> import weft
>>> weft.sublayer("t-nlg/fc2", tp=8)["gemm"].op
Gemm(m=8192, n=4256, k=2128, dtype='fp16')

`weft.compare("t-nlg/fc2", "t3-paper", ["t3", "t3-mca"], tp=8)` simulates the sub-layer under both overlaps, beside the
baseline; `weft.simulate(weft.concurrent(gemm, collective), "mi300x", "dma")` two streams that share a GPU. Every answer
has `report` (sentences, tables and figures), `to_dict`, `to_pandas`, `plot` and `save`.
"""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import TYPE_CHECKING

from weft.answer import register_renderer
from weft.arguments import answering

if TYPE_CHECKING:
    from weft import models, studies
    from weft.capture import capture, capturing
    from weft.errors import WeftError
    from weft.estimate import Harness, estimate
    from weft.graph import (
        Attention,
        Collective,
        Gemm,
        Graph,
        Node,
        Opaque,
        Routing,
        Streaming,
        all_gather,
        all_reduce,
        all_to_all,
        concurrent,
        experts,
        gemm,
        gemm_queue,
        operator,
        reduce_scatter,
        write_graph,
    )
    from weft.hardware import System, gpu, system
    from weft.hardware import gpu_names as gpus
    from weft.hardware import node_names as systems
    from weft.kernels.execution_file import read_collective
    from weft.kernels.execution_plan import ExecutionPlan
    from weft.models import load_model
    from weft.models.sequence import iteration
    from weft.options import RunOptions
    from weft.parallel import dependent, layer, sublayer
    from weft.parallel.plan import Parallelism
    from weft.plan import plan
    from weft.plan.launched import read_launch
    from weft.plan.recompute import recompute
    from weft.plan.scale import scale
    from weft.plan.schedules import check_schedule, find_schedule
    from weft.result import Comparison, Timeline
    from weft.result.contrast import Contrast
    from weft.result.step import Step
    from weft.rewrite import rewrite
    from weft.run import balanced, compare, simulate
    from weft.run.chakra import write_chakra
    from weft.run.replay import replay
    from weft.run.step.inference import decode, prefill
    from weft.run.step.named import memory, step, step_overlaps
    from weft.run.step.roofline import roofline
    from weft.run.trace import compare_trace
    from weft.sample import sample
    from weft.schedule import overlap_names as overlaps
    from weft.schedule.arbiters import arbiter
    from weft.serving.search import plan_serving
    from weft.serving.serve import serve
    from weft.sweep.answer import Sweep
    from weft.sweep.run import sweep, sweep_file
    from weft.traces import read_execution_trace, read_graph, read_trace
    from weft.tune import tune
    from weft.tune.advisor import advise
    from weft.tune.perturb import perturb
    from weft.tune.tiles import tiles
    from weft.validation.catalog import calibrate
    from weft.validation.run import validate

__version__ = "0.1.0"

# Public name -> where it lives. A room is imported when one of its names is first used, so that
# `import weft` costs neither a compiler nor a plotting library.
_HOMES = {
    "Attention": ("weft.graph", "Attention"),
    "Collective": ("weft.graph", "Collective"),
    "Comparison": ("weft.result", "Comparison"),
    "Contrast": ("weft.result.contrast", "Contrast"),
    "ExecutionPlan": ("weft.kernels.execution_plan", "ExecutionPlan"),
    "Gemm": ("weft.graph", "Gemm"),
    "Graph": ("weft.graph", "Graph"),
    "Harness": ("weft.estimate", "Harness"),
    "Node": ("weft.graph", "Node"),
    "Opaque": ("weft.graph", "Opaque"),
    "Parallelism": ("weft.parallel.plan", "Parallelism"),
    "Routing": ("weft.graph", "Routing"),
    "RunOptions": ("weft.options", "RunOptions"),
    "Step": ("weft.result.step", "Step"),
    "Streaming": ("weft.graph", "Streaming"),
    "Sweep": ("weft.sweep.answer", "Sweep"),
    "System": ("weft.hardware", "System"),
    "Timeline": ("weft.result", "Timeline"),
    "WeftError": ("weft.errors", "WeftError"),
    "advise": ("weft.tune.advisor", "advise"),
    "all_gather": ("weft.graph", "all_gather"),
    "all_reduce": ("weft.graph", "all_reduce"),
    "all_to_all": ("weft.graph", "all_to_all"),
    "arbiter": ("weft.schedule.arbiters", "arbiter"),
    "balanced": ("weft.run", "balanced"),
    "calibrate": ("weft.validation.catalog", "calibrate"),
    "capture": ("weft.capture", "capture"),
    "capturing": ("weft.capture", "capturing"),
    "check_schedule": ("weft.plan.schedules", "check_schedule"),
    "compare": ("weft.run", "compare"),
    "concurrent": ("weft.graph", "concurrent"),
    "decode": ("weft.run.step.inference", "decode"),
    "dependent": ("weft.parallel", "dependent"),
    "compare_trace": ("weft.run.trace", "compare_trace"),
    "estimate": ("weft.estimate", "estimate"),
    "experts": ("weft.graph", "experts"),
    "find_schedule": ("weft.plan.schedules", "find_schedule"),
    "gemm": ("weft.graph", "gemm"),
    "gemm_queue": ("weft.graph", "gemm_queue"),
    "gpu": ("weft.hardware", "gpu"),
    "gpus": ("weft.hardware", "gpu_names"),
    "iteration": ("weft.models.sequence", "iteration"),
    "layer": ("weft.parallel", "layer"),
    "load_model": ("weft.models", "load_model"),
    "memory": ("weft.run.step.named", "memory"),
    "models": ("weft.models", "models"),
    "operator": ("weft.graph", "operator"),
    "overlaps": ("weft.schedule", "overlap_names"),
    "perturb": ("weft.tune.perturb", "perturb"),
    "plan": ("weft.plan", "plan"),
    "plan_serving": ("weft.serving.search", "plan_serving"),
    "prefill": ("weft.run.step.inference", "prefill"),
    "read_collective": ("weft.kernels.execution_file", "read_collective"),
    "read_execution_trace": ("weft.traces", "read_execution_trace"),
    "read_graph": ("weft.traces", "read_graph"),
    "write_chakra": ("weft.run.chakra", "write_chakra"),
    "read_launch": ("weft.plan.launched", "read_launch"),
    "read_trace": ("weft.traces", "read_trace"),
    "recompute": ("weft.plan.recompute", "recompute"),
    "replay": ("weft.run.replay", "replay"),
    "reduce_scatter": ("weft.graph", "reduce_scatter"),
    "roofline": ("weft.run.step.roofline", "roofline"),
    "rewrite": ("weft.rewrite", "rewrite"),
    "sample": ("weft.sample", "sample"),
    "scale": ("weft.plan.scale", "scale"),
    "serve": ("weft.serving.serve", "serve"),
    "simulate": ("weft.run", "simulate"),
    "step": ("weft.run.step.named", "step"),
    "step_overlaps": ("weft.run.step.named", "step_overlaps"),
    "studies": ("weft.studies", "studies"),
    "sublayer": ("weft.parallel", "sublayer"),
    "sweep": ("weft.sweep", "sweep"),
    "sweep_file": ("weft.sweep.run", "sweep_file"),
    "system": ("weft.hardware", "system"),
    "systems": ("weft.hardware", "node_names"),
    "tiles": ("weft.tune.tiles", "tiles"),
    "tune": ("weft.tune", "tune"),
    "validate": ("weft.validation.run", "validate"),
    "write_graph": ("weft.graph", "write_graph"),
}

__all__ = [
    "Attention",
    "Collective",
    "Comparison",
    "Contrast",
    "ExecutionPlan",
    "Gemm",
    "Graph",
    "Harness",
    "Node",
    "Opaque",
    "Parallelism",
    "Routing",
    "RunOptions",
    "Step",
    "Streaming",
    "Sweep",
    "System",
    "Timeline",
    "WeftError",
    "__version__",
    "advise",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "arbiter",
    "balanced",
    "calibrate",
    "capture",
    "capturing",
    "check_schedule",
    "compare",
    "compare_trace",
    "concurrent",
    "decode",
    "dependent",
    "estimate",
    "experts",
    "find_schedule",
    "gemm",
    "gemm_queue",
    "gpu",
    "gpus",
    "iteration",
    "layer",
    "load_model",
    "memory",
    "models",
    "operator",
    "overlaps",
    "perturb",
    "plan",
    "plan_serving",
    "prefill",
    "read_collective",
    "read_execution_trace",
    "read_graph",
    "read_launch",
    "read_trace",
    "recompute",
    "reduce_scatter",
    "replay",
    "rewrite",
    "roofline",
    "sample",
    "scale",
    "serve",
    "simulate",
    "step",
    "step_overlaps",
    "studies",
    "sublayer",
    "sweep",
    "sweep_file",
    "system",
    "systems",
    "tiles",
    "tune",
    "validate",
    "write_chakra",
    "write_graph",
]


# Answers show themselves by the room `view`, which is imported when one is first shown.
register_renderer(lambda: importlib.import_module("weft.view.answers"))


def __getattr__(name: str) -> object:
    """Import the room of a public name when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute '{name}'; public names: {', '.join(__all__)}")
    room, attribute = _HOMES[name]
    module = importlib.import_module(room)
    # `weft.estimate` is a callable module: the name is the same object whether module or function is imported first.
    value: object = module if room == f"weft.{name}" else getattr(module, attribute)
    value = answering(value) if isinstance(value, FunctionType) else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
