"""Measure Weft's speed: engine, sub-layer, closed form, compilation, start-up, memory, and SimPy on the same toy.

Run it with `make bench`, or `python benchmarks/run.py --json FILE` to keep the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from weft import hardware

sys.path.insert(0, str(Path(__file__).parent))

STANDARD = ("t-nlg", "fc2", 8)
LARGEST = ("mt-nlg", "fc2", 32)
SHAPES = 1_000_000
QUEUED = (32, 1024)
STREAM = 4000
SMALLEST = (
    "from weft.models import SubLayer\nfrom weft.models.parallel import split\nfrom weft.simulate import simulate\n"
    "simulate(split(SubLayer.custom(256, 256, 64), 2), 't3-paper')"
)
"""A program of one small run."""
WHOLE_SPACE = {
    "zero": [0, 1, 2, 3],
    "recompute": ["none", "selective", "operators", "full"],
    "overlap": [{}, {"tp": "sequential"}, {"tp": "userbuffers"}, {"dp": "sequential"}],
}
"""What the uniform plans may have beside their degrees, schedules and micro-batches."""
SWEPT = 1000
LATENCIES = [f"{nanoseconds} ns" for nanoseconds in range(400, 800, 20)]


def median_of(times: int, measure: Callable[[], float]) -> float:
    """The median of several measurements."""
    return statistics.median(measure() for _ in range(times))


def in_new_process(code: str, **environment: str) -> tuple[float, str]:
    """How long a fresh Python takes to run `code` [s], and what it prints."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - begin, done.stdout


def engine_speed(repeats: int) -> dict[str, float]:
    """Events and requests per second of processor time, and that time, of the standard T3 sub-layer."""
    from weft.models.parallel import sublayer
    from weft.simulate.single import simulate

    layer = sublayer(*STANDARD)
    simulate(layer, "t3-paper", "t3-mca")
    runs = [simulate(layer, "t3-paper", "t3-mca") for _ in range(repeats)]
    begin = time.perf_counter()
    simulate(layer, "t3-paper", "t3-mca")
    whole = time.perf_counter() - begin
    return {
        "events": runs[0].events,
        "events_per_s": statistics.median(run.events / run.cpu_s for run in runs),
        "requests_per_s": statistics.median(run.requests / run.cpu_s for run in runs),
        "sublayer_s": statistics.median(run.cpu_s for run in runs),
        "sublayer_with_lowering_s": whole,
    }


def dram_speed(repeats: int) -> dict[str, float]:
    """Requests of 32 B per second on one core and one channel that is always busy, without what a replay costs once."""
    import numpy as np

    from weft.lab.streams import FINEST, peers_channel
    from weft.simulate.channel import Requests, replay_requests

    gpu, random = peers_channel(), np.random.default_rng(0)

    def measure(address: Any) -> float:
        zero = np.zeros(len(address), dtype=np.int64)
        begin = time.process_time()
        replay_requests(Requests(zero, zero, zero, address * FINEST, zero + FINEST), gpu)
        return time.process_time() - begin

    def rate(address: Any) -> float:
        more = [measure(address) - measure(address[:STREAM]) for _ in range(repeats)]
        return (len(address) - STREAM) / statistics.median(more)

    measure(np.arange(STREAM))  # makes or loads the machine code
    return {
        "sequential_per_s": rate(np.arange(5 * STREAM)),
        "random_per_s": rate(random.integers(0, 1 << 25, 5 * STREAM)),
    }


def queued_gemms(repeats: int) -> dict[str, float]:
    """Engine time per event [us] where so many GEMMs, each in a queue of its own, wait for one GPU."""
    from weft.graph import Gemm, gemm_queue
    from weft.kernels import GemmTiling
    from weft.simulate.single import simulate

    gpu, gemm, tiling = (
        hardware.gpu("mi100"),
        Gemm(1024, 1024, 512),
        GemmTiling(rows=128, columns=128, step=32),
    )

    def measure(count: int) -> float:
        run = simulate(gemm_queue([gemm] * count, None, [tiling] * count), gpu)
        return run.cpu_s / run.events * 1e6

    return {f"us_per_event_{count}": median_of(repeats, partial(measure, count)) for count in QUEUED}


def closed_form(repeats: int) -> dict[str, Any]:
    """GEMM shapes per second on one core, for the GPU of the catalog where they take longest and where least."""
    import numpy as np

    from weft.estimate import estimate
    from weft.graph import Gemm

    random = np.random.default_rng(0)
    ranges = ((1, 16384), (64, 28672), (64, 28672))
    m, n, k = (np.floor(np.exp(random.uniform(np.log(a), np.log(b + 1), SHAPES))) for a, b in ranges)
    gpus = [gpu for gpu in map(hardware.gpu, hardware.gpu_names()) if gpu.supports("bf16")]

    def measure(gpu: Any) -> float:
        begin = time.process_time()
        estimate(Gemm(m, n, k, "bf16"), gpu)
        return SHAPES / (time.process_time() - begin)

    measure(gpus[0])  # makes or loads the machine code
    found = {gpu.name: median_of(repeats, partial(measure, gpu)) for gpu in gpus}
    slowest, fastest = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    return {"shapes_per_s": found, "slowest": slowest, "fastest": fastest}


