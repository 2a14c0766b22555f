"""`weft hardware`, `models` and `overlaps`: what Weft knows by name, and where each of its values comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft import hardware as machines
from weft.cli.options import examples, option
from weft.cli.output import json_or_tables
from weft.cli.values import GPU, MACHINE_NAME, MODEL_NAME, OVERLAP, Value
from weft.core.errors import OutputError, UnknownNameError, check_name
from weft.core.files import write_atomically
from weft.core.report.table import Table, number, text, texts
from weft.core.units import format_bytes, format_frequency, format_rate, format_time
from weft.graph import Collective, Gemm, Graph
from weft.hardware import Gpu, Node, Provenance
from weft.hardware.form import NOT_STATED
from weft.models import SUBLAYERS, Transformer, load_model, model_names
from weft.models.counts import kv_bytes, state_bytes
from weft.models.parallel import sublayer
from weft.view.words import sourced_table

if TYPE_CHECKING:
    from weft.models.parallel.framework import Framework
    from weft.overlaps import OverlapMethod


def _bytes_per_s(rate: float) -> str:
    return format_rate(rate, 3)


def _memory(capacity: float) -> str:
    """Return a memory capacity in decimal units, as plans and steps state their bytes."""
    return f"{capacity / 1e9:.3g} GB"


_GPU_COLUMNS = (
    text("name"), text("title", spare=True), number("compute_units", "units", format_="d"),
    number("bf16_tflops", "bf16 TFLOP/s", format_=".0f"), number("memory_bytes", "memory", format_=_memory),
    number("memory_bytes_per_s", "memory rate", format_=_bytes_per_s, spare=True),
    number("cache_bytes", "cache", format_=format_bytes, spare=True), number("links", "links, one way", format_=str),
)  # fmt: skip
_SYSTEM_COLUMNS = (
    text("name"), text("title", spare=True), text("gpu", "GPU"), number("gpus", "GPUs"), text("topology", "joined by"),
    text("network", "network per GPU", prose=True),
)  # fmt: skip


@click.group(epilog=examples("weft hardware show h100-sxm"))
def hardware() -> None:
    """List and show GPUs and systems, each value with its unit and source."""


@hardware.command("list", epilog=examples("weft hardware list"))
@json_or_tables
def list_machines() -> tuple[Any, list[Table]]:
    """List the GPUs of the catalogue and the systems that hold them."""
    gpus = [machines.gpu(name) for name in machines.gpu_names()]
    systems = machines.known_nodes()
    return [*map(_gpu_entry, gpus), *map(_system_entry, systems)], [
        Table(_GPU_COLUMNS, list(map(_gpu_row, gpus)), "GPUs"),
        Table(_SYSTEM_COLUMNS, list(map(_system_row, systems)), "Systems"),
    ]


@hardware.command(
    "show",
    short_help="Show what a GPU or system can do, or every value with its source.",
    epilog=examples("weft hardware show h100-sxm --all"),
)
@click.argument("name", type=MACHINE_NAME)
@click.option("--all", "every", is_flag=True, help="Show every value: path (for --set), kind, range and source.")
@json_or_tables
def show_machine(name: str, every: bool) -> tuple[Any, list[Table | str]]:
    """Show what a GPU or a system can do; with --all every value, its kind, plausible range and source.

    A "peak" value is a data sheet's, an "achieved" one was measured under load, a "calibrated" one was fitted.
    """
    found = _find(name)
    texts = {path: _text(found, path) for path in (found.rules() if isinstance(found, Gpu) else found.provenance)}
    entry = _gpu_entry(found) if isinstance(found, Gpu) else _system_entry(found)
    values = [_value_entry(found, path, found.provenance.get(path)) for path in texts]
    shown: list[Table | str] = [sourced_table(_headline(found), "path", texts, found.provenance)]
    if isinstance(found, Gpu):
        if not every:
            shown = [Table((text("what"), text("is", prose=True)), list(_summary(found)), _headline(found))]
        shown += [f"Check: {doubt}." for doubt in found.doubts]
        derived = [
            f"{path} {found.text(path)}" for path, p in found.provenance.items() if p.source.startswith(NOT_STATED)
        ]
        shown += [f"Derived, as the file does not state them: {', '.join(derived)}."] if derived else []
        if not every:
            shown.append(f"{len(texts)} values, each with kind, range and source: weft hardware show {name} --all")
    return {**entry, "values": values}, shown


def _text(found: Gpu | Node, path: str) -> str:
    """Return the value at a path; of a rate per clock also the peak of the whole GPU that it makes."""
    dtype = path.removeprefix("rates.")
    if dtype == path or not isinstance(found, Gpu) or not found.supports(dtype):
        return found.text(path)
    return f"{found.text(path)} FLOP per clock and unit, {found.matrix_rate(dtype) / 1e12:,.4g} TFLOP/s"


def _summary(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yield what matters of a GPU, in rows."""
    c, m, link = gpu.compute, gpu.memory, gpu.link
    clocks = f"{_hertz(c.clock)} boost, {_hertz(gpu.clocks.sustained)} in long runs"
    yield "compute", f"{c.compute_units} {gpu.units_word}, {clocks}"
    known = [dtype for dtype in machines.DTYPES if gpu.supports(dtype)]
    for name, clock in (("TFLOP/s, data sheet", "peak"), ("TFLOP/s, long runs", "sustained")):
        rates = (f"{dtype} {gpu.matrix_rate(dtype, clock) / 1e12:,.4g}" for dtype in known)  # type: ignore[arg-type]
        yield name, ", ".join(rates)
    reads, copies = (f"{share:.0%}" for share in (m.read_efficiency, m.copy_efficiency))
    yield "memory", f"{_memory(m.capacity)}, {_bytes_per_s(m.bandwidth)} ({reads} in reads, {copies} in copies)"
    yield "cache", f"{format_bytes(gpu.cache.capacity)}, {_bytes_per_s(gpu.cache.bandwidth)}"
    if gpu.memory_cache.capacity:
        held = gpu.memory_cache
        yield "memory-side cache", f"{format_bytes(held.capacity)}, {_bytes_per_s(held.bandwidth)}"
    joined = f"{link.links} links" if link.links else "no links, PCIe"
    payload = f"{link.kernel_efficiency:.0%} by kernels, {link.dma_efficiency:.0%} by copy engines"
    yield "to other GPUs", f"{joined}, {_bytes_per_s(link.bandwidth)} each way ({payload})"
    yield "to the host", f"{_bytes_per_s(gpu.host.bandwidth)} each way, {gpu.dma.engines} copy engines"
    yield "launch of a kernel", format_time(c.launch_latency)
    kinds = Counter(one.kind for one in gpu.provenance.values())
    yield "values by kind", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _hertz(clock: float) -> str:
    return format_frequency(clock, 4)


