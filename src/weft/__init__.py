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
import importlib.util
from types import FunctionType

TYPE_CHECKING = False  # typing's own takes most of the import, in which Ctrl-C is not handled yet
if TYPE_CHECKING:
    from weft import models as models
    from weft import papers as papers
    from weft import testing as testing
    from weft.core.contrast import Contrast as Contrast
    from weft.core.errors import WeftError as WeftError
    from weft.core.options import RunOptions as RunOptions
    from weft.estimate import BenchmarkProtocol as BenchmarkProtocol
    from weft.estimate import estimate as estimate
    from weft.graph import Attention as Attention
    from weft.graph import Collective as Collective
    from weft.graph import Gemm as Gemm
    from weft.graph import Graph as Graph
    from weft.graph import Node as Node
    from weft.graph import Opaque as Opaque
    from weft.graph import Routing as Routing
    from weft.graph import Streaming as Streaming
    from weft.graph import all_gather as all_gather
    from weft.graph import all_reduce as all_reduce
    from weft.graph import all_to_all as all_to_all
    from weft.graph import concurrent as concurrent
    from weft.graph import experts as experts
    from weft.graph import gemm_queue as gemm_queue
    from weft.graph import operator as operator
    from weft.graph import reduce_scatter as reduce_scatter
    from weft.graph import write_graph as write_graph
    from weft.graph.execution_plan import ExecutionPlan as ExecutionPlan
    from weft.graph.gemm import gemm as gemm
    from weft.hardware import System as System
    from weft.hardware import gpu as gpu
    from weft.hardware import gpu_names, node_names
    from weft.hardware import system as system
    from weft.kernels.execution_file import read_collective as read_collective
    from weft.lab.catalog import calibrate as calibrate
    from weft.lab.run import validate as validate
    from weft.models import load_model as load_model
    from weft.models.parallel import dependent as dependent
    from weft.models.parallel import layer as layer
    from weft.models.parallel import sublayer as sublayer
    from weft.models.parallel.deployment import Deployment as Deployment
    from weft.models.parallel.plan import TrainingPlan as TrainingPlan
    from weft.models.sequence import iteration as iteration
    from weft.overlaps import overlap_names
    from weft.overlaps import register_overlap as register_overlap
    from weft.overlaps.arbiters import arbiter as arbiter
    from weft.papers.sample import sample as sample
    from weft.plan import plan as plan
    from weft.plan.read_launch import read_launch as read_launch
    from weft.plan.read_server import read_server as read_server
    from weft.plan.recompute import recompute as recompute
    from weft.plan.scale import scale as scale
    from weft.plan.schedules import check_schedule as check_schedule
    from weft.plan.schedules import find_schedule as find_schedule
    from weft.plan.serving import plan_serving as plan_serving
    from weft.plan.tune import tune as tune
    from weft.plan.tune.advisor import advise as advise
    from weft.plan.tune.fuse import advise_fuse as advise_fuse
    from weft.plan.tune.perturb import perturb as perturb
    from weft.plan.tune.tiles import tiles as tiles
    from weft.rewrite import rewrite as rewrite
    from weft.serving.load import Load as Load
    from weft.serving.result import Limits as Limits
    from weft.serving.serve import serve as serve
    from weft.simulate import balance_loops as balance_loops
    from weft.simulate import compare as compare
    from weft.simulate.replay import replay as replay
    from weft.simulate.result import Comparison as Comparison
    from weft.simulate.result import Timeline as Timeline
    from weft.simulate.single import simulate as simulate
    from weft.step.inference import decode as decode
    from weft.step.inference import prefill as prefill
    from weft.step.queries import memory as memory
    from weft.step.queries import step as step
    from weft.step.queries import step_overlaps as step_overlaps
    from weft.step.result.step import Step as Step
    from weft.step.roofline import roofline as roofline
    from weft.step.run import TrainingRun as TrainingRun
    from weft.step.serving_plan import ServingPlan as ServingPlan
    from weft.sweep.answer import Sweep as Sweep
    from weft.sweep.run import sweep as sweep
    from weft.sweep.run import sweep_file as sweep_file
    from weft.torch.capture import capture as capture
    from weft.torch.capture import capturing as capturing
    from weft.torch.chakra import write_chakra as write_chakra
    from weft.torch.compare import compare_trace as compare_trace
    from weft.torch.traces import read_execution_trace as read_execution_trace
    from weft.torch.traces import read_graph as read_graph
    from weft.torch.traces import read_trace as read_trace
    from weft.torch.traces import read_traces as read_traces

    gpus, systems, overlaps = gpu_names, node_names, overlap_names

