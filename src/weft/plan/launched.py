"""The run that a launch file starts: its model, its plan, and what became of each of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from weft import hardware
from weft.core.answer import Record
from weft.core.errors import InputError, check_type
from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.models.block import FusionStyle, Tokens, layer
from weft.models.huggingface import hub_name
from weft.models.load import named_model
from weft.models.parallel.complete import check_stated
from weft.models.parallel.framework import Framework
from weft.models.parallel.framework import framework as framework_of
from weft.plan.documents import find_beside
from weft.step.queries import step
from weft.step.result.step import Step

_LISTED = 12
"""Most arguments that a note lists."""
_IDLE_LISTED = 3
"""Most arguments without effect that a note lists for each reason."""


@dataclass(frozen=True)
class Launched(Record):
    """The run that a launch file starts: its model, if the file states one, and its plan.

    `fields` are those of `weft.TrainingPlan` that the file states, `settings` what it changes in the defaults of the
    `framework`, `style` what it changes in the operators that the framework writes. `used` says of each argument what
    it became, `without_effect` why others change neither time nor memory of a step, `not_modelled` says in which
    direction an argument that Weft does not follow changes them, and `not_understood` lists unknown ones. `gpus` is
    how many the file asks for, if it says. `local_batch` are the sequences of each replica in a step, `accumulation`
    the micro-batches of each, and `replica_groups` the groups of replicas that shard by themselves. `trains` names the
    model where the file does so and the catalogue does not have it. `defaults` are fields that the file leaves to its
    launcher, with the launcher's own defaults; options state others.
    """

    launcher: str
    framework: str
    fields: Mapping[str, Any]
    model: Transformer | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    style: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    not_modelled: Mapping[str, str] = field(default_factory=dict)
    not_understood: tuple[str, ...] = ()
    gpus: int | None = None
    notes: tuple[str, ...] = ()
    local_batch: int | None = None
    accumulation: int | None = None
    replica_groups: int = 1
    trains: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def step(
        self,
        system: Described,
        model: Transformer | str | Path | None = None,
        *,
        options: RunOptions = SUSTAINED,
        fidelity: Fidelity = "windows",
        measured: str | None = None,
        straggler: str | None = None,
        improve: bool = False,
        instead: Mapping[str, Any] = MappingProxyType({}),
        **stated: Any,
    ) -> Step:
        """Time a step of the run on a system, as `weft.step` does.

        `model` is needed where the file states none; `stated` are fields of the plan that the file leaves to the
        program, such as recomputation under DeepSpeed. Fields in `instead` replace what the file states, to try a
        change; None leaves them to Weft. Raises InputError for `stated` fields that the file states otherwise, and for
        another number of GPUs.
        """
        check_type("instead", instead, Mapping, "give fields of a plan by name, like {'tp': 4}")
        machine = hardware.system(system)
        if self.gpus not in (None, machine.gpus):
            raise InputError(f"the launch file starts {self.gpus} GPUs, the system has {machine.gpus}; give as many")
        found = self.model if model is None else load_model(model)
        if found is None:
            trains = f"trains {self.trains}, which is no model of the catalogue" if self.trains else ""
            trains = trains or "does not say which model it trains"
            how = "; a script states it by --num-layers, --hidden-size and --vocab-size"
            how = how if self.launcher == "megatron" and not self.trains else ""
            raise InputError(f"the launch file {trains}; name one, like llama-3-8b, or a file of its dimensions{how}")
        given = {name: value for name, value in stated.items() if value is not None}
        used: Framework | str = given.pop("framework", None) or self.framework
        if isinstance(used, str):
            defaults = framework_of(used)
            used = replace(defaults, **{"style": replace(defaults.style, **self.style), **self.settings})
        used = instead.get("framework", used)
        plan = self.plan(machine.gpus, given, {name: instead[name] for name in instead if name != "framework"})
        if isinstance(plan.get("recompute"), tuple) and "recompute" in self.fields:
            plan["recompute"] = _operators_of(found, plan["recompute"]) or "none"
        answer = step(
            found, machine, framework=used, options=options, fidelity=fidelity, measured=measured, straggler=straggler,
            improve=improve, **plan,
        )  # fmt: skip
        return replace(answer, notes=(*self._reading_notes(found), *answer.notes))

    def plan(
        self, gpus: int, stated: Mapping[str, Any], instead: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Return the fields of `weft.TrainingPlan` on a number of GPUs.

        Fields are those of the file, those `stated` that it leaves open, and those in `instead` of its own. Raises
        InputError for a `stated` field that the file states otherwise, and for batches that contradict each other.
        """
        for name in stated:
            if name in self.fields and stated[name] != self.fields[name]:
                raise InputError(f"the launch file has {name} {self.fields[name]}, not {stated[name]}; change it there")
        own = {**self.fields, **stated, **instead}
        usual = {name: value for name, value in self.defaults.items() if name != "micro_batch" or "batch" not in own}
        fields = check_stated({**usual, **own})
        replicas = max(gpus // (fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)), 1)
        if "batch" not in instead and "micro_batch" not in instead:
            self._accumulate(fields, replicas)
        if self.local_batch:
            fields.setdefault("batch", self.local_batch * replicas)
        if self.replica_groups > 1 and "shard" not in fields:
            sharing = replicas * fields.get("cp", 1)
            if sharing % self.replica_groups:
                raise InputError(
                    f"the launch file has {self.replica_groups} groups of replicas, which do not divide the {sharing} "
                    "replicas; state a number that does"
                )
            fields["shard"] = sharing // self.replica_groups
        return fields

    def _accumulate(self, fields: dict[str, Any], replicas: int) -> None:
        """Complete the batch, or the micro-batch, by the micro-batches that each replica accumulates."""
        steps, batch, micro = self.accumulation, fields.get("batch"), fields.get("micro_batch")
        if steps is None:
            if batch is not None or "micro_batch" not in self.defaults:
                return
            steps = 1
        if batch is None:
            fields["batch"] = (micro or 1) * steps * replicas
        elif micro is None and batch % (steps * replicas) == 0:
            fields["micro_batch"] = batch // (steps * replicas)
        elif batch != (micro or 1) * steps * replicas:
            each = f"micro-batches of {micro} x " if micro else ""
            raise InputError(
                f"a batch of {batch} is not {each}{steps} accumulated x {replicas} replicas"
                + (f" = {micro * steps * replicas}" if micro else "")
                + "; DeepSpeed refuses it, state one of them otherwise"
            )

    def _reading_notes(self, model: Transformer) -> Iterator[str]:
        """Yield what a reader must know of how the file was read."""
        own = model if self.model is None else self.model
        if (model.layers, model.hidden) != (own.layers, own.hidden):
            yield f"The launch file describes another model than {model.title}, which was timed."
        yield from account_notes(self)
        if left := {name: value for name, value in self.defaults.items() if name not in self.fields}:
            said = ", ".join(f"{name} {value}" for name, value in left.items())
            yield f"Left open by the launch file, with {self.launcher}'s default unless an option states it: {said}."
        yield from self.notes


class Account(Protocol):
    """What became of the arguments of a launch."""

    @property
    def used(self) -> Mapping[str, str]:
        """What each argument became."""

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Why arguments change nothing."""

    @property
    def not_modelled(self) -> Mapping[str, str]:
        """In which direction arguments change what Weft does not follow."""

    @property
    def not_understood(self) -> tuple[str, ...]:
        """Unknown arguments."""


def account_notes(of: Account) -> Iterator[str]:
    """Yield what became of the arguments of a launch, in words."""
    reasons: dict[str, list[str]] = {}
    for name, reason in of.without_effect.items():
        reasons.setdefault(reason, []).append(name)
    idle = "; ".join(f"{reason}: {_list_names(names, _IDLE_LISTED)}" for reason, names in reasons.items())
    several = f"{len(of.without_effect)} without effect" + (f" ({idle})" if idle else "")
    yield f"Read from the launch file: {len(of.used)} arguments used, {several}."
    if of.not_modelled:
        yield f"Not modelled: {_list_names([f'{name} ({effect})' for name, effect in of.not_modelled.items()])}."
    if of.not_understood:
        yield f"Not understood, and left out: {_list_names(of.not_understood)}."


def find_model(name: str, file: str) -> tuple[Transformer | None, str]:
    """Return the model that a launch file names, and the name; None and "" where it names none.

    A name is one on Hugging Face, that of a file of settings, or a folder of weights beside the launch file; a folder
    of Hugging Face's cache is called by the name there.
    """
    if not name:
        return None, ""
    called = hub_name(name) or name
    if known := named_model(called):
        return load_model(known), called
    config = find_beside(f"{name}/config.json", file)
    return (load_model(config) if config else None), called


def combine(first: Launched, second: Launched) -> Launched:
    """Return the run that two parts of a launch state together, in the framework and with the operators of the second.

    Raises ConfigError for a field that they state differently.
    """
    for name, value in first.fields.items():
        if second.fields.get(name, value) != value:
            raise InputError(f"{first.launcher} has {name} {value}, and {second.launcher} {second.fields[name]}; "
                             "state one of them")  # fmt: skip
    merged = ("fields", "settings", "style", "used", "without_effect", "not_modelled", "defaults")
    taken = ("model", "gpus", "accumulation", "trains", "local_batch")
    both: dict[str, Any] = {name: {**getattr(first, name), **getattr(second, name)} for name in merged}
    both |= {name: getattr(second, name) or getattr(first, name) for name in taken}
    both |= {name: (*getattr(first, name), *getattr(second, name)) for name in ("not_understood", "notes")}
    return replace(second, **both)


def _list_names(names: tuple[str, ...] | list[str], most: int = _LISTED) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _operators_of(model: Transformer, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the operators among `names` that the layers of a model have: modules that it lacks recompute nothing."""
    kinds, tokens = dict.fromkeys(model.layer_kinds), Tokens(1, 8, source=8 if model.encoder_layers else 0)
    known = {piece.name for kind in kinds for piece in layer(model, kind, tokens, FusionStyle(), "bf16")}
    return tuple(name for name in names if name in known)


def compiled_style(compiled: bool) -> dict[str, Any]:
    """Return how PyTorch runs the operators of layers and the loss, compiled or one by one."""
    loss = "compiled_cross_entropy" if compiled else "eager_cross_entropy"
    return {"fused": compiled, "eager": not compiled, "loss": loss}
