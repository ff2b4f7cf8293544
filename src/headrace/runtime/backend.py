"""The one interface behind which an engine sits: run the two stages of a job, somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.connectors import Range
from headrace.execution.job import Job, Outcome


class Backend(Protocol):
    """Runs map → exchange → map. It keeps nothing that recovery would need: that is all in the checkpoint."""

    @property
    def parallelism(self) -> int:
        """How many tasks it can run at once."""

    def run(self, job: Job, tasks: Sequence[Sequence[Range]]) -> list[Outcome]:
        """Run stage one on every task, exchange, run stage two on every partition; return one outcome a partition.

        May be called again with the same job after a failure; what it writes then replaces what it wrote before.
        """

    def close(self) -> None:
        """Give back what it holds."""