@hardware.command("new", epilog=examples("weft hardware new --like h100-sxm --out my-gpu.toml"))
@option("--like", "The known GPU that is most like the new one.", GPU, required=True, metavar="NAME|FILE")
@option("--out", "The file to write.", click.Path(path_type=Path), default=Path("my-gpu.toml"), metavar="FILE")
def new_machine(like: Gpu, out: Path) -> None:
    """Write a form for a GPU of your own: a TOML file with what a data sheet states, to be filled in.

    Commands take the file wherever they take a GPU's name.
    """
    if out.exists():
        raise OutputError(f"'{out}' exists already; name another file by --out")
    path = write_atomically(out, machines.form(like))
    click.echo(f"{path}: replace what the data sheet states, then run: weft hardware show {path}")


def _find(name: str) -> Gpu | Node:
    """The GPU or node with that name or file, or the node that "8xH100" means; UnknownNameError suggests others."""
    if name not in machines.node_names():
        try:
            return machines.gpu(name)
        except UnknownNameError as error:
            if error.kind != "GPU" or error.name != name:
                raise
    found = machines.system(name)
    return found.node or found.gpu


def _headline(found: Gpu | Node) -> str:
    also = f" Also known as {', '.join(found.aliases)}." if found.aliases else ""
    gpu = f" Its GPU: {found.gpu.name}." if isinstance(found, Node) else ""
    return f"{found.name}: {found.description}{gpu}{also}"


def _gpu_row(gpu: Gpu) -> tuple[Any, ...]:
    link = f"{gpu.link.links} x, " if gpu.link.links else "PCIe, "
    rate = gpu.matrix_rate("bf16") / 1e12 if gpu.supports("bf16") else None
    memory, links = gpu.memory, link + _bytes_per_s(gpu.link.bandwidth)
    amounts = (rate, memory.capacity, memory.bandwidth, gpu.cache.capacity)
    return gpu.name, gpu.title, gpu.compute.compute_units, *amounts, links


