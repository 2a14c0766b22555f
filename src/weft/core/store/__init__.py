"""Records of tasks on disk, each named by a hash of everything that decides it."""

from weft.core.store.records import Contents, Store, read_or_make
from weft.core.store.task import Record, Task

__all__ = ["Contents", "Record", "Store", "Task", "read_or_make"]
