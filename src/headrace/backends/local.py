"""The same stages in this process, one after the other: for tests, and for small work without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.connectors import Range
from headrace.execution.job import Job, Outcome
from headrace.execution.onward import Onward
from headrace.execution.stage_one import stage_one
from headrace.execution.stage_two import stage_later, stage_two
from headrace.kernels import pack


class LocalBackend:
    """Runs map → exchange → map as plain calls. `fault` is called at each step; tests make it raise."""

    def __init__(self, parallelism: int = 2, fault: Callable[[str], None] = lambda _: None) -> None:
        """`parallelism` is the number of tasks a batch is cut into."""
        self.parallelism = parallelism
        self._fault = fault

    def run(self, job: Job, tasks: Sequence[Sequence[Range]]) -> list[Outcome]:
        """Run the job."""
        exchange: list[list[bytes]] = [[] for _ in range(job.partitions)]
        for number, task in enumerate(tasks):
            self._fault("stage one")
            for partition, parcel in stage_one(job, number, task):
                exchange[partition].append(pack.pack(parcel))  # as on Spark, nothing but bytes passes
        outcomes = []
        following: list[list[bytes]] = [[] for _ in range(job.partitions)]
        for partition, blobs in enumerate(exchange):
            self._fault("stage two")
            outcome, onward = stage_two(job, partition, [pack.unpack(blob) for blob in blobs])
            outcomes.append(outcome)
            _pass(onward, following)
        for level in range(1, job.levels + 1):
            arrived, following = following, [[] for _ in range(job.partitions)]
            for partition, blobs in enumerate(arrived):
                self._fault("stage two")
                outcome, onward = stage_later(job, level, partition, [pack.unpack(blob) for blob in blobs])
                outcomes.append(outcome)
                _pass(onward, following)
        return outcomes

    def close(self) -> None:
        """Nothing is held."""


def _pass(onward: dict[int, Onward], exchange: list[list[bytes]]) -> None:
    for partition, one in onward.items():
        exchange[partition].append(pack.pack(one))


def create(*, fault: Callable[[str], None], **_: object) -> LocalBackend:
    """Make the back-end; there is nothing to configure."""
    return LocalBackend(fault=fault)
