"""Four streams in a chain whose selectivities turn over at once, and the same query on them under plans that adapt or do not.

    r ──a── s ──b── t ──c── u        windows of a few seconds, a micro-batch for each second of event time

Before the change a row is in about one result, and the middle of the chain joins a little more than its ends: rows of s look
into r first, those of t into u. From then on a row of s has many partners in r, one of t as many in u, and s and t have none
in each other; but for one row in `still`, which go on among themselves, so that there is something to lose when plans change.
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
PARTNERS = {"a": 0.6, "b": 0.7, "c": 0.6}  # that a new row finds before the change: all four together make a result for each row
_BEGIN = 1_800_000_000_000_000
_SECOND = 1_000_000
_STILL_FROM, _NOBODY_FROM = 1 << 40, 1 << 41

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Change:
    """What is fed: rows a second of each stream, seconds in all, the second of the change, the window; partners after it."""

    rate: int
    seconds: int
    change: int
    range: int
    partners: int = 100
    still: int = 100
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
        whole = {name: self._stream(number, name) for number, name in enumerate(COLUMNS)}
        return [{name: table.slice_key(n * self.rate, self.rate) for name, table in whole.items()} for n in range(self.seconds)]

    def _stream(self, number: int, name: str) -> pa.Table:
        chance = np.random.default_rng((self.seed, number))
        rows = np.arange(self.rate * self.seconds)
        late, still = rows >= self.change * self.rate, chance.random(rows.size) < 1 / self.still
        columns = {
            column: np.where(late, self._after(chance, number, column, still), self._before(chance, column))
            for column in COLUMNS[name]
        }
        times = pa.array(_BEGIN + rows * _SECOND // self.rate, pa.timestamp("us", "UTC"))
        return pa.table({**columns, "n": rows, "time": times})

    def _before(self, chance: np.random.Generator, column: str, part: float = 1.0) -> Integers:
        """Return values of which windows, or a part of each, hold so many equal ones as they should."""
        values = max(1, round(self.rate * self.range * part / PARTNERS[column]))
        return chance.integers(0, values, self.rate * self.seconds)

    def _after(self, chance: np.random.Generator, number: int, column: str, still: npt.NDArray[np.bool_]) -> Integers:
        """Return values with many partners at the ends of the chain, and with none in the middle."""
        every = self.rate * self.seconds
        if column == "b":
            found = _NOBODY_FROM + np.arange(every) * len(COLUMNS) + number
        else:
            found = -1 - chance.integers(0, max(1, self.rate * self.range // self.partners), every)
        return np.where(still, self._before(chance, column, 1 / self.still) + _STILL_FROM, found)


def schema(name: str) -> str:
    """Return the columns of a stream."""
    return ", ".join([*(f"{column} BIGINT" for column in COLUMNS[name]), "n BIGINT, time TIMESTAMP"])


ORDERS: Mapping[str, str] = {"r": "sa tb uc", "s": "ra tb uc", "t": "uc sb ra", "u": "tc sb ra"}
"""The orders that are best before the change, if no join is kept: to which streams, stored by which column."""


def initial(partitions: int) -> OrdersByRelation:
    """Return the orders that are best before the change; in one partition a store is not partitioned."""
    return {start: tuple(_target(*one, partitions) for one in order.split()) for start, order in ORDERS.items()}


def _target(name: str, column: str, partitions: int) -> ProbeTarget:
    return ProbeTarget(input_relation(name), Attribute(name, column) if partitions > 1 else None)


class Adaptive(SlidingJoinOptimizer):
    """The optimizer as it is, but it begins with a choice that is given; and what probes did is counted."""

    def __init__(self, *, beside: bool) -> None:
        super().__init__(1, background=beside)
        self._begun = False
        self.came = self.made = 0

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        """Return the first choice, and then what the optimizer says."""
        if not self._begun:
            self._begun = True
            return ProbeOrderChoice({one.id: initial(state.partitions) for one in probes.queries})
        return self._next(state, probes)

    def _next(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        return super().choose_plan(state, probes)

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        """Count rows that came to probes in the last batch, and rows they made."""
        super().record_batch(outcomes)
        self.came = sum(came for outcome in outcomes for came, _ in outcome.probe_counts.values())
        self.made = sum(made for outcome in outcomes for _, made in outcome.probe_counts.values())


class Static(Adaptive):
    """Stays with the choice it began with."""

    def _next(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        return None


@dataclass(frozen=True, slots=True)
class Second:
    """What a second of event time took: rows that came to probes and that they made, wall time, whether orders are new."""

    came: int
    made: int
    seconds: float
    emitted: int
    changed: bool

    @property
    def probed(self) -> int:
        """All rows that probes had to do with."""
        return self.came + self.made


@dataclass(frozen=True, slots=True)
class Played:
    """A run: its seconds, its results, and the choices that came into force, by second."""

    seconds: list[Second]
    results: pa.Table
    choices: dict[int, ProbeOrderChoice] = field(default_factory=dict)

    @property
    def checksum(self) -> int:
        """Return a number that is another one when results are, whatever their order."""
        mixed = np.zeros(self.results.num_rows, np.uint64)
        for number, column in enumerate(self.results.columns):
            mixed = (mixed ^ column.to_numpy().astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15 + 2 * number)
        return int(mixed.sum())


def play(
    change: Change,
    prober: Adaptive | None,
    directory: Path | None = None,
    *,
    batches: Sequence[Mapping[str, pa.Table]] | None = None,
    tell: Callable[[int, Second], None] = lambda *_: None,
    **options: object,
) -> Played:
    """Feed it all second by second; without `prober` (the reference back-end has none) nothing is counted."""
    played = Played([], pa.table({}))
    with hr.Session(directory, **options) as session:
        sources = {name: hr.MemorySource(schema(name)) for name in COLUMNS}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        query = session.add(change.query, name="q")
        if prober is not None:
            session._coordinator.sliding_join_optimizer = prober
        session.advance()  # from the next batch on the first choice is in force
        for number, tables in enumerate(change.batches() if batches is None else batches):
            for name, table in tables.items():
                sources[name].append(table)
            for second in _advanced(session, prober, number, played.choices):
                played.seconds.append(second)
                tell(number, second)
        return Played(played.seconds, query.results(), played.choices)


def _advanced(
    session: hr.Session, prober: Adaptive | None, number: int, choices: dict[int, ProbeOrderChoice]
) -> Iterator[Second]:
    before = session._coordinator.sliding_join_plan
    begun = time.perf_counter()
    report = session.advance()
    seconds = time.perf_counter() - begun
    if prober is None:
        return
    after = session._coordinator.sliding_join_plan
    assert before is not None
    assert after is not None
    changed = before.choice != after.choice
    if changed:
        choices[number] = after.choice
    yield Second(prober.came, prober.made, seconds, report.emitted, changed)
