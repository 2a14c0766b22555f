"""Try hostile inputs for as long as one likes.

    python benchmarks/hostile.py --tries 10000 --seed 0 --out out/hostile.jsonl

Families (`--families`): broken files of every kind and launch scripts, paths that are no files (pipes, devices, bombs),
objects with wrong fields and misspelt names, wrong arguments of functions, random command lines (whose JSON and CSV are
looked at, too), shards and records of others, signals. Try N of a seed is the same on every machine.

Every try runs in a process that other tries shared before it, with limits of time and memory; what breaks one of them
is written as a line of JSON with the number of the try. `--only NUMBER` runs that try alone and prints all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / "support")]

import hostile  # noqa: E402 - the tests' own helpers lie beside them

BATCH = 40
"""Tries of one process."""
MOST_BYTES = 1 << 30
"""Memory that a process may take beyond what it begins with [bytes]."""
KILLED_S = hostile.SIMULATED_S + 30
"""Silence after which a process is taken to hang in code that no alarm reaches [s]."""


def drawn(number: int, folder: Path, families: list[str]) -> hostile.Try:
    """The try of a number."""
    source = random.Random(number)
    (family,) = source.choices(families, [hostile.WEIGHTS[one] for one in families])
    return hostile.MAKERS[family](source, folder)


def batch(numbers: range, families: list[str], pipe: int) -> None:
    """Run tries in this process, a line of JSON to the pipe for each, and stop after one that took too much memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    least = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(prefix="weft-hostile-") as folder, hostile.work_folder(Path(folder)):
        for number in numbers:
            one = drawn(number, Path(folder), families)
            os.write(pipe, f"{json.dumps({'begin': number, 'kind': one.kind, 'text': one.text[:3000]})}\n".encode())
            began = time.monotonic()
            found = hostile.tried(one)
            took = time.monotonic() - began
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - least
            if found is None and grown << 10 > MOST_BYTES:
                found = hostile.Found("memory", one.kind, one.text, f"{grown >> 10} MiB")
            answer = None if found is None else {**found._asdict(), "text": found.text[:3000]}
            os.write(pipe, f"{json.dumps({'end': number, 'found': answer, 's': took})}\n".encode())
            if grown << 10 > MOST_BYTES // 2:
                return


def run_batch(numbers: range, families: list[str]) -> tuple[list[dict[str, Any]], int]:
    """The lines of a batch, and the number after the last try that was begun; a process that hangs is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        batch(numbers, families, writing)
        os._exit(0)
    os.close(writing)
    lines: list[dict[str, Any]] = []
    killed = []

    def kill(*_: object) -> None:
        killed.append(True)
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    with os.fdopen(reading) as pipe:
        signal.alarm(KILLED_S)
        for line in pipe:
            signal.alarm(KILLED_S)
            lines.append(json.loads(line))
    signal.alarm(0)
    _, status = os.waitpid(child, 0)
    if lines and "begin" in lines[-1]:
        what = "hang" if killed else "crash"
        found = {"what": what, **{key: lines[-1][key] for key in ("kind", "text")}, "detail": f"status {status}"}
        lines.append({"end": lines[-1]["begin"], "found": found, "s": KILLED_S})
    if not lines:
        found = {"what": "crash", "kind": "start of a process", "text": "", "detail": f"status {status}"}
        lines.append({"end": numbers[0], "found": found, "s": 0.0})
    return lines, [line["end"] for line in lines if "end" in line][-1] + 1


def main() -> None:
    """Run the tries that the options ask for, and print the counts by kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/hostile.jsonl"))
    parser.add_argument("--only", type=int)
    parser.add_argument("--families", nargs="+", choices=list(hostile.MAKERS), default=list(hostile.MAKERS))
    asked = parser.parse_args()
    if asked.only is not None:
        with tempfile.TemporaryDirectory() as folder, hostile.work_folder(Path(folder)):
            one = drawn(asked.only, Path(folder), asked.families)
            print(one.text[:3000], hostile.tried(one), sep="\n")
        return
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    warm = "simulate sublayer --gemm 64,64,64 --tp 2 --no-cache"
    hostile.command(warm.split())  # the engine, before processes part
    counts: Counter[str] = Counter()
    last, end = asked.seed, asked.seed + asked.tries
    with asked.out.open("a") as out:
        while last < end:
            lines, last = run_batch(range(last, min(last + BATCH, end)), asked.families)
            for line in lines:
                if "end" in line:
                    counts[line["found"]["what"] if line["found"] else "fine"] += 1
                    if line["found"]:
                        out.write(f"{json.dumps({'number': line['end'], **line['found'], 's': line['s']})}\n")
                        out.flush()
            print(f"\r{last - asked.seed:,} tries: {dict(counts)}", end="", file=sys.stderr, flush=True)
    print("\n" + json.dumps(counts))


if __name__ == "__main__":
    main()
