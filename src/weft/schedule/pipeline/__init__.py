"""Pipeline schedules as data, by name, and their clock."""

from __future__ import annotations

from weft.schedule.pipeline.clock import Durations, Send, least_makespan, run_schedule
from weft.schedule.pipeline.named import SCHEDULES, is_searched, schedule, schedule_names
from weft.schedule.pipeline.orders import KINDS, Schedule, Task
from weft.schedule.pipeline.times import PipelineTimes
from weft.schedule.pipeline.written import read_schedule, schedule_to_dict

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
