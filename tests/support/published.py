"""Whether a study's figures keep to their bars, or miss them as the deviations say."""

from collections.abc import Iterable, Mapping

from weft.papers.headline import Claim, HeadlineRow


def broken(rows: Iterable[HeadlineRow], claims: Mapping[str, Claim]) -> list[str]:
    """What is wrong, a sentence for each figure; empty if all is as declared.

    A published figure without a bar, a bar without a figure, and a miss that is none are wrong.
    """
    found = {row.id: row for row in rows}
    bars = {id_: claim for id_, claim in claims.items() if claim.bar is not None}
    wrong = [f"{id_}: there is a bar, but no figure" for id_ in sorted(set(bars) - set(found))]
    for id_, row in found.items():
        if id_ in bars:
            wrong += _off(row, bars[id_])
        elif row.published is not None:
            wrong.append(f"{id_}: it is published, but has no bar")
    return wrong


def _off(row: HeadlineRow, claim: Claim) -> list[str]:
    bar, miss = claim.bar or 0.0, claim.miss
    if row.difference is None:
        return [f"{row.id}: there is a bar, but nothing published beside the figure"]
    difference = row.difference if claim.around is None else row.weft - claim.around
    off = f"{row.id}: {row.weft:.4g} is {difference:+.4g} off"
    if abs(difference) <= bar:
        return [] if miss is None else [f"{off} and meets the bar, {bar:.4g}; take away its miss"]
    if miss is None:
        return [f"{off}, the bar is {bar:.4g}"]
    missed_so = 0 < difference <= miss or miss <= difference < 0
    return [] if missed_so else [f"{off}, where at most {miss:+.4g} was known; docs/deviations.md#{claim.cause}"]
