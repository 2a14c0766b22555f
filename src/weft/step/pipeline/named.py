"""Pipeline schedules by the names that users type, such as "1f1b" and "interleaved:5"."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.core.errors import InputError, check_name, check_type, check_whole
from weft.models.parallel.plan import schedule_name
from weft.step.pipeline import folded, single
from weft.step.pipeline.clock import Durations, Send
from weft.step.pipeline.orders import Schedule
from weft.step.pipeline.search import SEARCHED
from weft.step.pipeline.written import read_schedule

SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "device-placement": single.device_placement,
    "inference": single.inference,
    "gpipe": single.gpipe,
    "1f1b": single.one_forward_one_backward,
    "interleaved": single.interleaved,
    "chimera": folded.chimera,
    "zb-h1": single.zb_h1,
    "zb-h2": single.zb_h2,
    **SEARCHED,
    "zb-v": folded.zb_v,
    "v-half": folded.v_half,
    "v-min": folded.v_min,
    "dualpipe": folded.dualpipe,
    "dualpipe-v": folded.dualpipe_v,
    "terapipe": single.terapipe,
    "ampnet": single.ampnet,
    "pipedream": single.pipedream,
    "pipedream-2bw": single.pipedream_2bw,
}
"""Every pipeline schedule: what builds it for a number of devices, of micro-batches, and options."""
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "interleaved": ("chunks", "group"),
    "chimera": ("ratio",),
    "terapipe": ("slices",),
    "search": ("memory",),
}
_LARGEST = 4_000_000


def schedule_names() -> list[str]:
    """Return the names of all pipeline schedules."""
    return list(SCHEDULES)


def is_searched(text: str) -> bool:
    """Return whether the order of the schedule of that name depends on the times of tasks and sends."""
    return schedule_name(text).kind in SEARCHED


def schedule(
    text: str, devices: int, micro_batches: int, durations: Durations | None = None, send: Send | float = 0.0
) -> Schedule:
    """Return the pipeline schedule of a name and its options, for a number of devices and of micro-batches.

    Options are whole numbers behind colons: "interleaved:5" has 5 chunks a device, "interleaved:5:16" passes them in
    groups of 16 micro-batches. A name that ends in ".json" is a file that `read_schedule` reads. Schedules of SEARCHED
    are searched for `durations` and `send`; the others do not depend on them.

    Raises UnknownNameError for an unknown name, InputError for numbers that the schedule does not take.
    """
    check_type("the pipeline schedule", text, str, "name one, such as '1f1b' or 'interleaved:2'")
    if text.endswith(".json"):
        return _from_file(text, devices, micro_batches)
    name, given = schedule_name(text)
    check_name("pipeline schedule", name, SCHEDULES)
    check_whole("the number of pipeline devices", devices, 1, 8)
    check_whole("the number of micro-batches", micro_batches, 1, 32)
    known = _OPTIONS.get(name, ())
    if len(given) > len(known) or None in given:
        form = ":".join([name, *(f"[{each}]" for each in known)])
        raise InputError(f"the pipeline schedule '{text}' is not understood; write it as '{form}', with whole numbers")
    parts = (given[0] or 1) if given else 1
    if devices * micro_batches * parts > _LARGEST:
        raise InputError(
            f"the pipeline schedule '{text}' of {micro_batches} micro-batches on {devices} devices has too many tasks; "
            f"devices x micro-batches x parts must be at most {_LARGEST}"
        )
    times = {"durations": durations, "send": send} if durations is not None and name in SEARCHED else {}
    return SCHEDULES[name](devices, micro_batches, **dict(zip(known, given, strict=False)), **times)


def _from_file(path: str, devices: int, micro_batches: int) -> Schedule:
    """Return a schedule from a file; InputError if it is for other numbers of devices or micro-batches."""
    found = read_schedule(path)
    if (found.devices, found.micro_batches) != (devices, micro_batches):
        raise InputError(
            f"the schedule '{path}' is for {found.devices} devices and {found.micro_batches} micro-batches, not for "
            f"{devices} and {micro_batches}; write it for those"
        )
    return found
