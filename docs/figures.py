"""Writes the tables of published figures in deviations.md, from what the studies declare and wrote with --json, and the
speedups of C3 by which advice on AMD's GPUs is doubted, `src/weft/result/c3_speedups.toml`.

Use: python docs/figures.py out/figures (`make figures` does). Needs nothing but Weft.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from weft.studies import STUDIES, study
from weft.studies.c3.study import IDS
from weft.studies.headline import Claim

HERE = Path(__file__).parent
PAGE = HERE / "deviations.md"
SPEEDUPS = HERE.parent / "src/weft/result/c3_speedups.toml"
BEGIN, END = "<!--- figures of {}: made by `make figures` -->", "<!--- end of figures -->"


def main(folder: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in STUDIES:
        rows = json.loads((folder / f"{name}.json").read_text())["headline"]
        page = with_table(page, name, "\n".join(met_folded(list(table(rows, study(name).DECLARED.claims)))))
    PAGE.write_text(page, encoding="utf-8")
    kept = [line for line in SPEEDUPS.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    found = c3_speedups(json.loads((folder / "c3.json").read_text()))
    SPEEDUPS.write_text("\n".join([*kept, "", *found, ""]), encoding="utf-8")


def with_table(page: str, name: str, text: str) -> str:
    begin = BEGIN.format(name)
    between = re.compile(f"{re.escape(begin)}\n.*?{re.escape(END)}", re.DOTALL)
    found = between.findall(page)
    if len(found) != 1:
        sys.exit(f"{PAGE.name} has {len(found)} places for the figures of {name}; it needs one: {begin} ... {END}")
    return between.sub(lambda _: f"{begin}\n\n{text}\n\n{END}", page)


def met_folded(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a table: those that are missed are shown, the others folded below them."""
    missed = [line for line in lines[2:] if "[missed]" in line]
    others = [line for line in lines[2:] if "[missed]" not in line]
    if missed:
        yield from (*lines[:2], *missed, "")
    yield f"<details><summary>{len(others)} figures that are met, or have no published one</summary>\n"
    yield from (*lines[:2], *others, "\n</details>")


def table(rows: list[Mapping[str, Any]], claims: Mapping[str, Claim]) -> Iterator[str]:
    yield "| figure | published | bar | Weft | |"
    yield "|---|---:|---:|---:|---|"
    for row in rows:
        weft, unit = written(row["weft"], row["unit"]), row["unit"]
        if row["published"] is None:
            yield f"| {row['what']} | none | | {weft} | |"
            continue
        claim = claims[row["id"]]
        around = "" if claim.around is None else f"{written(claim.around, unit)} "
        wanted = f"{published(row['published'], unit)} | {around}± {written(claim.bar or 0.0, unit)}"
        missed = f"**{weft}** | [missed](#{claim.cause})" if claim.miss is not None else f"{weft} |"
        yield f"| {row['what']} | {wanted} | {missed} |"


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