__version__ = "0.1.0"

# Module -> the public names that it defines, another name than there as "name=there". A module is imported when one of
# its names is first used, so that `import weft` costs neither a compiler nor a plotting library.
_MODULES = {
    "weft.core.errors": "WeftError",
    "weft.estimate": "BenchmarkProtocol estimate",
    "weft.graph": (
        "Attention Collective Gemm Graph Node Opaque Routing Streaming all_gather all_reduce all_to_all concurrent "
        "experts gemm gemm_queue operator reduce_scatter write_graph"
    ),
    "weft.hardware": "System gpu gpus=gpu_names system systems=node_names",
    "weft.kernels.execution_file": "read_collective",
    "weft.graph.execution_plan": "ExecutionPlan",
    "weft.models": "load_model models",
    "weft.models.sequence": "iteration",
    "weft.core.options": "RunOptions",
    "weft.models.parallel": "dependent layer sublayer",
    "weft.models.parallel.deployment": "Deployment",
    "weft.models.parallel.plan": "TrainingPlan",
    "weft.plan": "plan",
    "weft.plan.read_launch": "read_launch",
    "weft.plan.read_server": "read_server",
    "weft.plan.recompute": "recompute",
    "weft.plan.scale": "scale",
    "weft.plan.schedules": "check_schedule find_schedule",
    "weft.simulate.result": "Comparison Timeline",
    "weft.core.contrast": "Contrast",
    "weft.serving.result": "Limits",
    "weft.step.result.step": "Step",
    "weft.simulate": "balance_loops compare simulate",
    "weft.simulate.replay": "replay",
    "weft.step.inference": "decode prefill",
    "weft.step.queries": "memory step step_overlaps",
    "weft.step.roofline": "roofline",
    "weft.step.run": "TrainingRun",
    "weft.step.serving_plan": "ServingPlan",
    "weft.overlaps": "overlaps=overlap_names register_overlap",
    "weft.overlaps.arbiters": "arbiter",
    "weft.serving.load": "Load",
    "weft.plan.serving": "plan_serving",
    "weft.serving.serve": "serve",
    "weft.sweep": "sweep",
    "weft.sweep.answer": "Sweep",
    "weft.sweep.run": "sweep_file",
    "weft.testing": "testing",
    "weft.plan.tune": "tune",
    "weft.plan.tune.advisor": "advise",
    "weft.plan.tune.fuse": "advise_fuse",
    "weft.plan.tune.perturb": "perturb",
    "weft.plan.tune.tiles": "tiles",
}
_HOMES = {
    name: (home, there or name)
    for home, names in _MODULES.items()
    for name, _, there in (each.partition("=") for each in names.split())
}


def __getattr__(name: str) -> object:
    """Import the package of a public name when the name is first used; extensions add names of their own."""
    if name == "__all__":
        return __dir__()
    if name not in _HOMES and importlib.util.find_spec(f"weft.{name}"):
        return importlib.import_module(f"weft.{name}")
    home, attribute = _HOMES.get(name) or _find_in_extensions(name)
    module = importlib.import_module(home)
    # `weft.estimate` is a callable module: the name is the same object whether module or function is imported first.
    value: object = module if home == f"weft.{name}" else getattr(module, attribute)
    if isinstance(value, FunctionType):
        from weft.core.arguments import check_arguments  # not before: Ctrl-C is handled once this package is imported

        value = check_arguments(value)
    globals()[name] = value
    return value


def _find_in_extensions(name: str) -> list[str]:
    from weft.core.extensions import find_public_name

    target = None if name.startswith("__") else find_public_name(name)
    if target is None:
        raise AttributeError(f"module 'weft' has no attribute '{name}'; public names: {', '.join(__dir__())}")
    return target.split(":")


def __dir__() -> list[str]:
    from weft.core.extensions import extensions

    return sorted(["__version__", *_HOMES, *(name for each in extensions() for name in each.names)])
