"""When the tasks of a pipeline schedule ran, and what follows: idle time and its causes, memory, the critical path."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from weft.step.pipeline.orders import BACKWARD, FORWARD, NONE, Floats, Ints, Schedule, Task


@dataclass(frozen=True, eq=False)
class PipelineTimes:
    """When every task of a schedule runs: arrays by (kind, stage, micro-batch), times in seconds.

    Where a task is not run, times are NaN. `wait` is how long its device is idle before a task; `cause` is the task
    whose end lets it start (NONE: it starts at once). `receiving` and `sending` are the times that its sends occupy
    the compute stream before and after it.
    """

    schedule: Schedule
    start: Floats = field(repr=False)
    end: Floats = field(repr=False)
    wait: Floats = field(repr=False)
    cause: Ints = field(repr=False)
    receiving: Floats = field(repr=False)
    sending: Floats = field(repr=False)

    @cached_property
    def makespan(self) -> float:
        """From the first start to the end of the last task [s]."""
        return float(np.nanmax(self.end + self.sending))

    @cached_property
    def busy(self) -> Floats:
        """Time that each device computes [s]; two tasks that run together count once."""
        taken = self.end - self.start
        taken.flat[self.schedule.pairs[:, 1]] = 0.0
        return self._by_device(taken)

    @cached_property
    def sending_busy(self) -> Floats:
        """Time that sends occupy the compute stream of each device [s]."""
        return self._by_device(self.receiving + self.sending)

    @property
    def idle(self) -> Floats:
        """Time of the makespan in which the compute stream of each device has nothing to do [s]."""
        return self.makespan - self.busy - self.sending_busy

    @cached_property
    def span(self) -> Floats:
        """From the first start to the last end on each device [s]."""
        orders = self.schedule.orders
        return np.array([self.end.flat[order].max() - self.start.flat[order[0]] for order in orders])

    @property
    def ideal(self) -> float:
        """The makespan if no device ever stopped computing: the mean of `busy` [s]."""
        return float(self.busy.mean())

    @property
    def idle_share(self) -> float:
        """Bubble as a share of the total: (makespan - ideal) / makespan."""
        return 1 - self.ideal / self.makespan

    @property
    def idle_ratio(self) -> float:
        """Bubble as a ratio to the ideal: (makespan - ideal) / ideal."""
        return self.makespan / self.ideal - 1

    @property
    def span_bubble(self) -> float:
        """Bubble rate of the zero-bubble papers: the share of the longest span in which its device does not compute.

        The stagger between devices does not count: it hides behind the next step, unless the optimizer synchronises all
        devices (arXiv:2401.10241).
        """
        longest = int(self.span.argmax())
        return float(1 - self.busy[longest] / self.span[longest])

    @property
    def peak_in_flight(self) -> Floats:
        """The most activations that each device holds [micro-batches of all its layers] (`Schedule.in_flight`)."""
        return self.schedule.peak_in_flight()

    def in_flight(self, device: int, kept_for_weight: float = 1.0) -> tuple[Floats, Floats]:
        """Times [s], and the activations that a device holds from each of them on [micro-batches of all its layers]."""
        order = self.schedule.orders[device]
        times = np.append(self.start.flat[order], self.end.flat[order].max())
        return times, np.append(self.schedule.in_flight(device, kept_for_weight), 0.0)

    def waits(self, device: int) -> dict[str, float]:
        """Idle time of a device by what it waits for [s]; the values add up to `idle`.

        "first task" is the wait before that, "activations" and "gradients" are waits for tensors of other stages,
        "other devices" is the time after its last task.
        """
        order = self.schedule.orders[device]
        wait, kind = self.wait.flat[order], self.cause.flat[order] // self.schedule.device.size
        first, wait[0] = wait[0], 0.0
        return {
            "first task": float(first),
            "activations": float(wait[kind == FORWARD].sum()),
            "gradients": float(wait[kind == BACKWARD].sum()),
            "other devices": float(self.idle[device] - first - wait.sum()),
        }

    def critical_path(self) -> list[Task]:
        """The chain of tasks that decides the makespan, in order: each starts as soon as the one before it allows."""
        chain = [int(np.nanargmax(self.end + self.sending))]
        while (before := int(self.cause.flat[chain[-1]])) != NONE:
            chain.append(before)
        return [self.schedule.task(code) for code in reversed(chain)]

    def _by_device(self, values: Floats) -> Floats:
        """Return the sum of the values of each device's tasks."""
        device = np.broadcast_to(self.schedule.device, values.shape).ravel()
        total: Floats = np.bincount(device, np.nan_to_num(values).ravel(), self.schedule.devices).astype(float)
        return total
