"""The state of a partition that moved to this worker: all its files are fetched at the same time, and only those."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from headrace.engine.batch_job import BatchJob, PartitionState, SessionRef, StateRef
from headrace.model.partition_map import PartitionMap
from headrace.storage import container
from headrace.storage.object_store import ObjectStore


@pytest.mark.parametrize(("partitions", "files"), [(2, 3), (3, 6), (4, 3)])
def test_the_files_of_a_partition_are_fetched_together(
    partitions: int, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    location = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "writer"))
    for number in range(6):
        container.write(ObjectStore(location, {}, "id"), f"state/{number}.part", PartitionState([], {}, []))
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "reader"))
    monkeypatch.setattr(ObjectStore, "is_remote", True)
    together, get = threading.Barrier(files), ObjectStore.get
    fetched: list[str] = []

    def get_together(store: ObjectStore, key: str) -> bytes:
        together.wait(30)
        fetched.append(key)
        return get(store, key)

    monkeypatch.setattr(ObjectStore, "get", get_together)
    slices = tuple(StateRef(f"state/{number}.part", 0, number % 2, "s", 0, 0, 0) for number in range(4))
    sessions = tuple(SessionRef(f"state/{number}.part", number % 2, 1) for number in range(4, 6))
    job = BatchJob(7, PartitionMap(partitions), PartitionMap(2), location, {}, (), slices, sessions, checkpoint_id="id")
    job.fetch_state(1)
    job.fetch_state(1)
    expected = {2: [1, 3, 5], 3: range(6), 4: [0, 2, 4]}[partitions]  # those of the partitions whose ranges overlap its own
    assert sorted(fetched) == [f"state/{number}.part" for number in expected]