def first_compile() -> dict[str, float]:
    """What the first simulation of all costs: the engine is compiled into an empty cache."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        first, _ = in_new_process(SMALLEST, WEFT_CACHE=folder)
        second, _ = in_new_process(SMALLEST, WEFT_CACHE=folder)
    return {"first_compile_s": first - second, "first_run_s": first, "second_run_s": second}


def start_up(repeats: int) -> dict[str, float]:
    """How long `import weft` and `weft --help` take, with Python's own start."""
    help_code = "import sys; sys.argv = ['weft', '--help']; from weft.cli.main import main; main()"
    return {
        "python_s": median_of(repeats, lambda: in_new_process("pass")[0]),
        "import_weft_s": median_of(repeats, lambda: in_new_process("import weft")[0]),
        "weft_help_s": median_of(repeats, lambda: in_new_process(help_code)[0]),
    }


def peak_memory() -> dict[str, float]:
    """The most memory that the largest sub-layer of the study keeps resident [MiB]."""
    code = (
        "import resource\nfrom weft.models.parallel import sublayer\nfrom weft.simulate import simulate\n"
        f"simulate(sublayer(*{LARGEST!r}), 't3-paper', 't3-mca')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    wall, printed = in_new_process(code)
    return {"largest_mib": int(printed.split()[-1]) / 1024, "largest_s": wall}


def peer(repeats: int) -> dict[str, float]:
    """The same channels and ring in SimPy and in Weft's engine; both must end at the same femtosecond."""
    from toy import Toy, in_simpy, in_weft

    toy = Toy()
    in_weft(toy)
    simpy_runs = [in_simpy(toy) for _ in range(repeats)]
    weft_runs = [in_weft(toy) for _ in range(repeats)]
    ends = {run.end for run in (*simpy_runs, *weft_runs)}
    if len(ends) != 1:
        raise SystemExit(f"the toy ends at {sorted(ends)} fs: SimPy and Weft disagree")
    slow, fast = (statistics.median(run.wall_s for run in runs) for runs in (simpy_runs, weft_runs))
    return {
        "toy_events": toy.events,
        "toy_end_us": ends.pop() / 1e9,
        "simpy_events_per_s": toy.events / slow,
        "weft_events_per_s": toy.events / fast,
        "ratio": slow / fast,
        "simpy_calendar_events": simpy_runs[0].own_events,
        "weft_calendar_events": weft_runs[0].own_events,
    }


def whole_steps(repeats: int) -> dict[str, float]:
    """Time of a 175B training step on 1,024 GPUs in closed forms, the first and later ones, and of a large pipeline."""
    step = (
        "import time\nfrom weft.step import step\nbegin = time.process_time()\n"
        "step('gpt-3', '1024xa100', tp=8, pp=8, dp=16, batch=1536, recompute='selective', fidelity='estimate')\n"
        "print(time.process_time() - begin)"
    )
    again = step + "\n" + step.split("\n", 2)[2]
    printed = [in_new_process(again)[1].split() for _ in range(repeats)]
    from weft.step.pipeline import Durations, run_schedule, schedule

    def pipeline() -> float:
        begin = time.process_time()
        run_schedule(schedule("1f1b", 64, 512), Durations(1.0, 1.0, 1.0))
        return time.process_time() - begin

    return {
        "first_s": statistics.median(float(first) for first, _ in printed),
        "again_s": statistics.median(float(second) for _, second in printed),
        "pipeline_s": median_of(repeats, pipeline),
    }


def uniform_plans(repeats: int) -> dict[str, float]:
    """The uniform plans of a 175B model on 1,024 GPUs in a fresh process: how many, and the time for all of them."""
    code = (
        "import time\nbegin = time.process_time()\nfrom collections import Counter\n"
        "from weft.hardware import system\nfrom weft.models import load_model\n"
        "from weft.models.parallel.framework import framework\nfrom weft.step.clock import many\n"
        "from weft.plan.space import space\n"
        "model, on, used, rejected = load_model('gpt-3'), system('1024xa100'), framework('megatron-core'), Counter()\n"
        f"plans = list(space(model, on, used, 1536, 2048, {WHOLE_SPACE}).candidates(rejected))\n"
        "listed = time.process_time()\nmany(model, on, plans, used)\n"
        "print(len(plans), len(plans) + rejected.total(), listed - begin, time.process_time() - listed)"
    )
    printed = [[float(each) for each in in_new_process(code)[1].split()] for _ in range(repeats)]
    listed, timed = (statistics.median(one[at] for one in printed) for at in (2, 3))
    timed_plans, searched = printed[0][:2]
    return {
        "plans": timed_plans, "searched": searched, "whole_s": listed + timed, "plans_per_s": timed_plans / timed
    }  # fmt: skip


def mixture_search(repeats: int) -> dict[str, float]:
    """The whole plan search of a mixture of experts on 64 GPUs in a fresh process: how many plans, and its time [s].

    The time includes plans with other dispatchers and on fewer GPUs, which are not counted.
    """
    code = (
        "import time\nbegin = time.process_time()\nfrom weft.plan.search import plan\n"
        "found = plan('qwen3-30b-a3b', '64xh100', batch=512, sequence=4096, refine=0)\n"
        "print(found.searched, time.process_time() - begin)"
    )
    printed = [[float(each) for each in in_new_process(code)[1].split()] for _ in range(max(repeats // 2, 1))]
    searched, whole = printed[0][0], statistics.median(one[1] for one in printed)
    return {"searched": searched, "whole_s": whole, "plans_per_s": searched / whole}


def sweeps(repeats: int) -> dict[str, float]:
    """Time of a thousand small engine runs by one process and by two, in pairs, and of closed forms by one [s]."""
    from weft.sweep.run import sweep_file

    engine = {"run": "simulate", "gemm": "1024,1024,512", "tp": 2, "system": "t3-paper", "overlap": "t3-mca"}
    closed = {"run": "estimate", "gemm": "64,64,64", "system": "h100-sxm"}
    shapes = {"gemm": [[1024, 1024, 32 * k] for k in range(16, 16 + SWEPT // 20)], "memory.latency": LATENCIES}

    def measure(question: dict[str, Any], vary: dict[str, Any], jobs: int) -> float:
        begin = time.perf_counter()
        sweep_file(question, vary, jobs=jobs, cache=False)
        return time.perf_counter() - begin

    pairs = [(measure(engine, shapes, 1), measure(engine, shapes, 2)) for _ in range(max(repeats // 2, 1))]
    many = {"gemm": [[64 * m, 64 * n, 64] for m in range(1, 51) for n in range(1, 41)]}
    return {
        "runs": SWEPT,
        "one_s": statistics.median(one for one, _ in pairs),
        "two_s": statistics.median(two for _, two in pairs),
        "ratio": statistics.median(one / two for one, two in pairs),
        "closed_ms": measure(closed, many, 1) / 2000 * 1e3,
    }


COMPARED = {
    "T-NLG FC-2, TP 8, t3-mca": ("simulate(sublayer('t-nlg', 'fc2', 8), 't3-paper', 't3-mca')", 3),
    "T-NLG FC-2, TP 8, sequential": ("simulate(sublayer('t-nlg', 'fc2', 8), 't3-paper', 'sequential')", 3),
    "T-NLG OP, TP 8, t3, 8 GPUs": (
        "simulate(sublayer('t-nlg', 'op', 8), 't3-paper', 't3', RunOptions(mode='explicit'))", 1,
    ),
}  # fmt: skip
"""Runs that are compared with another commit, and how often each is repeated in a process."""
TIMED = """
import time
from weft.models.parallel import sublayer
from weft.simulate.single import simulate
from weft.simulate import RunOptions
simulate(sublayer('t-nlg', 'op', 8), 't3-paper', 't3-mca')
begin = time.process_time()
for _ in range({times}):
    {run}
print((time.process_time() - begin) / {times})
"""


def against(commit: str, repeats: int) -> None:
    """Print the processor time of runs, of compiling and of starting, and their ratios to `commit`, taken in turns.

    Each pair is measured one after the other, so that a slow machine slows down both. Raises CalledProcessError if
    Git has no such commit.
    """
    here = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        there = Path(folder) / "other"
        subprocess.run(["git", "-C", here, "worktree", "add", "--quiet", "--detach", there, commit], check=True)
        try:
            print(f"{'processor time [s]':32} {'here':>8} {commit[:8]:>8} {'ratio':>7}")
            for what, measure in _compared(folder).items():
                pairs = [(measure(here / "src"), measure(there / "src")) for _ in range(repeats)]
                ratio = statistics.median(own / other for own, other in pairs)
                own, other = (statistics.median(times) for times in zip(*pairs, strict=True))
                print(f"{what:32} {own:8.2f} {other:8.2f} {ratio:7.2f}", flush=True)
        finally:
            subprocess.run(["git", "-C", here, "worktree", "remove", "--force", there], check=True)


def _compared(folder: str) -> dict[str, Callable[[Path], float]]:
    """What is compared, each as a function of the folder of sources that returns a processor time [s]."""

    def run(code: str, source: Path, cache: str) -> float:
        return float(in_new_process(code, PYTHONPATH=str(source), WEFT_CACHE=cache)[1].split()[-1])

    def compile_(source: Path) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            return run("import time\n" + SMALLEST + "\nprint(time.process_time())", source, cache)

    again = {
        "start, and a run of 1 ms": "import time\n" + SMALLEST + "\nprint(time.process_time())",
        **{what: TIMED.format(run=code, times=times) for what, (code, times) in COMPARED.items()},
    }
    kept = f"{folder}/cache"
    return {
        "compile, and a run of 1 ms": compile_,
        **{what: lambda source, code=code: run(code, source, kept) for what, code in again.items()},
    }


MEASUREMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "engine": engine_speed,
    "dram": dram_speed,
    "queued": queued_gemms,
    "closed_form": closed_form,
    "compile": lambda _: first_compile(),
    "start_up": start_up,
    "memory": lambda _: peak_memory(),
    "steps": whole_steps,
    "plans": uniform_plans,
    "mixture": mixture_search,
    "peer": peer,
    "sweeps": sweeps,
}


def sentences(found: dict[str, Any]) -> list[str]:
    """The figures as lines that a person reads."""
    e, d, q, g, c, s, m, w, u, x, p, r = (found[name] for name in MEASUREMENTS)
    return [
        (
            f"engine    {e['events_per_s'] / 1e6:8.2f} million events/s on one core ({e['events']:,} events), "
            f"{e['requests_per_s'] / 1e6:.2f} million requests/s"
        ),
        f"sub-layer {e['sublayer_s']:8.2f} s under t3-mca ({e['sublayer_with_lowering_s']:.2f} s with lowering)",
        (
            f"DRAM      {d['sequential_per_s'] / 1e6:8.2f} million requests/s of 32 B on a channel in sequence, "
            f"{d['random_per_s'] / 1e6:.2f} at random"
        ),
        "queued    "
        + ", ".join(f"{q[f'us_per_event_{count}']:.2f} us per event with {count:,} GEMMs" for count in QUEUED),
        (
            f"closed form: {g['shapes_per_s'][g['slowest']] / 1e6:.2f} million GEMM shapes/s on one core "
            f"({g['slowest']}; {g['shapes_per_s'][g['fastest']] / 1e6:.2f} on {g['fastest']})"
        ),
        f"compile   {c['first_compile_s']:8.1f} s, once ({c['second_run_s']:.2f} s for the next process)",
        (
            f"start-up  {s['import_weft_s']:8.2f} s import weft, {s['weft_help_s']:.2f} s weft --help "
            f"(Python alone: {s['python_s']:.2f} s)"
        ),
        f"memory    {m['largest_mib']:8.0f} MiB resident at most (mt-nlg fc2 TP 32, {m['largest_s']:.1f} s)",
        (
            f"steps     {w['again_s']:8.2f} s for a 175B step on 1,024 GPUs in closed forms (the first of a process "
            f"{w['first_s']:.2f} s), {w['pipeline_s']:.2f} s for 64 stages of 512 micro-batches"
        ),
        (
            f"plans     {u['plans_per_s']:8,.0f} plans/s of a 175B model on 1,024 GPUs on one core; "
            f"{u['whole_s']:.1f} s for all {u['searched']:,.0f}, {u['plans']:,.0f} of which divide what they split"
        ),
        (
            f"mixture   {x['plans_per_s']:8,.0f} plans/s of a 30B mixture of experts on 64 GPUs on one core; "
            f"{x['whole_s']:.1f} s for the search of {x['searched']:,.0f}, other dispatchers and fewer GPUs included"
        ),
        (
            f"peer      {p['ratio']:8.1f} times SimPy on the same channels and ring: "
            f"{p['weft_events_per_s'] / 1e6:.2f} against {p['simpy_events_per_s'] / 1e6:.3f} million events/s; "
            f"both end at {p['toy_end_us']:.6f} us"
        ),
        (
            f"sweep     {r['ratio']:8.2f} times faster with two processes than with one ({r['runs']:,} engine runs, "
            f"{r['one_s']:.0f} and {r['two_s']:.0f} s); {r['closed_ms']:.2f} ms for each closed form"
        ),
    ]


def main() -> None:
    """Measure, print, and keep the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="measurements per median (default 5)")
    parser.add_argument("--against", metavar="COMMIT", help="only print ratios of processor time to that commit")
    chosen = parser.parse_args()
    if chosen.against:
        against(chosen.against, chosen.repeats)
        return
    found = {name: measure(chosen.repeats) for name, measure in MEASUREMENTS.items()}
    print("\n".join(sentences(found)))
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
