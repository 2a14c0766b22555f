"""Pipeline schedules that users write: a JSON file with the tasks of each device in order."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from weft.core.errors import ConfigError, InputError, check_whole, show_value
from weft.core.files import read_json
from weft.step.pipeline.clock import Durations, run_schedule
from weft.step.pipeline.orders import KINDS, NO_PAIRS, Schedule, Task

_TASK = re.compile(r"([FBW])(\d{1,7})(?:@(\d{1,5}))?")
_MOST_TASKS = 4_000_000
_KEYS = ("name", "devices", "flushes", "versions", "staleness")
_FORM = '{"name": "mine", "devices": ["F0 F1 B0 B1", "F0 B0 F1 B1"]}'
Places = list[list[tuple[Task, ...]]]
"""Of each device, its tasks in order; two that run together stand in one tuple."""


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a JSON file and check it.

    "devices" holds a text per device: tasks like "F3" (forward of micro-batch 3), "B3@1" (its backward in stage 1;
    without a stage, the number of the device) and "W3" in order, and "F3@0+B1@7" for two that run together. A backward
    is whole where no W belongs to it. Optional are "name", "flushes", "versions" and "staleness".

    Raises ConfigError for what is missing, repeated or out of order, and for devices that wait for each other.
    """
    content = read_json(path, "pipeline schedule", f"write it like {_FORM}")
    try:
        schedule = _built(content)
        run_schedule(schedule, Durations(1.0, 1.0, 1.0))
    except InputError as error:
        raise ConfigError(str(error), str(path)) from None
    return schedule


def schedule_to_dict(schedule: Schedule) -> dict[str, object]:
    """Return a schedule as `read_schedule` reads it."""
    second = dict(schedule.pairs.tolist())
    after = set(second.values())
    return {
        "name": schedule.name,
        "devices": [
            " ".join(
                "+".join(str(schedule.task(each)) for each in (code, second.get(code)) if each is not None)
                for code in order.tolist()
                if code not in after
            )
            for order in schedule.orders
        ],
        "flushes": schedule.flushes,
        "versions": list(schedule.versions),
        "staleness": list(schedule.staleness),
    }


def _built(content: dict[str, Any]) -> Schedule:
    """Return a schedule from the content of its file."""
    for key in content:
        if key not in _KEYS:
            raise InputError(f"'{key}' is no part of a pipeline schedule; known: {', '.join(_KEYS)}")
    name, flushes = content.get("name", "schedule"), content.get("flushes", True)
    if not isinstance(name, str) or not isinstance(flushes, bool):
        raise InputError("'name' must be a text and 'flushes' true or false")
    places = _places(content.get("devices"))
    tasks = [task for row in places for slot in row for task in slot]
    stages, micro_batches = (1 + max(each) for each in ([t.stage for t in tasks], [t.micro_batch for t in tasks]))
    if len(KINDS) * stages * micro_batches > _MOST_TASKS:
        raise InputError(
            f"the schedule '{name}' names micro-batch {micro_batches - 1} and stage {stages - 1}, more than "
            f"{_MOST_TASKS} tasks; number both from 0"
        )

    def code(task: Task) -> int:
        return (KINDS.index(task.kind) * stages + task.stage) * micro_batches + task.micro_batch

    device = np.zeros((micro_batches, stages), np.int64)
    for at, row in enumerate(places):
        for task in (task for slot in row for task in slot if task.kind == "F"):
            device[task.micro_batch, task.stage] = at
    placement, replica = np.unique(device, axis=0, return_inverse=True)
    pairs = [[code(task) for task in slot] for row in places for slot in row if len(slot) == 2]
    return Schedule(
        name, placement, replica.ravel(),
        tuple(np.array([code(task) for slot in row for task in slot], np.int64) for row in places),
        np.array(pairs, np.int64) if pairs else NO_PAIRS, flushes,
        *(_counts(key, content[key], stages, least) if key in content else () for key, least in _LISTS),
    )  # fmt: skip


_LISTS = (("versions", 1), ("staleness", 0))


def _counts(key: str, values: object, stages: int, least: int) -> tuple[int, ...]:
    """Return a list of whole numbers, one per stage."""
    if not isinstance(values, list) or len(values) != stages:
        raise InputError(f"'{key}' must be a list of {stages} whole numbers, one per stage")
    for value in values:
        check_whole(f"a number of '{key}'", value, least, 1)
    return tuple(values)


def _places(devices: object) -> Places:
    """Return the tasks of each device, from their texts."""
    if (
        not isinstance(devices, list)
        or not devices
        or not all(isinstance(text, str) and text.strip() for text in devices)
    ):
        raise InputError(f"'devices' must be a list with a text of tasks per device, as in {_FORM}")
    return [[_slot(word, at) for word in text.split()] for at, text in enumerate(devices)]


def _slot(word: str, device: int) -> tuple[Task, ...]:
    """One task, or a pair joined by a plus sign."""
    found = [_TASK.fullmatch(part) for part in word.split("+", 2)]
    tasks = tuple(Task(m[1], int(m[2]), int(m[3] or device)) for m in found if m)
    if len(tasks) < len(found) or len(tasks) > 2:
        raise InputError(
            f"the task {show_value(word)} on device {device} is not understood; write 'F3', 'B3@1' or 'F3+B1'"
        )
    return tasks
