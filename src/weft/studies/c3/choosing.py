"""How the declared suite was chosen: by a rule that sees nothing but times alone.

The paper's own table of scenarios is not public. `chosen_suite` makes one in its spirit, and `toml` writes it down.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from weft.hardware import Gpu
from weft.predict import gemm as closed_form
from weft.result.sharing import CLASSES, LONGER
from weft.result.stream_run import StreamRun
from weft.studies.c3.runs import Run, Runs, collective_alone, gemm_alone
from weft.studies.c3.scenarios import Bound, Kind, Scenario, Suite
from weft.sweep import Progress, Store, results
from weft.sweep.streams import Setting
from weft.units import format_bytes

DTYPE = "bf16"
LAYERS = {
    "Llama-70B QKV": (10240, 8192),
    "Llama-70B O": (8192, 8192),
    "Llama-70B gate": (28672, 8192),
    "Llama-70B down": (8192, 28672),
    "Llama-70B LM head": (128256, 8192),
    "Llama-405B QKV": (18432, 16384),
    "Llama-405B O": (16384, 16384),
    "Llama-405B gate": (53248, 16384),
    "Llama-405B down": (16384, 53248),
    "Llama-405B LM head": (128256, 16384),
}
"""Layers by name: N and K of their weights (Llama 3, arXiv:2407.21783); gate and up are GEMMs of their own."""
ONE_ROW = ("Llama-70B LM head", "Llama-405B LM head")
"""Layers that prefill needs for the last row of a sequence alone: never bound by compute."""
ROWS: dict[Bound, tuple[int, ...]] = {"compute": (8192, 16384), "memory": (16, 32, 64)}
"""M of compute-bound GEMMs, as training and prefill have it, and of memory-bound ones, as decoding has it."""
_TOGETHER = (("QKV", "O"), ("gate", "gate"), ("gate", "gate", "down"))
_MOST_BYTES = 3328 << 20
SIZES = sorted(
    {
        size
        for model in ("Llama-70B", "Llama-405B")
        for layers in (*((name,) for name in ("QKV", "O", "gate", "down")), *_TOGETHER)
        if (size := sum(2 * n * k for n, k in (LAYERS[f"{model} {name}"] for name in layers))) <= _MOST_BYTES
    }
)
"""Sizes of collectives, 128 MiB to 3.25 GiB: the weights of a layer, or of some that run one after the other [bytes].

Those are QKV and O, gate and up (as large as gate), and both with down.
"""
COLLECTIVES = ("all_gather", "all_to_all")
PICKED: dict[Bound, int] = {"compute": 3, "memory": 2}
"""Scenarios of each class and collective, by what bounds the GEMM."""
LONGEST = 25e-3
"""GEMMs that take longer by the closed form are left out: they cost most to simulate [s]."""
WIDEST = 3.5
"""Times alone differ at most so many times: beyond, there is little to hide."""
MARGIN = 1.02
"""Ratios nearer than this to a class's bound are left out: the class would hang by a thread."""
LEAST_BOUND = 2.0
"""How many times longer reading a memory-bound GEMM's weights takes than multiplying."""
RULE = """\
GEMMs are layers of Llama-70B and Llama-405B in bf16, gate and up each on its own: compute-bound with M = 8192 or 16384
rows, at most 25 ms long by the closed form, and no LM head, of which prefill needs one row; memory-bound with 16, 32 or
64 rows, as decoding has them, where reading the weights takes at least twice as long as multiplying. Collectives move
the weights of one layer but the LM head, or of several of a block, QKV and O, gate and up, or these with down, up to
3.25 GiB, as sharded data parallelism gathers them; the size is that of the whole buffer. Pairs whose times alone differ
at most 3.5 times, and whose ratio is not within 2 % of a class's bound, fall into three classes. Of each class and
collective, 3 pairs with a compute-bound GEMM and 2 with a memory-bound one are taken, from evenly spaced places in the
order of that ratio; layers and sizes that were taken least go before others, and the largest size comes once in a
class, as it costs most to simulate. Nothing but times alone decides.
"""


@dataclass(frozen=True)
class Pair:
    """A scenario, and how many times as long as the collective its GEMM takes, each alone."""

    scenario: Scenario
    ratio: float

    @property
    def bound(self) -> Bound:
        """What limits the GEMM."""
        return self.scenario.bound or "compute"


def chosen_suite(
    setting: Setting, jobs: int = 2, progress: Progress | None = None, store: Store | None = None
) -> Suite:
    """The suite that the rule gives on a machine, as its times alone are simulated; arguments as of the study."""
    possible = list(possible_scenarios(setting.gpu))
    tasks: list[Run] = [
        task for s in possible for task in (gemm_alone(s, setting), collective_alone(s, setting))
    ]
    runs = results(tasks, StreamRun.from_record, jobs, progress, store)
    return Suite(
        title="C3 on 8 x MI300X", rule=RULE, scenarios=tuple(picked(_pairs(possible, setting, runs)))
    )


