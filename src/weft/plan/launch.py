"""What starts a deployment: the launchers of training and of serving behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from weft.core.errors import InputError, check_name
from weft.hardware import System
from weft.models import Transformer
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.plan import launch_serving as serving
from weft.plan import launch_training as training
from weft.step.serving_plan import ServingPlan

D = TypeVar("D", TrainingPlan, ServingPlan)
NO_FRAMEWORK = Framework()


@dataclass(frozen=True)
class Launcher(Generic[D]):
    """What `write`s a deployment for a launcher, and what says which parts of it the launcher `lacks` an option for.

    Training plans are timed with the defaults of `framework`; the text is written to `file`.
    """

    write: Callable[[Transformer, System, D, Framework], str]
    lacks: Callable[[Transformer, D], Iterator[str]] = lambda model, plan: iter(())
    framework: str = ""
    file: str = "launch.sh"


def _engine(lines: Callable[[ServingPlan], Iterator[str]]) -> Launcher[ServingPlan]:
    return Launcher(lambda model, system, plan, framework: "\n".join(lines(plan)) + "\n")


LAUNCHERS: Mapping[str, Launcher[TrainingPlan]] = {
    "megatron": Launcher(training.megatron, training.megatron_lacks, "megatron-core"),
    "torchtitan": Launcher(training.torchtitan, training.torchtitan_lacks, "torchtitan", "launch.toml"),
    "deepspeed": Launcher(training.deepspeed_config, training.deepspeed_lacks, "deepspeed-zero3", "launch.json"),
}
"""The launchers of training by name."""
ENGINES: Mapping[str, Launcher[ServingPlan]] = {
    "vllm": _engine(serving.vllm),
    "sglang": _engine(serving.sglang),
    "trtllm": _engine(serving.trtllm),
    "dynamo": _engine(serving.dynamo),
}
"""The engines of serving by name, those of `serving_frameworks.toml` and Dynamo over vLLM."""


def _known_launchers(plan: Deployment) -> Mapping[str, Launcher[Any]]:
    return LAUNCHERS if isinstance(plan, TrainingPlan) else ENGINES


def launch(
    launcher: str, model: Transformer, system: System, plan: Deployment, framework: Framework = NO_FRAMEWORK
) -> str:
    """Return the command lines, or the configuration file, with which a launcher starts a model under a plan.

    The text is complete but for the user's own data, tokenizer, weights and hosts. Raises UnknownNameError for an
    unknown launcher, and InputError that lists what the launcher has no option for.
    """
    if missing := lacking(launcher, model, plan):
        raise InputError(f"{launcher} cannot run this plan: {missing}; choose another plan or launcher")
    text: str = _known_launchers(plan)[launcher].write(model, system, plan, framework)
    return text


def lacking(launcher: str, model: Transformer, plan: Deployment) -> str:
    """Return what a launcher has no option for in a plan, "" if for nothing; UnknownNameError for an unknown one."""
    known = _known_launchers(plan)
    check_name("launcher" if known is LAUNCHERS else "serving engine", launcher, known)
    return "; ".join(known[launcher].lacks(model, plan))
