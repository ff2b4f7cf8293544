"""The result log: packing, retention, and reading while files are packed and deleted."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CheckpointError
from headrace.storage import result_log
from headrace.storage.posix import PosixStore
from headrace.storage.result_files import BatchResults, merge_result_rows
from headrace.storage.result_log import (
    ResultLog,
    ResultPacker,
    ResultReader,
    Retention,
    is_packed_file,
    pack_files,
    write_result_file,
)
from support.faulty_disk import FaultyDisk

NUMBERS, TEXTS = pa.schema([("n", pa.int64())]), pa.schema([("t", pa.string())])


def make_results(batch: int, counts: dict[int, int]) -> BatchResults:
    """Results with `counts[q]` rows of query q; odd queries have texts, even ones numbers: batch * 100, + 1, + 2, …"""
    results = BatchResults()
    for parity, schema in ((0, NUMBERS), (1, TEXTS)):
        queries = [query for query in sorted(counts) if query % 2 == parity for _ in range(counts[query])]
        values = [batch * 100 + i for query in sorted(counts) if query % 2 == parity for i in range(counts[query])]
        column = pa.array(values if parity == 0 else [str(value) for value in values], schema.field(0).type)
        results.add(np.array(queries, np.int64), pa.RecordBatch.from_arrays([column], schema=schema))
    return results


def write_batch(store: PosixStore, batch: int, counts: dict[int, int], partition: int = 0):
    return write_result_file(store, f"{batch:010d}-{partition:05d}", make_results(batch, counts).to_rows(batch))


def read_all(reader: ResultReader, query: int, after: int = -1, until: int = 10**9) -> list[tuple[int, list[object]]]:
    return [
        (batch, [value for part in rows for value in part.column(0).to_pylist()])
        for batch, rows in reader.iter_rows(query, after, until)
    ]


def expect(counts: list[dict[int, int]], query: int, first: int = 0) -> list[tuple[int, list[object]]]:
    convert = str if query % 2 else int
    return [
        (batch, [convert(batch * 100 + i) for i in range(by_query[query])])
        for batch, by_query in enumerate(counts)
        if by_query.get(query) and batch >= first
    ]


COUNTS = st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 3), max_size=4), min_size=1, max_size=12)


@given(COUNTS, st.integers(0, 12), st.data())
def test_packed_rows_are_those_of_the_parts(counts: list[dict[int, int]], first_kept: int, data: st.DataObject):
    parts = [make_results(batch, by_query).to_rows(batch) for batch, by_query in enumerate(counts) if by_query]
    cut = data.draw(st.integers(1, len(parts))) if parts else 0
    if not parts:
        return
    merged = merge_result_rows([merge_result_rows(parts[:cut], first_kept), *parts[cut:]], first_kept)
    for query in range(4):
        after, until = sorted((data.draw(st.integers(-1, 12)), data.draw(st.integers(-1, 12))))
        found: dict[int, list[object]] = {}
        for batch, rows in merged.iter_rows(query, after, until):
            found.setdefault(batch, []).extend(rows.column(0).to_pylist())
        assert list(found.items()) == [entry for entry in expect(counts, query, first_kept) if after < entry[0] <= until]
        assert all(merged.count_rows(query, batch) == len(values) for batch, values in found.items())


def test_the_number_of_files_grows_with_the_logarithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_log, "PACKED_FILES", 4)
    store, log = PosixStore(tmp_path), ResultLog()
    counts = [dict.fromkeys(range(4), 1 + batch % 3) for batch in range(300)]
    for batch, by_query in enumerate(counts):
        log = log.add_files((write_batch(store, batch, by_query),))
        while parts := log.find_packable():
            log = log.replace_files(pack_files(store, parts, 0))
            for part in parts:
                store.delete(part.key)
    assert len(log.files) <= 4 * 5
    reader = ResultReader(store, lambda: log)
    assert [read_all(reader, query) for query in range(4)] == [expect(counts, query) for query in range(4)]
    assert read_all(reader, 2, 100, 103) == expect(counts[:104], 2, 101)
    last = reader.read_last_rows(2, -1, 299, 5)
    assert [value for rows in last for value in rows.column(0).to_pylist()] == [29800, 29801, 29900, 29901, 29902]
    assert reader.count_batches(2, -1, 299, 10**6)[0][:2] == [(299, 3), (298, 2)]


def test_large_files_are_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_log, "PACKED_FILES", 2)
    monkeypatch.setattr(result_log, "MAX_PACKED_BYTES", 100)
    store = PosixStore(tmp_path)
    log = ResultLog().add_files(tuple(write_batch(store, batch, {0: 1}) for batch in range(5)))
    assert log.find_packable() == ()


# files    0   1   2   3   4 (each 100 bytes, of one batch)
# kept             |-----------|   max_bytes 250: 3 and 4
def test_retention_by_bytes_and_by_number(tmp_path: Path):
    store = PosixStore(tmp_path)
    files = tuple(write_batch(store, batch, {0: 1}) for batch in range(5))
    size, log = files[0].bytes, ResultLog().add_files(files)
    assert log.trim(Retention(), 4) is log
    assert log.trim(Retention(max_bytes=5 * size), 4) is log
    by_bytes = log.trim(Retention(max_bytes=2 * size + 1), 4)
    assert (by_bytes.first_kept_batch, by_bytes.files) == (3, files[3:])
    by_number = log.trim(Retention(max_batches=2), 6)
    assert (by_number.first_kept_batch, by_number.files) == (5, ())
    assert log.trim(Retention(max_bytes=0, max_batches=0), 4).files == files[4:], "the newest batch is always kept"
    both = log.trim(Retention(max_bytes=2 * size, max_batches=1), 4)
    assert both.first_kept_batch == 4


def test_rows_of_a_packed_file_past_their_retention_are_not_read(tmp_path: Path):
    store = PosixStore(tmp_path)
    counts = [{0: 1} for _ in range(6)]
    packed = pack_files(store, tuple(write_batch(store, batch, {0: 1}) for batch in range(6)), 0)
    log = ResultLog((packed.file,)).trim(Retention(max_batches=2), 5)
    assert log.files == (packed.file,)
    reader = ResultReader(store, lambda: log)
    assert read_all(reader, 0) == expect(counts, 0, 4)
    assert sum(rows.num_rows for rows in reader.read_last_rows(0, -1, 5, None)) == 2


def test_a_reader_continues_when_files_are_packed_while_it_reads(tmp_path: Path):
    store = PosixStore(tmp_path)
    counts = [{0: 2} for _ in range(8)]
    logs = [ResultLog().add_files(tuple(write_batch(store, batch, {0: 2}) for batch in range(8)))]
    reader = ResultReader(store, lambda: logs[-1])
    rows = reader.iter_rows(0, -1, 7)
    found = [next(rows), next(rows)]
    parts = logs[-1].files
    logs.append(logs[-1].replace_files(pack_files(store, parts, 0)))
    for part in parts:
        store.delete(part.key)
    found += rows
    assert [(batch, [v for p in part for v in p.column(0).to_pylist()]) for batch, part in found] == expect(counts, 0)


def test_a_damaged_file_is_reported_by_readers_and_left_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(result_log, "PACKED_FILES", 3)
    store = PosixStore(tmp_path)
    log = ResultLog().add_files(tuple(write_batch(store, batch, {0: 1}) for batch in range(3)))
    (tmp_path / log.files[1].key).write_bytes(b"damaged")
    packer = ResultPacker(store)
    assert packer.update(log) is log
    packer.close()
    assert "result files are not packed" in caplog.text
    assert packer.update(log) is log
    with pytest.raises(CheckpointError, match=log.files[1].key):
        list(ResultReader(store, lambda: log).iter_rows(0, -1, 9))


def test_a_packed_file_whose_parts_were_deleted_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_log, "PACKED_FILES", 3)
    store = PosixStore(tmp_path)
    log = ResultLog().add_files(tuple(write_batch(store, batch, {0: 1}) for batch in range(3)))
    packer = ResultPacker(store)
    packer.update(log)
    packer.close()
    trimmed = log.trim(Retention(max_batches=1), 2)
    assert packer.update(trimmed) is trimmed
    assert not [key for key in store.list("results") if "packed" in key]


def test_files_past_their_retention_are_not_packed_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_log, "PACKED_FILES", 3)
    store = PosixStore(tmp_path)
    log = ResultLog(tuple(write_batch(store, batch, {0: 1}) for batch in range(3)), first_kept_batch=3)
    with pytest.raises(CheckpointError, match="all rows are past their retention"):
        pack_files(store, log.files, 3)
    packer = ResultPacker(store)
    for _ in range(2):
        assert packer.update(log) is log
        packer.close()  # a second attempt would need the thread that has ended
    assert [key for key in store.list("results") if "packed" in key] == []


def test_a_packed_file_has_the_rows_that_are_kept_and_the_next_level(tmp_path: Path):
    store = PosixStore(tmp_path)
    packed = pack_files(store, tuple(write_batch(store, batch, {0: 1}) for batch in range(4)), 2).file
    assert (packed.first_batch, packed.last_batch, packed.level) == (2, 3, 1)
    assert packed.key.startswith("results/0000000000-0000000003-packed-")
    assert packed.bytes == store.find_size(packed.key)
    assert pack_files(store, (packed, write_batch(store, 4, {0: 1})), 2).file.level == 2


def test_files_that_could_not_be_packed_on_a_full_disk_are_packed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_log, "PACKED_FILES", 2)
    disk, store = FaultyDisk(tmp_path, monkeypatch), PosixStore(tmp_path)
    log = ResultLog().add_files(tuple(write_batch(store, batch, {0: 1}) for batch in range(2)))
    packer = ResultPacker(store)
    disk.fail_on("write results/", "full", lasting=True)
    assert packer.update(log) is log
    wait_for_packer(packer)
    disk.repair()
    assert packer.update(log) is log
    wait_for_packer(packer)
    assert [is_packed_file(file.key) for file in packer.update(log).files] == [True]
    packer.close()


def wait_for_packer(packer: ResultPacker) -> None:
    assert packer._pending is not None
    packer._pending.exception()


# files      0   1   2   3   4   5
# kept               |---------------|   counted: the newest two files only, up to batch 4
def test_batches_are_counted_within_the_retention_and_the_newest_files(tmp_path: Path):
    store = PosixStore(tmp_path)
    log = ResultLog().add_files(tuple(write_batch(store, batch, {0: 1 + batch}) for batch in range(6)))
    log = log.trim(Retention(max_batches=4), 5)
    reader = ResultReader(store, lambda: log)
    assert reader.first_kept_batch == 2
    assert reader.count_batches(0, -1, 5, 100) == ([(5, 6), (4, 5), (3, 4), (2, 3)], 2)
    assert reader.count_batches(0, 3, 5, 100) == ([(5, 6), (4, 5)], 4)
    assert reader.count_batches(0, -1, 4, 2) == ([(4, 5), (3, 4)], 3)
    assert reader.count_batches(1, -1, 5, 100) == ([], 2)


def test_a_reader_releases_files_that_the_log_no_longer_names(tmp_path: Path):
    """A mapped file keeps its space on the disk after it was deleted, which `retain_results(max_bytes)` promises to free."""
    store = PosixStore(tmp_path)
    log = ResultLog()
    reader = ResultReader(store, lambda: log)
    for batch in range(10):
        before = log.add_files((write_batch(store, batch, {0: 3}),))
        log = before.trim(Retention(max_batches=2), batch)
        for file in set(before.files) - set(log.files):
            store.delete(file.key)
        assert read_all(reader, 0) == expect([{0: 3}] * (batch + 1), 0, max(0, batch - 1))
    gc.collect()  # decoding leaves cycles that refer to the map
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert mapped
    assert [line for line in mapped if line.endswith("(deleted)")] == []
