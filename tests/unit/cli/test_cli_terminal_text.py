"""What commands print for people: numbers, durations, cells and tables; and how they measure a session."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from headrace.cli.meter import BatchThread, SessionMeter, run_batches
from headrace.cli.spark_options import SparkOptions, flatten_settings, parse_settings
from headrace.cli.terminal import (
    BackendName,
    format_cell,
    format_count,
    format_seconds,
    parse_partitions_option,
    result_table,
    stop_on_signal,
)
from headrace.errors import HeadraceError, SessionError


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.0, "0 ms"), (0.0126, "13 ms"), (0.999, "999 ms"), (1.0, "1.0 s"), (75.25, "75.2 s")]
)
def test_durations_are_in_milliseconds_below_a_second(seconds: float | None, text: str):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"), (9_999, "9,999"), (10_000, "10 k"), (12_600, "13 k"), (999_000, "999 k"), (1_000_000, "1.00 M"),
        (1_234_567, "1.23 M"), (10_000_000, "10.0 M"), (1_234_567_890, "1,234.6 M"),
    ],
)  # fmt: skip
def test_large_numbers_have_a_suffix(count: float, text: str):
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"), (0.0, "0"), (1.5, "1.5"), (100.0, "100"), (1234.56789, "1,234.5679"), (0.001, "0.001"),
        (0.0009, "0.0009"), (0.00012345, "0.00012345"), (1e12, "1e+12"), (999_999_999_999.0, "999,999,999,999"), (-2.50, "-2.5"),
        (True, "True"), (7, "7"), (Decimal("1.50"), "1.50"), ("a T Z", "a T Z"), (date(2024, 3, 5), "2024-03-05"),
        (datetime(2024, 3, 5, 6, 7, tzinfo=UTC), "2024-03-05 06:07:00"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_cells_are_short(value: Any, text: str):
    assert format_cell(value).plain == text


def draw(table: object) -> list[str]:
    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_table_shows_the_first_rows_and_counts_the_others():
    rows = pa.table({"name": ["a", "b", "c"], "n": [1, 22, 333], "price": [Decimal("1.0")] * 3, "x": [0.5] * 3})
    table = result_table("title", rows, 2)
    assert [column.justify for column in table.columns] == ["left", "right", "right", "right"]
    assert (table.row_count, table.caption) == (2, "… and 1 more")
    assert "22" in "".join(draw(table))
    assert (result_table("title", rows, 3).row_count, result_table("title", rows, 3).caption) == (3, None)


def test_partitions_are_a_number_or_auto():
    assert [parse_partitions_option(text) for text in (None, "8", "AUTO")] == [None, 8, "auto"]
    for text in ("0", "-1", "many", "²"):
        with pytest.raises(SessionError):
            parse_partitions_option(text)


def test_spark_needs_java(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/no/such/folder")
    for backend in (BackendName.local, BackendName.reference):
        backend.check_available()
    with pytest.raises(SessionError, match="in JAVA_HOME=/no/such/folder"):
        BackendName.spark.check_available()


def test_the_first_signal_stops_and_the_second_interrupt_raises():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stopping = threading.Event()
    with stop_on_signal(stopping):
        assert not stopping.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stopping.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class FakeSession:
    """Has batches of `rows` rows, each of which takes two seconds of `clock`; None is no work."""

    def __init__(self, *rows: int | None) -> None:
        self.now, self.last_batch, self._rows = 100.0, 0, iter(rows)

    def clock(self) -> float:
        return self.now

    def advance(self, *, retry_degraded: bool) -> SimpleNamespace:
        assert not retry_degraded
        rows = next(self._rows)
        self.now += 2.0
        if rows is not None:
            self.last_batch += 1
        return SimpleNamespace(rows=rows or 0, emitted=1)


def test_a_meter_counts_batches_rows_and_results():
    session = FakeSession(10, None, 30)
    meter = SessionMeter(session.clock)
    assert (meter.rows_per_second, meter.median_batch_seconds, meter.elapsed_seconds) == (0.0, None, 0.0)
    assert [meter.advance(session) for _ in range(3)] == [True, False, True]
    assert (meter.batches, meter.rows, meter.emitted, meter.batch_seconds) == (2, 40, 2, [2.0, 2.0])
    assert (meter.elapsed_seconds, meter.median_batch_seconds) == (6.0, 2.0)
    # the first batch ended four seconds ago, and began six seconds ago
    assert meter.rows_per_second == 40 / 6
    session.now += 2
    assert meter.rows_per_second == 30 / 4
    session.now += 5
    assert meter.rows_per_second == 0.0


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_batches_run_until_they_are_stopped(stopping: threading.Event):
    session = FakeSession(1, None, 3)
    meter, calls = SessionMeter(session.clock), []

    def count() -> None:
        calls.append(meter.batches)
        if len(calls) == 3:
            stopping.set()

    run_batches(session, meter, 0.0, stopping, count)
    assert calls == [1, 1, 2]


def test_an_error_ends_the_thread_and_is_raised_where_it_is_asked_for():
    session = FakeSession(1)
    thread = BatchThread(session, SessionMeter(session.clock), 0.0)
    thread.raise_if_failed()
    assert thread.daemon
    thread.start()
    thread.join(10)
    with pytest.raises(StopIteration):
        thread.raise_if_failed()
    thread.stop()


def test_settings_of_spark():
    assert parse_settings(["a.b=c=d", " x = y"]) == {"a.b": "c=d", "x": " y"}
    for text in ("a", "=b", " =b"):
        with pytest.raises(HeadraceError, match="invalid --conf"):
            parse_settings([text])
    assert flatten_settings({"spark": {"ui": {"enabled": False}, "cores": 4}, "a.b": "c", "r": 1.5}) == {
        "spark.ui.enabled": "false", "spark.cores": "4", "a.b": "c", "r": "1.5"
    }  # fmt: skip
    with pytest.raises(TypeError, match=r"'spark\.jars' is not"):
        flatten_settings({"spark": {"jars": ["a"]}})


def test_the_command_line_overrides_the_session_file():
    options = SparkOptions("local[2]", {"a": "1", "b": "2"}, "files")
    assert options.override(None, None, None) == options
    changed = options.override("yarn", ["b=3"], "shuffle")
    assert changed == SparkOptions("yarn", {"a": "1", "b": "3"}, "shuffle")
    assert changed.to_arguments() == {"master": "yarn", "spark_config": {"a": "1", "b": "3"}, "exchange": "shuffle"}
    assert SparkOptions().to_arguments() == {"master": None, "spark_config": {}, "exchange": "auto"}
