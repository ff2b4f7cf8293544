"""Rate source: deterministic generated rows, available at the configured rate."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.connectors import GENERATORS, RateSource, generate, read_range
from headrace.connectors.source import RANGE_ROWS
from headrace.errors import SchemaError
from headrace.storage.posix import PosixStore
from headrace.storage.records import decode_records, encode_records

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", GENERATORS)
def test_rows_are_equal_for_any_split(name):
    whole = generate(name, 7, 0, 100_000)
    assert whole.schema.equals(GENERATORS[name].schema.to_arrow())
    parts = [generate(name, 7, a, b) for a, b in ((0, 37), (37, 40_000), (40_000, 100_000))]
    assert whole.equals(pa.concat_tables(parts).combine_chunks())
    assert not whole.equals(generate(name, 8, 0, 100_000))


def test_known_values_never_change():
    """Checkpoints refer to rows by number: a row must be the same in every version."""
    table = generate("fields", 1, 10**9, 10**9 + 2, keys=7, field_max=1000)
    assert [list(row.values())[:-1] for row in table.to_pylist()] == [[6, 296, 533, 498, 470, 212], [0, 428, 820, 277, 61, 873]]
    assert table.column("time").to_pylist()[0] == START + timedelta(seconds=10**6)


def test_values_are_uniformly_distributed():
    table = generate("fields", 3, 0, 100_000, keys=10, field_max=1000)
    assert table.column("key").slice(0, 11).to_pylist() == [*range(10), 0]
    for name in ("f1", "f5"):
        assert pc.min(table.column(name)).as_py() == 0
        assert pc.max(table.column(name)).as_py() == 999
        assert abs(pc.mean(table.column(name)).as_py() - 499.5) < 5
    assert table.column("f1") != table.column("f2")


def test_event_time_follows_the_rate():
    table = generate("ads", 0, 0, 7, rows_per_second=3)
    assert table.column("time").to_pylist()[:5] == [
        START + timedelta(microseconds=u) for u in (0, 333333, 666666, 10**6, 1333333)
    ]
    slow = generate("ads", 0, 0, 3, rows_per_second=0.5).column("time").to_pylist()
    assert slow == [START, START + timedelta(seconds=2), START + timedelta(seconds=4)]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_time_makes_rows_available(tmp_path):
    clock = Clock()
    source = RateSource(10, rows=55, seed=3, clock=clock)
    source.attach("s", PosixStore(tmp_path))
    assert source.plan(None, 100) == ([], None)
    clock.now += 2.05
    ranges, position = source.plan(None, 15)
    assert [(r.start, r.stop, r.rows) for r in ranges] == [(0, 15, 15)]
    assert position == {"row": 15}
    assert source.plan(None, 0)[1] == {"row": 1}, "a micro-batch always goes on"
    assert source.plan(position, 15)[1] == {"row": 20}
    assert not source.pending({"row": 20})

    clock.now += 100
    again = RateSource(10, rows=55, seed=3, clock=clock)
    again.attach("s", PosixStore(tmp_path))  # time advances between the two sources
    assert again.plan({"row": 20}, 1000)[1] == {"row": 55}
    assert not again.pending({"row": 55})
    assert again.definition() == source.definition()
    assert json.loads(json.dumps(source.definition())) == source.definition()


def test_a_serialized_range_reads_the_same_rows(tmp_path):
    clock = Clock()
    source = RateSource(10**6, "fields", keys=3, field_max=9, start_time="2026-02-01T00:00:00Z", clock=clock)
    source.attach("s", PosixStore(tmp_path))
    clock.now += 1
    ranges, _ = source.plan(None, RANGE_ROWS + 10)
    assert [r.rows for r in ranges] == [RANGE_ROWS, 10]
    range_ = decode_records(json.loads(encode_records(ranges[1])))
    table = read_range(range_, source.schema, ["time", "f1"])
    options = {"keys": 3, "field_max": 9, "rows_per_second": 10**6, "start_time": 1_769_904_000_000_000}
    assert table.equals(generate("fields", 0, RANGE_ROWS, RANGE_ROWS + 10, columns=["time", "f1"], **options))
    assert read_range(range_, source.schema, []).num_rows == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows_per_second": 0}, "rows_per_second"),
        ({"rows_per_second": 1, "generator": "nope"}, r"unknown generator 'nope'\ndetail: generators: purchases, ads, fields"),
        ({"rows_per_second": 1, "keys": 0}, "keys is 0"),
        ({"rows_per_second": 1, "rows": -1}, "rows is -1"),
        ({"rows_per_second": 1, "start_time": "soon"}, "start_time 'soon'"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(SchemaError, match=message):
        RateSource(**arguments)


def test_one_key_and_one_value_are_the_fewest():
    rows = generate("fields", 1, 0, 10, keys=1, field_max=1).to_pylist()
    assert {row["key"] for row in rows} == {row["f1"] for row in rows} == {0}
    for name in ("keys", "field_max"):
        for wrong in (0, 1 << 31):
            with pytest.raises(SchemaError, match=f"{name} is {wrong}, but must be positive"):
                generate("fields", 1, 0, 10, **{name: wrong})
