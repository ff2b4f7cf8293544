"""Runs seeds: one run is a schedule, its world, and the check of its history."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from simulation.checker import check_history
from simulation.history import ViolationError
from simulation.schedule import Schedule
from simulation.world import World

MEMORY_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: `kind` is the broken promise, or empty; times in seconds."""

    seed: int
    kind: str
    detail: str
    trace: tuple[str, ...]
    simulated_seconds: float
    cpu_seconds: float
    operations: int


def run_schedule(schedule: Schedule) -> Outcome:
    """Play a schedule in a folder of its own, and check its history."""
    started = time.process_time()
    folder = Path(tempfile.mkdtemp(prefix="headrace-simulation-", dir=MEMORY_FOLDER))
    kind = detail = ""
    try:
        world = World(schedule, folder)
        try:
            check_history(world.play())
        except ViolationError as violation:
            kind, detail = violation.kind, violation.detail
        except Exception as error:  # noqa: BLE001  whatever the product raises is a violation
            kind, detail = f"unexpected {type(error).__name__}", traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.process_time() - started
    return Outcome(schedule.seed, kind, detail, tuple(world.trace), world.clock.elapsed, seconds, world.disk.operations)