def toml(suite: Suite) -> str:
    """A suite as the text of a TOML file."""
    parts = [f'title = "{suite.title}"\nrule = """\n{suite.rule}"""\n']
    for s in suite.scenarios:
        size = f"{s.size >> 20} MiB" if s.size % (1 << 20) == 0 else format_bytes(s.size)
        parts.append(
            f'\n[[scenario]]\nlayer = "{s.layer}"\ngemm = {list(s.gemm)}\nbound = "{s.bound}"\n'
            f'collective = "{s.collective}"\nsize = "{size}"\nclass = "{s.kind}"\n'
        )
    return "".join(parts)


def candidates(gpu: Gpu) -> Iterator[tuple[str, tuple[int, int, int], Bound]]:
    """Every GEMM of the rule: its layer, M x N x K, and what bounds it on a GPU."""
    for bound, rows in ROWS.items():
        for layer, (n, k) in LAYERS.items():
            if bound == "memory" or layer not in ONE_ROW:
                yield from ((layer, (m, n, k), bound) for m in rows if _bound(m, n, k, gpu) == bound)


def possible_scenarios(gpu: Gpu) -> Iterator[Scenario]:
    """Every GEMM of the rule with every collective and size."""
    for layer, gemm, bound in candidates(gpu):
        for collective in COLLECTIVES:
            for size in SIZES:
                yield Scenario(layer=layer, gemm=gemm, bound=bound, collective=collective, size=size)


def _bound(m: int, n: int, k: int, gpu: Gpu) -> Bound | None:
    """What clearly limits a GEMM; None for one in between, or too long."""
    found = closed_form(m, n, k, DTYPE, gpu, clock="sustained")
    reading = 2 * n * k / (gpu.memory.bandwidth * gpu.memory.read_efficiency)
    multiplying = 2 * m * n * k / gpu.matrix_rate(DTYPE, "sustained")
    if float(found.seconds) > LONGEST:
        return None
    if reading >= LEAST_BOUND * multiplying:
        return "memory"
    return "compute" if multiplying >= LEAST_BOUND * reading else None


def _pairs(possible: Sequence[Scenario], setting: Setting, runs: Runs) -> Iterator[Pair]:
    """The scenarios with the ratio of their times alone."""
    for s in possible:
        yield Pair(s, runs[gemm_alone(s, setting)].makespan_s / runs[collective_alone(s, setting)].makespan_s)


def picked(pairs: Iterable[Pair]) -> Iterator[Scenario]:
    """Of each class, collective and bound as many as the rule says, in their classes."""
    cells: defaultdict[tuple[str, str, Bound], list[Scenario]] = defaultdict(list)
    for pair in sorted(pairs, key=lambda p: (p.ratio, p.scenario.gemm, p.scenario.size)):
        near = any(bound / MARGIN < pair.ratio < bound * MARGIN for bound in (LONGER, 1 / LONGER))
        if 1 / WIDEST <= pair.ratio <= WIDEST and not near:
            s = pair.scenario
            known = s.model_copy(update={"kind": _kind(pair.ratio)})
            cells[_kind(pair.ratio), s.collective, pair.bound].append(known)
    taken = _Taken()
    for cell in ((kind, *rest) for kind in CLASSES for rest in product(COLLECTIVES, PICKED)):
        yield from taken.take(cells[cell], PICKED[cell[-1]])


def _kind(ratio: float) -> Kind:
    """The class of a ratio of times."""
    if ratio > LONGER:
        return "G-long"
    return "C-long" if ratio < 1 / LONGER else "GC-equal"


class _Taken:
    """How often GEMMs and sizes have been taken."""

    def __init__(self) -> None:
        self.gemms: Counter[tuple[int, ...]] = Counter()
        self.sizes: Counter[tuple[str, int]] = Counter()
        self.largest: Counter[str | None] = Counter()

    def take(self, cell: list[Scenario], wanted: int) -> Iterator[Scenario]:
        """So many of a cell, in the order of ratios, from evenly spaced places."""
        for place in [(i + 0.5) / wanted * len(cell) for i in range(wanted)]:
            allowed = [s for s in cell if s.size < SIZES[-1] or not self.largest[s.kind]]
            if not allowed:
                return
            places = {id(s): j + 0.5 for j, s in enumerate(cell)}
            best = min(allowed, key=lambda s: self._rank(s, abs(places[id(s)] - place)))
            cell.remove(best)
            self.gemms[best.gemm] += 1
            self.sizes[best.collective, best.size] += 1
            self.largest[best.kind] += best.size == SIZES[-1]
            yield best

    def _rank(self, s: Scenario, far: float) -> tuple[int, int, float]:
        return self.gemms[s.gemm], self.sizes[s.collective, s.size], far
