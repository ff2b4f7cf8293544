"""Several attempts of one task: the committed files are those of one attempt, and no other attempt changes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.backends.local import LocalBackend
from headrace.backends.spark import pipeline
from headrace.connectors import Range
from headrace.engine.batch_job import BatchJob, ReduceReport
from support.every_kind_session import BATCHES, EveryKindSession


class RepeatingBackend(LocalBackend):
    """Runs every task of a micro-batch twice, through the functions that Spark runs; the output of one attempt counts.

    That is the first attempt for half of the tasks, and the second for the others; `parity` tells which. `run_zombies` runs all
    reduce tasks of the last batch once more, as tasks do that Spark believes lost.
    """

    def __init__(self, parity: int) -> None:
        super().__init__()
        self._task_count = parity
        self._last_tasks: list[tuple[BatchJob, int, list[pipeline.ShuffleRow]]] = []

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        self._last_tasks = []
        rows: list[pipeline.ShuffleRow] = []
        for number, ranges in enumerate(tasks):
            rows += self._choose([list(pipeline.read_select_slice_aggregate(job, [(number, ranges)])) for _ in range(2)])
        for level in range(job.extra_shuffles + 1):
            rows = [row for partition in range(job.partitions) for row in self._run_twice(job, level, rows, partition)]
        reports = [pipeline.pickle.loads(content) for _, (kind, content) in rows if kind == "outcome"]
        assert len(reports) == job.partitions * (job.extra_shuffles + 1)
        return reports

    def _run_twice(
        self, job: BatchJob, level: int, rows: Sequence[pipeline.ShuffleRow], partition: int
    ) -> list[pipeline.ShuffleRow]:
        received = [row for row in rows if row[0] == partition]
        self._last_tasks.append((job, level, received))
        return self._choose([list(pipeline.merge_evaluate_route(job, level, received)) for _ in range(2)])

    def _choose(self, attempts: Sequence[list[pipeline.ShuffleRow]]) -> list[pipeline.ShuffleRow]:
        self._task_count += 1
        return attempts[self._task_count % 2]

    def run_zombies(self) -> int:
        """Run the reduce tasks of the last batch again; return their number."""
        for job, level, received in self._last_tasks:
            assert list(pipeline.merge_evaluate_route(job, level, received))
        return len(self._last_tasks)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder = tmp_path_factory.mktemp("once")
    (folder / "files").mkdir()
    run = EveryKindSession(folder / "checkpoint", folder / "files")
    run.run(0, BATCHES)
    run.session.drain()
    results = run.read_results()
    run.session.close()
    return results


@pytest.fixture(params=["inline", "files"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether shuffle blocks are inline, or all in files, which reduce tasks promote to state."""
    if request.param == "files":
        monkeypatch.setattr(pipeline, "_MAX_INLINE_BYTES", -1)
    return str(request.param)


def read_committed(run: EveryKindSession) -> dict[str, tuple[int, bytes]]:
    """The inode and the content of all state and result files that the manifest names."""
    store = run.session._checkpoint.store
    keys = run.session._coordinator.state.referenced_files()
    return {
        key: (store.path_of(key).stat().st_ino, store.get(key))
        for key in keys
        if key.startswith(("state/", "results/", "deliveries/"))
    }


def run_with_attempts(folder: Path, parity: int) -> Iterator[EveryKindSession]:
    """Run all batches, each task twice; yield the session after every batch."""
    (folder / "files").mkdir()
    run = EveryKindSession(folder / "checkpoint", folder / "files")
    run.session._coordinator.backend = run.backend = RepeatingBackend(parity)  # type: ignore[attr-defined]
    for batch in range(BATCHES):
        run.run(batch, batch + 1)
        yield run
    run.session.drain()
    yield run
    run.session.close()


def test_every_attempt_has_files_of_its_own(blocks: str, tmp_path: Path, expected: dict[str, list[object]]):
    zombies, suffixes = 0, set()
    for run in run_with_attempts(tmp_path, parity=int(blocks == "files")):
        committed = read_committed(run)
        zombies += run.backend.run_zombies()  # type: ignore[attr-defined]
        assert read_committed(run) == committed, "an attempt replaced a committed file"
        suffixes |= {Path(key).suffix for key in committed}
        results = run.read_results() if run.session._coordinator.state.drained else {}
    assert results == expected
    assert zombies > 2 * BATCHES
    assert suffixes == {".part", ".rows"} | ({".block"} if blocks == "files" else set())


def test_files_of_other_attempts_are_deleted_when_the_checkpoint_is_opened(tmp_path: Path, expected: dict[str, list[object]]):
    for run in run_with_attempts(tmp_path, 1):
        if run.session.last_batch == 3:
            break
    committed = read_committed(run)
    folders = ("state", "results", "deliveries")
    assert len(committed) < sum(len(run.session._checkpoint.store.list(folder)) for folder in folders)
    run.session.close()
    again = EveryKindSession(tmp_path / "checkpoint", tmp_path / "files")
    store = again.session._checkpoint.store
    assert set(committed) == {key for folder in folders for key in store.list(folder)}
    again.attach_callback()
    again.run(4, BATCHES)
    again.session.drain()
    assert again.read_results() == expected
    again.session.close()


def test_files_of_other_attempts_are_deleted_every_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Speculative tasks leave files although no batch fails: a session that runs for weeks must not keep them."""
    monkeypatch.setattr("headrace.runtime.coordinator.SWEEP_INTERVAL", 3)
    surplus = {}
    for run in run_with_attempts(tmp_path, 1):
        store, state = run.session._checkpoint.store, run.session._coordinator.state
        existing = {key for folder in ("state", "results", "deliveries") for key in store.list(folder)}
        surplus[state.batch] = len(existing - state.referenced_files())
    assert all((count == 0) == (batch % 3 == 0) for batch, count in surplus.items()), surplus
