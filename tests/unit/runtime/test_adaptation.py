"""Sliding joins whose selectivities change: adaptive plans recover their probe cost, static plans do not; results are equal.

    second   0 ─────────── 5 ──┬──────┬────────────── 13
    partners  about one        │ r–s and t–u 100, s–t none
    orders    s→r t→u          └ new  └ rows from before the change have expired

These tests count rows; scripts/measure-adaptation measures times.
"""

from __future__ import annotations

import statistics
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from support.adaptation import COLUMNS, Adaptive, RunRecord, SelectivityChange, Static, run_change, stream_schema
from support.compare import assert_same_rows
from support.duckdb_judge import DuckDBJudge

CHANGE = SelectivityChange(rate=200, seconds=13, change=5, range=2)
BATCHES = CHANGE.batches()
TINY = SelectivityChange(rate=12, seconds=9, change=4, range=2, partners=8, steady_every=3)


@pytest.fixture(scope="module", params=[1, 2])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    """Run both optimizers, with one partition and with two."""
    records = {}
    for prober in (Adaptive, Static):
        options = {"backend": "local", "partitions": request.param}
        records[prober.__name__] = run_change(
            CHANGE, prober(background=False), tmp_path_factory.mktemp("run"), batches=BATCHES, **options
        )
    return records


def count_probed_rows(record: RunRecord) -> tuple[float, list[int]]:
    """Return the rows probed in a second: before the change, with full windows, and two windows after it."""
    rows = [second.probed for second in record.seconds]
    return statistics.median(rows[CHANGE.range : CHANGE.change]), rows[CHANGE.change + 2 * CHANGE.range :]


def test_adaptive_plans_recover_their_probe_cost_within_two_windows(runs: dict[str, RunRecord]) -> None:
    before, after = count_probed_rows(runs["Adaptive"])
    assert len(after) == 4
    assert max(after) <= 1.5 * before
    first, *changes = runs["Adaptive"].choices
    assert first == 0
    assert changes[0] == CHANGE.change + 1
    (orders,) = runs["Adaptive"].choices[changes[-1]].queries.values()
    assert [str(orders[start][0].relation) for start in "st"] == ["t", "s"]


def test_static_plans_stay_more_expensive(runs: dict[str, RunRecord]) -> None:
    before, after = count_probed_rows(runs["Static"])
    assert min(after) >= 5 * before
    assert list(runs["Static"].choices) == [0]


def test_both_plans_do_the_same_work_before_the_change(runs: dict[str, RunRecord]) -> None:
    adaptive, static = (runs[name].seconds[: CHANGE.change] for name in ("Adaptive", "Static"))
    assert [(s.rows_in, s.rows_out) for s in adaptive] == [(s.rows_in, s.rows_out) for s in static]


def test_results_equal_those_of_duckdb(runs: dict[str, RunRecord]) -> None:
    streams = [Stream(name, Schema.parse(stream_schema(name)), "time", 0) for name in COLUMNS]
    judge = DuckDBJudge(streams, [{name: table.to_pylist() for name, table in tables.items()} for tables in BATCHES])
    expected = judge.judge(CHANGE.query).rows
    assert expected is not None
    for record in runs.values():
        assert sorted(map(_row_numbers, record.results.to_pylist())) == sorted(map(_row_numbers, expected))
    assert runs["Adaptive"].checksum == runs["Static"].checksum
    assert _count_results_after_change(runs["Adaptive"].results, CHANGE) > 10


def test_results_equal_those_of_the_reference(tmp_path: Path) -> None:
    expected = run_change(TINY, None, tmp_path / "reference", backend="reference").results
    assert expected.num_rows > 20
    assert _count_results_after_change(expected, TINY) > 0
    for prober in (Adaptive, Static):
        record = run_change(TINY, prober(background=False), tmp_path / prober.__name__, backend="local", partitions=2)
        assert_same_rows(record.results.to_pylist(), expected.to_pylist())
        assert (max(record.choices) > TINY.change) == (prober is Adaptive)


class PunctualAdaptive(Adaptive):
    """Plans in the background, and is always done before the next batch is planned."""

    def __init__(self) -> None:
        super().__init__(background=True)

    def _choose_next(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        wait([] if self._pending_choice is None else [self._pending_choice])
        return super()._choose_next(state, probes)


@pytest.mark.parametrize("change", [5, 6])
def test_background_replanning_changes_the_plan_two_batches_after_the_change(change: int, tmp_path: Path) -> None:
    record = run_change(
        replace(CHANGE, change=change, seconds=change + 3), PunctualAdaptive(), tmp_path, backend="local", partitions=1
    )
    assert list(record.choices) == [0, change + 2]


def _row_numbers(row: dict[str, int]) -> tuple[int, ...]:
    return row["r"], row["s"], row["t"], row["u"]


def _count_results_after_change(results: pa.Table, change: SelectivityChange) -> int:
    """Return the number of results whose rows all arrived after the change."""
    return sum(min(_row_numbers(row)) >= change.change * change.rate for row in results.to_pylist())
