"""Disaggregated servers that were measured: a pool of workers that read prompts, and one that writes answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from weft import hardware
from weft.hardware import System
from weft.kernels.library.kits import framework_tables
from weft.models import load_model
from weft.serving.load import Load
from weft.serving.requests import RequestSpec, RequestStream
from weft.serving.result import Limits
from weft.serving.serve import Ready, Server, ready
from weft.serving.steady import Steady
from weft.step.serving_plan import KvDtype, ServingPlan

_PLAN = re.compile(r"prefill:(?P<reads>[^:]*) decode:(?P<writes>[^:]*)")
_SIZES = ("workers", "tp", "dp_attn", "moe_tp", "moe_ep")
ROUNDS, SHORTEST = 10, 0.8
"""InferenceMAX's loops (SemiAnalysisAI/InferenceX, benchmarks): requests of each client, of which the first come at
once, and the shortest of lengths that are drawn evenly, of the stated ones."""
_DOMAIN = 72
"""GPUs of a domain of NVLink that holds both pools; pools of smaller ones send over the network."""


@dataclass(frozen=True)
class Workers:
    """A pool: its `workers` of `tp` GPUs that share experts by `ep`, or of `ep` GPUs with attention data parallel."""

    workers: int
    tp: int
    ep: int

    @property
    def gpus(self) -> int:
        """GPUs of a worker."""
        return max(self.tp, self.ep)

    @property
    def replicas(self) -> int:
        """Replicas of the pool: each rank with attention data parallel is one."""
        return self.workers * (self.ep if self.ep > self.tp else 1)


def sizes(plan: str) -> dict[str, dict[str, int]] | None:
    """The degrees of both pools, "reads" and "writes", as a row's plan states them; None if it states not all."""
    match = _PLAN.search(plan)
    if not match:
        return None
    found = {name: dict(re.findall(r"(\w+)=(\d+)", text)) for name, text in match.groupdict().items()}
    if any(set(_SIZES) - set(pool) for pool in found.values()):
        return None
    return {name: {size: int(pool[size]) for size in _SIZES} for name, pool in found.items()}


def workers(of: Mapping[str, int]) -> Workers | None:
    """A pool by its degrees; None for one whose workers split layers in a way that no replica of Weft does."""
    tp, dp, slices, ep = (of[name] for name in _SIZES[1:])
    if dp > 1:
        return Workers(of["workers"], 1, ep) if (tp, slices, ep) == (1, 1, dp) else None
    whole = (slices, ep) == (1, tp) or ep == 1
    return Workers(of["workers"], tp, max(1, ep)) if whole and tp in (1, 2, 4, 8) else None


@dataclass(frozen=True)
class PooledLoop:
    """A closed loop of `clients` on two pools of GPUs, with prompts and answers up to the stated lengths [tokens]."""

    model: str
    gpu: str
    reads: Workers
    writes: Workers
    framework: str
    dtype: str
    weights: str
    kv_dtype: KvDtype
    prompt: int
    answer: int
    clients: int
    version: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return sum(pool.workers * pool.gpus for pool in (self.reads, self.writes))

    @property
    def tokens(self) -> tuple[float, float]:
        """Mean tokens of a prompt and of an answer."""
        share = (1 + SHORTEST) / 2
        return share * self.prompt, share * self.answer

    @cache  # noqa: B019 - one of few hundred rows
    def served(self, host: float | None = None, outside: float | None = None, launch: float | None = None) -> Steady:
        """Return what a benchmark sees: the loop is simulated request by request; InputError without room.

        A first token comes once its KV cache has been sent. A host's own time for each step, a request's time
        outside of steps, tokenizer aside, and a host's time for each launch [s] may be given.
        """
        asked = self._ready()
        server = _with_host_times(asked.server, host, outside, launch)
        assert server.reads
        server = replace(server, reads=_with_host_times(server.reads, host, outside, launch))
        answered, _ = server.run(asked.asked)
        sent = 0.0 if server.how.asks_again else server.sending(round(self.tokens[0]))  # else in the time of the second
        tpot = float(np.mean([one.tpot for one in answered]))
        rate = len(answered) / max(one.done for one in answered)
        return Steady(float(np.mean([one.ttft for one in answered])) + sent, tpot, rate)

    def _ready(self) -> Ready:
        """Return the loop as `weft.serve` asks it."""
        count, draw = ROUNDS * self.clients, np.random.default_rng(0).integers
        lengths = (draw(round(SHORTEST * most), most + 1, count).tolist() for most in (self.prompt, self.answer))
        drawn = RequestStream([RequestSpec(0.0, *each) for each in zip(*lengths, strict=True)], "", self.clients)
        prefills = self.reads.replicas
        plan = ServingPlan(
            tp=self.writes.tp, ep=self.writes.ep, replicas=prefills + self.writes.replicas, prefill_replicas=prefills,
            prefill_tp=self.reads.tp, prefill_ep=self.reads.ep, dtype=self.dtype, weights=self.weights,
            kv_dtype=self.kv_dtype, library=self.framework, framework=with_version(self.framework, self.version),
        )  # fmt: skip
        load = Load(concurrency=self.clients, requests=count, input_len=self.prompt, output_len=self.answer)
        return ready(load_model(self.model), _system(self.gpu, self.gpus), plan, load, Limits(), drawn=drawn)


def _with_host_times(server: Server, host: float | None, outside: float | None, launch: float | None) -> Server:
    """Return a server with given times of its host [s]; None keeps a time."""
    how = server.how
    how = replace(
        how, host=how.host if host is None else host, frontend=how.frontend if outside is None else outside,
        launch=how.launch if launch is None else launch,
    )  # fmt: skip
    return replace(server, how=how, times=server.times.with_launches(how.launch, how.graphed, how.pieces))


def with_version(framework: str, version: str) -> str:
    """Return a framework at a version whose rules are known to differ, else the framework."""
    return f"{framework}@{version}" if version in framework_tables()[framework]["versions"] else framework


@cache
def _system(gpu: str, gpus: int) -> System:
    """Return a machine of whole nodes that holds `gpus`; more than one, so that pools send over the network."""
    where = hardware.system(f"1x{gpu}").node
    node = where.gpus_per_node if where else gpus
    if gpus <= node >= _DOMAIN:
        return hardware.system(f"{gpus}x{gpu}")
    return hardware.system(f"{max(-(-gpus // node), 1 if node >= _DOMAIN else 2) * node}x{gpu}")
