"""Simulated workers: the stages of a batch as plain calls, in any order, repeated, and awake long after their batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace.connectors import Range
from headrace.engine import worker_cache
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.map_stage import run_map_task
from headrace.engine.reduce_stage import run_later_level, run_reduce_task
from headrace.errors import HeadraceError, SourceError
from headrace.storage import container

_ATTEMPTS_KEPT = 4


@dataclass
class Attempt:
    """An attempt of a batch whose map tasks have all ended; its reduce tasks may run again at any time."""

    job: BatchJob
    blocks: list[list[bytes]] = field(default_factory=list)


class SimulatedWorkers:
    """A back-end. `random` decides about the tasks of the next batch; None runs each of them once, in order."""

    def __init__(
        self, parallelism: int, reach: Callable[[str], None], find_failing: Callable[[Sequence[Range]], str | None]
    ) -> None:
        """`reach` counts a step that may be the last one; `find_failing` returns a stream that a task fails to read, if any."""
        self.parallelism = parallelism
        self.random: Random | None = None
        self.attempts: list[Attempt] = []
        self.observe: Callable[[BatchJob, Sequence[Sequence[Range]]], None] = lambda job, tasks: None
        self._reach, self._find_failing = reach, find_failing

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """See `Backend`."""
        self.observe(job, tasks)
        self._restart_workers()
        blocks: list[list[bytes]] = [[] for _ in range(job.partitions)]
        for number, task in self._reorder(list(enumerate(tasks))):
            for partition, block in self._run_task(lambda number=number, task=task: self._run_map(job, number, task)):
                blocks[partition].append(block)
        self.attempts = [*self.attempts, Attempt(job, blocks)][-_ATTEMPTS_KEPT:]
        reports, following = self._run_level(job, 0, blocks)
        for level in range(1, job.extra_shuffles + 1):
            more, following = self._run_level(job, level, following)
            reports += more
        return reports

    def _run_level(self, job: BatchJob, level: int, arrived: list[list[bytes]]) -> tuple[list[ReduceReport], list[list[bytes]]]:
        reports: dict[int, ReduceReport] = {}
        following: list[list[bytes]] = [[] for _ in range(job.partitions)]
        for partition in self._reorder(list(range(job.partitions))):
            blobs = self._reorder(arrived[partition])
            report, messages = self._run_task(lambda p=partition, b=blobs: self._run_reduce(job, level, p, b))
            reports[partition] = report
            for place, message in messages:
                following[place].append(message)
        return [reports[partition] for partition in sorted(reports)], following

    def _run_map(self, job: BatchJob, number: int, task: Sequence[Range]) -> list[tuple[int, bytes]]:
        self._reach("map task")
        failing = self._find_failing(task)
        if failing is not None:  # what the task reads before, it has processed
            run_map_task(job, number, [item for item in task if item.stream != failing])
            raise SourceError(f"stream '{failing}' fails at read, by the schedule", stream=failing)
        return [(partition, container.pack(block)) for partition, block in run_map_task(job, number, task)]

    def _run_reduce(
        self, job: BatchJob, level: int, partition: int, blobs: Sequence[bytes]
    ) -> tuple[ReduceReport, list[tuple[int, bytes]]]:
        self._reach("reduce task")
        received = [container.unpack(blob) for blob in blobs]
        report, messages = (
            run_later_level(job, level, partition, received) if level else run_reduce_task(job, partition, received)
        )
        return report, [(place, container.pack(message)) for place, message in messages.items()]

    def wake_zombie(self, pick: int, random: Random) -> str:
        """Run a reduce task of an earlier attempt once more; nobody hears of its answer or its failure."""
        if not self.attempts:
            return "no attempt"
        attempt = self.attempts[pick % len(self.attempts)]
        partition = random.randrange(attempt.job.partitions)
        try:
            self._run_reduce(attempt.job, 0, partition, attempt.blocks[partition])
        except (HeadraceError, OSError) as error:  # its files may be gone by now
            return f"batch {attempt.job.batch}, partition {partition}: {type(error).__name__}"
        return f"batch {attempt.job.batch}, partition {partition}"

    def _run_task(self, run: Callable[[], Any]) -> Any:
        """Run a task, perhaps twice; return the answer of either attempt."""
        answer = run()
        if self.random is not None and self.random.random() < 0.3:
            again = run()
            answer = self.random.choice((answer, again))
        return answer

    def _reorder(self, items: list[Any]) -> list[Any]:
        return items if self.random is None else self.random.sample(items, len(items))

    def _restart_workers(self) -> None:
        if self.random is not None and self.random.random() < 0.2:
            worker_cache._CACHES.clear()

    def close(self) -> None:
        """See `Backend`."""
