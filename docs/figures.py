"""Writes every published figure beside Weft's into figures/STUDY.csv and what is missed into deviations.md.

The figures are those that the studies declare and wrote with --json. Speedups of C3, by which advice on AMD's GPUs is
doubted, go to `src/weft/estimate/c3_speedups.toml`.

Use: python docs/figures.py out/figures (`make figures` does). Needs nothing but Weft.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from weft.papers import STUDIES, study
from weft.papers.c3.study import IDS
from weft.papers.headline import Claim

HERE = Path(__file__).parent
PAGE = HERE / "deviations.md"
ROWS = HERE / "figures"
IN_ALL = "Of {} published figures with a bar, {} of them the memo's worked numbers, Weft meets {}"
SPEEDUPS = HERE.parent / "src/weft/estimate/c3_speedups.toml"
BEGIN, END = "<!--- figures of {}: made by `make figures` -->", "<!--- end of figures -->"


def main(folder: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    ROWS.mkdir(exist_ok=True)
    bars = met = memo = 0
    for name in STUDIES:
        rows = json.loads((folder / f"{name}.json").read_text())["headline"]
        claims = study(name).DECLARED.claims
        write_rows(ROWS / f"{name}.csv", rows, claims)
        page = with_table(page, name, "\n".join(summary(name, rows, claims)))
        judged = [row for row in rows if row["published"] is not None]
        bars, met = bars + len(judged), met + sum(not is_missed(row, claims[row["id"]]) for row in judged)
        memo = memo if name != "memo" else len(judged)
    page = re.sub(IN_ALL.replace("{}", r"\d+"), IN_ALL.format(bars, memo, met), page)
    PAGE.write_text(page, encoding="utf-8")
    kept = [line for line in SPEEDUPS.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    found = c3_speedups(json.loads((folder / "c3.json").read_text()))
    SPEEDUPS.write_text("\n".join([*kept, "", *found, ""]), encoding="utf-8")


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]], claims: Mapping[str, Claim]) -> None:
    """Every figure of a study as CSV: shares as fractions, a published range as "low to high"."""
    with file.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(["id", "figure", "unit", "published", "bar around", "bar", "weft", "verdict", "cause"])
        for row in rows:
            lines.writerow([row["id"], row["what"], row["unit"], *judged_as(row, claims.get(row["id"]))])


def judged_as(row: Mapping[str, Any], claim: Claim | None) -> tuple[str, ...]:
    """The published figure, the bar and Weft's figure as texts, whether the bar is met, and the cause of a miss."""
    if claim is None or row["published"] is None:
        return "", "", "", plain(row["weft"]), "", ""
    around = plain(claim.published if claim.around is None else claim.around)
    missed = is_missed(row, claim)
    verdict = "missed" if missed else "met"
    return plain(row["published"]), around, plain(claim.bar or 0.0), plain(row["weft"]), verdict, claim.cause * missed


def is_missed(row: Mapping[str, Any], claim: Claim) -> bool:
    """Whether Weft's figure is further than the bar from the published one, or from what the bar is around."""
    around = row["published"] if claim.around is None else claim.around
    low, high = around if isinstance(around, Sequence) else (around, around)
    return bool(max(low - row["weft"], row["weft"] - high) > (claim.bar or 0.0) * (1 + 1e-9))


def plain(value: Any) -> str:
    return " to ".join(map(plain, value)) if isinstance(value, Sequence) else f"{value:.6g}"


def with_table(page: str, name: str, text: str) -> str:
    begin = BEGIN.format(name)
    between = re.compile(f"{re.escape(begin)}\n.*?{re.escape(END)}", re.DOTALL)
    found = between.findall(page)
    if len(found) != 1:
        sys.exit(f"{PAGE.name} has {len(found)} places for the figures of {name}; it needs one: {begin} ... {END}")
    return between.sub(lambda _: f"{begin}\n\n{text}\n\n{END}", page)


def summary(name: str, rows: Sequence[Mapping[str, Any]], claims: Mapping[str, Claim]) -> Iterator[str]:
    """How many bars are met, where all figures are, and a table of those that are missed, with their causes."""
    judged = [row for row in rows if row["published"] is not None]
    missed = [row for row in judged if is_missed(row, claims[row["id"]])]
    if not judged:
        yield f"No figure has a published one beside it ([all {len(rows)} figures](figures/{name}.csv))."
        return
    yield f"**{len(judged) - len(missed)} of {len(judged)} bars met** ([all {len(rows)} figures](figures/{name}.csv))."
    if not missed:
        return
    yield "\n| missed | published | bar | Weft | |"
    yield "|---|---:|---:|---:|---|"
    for row in missed:
        claim, unit = claims[row["id"]], row["unit"]
        around = "" if claim.around is None else f"{written(claim.around, unit)} "
        wanted = f"{published(row['published'], unit)} | {around}± {written(claim.bar or 0.0, unit)}"
        yield f"| {row['what']} | {wanted} | {written(row['weft'], unit)} | [cause](#{claim.cause}) |"


def c3_speedups(data: Mapping[str, Any]) -> Iterator[str]:
    """A line for each way to share: its mean speedup, and the one that its published share of the ideal gives."""
    claims, cases = study("c3").DECLARED.claims, data["scenarios"]
    ideal = fmean(case["ideal"] for case in cases)
    for name, claim in IDS.items():
        if name != "priority-partition":
            speedup = fmean(case["strategies"][name]["speedup"] for case in cases)
            yield f"{name} = [{speedup:.3f}, {1 + claims[claim].published * (ideal - 1):.3f}]"


def published(value: float | list[float], unit: str) -> str:
    return " to ".join(written(end, unit) for end in value) if isinstance(value, list) else written(value, unit)


def written(value: float, unit: str) -> str:
    if unit in ("fraction", "share"):
        return f"{value * 100:.3g} %"
    return f"{value:.0f} {unit}" if unit == "CUs" else f"{value:.3f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
