"""Served loads that were measured end to end: closed loops of clients on replicas of catalogue models, by framework."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.estimate.power import Activity, watts
from weft.hardware import Gpu
from weft.kernels.library.kits import KITS
from weft.lab.kinds import Columns, Query, RowKind, RowMachine
from weft.lab.pools import PooledLoop, sizes, with_version, workers
from weft.lab.problems import Problem
from weft.lab.recipes import DEFAULTS, ServerRecipe, recipe
from weft.lab.subjects import BoolArray, Predicted, Subject, predict_subject
from weft.lab.tables import Measurements
from weft.models import load_model
from weft.serving.framework import ServingDefaults, serves
from weft.serving.steady import Steady, steady
from weft.serving.step_times import Shape, StepTimes
from weft.step.forward import Forward
from weft.step.serving_plan import KvDtype, ServingPlan

MODELS: Mapping[str, str] = {
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "meta-llama/Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Llama-3.1-70B": "llama-3-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3-8b",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
"""The catalogue's model of the same sizes, by the name in the rows."""
_RELEASED: Mapping[str, tuple[str, str]] = {"gpt-oss-120b": ("bf16", "mxfp4")}
"""Formats of products and of weights of models that all frameworks run as released, whatever the row calls it."""
_IN_BLOCKS = ("deepseek-v3", "minimax-m2", "qwen3-235b-a22b")
"""Models that are released in FP8 with scales of blocks (config.json, weight_block_size)."""
FORMATS: Mapping[str, tuple[str, str]] = {
    "": ("bf16", ""),
    "bf16": ("bf16", ""),
    "fp8": ("fp8", ""),
    "fp4": ("nvfp4", ""),
    "int4": ("bf16", "int4-g128"),
}
_LOW, _HIGH = 4, 128
"""Most clients whose first token is compared: beyond, it is what the start of all at once makes of it; and most whose
further tokens are."""
POOLS = "disaggregated"
"""The kind of loads that are served by a pool that reads prompts and one that writes answers."""
_MOST_SIMULATED = 128
"""Most clients of loops that are simulated, start and end included, so that first tokens are compared, too."""
_OF_GPU = re.compile(r"[a-z]+\d+\w*/")
"""How the files of runs with equal lengths are named, by GPU; lengths of others are drawn for each request."""
_DRAWN, _ROUNDS, _DRAIN = 0.9, 10, 0.25
"""InferenceMAX's loops (SemiAnalysisAI/InferenceX, benchmarks): mean of lengths that are drawn from 0.8 of the stated
ones up, by these; requests of each client, of which the first come at once; and what clients are idle at the end, in
requests [0.1 to 0.5: ten lengths together spread by 18 % of one]."""
HOSTS = np.linspace(0.0, 5e-3, 51)
"""What a framework's host may add to a step [s], in fits."""


@dataclass(frozen=True)
class ClosedLoop:
    """A closed loop of `clients` that one replica of `gpus` GPUs serves, with prompts and answers of the stated lengths
    [tokens].

    Each GPU holds a slice of all experts, or with `ep` = `gpus` whole ones. `alike` are requests of equal lengths that
    begin together; lengths of others are drawn, up to those, and each client asks `_ROUNDS` times.
    """

    model: str
    gpu: str
    gpus: int
    ep: int
    framework: str
    dtype: str
    weights: str
    kv_dtype: KvDtype
    prompt: int
    answer: int
    clients: int
    alike: bool
    version: str = ""
    recipe: ServerRecipe = DEFAULTS
    vendor: bool = False
    """Whether the vendor's libraries run the operators, and not the framework's kernels."""

    def served(self, host: float | None = None, outside: float | None = None, launch: float | None = None) -> Steady:
        """Its steady state as a benchmark sees it; InputError without room.

        A host's own time for each step [s] and a request's time outside of steps, tokenizer aside, [s] may be given.
        """
        times, how = self._deployed()
        mixes = how.policy != "sglang"
        prompt, answer = (size if self.alike else round(size * _DRAWN) for size in (self.prompt, self.answer))
        most = how.cache_bytes // times.forward.cache(prompt + answer)
        if not most:
            raise InputError("a request of these lengths has no room next to the weights")
        before = how.token * prompt + (how.frontend if outside is None else outside)
        graphed = how.graphed if self.recipe.graphed is None else self.recipe.graphed
        times = times.with_launches(how.launch if launch is None else launch, graphed)
        found, first = (
            steady(
                times.seconds, self.clients, prompt, answer, tokens=self.recipe.tokens or how.tokens, mixes=mixes,
                most=most, host=how.host if host is None else host, together=together, outside=before,
                waits=self.recipe.waits,
            ) for together in (self.alike and not mixes, True)
        )  # fmt: skip
        if self.alike:
            return found
        begin = max(first.ttft - found.ttft, 0.0) / _ROUNDS
        return Steady(found.ttft + begin, found.tpot, found.rate * _ROUNDS / (_ROUNDS + _DRAIN))

    def _deployed(self) -> tuple[StepTimes, ServingDefaults]:
        where = self.model, self.gpu, self.gpus, self.ep, self.framework, self.dtype, self.weights, self.kv_dtype
        return _deploy_model(*where, self.version, self.vendor)

    def joules_per_token(self, found: Steady) -> float:
        """Energy of its GPUs for each output token in a steady state [J]."""
        times, how = self._deployed()
        prompt, answer = self.tokens
        cycle = (answer - 1) * found.tpot
        running = max(round(found.rate * cycle), 1)
        steps = found.rate * (answer - 1) / running
        pairs = round(prompt * (prompt + 1) / 2)
        done = times.work(Shape(running, round(running * (prompt + answer / 2)))) * steps
        done += times.work(Shape(0, 0, 1, round(prompt), pairs)) * found.rate + Activity(1.0, 1 - how.host * steps)
        return watts(times.forward.system.gpu, done).mean * self.gpus / (found.rate * answer)

    @property
    def tokens(self) -> tuple[float, float]:
        """Mean tokens of a prompt and of an answer."""
        share = 1.0 if self.alike else _DRAWN
        return share * self.prompt, share * self.answer


