"""Pipeline schedules as data, by name, and their clock."""

from __future__ import annotations

from weft.schedule.pipeline.clock import Durations, Send, run_schedule
from weft.schedule.pipeline.named import SCHEDULES, schedule, schedule_names
from weft.schedule.pipeline.orders import KINDS, Schedule, Task
from weft.schedule.pipeline.times import PipelineTimes

__all__ = [
    "KINDS",
    "SCHEDULES",
    "Durations",
    "PipelineTimes",
    "Schedule",
    "Send",
    "Task",
    "run_schedule",
    "schedule",
    "schedule_names",
]
