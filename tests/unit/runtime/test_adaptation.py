"""Joins whose selectivities turn over: plans that adapt are soon as good as before, others are not, and results do not tell.

    second   0 ─────────── 8 ──┬──────┬────────────── 18
    partners  about one        │ r–s and t–u 100, s–t none
    orders    s→r t→u          └ new  └ rows of before have expired

Nothing is timed here; scripts/measure-adaptation does that.
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

CHANGE = SelectivityChange(rate=300, seconds=18, change=8, range=3)
BATCHES = CHANGE.batches()
TINY = SelectivityChange(rate=12, seconds=9, change=4, range=2, partners=8, steady_every=3)


@pytest.fixture(scope="module", params=[1, 2])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    """Both runs, in one partition and in two."""
    found = {}
    for prober in (Adaptive, Static):
        options = {"backend": "local", "partitions": request.param}
        found[prober.__name__] = run_change(
            CHANGE, prober(background=False), tmp_path_factory.mktemp("run"), batches=BATCHES, **options
        )
    return found


def probed(played: RunRecord) -> tuple[float, list[int]]:
    """Return the rows probed in a second: before the change, with full windows, and two windows after it."""
    rows = [one.probed for one in played.seconds]
    return statistics.median(rows[CHANGE.range : CHANGE.change]), rows[CHANGE.change + 2 * CHANGE.range :]


def test_plans_that_adapt_are_as_good_as_before_within_two_windows(runs: dict[str, RunRecord]) -> None:
    former, after = probed(runs["Adaptive"])
    assert len(after) == 4
    assert max(after) <= 1.5 * former
    first, *changes = runs["Adaptive"].choices
    assert first == 0
    assert changes[0] == CHANGE.change + 1
    (orders,) = runs["Adaptive"].choices[changes[-1]].queries.values()
    assert [str(orders[start][0].relation) for start in "st"] == ["t", "s"]


def test_plans_that_are_held_stay_far_worse(runs: dict[str, RunRecord]) -> None:
    former, after = probed(runs["Static"])
    assert min(after) >= 5 * former
    assert list(runs["Static"].choices) == [0]


def test_before_the_change_both_do_the_same(runs: dict[str, RunRecord]) -> None:
    adaptive, static = (runs[name].seconds[: CHANGE.change] for name in ("Adaptive", "Static"))
    assert [(one.rows_in, one.rows_out) for one in adaptive] == [(one.rows_in, one.rows_out) for one in static]


def test_results_are_those_that_duckdb_finds(runs: dict[str, RunRecord]) -> None:
    streams = [Stream(name, Schema.parse(stream_schema(name)), "time", 0) for name in COLUMNS]
    judged = DuckDBJudge(streams, [{name: table.to_pylist() for name, table in tables.items()} for tables in BATCHES])
    expected = judged.judge(CHANGE.query).rows
    assert expected is not None
    for played in runs.values():
        assert sorted(map(_numbers, played.results.to_pylist())) == sorted(map(_numbers, expected))
    assert runs["Adaptive"].checksum == runs["Static"].checksum
    assert _since_the_change(runs["Adaptive"].results, CHANGE) > 10


def test_results_are_those_of_the_reference(tmp_path: Path) -> None:
    expected = run_change(TINY, None, tmp_path / "reference", backend="reference").results
    assert expected.num_rows > 20
    assert _since_the_change(expected, TINY) > 0
    for prober in (Adaptive, Static):
        played = run_change(TINY, prober(background=False), tmp_path / prober.__name__, backend="local", partitions=2)
        assert_same_rows(played.results.to_pylist(), expected.to_pylist())
        assert (max(played.choices) > TINY.change) == (prober is Adaptive)


class Punctual(Adaptive):
    """Looks beside the pipeline, and is always done when the next batch is planned."""

    def __init__(self) -> None:
        super().__init__(background=True)

    def _choose_next(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        wait([] if self._pending_choice is None else [self._pending_choice])
        return super()._choose_next(state, probes)


@pytest.mark.parametrize("change", [5, 6])
def test_what_is_seen_in_a_batch_is_looked_at_in_the_next_and_in_force_in_the_one_after(change: int, tmp_path: Path) -> None:
    played = run_change(replace(CHANGE, change=change, seconds=change + 3), Punctual(), tmp_path, backend="local", partitions=1)
    assert list(played.choices) == [0, change + 2]


def _numbers(row: dict[str, int]) -> tuple[int, ...]:
    return row["r"], row["s"], row["t"], row["u"]


def _since_the_change(results: pa.Table, change: SelectivityChange) -> int:
    """How many results are of rows after the change only."""
    return sum(min(_numbers(row)) >= change.change * change.rate for row in results.to_pylist())
