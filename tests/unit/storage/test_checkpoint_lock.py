"""The lock of a checkpoint: refused and closed sessions hold nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from headrace.errors import CheckpointError
from headrace.runtime.opening import CheckpointOpening
from headrace.storage.checkpoint import Checkpoint, name_source_folder


def count_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_refused_sessions_leave_no_open_files(tmp_path: Path):
    owner = Checkpoint(tmp_path)
    before = count_descriptors()
    for _ in range(3):
        with pytest.raises(CheckpointError, match="in use by another session"):
            Checkpoint(tmp_path)
    assert count_descriptors() == before
    owner.close()
    owner.close()
    assert count_descriptors() == before - 1


def test_a_standby_waits_for_the_lock_of_a_folder(tmp_path: Path):
    owner = Checkpoint(tmp_path)
    opening = CheckpointOpening(partial(Checkpoint, tmp_path, None), standby=True)
    cancelled = CheckpointOpening(partial(Checkpoint, tmp_path, None), standby=True)
    assert opening.is_pending
    cancelled.close()
    owner.close()
    standby = opening.finish()
    with pytest.raises(CheckpointError, match="cancelled"):
        cancelled.finish()
    with pytest.raises(CheckpointError, match="in use by another session"):
        Checkpoint(tmp_path)
    standby.close()


def test_a_damaged_marker_releases_the_lock(tmp_path: Path):
    Checkpoint(tmp_path).close()
    marker = tmp_path / "HEADRACE"
    content = marker.read_bytes()
    marker.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="HEADRACE"):
        Checkpoint(tmp_path)
    marker.write_bytes(content)
    reopened = Checkpoint(tmp_path)
    assert reopened.identity in content.decode()
    reopened.close()


def test_names_of_source_folders_are_distinct_and_short():
    names = [name_source_folder(stream) for stream in ("a", "a/b", "ä", "x" * 100, "x" * 101, "x" * 102)]
    assert names[:4] == ["a", "a%2fb", "%e4", "x" * 100]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) == 100 + 1 + 16
