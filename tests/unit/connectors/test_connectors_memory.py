"""Memory source: accepted values, refusals, positions, restart."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from headrace.connectors import MemorySource, memory, read_range
from headrace.connectors.source import RANGE_ROWS
from headrace.errors import CheckpointError, SchemaError, SourceError
from headrace.model.types import Schema
from headrace.storage.posix import PosixStore

DDL = "id INT, name STRING, price DOUBLE, paid DECIMAL(10, 2), ok BOOLEAN, day DATE, time TIMESTAMP"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def read_rows(source: MemorySource, position=None, limit=10**9):
    ranges, after = source.plan(position, limit)
    tables = [read_range(range_, source.schema, source.schema.names) for range_ in ranges]
    return [row for table in tables for row in table.to_pylist()], after


def test_rows_of_every_type(tmp_path):
    source = MemorySource(DDL)
    source.attach("s", PosixStore(tmp_path))
    source.append(
        [
            {"id": 1, "name": "a", "price": 1, "paid": "1.25", "ok": True, "day": "2026-01-02", "time": "2026-01-02T12:00:00Z"},
            {"ID": np.int64(2), "price": np.float32(0.5), "paid": 2, "time": NOON.replace(tzinfo=None), "day": date(2026, 1, 2)},
            {"time": NOON.astimezone(timezone(timedelta(hours=5))), "paid": 0.5, "name": None},
            {},
        ]
    )
    rows, _ = read_rows(source)
    assert rows[0] == {
        "id": 1, "name": "a", "price": 1.0, "paid": Decimal("1.25"), "ok": True, "day": date(2026, 1, 2), "time": NOON,
    }  # fmt: skip
    assert [row["time"] for row in rows] == [NOON, NOON, NOON, None]
    assert [row["paid"] for row in rows] == [Decimal("1.25"), 2, Decimal("0.50"), None]
    assert rows[1]["id"] == 2
    assert set(rows[3].values()) == {None}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "x"}, "value 'x' of column 'id' in row 1 does not fit INT"),
        ({"id": 1.5}, "value 1.5 of column 'id'"),
        ({"id": True}, "value True of column 'id'"),
        ({"id": 2**31}, "value 2147483648 of column 'id' in row 1 does not fit INT"),
        ({"price": "1"}, "value '1' of column 'price' in row 1 does not fit DOUBLE"),
        ({"name": 5}, "value 5 of column 'name' in row 1 does not fit STRING"),
        ({"paid": "1.255"}, "column 'paid' in row 1 does not fit DECIMAL(10,2)"),
        ({"paid": "x"}, "value 'x' of column 'paid'"),
        ({"paid": float("nan")}, "value nan of column 'paid'"),
        ({"ok": 1}, "value 1 of column 'ok' in row 1 does not fit BOOLEAN"),
        ({"day": NOON}, "of column 'day' in row 1 does not fit DATE"),
        ({"time": 5}, "value 5 of column 'time' in row 1 does not fit TIMESTAMP"),
        ({"time": "noon"}, "value 'noon' of column 'time'"),
        ({"nope": 1}, "column 'nope' is not a column of stream 's'"),
        ((1, 2), "row 1 is a tuple"),
    ],
)
def test_an_append_with_an_invalid_row_appends_nothing(tmp_path, row, message):
    source = MemorySource(DDL)
    source.attach("s", PosixStore(tmp_path))
    with pytest.raises(SchemaError) as caught:
        source.append([{"id": 1}, row])
    assert message in str(caught.value)
    assert not source.pending(None)


def test_the_error_of_an_unknown_column_lists_the_columns():
    with pytest.raises(SchemaError, match=r"detail: columns: a, b"):
        MemorySource("a INT, b INT").append([{"c": 1}])


def test_tables_and_record_batches_are_appended(tmp_path):
    source = MemorySource(Schema.parse("id INT, time TIMESTAMP, name STRING"))
    source.append(pa.table({"TIME": pa.array([NOON.replace(tzinfo=None)]), "id": pa.array([1], pa.int64())}))
    source.append(pa.record_batch({"name": ["a"]}))
    source.append(pa.table({"time": ["2026-01-02T12:00:00"]}))
    source.append(pa.table({"id": pa.array([], pa.int32())}))
    source.append([])
    source.attach("s", PosixStore(tmp_path))
    rows, after = read_rows(source)
    assert rows == [
        {"id": 1, "time": NOON, "name": None},
        {"id": None, "time": None, "name": "a"},
        {"id": None, "time": NOON, "name": None},
    ]
    assert after == {"files": 3}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"id": [2**40]}), "column 'id' does not fit INT\ndetail: Integer value 1099511627776"),
        (pa.table({"time": [5]}), "column 'time' does not fit TIMESTAMP"),
        (pa.table({"x": [5]}), "column 'x' is not a column of this source"),
        (pa.table([[1], [2]], names=["id", "ID"]), "column 'id' is given twice"),
    ],
)
def test_invalid_tables_are_refused(table, message):
    with pytest.raises(SchemaError) as caught:
        MemorySource("id INT, time TIMESTAMP").append(table)
    assert message in str(caught.value)


def test_positions_and_limits_survive_a_restart(tmp_path):
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    assert source.plan(None, 10) == ([], None)
    for start in (0, 3, 6):
        source.append([{"id": start + i} for i in range(3)])
    first, after = read_rows(source, None, 4)
    assert ([row["id"] for row in first], after) == ([0, 1, 2], {"files": 1})
    planned = source.plan(after, 6)

    again = MemorySource("id INT")
    again.append([{"id": 9}])  # buffered until attach, then placed after the existing rows
    again.attach("s", PosixStore(tmp_path))
    assert again.plan(after, 6) == planned
    assert planned[1] == {"files": 3}
    assert read_rows(again, planned[1]) == ([{"id": 9}], {"files": 4})
    assert again.plan({"files": 4}, 6) == ([], {"files": 4})
    assert again.pending({"files": 3})
    assert not again.pending({"files": 4})
    assert again.definition() == source.definition()


def test_prune_keeps_numbering(tmp_path):
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    for i in range(3):
        source.append([{"id": i}])
    source.prune({"files": 3})
    assert [path.name.partition("-")[0] for path in tmp_path.glob("*.arrow")] == ["00000002"]
    again = MemorySource("id INT")
    again.attach("s", PosixStore(tmp_path))
    assert not again.pending({"files": 3})
    again.append([{"id": 3}])
    assert read_rows(again, {"files": 3})[0] == [{"id": 3}]


def test_large_appends_are_split_into_ranges(tmp_path):
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    source.append(pa.table({"id": pa.array(range(RANGE_ROWS * 2 + 1), pa.int32())}))
    ranges, after = source.plan(None, 1)
    assert [(r.start, r.stop, r.rows) for r in ranges] == [(0, 1, RANGE_ROWS), (1, 2, RANGE_ROWS), (2, 3, 1)]
    assert after == {"files": 1}


def test_partial_files_of_a_crash_are_ignored(tmp_path):
    (tmp_path / ".00000000.arrow.77.tmp").write_bytes(b"half")
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    assert not source.pending(None)
    (tmp_path / "00000000-0123456789abcdef.arrow").write_bytes(b"written, but never in the log")
    assert not source.pending(None)
    source.append([{"id": 1}])
    assert read_rows(source, None)[0] == [{"id": 1}]


@pytest.mark.parametrize("place", [0, 10, 100, -1])
def test_a_flipped_bit_in_a_file_is_detected(tmp_path, place):
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    source.append([{"id": 1}])
    (path,) = tmp_path.glob("00000000-*.arrow")
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with pytest.raises(SourceError, match=path.name):
        read_rows(source, None)


def test_a_log_that_does_not_list_appended_rows_is_refused(tmp_path):
    """The file after the last one of the log may be of an append that did not return; a later one was lost."""
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    source.append([{"id": 1}])
    log = (tmp_path / "rows.jsonl").read_bytes()
    for number, lines in enumerate((log, log)):
        source.append([{"id": number}])
        (tmp_path / "rows.jsonl").write_bytes(lines)
        again = MemorySource("id INT")
        if number == 0:
            again.attach("s", PosixStore(tmp_path))
            (tmp_path / "rows.jsonl").write_bytes(lines)
        else:
            with pytest.raises(CheckpointError, match="it does not list the file with number 2"):
                again.attach("s", PosixStore(tmp_path))


def test_a_log_that_is_missing_or_too_short_is_refused(tmp_path):
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    source.append([{"id": 1}])
    source.append([{"id": 2}])
    log = tmp_path / "rows.jsonl"
    content = log.read_bytes()
    log.write_bytes(content[: content.index(b"\n") + 1])
    again = MemorySource("id INT")
    again.attach("s", PosixStore(tmp_path))
    with pytest.raises(CheckpointError, match=r"rows\.jsonl.*damaged"):
        again.verify({"files": 2})
    log.unlink()
    with pytest.raises(CheckpointError, match=r"rows\.jsonl.*missing"):
        MemorySource("id INT").attach("s", PosixStore(tmp_path))


def test_the_log_does_not_grow_with_pruned_files(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MAX_PRUNED_LINES", 5)
    source = MemorySource("id INT")
    source.attach("s", PosixStore(tmp_path))
    for number in range(30):
        source.append([{"id": number}])
        source.prune({"files": number + 1})
    assert len((tmp_path / "rows.jsonl").read_bytes().splitlines()) <= 7
    again = MemorySource("id INT")
    again.attach("s", PosixStore(tmp_path))
    again.append([{"id": 30}])
    assert read_rows(again, {"files": 30})[0] == [{"id": 30}]


def test_plan_needs_attach():
    with pytest.raises(SourceError, match="not attached"):
        MemorySource("id INT").plan(None, 1)


def test_read_files_are_deleted_together_where_each_deletion_is_a_request(tmp_path, monkeypatch):
    monkeypatch.setattr(PosixStore, "is_remote", True)
    store = PosixStore(tmp_path)
    source = MemorySource("id INT")
    source.attach("s", store)
    source.prune(None)
    for number in range(20):
        source.append([{"id": number}])
    for read, kept in ((15, 20), (16, 4), (20, 4)):
        source.prune({"files": read})
        assert sum(key.endswith(".arrow") for key in store.list("")) == kept
