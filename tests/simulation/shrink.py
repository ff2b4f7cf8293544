"""Shrinking: find a small schedule with the same broken promise, by leaving out steps and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulation.schedule import Append, Schedule, Settings, Step, WriteFile


def shrink_schedule(schedule: Schedule, fails: Callable[[Schedule], bool], max_runs: int = 400) -> Schedule:
    """Return the smallest schedule found for which `fails` still holds, after at most `max_runs` runs.

    Every candidate is valid: steps do not depend on each other.
    """
    runs = 0

    def still_fails(candidate: Schedule) -> bool:
        nonlocal runs
        runs += 1
        return runs <= max_runs and fails(candidate)

    size = 0
    while size != _measure(schedule) and runs < max_runs:
        size = _measure(schedule)
        schedule = _drop_steps(schedule, still_fails)
        schedule = _simplify(schedule, still_fails)
    return schedule


def _measure(schedule: Schedule) -> int:
    return len(schedule.steps) + sum(len(step.rows) for step in schedule.steps if isinstance(step, Append | WriteFile))


def _drop_steps(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Leave out runs of steps: half of them at once, then a quarter, … then single ones."""
    length = max(1, len(schedule.steps) // 2)
    while True:
        place = 0
        while place < len(schedule.steps):
            candidate = replace(schedule, steps=schedule.steps[:place] + schedule.steps[place + length :])
            if fails(candidate):
                schedule = candidate
            else:
                place += length
        if length == 1:
            return schedule
        length //= 2


def _simplify(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Leave out rows, and take simpler settings."""
    for place, step in enumerate(schedule.steps):
        if isinstance(step, Append | WriteFile):
            schedule = _drop_rows(schedule, place, fails)
    for settings in list(_simpler_settings(schedule.settings)):
        candidate = replace(schedule, settings=settings)
        if settings != schedule.settings and fails(candidate):
            schedule = candidate
    return schedule


def _drop_rows(schedule: Schedule, place: int, fails: Callable[[Schedule], bool]) -> Schedule:
    number = 0
    while number < len(schedule.steps[place].rows) > 1:  # type: ignore[union-attr]
        rows = schedule.steps[place].rows  # type: ignore[union-attr]
        smaller: Step = replace(schedule.steps[place], rows=rows[:number] + rows[number + 1 :])  # type: ignore[type-var, call-arg]
        candidate = replace(schedule, steps=_with_step(schedule.steps, place, smaller))
        if fails(candidate):
            schedule = candidate
        else:
            number += 1
    return schedule


def _with_step(steps: Sequence[Step], place: int, step: Step) -> tuple[Step, ...]:
    return (*steps[:place], step, *steps[place + 1 :])


def _simpler_settings(settings: Settings) -> Iterator[Settings]:
    for change in (
        {"replan_seed": 0},
        {"partitions": 1},
        {"parallelism": 1},
        {"rows_per_batch": 1_000},
        {"delays": {}},
        {"drain": True},
    ):
        settings = replace(settings, **change)  # type: ignore[arg-type]
        yield settings
