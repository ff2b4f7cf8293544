"""The partition map: ranges of hashes are split and merged, and state moves only where ranges change.

0 ── 0 ──┬── 1 ──┬── 2 ──┬── 3 ── 2³¹         four equal ranges
0 ── 0 ──┼─ 1 ┬ 4 ┼── 2 ──┼── 3 ── 2³¹        the range of partition 1 is split
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.engine.compute.keys import assign_partitions, hash_to_range
from headrace.engine.joins.routing import take_share
from headrace.engine.joins.segment import RowSegment
from headrace.engine.load_sampling import KeyedInput, find_split_hash
from headrace.engine.repartition import find_origin
from headrace.model.partition_map import HASH_END, PartitionMap
from headrace.runtime.partition_scaling import ScalingPolicy
from support.compare import assert_same_rows

KEYS = pa.array(range(3_000))


@st.composite
def partition_maps(draw: Any) -> PartitionMap:
    partitions = PartitionMap(draw(st.integers(1, 5)))
    for _ in range(draw(st.integers(0, 4))):
        ranges = partitions.list_ranges()
        index = draw(st.integers(0, len(ranges) - 1))
        item = ranges[index]
        if item.end - item.start > 1 and (draw(st.booleans()) or len(ranges) == 1):
            partitions = partitions.split({item.partition: draw(st.integers(item.start + 1, item.end - 1))})
        elif len(ranges) > 1:
            index = min(index, len(ranges) - 2)
            partitions = partitions.merge([(ranges[index].partition, ranges[index + 1].partition)])
    return partitions


@given(partition_maps())
def test_every_key_has_the_partition_of_its_range(partitions: PartitionMap):
    owners, hashes = assign_partitions([KEYS], len(KEYS), partitions), hash_to_range([KEYS], len(KEYS))
    ranges = {item.partition: item for item in partitions.list_ranges()}
    assert sorted(ranges) == list(range(partitions.count))
    pairs = zip(owners.tolist(), hashes.tolist(), strict=True)
    assert all(ranges[owner].start <= hashed < ranges[owner].end for owner, hashed in pairs)
    assert sum(partitions.list_shares()) == pytest.approx(1)


@given(partition_maps(), partition_maps(), st.booleans())
def test_stored_rows_belong_to_one_partition_of_the_next_map(before: PartitionMap, after: PartitionMap, has_keys: bool):
    owners = assign_partitions([KEYS], len(KEYS), before)
    found: list[int] = []
    for partition in range(after.count):
        origin = find_origin(before, after, partition)
        for source in origin.heirs:
            stored = pa.array(np.flatnonzero(owners == source))
            segment = RowSegment({"k": stored}, np.ones((len(stored), 1), np.uint64))
            if not origin.is_moved:
                found += stored.to_pylist()
            elif has_keys:
                mine = assign_partitions([stored], len(stored), after) == partition
                found += stored.filter(pa.array(mine)).to_pylist()
            else:
                found += take_share(None, segment, source, origin).columns["k"].to_pylist()
    assert sorted(found) == KEYS.to_pylist()


def test_ranges_that_stay_are_not_moved():
    before = PartitionMap(4)
    after = before.split({1: 3 << 28})
    assert [find_origin(before, after, partition).is_moved for partition in range(5)] == [False, True, False, False, True]
    merged = after.merge([(1, 4)])
    assert merged == before
    other = after.merge([(0, 1)])  # partition 4 takes the number 1
    origins = [find_origin(after, other, partition) for partition in range(4)]
    assert [sorted(origin.heirs) for origin in origins] == [[0, 1], [4], [2], [3]]
    assert [origin.is_moved for origin in origins] == [True, False, False, False]


def test_the_load_divides_at_its_median():
    hashes = hash_to_range([KEYS], len(KEYS))
    found = find_split_hash([KeyedInput.of_columns(len(KEYS), [KEYS])])
    assert found is not None
    assert abs(np.mean(hashes < found) - 0.5) < 0.01
    hot = pa.array([7] * 10_000 + [1, 2, 3, 4])  # the hot key is alone in its range
    found = find_split_hash([KeyedInput.of_columns(len(hot), [hot])])
    hot_hash = int(hash_to_range([pa.array([7])], 1)[0])
    assert found in {hot_hash, *(int(h) for h in hash_to_range([pa.array([1, 2, 3, 4])], 4) if h > hot_hash)}
    assert find_split_hash([KeyedInput.of_columns(5, [pa.array([7] * 5)])]) is None
    assert find_split_hash([]) is None


EAGER = ScalingPolicy(steady_batches=2, cooldown_seconds=0.0, target_seconds=1e9, skew=1.5, relevant_seconds=0.0)


def test_only_the_overloaded_partition_moves_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Keys of partition 0 only, after a batch with all keys: it is split, and the files of the other one stay."""
    hot = KEYS.filter(pa.array(assign_partitions([KEYS], len(KEYS), PartitionMap(2)) == 0)).to_pylist()
    results = []
    for setting in ("auto", 2):
        with hr.Session(tmp_path / str(setting), backend="local", partitions=setting) as session:
            session._coordinator.scaler.policy = EAGER
            source = hr.MemorySource("k INT, time TIMESTAMP")
            session.create_stream("s", source, time="time")
            query = session.add("SELECT k, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY k")
            source.append([{"k": k, "time": "2026-01-01T00:00:00Z"} for k in KEYS.to_pylist()])
            session.advance()
            files = list_files(session, 1)
            changes: list[str] = []
            for _ in range(6):
                source.append([{"k": k, "time": "2026-01-01T00:00:01Z"} for k in hot])
                changes += [text for kind, text in session.advance().changes if kind == "replan"]
            if setting == "auto":
                assert changes
                assert changes[0].startswith("partitions 2 → 3: one partition takes ")
                assert changes[0].endswith("; split 0")
                assert files <= list_files(session, 1)
                assert "key partitions, the ranges of hashes" in session.explain()
                assert "of the hashes of keys (auto)" in str(session.partitioning)
            session.drain()
            results.append(query.results().to_pylist())
    assert_same_rows(*results)


def list_files(session: hr.Session, partition: int) -> set[str]:
    return {ref.file for ref in session._coordinator.state.aggregation_refs if ref.partition == partition}


def test_a_map_with_an_empty_range_is_an_error():
    with pytest.raises(AssertionError, match="empty"):
        PartitionMap(2, (HASH_END,), (0, 1))
    with pytest.raises(AssertionError, match="one range"):
        PartitionMap(2, (5,), (0, 0))