@cache
def _deploy_model(
    model: str,
    gpu: str,
    gpus: int,
    ep: int,
    framework: str,
    dtype: str,
    weights: str,
    kv_dtype: KvDtype,
    version: str,
    vendor: bool,
) -> tuple[StepTimes, ServingDefaults]:
    where = hardware.system(f"{gpus}x{gpu}")
    plan = ServingPlan(
        tp=gpus, ep=ep, dtype=dtype, weights=weights, kv_dtype=kv_dtype, library=framework,
        framework=with_version(framework, version),
    )  # fmt: skip
    runs = replace(plan, library=None, framework=None) if vendor else plan
    forward = Forward(load_model(model), where, runs)
    return StepTimes(forward), serves(forward, plan)


QUANTITIES: Mapping[str, str] = {"TPOT": "tpot_s", "TTFT": "ttft_s", "throughput": "tokens_per_s_per_gpu"}
"""The column of each quantity."""
ENERGY = "energy"
"""The kind of joules per output token of replicas that do both."""
_JOULES = "joules_per_output_token"
_KNOBS = ("host", "frontend", "launch")
"""What a fit may change of a framework: times of its host for each step, each request and each launch [s]."""
_VENDOR = "vendor"


def _quantities(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """Replicas that do both, of kind "serving", pools that do one each, "disaggregated", by quantity, and "energy"."""
    rows = checked.rows
    for kind, some in rows.groupby(rows["kind"], sort=False):
        for quantity, column in QUANTITIES.items():
            stated = some[_stated_rows(some, quantity)]
            yield str(kind), stated.assign(quantity=quantity, measured=stated[column])
    stated = rows[(rows["kind"] != POOLS) & rows[_JOULES].notna() & (rows["clients"] <= _HIGH)]
    yield ENERGY, stated.assign(quantity=ENERGY, measured=stated[_JOULES])


def _query(row: Mapping[str, Any], machine: RowMachine) -> Query:
    loop = _loop(row, machine.gpu)
    if isinstance(loop, ClosedLoop) and not loop.alike:
        loop = replace(loop, recipe=recipe(loop, machine.gpu.architecture))
    return row["quantity"], row["throughput_kind"], loop


def _predict_quantity(
    rows: Columns, machine: RowMachine, quantity: str, kind: str, loop: ClosedLoop | PooledLoop
) -> float:
    """A quantity of one row, for values of "host.FRAMEWORK", "frontend.FRAMEWORK" and "launch.FRAMEWORK" [s].

    With a value of `_VENDOR`, the vendor's libraries run the operators.
    """
    if _VENDOR in machine.values and isinstance(loop, ClosedLoop):
        loop = replace(loop, vendor=True)
    found = loop.served(*(machine.values.get(f"{name}.{loop.framework}") for name in _KNOBS))
    if quantity == ENERGY and isinstance(loop, ClosedLoop):
        return loop.joules_per_token(found)
    if quantity == "throughput":
        prompt, answer = loop.tokens
        return found.rate * (answer + (prompt if kind == "in+out" else 0)) / loop.gpus
    return found.tpot if quantity == "TPOT" else found.ttft


def _labels(rows: pd.DataFrame, machine: RowMachine, queries: Sequence[Any]) -> dict[str, Any]:
    models = [loop.model for *_, loop in queries]
    return {
        "gpu": machine.gpu.name,
        "framework": rows["framework"],
        "model": models,
        "quantity": rows["quantity"],
        "layers": ["mixture" if load_model(model).experts else "dense" for model in models],
    }


def _stated_rows(rows: pd.DataFrame, quantity: str) -> pd.Series[bool]:
    """Return which rows state a quantity that is compared at their number of clients."""
    pools = rows["kind"] == POOLS
    most = np.where(pools, _MOST_SIMULATED, _LOW if quantity == "TTFT" else _HIGH)
    stated = rows[QUANTITIES[quantity]].notna() & (rows["clients"] <= most)
    if quantity == "throughput":
        stated &= rows["throughput_kind"].isin(["out", "in+out"])
    return stated


def _checks(checked: Measurements) -> Iterable[Iterable[Problem]]:
    """Loads without a model or a figure; the others are given their clients, degrees and number of GPUs."""
    checked.drop(*_without_model(checked))
    rows = checked.rows
    gpus = [
        sum(pool.workers * pool.gpus for pool in map(workers, plan.values()) if pool)
        if (plan := sizes(text) if kind == POOLS else None)
        else of_replica
        for text, kind, of_replica in zip(
            rows["plan"], rows["kind"], np.where(_square(rows), rows["moe_tp"], rows["tp"]), strict=True
        )
    ]
    checked.rows = rows.assign(gpus=np.array(gpus, dtype=np.float64))
    return [_without_quantity(checked)]


def _without_model(checked: Measurements) -> Iterator[Iterator[Problem]]:
    rows = checked.rows
    checked.rows = rows = rows.assign(
        clients=pd.to_numeric(rows["concurrency"], errors="coerce"), prompt=pd.to_numeric(rows["isl"], errors="coerce"),
        **{name: rows["plan"].str.extract(rf"\b{name}=(\d+)")[0].astype(float) for name in _DEGREES},
    )  # fmt: skip
    plans = [sizes(text) if mode == "disagg" else None for text, mode in zip(rows["plan"], rows["mode"], strict=True)]
    single, double = rows["mode"] == "agg", pd.Series([plan is not None for plan in plans], rows.index)
    checked.rows = rows = rows.assign(kind=np.where(double, POOLS, "serving"))
    alone = rows["mode"].str.startswith("disagg-")
    yield checked.by_value(alone, "mode", "only replicas that do both, and two pools, are compared")
    unknown = ~(single | double | alone)
    yield checked.by_value(unknown, "mode", "how many workers a pool has, and of which degrees, is not stated")
    single = single | double
    known, able = rows["model"].isin([*MODELS]), rows["framework"].isin([*KITS])
    yield checked.by_value(single & ~known, "model", "the catalogue has no model of this name and its operators")
    yield checked.by_value(single & ~able, "framework", f"Weft knows {', '.join(KITS)} here")
    rest = single & known & able
    loop = rest & rows[["clients", "prompt", "osl"]].notna().all(axis=1)
    yield checked.by_value(rest & ~loop, "concurrency", "only closed loops of clients with stated lengths are compared")
    formats = loop & ~rows["precision"].isin([*FORMATS])
    yield checked.by_value(formats, "precision", f"Weft knows {', '.join(filter(None, FORMATS))} here")
    whole = ~_square(rows) & (
        ((rows["moe_ep"] > 1) & (rows["moe_ep"] != rows["tp"])) | (rows["dp_attn"] > 1) | (rows["pp"] > 1)
        | ~rows["tp"].isin([1, 2, 4, 8]) | (rows["batch"].notna() & (rows["batch"] != rows["clients"]))
    )  # fmt: skip
    rule = "only replicas of 1, 2, 4 or 8 GPUs that share every layer, experts in slices or whole, are compared"
    yield checked.by_value(loop & ~formats & ~double & whole, "plan", rule)
    apart = [plan is not None and not all(map(workers, plan.values())) for plan in plans]
    rule = (
        "only workers of 1, 2, 4 or 8 GPUs that share every layer, experts in slices or whole, and those with "
        "attention by data parallelism and whole experts are compared"
    )
    yield checked.by_value(loop & ~formats & pd.Series(apart, rows.index), "plan", rule)


_DEGREES = ("tp", "pp", "dp_attn", "moe_tp", "moe_ep", "batch")


def _square(rows: Any) -> Any:
    """Return whether a row states tp as the product of degrees of experts that are each the number of GPUs."""
    return (rows["moe_ep"] > 1) & (rows["moe_ep"] == rows["moe_tp"]) & (rows["tp"] == rows["moe_tp"] * rows["moe_ep"])


def _loop(row: Mapping[str, Any], gpu: Gpu) -> ClosedLoop | PooledLoop:
    model = MODELS[row["model"]]
    dtype, weights = _RELEASED.get(model, FORMATS[row["precision"]])
    if dtype == "fp8" and (model in _IN_BLOCKS or "fp8_block" in (row["gemm_dtype"], row["moe_dtype"])):
        dtype = "fp8-block"
    latent = bool(load_model(model).kv_rank) and gpu.architecture == "hopper"
    wide = (dtype == "bf16" and not (weights == "mxfp4" and gpu.architecture == "blackwell")) or latent
    kv_dtype: KvDtype = "bf16" if wide else "fp8"
    version, lengths = str(row.get("version") or ""), (int(row["prompt"]), int(row["osl"]), int(row["clients"]))
    plan = sizes(row["plan"])
    if plan and (reads := workers(plan["reads"])) and (writes := workers(plan["writes"])):
        formats = dtype, weights, kv_dtype
        return PooledLoop(model, gpu.name, reads, writes, row["framework"], *formats, *lengths, version)
    gpus, alike = int(row["gpus"]), bool(_OF_GPU.match(row["upstream"]))
    ep = gpus if row["moe_ep"] > 1 else 1
    return ClosedLoop(
        model, gpu.name, gpus, ep, row["framework"], dtype, weights, kv_dtype, *lengths, alike, version,
    )  # fmt: skip


def _without_quantity(checked: Measurements) -> Iterator[Problem]:
    """Points of too many clients for a time, or that state none, and no throughput of a known kind."""
    compared = np.any([_stated_rows(checked.rows, name) for name in QUANTITIES], axis=0)
    rule = f"only times to the first token at up to {_LOW} clients, and others at up to {_HIGH}, are compared"
    yield from checked.by_value(~compared, "concurrency", rule)


SERVING = RowKind(
    kind="serving",
    query=_query,
    call=_predict_quantity,
    checks=_checks,
    expand=_quantities,
    labels=_labels,
    blamed="model",
)
"""Served loads by GPU and quantity, closed loops of clients on replicas or pools."""


def hosts(subjects: Sequence[Subject]) -> dict[str, float]:
    """The time of the host for each step [s] with the least mean error of TPOT, by "host.FRAMEWORK"."""
    found: dict[str, float] = {}
    for name in KITS:
        some = [one.take(_which(one, "framework", name) & _which(one, "quantity", "TPOT")) for one in subjects]
        some = [one for one in some if len(one)]
        if some:
            errors = [sum(_off(one, {f"host.{name}": host}) for one in some) for host in HOSTS.tolist()]
            found[f"host.{name}"] = float(HOSTS[int(np.argmin(errors))])
    return found


def _which(subject: Subject, label: str, value: str) -> BoolArray:
    return np.asarray(subject.labels[label] == value)


def _off(subject: Subject, values: Mapping[str, float]) -> float:
    return float(np.abs(subject.predict(subject.rows, values) / subject.measured - 1).sum())


def loads_left_out(subjects: Sequence[Subject], label: str) -> list[Predicted]:
    """Predict the points of each model, or GPU, with the hosts' times fitted to those of all others."""
    done = []
    for name in sorted({str(one) for subject in subjects for one in subject.labels[label]}):
        values = hosts([one.take(~_which(one, label, name)) for one in subjects])
        own = [one.take(_which(one, label, name)) for one in subjects]
        done += [predict_subject(one, values) for one in own if len(one)]
    return done


def kernels_alone(subjects: Sequence[Subject]) -> list[Predicted]:
    """Predict served loads by their kernels alone, without the host's times, as `weft.prefill` and `weft.decode` do.

    Each row counts twice: with the `kernels` of its framework, and with those of the vendor.
    """
    hostless = {f"{name}.{framework}": 0.0 for name in _KNOBS for framework in KITS}
    done = []
    for vendor in (False, True):
        for one in subjects:
            named = _VENDOR if vendor else one.labels["framework"]
            labelled = replace(one, labels=one.labels.assign(kernels=named))
            done.append(predict_subject(labelled, {**hostless, **({_VENDOR: 1.0} if vendor else {})}))
    return done