def _system_row(system: Node) -> tuple[Any, ...]:
    joined = system.topology + (", which reduces" if system.switch_reduces else "")
    network = f"{_bytes_per_s(system.network.bandwidth)}, {system.network.kind}"
    return system.name, system.title, system.gpu.name, system.gpus_per_node, joined, network


def _gpu_entry(gpu: Gpu) -> dict[str, Any]:
    return {
        **_about("gpu", gpu),
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "compute_units": gpu.compute.compute_units,
        "peak_flops": {dtype: gpu.matrix_rate(dtype) for dtype in machines.DTYPES if gpu.supports(dtype)},
        "memory_bytes": gpu.memory.capacity,
        "memory_bandwidth": gpu.memory.bandwidth,
        "cache_bytes": gpu.cache.capacity,
        "links": gpu.link.links,
        "link_bandwidth": gpu.link.bandwidth,
    }


def _system_entry(system: Node) -> dict[str, Any]:
    return {
        **_about("system", system),
        "gpu": system.gpu.name,
        "gpus_per_node": system.gpus_per_node,
        "topology": system.topology,
        "switch_reduces": system.switch_reduces,
        "network": system.network.model_dump(),
    }


def _about(kind: str, found: Gpu | Node) -> dict[str, Any]:
    names = {"name": found.name, "title": found.title, "description": found.description}
    return {"kind": kind, **names, "aliases": list(found.aliases)}


def _value_entry(found: Gpu | Node, path: str, provenance: Provenance | None) -> dict[str, Any]:
    """Return a value in its base unit, with its provenance."""
    known = provenance.model_dump(exclude={"text"}) if provenance else {}
    rule = found.rules()[path]
    unit = rule.dimension.value if rule else ""
    return {"path": path, "value": found.value(path), "unit": unit, "text": found.text(path), **known}


_SIZES = {"layers": "layers", "hidden": "hidden", "sequence_length": "context"}
_COLUMNS = (
    text("tp", "TP"),
    text("sublayer", "sub-layer"),
    text("what"),
    *(number(size, size.upper(), format_="d") for size in "mnk"),
    number("gflop", "GFLOP", format_=".1f"),
    number("payload_bytes", "payload", format_=partial(format_bytes, digits=4)),
)


@click.group(epilog=examples("weft models show t-nlg"))
def models() -> None:
    """List and show models and their sub-layers."""


@models.command("list", epilog=examples("weft models list"))
@json_or_tables
def list_models() -> tuple[Any, list[Table]]:
    """List the models of the catalogue."""
    known = [load_model(name) for name in model_names()]
    billions = [number(name, f"{name} [billion]", format_=".4g") for name in ("parameters", "active")]
    sizes = [number(name, title, format_="d") for name, title in _SIZES.items()]
    columns = [text("name"), text("title"), *billions, *sizes]
    rows = [(m.name, m.title, m.parameters / 1e9, m.active_parameters / 1e9, *_sizes(m)) for m in known]
    return list(map(_dimensions, known)), [Table(columns, rows, "Models")]


@models.command(
    "show", short_help="Show dimensions, with sources, and sub-layers.", epilog=examples("weft models show t-nlg")
)
@click.argument("name", type=MODEL_NAME)
@json_or_tables
def show_model(name: str) -> tuple[Any, list[Table]]:
    """Show a model's dimensions with their sources, and its sub-layers as one GPU computes them."""
    model = load_model(name)
    layers = [sublayer(model, kind, tp) for tp in model.tensor_parallel for kind in SUBLAYERS]
    provenance = {key: found.model_dump() for key, found in model.provenance.items()}
    values = {key: found.text for key, found in model.provenance.items()}
    values.setdefault("heads", str(model.attention_heads))
    title = f"{model.name}: {model.title}, {_parameter_words(model)}"
    tables = [sourced_table(title, "dimension", values, model.provenance)]
    if layers:
        tables.append(Table(_COLUMNS, list(map(_row, layers)), "Sub-layers, on each GPU"))
    return _dimensions(model) | {"provenance": provenance, "sublayers": list(map(_layer, layers))}, tables


def _parameter_words(model: Transformer) -> str:
    """Return how many parameters a model has, in words."""
    each = f", {model.active_parameters / 1e9:.1f} billion of them for each token" if model.experts else ""
    digits = 1 if model.parameters > 1e10 else 3
    token, states = kv_bytes(model, 1) / 1e3, state_bytes(model) / 1e6
    kept = f"; KV cache {token:.1f} kB per token, states {states:.1f} MB"
    return f"{model.parameters / 1e9:.{digits}f} billion parameters{each}{kept if model.linear else ''}"


