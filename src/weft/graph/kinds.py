"""What a file holds that stands where a trace, a graph or a model may stand, by its content."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from weft.core.files import beginning, check_path

FileKind = Literal["graph", "trace", "execution trace", "model", ""]
"""What a file holds: a graph of Weft's, a trace of PyTorch's profiler, an execution trace, a model, something else."""

_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*(\[|\{\s*["}])')
_MARKS: tuple[tuple[FileKind, tuple[bytes, ...]], ...] = (
    ("graph", (b'"format"', b'"weft-graph"')),
    ("trace", (b'"traceEvents"',)),
    ("trace", (b'"schemaVersion"',)),
    ("trace", (b'"ph"',)),
    ("model", (b'"model_type"',)),
    ("execution trace", (b'"workload_graph"',)),
    ("execution trace", (b'"schema"', b'"nodes"')),
)
"""Words that the beginning of a file in JSON holds, all of them, by what the file is; the first row that fits."""
NO_TRACE: Mapping[FileKind, str] = {
    "graph": "this is a graph that Weft wrote, no trace; 'weft step FILE --system SYSTEM' times it",
    "execution trace": (
        "this is an execution trace, as PyTorch's ExecutionTraceObserver and Chakra write them: calls without times; "
        "'weft step FILE --system SYSTEM' and weft.read_execution_trace read it; 'weft import' reads what "
        "torch.profiler exported with export_chrome_trace"
    ),
    "model": "this is the configuration of a model, no trace; 'weft step FILE --system SYSTEM' takes it",
}
"""Why a file that holds something else is no trace of PyTorch's profiler, and what reads it."""


def file_kind(path: str | Path) -> FileKind:
    """Return what a file holds, by its content; "" for something else and for what is no regular file."""
    check_path(path)
    if not Path(path).is_file():
        return ""
    start = beginning(path)
    if not _JSON.match(start):
        return "execution trace" if is_messages(start) else ""
    return next((kind for kind, marks in _MARKS if all(mark in start for mark in marks)), "")


def is_messages(start: bytes) -> bool:
    """Return whether a file that starts like this holds Chakra's messages: metadata of its two fields, as long as it
    says.
    """
    length, begin = _varint(start, 0)
    place, end = begin, begin + length
    if not length:
        return len(start) > place + 1 and start[place + 1] in (0x08, 0x12)  # a node: behind its length, id or name
    while place < min(end, len(start)):
        if start[place] not in (0x0A, 0x12):  # version, attribute
            return False
        size, place = _varint(start, place + 1)
        place += size
    return place > begin and (place == end or end > len(start))


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of protobuf's variable length, and the place behind it."""
    value = shift = 0
    while place < len(data):
        byte, place = data[place], place + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, place
