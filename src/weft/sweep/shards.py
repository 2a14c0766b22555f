"""Shards of a sweep: the folder that keeps one, with its file `sweep.json`, and merging folders into one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import ConfigError, InputError, check_name, check_type, check_whole, reason
from weft.core.files import read_json, write_json
from weft.core.store import Record, Store
from weft.core.store.task import Question, as_json
from weft.sweep.answer import Sweep, Version, parts_of, row_of
from weft.sweep.matrix import Matrix
from weft.sweep.questions import KINDS
from weft.sweep.rows import Columns

FILE, RUNS = "sweep.json", "runs"
_SCHEMA = 1
_KINDS = {"question": dict, "vary": dict, "files": dict, "shard": list, "weft": str, "code": str}
"""The types of what a manifest holds."""


@dataclass(frozen=True)
class Manifest:
    """A folder's sweep."""

    matrix: Matrix
    version: Version
    shard: tuple[int, int]

    def write(self, folder: Path) -> None:
        """Write the manifest into its folder; InputError for a question of objects, which no file can hold."""
        try:
            as_json({"question": self.matrix.data, "vary": self.matrix.axes}, "a question of objects")
        except InputError:
            raise InputError(
                "a folder of records keeps a question of names, numbers and texts; name the work, system and overlap"
            ) from None
        version = {"weft": self.version.weft, "code": self.version.code}
        write_json(folder / FILE, {"schema": _SCHEMA, **self.matrix.to_dict(), **version, "shard": list(self.shard)})


def _records_in(folder: Path) -> Store:
    """Return the records of a folder, which are made again where they are damaged."""
    return Store(folder / RUNS)


def _read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder; InputError if it holds no sweep."""
    if not (folder / FILE).is_file():
        raise InputError(f"'{folder}' holds no shard of a sweep: it has no {FILE}; name folders of weft sweep --shard")
    again = "run the shard again, into a new folder"
    data = read_json(folder / FILE, "sweep", again)
    try:
        if data["schema"] != _SCHEMA:
            raise ConfigError(f"this is a sweep of schema {data['schema']}, not {_SCHEMA}; {again}", str(folder / FILE))
        for name, kind in _KINDS.items():
            check_type(name, data[name], kind, again)
        vary: Mapping[str, list[object]] = data["vary"]
        for name, values in vary.items():
            check_type(name, values, list, again)
        index, shards = data["shard"]
        check_name("kind of run", data["question"].get("run"), KINDS)
        check_whole("shard", index, 1, 1)
        check_whole("shards", shards, index, index)
        matrix = Matrix(data["question"], {name: tuple(each) for name, each in vary.items()}, data["files"])
        return Manifest(matrix, Version(data["weft"], data["code"]), (index, shards))
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise ConfigError(f"this is no sweep ({reason(error)}); {again}", str(folder / FILE)) from None


def begin(folder: Path, asked: Manifest) -> Store:
    """Return the store of a folder for a sweep, new or begun before; InputError if it holds another sweep."""
    if (folder / FILE).exists():
        held = _read_manifest(folder)
        why = different(held, asked) or ("another shard" if held.shard != asked.shard else "")
        if why:
            raise InputError(f"the folder '{folder}' holds {why}; name another folder, or remove it")
    else:
        asked.write(folder)
    return _records_in(folder)


def different(one: Manifest, other: Manifest) -> str:
    """In which way two sweeps differ, but for their shard; empty if they can be merged."""
    if one.matrix.digest != other.matrix.digest:
        return "a sweep of another question"
    if one.version.code != other.version.code:
        return f"runs of other sources of Weft or other libraries (weft {one.version.weft}, {one.version.code[:12]})"
    return ""


class _Union(Store):
    """The records of several stores."""

    def __init__(self, stores: Sequence[Store]) -> None:
        super().__init__(stores[0].folder)
        self.stores = stores

    def get(self, asked: Question) -> Record | None:
        """Return the record of the first store that holds one, or None."""
        return next((found for store in self.stores if (found := store.get(asked)) is not None), None)


def merge_shards(folders: Sequence[str | Path], out: str | Path | None = None) -> Sweep:
    """Merge the folders that `sweep_file` filled with shards of one sweep; `out` is a .csv or .parquet file.

    Raises InputError for a folder without a shard, for shards of different questions or versions, and if runs are
    missing, with which; nothing is written then.
    """
    if not folders:
        raise InputError("there is nothing to merge; name the folders of the shards")
    places = [Path(folder) for folder in folders]
    shards = [_read_manifest(place) for place in places]
    first, *others = shards
    for place, other in zip(places[1:], others, strict=True):
        if why := different(other, first):
            raise InputError(f"'{place}' holds {why} than '{places[0]}'; merge shards of one sweep by one version")
    store = _Union([Store(place / RUNS, mends=False) for place in places])
    answer = Sweep(first.matrix, store, first.version, _columns(first, store, shards))
    if out is not None:
        answer.save(out)
    return answer


def _columns(first: Manifest, store: Store, shards: Sequence[Manifest]) -> Columns:
    """Return the columns of all rows; InputError if any is missing."""
    columns, missing, of = Columns(), Counter[int](), first.shard[1]
    for case, asked in parts_of(first.matrix, first.version, (1, 1)):
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
