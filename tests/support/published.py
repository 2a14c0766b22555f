"""Whether a study's figures keep to their bars, or miss them by just what the deviations say."""

from collections.abc import Iterable, Mapping

from weft.studies.headline import HeadlineRow


def broken(
    rows: Iterable[HeadlineRow], bars: Mapping[str, float], gaps: Mapping[str, float], rel: float = 0.001
) -> list[str]:
    """What is wrong, a sentence for each figure; empty if all is as told.

    `bars` are half-widths of the intervals around the published figures, `gaps` what Weft's figure is, within `rel`,
    where it lies outside. A published figure without a bar, a bar without a figure, and a gap that is none are wrong.
    """
    found = {row.id: row for row in rows}
    told = [f"{id_}: there is a bar, but no figure" for id_ in sorted(set(bars) - set(found))]
    told += [f"{id_}: a gap is known, but there is no bar" for id_ in sorted(set(gaps) - set(bars))]
    for id_, row in found.items():
        if id_ not in bars:
            told += [f"{id_}: it is published, but has no bar"] if row.published is not None else []
        elif row.difference is None:
            told.append(f"{id_}: there is a bar, but nothing published beside the figure")
        elif id_ in gaps:
            told += _gap(id_, row.weft, row.difference, bars[id_], gaps[id_], rel)
        elif abs(row.difference) > bars[id_]:
            told.append(f"{id_}: {row.weft:.4g} is {row.difference:+.4g} off, the bar is {bars[id_]:.4g}")
    return told


def _gap(id_: str, weft: float, difference: float, bar: float, known: float, rel: float) -> list[str]:
    if abs(difference) <= bar:
        return [f"{id_}: {weft:.4g} meets the bar; take it off the known gaps"]
    if abs(weft - known) > rel * max(abs(known), 1):
        return [f"{id_}: it is {weft:.4g}, the deviations say {known:.4g}"]
    return []