def _sizes(model: Transformer) -> tuple[int, ...]:
    return tuple(getattr(model, name) for name in _SIZES)


def _parts(layer: Graph) -> tuple[str, Gemm, int]:
    """Return name, GEMM and all-reduce size [bytes] of a sub-layer."""
    gemm, moved = layer["gemm"].op, layer["all_reduce"].op
    assert isinstance(gemm, Gemm)
    assert isinstance(moved, Collective)
    return layer.labels["sublayer"], gemm, moved.bytes


def _row(layer: Graph) -> tuple[Any, ...]:
    name, gemm, payload = _parts(layer)
    return layer.ranks, name, layer.labels["title"], gemm.m, gemm.n, gemm.k, gemm.flops / 1e9, payload


def _dimensions(model: Transformer) -> dict[str, Any]:
    counts = {"tokens": model.tokens, "parameters": model.parameters, "active_parameters": model.active_parameters}
    if model.causal and not model.encoder_layers:
        counts |= {"kv_cache_bytes_per_token": kv_bytes(model, 1), "state_bytes_per_sequence": state_bytes(model)}
    return model.model_dump(mode="json", exclude={"provenance"}) | counts


def _layer(layer: Graph) -> dict[str, Any]:
    name, gemm, payload = _parts(layer)
    shape = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "dtype": gemm.dtype, "flops": gemm.flops}
    return {"tp": layer.ranks, "name": name, **shape, "payload_bytes": payload}


FRAMEWORK_FIELDS = {
    "zero": "stage of ZeRO that a plan has by default",
    "gradients": "number format in which gradients of micro-batches are accumulated",
    "reduce_dtype": "number format in which replicas reduce gradients",
    "tp": "overlap of tensor-parallel collectives with GEMMs",
    "async_tp": "collectives of the backward pass overlap weight gradients",
    "dp_overlap": "replicas reduce gradients during the backward pass",
    "gather_overlap": "replicas gather updated weights during the forward pass",
    "bucket": "parameters that replicas reduce at once (0: all)",
    "keeps_weights": "FSDP keeps gathered weights from the forward to the backward pass",
    "gathers_main": "FSDP gathers weights from the fp32 main copy, and keeps no other",
    "sends": "sends between pipeline stages: blocking, overlapped, or overlapped if interleaved",
    "dispatcher": "library of MoE dispatch and combine",
    "dispatcher_units": "compute units of that library (0: as many as it takes by itself)",
    "paired": "EP overlap: dispatch and combine overlap another micro-batch",
    "delay_wgrad": "gradients of weights fill what is left of the exchanges",
    "graphs": "what CUDA graphs hold",
    "fused_experts": "one kernel for an expert's first GEMM of 8 bits, activation and cast",
    "attention": "number format of attention under recipes of 8 bits (none: 16 bits)",
    "recipes": "recipes of 8 and 4 bits that it runs (none: not stated)",
    "optimizer": "optimizer",
    "optimizer_bytes": "bytes of optimizer states per parameter",
    "launch": "time of the host to launch an operator [s] (0: ahead of the GPU)",
    "launch_experts": "the same in layers of experts [s]",
    "launch_each": "the same, more for each GEMM of a single expert [s]",
}
"""What `weft frameworks show` says of a framework, with the meaning of each value."""


def _frameworks() -> Mapping[str, Framework]:
    from weft.models.parallel.framework import frameworks  # imported when asked for: other lists do without plans

    return frameworks()


@click.group(epilog=examples("weft frameworks show megatron-core"))
def frameworks() -> None:
    """List and show training frameworks: whose defaults a step has."""


@frameworks.command("list", epilog=examples("weft frameworks list"))
@json_or_tables
def list_frameworks() -> tuple[Any, list[Table]]:
    """List the frameworks of --framework, and which of them 'weft plan' searches by itself."""
    known = _frameworks().values()
    rows = [
        (
            one.name, one.title, _where(one) if one.current else "", one.zero, one.dispatcher,
            "yes" if one.paired else "no", _graph_modules(one),
        )
        for one in known
    ]  # fmt: skip
    columns = [
        text("name"), text("title", prose=True), text("searched", "searched by plan", prose=True),
        number("zero", "ZeRO", format_="d"), text("dispatcher", "MoE dispatch"), text("paired", "EP overlap"),
        text("graphs", "CUDA graphs"),
    ]  # fmt: skip
    return [_framework_entry(one) for one in known], [Table(columns, rows, "Training frameworks")]


