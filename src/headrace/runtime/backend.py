"""The interface of an execution back-end: run the stages of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.connectors import Range
from headrace.execution.job import BatchJob, ReduceReport


class Backend(Protocol):
    """Runs map → shuffle → reduce. A back-end holds no state that recovery needs: the checkpoint has all of it."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run concurrently."""

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run the map stage on every task, shuffle, and run the reduce stage on every partition.

        Return one report for each partition. After a failure the caller may pass the same job again: its output files then
        replace those of the earlier attempt.
        """

    def close(self) -> None:
        """Release all resources."""
