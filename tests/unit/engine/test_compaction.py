"""State of join buffers: shuffle files promoted to state, and compaction of small buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.batch_job import BatchJob, MapReport, ShuffleBlock, StateRef
from headrace.engine.joins.buffer_compaction import ShuffleFilePromoter, compact_buffers
from headrace.engine.joins.join_buffer import BufferedRows
from headrace.storage import container
from headrace.storage.posix import PosixStore


def make_buffer(rows: int, start: int = 0, width: int = 1) -> BufferedRows:
    return BufferedRows(start, [pa.array(np.arange(rows))], np.ones((rows, width), np.uint64))


def make_ref(file: str = "", start: int = 0, index: int = 0) -> StateRef:
    return StateRef(file, index, 0, "s", 1, 0, start)


@pytest.mark.parametrize("links", [True, False])
def test_a_shuffle_file_is_promoted_to_state_unchanged(tmp_path: Path, links: bool, monkeypatch: Any) -> None:
    def refuse_links(*_: object) -> None:
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse_links)
    store = PosixStore(tmp_path)
    block = ShuffleBlock(0, MapReport(), buffered_rows=[("s", 1, 0, make_buffer(3)), ("s", 1, 0, make_buffer(5))])
    container.write(store, "shuffle/7-0-0.block", block, sync=False)
    promote = ShuffleFilePromoter(store)
    promoted = [promote(make_ref("shuffle/7-0-0.block", index=index)) for index in (0, 1)]
    store.delete("shuffle/7-0-0.block")
    assert [ref.file for ref in promoted] == ["state/7-0-0.block"] * 2
    job = BatchJob(8, 1, 1, str(tmp_path), {}, ())
    assert [job.load_buffered_rows(ref).row_count for ref in promoted] == [3, 5]
    assert promote(promoted[1]) == promoted[1]


def test_small_buffers_of_a_slice_are_merged_and_large_buffers_are_kept() -> None:
    large = (make_ref("state/large", start=5), make_buffer(1 << 16, 5))
    small = [(make_ref(f"state/{number}", start=5), make_buffer(number, 5, 1 + number // 9)) for number in range(1, 18)]
    other = (make_ref("state/other", start=9), make_buffer(1, 9))
    compacted = compact_buffers([large, *small, other])
    assert [ref.file for ref, _ in compacted] == ["state/large", "", "state/other"]
    assert compacted[1][1].row_count == sum(range(1, 18))
    assert compacted[1][1].sets.shape == (sum(range(1, 18)), 2)
    assert compact_buffers([large, *small[:16], other]) == [large, *small[:16], other]
