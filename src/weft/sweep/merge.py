"""Merge the folders of shards into one answer, once every run is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from weft.errors import InputError
from weft.store import Record, Store
from weft.store.task import Question
from weft.sweep.manifest import Manifest, different, read_manifest, records_in
from weft.sweep.outcome import Runs, mine, row_of
from weft.sweep.rows import Columns


class _Union(Store):
    """The records of several stores."""

    def __init__(self, stores: Sequence[Store]) -> None:
        super().__init__(stores[0].folder)
        self.stores = stores

    def get(self, asked: Question) -> Record | None:
        """The record of the first store that holds one, or None."""
        return next((found for store in self.stores if (found := store.get(asked)) is not None), None)


def merge_shards(folders: Sequence[str | Path], out: str | Path | None = None) -> Runs:
    """Merge the folders that `sweep_file` filled with shards of one sweep; `out` is a .csv or .parquet file.

    Raises InputError for a folder without a shard, for shards of different questions or versions, and if runs are
    missing, with which; nothing is written then.
    """
    if not folders:
        raise InputError("there is nothing to merge; name the folders of the shards")
    places = [Path(folder) for folder in folders]
    shards = [read_manifest(place) for place in places]
    first, *others = shards
    for place, other in zip(places[1:], others, strict=True):
        if why := different(other, first):
            raise InputError(f"'{place}' holds {why} than '{places[0]}'; merge shards of one sweep by one version")
    store = _Union([records_in(place) for place in places])
    answer = Runs(first.matrix, store, first.version, _columns(first, store, shards))
    if out is not None:
        answer.save(out)
    return answer


def _columns(first: Manifest, store: Store, shards: Sequence[Manifest]) -> Columns:
    """The columns of all rows; InputError if any is missing."""
    columns, missing, of = Columns(), Counter[int](), first.shard[1]
    for case, asked in mine(first.matrix, first.version, (1, 1)):
        record = store.get(asked)
        if record is None:
            missing[asked.part(of) + 1] += 1
        else:
            columns.see(case.number, row_of(case, record, first.version))
    if missing:
        raise InputError(_missing(missing, of, len(first.matrix), shards))
    return columns


def _missing(missing: Counter[int], of: int, whole: int, shards: Sequence[Manifest]) -> str:
    begun = {shard.shard[0] for shard in shards if shard.shard[1] == of}
    words = [
        f"{count} of shard {index}/{of}" + ("" if index in begun else ", whose folder is not named")
        for index, count in sorted(missing.items())
    ]
    return (
        f"{missing.total()} of {whole} runs are missing: {'; '.join(words)}; run these shards to their end, then merge"
    )
