"""A session over streams r … v on the local back-end, driven batch by batch, for tests of sliding joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import headrace as hr
from headrace.engine.batch_job import ReduceReport, SegmentRef
from headrace.model.sliding_join_options import SlidingJoinOptions
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import SlidingJoinOptimizer
from support.sliding_join_plans import COLUMNS, format_store

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class ManualOptimizer(SlidingJoinOptimizer):
    """An optimizer that changes the plan only to `next_choice`, which the test sets."""

    def __init__(self, options: SlidingJoinOptions = SlidingJoinOptions()) -> None:  # noqa: B008  a frozen value
        super().__init__(background=False, options=options)
        self.next_choice: ProbeOrderChoice | None = None

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        pass

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        choice, self.next_choice = self.next_choice, None
        return choice


class JoinSession:
    """Streams and queries; tests pass rows by stream, as dictionaries with `at`, the event time in seconds."""

    def __init__(self, directory: Path, names: str, optimizer: SlidingJoinOptimizer | None = None, **options: Any) -> None:
        self.directory = directory
        self.session = hr.Session(directory, **{"backend": "local", "partitions": 2, **options})
        self.optimizer = optimizer or ManualOptimizer(self.session._coordinator.optimizers.sliding_joins.options)
        self.session._coordinator.optimizers.sliding_joins = self.optimizer
        self.sources = {name: hr.MemorySource(COLUMNS) for name in names}
        for name, source in self.sources.items():
            self.session.create_stream(name, source, time="time")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def append_rows(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        for name, stream_rows in rows.items():
            self.sources[name].append(
                [
                    {**{k: v for k, v in row.items() if k != "at"}, "time": BEGIN + timedelta(seconds=row["at"])}
                    for row in stream_rows
                ]
            )

    def advance(self, rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> None:
        """Append rows and run a micro-batch."""
        self.append_rows(rows or {})
        self.session.advance()

    @property
    def plan(self) -> SlidingJoinPlan:
        plan = self.session._coordinator.sliding_join_plan
        assert plan is not None
        return plan

    @property
    def segment_refs(self) -> tuple[SegmentRef, ...]:
        return self.session._coordinator.state.store_refs

    def count_rows(self) -> dict[str, int]:
        """Return the number of rows in each store."""
        names = {store.number: format_store(store) for store in self.plan.stores}
        counts: Counter[str] = Counter()
        for ref in self.segment_refs:
            counts[names[ref.store]] += ref.row_count
        return dict(sorted(counts.items()))

    def count_segments(self) -> dict[str, int]:
        """Return the number of segments of each store, in the partition in which it has most."""
        names = {store.number: format_store(store) for store in self.plan.stores}
        most: dict[str, int] = {}
        for (store, _), count in Counter((ref.store, ref.partition) for ref in self.segment_refs).items():
            most[names[store]] = max(count, most.get(names[store], 0))
        return most

    def files(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.directory / folder).iterdir() if not path.name.startswith("."))

    def results(self, name: str) -> Counter[tuple[Any, ...]]:
        """Return the result rows of a query and how often each was emitted."""
        query = self.session.find(name)
        assert query is not None
        return Counter(tuple(row.values()) for row in query.results().to_pylist())
