"""Seconds of a task by component: input, selection, aggregation, join, routing, windows, state, output, messages.

A component's time is that of its own work, without the components that it calls: aggregation asks selection for the cells of its
rows, and that time is selection's. What no component covers is "other".
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
OTHER = "other"


class ComponentTimer:
    """Adds the time of blocks to `seconds`; not thread-safe."""

    def __init__(self, seconds: dict[str, float], clock: Callable[[], float] = time.perf_counter) -> None:
        """Add to these seconds; `clock` returns seconds."""
        self._seconds, self._clock, self._inner_seconds = seconds, clock, 0.0

    @contextlib.contextmanager
    def measure(self, component: str) -> Iterator[None]:
        """Add the time of the block, without that of blocks inside of it."""
        outer_seconds, self._inner_seconds = self._inner_seconds, 0.0
        started = self._clock()
        try:
            yield
        finally:
            elapsed = self._clock() - started
            self._seconds[component] = self._seconds.get(component, 0.0) + elapsed - self._inner_seconds
            self._inner_seconds = outer_seconds + elapsed

    def close(self, total: float) -> None:
        """Add what remains of the total time of the task as other."""
        self._seconds[OTHER] = max(0.0, total - sum(self._seconds.values()))


class TimedTask(Protocol):
    """A task with a timer."""

    @property
    def timer(self) -> ComponentTimer:
        """The timer."""


Task = TypeVar("Task", bound=TimedTask)


def measured(
    component: str,
) -> Callable[[Callable[Concatenate[Task, Parameters], Result]], Callable[Concatenate[Task, Parameters], Result]]:
    """Return a decorator that adds the time of a method to a component."""

    def decorate(method: Callable[Concatenate[Task, Parameters], Result]) -> Callable[Concatenate[Task, Parameters], Result]:
        @functools.wraps(method)
        def run(task: Task, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with task.timer.measure(component):
                return method(task, *args, **kwargs)

        return run

    return decorate
