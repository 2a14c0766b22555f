"""How the declared suite was chosen: by a rule that sees nothing but times alone.

The paper's own table of scenarios is not public. `chosen_suite` makes one in its spirit, and `toml` writes it down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from weft.hardware import Gpu
from weft.predict import gemm as closed_form
from weft.result.sharing import CLASSES, LONGER, Sharing
from weft.studies.c3.runs import Progress, Runs, collective_alone, gemm_alone, simulate
from weft.studies.c3.scenarios import Bound, Scenario, Suite
from weft.sweep import Store
from weft.sweep.streams import Setting
from weft.units import format_bytes

DTYPE = "bf16"
LAYERS = {
    "Llama-70B QKV": (10240, 8192),
    "Llama-70B O": (8192, 8192),
    "Llama-70B gate+up": (57344, 8192),
    "Llama-70B down": (8192, 28672),
    "Llama-70B LM head": (128256, 8192),
    "Llama-405B QKV": (18432, 16384),
    "Llama-405B O": (16384, 16384),
    "Llama-405B gate+up": (106496, 16384),
    "Llama-405B down": (16384, 53248),
    "Llama-405B LM head": (128256, 16384),
}
"""Layers by name: N and K of their weights (Llama 3, arXiv:2407.21783)."""
ROWS: dict[Bound, tuple[int, ...]] = {"compute": (4096, 8192, 16384), "memory": (16, 32, 64)}
"""M of compute-bound GEMMs, as training and prefill have it, and of memory-bound ones, as decoding has it."""
SIZES = sorted({2 * n * k for name, (n, k) in LAYERS.items() if "LM head" not in name})
"""Sizes of collectives: the weights of a layer, as sharded data parallelism gathers them [bytes]."""
COLLECTIVES = ("all_gather", "all_to_all")
PICKED: dict[Bound, int] = {"compute": 3, "memory": 2}
"""Scenarios of each class and collective, by what bounds the GEMM."""
LONGEST = 12.5e-3
"""GEMMs that take longer by the closed form are left out: they cost most to simulate [s]."""
WIDEST = 3.5
"""Times alone differ at most so many times: beyond, there is little to hide."""
MARGIN = 1.02
"""Ratios nearer than this to a class's bound are left out: the class would hang by a thread."""
LEAST_BOUND = 2.0
"""How many times longer reading a memory-bound GEMM's weights takes than multiplying."""
RULE = """\
GEMMs are layers of Llama-70B and Llama-405B in bf16: compute-bound with M = 4096, 8192 or 16384 rows, at most 12.5 ms
long by the closed form; memory-bound with 16, 32 or 64 rows, as decoding has them, where reading the weights takes at
least twice as long as multiplying. Collectives move the weights of one layer but the LM head, as sharded data
parallelism gathers them; the size is that of the whole buffer. Pairs whose times alone differ at most 3.5 times, and
whose ratio is not within 2 % of a class's bound, fall into three classes. Of each class and collective, 3 pairs with a
compute-bound GEMM and 2 with a memory-bound one are taken, from evenly spaced places in the order of that ratio; layers
and sizes that were taken least go before others, and the largest size comes once in a class, as it costs most to
simulate. Nothing but times alone decides.
"""


@dataclass(frozen=True)
class _Pair:
    scenario: Scenario
    ratio: float


def chosen_suite(
    setting: Setting, jobs: int = 2, progress: Progress | None = None, store: Store | None = None
) -> Suite:
    """The suite that the rule gives on a machine, as its times alone are simulated; arguments as of the study."""
    possible = list(_possible(setting.gpu))
    tasks = [task for s in possible for task in (gemm_alone(s, setting), collective_alone(s, setting))]
    runs = simulate(tasks, jobs, progress, store)
    return Suite(
        title="C3 on 8 x MI300X", rule=RULE, scenarios=tuple(_picked(_pairs(possible, setting, runs)))
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


def _possible(gpu: Gpu) -> Iterator[Scenario]:
    """Every GEMM that is bound as the rule has it, with every collective and size."""
    for bound, rows in ROWS.items():
        for layer, (n, k) in LAYERS.items():
            for m in rows:
                if _bound(m, n, k, gpu) == bound:
                    for collective in COLLECTIVES:
                        for size in SIZES:
                            yield Scenario(
                                layer=layer, gemm=(m, n, k), bound=bound, collective=collective, size=size
                            )


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


def _pairs(possible: Sequence[Scenario], setting: Setting, runs: Runs) -> Iterator[_Pair]:
    """The scenarios in their classes, with the ratio of their times; without those at a bound or far apart."""
    bounds = (LONGER, 1 / LONGER)
    for s in possible:
        alone = Sharing(runs[gemm_alone(s, setting)], runs[collective_alone(s, setting)], {})
        ratio = alone.gemm_s / alone.collective_s
        near = any(bound / MARGIN < ratio < bound * MARGIN for bound in bounds)
        if 1 / WIDEST <= ratio <= WIDEST and not near:
            yield _Pair(s.model_copy(update={"kind": alone.kind}), ratio)


def _picked(pairs: Iterator[_Pair]) -> Iterator[Scenario]:
    """Of each class, collective and bound as many as the rule says."""
    left = sorted(pairs, key=lambda p: (p.ratio, p.scenario.gemm, p.scenario.size))
    gemms: Counter[tuple[int, ...]] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    largest: Counter[str | None] = Counter()
    for kind in CLASSES:
        for collective in COLLECTIVES:
            for bound, wanted in PICKED.items():
                cell = [
                    pair.scenario
                    for pair in left
                    if (pair.scenario.kind, pair.scenario.collective, pair.scenario.bound)
                    == (kind, collective, bound)
                ]
                places = [(i + 0.5) / wanted * len(cell) for i in range(wanted)]
                for place in places:
                    best, at = None, (inf, inf, inf)
                    for j, s in enumerate(cell):
                        rank = (gemms[s.gemm], sizes[collective, s.size], abs(j + 0.5 - place))
                        if rank < at and not (s.size == SIZES[-1] and largest[kind]):
                            best, at = s, rank
                    if best is None:
                        break
                    cell.remove(best)
                    gemms[best.gemm] += 1
                    sizes[collective, best.size] += 1
                    largest[kind] += best.size == SIZES[-1]
                    yield best
