"""The exceptions that Weft raises on purpose; the command line shows each as one sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral

LISTED_IN_FULL = 24
"""Known names that a message lists; of more it says how many there are."""
_NEAREST = 3
_SHOWN = 60
LARGEST_WHOLE = 2**50
_PLAIN = ("list", "dict", "tuple", "set", "function")


_NAMES_ELSEWHERE = """
quantize:precision beside:corun readers:prefill_replicas two_batch:two_batch_overlap policy:scheduler
host:cpu_overhead step_tokens:max_num_batched_tokens sequences:max_num_seqs block:block_size curve:sweep_concurrency
memory_share:gpu_memory_utilization max_length:max_model_len speculate:num_speculative_tokens accept:acceptance_rate
draft:speculative_method prefix:shared_prefix input:input_len output:output_len input_tokens:input_len
output_tokens:output_len

tensor_parallel_size:tp pipeline_parallel_size:pp data_parallel_size:replicas kv_cache_dtype:kv_dtype
quantization:weights enable_dbo:two_batch_overlap scheduling_policy:scheduler request_rate:rate
max_concurrency:concurrency num_prompts:requests random_input_len:input_len random_output_len:output_len
isl:input_len osl:output_len isl:sequence random_input_len:sequence input_len:sequence max_concurrency:batch
concurrency:batch goodput:ttft goodput:tpot enable_expert_parallel:ep enable_prefix_caching:shared_prefix
random_prefix_len:shared_prefix enable_chunked_prefill:max_num_batched_tokens enable_chunked_prefill:chunk
speculative_config:num_speculative_tokens speculative_config:speculative_method kv_transfer_config:prefill_replicas
all2all_backend:dispatcher enable_eplb:expert_load dataset_path:trace gpu:system gpus:system num_gpus:system

chunked_prefill_size:max_num_batched_tokens max_running_requests:max_num_seqs page_size:block_size
mem_fraction_static:gpu_memory_utilization context_length:max_model_len schedule_policy:scheduler
tp_size:tp pp_size:pp dp_size:replicas dp_size:dp ep_size:ep moe_a2a_backend:dispatcher
speculative_num_draft_tokens:num_speculative_tokens speculative_algorithm:speculative_method
disaggregation_mode:prefill_replicas

tensor_model_parallel_size:tp pipeline_model_parallel_size:pp context_parallel_size:cp
expert_model_parallel_size:ep sequence_parallel:sp global_batch_size:batch micro_batch_size:micro_batch
seq_length:sequence recompute_granularity:recompute recompute_modules:recompute cp_comm_type:context
activation_checkpointing:recompute activation_checkpoint:recompute moe_token_dispatcher_type:dispatcher
moe_flex_dispatcher_backend:dispatcher moe_enable_deepep:dispatcher recompute_activations:recompute
virtual_pipeline_model_parallel_size:schedule num_layers_per_virtual_pipeline_stage:schedule
num_virtual_stages_per_pipeline_rank:schedule use_distributed_optimizer:zero use_megatron_fsdp:zero
num_distributed_optimizer_instances:shard pipeline_model_parallel_layout:layers fp8:precision fp8_format:precision
fp8_recipe:precision fp4_format:precision tp_comm_overlap:overlap optimizer_cpu_offload:offload
alltoall:nccl flex:deepep flex:hybridep

bench:serve benchmark:serve throughput:serve latency:serve train:step search:plan profile:import gpus:hardware
"""
"""Retired names, names of vLLM, SGLang and Megatron Core for options that differ here, and commands, as OTHER:OURS."""
_RENAMED: dict[str, list[str]] = {}
for _other, _, _ours in (_pair.partition(":") for _pair in _NAMES_ELSEWHERE.split()):
    _RENAMED.setdefault(_other, []).append(_ours)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names in the place of `name` now, else those that look most like it, best first; empty if none.

    Signs and the owner of a Hugging Face model ("owner/name") do not count.
    """
    known = list(known)
    renamed = _RENAMED.get(name.replace("-", "_"), ())
    now = [candidate for candidate in known if candidate.replace("-", "_") in renamed]
    if now:
        return now[:_NEAREST]
    name = name.rpartition("/")[2].lower()
    plain = {candidate: re.sub(r"[^a-z0-9]", "", candidate.lower()) for candidate in known}
    bare = re.sub(r"[^a-z0-9]", "", name)
    same = [candidate for candidate in known if bare and plain[candidate] == bare]
    if same:
        return same[:_NEAREST]
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name, list(by_lower_case), n=_NEAREST, cutoff=0.5)
    begun = [candidate for candidate in by_lower_case if len(name) > 2 and candidate.startswith(name)]
    longer = [
        candidate.lower() for candidate in known if len(plain[candidate]) > 3 and bare.startswith(plain[candidate])
    ]
    longer.sort(key=len, reverse=True)
    return [by_lower_case[candidate] for candidate in dict.fromkeys([*longer, *sorted(begun), *close])][:_NEAREST]


