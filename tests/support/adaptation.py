"""Four streams in a chain whose join selectivities change abruptly, and runs of one query on them with or without replanning.

    r ──a── s ──b── t ──c── u        windows of a few seconds, a micro-batch for each second of event time

Before the change each row is in about one result, and the equality in the middle of the chain matches slightly more pairs than
those at the ends: rows of s probe r first, rows of t probe u first. After the change a row of s has many partners in r, a row of
t has as many in u, and s and t no longer match. One row in `steady_every` keeps its old selectivities, so that a faulty change
of plans would lose results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.engine.batch_job import ReduceReport
from headrace.planner.join.join_graph import Attribute, input_relation
from headrace.planner.join.sliding_join_plan import OrdersByRelation, ProbeOrderChoice, ProbeTarget, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import SlidingJoinOptimizer

COLUMNS = {"r": ("a",), "s": ("a", "b"), "t": ("b", "c"), "u": ("c",)}
PARTNERS_BEFORE = {"a": 0.6, "b": 0.7, "c": 0.6}  # per new row; all four streams together emit one result per row
_START_MICROS = 1_800_000_000_000_000
_SECOND_MICROS = 1_000_000
_STEADY_FROM, _UNMATCHED_FROM = 1 << 40, 1 << 41

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SelectivityChange:
    """The input: rows per second of each stream, total seconds, the second of the change, the window range in seconds.

    `partners` is the number of matches per row after the change; one row in `steady_every` does not change.
    """

    rate: int
    seconds: int
    change: int
    range: int
    partners: int = 100
    steady_every: int = 100
    seed: int = 1

    @property
    def query(self) -> str:
        """The four-way linear join."""
        window = {name: f"SLIDING({name}, '{self.range} seconds') {name}" for name in COLUMNS}
        return (
            f"SELECT r.n AS r, s.n AS s, t.n AS t, u.n AS u FROM {window['r']} JOIN {window['s']} ON r.a = s.a "
            f"JOIN {window['t']} ON s.b = t.b JOIN {window['u']} ON t.c = u.c"
        )

    def batches(self) -> list[dict[str, pa.Table]]:
        """Return the rows of each second, by stream."""
        tables = {name: self._make_stream(number, name) for number, name in enumerate(COLUMNS)}
        return [{name: table.slice(n * self.rate, self.rate) for name, table in tables.items()} for n in range(self.seconds)]

    def _make_stream(self, number: int, name: str) -> pa.Table:
        rng = np.random.default_rng((self.seed, number))
        rows = np.arange(self.rate * self.seconds)
        is_after, is_steady = rows >= self.change * self.rate, rng.random(rows.size) < 1 / self.steady_every
        columns = {
            column: np.where(is_after, self._values_after(rng, number, column, is_steady), self._values_before(rng, column))
            for column in COLUMNS[name]
        }
        times = pa.array(_START_MICROS + rows * _SECOND_MICROS // self.rate, pa.timestamp("us", "UTC"))
        return pa.table({**columns, "n": rows, "time": times})

    def _values_before(self, rng: np.random.Generator, column: str, fraction: float = 1.0) -> Integers:
        """Return values so that a window, or a fraction of its rows, holds `PARTNERS_BEFORE` equal values on average."""
        distinct = max(1, round(self.rate * self.range * fraction / PARTNERS_BEFORE[column]))
        return rng.integers(0, distinct, self.rate * self.seconds)

    def _values_after(self, rng: np.random.Generator, number: int, column: str, is_steady: npt.NDArray[np.bool_]) -> Integers:
        """Return values with many partners at the ends of the chain and none in the middle, except for steady rows."""
        total = self.rate * self.seconds
        if column == "b":
            changed = _UNMATCHED_FROM + np.arange(total) * len(COLUMNS) + number
        else:
            changed = -1 - rng.integers(0, max(1, self.rate * self.range // self.partners), total)
        return np.where(is_steady, self._values_before(rng, column, 1 / self.steady_every) + _STEADY_FROM, changed)


def stream_schema(name: str) -> str:
    """Return the columns of a stream."""
    return ", ".join([*(f"{column} BIGINT" for column in COLUMNS[name]), "n BIGINT, time TIMESTAMP"])


ORDERS: Mapping[str, str] = {"r": "sa tb uc", "s": "ra tb uc", "t": "uc sb ra", "u": "tc sb ra"}
"""The best probe orders before the change, without intermediate stores: the streams to probe, and their store columns."""


def initial_orders(partitions: int) -> OrdersByRelation:
    """Return the best probe orders before the change; with a single partition no store is partitioned."""
    return {start: tuple(_parse_target(*step, partitions) for step in order.split()) for start, order in ORDERS.items()}


def _parse_target(name: str, column: str, partitions: int) -> ProbeTarget:
    return ProbeTarget(input_relation(name), Attribute(name, column) if partitions > 1 else None)


class Adaptive(SlidingJoinOptimizer):
    """The optimizer, but with given initial probe orders; counts the rows that probes take and produce."""

    def __init__(self, *, background: bool) -> None:
        super().__init__(1, background=background)
        self._started = False
        self.rows_in = self.rows_out = 0

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        """Return the initial orders first, then the optimizer's choices."""
        if not self._started:
            self._started = True
            return ProbeOrderChoice({query.id: initial_orders(state.partitions) for query in probes.queries})
        return self._choose_next(state, probes)

    def _choose_next(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        return super().choose_plan(state, probes)

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        """Count the input and output rows of all probes in the last batch."""
        super().record_batch(outcomes)
        self.rows_in = sum(rows_in for outcome in outcomes for rows_in, _ in outcome.probe_counts.values())
        self.rows_out = sum(rows_out for outcome in outcomes for _, rows_out in outcome.probe_counts.values())


class Static(Adaptive):
    """Keeps the initial orders."""

    def _choose_next(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        return None


@dataclass(frozen=True, slots=True)
class SecondFigures:
    """One second of event time: input and output rows of probes, wall time, emitted rows, whether the orders changed."""

    rows_in: int
    rows_out: int
    seconds: float
    emitted: int
    changed: bool

    @property
    def probed(self) -> int:
        """The input and output rows of probes."""
        return self.rows_in + self.rows_out


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: its seconds, its results, and the probe orders that took effect, by second."""

    seconds: list[SecondFigures]
    results: pa.Table
    choices: dict[int, ProbeOrderChoice] = field(default_factory=dict)

    @property
    def checksum(self) -> int:
        """A checksum of the results that does not depend on their order."""
        mixed = np.zeros(self.results.num_rows, np.uint64)
        for number, column in enumerate(self.results.columns):
            mixed = (mixed ^ column.to_numpy().astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15 + 2 * number)
        return int(mixed.sum())


def run_change(
    change: SelectivityChange,
    optimizer: Adaptive | None,
    directory: Path | None = None,
    *,
    batches: Sequence[Mapping[str, pa.Table]] | None = None,
    on_second: Callable[[int, SecondFigures], None] = lambda *_: None,
    **options: object,
) -> RunRecord:
    """Run a micro-batch per second of input; without an optimizer (the reference back-end has none) nothing is counted."""
    record = RunRecord([], pa.table({}))
    with hr.Session(directory, **options) as session:
        sources = {name: hr.MemorySource(stream_schema(name)) for name in COLUMNS}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        query = session.add(change.query, name="q")
        if optimizer is not None:
            session._coordinator.optimizers.sliding_joins = optimizer
        session.advance()  # the initial orders take effect with the next batch
        for number, tables in enumerate(change.batches() if batches is None else batches):
            for name, table in tables.items():
                sources[name].append(table)
            for second in _advance(session, optimizer, number, record.choices):
                record.seconds.append(second)
                on_second(number, second)
        return RunRecord(record.seconds, query.results(), record.choices)


def _advance(
    session: hr.Session, optimizer: Adaptive | None, number: int, choices: dict[int, ProbeOrderChoice]
) -> Iterator[SecondFigures]:
    before = session._coordinator.sliding_join_plan
    started = time.perf_counter()
    report = session.advance()
    seconds = time.perf_counter() - started
    if optimizer is None:
        return
    after = session._coordinator.sliding_join_plan
    assert before is not None
    assert after is not None
    changed = before.choice != after.choice
    if changed:
        choices[number] = after.choice
    yield SecondFigures(optimizer.rows_in, optimizer.rows_out, seconds, report.emitted, changed)
