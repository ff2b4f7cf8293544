"""What is kept of slices: parcels that become state, small buckets that become one."""

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


def bucket(rows: int, start: int = 0, width: int = 1) -> BufferedRows:
    return BufferedRows(start, [pa.array(np.arange(rows))], np.ones((rows, width), np.uint64))


def ref(file: str = "", start: int = 0, index: int = 0) -> StateRef:
    return StateRef(file, index, 0, "s", 1, 0, start)


@pytest.mark.parametrize("links", [True, False])
def test_a_parcel_becomes_state_as_it_is(tmp_path: Path, links: bool, monkeypatch: Any) -> None:
    def no_links(*_: object) -> None:
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", no_links)
    for folder in ("exchange", "state"):
        (tmp_path / folder).mkdir()
    parcel = ShuffleBlock(0, MapReport(), buffered_rows=[("s", 1, 0, bucket(3)), ("s", 1, 0, bucket(5))])
    container.write(tmp_path / "exchange" / "7-0-0.parcel", parcel, sync=False)
    adopt = ShuffleFilePromoter(tmp_path)
    kept = [adopt(ref("exchange/7-0-0.parcel", index=index)) for index in (0, 1)]
    (tmp_path / "exchange" / "7-0-0.parcel").unlink()
    assert [one.file for one in kept] == ["state/7-0-0.parcel"] * 2
    job = BatchJob(8, 1, 1, str(tmp_path), {}, ())
    assert [job.load_buffered_rows(one).row_count for one in kept] == [3, 5]
    assert adopt(kept[1]) == kept[1]


def test_many_small_buckets_of_a_slice_become_one_and_large_ones_stay() -> None:
    large = (ref("state/large", start=5), bucket(1 << 16, 5))
    small = [(ref(f"state/{number}", start=5), bucket(number, 5, 1 + number // 9)) for number in range(1, 18)]
    other = (ref("state/other", start=9), bucket(1, 9))
    found = compact_buffers([large, *small, other])
    assert [at.file for at, _ in found] == ["state/large", "", "state/other"]
    assert found[1][1].row_count == sum(range(1, 18))
    assert found[1][1].sets.shape == (sum(range(1, 18)), 2)
    assert compact_buffers([large, *small[:16], other]) == [large, *small[:16], other]