def join_or(names: Sequence[str]) -> str:
    """Join alternatives, quoted, in English: "'a'", "'a' or 'b'", "'a', 'b' or 'c'"."""
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def show_value(value: object) -> str:
    """Return a short text of a value of any type, for messages."""
    if value is None or isinstance(value, str | bytes | int | float):
        try:
            text = repr(value)
        except ValueError:  # a number with more digits than Python converts
            text = "a number of thousands of digits"
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    name = type(value).__name__
    return f"an object of the type {name}" if name not in _PLAIN else f"a {name}"


def check_type(what: str, value: object, kinds: type | tuple[type, ...], rule: str) -> None:
    """Raise InputError unless a value has one of those types; `rule` says what to pass instead."""
    if not isinstance(value, kinds):
        raise InputError(f"{what} is {show_value(value)}; {rule}")


def check_name(kind: str, name: object, known: Collection[str], listed: bool = False) -> None:
    """Raise UnknownNameError, which lists even many names if `listed`, unless a value is one of the known names."""
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError(kind, name, known, listed)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number; False for booleans."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def check_whole(what: str, value: object, least: int, example: int) -> None:
    """Raise InputError unless a value is a whole number of at least `least`."""
    number = int(value) if is_whole(value) else least - 1  # type: ignore[call-overload]
    if number < least:
        raise InputError(
            f"{what} is {show_value(value)}; it must be a whole number of at least {least}, like {example}"
        )
    if number > LARGEST_WHOLE:
        raise InputError(f"{what} is {show_value(value)}; it must be at most {LARGEST_WHOLE}")


def reason(error: Exception) -> str:
    """Return why plain data could not be read, for messages: the missing key, or the value's own words."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, InputError | ValueError):
        return "a number has thousands of digits" if "set_int_max_str_digits" in str(error) else str(error)
    return "a value has another type"


class WeftError(Exception):
    """Root of every error that Weft raises on purpose."""


class InputError(WeftError):
    """A value, name or combination that the caller gave cannot be used."""


class UnitError(InputError):
    """A quantity has no unit, an unknown unit, or a unit of another dimension."""


class UnknownNameError(InputError):
    """An unknown name; the message lists the known names, if few or if `listed`, and suggests the nearest."""

    def __init__(self, kind: str, name: object, known: Iterable[str], listed: bool = False) -> None:
        self.kind = kind
        self.name = name if isinstance(name, str) else show_value(name)  # any object that the caller passed as a name
        self.known = tuple(known)
        self.listed = listed
        super().__init__(kind, name, self.known, listed)

    def __str__(self) -> str:
        close = nearest(self.name, self.known)
        hint = f"; did you mean {join_or(close)}?" if close else ""
        return f"unknown {self.kind} '{self.name}'; {self._listing()}{hint}"

    @property
    def is_cut(self) -> bool:
        """Whether the known names are too many for the message to list."""
        return not self.listed and len(self.known) > LISTED_IN_FULL

    def _listing(self) -> str:
        if not self.known:
            return f"no {self.kind} is known"
        if not self.is_cut:
            return f"known: {', '.join(self.known)}"
        return f"{len(self.known)} are known, from '{self.known[0]}' to '{self.known[-1]}'"


class SystemNamedError(UnknownNameError):
    """A system's name was given where a GPU's is required; the message names that system's GPU."""

    def __init__(self, name: str, gpu: str) -> None:
        super().__init__("GPU", name, (gpu,))
        self.args = (name, gpu)

    def __str__(self) -> str:
        return f"'{self.name}' is a system, not a GPU; its GPU is {self.known[0]}"


class ConfigError(InputError):
    """A configuration (a file, or values set by path) breaks a rule; `file` and `key` say where."""

    def __init__(self, message: str, file: str | None = None, key: str | None = None) -> None:
        self.message = message
        self.file = file
        self.key = key
        super().__init__(message, file, key)

    def __str__(self) -> str:
        place = [part for part in (self.file, self.key) if part]
        return ": ".join([*place, self.message])


class SimulationError(WeftError):
    """A simulation could not finish: it is deadlocked, or it exhausted its event budget."""


class OutputError(WeftError):
    """A result cannot be written where the caller asked."""
