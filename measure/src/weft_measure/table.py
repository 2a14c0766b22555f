"""A CSV file of measurements that can be continued: rows already there are known by their case and skipped."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path

from weft.core.errors import InputError
from weft.core.files import Rows, read_records, read_text, write_atomically, write_csv

_FLUSH_SECONDS = 5.0


class RowFile:
    """Rows of `columns`; those of `case` tell one row from another. The file is replaced whole, or not at all."""

    def __init__(self, path: Path, columns: tuple[str, ...], case: tuple[str, ...]) -> None:
        self.path, self.columns, self.case = path, columns, case
        self._rows = _read(path, columns)
        self._known = {self._key(row) for row in self._rows}
        self._written = time.monotonic()
        self._dirty = False

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, case: Mapping[str, object]) -> bool:
        """Whether a row of that case is there."""
        return self._key(case) in self._known

    def add(self, row: Mapping[str, object]) -> None:
        """Take a row, and write the file if the last time was a while ago."""
        self._rows.append({name: str(row.get(name, "")) for name in self.columns})
        self._known.add(self._key(row))
        self._dirty = True
        if time.monotonic() - self._written > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is not yet in the file."""
        if self._dirty:
            text = io.StringIO()
            write_csv(text, self._rows, self.columns)
            write_atomically(self.path, text.getvalue())
            self._written, self._dirty = time.monotonic(), False

    def _key(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in self.case)


def _read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.exists():
        return []
    text = read_text(path)
    found = tuple(next(Rows(text, path), []))
    if found != columns:
        raise InputError(
            f"{path} cannot be continued: its columns are {', '.join(found) or 'none'}, not {', '.join(columns)}; "
            "choose another folder"
        )
    return list(read_records(text, path))
