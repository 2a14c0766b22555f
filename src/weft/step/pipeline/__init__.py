"""Pipeline schedules as data, by name; their clock, and the search for an order of tasks."""

from __future__ import annotations

from weft.step.pipeline.clock import Durations, Send, least_makespan, run_schedule
from weft.step.pipeline.named import SCHEDULES, is_searched, schedule, schedule_names
from weft.step.pipeline.orders import KINDS, Schedule, Task
from weft.step.pipeline.times import PipelineTimes
from weft.step.pipeline.written import read_schedule, schedule_to_dict

__all__ = [
    "KINDS",
    "SCHEDULES",
    "Durations",
    "PipelineTimes",
    "Schedule",
    "Send",
    "Task",
    "is_searched",
    "least_makespan",
    "read_schedule",
    "run_schedule",
    "schedule",
    "schedule_names",
    "schedule_to_dict",
]
