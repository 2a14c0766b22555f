"""The file `sweep.json` of a folder of records: what was asked, by which version, and which shard the folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.errors import ConfigError, InputError
from weft.files import read_json, write_json
from weft.store import Store
from weft.sweep.matrix import Matrix
from weft.sweep.outcome import Version

FILE = "sweep.json"
_SCHEMA = 1


@dataclass(frozen=True)
class Manifest:
    """A folder's sweep."""

    matrix: Matrix
    version: Version
    shard: tuple[int, int]

    def write(self, folder: Path) -> None:
        """Write the manifest into its folder."""
        version = {"weft": self.version.weft, "code": self.version.code}
        write_json(folder / FILE, {"schema": _SCHEMA, **self.matrix.to_dict(), **version, "shard": list(self.shard)})


def records_in(folder: Path) -> Store:
    """The records of a folder."""
    return Store(folder / "runs")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; InputError if it holds no sweep."""
    if not (folder / FILE).is_file():
        raise InputError(f"'{folder}' holds no shard of a sweep: it has no {FILE}; name folders of weft sweep --shard")
    again = "run the shard again, into a new folder"
    data = read_json(folder / FILE, "sweep", again)
    try:
        vary: Mapping[str, list[object]] = data["vary"]
        matrix = Matrix(data["question"], {name: tuple(each) for name, each in vary.items()}, data["files"])
        index, shards = data["shard"]
        if data["schema"] != _SCHEMA:
            raise ConfigError(f"this is a sweep of schema {data['schema']}, not {_SCHEMA}; {again}", str(folder / FILE))
        return Manifest(matrix, Version(data["weft"], data["code"]), (index, shards))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"this is no sweep; {again}", str(folder / FILE)) from None


def begin(folder: Path, asked: Manifest) -> Store:
    """The store of a folder for a sweep, new or begun before; InputError if it holds another sweep."""
    if (folder / FILE).exists():
        held = read_manifest(folder)
        why = different(held, asked) or ("another shard" if held.shard != asked.shard else "")
        if why:
            raise InputError(f"the folder '{folder}' holds {why}; name another folder, or remove it")
    else:
        asked.write(folder)
    return records_in(folder)


def different(one: Manifest, other: Manifest) -> str:
    """In which way two sweeps differ, but for their shard; empty if they can be merged."""
    if one.matrix.digest != other.matrix.digest:
        return "a sweep of another question"
    if one.version.code != other.version.code:
        return f"runs of other sources of Weft or other libraries (weft {one.version.weft}, {one.version.code[:12]})"
    return ""