@frameworks.command("show", epilog=examples("weft frameworks show megatron-bridge"))
@click.argument("name", type=Value("NAME", str, _frameworks))
@json_or_tables
def show_framework(name: str) -> tuple[Any, list[Table | str]]:
    """Show what a framework does by default, what that means, and the source."""
    from weft.models.parallel.framework import framework

    found = framework(name)
    rows = [(field, _value(getattr(found, field)), what) for field, what in FRAMEWORK_FIELDS.items()]
    table = Table([text("field"), text("value"), text("what", "what it means", prose=True)], rows, found.title)
    return _framework_entry(found), [table, f"Source: {found.source}"]


def _where(one: Framework) -> str:
    """On which GPUs and under which recipes plans of a framework are searched."""
    vendor = one.vendor and f"{one.vendor.upper()} GPUs"
    gpus = f"GPUs with {one.matrix}" if one.matrix else vendor or "all GPUs"
    return gpus + ", in 8 or 4 bits" * one.low


def _graph_modules(one: Framework) -> str:
    return ", ".join(one.graphs) or "none"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return format_time(value) if isinstance(value, float) and value else str(value or (value == "" and "none") or 0)


def _framework_entry(one: Framework) -> dict[str, Any]:
    about = {"kind": "framework", "name": one.name, "title": one.title, "current": one.current, "source": one.source}
    return {**about, **{field: getattr(one, field) for field in FRAMEWORK_FIELDS}}


_EXAMPLES = "weft overlaps list", "weft overlaps list --axis tp"
_SENTENCES = ("name", "timed by", "summary")
_USES = ("name", "joins", "applies to", "forms", "needs")


@click.group(epilog=examples(*_EXAMPLES))
def overlaps() -> None:
    """List the ways to overlap compute and communication."""


def _places() -> tuple[str, ...]:
    from weft.overlaps import PLACES

    return tuple(PLACES)


def _place(text: str) -> str:
    check_name("place of an overlap", text, _places())
    return text


@overlaps.command("list", short_help="List the overlaps, each in a sentence.", epilog=examples(*_EXAMPLES))
@option(
    "--axis",
    "Only those of one place: sub-layer, experts, pair (that co-runs), program, or an axis of a step: tp, cp, ep, dp.",
    Value("PLACE", _place, _places),
    name="place",
)
@click.argument("methods", nargs=-1, type=OVERLAP, metavar="[NAME|FILE:CLASS]...")
@json_or_tables
def list_overlaps(place: Any, methods: Sequence[str]) -> tuple[Any, list[Table]]:
    """List the overlap methods by the names that simulate, advise fuse, step, plan, scale and sweeps take.

    With names, list only these; a method in a file of yours is named like mine.py:Mine, here and in every command.
    """
    from weft.overlaps import OVERLAPS

    for name in methods:
        check_name("overlap", name, OVERLAPS, listed=True)
    chosen = [OVERLAPS[name] for name in methods or OVERLAPS if place is None or OVERLAPS[name].applies(place)]
    title = "Overlap methods" if place is None else f"Overlap methods of {place}"
    sentences = [(one.name, one.timed_by, one.summary) for one in chosen]
    uses = [(one.name, one.joins, *map(", ".join, (one.places, one.forms, one.hardware_needs))) for one in chosen]
    tables = [Table(texts(_SENTENCES), sentences, title), Table(texts(_USES), uses, "What they join, and where")]
    return [_entry(one) for one in chosen], tables


def _entry(one: OverlapMethod) -> dict[str, Any]:
    """Return an overlap as plain data."""
    from weft.overlaps import find_strategy

    strategy = find_strategy(one.name)
    return {
        "name": one.name,
        "summary": one.summary,
        "joins": one.joins,
        "applies_to": list(one.places),
        "forms": list(one.forms),
        "timed_by": one.timed_by,
        "needs": list(one.hardware_needs),
        "kind": "ideal" if one.parts else "simulated" if one.simulated else "closed form",
        "arbiter": None if one.parts or not one.simulated else one.arbiter.name,
        "driver": None if strategy is None else strategy.driver,
        "units_apart": strategy is not None and strategy.partition,
    }
