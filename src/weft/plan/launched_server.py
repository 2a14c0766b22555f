"""The server that a launch command or a deployment starts: its model, its plan, and what became of each argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.core.answer import Record
from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.plan.launched import account_notes
from weft.serving.checkpoint import Progress
from weft.serving.load import Load
from weft.serving.result import Limits, Serving
from weft.serving.serve import serve
from weft.step.serving_plan import ServingPlan

_DRAFTS = ("num_speculative_tokens", "speculative_method")


@dataclass(frozen=True)
class LaunchedServer(Record):
    """The server that a command of vLLM, SGLang or TensorRT-LLM, or a deployment of several, starts.

    `fields` are those of `weft.ServingPlan` that it states, `defaults` those that options may state otherwise: one
    engine, where nothing says how many. `used` says of each argument what it became, `without_effect` why others change
    nothing, `not_modelled` in which direction an argument that Weft does not follow does, and `not_understood` lists
    unknown ones. `trains` names the model where the catalogue does not have it.
    """

    engine: str
    fields: Mapping[str, Any]
    model: Transformer | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    not_modelled: Mapping[str, str] = field(default_factory=dict)
    not_understood: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    serves: str = ""

    def plan(self, *, instead: Mapping[str, Any] = MappingProxyType({}), **stated: Any) -> ServingPlan:
        """Return the plan of the server with `stated` fields that it leaves open, and those in `instead` of its own.

        Drafts need a stated `acceptance_rate`, and are left out without one. Raises InputError for a field that the
        launch states otherwise.
        """
        given = {name: value for name, value in stated.items() if value is not None}
        for name, value in given.items():
            if name in self.fields and value != self.fields[name]:
                raise InputError(f"the launch has {name} {self.fields[name]}, not {value}; change it there")
        own = self.fields if "acceptance_rate" in {**given, **instead} else self._without_drafts()
        return ServingPlan(**{"framework": self.engine, **self.defaults, **own, **given, **instead})

    def _without_drafts(self) -> dict[str, Any]:
        return {name: value for name, value in self.fields.items() if name not in _DRAFTS}

    def serve(
        self,
        on: Described,
        model: Transformer | str | Path | None = None,
        *,
        load: Load,
        limits: Limits = Limits(),
        sweep_concurrency: bool = False,
        options: RunOptions = SUSTAINED,
        progress: Progress | None = None,
        instead: Mapping[str, Any] = MappingProxyType({}),
        **stated: Any,
    ) -> Serving:
        """Serve a load on a system, as `weft.serve` does; `model` is needed where the launch names none that is known.

        Fields of the plan in `instead` replace what the launch states, to try a change. Raises InputError for `stated`
        fields that the launch states otherwise.
        """
        found = self.model if model is None else load_model(model)
        if found is None:
            if self.serves.startswith("$"):
                name = self.serves[1:]
                state = "give it behind --" if name.isdecimal() else f"state it, like --define {name}=Qwen/Qwen3-8B"
                raise InputError(
                    f"the launch serves {self.serves}, which nothing sets; {state}, or name a model or its config.json"
                )
            what = f"serves {self.serves}, which is no model of the catalogue" if self.serves else "names no model"
            raise InputError(f"the launch {what}; name one, like llama-3-8b, or its config.json")
        plan = self.plan(instead=instead, **stated)
        answer = serve(
            found, on, plan, load, limits, sweep_concurrency=sweep_concurrency, options=options, progress=progress
        )
        return replace(answer, notes=(*account_notes(self), *self._drafts(plan), *self.notes, *answer.notes))

    def _drafts(self, plan: ServingPlan) -> tuple[str, ...]:
        tokens = self.fields.get("num_speculative_tokens")
        if not tokens or plan.num_speculative_tokens:
            return ()
        return (f"{tokens} draft tokens are left out: state the share that is accepted by --acceptance-rate.",)
