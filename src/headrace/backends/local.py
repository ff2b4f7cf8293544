"""The local back-end: runs the map and reduce stages in this process, for tests and for small workloads without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.connectors import Range
from headrace.engine.all_stages import run_all_stages
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.worker_limits import limit_seconds


class LocalBackend:
    """Runs map → shuffle → reduce as plain calls."""

    def __init__(self, parallelism: int = 2) -> None:
        """Create a back-end; `parallelism` is the maximum number of map tasks in a batch."""
        self.parallelism = parallelism

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run all stages of a micro-batch; return one report for each partition and stage."""
        with limit_seconds(job.max_seconds):
            return run_all_stages(job, tasks)

    def close(self) -> None:
        """Do nothing: the back-end holds no resources."""


def create(**_: object) -> LocalBackend:
    """Create the back-end; it ignores the settings of other back-ends."""
    return LocalBackend()
